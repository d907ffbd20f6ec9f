"""Division and remainders of whole numbers, whose signs every language sees differently."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, new_model
from ontrain.providers import available_providers, get_provider

X, Y = (np.array(v, np.int64) for v in ([7, -7, 7, -7, 6, 0, 2**53 + 1], [2, 2, -2, -2, 3, -5, 1]))


@pytest.mark.parametrize("provider", available_providers())
@pytest.mark.parametrize(
    ("op_type", "attributes", "exact"),
    [
        # Towards zero; the remainder has the divisor's sign, or with fmod the dividend's.
        ("Div", {}, lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)),
        ("Mod", {}, lambda x, y: x - y * math.floor(x / y) if abs(x) < 2**50 else x % y),
        ("Mod", {"fmod": 1}, lambda x, y: int(math.copysign(abs(x) % abs(y), x))),
    ],
    ids=["Div", "Mod", "fmod"],
)
def test_signs_are_onnxs(provider, op_type, attributes, exact):
    inputs = [ir.Value(name=n, shape=ir.Shape([len(X)]), type=ir.TensorType(ir.DataType.INT64)) for n in "xy"]
    model = new_model(inputs, "g")
    model.graph.outputs.append(getattr(Builder(model.graph), op_type)(*inputs, **attributes))
    runtime = get_provider(provider)
    (quotient,) = (
        runtime.compile(model, runtime.create_state([])).run({"x": torch.tensor(X), "y": torch.tensor(Y)}).values()
    )
    assert np.asarray(quotient).tolist() == [exact(int(x), int(y)) for x, y in zip(X, Y, strict=True)]
