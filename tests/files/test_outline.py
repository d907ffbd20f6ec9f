"""Names are sought in what a file says, not in the numbers of its weights."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ontrain.files import suspect
from ontrain.files.outline import outline

_NUMBERS = np.frombuffer(b"Div " * 4096, np.float32)


def _model(*nodes: onnx.NodeProto, weights: tuple[onnx.TensorProto, ...] = ()) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "xy")
    graph = helper.make_graph(list(nodes), "small", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _added(weights: onnx.TensorProto) -> onnx.ModelProto:
    return _model(helper.make_node("Add", ["x", "w"], ["y"], name="adds"), weights=(weights,))


@pytest.mark.parametrize("is_raw", [True, False], ids=["raw", "typed"])
def test_a_name_among_the_numbers_of_a_weight_is_none(is_raw: bool) -> None:
    if is_raw:
        weights = numpy_helper.from_array(_NUMBERS, "w")
    else:
        weights = helper.make_tensor("w", TensorProto.FLOAT, _NUMBERS.shape, _NUMBERS)
    content = _added(weights).SerializeToString()
    assert b"Div" in content and b"Div" not in outline(content)
    assert b"adds" in outline(content)
    assert suspect(content) is None


def test_a_name_among_the_numbers_of_a_constant_is_none() -> None:
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(_NUMBERS, "w"))
    content = _model(constant, helper.make_node("Add", ["x", "w"], ["y"])).SerializeToString()
    assert b"Div" in content and suspect(content) is None


def test_an_operator_behind_large_weights_and_inside_a_branch_is_found() -> None:
    inner = _model(
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(_NUMBERS[:2048] * 0, "w")),
        helper.make_node("Mod", ["x", "w"], ["y"], fmod=1),
    ).graph
    del inner.input[:]
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    content = _model(node, weights=(numpy_helper.from_array(np.zeros(4096, np.float32), "z"),)).SerializeToString()
    assert len(content) > 32_000 > len(outline(content)) and b"Mod" in outline(content)
    assert suspect(content) == content


def test_data_in_another_file_behind_numbers_is_found() -> None:
    weights = numpy_helper.from_array(_NUMBERS * 0, "w")
    entry = weights.external_data.add()
    entry.key, entry.value = "location", "elsewhere.bin"
    content = _added(weights).SerializeToString()
    assert b"elsewhere.bin" in outline(content) and suspect(content) == content


def test_lists_of_numbers_and_texts_are_taken_whole() -> None:
    node = helper.make_node("Op", ["x"], ["y"], domain="some", values=[0.5] * 9000, names=["Loop"] * 2000)
    content = _model(node).SerializeToString()
    assert outline(content) == content


def test_names_that_contain_an_operators_are_none() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["/model/Div_output_0"], name="/model/Div"),
        helper.make_node("MaxPool", ["/model/Div_output_0"], ["y"], name="Division", doc_string="Loop: none"),
    ]
    assert suspect(_model(*nodes).SerializeToString()) is None


@pytest.mark.parametrize("length", [b"\x83\x00", b"\x83\x80\x80\x80\x00"], ids=len)
def test_an_operator_is_found_however_the_length_of_its_name_is_written(length: bytes) -> None:
    node = helper.make_node("Div", ["x", "x"], ["y"]).SerializeToString().replace(b"\x03Div", length + b"Div")
    graph = b"\x0a" + bytes([len(node)]) + node
    content = b"\x3a" + bytes([len(graph)]) + graph
    assert onnx.ModelProto.FromString(content).graph.node[0].op_type == "Div"
    assert suspect(content) == content


def test_an_outline_parses_as_its_message_without_numbers() -> None:
    inner = _model(
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(_NUMBERS[:2048] * 0, "w")),
        helper.make_node("Mod", ["x", "w"], ["y"], fmod=1),
    ).graph
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    model = _model(node, weights=(numpy_helper.from_array(np.zeros(4096, np.float32), "z"),))
    sketch = onnx.ModelProto.FromString(outline(model.SerializeToString()))
    for weights in (
        model.graph.initializer[0],
        *(branch.g.node[0].attribute[0].t for branch in model.graph.node[0].attribute),
    ):
        weights.ClearField("raw_data")
    assert sketch == model


def test_content_that_is_no_message_is_returned_whole() -> None:
    numbers = random.Random(0)
    content = _added(numpy_helper.from_array(_NUMBERS, "w")).SerializeToString()
    for _ in range(200):
        end = numbers.randrange(len(content))
        assert len(outline(content[:end])) <= end + 64
        assert outline(b"\x0b" + content[:end]) == b"\x0b" + content[:end]  # a group, which protobuf writes no more


def test_graphs_deeper_than_protobuf_reads_end() -> None:
    inside = b"Loop" * 2048
    for field in (6, 5, 1) * 2000:
        size, length = len(inside), bytearray()
        while True:
            size, low = size >> 7, size & 127
            length.append(low | (128 if size else 0))
            if not size:
                break
        inside = bytes([field << 3 | 2]) + bytes(length) + inside
    assert b"Loop" in outline(inside)
