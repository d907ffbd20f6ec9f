"""Small models whose nodes stand in rows, and what of a session's calls are rows."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.providers.torch.lowering.files import calls, file_of

__all__ = ["chain", "perceptron", "rows_among_calls"]

node = helper.make_node


def rows_among_calls(session) -> list[str]:
    """Return the names of the calls that run several nodes."""
    return [name for name in calls(session) if name.startswith("onnxruntime_") and " + " in name]


def perceptron(rng, *, wide=16, layers=4, rows=2):
    """Return a file of layers with a bend behind each, and a feed."""
    x = rng.standard_normal((rows, wide)).astype(np.float32)
    weights, nodes, at = {}, [], "x"
    for i in range(layers):
        weights[f"w{i}"] = rng.standard_normal((wide, wide)).astype(np.float32) / wide**0.5
        weights[f"b{i}"] = rng.standard_normal(wide).astype(np.float32)
        nodes.append(node("Gemm", [at, f"w{i}", f"b{i}"], [f"h{i}"], name=f"layer{i}"))
        nodes.append(node("Softplus", [f"h{i}"], [f"y{i}"], name=f"bend{i}"))
        at = f"y{i}"
    return file_of(nodes, {"x": x}, weights, [at]), {"x": x}


def chain(rng, middle, shape=(2, 8), weights=None):
    """Two operators, what is given, and two more."""
    x = rng.standard_normal(shape).astype(np.float32)
    around = (
        [node("Exp", ["x"], ["a"]), node("Neg", ["a"], ["b"])],
        [node("Abs", ["c"], ["d"]), node("Sqrt", ["d"], ["y"])],
    )
    return file_of([*around[0], *middle, *around[1]], {"x": x}, weights or {}, ["y"], opset=20), {"x": x}
