"""Files whose divisions are told to be of floats or of integers by nodes that say little of their results."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as errors

import ontrain

DIVISIONS = {
    "out of order": "m (float[n, 2] x) => (float[n, 2] y) { y = Div(a, b)  a = Neg(x)  b = Abs(x) }",
    "onnxruntime's operators": """m (float[n, 2, 3] x, float[3] w) => (float[n, 3] y) {
        h = com.microsoft.SkipLayerNormalization(x, x, w)
        zero = Constant<value_int=0>()
        first = Gather<axis=1>(h, zero)
        long = ReduceL2<axes=[1]>(first)
        y = Div(first, long)
    }""",
    "a branch": """m (float[n, 2] x, bool c) => (float[n, 2] y) {
        a = If(c) <then_branch = t () => (z) { z = Neg(x) }, else_branch = e () => (z) { z = Exp(x) }>
        b = Abs(a)
        y = Div(a, b)
    }""",
    "a loop": """m (float[n, 2] x, int64 k) => (float[n, 2] y) {
        a, all = Loop(k, , x) <body = b (int64 i, bool go, v) => (bool on, w, r) {
            on = Identity(go)
            s = Exp(v)
            w = Div(v, s)
            r = Neg(w)
        }>
        sum = ReduceSum(all)
        y = Div(a, sum)
    }""",
    "a scan": """m (float[n, 2] x) => (float[n, 2] y) {
        a = Scan<num_scan_inputs = 1, body = b (row) => (one) { two = Exp(row)  one = Div(row, two) }>(x)
        b = Exp(a)
        y = Div(a, b)
    }""",
    "a sequence": """m (float[n, 2] x) => (float[a, b] y) {
        parts = SplitToSequence<axis = 1>(x)
        last = Constant<value_int=-1>()
        a = SequenceAt(parts, last)
        b = Exp(a)
        y = Div(a, b)
    }""",
}


def model(graph: str) -> bytes:
    imports = '["" : 17, "com.microsoft" : 1, "own" : 1]'
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: {imports}> {graph}").SerializeToString()


@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_of_floats_are_left_alone_whoever_made_them(name):
    content, feeds = model(DIVISIONS[name]), dict[str, np.ndarray]()
    theirs = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for value in theirs.get_inputs():
        shape = [4 if dim == "n" else dim for dim in value.shape]
        feeds[value.name] = {"float": np.ones(shape, np.float32), "bool": np.array(True), "int64": np.array(3)}[
            value.type[7:-1]
        ]
    ours = ontrain.InferenceSession(content, providers=["CPUExecutionProvider"])
    for expected, result in zip(theirs.run(None, feeds), ours.run(None, feeds), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["out of order", "a branch", "a loop", "a scan", "a sequence"])
def test_divisions_of_integers_are_guarded_whoever_made_them(name):
    graph = DIVISIONS[name].replace("float", "int64").replace("Exp", "Abs")
    session = ontrain.InferenceSession(model(graph), providers=["CPUExecutionProvider"])
    known = {"x": np.array([[1, 0], [2, 3]]), "c": np.array(True), "k": np.array(2)}
    with pytest.raises(errors.InvalidArgument, match="an integer is divided by zero"):
        session.run(None, {value.name: known[value.name] for value in session.get_inputs()})


def test_a_function_around_the_operands_is_looked_into():
    text = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
    m (int64[n] x) => (int64[n] y) { a = own.same(x)  b = own.same(x)  y = Div(a, b) }
    <domain: "own", opset_import: ["" : 17]> same (v) => (w) { w = Identity(v) }"""
    session = ontrain.InferenceSession(onnx.parser.parse_model(text), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.array([2, -3])})[0].tolist() == [1, 1]
    with pytest.raises(errors.InvalidArgument, match="an integer is divided by zero"):
        session.run(None, {"x": np.array([2, 0])})
