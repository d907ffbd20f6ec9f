"""Gradients of a grown graph that ORTTrainer trains, in float64, beside central differences of its loss.

SGD without momentum changes a weight by rate times gradient, so the gradient is read off two steps. Their slope along a
random direction of all weights is compared with the difference of two losses on the torch provider.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import ontrain
from ontrain.training import ORTTrainer, optim
from tests.drawn.draw import Draw
from tests.drawn.graphs.growth import Growth, grown, image
from tests.drawn.judge import OracleFails, Tolerance, WrongResult, compare, oracle

__all__ = ["image", "judge_gradients"]

RATE, STEPS = 1e-3, 2
WIDTHS = (1e-5, 1e-6, 1e-7, 1e-8, 3e-6)
"""Of differences: next to a corner, or with large curvature, not each is good."""
CLOSE, NEAR = 1e-4, 1e-3
Weights = Mapping[str, np.ndarray]


def judge_gradients(draw: Draw, family: str, drawn: list[str]) -> None:
    """Train a graph with a step of this family."""
    growth = grown(draw, family, np.float64, trains=True)
    _end_in_a_loss(growth)
    drawn.append(", ".join(growth.log))
    names = [name for name, array in growth.arrays.items() if array.dtype == np.float64 and array.ndim]
    with oracle():
        fed = growth.model("batch", ["loss"], fed=names).SerializeToString()
        differences = ontrain.InferenceSession(fed, providers=["TorchExecutionProvider"])
    description = {
        "inputs": [("x", ["batch", growth.values[0].channels, *growth.sizes])],
        "outputs": [("loss", [], True)],
    }
    model = growth.model("batch", ["loss"]).SerializeToString()
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=RATE))
    before = {name: growth.arrays[name] for name in names}
    for x in growth.batches(STEPS, "batch", largest=8):
        loss = trainer.train_step(x)
        after = {name: trainer.parameter(name).numpy(force=True).copy() for name in names}
        gradients = {name: (before[name] - after[name]) / RATE for name in names}
        _judge_step(draw, differences, x, loss, before, gradients)
        before = after


def _end_in_a_loss(growth: Growth) -> None:
    """The sum of means, sums and mean squares of what nothing reads."""
    terms = []
    for end in growth.ends():
        kind = growth.draw.choice(["mean", "square", "sum"])
        name = growth.node("Mul", end.name, end.name) if kind == "square" else end.name
        terms.append(growth.node("ReduceSum" if kind == "sum" else "ReduceMean", name, keepdims=0))
    total, *others = terms
    for term in others:
        total = growth.node("Add", total, term)
    growth.node("Identity", total)
    growth.nodes[-1].output[0] = "loss"


def _judge_step(
    draw: Draw, differences: ontrain.InferenceSession, x: np.ndarray, loss: object, weights: Weights, gradients: Weights
) -> None:
    """Compare the loss, and the gradients along a direction."""

    def loss_at(shift: float, direction: Weights) -> float:
        moved = {name: weight + shift * direction[name] for name, weight in weights.items()}
        with oracle():
            return float(differences.run(None, {"x": x, **moved})[0])

    direction = {name: draw.array(*weight.shape, dtype=np.float64) for name, weight in weights.items()}
    value = loss_at(0.0, direction)
    if not np.isfinite(value):
        raise OracleFails("the loss is not finite")
    compare("loss", np.float64(value), np.float64(np.asarray(loss).reshape(())), Tolerance(1e-7, 1e-9))
    slope = sum(float((gradients[name] * direction[name]).sum()) for name in weights)
    errors = []
    for width in WIDTHS:
        expected = (loss_at(width, direction) - loss_at(-width, direction)) / (2 * width)
        errors.append((abs(expected - slope) / (abs(slope) + abs(expected) + 1e-6), expected))
        if errors[-1][0] < CLOSE:
            return
    error, expected = min(errors)
    if error > NEAR:
        raise WrongResult(f"the slope is {slope:.6g}, not {expected:.6g}, at {x.shape}")
