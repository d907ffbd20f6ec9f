"""Convolutions and pooling: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ontrain
from ontrain.providers.torch.buffers import Buf
from tests.providers.bodies import compare, lowered_in
from tests.providers.torch.lowering.files import assert_as_onnxruntime, file_of


@lowered_in("convolution")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


@pytest.mark.parametrize("pads", [[2, 0, 2, 0], [3, 0, 1, 0], [0, 0, 0, 0]], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("follows", ["Relu", "Sqrt"])
def test_images_one_pixel_wide_are_convolved_along_one_axis(rng, groups, pads, follows):
    fed = {"x": rng.standard_normal((2, 4, 9, 1)).astype(np.float32)}
    weights = {
        "w": rng.standard_normal((6, 4 // groups, 3, 1)).astype(np.float32), "b": rng.standard_normal(6).astype("f")
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=groups, pads=pads, strides=[2, 1], dilations=[2, 1]),
        helper.make_node("Abs", ["c"], ["a"]) if follows == "Sqrt" else helper.make_node("Relu", ["c"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["y"]),
    ]
    session = assert_as_onnxruntime(file_of(nodes, fed, weights, ["y"]), fed, rtol=1e-5, atol=1e-6)
    (plan,) = session._own._session._planner.plans.values()
    images = [(2, 4, 9), (2, 4, 13), (2, 4, 1, 9), (2, 4, 1, 13)]  # 13 with pads that are written out
    assert any(
        isinstance(arg, Buf) and tuple(arg.shape) in images
        for call in plan.executable.current._program for arg in call.args
    )  # fmt: skip


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("kind", ["Conv", "depthwise", "ConvInteger", "LpPool"])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_pads_that_follow_from_sizes_fit_filters_with_gaps(rng, auto_pad, kind):
    """Onnxruntime refuses such convolutions, or leaves the gaps out; it is asked for the pads as numbers."""
    op_type = "Conv" if kind == "depthwise" else kind
    dtype, result = (np.uint8, TensorProto.INT32) if kind == "ConvInteger" else (np.float32, TensorProto.FLOAT)
    x, w = rng.integers(0, 9, (1, 2, 10, 8)).astype(dtype), rng.integers(0, 9, (2, 2, 2, 2)).astype(dtype)
    fed, weights = {"x": x}, {} if kind == "LpPool" else {"w": w[:, :1] if kind == "depthwise" else w}
    stated = {"kernel_shape": [2, 2], "dilations": [2, 1]} | ({"group": 2} if kind == "depthwise" else {})

    def results(session, **pads):
        node = helper.make_node(op_type, [*fed, *weights], ["y"], **stated, **pads)
        return session(file_of([node], fed, weights, ["y"], opset=18, result=result)).run(None, fed)[0]

    by_rows = (0, 1) if auto_pad == "SAME_UPPER" else (1, 0)
    wanted = results(onnxruntime.InferenceSession, pads=[1, by_rows[0], 1, by_rows[1]])
    own = functools.partial(ontrain.InferenceSession, providers=["TorchExecutionProvider"])
    np.testing.assert_allclose(results(own, auto_pad=auto_pad), wanted, rtol=1e-5)


def test_strided_filters_of_one_pixel_and_few_channels_write_nothing_beyond_their_memory():
    """oneDNN's kernel for images with their channels last does: eager PyTorch's process ends there, too."""
    text = """
        import torch
        from torch import nn
        from ontrain.training.ortmodule import ORTModule

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.narrow, self.wide = nn.Conv2d(3, 48, 1, 2), nn.Conv2d(3, 48, 3, 2, 1)
                self.norm, self.last = nn.BatchNorm2d(48), nn.Conv2d(48, 48, 3, padding=1)

            def forward(self, x):
                return self.last(self.norm(self.narrow(x) + self.wide(x)).relu()).mean((2, 3))

        module, blocks = ORTModule(Block()), []
        for number in range(40):
            module(torch.randn(8, 3, 96, 96)).square().sum().backward()
            blocks.append([torch.empty(17 + 7 * i) for i in range(20)])
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "MALLOC_CHECK_": "3"},
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr[-2000:]
