"""Write the figures of docs/performance.md and README.md from the newest rows of benchmarks/results.

    python -m benchmarks.page

Only what stands between the two marks of a page is written, there and in the README; the prose around them is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.models import MODELS

Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
PROJECT = Path(__file__).parents[1]
BEGIN, END = "<!-- figures: written by python -m benchmarks.page -->", "<!-- end of figures -->"

_WORKLOADS = {
    "bert": "BERT, masked language model, 8 × 128, 15 % labelled, loss alone read",
    "bert-logits": "BERT, masked language model, 8 × 128, 15 % labelled, loss and logits read",
    "bert-dense": "BERT, masked language model, 8 × 128, every token labelled, loss alone read",
    "gpt2": "GPT-2, causal language model, 2 × 512, loss alone read",
    "gpt2-logits": "GPT-2, causal language model, 2 × 512, loss and logits read",
    "cola": "BERT on 16 batches of CoLA, 32 sentences padded to the longest, loss alone read",
    "xquad": "BERT on 8 batches of XQuAD, 8 windows padded to 384, loss alone read",
}
_EPOCHS = {
    "cola-epoch": "BERT on CoLA as it comes, 32 sentences padded to the longest",
    "xquad-epoch": "BERT on XQuAD as it comes, 8 windows padded to the longest",
}
_GPU = {
    "bert-large-128": "BERT-large, masked language model, 15 % labelled",
    "bert-large-512": "BERT-large, masked language model, 15 % labelled",
    "gpt2-medium-1024": "GPT-2 medium, causal language model",
}
_NAMES = {
    "ontrain": "ontrain, ORTTrainer",
    "ontrain-aten": "ontrain, ORTTrainer with eager's products",
    "ontrain-budget": "ontrain, ORTTrainer in 0.55 of its working memory",
    "ontrain-hidden": "ontrain, ORTTrainer, padding no answer (another loss)",
    "ontrain-onnxruntime": "ontrain, ORTTrainer on stock onnxruntime",
    "ortmodule": "ontrain, ORTModule in eager's loop",
    "eager": "eager PyTorch, fused AdamW",
    "eager-malloc": "eager, malloc tuned to keep its pages",
    "compile": "torch.compile",
    "ontrain-plain": "ontrain, ORTTrainer without CUDA graphs",
    "eager-chunked": "eager, linear_cross_entropy",
    "compile-chunked": "torch.compile, linear_cross_entropy",
    "compile-reduce-overhead": "torch.compile, reduce-overhead",
    "compile-max-autotune": "torch.compile, max-autotune",
    "incumbent": "onnxruntime-training 1.19.2",
}


def rows(table: str) -> list[Row]:
    """Return the rows of a table, oldest first."""
    path = RESULTS / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def newest(table: str, **wanted: Any) -> Row | None:
    """Return the last row whose fields have these values."""
    found = [row for row in rows(table) if all(row.get(key) == value for key, value in wanted.items())]
    return found[-1] if found else None


def steps() -> Iterable[str]:
    """A table and a chart for each workload: who takes how many times as long as ontrain."""
    for model in MODELS:
        row = newest("step", model=model)
        if row is None:
            continue
        engines = row["engines"]
        yield from ("", f"### {_WORKLOADS[model]}", "")
        yield f"{row['layers']} layers, {row['rounds']} alternating rounds, every size planned before, {_origin(row)}."
        yield from ("", "| engine | step, s | spread, s | time / ontrain | first step, s | peak, MiB | page faults |")
        yield "|---|---|---|---|---|---|---|"
        for name, f in engines.items():
            yield (
                f"| {_NAMES[name]} | {f['step_s']:.3f} | {f['step_min_s']:.2f}–{f['step_max_s']:.2f} | "
                f"{f['ratio']:.2f} ({f['ratio_min']:.2f}–{f['ratio_max']:.2f}) | {f['first_step_s']:.1f} | "
                f"{f['peak_bytes'] / 2**20:.0f} | {f['faults']:.0f} |"
            )
        yield from ("", *_chart({name: f["step_s"] for name, f in engines.items()}))


def epochs() -> Iterable[str]:
    """Batches as they come: sums from the first step on."""
    for data, said in _EPOCHS.items():
        row = newest("epoch", data=data)
        if row is None:
            continue
        engines = row["engines"]
        marks = _marks(row)
        yield from ("", f"### {said}", "")
        yield (
            f"{row['layers']} layers, {row['steps']} batches, none of them seen before; capture, tuning and every plan "
            f"are in the seconds; {_origin(row)}."
        )
        heads = " | ".join(f"{mark} steps, s | / ontrain" for mark in marks)
        yield from ("", f"| engine | first step, s | median step, s | {heads} | peak, MiB |")
        yield "|" + "---|" * (4 + 2 * len(marks))
        for name, f in engines.items():
            sums = " | ".join(f"{f[f'after_{mark}_s']:.1f} | {f[f'ratio_{mark}']:.2f}" for mark in marks)
            yield (
                f"| {_NAMES[name]} | {f['first_step_s']:.1f} | {f['step_s']:.3f} | {sums} | "
                f"{f['peak_bytes'] / 2**20:.0f} |"
            )


def _marks(row: Row) -> list[int]:
    figures = next(iter(row["engines"].values()))
    return [int(name.removeprefix("ratio_")) for name in figures if name.startswith("ratio_")]


def headlines() -> Iterable[str]:
    """The table of the README: each line says what a step reads, and whether its sizes were planned before."""
    shown = [(model, row) for model in MODELS if (row := newest("step", model=model)) is not None]
    if not shown:
        return
    hardware, versions = shown[0][1]["hardware"], shown[0][1]["versions"]
    vector = ", AVX-512" if hardware["avx512"] else ""
    yield (
        f"Measured on {hardware['cores']} cores ({hardware['cpu']}{vector}; torch {versions['torch']}, float32, "
        "dropout 0.1, fused AdamW, 4 layers 768 wide, all caches empty), alternating step by step in one run:"
    )
    names = ("eager", "eager-malloc", "compile", "incumbent")
    heads = "eager | eager, malloc told to keep memory | torch.compile | onnxruntime-training 1.19.2"
    yield from ("", f"| their time / ours | {heads} | our first step / torch.compile's |", "|---|---|---|---|---|---|")
    for model, row in shown:
        engines = row["engines"]
        ratios = " | ".join(f"{engines[name]['ratio']:.2f}" if name in engines else "–" for name in names)
        first = (
            f"{engines['ontrain']['first_step_s'] / engines['compile']['first_step_s']:.2f}"
            if "compile" in engines else "–"
        )  # fmt: skip
        yield f"| {_WORKLOADS[model]}; sizes planned before | {ratios} | {first} |"
    for data, said in _EPOCHS.items():
        row = newest("epoch", data=data)
        if row is None:
            continue
        engines = row["engines"]
        for mark in _marks(row):
            ratios = " | ".join(f"{engines[name][f'ratio_{mark}']:.2f}" if name in engines else "–" for name in names)
            yield f"| {said}: the first {mark} steps, capture and plans included | {ratios} | – |"
    yield from (
        "",
        "`make bench` measures all of it; its commands and rows: [docs/performance.md](docs/performance.md).",
    )


def gpu() -> Iterable[str]:
    """The same on an NVIDIA GPU, in mixed precision, where that was run."""
    yield from ("", "### On a GPU", "")
    found = [row for name in _GPU if (row := newest("gpu", workload=name, size="full")) is not None]
    found = [row for row in found if row["device"]["name"] != "CPU"]
    if not found:
        yield "Not run: there was no GPU. `make bench-gpu` writes this table."
        return
    yield "Parameters and moments in float32, products in half precision. Peak is what torch's allocator gave out"
    yield "beyond the model; “of peak rate” are the operations of the products really done, against the device's"
    yield "dense rate."
    for row in found:
        device = row["device"]
        yield from ("", f"#### {_GPU[row['workload']]}, {row['rows']} × {row['length']}, {row['dtype']}", "")
        yield (
            f"{device['name']}, CUDA {device['cuda']}, {row['rounds']} alternating turns of {row['steps']} steps, "
            f"{_origin(row)}."
        )
        yield ""
        yield "| engine | step, ms | spread, ms | time / ontrain | of peak rate | first step, s | peak, MiB |"
        yield "|---|---|---|---|---|---|---|"
        for name, f in row["engines"].items():
            used = f"{f['utilisation']:.0%}" if "utilisation" in f else "–"
            spread = f"{f['step_min_s'] * 1e3:.1f}–{f['step_max_s'] * 1e3:.1f}"
            yield (
                f"| {_NAMES[name]} | {f['step_s'] * 1e3:.1f} | {spread} | "
                f"{f['ratio']:.2f} ({f['ratio_min']:.2f}–{f['ratio_max']:.2f}) | {used} | {f['first_step_s']:.1f} | "
                f"{f['peak_bytes'] / 2**20:.0f} |"
            )


def losses() -> Iterable[str]:
    """Every figure in which another engine is ahead."""
    yield from ("", "### Where ontrain is behind", "")
    found = False
    for model in MODELS:
        row = newest("step", model=model)
        if row is None or len(row["engines"]) == 1:
            continue
        ours = row["engines"]["ontrain"]
        for name, f in row["engines"].items():
            for what, behind in (
                (f"a step takes {1 / f['ratio']:.2f} times as long", f["ratio"] < 1),
                (
                    f"the first step takes {ours['first_step_s']:.1f} s, theirs {f['first_step_s']:.1f} s",
                    f["first_step_s"] < ours["first_step_s"],
                ),
                (
                    f"memory peaks at {ours['peak_bytes'] / 2**20:.0f} MiB, theirs at {f['peak_bytes'] / 2**20:.0f}",
                    f["peak_bytes"] < ours["peak_bytes"],
                ),
            ):
                if behind and not name.startswith(("ontrain", "ortmodule")):
                    found = True
                    yield f"- {_WORKLOADS[model]}, against {_NAMES[name]}: {what}."
    if not found:
        yield "In none of the figures above."


def memory() -> Iterable[str]:
    """Memory beyond parameters, gradients and moments, and what a step asks of the allocator."""
    found = {model: row for model in MODELS if (row := newest("memory", model=model)) is not None}
    if not found:
        return
    yield from ("", "### Memory", "")
    yield "Beyond parameters, gradients and both moments, in MiB; calls are those of torch's allocator in one step."
    for model, row in found.items():
        yield from ("", f"{_WORKLOADS[model]}; {_origin(row)}.", "")
        yield from ("| engine | beyond | peak | predicted peak | calls | page faults |", "|---|---|---|---|---|---|")
        for name, f in row["engines"].items():
            said = f"{f['predicted'] / 2**20:.0f}" if "predicted" in f else "–"
            yield (
                f"| {_NAMES[name]} | {(f['peak'] - f['state']) / 2**20:.0f} | {f['peak'] / 2**20:.0f} | {said} | "
                f"{f['calls']:.0f} | {f['faults']:.0f} |"
            )


def floor() -> Iterable[str]:
    """What of a step its own matrix products take at the best rate that was found for each."""
    found = {model: row for model in MODELS if "step_s" in (row := newest("floor", model=model) or {})}
    if not found:
        return
    yield from ("", "### Share of the floor", "")
    yield "The matrix products of ontrain's own step, each at the best rate found for it here; and that step, in turns:"
    yield ""
    for model, row in found.items():
        yield (
            f"- {_WORKLOADS[model]}: {row['floor_s']:.3f} of {row['step_s']:.3f} s, "
            f"**{row['floor_s'] / row['step_s']:.2f}**; {row['gflop']:.0f} GFLOP, by ATen {row['planned_s']:.3f} s "
            f"({_origin(row)})"
        )


def portable() -> Iterable[str]:
    """The artifacts on stock onnxruntime beside the incumbent's on-device API."""
    found = {name: row for name in ("bert", "conv") if (row := newest("portable", model=name)) is not None}
    if not found:
        return
    yield from ("", "### Artifacts on stock onnxruntime", "")
    yield "Training graphs of standard operators in stock onnxruntime, beside onnxruntime-training's on-device API:"
    yield ""
    for name, row in found.items():
        ours, theirs = (row["engines"][one] for one in ("portable", "incumbent"))
        yield (
            f"- {name}: {ours['step_s']:.3f} s, theirs {theirs['step_s']:.3f} s, {theirs['ratio']:.2f} "
            f"({theirs['ratio_min']:.2f}–{theirs['ratio_max']:.2f}) times as long ({_origin(row)})"
        )


