"""The tables of the pages on how fast a step is."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.figures import NAMES, WORKLOADS, Row, newest, origin
from benchmarks.half_table import half_headlines, onednn_remark
from benchmarks.workloads import MODELS

__all__ = ["contended", "epochs", "headlines", "losses", "steps"]

_EPOCHS = {
    "cola-epoch": "BERT on CoLA as it comes, 32 sentences padded to the longest",
    "xquad-epoch": "BERT on XQuAD as it comes, 8 windows padded to the longest",
}
_CASES = {"idle": "nothing", "busy loop": "one busy loop", "multiplying": "a process that multiplies on all cores"}
_CONTENDED = {
    "eager": "eager PyTorch",
    "ontrain-empty": "ORTModule, no times of products known",
    "ontrain-polluted": "ORTModule, times of products taken under load",
}


def steps() -> Iterable[str]:
    """A table and a chart for each workload: who takes how many times as long as ontrain."""
    for model in MODELS:
        row = newest("step", model=model)
        if row is None:
            continue
        engines = row["engines"]
        yield from ("", f"### {WORKLOADS[model]}", "")
        yield (
            f"{row['layers']} layers, {row['rounds']} alternating rounds, every size planned before, {_caches(row)}; "
            f"{origin(row)}."
        )
        yield from ("", "| engine | step, s | spread, s | time / ontrain | first step, s | peak, MiB | page faults |")
        yield "|---|---|---|---|---|---|---|"
        for name, f in engines.items():
            yield (
                f"| {NAMES[name]} | {f['step_s']:.3f} | {f['step_min_s']:.2f}–{f['step_max_s']:.2f} | "
                f"{f['ratio']:.2f} ({f['ratio_min']:.2f}–{f['ratio_max']:.2f}) | {f['first_step_s']:.1f} | "
                f"{f['peak_bytes'] / 2**20:.0f} | {f['faults']:.0f} |"
            )
        yield from ("", *chart({name: f["step_s"] for name, f in engines.items()}))


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
            f"are in the seconds; {origin(row)}."
        )
        heads = " | ".join(f"{mark} steps, s | / ontrain" for mark in marks)
        yield from ("", f"| engine | first step, s | median step, s | {heads} | peak, MiB |")
        yield "|" + "---|" * (4 + 2 * len(marks))
        for name, f in engines.items():
            sums = " | ".join(f"{f[f'after_{mark}_s']:.1f} | {f[f'ratio_{mark}']:.2f}" for mark in marks)
            yield (
                f"| {NAMES[name]} | {f['first_step_s']:.1f} | {f['step_s']:.3f} | {sums} | "
                f"{f['peak_bytes'] / 2**20:.0f} |"
            )


def _caches(row: Row) -> str:
    return "all caches empty at the start" if row.get("caches") == "empty" else "products measured in earlier runs"


def _marks(row: Row) -> list[int]:
    figures = next(iter(row["engines"].values()))
    return [int(name.removeprefix("ratio_")) for name in figures if name.startswith("ratio_")]


def headlines() -> Iterable[str]:
    """The table of the README: each line says what a step reads, and whether its sizes were planned before."""
    shown = [(model, row) for model in MODELS if (row := newest("step", model=model, caches="empty")) is not None]
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
        yield f"| {WORKLOADS[model]}; sizes planned before | {ratios} | {first} |"
    for data, said in _EPOCHS.items():
        row = newest("epoch", data=data, caches="empty")
        if row is None:
            continue
        engines = row["engines"]
        for mark in _marks(row):
            ratios = " | ".join(f"{engines[name][f'ratio_{mark}']:.2f}" if name in engines else "–" for name in names)
            yield f"| {said}: the first {mark} steps, capture and plans included | {ratios} | – |"
    yield from half_headlines()
    yield from onednn_remark()
    yield from (
        "",
        "`make bench` measures all of it; its commands and rows: [docs/performance.md](docs/performance.md).",
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
                    yield f"- {WORKLOADS[model]}, against {NAMES[name]}: {what}."
    if not found:
        yield "In none of the figures above."


def contended() -> Iterable[str]:
    """How much longer a step takes beside other work, of each engine."""
    row = newest("contended")
    if row is None:
        return
    yield from ("", "### Beside other work", "")
    yield (
        f"BERT, {row['layers']} layers, {row['rounds']} alternating rounds; slowdown is an engine's step beside the "
        f"neighbour by its own step alone; {origin(row)}."
    )
    yield from ("", "| beside | engine | step, s | slowdown | slowdown / eager's |", "|---|---|---|---|---|")
    for case, engines in row["cases"].items():
        for name, f in engines.items():
            times = f"{f['step_s']:.3f} | {f['slowdown']:.2f} | {f['by_eager']:.2f}"
            yield f"| {_CASES[case]} | {_CONTENDED[name]} | {times} |"


def chart(seconds: dict[str, float]) -> list[str]:
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
