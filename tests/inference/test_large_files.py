"""Models of more than 2 GiB, which no message of protobuf holds: their weights lie in other files."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ontrain
from ontrain.inference.small_models import SmallModel

_ROWS = 16384
_BYTES = 4 * _ROWS * _ROWS  # 1 GiB


def _model(count: int) -> onnx.ModelProto:
    """Products with so many weights of 1 GiB, which lie one behind the other in a file."""
    names = [f"w{i}" for i in range(count)]
    weights = []
    for i, name in enumerate(names):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[_ROWS, _ROWS])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", i * _BYTES), ("length", _BYTES)):
            tensor.external_data.add(key=key, value=str(value))
        weights.append(tensor)
    values = ["x", *(f"h{i}" for i in range(count - 1)), "y"]
    nodes = [helper.make_node("MatMul", [values[i], name], [values[i + 1]], name=name) for i, name in enumerate(names)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", _ROWS]) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "large", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.slow
def test_a_model_of_more_than_two_gib_runs(tmp_path):
    """The file is sparse: zeros but for the corner of each weight, and takes no room on the disk."""
    with open(tmp_path / "weights.bin", "wb") as file:
        file.truncate(3 * _BYTES)
        for i in range(3):
            file.seek(i * _BYTES)
            file.write(np.float32(2).tobytes())
    onnx.save(_model(3), tmp_path / "large.onnx")
    session = ontrain.InferenceSession(tmp_path / "large.onnx", providers=["TorchExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones((1, _ROWS), np.float32)})
    assert y[0, 0] == 8 and not y[0, 1:].any()


def test_a_model_with_weights_of_more_than_two_gib_is_no_small_one():
    """Asked of sizes alone: protobuf measures a message by writing it."""
    assert SmallModel.of(_model(3)) is None
