"""Operators on halves whose kernels ATen has on processors in single and double precision only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from ontrain.providers.torch.lowering.single_precision import in_single_precision
from ontrain.training.ortmodule import ORTModule
from tests.providers.torch.lowering.files import assert_as_onnxruntime, file_of

OPERATORS = {
    "volumes": ("AveragePool", (2, 3, 7, 7, 7), {"kernel_shape": [3, 3, 3]}),
    "with pads": ("AveragePool", (2, 3, 7, 7, 7), {"kernel_shape": [3, 3, 3], "pads": [1] * 6}),
    "rounded up": ("AveragePool", (2, 3, 7, 7, 7), {"kernel_shape": [2, 2, 2], "strides": [2] * 3, "ceil_mode": 1}),
    "responses": ("LRN", (2, 5, 7, 7), {"size": 3}),
    "determinant": ("Det", (2, 3, 3), {}),
    "inverse": ("Inverse", (2, 3, 3), {}),
}


@pytest.mark.parametrize("form", OPERATORS)
def test_of_halves_they_compute_what_onnxruntime_does(rng, form):
    op_type, shape, attributes = OPERATORS[form]
    x = rng.standard_normal(shape).astype(np.float32)
    domain = {"domain": "com.microsoft"} if op_type == "Inverse" else {}
    if domain:
        x = x + 3 * np.eye(3, dtype=np.float32)  # far from a matrix without an inverse
    nodes = [
        helper.make_node("Cast", ["x"], ["short"], to=TensorProto.FLOAT16),
        helper.make_node(op_type, ["short"], ["result"], **domain, **attributes),
        helper.make_node("Cast", ["result"], ["y"], to=TensorProto.FLOAT),
    ]
    opset = 19 if "ceil_mode" in attributes else 17
    assert_as_onnxruntime(file_of(nodes, {"x": x}, {}, ["y"], opset, 1), {"x": x}, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_volumes_have_a_gradient_in_short_numbers(dtype):
    x = torch.randn(2, 3, 4, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    adjoints = []
    for kind, wrap in ((dtype, ORTModule), (torch.float32, lambda module: module)):
        images = x.to(dtype).to(kind).requires_grad_()
        (wrap(torch.nn.AvgPool3d(2))(images).square().sum()).backward()
        adjoints.append(images.grad.float())
    torch.testing.assert_close(*adjoints, rtol=1e-2, atol=1e-2)


def test_other_numbers_are_handed_on_as_they_are():
    seen = []
    kernel = in_single_precision(lambda x, *others: seen.append((x.dtype, [o.dtype for o in others])) or x)
    for dtype in (torch.float64, torch.float32, torch.float16):
        assert kernel(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype)).dtype == dtype
    assert seen == [(t, [t]) for t in (torch.float64, torch.float32, torch.float32)]
