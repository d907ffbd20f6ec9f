"""A grown graph on the torch provider beside stock onnxruntime, at three sizes and the first one again."""

from __future__ import annotations

import numpy as np

import ontrain
from tests.drawn.draw import Draw
from tests.drawn.graphs.growth import grown, image
from tests.drawn.judge import Tolerance, compare, oracle
from tests.drawn.nodes.node import stock_session

__all__ = ["image", "judge_graph"]

RTOL, ATOL = 2e-3, 2e-4


def judge_graph(draw: Draw, family: str, drawn: list[str]) -> None:
    """Run a graph with a step of this family."""
    growth = grown(draw, family)
    drawn.append(", ".join(growth.log))
    ends, batch = [value.name for value in growth.ends()], draw.choice(["batch", "batch", 2])
    model = growth.model(batch, ends).SerializeToString()
    first, *others = growth.batches(3, batch, largest=9)
    with oracle():
        stock = stock_session(model)
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    for x in (first, *others, first):
        with oracle():
            expected = stock.run(None, {"x": 2 * x})
        for name, reference, output in zip(ends, expected, session.run(None, {"x": 2 * x}), strict=True):
            compare(f"{name} at {x.shape}", reference, output, _tolerance(reference))


def _tolerance(reference: np.ndarray) -> Tolerance:
    """Sums are rounded by their largest terms: what is allowed grows with the largest number."""
    finite = np.abs(reference[np.isfinite(reference)])
    return Tolerance(RTOL, ATOL * max(1.0, float(finite.max(initial=0))))
