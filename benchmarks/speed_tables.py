"""The tables of the pages on how fast a step is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.figures import EPOCH_TITLES, NAMES, WORKLOADS, Row, marks_of, newest, newest_of_each, origin, processor
from benchmarks.workloads import MODELS

__all__ = ["contended", "epochs", "losses", "steps"]

_CASES = {"idle": "nothing", "busy loop": "one busy loop", "multiplying": "a process that multiplies on all cores"}
_CONTENDED = {
    "eager": "eager PyTorch",
    "ontrain-empty": "ORTModule, no times of products known",
    "ontrain-polluted": "ORTModule, times of products taken under load",
}


def steps() -> Iterable[str]:
    """Tables and charts of each workload, by processor: who takes how many times as long as ontrain."""
    for model in MODELS:
        yield from _section(WORKLOADS[model], newest_of_each("step", model=model), _step)


def _section(title: str, measured: Sequence[Row], table: Callable[[Row], Iterable[str]]) -> Iterable[str]:
    """A heading and the table of each processor, if there is one."""
    if measured:
        yield from ("", f"### {title}")
    for row in measured:
        yield from table(row)


def _step(row: Row) -> Iterable[str]:
    engines = row["engines"]
    yield ""
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
    for data, title in EPOCH_TITLES.items():
        yield from _section(title, newest_of_each("epoch", data=data), _epoch)


def _epoch(row: Row) -> Iterable[str]:
    marks = marks_of(row)
    yield ""
    yield (
        f"{row['layers']} layers, {row['steps']} batches, none of them seen before; capture, tuning and every plan "
        f"are in the seconds; {origin(row)}."
    )
    heads = " | ".join(f"{mark} steps, s | / ontrain" for mark in marks)
    yield from ("", f"| engine | first step, s | median step, s | {heads} | peak, MiB |")
    yield "|" + "---|" * (4 + 2 * len(marks))
    for name, f in row["engines"].items():
        sums = " | ".join(f"{f[f'after_{mark}_s']:.1f} | {f[f'ratio_{mark}']:.2f}" for mark in marks)
        yield (
            f"| {NAMES[name]} | {f['first_step_s']:.1f} | {f['step_s']:.3f} | {sums} | {f['peak_bytes'] / 2**20:.0f} |"
        )


def _caches(row: Row) -> str:
    return "all caches empty at the start" if row.get("caches") == "empty" else "products measured in earlier runs"


def losses() -> Iterable[str]:
    """Every figure in which another engine is ahead."""
    yield from ("", "### Where ontrain is behind", "")
    behind_somewhere = False
    measured = [row for model in MODELS for row in newest_of_each("step", model=model) if len(row["engines"]) > 1]
    for row in measured:
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
                    behind_somewhere = True
                    yield f"- {WORKLOADS[row['model']]}, {processor(row)}, against {NAMES[name]}: {what}."
    if not behind_somewhere:
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
