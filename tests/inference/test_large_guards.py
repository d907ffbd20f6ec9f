"""A file that is looked at without its weights gets its guards with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from ontrain.files import suspect
from ontrain.files.outline import outline

_ROWS = 1 << 22


@pytest.fixture(params=[1, 0], ids=["harmless", "zero"])
def least(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("of_bytes", [True, False], ids=["bytes", "path"])
def test_a_large_weight_is_a_divisor(least: int, tmp_path: Path, *, of_bytes: bool) -> None:
    divisor = np.arange(_ROWS, dtype=np.int64) % 7 + least
    x = np.random.default_rng(0).integers(0, 1 << 40, _ROWS)
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, [_ROWS]) for name in "xy"]
    nodes = [helper.make_node("Div", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "large", values[:1], values[1:], [numpy_helper.from_array(divisor, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    content, path = model.SerializeToString(), tmp_path / "large.onnx"
    onnx.save(model, path)
    assert suspect(content) == outline(content) and len(outline(content)) < 1000
    session = ontrain.InferenceSession(content if of_bytes else str(path), providers=["CPUExecutionProvider"])
    if least:
        (y,) = session.run(None, {"x": x})
        assert np.array_equal(y, x // divisor)
    else:
        with pytest.raises(ontrain.OntrainError, match="divide"):
            session.run(None, {"x": x})
