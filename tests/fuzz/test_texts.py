"""Expressions that a file brings are RE2's, in linear time, whoever runs it; attributes that no evaluator takes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from ontrain import InferenceSession, OntrainError, ProviderError
from tests.capture.onnx_file.models import node, value
from tests.fuzz.traps import file

OWN = ["TorchExecutionProvider", "ReferenceExecutionProvider"]
# Python's `re` tries 2^40 ways to match the first of these texts.
TEXTS = np.array(["a" * 40 + "c", "1٣", "aab"], object)


def expression(pattern: str) -> bytes:
    nodes = [node("RegexFullMatch", "x", "y", pattern=pattern)]
    return file(nodes, [value("x", ["n"], TensorProto.STRING)], [value("y", ["n"], TensorProto.BOOL)], opset=20)


@pytest.mark.parametrize("provider", OWN)
def test_expressions_are_those_of_re2_and_matched_in_linear_time(provider):
    for pattern, matched in ((r"\pN+", [False, True, False]), ("(a|a)*b", [False, False, True])):
        (matches,) = InferenceSession(expression(pattern), providers=[provider]).run(None, {"x": TEXTS})
        assert matches.tolist() == matched


@pytest.mark.parametrize("provider", OWN)
def test_an_expression_that_is_none_is_a_named_error(provider):
    with pytest.raises(ProviderError, match=r"RegexFullMatch"):
        InferenceSession(expression("(("), providers=[provider]).run(None, {"x": TEXTS})


def test_tokens_are_cut_by_re2_too():
    settings = {"tokenexp": r"\pN+|(a|a)*b", "mark": 0, "mincharnum": 1, "pad_value": "#"}
    cut = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **settings)
    graph = helper.make_graph([cut], "g", [value("x", ["n"], 8)], [value("y", None, 8)])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    (tokens,) = InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, {"x": TEXTS})
    assert tokens.tolist() == [["#"], ["1٣"], ["aab"]]


def test_a_direction_that_is_none_is_a_named_error_of_the_evaluator():
    nodes = [node("BitShift", "x x", "y", direction="DOWN")]
    model = file(nodes, [value("x", ["n"], TensorProto.UINT8)], [value("y", ["n"], TensorProto.UINT8)])
    with pytest.raises(OntrainError, match="BitShift|direction"):
        InferenceSession(model, providers=["ReferenceExecutionProvider"]).run(None, {"x": np.ones(2, np.uint8)})


def test_an_operator_of_a_type_that_the_standard_has_it_not_for_ends():
    nodes = [node("Compress", "x c", "s"), node("Cast", "s", "y", to=TensorProto.FLOAT)]
    taken = [value("x", [2], TensorProto.BFLOAT16), value("c", [2], TensorProto.BOOL)]
    session = InferenceSession(file(nodes, taken, [value("y", None)]), providers=["ReferenceExecutionProvider"])
    feeds = {"x": np.array([1, 2], ml_dtypes.bfloat16), "c": np.array([False, True])}
    (y,) = session.run(None, feeds)
    assert y.tolist() == [2.0]
