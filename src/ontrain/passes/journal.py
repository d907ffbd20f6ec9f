"""What became of a graph on its way to a provider: which passes may run, and every stage on disk to be read."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

import onnx_ir as ir

from ontrain.errors import OptionError
from ontrain.functions import with_local_functions
from ontrain.graph import to_text
from ontrain.passes.infra import PassReport

__all__ = ["Journal", "PassLimit"]

_INLINE_LIMIT = 1 << 30
"""Bytes of constants beyond which they go to a file of their own beside the model (protobuf ends at 2 GiB)."""


@dataclass(frozen=True)
class PassLimit:
    """Where to stop: after `passes` passes, the last of which may rewrite only `rewrites` nodes."""

    passes: float = float("inf")
    rewrites: float = float("inf")

    @classmethod
    def parse(cls, text: str) -> PassLimit:
        """Read "7", or "7:3" for the first three rewrites of the seventh pass.

        Raises:
            OptionError: the text is neither.
        """
        passes, _, rewrites = text.partition(":")
        if not passes.isdecimal() or not (rewrites.isdecimal() or ":" not in text):
            raise OptionError(
                f"ONTRAIN_PASS_LIMIT is {text!r}",
                way_out="set it to '7' (passes), or '7:3' (three rewrites of the 7th)",
            )
        return cls(int(passes), int(rewrites) if rewrites else float("inf"))


@dataclass
class Journal:
    """Counts the passes of one plan over all its stages and, where a folder is given, writes each stage.

    The folder gets a subfolder a plan, `000-update`, `001-eval`, …, and this one `00-captured.onnx` and `.txt`,
    `01-specialised`, `02-forward-Simplify`, … to the graph that the provider gets, and `passes.json`: what each pass
    changed and how long everything took. A file is written beside and renamed into place.

    Args:
        title: what the plan is for.
        disabled: names of passes to leave out; `ONTRAIN_DISABLE_PASSES` (comma-separated) adds to them.
        dump: the folder; default `ONTRAIN_DUMP`, and if that is not set nothing is written.
        save: files for single stages, by the name that `milestone` is called with.

    Raises:
        OptionError: `ONTRAIN_PASS_LIMIT` is malformed, or the folder cannot be written.
    """

    title: str
    disabled: Sequence[str] = ()
    dump: str | os.PathLike[str] | None = None
    save: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = os.environ.get("ONTRAIN_DISABLE_PASSES", "").split(",")
        self.off = frozenset({*self.disabled, *(name.strip() for name in named if name.strip())})
        limit = os.environ.get("ONTRAIN_PASS_LIMIT")
        self.limit = PassLimit.parse(limit) if limit else PassLimit()
        self.reports: list[PassReport] = []
        self.seconds: dict[str, float] = {}
        self._written: list[str] = []
        dump = self.dump or os.environ.get("ONTRAIN_DUMP")
        self.folder = _new_folder(Path(dump), self.title) if dump else None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write `passes.json`, after a failure too: it says how far the plan came."""
        if self.folder is None:
            return
        content = {
            "plan": self.title,
            "error": str(error) if error is not None else None,
            "disabled": sorted(self.off),
            "seconds": self.seconds,
            "passes": [asdict(report) for report in self.reports],
            "stages": self._written,
        }
        _replace(self.folder / "passes.json", json.dumps(content, indent=1).encode())

    @property
    def silent(self) -> bool:
        """Whether no stage is written, and passes run to their end."""
        return self.folder is None and not any(self.save.values()) and self.limit == PassLimit()

    def fuel(self) -> float:
        """Return how many rewrites the next pass may make: none once the limit of passes is reached."""
        number = len(self.reports) + 1
        if number > self.limit.passes:
            return 0
        return self.limit.rewrites if number == self.limit.passes else float("inf")

    def stage(self, name: str, model: ir.Model) -> None:
        """Write a stage, if there is a folder."""
        if self.folder is None:
            return
        stem = f"{len(self._written):02d}-{name}"
        _replace(self.folder / f"{stem}.txt", (to_text(model) + "\n").encode())
        _write_model(model, self.folder / f"{stem}.onnx")
        self._written.append(stem)

    def milestone(self, name: str, model: ir.Model) -> None:
        """Write the graph to the file that `save` has for this name, if it has one.

        Raises:
            OptionError: the file cannot be written.
        """
        target = self.save.get(name)
        if target:
            with _writing(target):
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                _write_model(model, Path(target))


class _writing:  # noqa: N801 (reads as a phrase)
    """Turn an OSError about a folder that the user named into an OptionError."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = place

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise OptionError(
                f"cannot write graphs to {os.fspath(self.place)!r}", reason=str(error), way_out="name another place"
            ) from error


def _new_folder(parent: Path, title: str) -> Path:
    """Make the next numbered folder."""
    with _writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        first = [entry.name.partition("-")[0] for entry in parent.iterdir()]
        for number in itertools.count(
            1 + max((int(number_used) for number_used in first if number_used.isdecimal()), default=-1)
        ):
            folder = parent / f"{number:03d}-{title}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue  # another process was quicker
            return folder
    raise AssertionError("unreachable")


def _write_model(model: ir.Model, path: Path) -> None:
    """Write a graph with its composites as local functions, so that any ONNX tool opens it."""
    static = all(v.shape is not None and v.shape.is_static() for v in model.graph.inputs)
    portable = with_local_functions(model) if static else model  # a body may need to know the shapes
    constants = (v.const_value for v in portable.graph.initializers.values())
    if sum(constant.nbytes for constant in constants if constant is not None) > _INLINE_LIMIT:
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        ir.save(portable, beside, external_data=f"{path.name}.data")
        os.replace(beside, path)
    else:
        _replace(path, ir.to_proto(portable).SerializeToString())


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
