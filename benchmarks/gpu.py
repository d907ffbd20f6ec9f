"""A training step on one NVIDIA GPU, in bf16 with fp32 master weights, beside eager PyTorch and torch.compile.

    python -m benchmarks.gpu [--workload bert-large-128] [--engine ontrain --engine eager …] [--rounds 10]
    python -m benchmarks.gpu --device cpu --size tiny      the same code on a small model, without a GPU

Workloads: BERT-large's masked language model in the phases of its pretraining, 64 × 128 tokens and 16 × 512, 15 % of
them labelled, and GPT-2 medium on 8 × 1024 tokens, every one labelled; random weights, dropout 0.1.

Engines, each in a process of its own; they take turns:

- "ontrain": ORTTrainer, its plan as CUDA graphs; "ontrain-plain" launches each kernel on its own;
- "ortmodule": eager's loop around the wrapped module;
- "eager": fused AdamW, scaled_dot_product_attention, bf16 by autocast, gradients set to None;
- "eager-chunked": the same with torch's `linear_cross_entropy`, where this torch has it;
- "compile", "compile-reduce-overhead": torch.compile over eager's loop, "compile-max-autotune" if asked for, and
  "compile-chunked".

The processes of a group start at once, so "first" is the first step beside the first steps of the others. A turn makes
several steps without a wait between them, as far as the engine allows, and ends with one; times are per step, medians
over the turns, and ratios are medians of (other engine's time / ontrain's) turn by turn. "done" are the floating-point
operations of the matrix products that an engine really does, counted in ontrain's graph and, for the others, by torch's
FlopCounterMode; their share of the device's peak rate is the model FLOP utilisation. Memory is the most that torch's
allocator had given out, less the model. Rows go to benchmarks/results/gpu.jsonl.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks import step
from benchmarks.commands import Command
from benchmarks.rows import append_row

__all__ = ["ENGINES", "PEAKS", "WORKLOADS", "NoDeviceError", "main", "peak_rate"]

WORKLOADS = ("bert-large-128", "bert-large-512", "gpt2-medium-1024")
ENGINES = (
    "ontrain", "ontrain-plain", "ortmodule", "eager", "eager-chunked", "compile", "compile-chunked",
    "compile-reduce-overhead", "compile-max-autotune",
)  # fmt: skip
PEAKS = {"H200": 989.4e12, "H100 PCIe": 756e12, "H100": 989.4e12, "A100": 312e12, "L40S": 362e12}
"""Dense bf16 operations a second by a part of the device's name; NVIDIA's data sheets, half of "with sparsity"."""


class NoDeviceError(RuntimeError):
    """There is nothing to measure on."""


@dataclass(frozen=True)
class Setting:
    """What every engine's process is told: one line of arguments."""

    workload: str
    size: str
    device: str
    dtype: str
    batch: int
    steps: int

    def arguments(self) -> list[str]:
        """Return it as a command line has it."""
        return [self.workload, self.size, self.device, self.dtype, str(self.batch), str(self.steps)]

    @classmethod
    def parse(cls, line: list[str]) -> Setting:
        """Read such a line."""
        workload, size, device, dtype, batch, steps = line
        return cls(workload, size, device, dtype, int(batch), int(steps))

    @property
    def shape(self) -> tuple[int, int]:
        """Sequences of a batch, and tokens of a sequence."""
        length = int(self.workload.rpartition("-")[2])
        rows = {128: 64, 512: 16, 1024: 8}[length]
        return (self.batch or 2, 16) if self.size == "tiny" else (self.batch or rows, length)


def worker(setting: Setting) -> type[step.Worker]:
    """Return what starts an engine's process and drives it."""

    class Worker(step.Worker):
        started: ClassVar[list[step.Worker]] = []
        starts_alone = False

        def __init__(self, engine: str, model: str, layers: int) -> None:
            super().__init__(engine, model, layers)
            self.started.append(self)

        def _command(self, engine: str, model: str, layers: int) -> list[str]:
            return [sys.executable, "-m", "benchmarks.gpu_worker", engine, *setting.arguments()]

    return Worker


def measure(
    setting: Setting, engines: list[str], rounds: int, peak: float | None, together: int = 4
) -> dict[str, dict[str, float]]:
    """Return each engine's figures: those of `benchmarks.step`, a step, with operations and their share of the peak.

    The first engine takes turns with some of the others at a time, so that the memory of all need not fit: `together`
    processes. Where one of them ends, its group is said and left out.
    """
    figures: dict[str, dict[str, float]] = {}
    others, size = engines[1:], max(1, together - 1)
    for group in [others[i : i + size] for i in range(0, len(others), size)] or [[]]:
        started = worker(setting)
        try:
            group_figures = step.measure(setting.workload, 0, [engines[0], *group], rounds, started)
        except (RuntimeError, BrokenPipeError) as error:
            print(f"{setting.workload}: {', '.join(group) or engines[0]} left out, {error}", file=sys.stderr)
            for engine in started.started:  # type: ignore[attr-defined]
                engine.process.kill()
            continue
        figures = {**group_figures, **figures}
    full = statistics.fmean(
        [f["flop"] for name, f in figures.items() if name.startswith("eager") and "flop" in f] or [0.0]
    )
    figures = {name: figures[name] for name in engines if name in figures}
    for name, f in figures.items():
        for key in ("step_s", "step_min_s", "step_max_s"):
            f[key] /= setting.steps
        if name.startswith("compile") and full:
            f.setdefault("flop", full)  # the same work as eager's
        if peak is not None and f.get("flop"):
            f["utilisation"] = f["flop"] / f["step_s"] / peak
    return figures


