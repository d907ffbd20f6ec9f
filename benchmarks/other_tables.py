"""The tables of the pages on memory, threads, GPUs, artifacts and small models."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.figures import NAMES, WORKLOADS, newest, origin
from benchmarks.workloads import MODELS

__all__ = ["floor", "gpu", "memory", "portable", "small", "threads"]

_GPU = {
    "bert-large-128": "BERT-large, masked language model, 15 % labelled",
    "bert-large-512": "BERT-large, masked language model, 15 % labelled",
    "gpt2-medium-1024": "GPT-2 medium, causal language model",
}
_PROVIDERS = ("CPUExecutionProvider", "TorchExecutionProvider", "OnnxRuntimeExecutionProvider")


def floor() -> Iterable[str]:
    """What of a step its own matrix products take at the best rate that was found for each."""
    newest_rows = {model: row for model in MODELS if "step_s" in (row := newest("floor", model=model) or {})}
    if not newest_rows:
        return
    yield from ("", "### Share of the floor", "")
    yield "The matrix products of ontrain's own step, each at the best rate found for it here; and that step, in turns:"
    yield ""
    for model, row in newest_rows.items():
        yield (
            f"- {WORKLOADS[model]}: {row['floor_s']:.3f} of {row['step_s']:.3f} s, "
            f"**{row['floor_s'] / row['step_s']:.2f}**; {row['gflop']:.0f} GFLOP, by ATen {row['planned_s']:.3f} s "
            f"({origin(row)})"
        )


def memory() -> Iterable[str]:
    """Memory beyond parameters, gradients and moments, and what a step asks of the allocator."""
    newest_rows = {model: row for model in MODELS if (row := newest("memory", model=model)) is not None}
    if not newest_rows:
        return
    yield from ("", "### Memory", "")
    yield "Beyond parameters, gradients and both moments, in MiB; calls are those of torch's allocator in one step."
    for model, row in newest_rows.items():
        yield from ("", f"{WORKLOADS[model]}; {origin(row)}.", "")
        yield from ("| engine | beyond | peak | predicted peak | calls | page faults |", "|---|---|---|---|---|---|")
        for name, f in row["engines"].items():
            said = f"{f['predicted'] / 2**20:.0f}" if "predicted" in f else "–"
            yield (
                f"| {NAMES[name]} | {(f['peak'] - f['state']) / 2**20:.0f} | {f['peak'] / 2**20:.0f} | {said} | "
                f"{f['calls']:.0f} | {f['faults']:.0f} |"
            )


def threads() -> Iterable[str]:
    """Runs a second of one InferenceSession from several threads."""
    newest_rows = {name: row for name in _PROVIDERS if (row := newest("threads", provider=name)) is not None}
    if not newest_rows:
        return
    yield from ("", "### One session, several threads", "")
    yield "Runs a second of one `InferenceSession`, by the number of threads that share it:"
    yield ""
    for name, row in newest_rows.items():
        runs = ", ".join(
            f"{key.removeprefix('threads_')}: {rate:.0f}" for key, rate in row["runs_per_second"].items()
            if key.startswith("threads_")
        )  # fmt: skip
        yield f"- {name}: {runs} ({origin(row)})"


def gpu() -> Iterable[str]:
    """The same on an NVIDIA GPU, in mixed precision, where that was run."""
    yield from ("", "### On a GPU", "")
    newest_rows = [row for name in _GPU if (row := newest("gpu", workload=name, size="full")) is not None]
    newest_rows = [row for row in newest_rows if row["device"]["name"] != "CPU"]
    if not newest_rows:
        yield "Not run: there was no GPU. `make bench-gpu` writes this table."
        return
    yield "Parameters and moments in float32, products in half precision. Peak is what torch's allocator gave out"
    yield "beyond the model; “of peak rate” are the operations of the products really done, against the device's"
    yield "dense rate."
    for row in newest_rows:
        device = row["device"]
        yield from ("", f"#### {_GPU[row['workload']]}, {row['rows']} × {row['length']}, {row['dtype']}", "")
        yield (
            f"{device['name']}, CUDA {device['cuda']}, {row['rounds']} alternating turns of {row['steps']} steps, "
            f"{origin(row)}."
        )
        yield ""
        yield "| engine | step, ms | spread, ms | time / ontrain | of peak rate | first step, s | peak, MiB |"
        yield "|---|---|---|---|---|---|---|"
        for name, f in row["engines"].items():
            used = f"{f['utilisation']:.0%}" if "utilisation" in f else "–"
            spread = f"{f['step_min_s'] * 1e3:.1f}–{f['step_max_s'] * 1e3:.1f}"
            yield (
                f"| {NAMES[name]} | {f['step_s'] * 1e3:.1f} | {spread} | "
                f"{f['ratio']:.2f} ({f['ratio_min']:.2f}–{f['ratio_max']:.2f}) | {used} | {f['first_step_s']:.1f} | "
                f"{f['peak_bytes'] / 2**20:.0f} |"
            )


def portable() -> Iterable[str]:
    """The artifacts on stock onnxruntime beside the incumbent's on-device API."""
    newest_rows = {name: row for name in ("bert", "conv") if (row := newest("portable", model=name)) is not None}
    if not newest_rows:
        return
    yield from ("", "### Artifacts on stock onnxruntime", "")
    yield "Training graphs of standard operators in stock onnxruntime, beside onnxruntime-training's on-device API:"
    yield ""
    for name, row in newest_rows.items():
        ours, theirs = (row["engines"][engine] for engine in ("portable", "incumbent"))
        yield (
            f"- {name}: {ours['step_s']:.3f} s, theirs {theirs['step_s']:.3f} s, {theirs['ratio']:.2f} "
            f"({theirs['ratio_min']:.2f}–{theirs['ratio_max']:.2f}) times as long ({origin(row)})"
        )


def small() -> Iterable[str]:
    """What wrapping costs, what the incumbent computes."""
    row = newest("ortmodule")
    if row is not None:
        yield from ("", "### Small models", "")
        yield (
            f"A decoder of two layers, 64 wide, on 4 × 16 tokens: eager's forward and backward take "
            f"{row['ratio']:.2f} times ORTModule's; ORTModule's first step takes {row['beyond_export_s']:.2f} s beyond "
            f"torch.export ({origin(row)})."
        )
    row = newest("incumbent")
    if row is not None:
        yield from ("", "### The same numbers as the incumbent", "")
        yield (
            f"20 AdamW steps of a small BERT from the same weights: losses differ by {row['loss_difference']:.0e} at "
            f"most, gradients of the first step by {row['gradient_difference']:.0e} of their largest element "
            f"({origin(row)})."
        )
