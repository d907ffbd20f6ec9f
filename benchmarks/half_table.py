"""The table of steps whose products are in bfloat16, and of what becomes of the losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.figures import Row, newest, newest_of_each, origin, processor

__all__ = ["ONEDNN_PRODUCTS", "half", "half_headlines"]

_WORKLOADS = {
    "bert": "BERT, masked language model, 8 × 128, 15 % labelled; sizes planned before",
    "gpt2": "GPT-2, causal language model, 2 × 512; sizes planned before",
    "llama": "Llama, 4 layers 384 wide, 4 × 256; sizes planned before",
    "vit": "ViT-tiny, 4 layers, 8 × 224²; sizes planned before",
    "cola": "BERT on CoLA as it comes, 32 sentences padded to the longest: the first {steps} steps, capture and plans "
    "included",
}
_WAYS = (
    "ORTModule", "ORTModule, products", "ORTModule, autocast", "eager", "eager, oneDNN products", "eager, autocast",
)  # fmt: skip


def _measured(name: str) -> list[tuple[str, Row]]:
    """Titles and rows of one processor."""
    return [
        (title.format(steps=row["steps"]), row)
        for model, title in _WORKLOADS.items() for row in newest_of_each("half", model=model) if processor(row) == name
    ]  # fmt: skip


def _processors() -> list[str]:
    return sorted({processor(row) for model in _WORKLOADS for row in newest_of_each("half", model=model)}, reverse=True)


def half() -> Iterable[str]:
    """Seconds of each way to take a step, and losses after as many steps in each precision."""
    names = _processors()
    if not names:
        return
    yield from ("", "### bfloat16 on the CPU", "")
    yield (
        'Seconds of a step, the loss alone read, fused AdamW over float32 weights. "products" is `BFloat16Products` in '
        'a float32 program; "oneDNN products" is torch\'s `fp32_precision = "bf16"`, which without AMX means oneDNN\'s '
        "products in float32. BERT and GPT-2 have 4 layers 768 wide."
    )
    for name in names:
        yield from _seconds(_measured(name))
    yield from _curves()


def _seconds(measured: Sequence[tuple[str, Row]]) -> Iterable[str]:
    yield from ("", f"{origin(measured[-1][1])}.", "")
    yield f"| | {' | '.join(_WAYS)} | float32 / autocast | eager autocast / ours |"
    yield "|---|" + "---|" * (len(_WAYS) + 2)
    for title, row in measured:
        seconds = row["seconds"]
        own, ours = seconds["ORTModule"], seconds["ORTModule, autocast"]
        figures = " | ".join(f"{seconds[way]:.3f}" for way in _WAYS)
        yield f"| {title} | {figures} | {own / ours:.2f} | {seconds['eager, autocast'] / ours:.2f} |"


def _curves() -> Iterable[str]:
    seeds = [row for seed in range(10) if (row := newest("half", curves=True, seed=seed)) is not None]
    if not seeds:
        return
    ways = list(seeds[0]["ways"])
    yield from (
        "",
        f"A GPT-2 of 4 layers, 256 wide, after {seeds[0]['steps']} steps on the bytes of Python's manual: loss on "
        f"pages kept apart, and its distance from float32's; {origin(seeds[-1])}.",
        "",
        f"| seed | {' | '.join(ways)} |",
        "|---|" + "---|" * len(ways),
    )
    for row in seeds:
        float32 = row["ways"][ways[0]]["evaluated"]
        losses = [row["ways"][way]["evaluated"] for way in ways]
        said = " | ".join(f"{loss:.4f} ({loss / float32 - 1:+.3%})" for loss in losses)
        yield f"| {row['seed']} | {said} |"


def half_headlines() -> Iterable[tuple[str, str, float]]:
    """Titles, processors, and eager PyTorch's time over ours: in bfloat16, then with oneDNN's products in both."""
    rows = [pair for name in _processors() for pair in _measured(name)]
    for title, row in rows:
        ratio = row["seconds"]["eager, autocast"] / row["seconds"]["ORTModule, autocast"]
        yield f"{title}; both under torch.autocast in bfloat16", processor(row), ratio
    for title, row in rows:
        ours = "ORTModule, products" if row["hardware"].get("amx") else "ORTModule"
        ratio = row["seconds"]["eager, oneDNN products"] / row["seconds"][ours]
        yield f"{title}; eager's products by oneDNN, too ¹", processor(row), ratio


ONEDNN_PRODUCTS = (
    '¹ With `torch.backends.mkldnn.matmul.fp32_precision = "bf16"` eager PyTorch takes oneDNN\'s products: in float32 '
    "on AMD's processors, and with factors rounded to bfloat16 on AMX, where `BFloat16Products` rounds ours, too."
)
"""What a line's mark means."""