def peak_rate(name: str) -> float | None:
    """Return the dense bf16 rate of a device by its name, in operations a second; None for one that is not listed."""
    return next((rate for part, rate in PEAKS.items() if all(word in name for word in part.split())), None)


def _device(setting: Setting) -> dict[str, Any]:
    import torch

    if torch.device(setting.device).type != "cuda":
        return {"name": "CPU"}
    if not torch.cuda.is_available():
        raise NoDeviceError(
            "torch sees no CUDA device: install a build of torch for CUDA on a machine with an NVIDIA GPU (make "
            "bench-gpu TORCH='torch --index-url URL'), or try the code with "
            "python -m benchmarks.gpu --device cpu --size tiny"
        )
    properties = torch.cuda.get_device_properties(setting.device)
    return {"name": properties.name, "memory_gib": round(properties.total_memory / 2**30), "cuda": torch.version.cuda,
            "capability": f"{properties.major}.{properties.minor}"}  # fmt: skip


def show(title: str, figures: dict[str, dict[str, float]]) -> None:
    """Print a table."""
    print(f"\n{title}\n{'engine':<25}{'step ms':>10}{'min–max ms':>19}{'time / first':>14}{'min–max':>13}{'first s':>9}"
          f"{'peak MiB':>10}{'GFLOP':>9}{'of peak':>9}")  # fmt: skip
    for name, f in figures.items():
        spread = f"{f['step_min_s'] * 1e3:.2f}–{f['step_max_s'] * 1e3:.2f}"
        ratios = f"{f['ratio_min']:.2f}–{f['ratio_max']:.2f}"
        done = f"{f['flop'] / 1e9:.1f}" if "flop" in f else "–"
        used = f"{f['utilisation']:.1%}" if "utilisation" in f else "–"
        print(f"{name:<25}{f['step_s'] * 1e3:>10.2f}{spread:>19}{f['ratio']:>13.2f}×{ratios:>13}"
              f"{f['first_step_s']:>9.1f}{f['peak_bytes'] / 2**20:>10.0f}{done:>9}{used:>9}")  # fmt: skip


def _engines() -> list[str]:
    """All but those that are asked for by name, and without those that this torch lacks."""
    from torch.nn import functional

    has = hasattr(functional, "linear_cross_entropy")
    left_out = {"compile-max-autotune", *(() if has else ("eager-chunked", "compile-chunked"))}
    return [engine for engine in ENGINES if engine not in left_out]


def main(arguments: list[str] | None = None) -> int:
    """Print the tables and append a row per workload; 2 and a line that says why where there is no GPU."""
    parser = Command(__doc__)
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="may be repeated; by default all")
    parser.add_argument(
        "--engine",
        action="append",
        choices=ENGINES,
        help="ratios refer to the first; by default all that are installed",
    )
    parser.add_argument("--max-autotune", action="store_true", help="measure torch.compile's max-autotune, too")
    parser.add_argument("--rounds", type=int, default=10, help="alternating rounds")
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--batch", type=int, default=0, help="sequences of a batch, instead of the workload's own")
    parser.add_argument("--together", type=int, default=4, help="processes at a time")
    parser.add_argument("--device", default="cuda", help="of torch")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="of the products"
    )
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="of the models")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device; by default what is listed of it")
    parser.add_argument("--no-row", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    engines = list(options.engine or _engines()) + ["compile-max-autotune"] * options.max_autotune
    for workload in options.workload or WORKLOADS:
        setting = Setting(workload, options.size, options.device, options.dtype, options.batch, options.steps)
        try:
            device = _device(setting)
        except NoDeviceError as error:
            print(error, file=sys.stderr)
            return 2
        peak = options.peak * 1e12 if options.peak else peak_rate(device["name"])
        figures = measure(setting, engines, options.rounds, peak, options.together)
        rows, length = setting.shape
        if not figures:
            return 1
        show(f"{workload} ({rows} × {length}), {options.dtype}, {device['name']}, {options.rounds} turns", figures)
        if not options.no_row:
            append_row("gpu", {
                "benchmark": "gpu", "workload": workload, "size": options.size, "rows": rows, "length": length,
                "dtype": options.dtype, "rounds": options.rounds, "steps": options.steps, "device": device,
                "peak_rate": peak, "engines": figures,
            })  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
