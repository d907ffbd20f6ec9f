"""`StatisticsSubscriber`: a text file for each activation and each gradient of each step, in onnxruntime's layout."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ontrain.errors import InputError, OptionError
from ontrain.places import STEP, step_number
from ontrain.training.inspection.folder import ORDER
from ontrain.training.inspection.subscribers import Subscriber

__all__ = ["Statistics", "StatisticsSubscriber", "summarise"]

_SAMPLES = 128
_BUCKET = 1 << 29


@dataclass(frozen=True)
class Statistics:
    """What a file says of a tensor.

    Attributes:
        name: of the value, and the pass that it is of: "Linear_1_0th_output forward run".
        depth: of the module, counted from 1; 0 for what belongs to no module.
        minimum, maximum, mean, std: of all elements; NaN where there is none, as the deviation of one element is.
        nan, inf, negative, positive, zero: how many elements are that.
        samples: the first 128 elements.
    """

    name: str
    depth: int
    shape: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float
    mean: float
    std: float
    nan: int
    inf: int
    negative: int
    positive: int
    zero: int
    samples: tuple[float, ...]

    def text(self) -> str:
        """Return the file's content, in onnxruntime's layout."""
        size = math.prod(self.shape)
        rows = [self.samples[i : i + 8] for i in range(0, len(self.samples), 8)]
        # As many digits as tell two numbers of the dtype apart.
        digits = 16 if self.dtype in ("torch.float64", "torch.complex128") else 8
        samples = ",\n        ".join(", ".join(f"{value: .{digits}e}" for value in row) for row in rows)
        return (
            f"{'>' * self.depth}{self.name} shape: torch.Size({list(self.shape)}) dtype: {self.dtype} "
            f"size: torch.Size([{size}]) \n"
            f"min: {self.minimum!r} max: {self.maximum!r}, mean: {self.mean!r}, std: {self.std!r} \n"
            f"nan: {self.nan}, inf: {self.inf}\n"
            f"samples(top {_SAMPLES}): tensor([{samples}])\n"
            f"neg: {self.negative}, pos: {self.positive}, zero: {self.zero},\n"
            f"{'=' * 16}\n"
        )

    @classmethod
    def parse(cls, text: str, where: str) -> Statistics:
        """Read a file's content, written here or by onnxruntime.

        Raises:
            InputError: it is none; `where` is named.
        """
        match = _FILE.match(text)
        if match is None:
            raise InputError(
                f"{where} holds no statistics", reason="it is torn, or something else",
                way_out="compare folders that a StatisticsSubscriber wrote",
            )  # fmt: skip
        number = {key: float(match[key]) for key in ("min", "max", "mean", "std")}
        count = {key: int(match[key]) for key in ("nan", "inf", "neg", "pos", "zero")}
        inside = match["samples"].partition("[")[2].rpartition("]")[0]
        return cls(
            match["name"], len(match["depth"]), tuple(int(size) for size in re.findall(r"\d+", match["shape"])),
            match["dtype"], number["min"], number["max"], number["mean"], number["std"], count["nan"], count["inf"],
            count["neg"], count["pos"], count["zero"], tuple(float(number) for number in _NUMBER.findall(inside)),
        )  # fmt: skip


_NUMBER = re.compile(r"[-+]?(?:nan|inf|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)", re.IGNORECASE)
_FILE = re.compile(
    r"(?P<depth>>*)(?P<name>[^\n]*?) shape: torch\.Size\(\[(?P<shape>[\d, ]*)\]\) dtype: (?P<dtype>\S+) size: [^\n]*\n"
    r"min: (?P<min>\S+) max: (?P<max>\S+), mean: (?P<mean>\S+), std: (?P<std>\S+) *\n"
    r"nan: (?P<nan>\d+), inf: (?P<inf>\d+)\n"
    r"samples\(top \d+\): (?P<samples>.*)\n"
    r"neg: (?P<neg>\d+), pos: (?P<pos>\d+), zero: (?P<zero>\d+),\n",
    re.DOTALL,
)


def summarise(
    name: str, depth: int, tensor: torch.Tensor, *, run_on_cpu: bool = False, bucket_size: int = _BUCKET
) -> Statistics:
    """Return the statistics of a tensor; sums are in double precision, complex numbers are pairs.

    Args:
        run_on_cpu: whether to copy the tensor to the CPU first.
        bucket_size: how many elements to look at in one go: that many doubles are in memory for it.
    """
    shape, dtype = tuple(tensor.shape), str(tensor.dtype)
    flat = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1)
    flat = flat.cpu() if run_on_cpu else flat
    counts, total, squares, least, most = [0] * 5, 0.0, 0.0, math.nan, math.nan
    for start in range(0, flat.numel(), bucket_size):
        part = flat[start : start + bucket_size].double()
        kinds = (part.isnan(), part.isinf(), part < 0, part > 0, part == 0)
        counts = [count + int(kind.sum()) for count, kind in zip(counts, kinds, strict=True)]
        low, high, mean = float(part.min()), float(part.max()), float(part.mean())
        # Two parts' sums of squared deviations are added as Chan, Golub and LeVeque do (1979).
        before = total / start if start else mean
        squares += float((part - mean).square().sum()) + (mean - before) ** 2 * start * len(part) / (start + len(part))
        total += mean * len(part)
        least, most = (low, high) if not start else (_least(least, low), -_least(-most, -high))
    size = flat.numel()
    nan, inf, negative, positive, zero = counts
    return Statistics(
        name, max(0, depth), shape, dtype, least, most, total / size if size else math.nan,
        math.sqrt(squares / (size - 1)) if size > 1 and math.isfinite(squares) else math.nan,
        nan, inf, negative, positive, zero, tuple(flat[:_SAMPLES].double().tolist()),
    )  # fmt: skip


def _least(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else min(a, b)


class StatisticsSubscriber(Subscriber):
    """Writes statistics of activations and their gradients, a file each (onnxruntime's class of this name).

    The files of a step are in `{output_dir}/step_{step}`: `{name}_forward`, `{name}_backward`, and `order.txt` with
    their names in the order in which they were written. `ontrain compare` compares two such folders.

    Args:
        output_dir: the folder.
        start_step: the first step to write; None for 0.
        end_step: the step before which to stop; None for never.
        override_output_dir: whether an older run in the folder may be deleted.
        run_on_cpu: whether to copy tensors to the CPU first: slower, and takes no memory of an accelerator's.
        bucket_size: elements to look at in one go.

    Raises:
        OptionError: the folder exists and may not be overridden, or holds something else than an older run.
    """

    def __init__(
        self, output_dir: str, start_step: int | None = None, end_step: int | None = None,
        override_output_dir: bool = False, run_on_cpu: bool = False, bucket_size: int = _BUCKET,
    ) -> None:  # fmt: skip
        super().__init__(start_step, end_step)
        if bucket_size < 1:
            raise OptionError(f"bucket_size is {bucket_size}", way_out="it is a number of elements, from 1")
        self.output_dir = Path(output_dir)
        self._run_on_cpu, self._bucket_size = run_on_cpu, bucket_size
        if self.output_dir.exists():
            self._delete(override_output_dir)

    def _delete(self, allowed: bool) -> None:
        if not allowed:
            raise OptionError(
                f"the output folder {self.output_dir} exists",
                way_out="give another one, or override_output_dir=True to have it deleted",
            )
        foreign = [path.name for path in _entries(self.output_dir) if step_number(path) is None]
        if foreign:
            raise OptionError(
                f"the output folder {self.output_dir} holds more than an older run: {', '.join(sorted(foreign)[:3])}",
                reason="it would all be deleted", way_out="give a folder of its own",
            )  # fmt: skip
        shutil.rmtree(self.output_dir)

    def activation(self, name: str, depth: int, step: int, value: torch.Tensor) -> None:
        """Write the statistics of a value that a forward computed."""
        self._write(f"{name} forward run", f"{name}_forward", depth, step, value)

    def gradient(self, name: str, depth: int, step: int, value: torch.Tensor) -> None:
        """Write the statistics of a gradient."""
        self._write(f"{name} backward run", f"{name}_backward", depth, step, value)

    def _write(self, title: str, file: str, depth: int, step: int, value: torch.Tensor) -> None:
        summary = summarise(title, depth, value, run_on_cpu=self._run_on_cpu, bucket_size=self._bucket_size)
        folder = self.output_dir / f"{STEP}{step}"
        folder.mkdir(parents=True, exist_ok=True)
        file = file.replace("/", "_")
        (folder / file).write_text(summary.text(), encoding="utf-8")
        with (folder / ORDER).open("a", encoding="utf-8") as order:
            order.write(f"{file}\n")


def _entries(folder: Path) -> Sequence[Path]:
    if not folder.is_dir():
        raise OptionError(f"{folder} is a file", way_out="give a folder")
    return list(folder.iterdir())
