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

A turn makes several steps without a wait between them, as far as the engine allows, and ends with one; times are per
step, medians over the turns, and ratios are medians of (other engine's time / ontrain's) turn by turn. "done" are the
floating-point operations of the matrix products that an engine really does, counted in ontrain's graph and, for the
others, by torch's FlopCounterMode; their share of the device's peak rate is the model FLOP utilisation. Memory is the
most that torch's allocator had given out, less the model. Rows go to benchmarks/results/gpu.jsonl.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn import functional

from benchmarks import serving, step
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
LR, DECAY = 1e-4, 0.01
Batch = dict[str, torch.Tensor]


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
    def parse(cls, given: list[str]) -> Setting:
        """Read such a line."""
        workload, size, device, dtype, batch, steps = given
        return cls(workload, size, device, dtype, int(batch), int(steps))

    @property
    def precision(self) -> torch.dtype:
        """What products run in."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


def make(setting: Setting) -> tuple[torch.nn.Module, Batch]:
    """Return a model in training mode and a batch by input name, both on the device."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    tiny = setting.size == "tiny"
    rows, length = _rows(setting)
    draws = torch.Generator().manual_seed(1)
    config: Any
    model: Any
    if setting.workload.startswith("gpt2"):
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000, "n_positions": 64} if tiny else {
            "n_embd": 1024, "n_layer": 24, "n_head": 16
        }  # fmt: skip
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) if tiny else {}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(**sizes, **dropout, **ends, use_cache=False, attn_implementation="sdpa")
        model = GPT2LMHeadModel(config)
        ids = torch.randint(0, config.vocab_size, (rows, length), generator=draws)
        batch = {"input_ids": ids, "labels": ids.clone()}
    else:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
                 "vocab_size": 1000} if tiny else {"hidden_size": 1024, "num_hidden_layers": 24,
                 "num_attention_heads": 16, "intermediate_size": 4096}  # fmt: skip
        dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0) if tiny else {}
        config = BertConfig(**sizes, **dropout, attn_implementation="sdpa")
        model = BertForMaskedLM(config)
        ids = torch.randint(5, config.vocab_size, (rows, length), generator=draws)
        labelled = torch.rand(ids.shape, generator=draws) < 0.15
        batch = {
            "input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids),
            "labels": torch.where(labelled, ids, -100),
        }  # fmt: skip
    device = torch.device(setting.device)
    return model.train().to(device), {name: tensor.to(device) for name, tensor in batch.items()}


def _rows(setting: Setting) -> tuple[int, int]:
    """Sequences and tokens a sequence."""
    length = int(setting.workload.rpartition("-")[2])
    rows = {128: 64, 512: 16, 1024: 8}[length]
    return (setting.batch or 2, 16) if setting.size == "tiny" else (setting.batch or rows, length)


def _chunked(model: Any, batch: Batch) -> torch.Tensor:
    """The loss of a language model by torch's `linear_cross_entropy`, which need not make all scores at once."""
    options = getattr(functional, "LinearCrossEntropyOptions", None)
    more = {"options": options()} if options is not None else {}
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    if hasattr(model, "transformer"):
        hidden, labels = model.transformer(**inputs)[0][:, :-1], batch["labels"][:, 1:]
        weight, bias = model.lm_head.weight, None
    else:
        hidden, labels = model.cls.predictions.transform(model.bert(**inputs)[0]), batch["labels"]
        weight, bias = model.cls.predictions.decoder.weight, model.cls.predictions.decoder.bias
    weight = weight.to(hidden.dtype)
    loss: torch.Tensor = functional.linear_cross_entropy(  # type: ignore[attr-defined]
        hidden.flatten(0, 1), weight, labels.flatten(), ignore_index=-100,
        linear_bias=None if bias is None else bias.to(hidden.dtype), **more,
    )  # fmt: skip
    return loss


