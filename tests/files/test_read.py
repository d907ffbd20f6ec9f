"""Bytes beside a file are those that it names, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ontrain import GraphError
from ontrain.files import check_external, read_proto

VALUES = np.array([1.0, -2.0, 3.5, 4.25], np.float32)


def beside(folder: Path, size: int, **entries: int) -> onnx.TensorProto:
    """A tensor of four numbers in a file that begins with three other bytes and has been cut to this size."""
    (folder / "weights").write_bytes((b"abc" + VALUES.tobytes() + b"defg")[:size])
    tensor = TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, entry in {"location": "weights", **entries}.items():
        tensor.external_data.add(key=key, value=str(entry))
    return tensor


def model(tensor: onnx.TensorProto) -> onnx.ModelProto:
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    ], [tensor])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("size", "entries"), [(19, {"offset": 3}), (19, {"offset": 3, "length": 16}),
                                               (23, {"offset": 3, "length": 16})])  # fmt: skip
def test_a_tensor_is_the_stretch_that_the_file_names(tmp_path, size, entries):
    tensor = beside(tmp_path, size, **entries)
    check_external(tensor, tmp_path, "the model")
    proto, _ = read_proto(model(tensor), folder=tmp_path)
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), VALUES)


@pytest.mark.parametrize(
    ("size", "entries", "says"),
    [
        (18, {"offset": 3, "length": 16}, "is short"),
        (15, {"offset": 0, "length": 16}, "is short"),
        (19, {"offset": 4, "length": 16}, "is short"),
        (19, {"offset": -1, "length": 16}, "is short"),
        (19, {"offset": 3, "length": -1}, "is short"),
        (19, {"offset": 20}, "is short"),
        (18, {"offset": 3}, "15"),
        (23, {"offset": 3}, "20"),
        (19, {"offset": 3, "length": 15}, "15"),
    ],
)
def test_a_stretch_that_is_not_there_or_of_another_length_is_refused(tmp_path, size, entries, says):
    tensor = beside(tmp_path, size, **entries)
    for read in (
        lambda: check_external(tensor, tmp_path, "the model"),
        lambda: read_proto(model(tensor), folder=tmp_path),
    ):
        with pytest.raises(GraphError, match=re.escape(says)):
            read()
