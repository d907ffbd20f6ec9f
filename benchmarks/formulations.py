"""The formulations of products that are about the fastest, measured here."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection
from typing import Any

import torch

from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.expected import layout_of
from ontrain.providers.torch.lowering.product import Factors, _measure, multiply
from ontrain.providers.torch.plan import plan_memory
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.timings import choice, sizes_of
from ontrain.providers.torch.tuning import Forced, Measure, formulations

__all__ = ["measure"]

LAYOUTS = (
    "NTN",
    "NTN + bias",
    "NTN + result",
    "NNN",
    "NNN + bias",
    "NNN + result",
    "TNN",
    "TNN + result",
    "TNn",
    "nTN",
)
ROWS = (64, 128, 256, 512, 1024, 2048)
LAYERS = (
    (256, 256), (256, 1024), (1024, 256), (384, 1536), (1536, 384), (768, 768), (768, 2304), (3072, 768), (768, 3072)
)  # fmt: skip
SIZES = [(rows, *layer) for rows, layer in itertools.product(ROWS, LAYERS)]
HEADS = [(rows, *layer) for rows, layer in itertools.product((160, 512, 1024), ((256, 30522), (768, 30522)))]
"""Products of classifiers over a vocabulary: they are cut, and parts of their results have wide gaps."""
_TRIES, _TURNS = 3, 4


def measure() -> dict[str, Any]:
    """Return what is to be known about this kind of processor."""
    products: dict[str, dict[str, list[Any]]] = {}
    rates = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        known = products.setdefault(str(threads), {})
        for layout, sizes in itertools.product(LAYOUTS, SIZES):
            orders, _, added = layout.partition(" ")
            tries = (_measure(sizes, orders, f" {added}" if added else "") for _ in range(_TRIES))
            times = next((measured for measured in tries if measured is not None), None)
            if times is None:
                continue  # the machine is too busy
            name = "x".join(map(str, sizes)) + " " + layout
            known.setdefault(layout, []).append([list(sizes), choice(name, times)])
            rates.append(2 * math.prod(sizes) / min(times.values()) / threads)
        for added, sizes in itertools.product((None, "bias"), HEADS):
            name, times = _of_head(sizes, added)
            known.setdefault(layout_of(name), []).append([list(sizes_of(name)), choice(name, times)])
    # Half of what is usual, so that a slower one of its kind is not disbelieved.
    return {"rate": float(f"{sorted(rates)[len(rates) // 2] / 2:.2g}"), "products": products}


def _of_head(sizes: tuple[int, int, int], added: str | None) -> tuple[str, dict[str, float]]:
    """The name by which a classifier's product is chosen, and what it takes whole."""
    rows, inner, columns = sizes
    x, w, bias, out = (torch.ones(shape) for shape in ((rows, inner), (columns, inner), (columns,), (rows, columns)))
    asked: list[str] = []
    runs = {}
    for name in formulations():
        e = Emitter(torch.device("cpu"), settings=Settings(tuning=_Asked(name, asked)))
        places = [e.constant(tensor) for tensor in (x, w.t(), out)]
        multiply(e, Factors(*places, bias=e.constant(bias) if added else None))
        memory = torch.empty(plan_memory(e.program, []), dtype=torch.uint8)
        runs[name] = codes([e.program])[0].bind(Binder(memory).resolve)
    times: dict[str, float] = dict.fromkeys(runs, math.inf)
    for turn in range(_TURNS):
        for name, run in runs.items():
            start = time.perf_counter()
            run([])
            if turn:
                times[name] = min(times[name], time.perf_counter() - start)
    return asked[0], times


class _Asked(Forced):
    """One formulation for all products, the names of which are written down."""

    def __init__(self, name: str, asked: list[str]) -> None:
        super().__init__(name)
        self._asked = asked

    def fastest(self, product: str, names: Collection[str], measure: Measure) -> str:
        self._asked.append(product)
        return super().fastest(product, names, measure)