def _eager(model: torch.nn.Module, loss_of: Callable[[Batch], torch.Tensor]) -> Callable[[Batch], Any]:
    """PyTorch's own training loop at its strongest."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)

    def train(batch: Batch) -> torch.Tensor:
        loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return train


def _autocast(setting: Setting, forward: Callable[[Batch], torch.Tensor]) -> Callable[[Batch], torch.Tensor]:
    """Forward with products in half precision; the parameters stay in single."""
    device, half = torch.device(setting.device).type, setting.precision != torch.float32

    def loss_of(batch: Batch) -> torch.Tensor:
        with torch.autocast(device, setting.precision) if half else contextlib.nullcontext():
            return forward(batch)

    return loss_of


def _trainer(setting: Setting, model: torch.nn.Module, batch: Batch, *, graphs: bool) -> Any:
    from ontrain.training import ORTTrainer, optim

    desc = {
        "inputs": [(name, ["batch", "sequence"][: tensor.dim()]) for name, tensor in batch.items()],
        "outputs": [("loss", [], True)],
    }
    options: dict[str, Any] = {
        "device": {"id": setting.device}, "utils": {"grad_norm_clip": False},
        "provider": ("TorchExecutionProvider", {"cuda_graphs": graphs}),
    }  # fmt: skip
    if setting.precision != torch.float32:
        options["mixed_precision"] = {"enabled": True, "dtype": setting.dtype}
    return ORTTrainer(model, desc, optim.AdamConfig(lr=LR, lambda_coef=DECAY), options=options)


class Engine:
    """One engine's steps, and the operations that it does in each."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.name, self.setting = name, setting
        self.model, self.batch = make(setting)
        self.train: Callable[[Batch], Any] = lambda batch: None
        self._trainer: Any = None
        self._module: Any = None
        self._loss_of: Callable[[Batch], torch.Tensor] = _autocast(setting, lambda batch: torch.zeros(()))
        self._first = True

    def start(self) -> Callable[[], float]:
        """Prepare, and return what makes the steps of a turn (the first time one) and gives the last loss."""
        model, setting = self.model, self.setting
        if self.name in ("ontrain", "ontrain-plain"):
            self._trainer = _trainer(setting, model, self.batch, graphs=self.name == "ontrain")
            self.train = lambda batch: self._trainer.train_step(**batch)
        elif self.name == "ortmodule":
            from ontrain.training.ortmodule import ORTModule

            self._module = ORTModule(model)
            self.train = _eager(self._module, _autocast(setting, lambda batch: self._module(**batch).loss))
        else:
            forward: Any = functools.partial(_chunked, model) if "chunked" in self.name else lambda b: model(**b).loss
            if self.name.startswith("compile"):
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
                mode = self.name.partition("-")[2]
                forward = torch.compile(forward, mode=None if mode in ("", "chunked") else mode)
            self._loss_of = _autocast(setting, forward)
            self.train = _eager(model, self._loss_of)
        return self._turn

    def _turn(self) -> float:
        count, self._first = (1 if self._first else self.setting.steps), False
        for _ in range(count - 1):
            self.train(self.batch)
        return float(self.train(self.batch))  # a wait for the device

    def facts(self) -> Mapping[str, float]:
        """Return the operations that a step's products do; nothing where that is not known."""
        from ontrain.functions.cost import count_flops, node_flops

        if self._trainer is not None:
            return {"flop": float(count_flops(self._trainer.step_model()).products)}
        if self._module is not None:
            plans = [plan for entry in self._module._engine.entries for plan in entry.session.plans.values()]
            halves = [(one.forward_code, one.backward_code) for one in (plan.executable.current for plan in plans)]
            nodes = [{one.node for code in both for one in code.program if one.node is not None} for both in halves]
            return {"flop": float(max(sum(node_flops(node).products for node in found) for found in nodes))}
        if self.name.startswith("eager"):
            from torch.utils.flop_counter import FlopCounterMode

            with FlopCounterMode(display=False) as counter:
                self._loss_of(self.batch).backward()  # type: ignore[no-untyped-call]
            self.model.zero_grad(set_to_none=True)
            return {"flop": float(counter.get_total_flops())}
        return {}

    def memory(self) -> int:
        """Return the most bytes that were given out on the device; of the process where that is the CPU."""
        if torch.device(self.setting.device).type != "cuda":
            return serving._resident()
        return int(torch.cuda.max_memory_allocated())


def serve(name: str, setting: Setting) -> None:
    """Be an engine's process."""
    engine = Engine(name, setting)
    serving.serve(engine.start, 1, memory=engine.memory, facts=engine.facts)


def worker(setting: Setting) -> type[step.Worker]:
    """Return what starts an engine's process and drives it."""

    class Worker(step.Worker):
        started: ClassVar[list[step.Worker]] = []

        def __init__(self, engine: str, model: str, layers: int) -> None:
            super().__init__(engine, model, layers)
            self.started.append(self)

        def _command(self, engine: str, model: str, layers: int) -> list[str]:
            return [sys.executable, "-m", "benchmarks.gpu", "--serve", engine, *setting.arguments()]

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
            found = step.measure(setting.workload, 0, [engines[0], *group], rounds, started)
        except (RuntimeError, BrokenPipeError) as error:
            print(f"{setting.workload}: {', '.join(group) or engines[0]} left out, {error}", file=sys.stderr)
            for one in started.started:  # type: ignore[attr-defined]
                one.process.kill()
            continue
        figures = {**found, **figures}
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
    if torch.device(setting.device).type != "cuda":
        return {"name": "CPU"}
    if not torch.cuda.is_available():
        raise NoDeviceError(
            "torch sees no CUDA device: install a build of torch for CUDA on a machine with an NVIDIA GPU (make "
            "bench-gpu TORCH='torch --index-url URL'), or try the code with "
            "python -m benchmarks.gpu --device cpu --size tiny"
        )
    found = torch.cuda.get_device_properties(setting.device)
    return {"name": found.name, "memory_gib": round(found.total_memory / 2**30), "cuda": torch.version.cuda,
            "capability": f"{found.major}.{found.minor}"}  # fmt: skip


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
    has = hasattr(functional, "linear_cross_entropy")
    left_out = {"compile-max-autotune", *(() if has else ("eager-chunked", "compile-chunked"))}
    return [engine for engine in ENGINES if engine not in left_out]


def main(arguments: list[str] | None = None) -> int:
    """Print the tables and append a row per workload; 2 and a line that says why where there is no GPU."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--serve"]:
        serve(given[1], Setting.parse(given[2:]))
        return 0
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
    options = parser.parse_args(given)
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
        rows, length = _rows(setting)
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
