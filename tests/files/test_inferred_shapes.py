"""Shapes by onnx's inference: as many as it tells, whatever sizes a file states."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest
from onnx import parser, shape_inference

from ontrain.files import inferred_graph, with_shapes

_HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
_ROW = "float[2] x) => (float[] y) <int64[1] r = {2147483648}>"
LONG = {
    "stated": f"g ({_ROW} {{ q = Tile(x, r) y = Cast<to: int = 1>(q) }}",
    "followed": f"g ({_ROW} {{ s = Add(r, r) q = ConstantOfShape(s) y = Mul(q, q) }}",
    "twice": f"g ({_ROW} {{ s = Add(r, r) q = ConstantOfShape(s) v = Add(q, q) y = Concat<axis: int = 0>(v, v) }}",
    "in a body": f"g (bool b, {_ROW} {{ s = Add(r, r) q = ConstantOfShape(s) y = If<then_branch: graph = t () =>"
    " (float[] o) { o = Mul(q, q) }, else_branch: graph = e () => (float[] p) { p = Sub(q, q) }>(b) }",
}
USUAL = {
    "reshaped like another": "g (float[2, 3] x) => (float[] y)"
    " { s = Shape(x) r = Reshape(x, s) y = Cast<to: int = 1>(r) }",
    "flattened": "g (float[2, 3, 4] x) => (float[] y) <int64[1] i = {0}, int64[1] f = {-1}>"
    " { s = Shape(x) b = Gather(s, i) t = Concat<axis: int = 0>(b, f) y = Reshape(x, t) }",
    "vectors of a named length": "g (float[n] x, float[4] w) => (float[] y) { a = Add(x, x) s = Shape(w)"
    " c = ConstantOfShape(s) y = Mul(a, c) }",
    "cast on its way": "g (float[5, 6] x) => (float[] y) <int64[1] a = {0}, int64[1] b = {1}, int64[1] two = {2}>"
    " { s = Shape(x) p = Slice(s, a, b) d = Mul(p, two) q = ConstantOfShape(d) y = Add(q, q) }",
}


def _model(text: str) -> onnx.ModelProto:
    return parser.parse_model(_HEAD + text)


def _dims(model: onnx.ModelProto) -> list[int | str]:
    return [dim.dim_value or dim.dim_param for dim in model.graph.output[0].type.tensor_type.shape.dim]


@pytest.mark.parametrize("text", USUAL.values(), ids=USUAL)
def test_as_many_sizes_are_told_as_onnx_tells(text: str) -> None:
    model = _model(text)
    assert _dims(with_shapes(model)) == _dims(shape_inference.infer_shapes(model, data_prop=True)) != []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_the_memory_does_not_grow_with_the_length_of_a_vector(text: str, strict: bool) -> None:
    script = f"""
import resource
from onnx import parser
from ontrain.files import inferred_graph
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
inferred_graph(parser.parse_model({_HEAD + text!r}), strict={strict})
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_model_stays_as_it_was() -> None:
    model = _model(LONG["twice"])
    before = model.SerializeToString()
    shaped = with_shapes(model)
    assert model.SerializeToString() == before
    assert list(shaped.opset_import) == list(model.opset_import)
    assert list(shaped.graph.node) == list(model.graph.node)


def test_a_strict_look_refuses_a_contradiction() -> None:
    model = _model("g (float[n, 3] x, float[n] z) => (float[7, 7] y) { a = Add(z, z) y = Cast<to: int = 1>(x) }")
    with pytest.raises(shape_inference.InferenceError):
        inferred_graph(model, strict=True)