def small() -> Iterable[str]:
    """What wrapping costs, what the incumbent computes."""
    row = newest("ortmodule")
    if row is not None:
        yield from ("", "### Small models", "")
        yield (
            f"A decoder of two layers, 64 wide, on 4 × 16 tokens: eager's forward and backward take "
            f"{row['ratio']:.2f} times ORTModule's; ORTModule's first step takes {row['beyond_export_s']:.2f} s beyond "
            f"torch.export ({_origin(row)})."
        )
    row = newest("incumbent")
    if row is not None:
        yield from ("", "### The same numbers as the incumbent", "")
        yield (
            f"20 AdamW steps of a small BERT from the same weights: losses differ by {row['loss_difference']:.0e} at "
            f"most, gradients of the first step by {row['gradient_difference']:.0e} of their largest element "
            f"({_origin(row)})."
        )


PAGES: dict[str, tuple[Callable[[], Iterable[str]], ...]] = {
    "docs/performance.md": (steps, epochs, losses, floor, memory, gpu, portable, small),
    "README.md": (headlines,),
}
"""What stands between the marks of each page."""


def _chart(seconds: dict[str, float]) -> list[str]:
    names = ", ".join(f'"{name}"' for name in seconds)
    values = ", ".join(f"{value:.3f}" for value in seconds.values())
    return [
        "```mermaid",
        "xychart-beta horizontal",
        f"    x-axis [{names}]",
        '    y-axis "seconds a step"',
        f"    bar [{values}]",
        "```",
    ]


def _origin(row: Row) -> str:
    hardware, versions = row["hardware"], row["versions"]
    return (
        f"{row['date']}, torch {versions['torch']}, Python {row['python']}, {hardware['cpu']}, "
        f"{hardware['cores']} cores{', AVX-512' if hardware['avx512'] else ''}; `{row['command']}`"
    )


def written(page: str) -> str:
    """Return the text of a page, by its path in the project, with the figures of the newest rows."""
    before, _, rest = (PROJECT / page).read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    body = "\n".join(line for section in PAGES[page] for line in section())
    return f"{before}{BEGIN}\n{body}\n\n{END}{after}"


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        (PROJECT / page).write_text(written(page))
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
