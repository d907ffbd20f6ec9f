"""An LSTM with quantised weights gives onnxruntime's numbers, step after step."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain

STEPS, BATCH, WIDTH, HIDDEN = 60, 2, 6, 8


def _file(rng: np.random.Generator, direction: str, per_column: bool, biased: bool, signed: bool) -> bytes:
    count = 2 if direction == "bidirectional" else 1
    kind = np.int8 if signed else np.uint8
    # Beyond, onnxruntime's kernels for processors without VNNI lose what does not fit into 16 bits.
    low, high = (-63, 64) if signed else (0, 256)
    arrays = {
        "w": rng.integers(low, high, (count, WIDTH, 4 * HIDDEN)).astype(kind),
        "r": rng.integers(low, high, (count, HIDDEN, 4 * HIDDEN)).astype(kind),
        "b": rng.standard_normal((count, 8 * HIDDEN)).astype(np.float32),
        "scale": rng.uniform(0.004, 0.01, (count, 4 * HIDDEN) if per_column else (count,)).astype(np.float32),
    }
    arrays["zero"] = np.full_like(arrays["scale"], 0 if signed else 128, kind)
    names = ["x", "w", "r", "b" if biased else "", "", "h", "c", "", "scale", "zero", "scale", "zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "y_h", "y_c"], domain="com.microsoft", hidden_size=HIDDEN,
        direction=direction,
    )  # fmt: skip

    def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        [node], "layer", [tensor("x", STEPS, BATCH, WIDTH), *(tensor(n, count, BATCH, HIDDEN) for n in "hc")],
        [tensor("y", STEPS, count, BATCH, HIDDEN), *(tensor(n, count, BATCH, HIDDEN) for n in ("y_h", "y_c"))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if biased or name != "b"],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize("signed", [True, False], ids=["int8", "uint8"])
@pytest.mark.parametrize("per_column", [False, True], ids=["one scale", "a scale a column"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_outputs_are_onnxruntimes(direction, per_column, signed, rng):
    model = _file(rng, direction, per_column, direction != "reverse", signed)
    count = 2 if direction == "bidirectional" else 1
    fed = {"x": 3 * rng.standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)}
    fed |= {name: rng.standard_normal((count, BATCH, HIDDEN)).astype(np.float32) for name in "hc"}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # each thread would quantise the states of its own sequences
    wanted = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]).run(None, fed)
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    for ours, theirs in zip(session.run(None, fed), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
