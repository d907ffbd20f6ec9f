"""onnx's evaluator behind the contract of providers: what it would take minutes for."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A loop of Python over 64 million elements would take minutes of the processor; it is interrupted."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("the processor has worked for 20 seconds")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, 20)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def resized(scale: int, constant: bool) -> bytes:
    """Nearest neighbours of a [1, 1, 4, 4] image, `scale` times as many rows; the image constant or fed."""
    scales = numpy_helper.from_array(np.array([1, 1, scale, 1], np.float32), "scales")
    image = numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), "x")
    fed = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])]
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest"),
        helper.make_node("ReduceMax", ["y", "axes"], ["z"], keepdims=0),
        helper.make_node("Add", ["z", "bias"], ["out"]),
    ]
    constants = [scales, numpy_helper.from_array(np.array([0, 1, 2]), "axes"), *([image] if constant else [])]
    bias = helper.make_tensor_value_info("bias", TensorProto.FLOAT, [4])
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [4])
    graph = helper.make_graph(nodes, "g", [bias, *([] if constant else fed)], [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "fed"])
@pytest.mark.parametrize("scale", [3, 60_000, 4_000_000])
@pytest.mark.parametrize("provider", ["ReferenceExecutionProvider", "TorchExecutionProvider"])
@pytest.mark.sampled(4)
def test_a_large_resize_ends(provider, scale, constant):
    session = ontrain.InferenceSession(resized(scale, constant), providers=[provider])
    feeds = {"bias": np.zeros(4, np.float32)}
    if not constant:
        feeds["x"] = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    (y,) = session.run(None, feeds)
    assert y.tolist() == [12, 13, 14, 15]
