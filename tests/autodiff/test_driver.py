"""What the driver does once for all rules: accumulation, absence, casts, pruning and refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ontrain.autodiff import differentiable_outputs, differentiate
from ontrain.errors import GradientError
from ontrain.functions import inline_all
from ontrain.graph import Builder, annotate, new_model, rebuild, static_dims
from ontrain.graph.infer import _ours


class Scratch:
    """A graph under construction with float inputs by name."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self.x = {n: self._value(n, s, ir.DataType.DOUBLE) for n, s in shapes.items()}
        self.model = new_model(list(self.x.values()), "scratch")
        self.op = Builder(self.model.graph)

    @staticmethod
    def _value(name: str, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))

    def run(self, *outputs: ir.Value, **feeds: Any) -> list[np.ndarray]:
        self.model.graph.outputs.extend(outputs)
        proto = ir.to_proto(inline_all(rebuild(self.model)))
        self.model.graph.outputs.clear()
        return [np.asarray(v) for v in ReferenceEvaluator(proto).run(None, feeds)]


def unknown(op: Builder, x: ir.Value) -> ir.Value:
    """An operator of somebody's own domain: its result has a type, and nobody says how it is differentiated."""
    solution: ir.Value = op.call("their.domain", "Solve", [x], {})
    return solution


@pytest.fixture(autouse=True)
def _solve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_ours, ("their.domain", "Solve"), lambda node: [(node.inputs[0].dtype, ir.Shape([]))])


def test_a_value_used_twice_gets_both_contributions() -> None:
    g = Scratch(w=(3, 3), x=(2, 3))
    w, x, op = g.x["w"], g.x["x"], g.op
    loss = op.ReduceSum(op.MatMul(op.MatMul(x, w), op.Transpose(w, perm=[1, 0])), keepdims=0)
    (dw,) = differentiate(op, [(loss, None)], [w])
    wv, xv, ones = np.random.randn(3, 3), np.random.randn(2, 3), np.ones((2, 3))
    (got,) = g.run(dw, w=wv, x=xv)
    np.testing.assert_allclose(got, xv.T @ ones @ wv + ones.T @ (xv @ wv), rtol=1e-12)


def test_a_tied_embedding_gets_the_sum_of_its_two_gradients() -> None:
    g = Scratch(w=(5, 3))
    w, op = g.x["w"], g.op
    ids = np.array([1, 4, 1])
    h = op.composite("Embedding", w, ids)
    loss = op.ReduceSum(op.MatMul(h, op.Transpose(w, perm=[1, 0])), keepdims=0)
    (dw,) = differentiate(op, [(loss, None)], [w])
    wv = np.random.randn(5, 3)
    expected = np.tile(wv[ids].sum(0), (5, 1))
    np.add.at(expected, ids, wv.sum(0))
    np.testing.assert_allclose(g.run(dw, w=wv)[0], expected, rtol=1e-12)


def test_an_adjoint_is_absent_not_zero_where_nothing_depends_on_the_value() -> None:
    g = Scratch(a=(2,), b=(2,), c=(2,))
    op = g.op
    loss = op.ReduceSum(op.Mul(g.x["a"], op.composite("Detach", g.x["b"])), keepdims=0)
    da, db, dc = differentiate(op, [(loss, None)], [g.x["a"], g.x["b"], g.x["c"]])
    assert da is not None and db is None and dc is None


def test_a_seeded_output_is_its_own_gradient() -> None:
    g = Scratch(x=(2,), dy=(2,))
    (dx,) = differentiate(g.op, [(g.x["x"], g.x["dy"])], [g.x["x"]])
    assert dx is g.x["dy"]


def test_adjoints_of_several_outputs_add_up() -> None:
    g = Scratch(x=(2,), a=(2,), b=(2,))
    x, op = g.x["x"], g.op
    (dx,) = differentiate(op, [(op.Exp(x), g.x["a"]), (op.Mul(x, 3.0), g.x["b"])], [x])
    xv, a, b = np.random.randn(3, 2)
    np.testing.assert_allclose(g.run(dx, x=xv, a=a, b=b)[0], np.exp(xv) * a + 3 * b)


def test_an_adjoint_has_the_dtype_of_its_value() -> None:
    g = Scratch(x=(2,))
    y = g.op.Mul(g.op.Cast(g.x["x"], to=ir.DataType.FLOAT), 2.0)
    (dx,) = differentiate(g.op, [(g.op.ReduceSum(y, keepdims=0), None)], [g.x["x"]])
    assert dx is not None and dx.dtype == ir.DataType.DOUBLE


def test_a_missing_gradient_names_the_node_and_the_line() -> None:
    g = Scratch(x=(2, 2))
    y = unknown(g.op, g.x["x"])
    annotate(y.producer(), "model.py:12: return solve(x)", "encoder.head")
    with pytest.raises(GradientError) as caught:
        differentiate(g.op, [(y, None)], [g.x["x"]])
    message = str(caught.value)
    assert "Solve" in message and "model.py:12: return solve(x) (in encoder.head)" in message
    assert y.name in message and "way out" in message


def test_an_operator_without_gradient_beside_the_path_is_no_error() -> None:
    g = Scratch(x=(2, 2), z=(2, 2))
    op = g.op
    beside = unknown(op, g.x["z"])  # reaches the loss, but no parameter is behind it
    unknown(op, g.x["x"])  # depends on a parameter, but does not reach the loss
    behind = op.Cast(op.Cast(unknown(op, g.x["x"]), to=ir.DataType.INT64), to=ir.DataType.DOUBLE)  # through integers
    loss = op.Add(op.Add(op.ReduceSum(g.x["x"], keepdims=0), beside), behind)
    (dx,) = differentiate(op, [(loss, None)], [g.x["x"]])
    assert dx is not None


def test_a_form_without_gradient_is_refused_with_a_reason_and_a_way_out() -> None:
    g = Scratch(x=(3, 3))
    y = g.op.Pad(g.x["x"], [-1, 0, 0, 1], mode="reflect")
    annotate(y.producer(), "model.py:3", None)
    with pytest.raises(GradientError, match=r"(?s)model\.py:3.*negative pad.*way out"):
        differentiate(g.op, [(g.op.ReduceSum(y, keepdims=0), None)], [g.x["x"]])


def test_gradient_nodes_carry_the_source_of_their_forward_node() -> None:
    g = Scratch(x=(3,))
    y = g.op.Exp(g.x["x"])
    annotate(y.producer(), "model.py:7", None)
    (dx,) = differentiate(g.op, [(y, g.op.const(np.ones(3)))], [g.x["x"]])
    assert dx is not None and "model.py:7" in dx.producer().metadata_props.values()


def test_a_frozen_operand_costs_nothing() -> None:
    g = Scratch(x=(4, 2, 3), w=(3, 5))
    loss = g.op.ReduceSum(g.op.MatMul(g.x["x"], g.x["w"]), keepdims=0)
    forward = len(g.op.nodes)
    differentiate(g.op, [(loss, None)], [g.x["x"]])
    assert [n.op_type for n in g.op.nodes[forward:]].count("MatMul") == 1


def test_the_gradient_of_a_shared_weight_is_one_flat_product() -> None:
    g = Scratch(x=(4, 2, 3), w=(3, 5))
    y = g.op.MatMul(g.x["x"], g.x["w"])
    (dw,) = differentiate(g.op, [(g.op.ReduceSum(y, keepdims=0), None)], [g.x["w"]])
    assert dw is not None and dw.producer().op_type == "MatMul"
    assert [len(static_dims(v)) for v in dw.producer().inputs] == [2, 2]


def test_attention_without_bias_makes_no_bias_gradient() -> None:
    g = Scratch(q=(1, 2, 3, 4), k=(1, 2, 3, 4), v=(1, 2, 3, 4))
    y, _, _ = g.op.composite("Attention", *g.x.values(), outputs=3, scale=0.5, dropout=0.0)
    grads = differentiate(g.op, [(g.op.ReduceSum(y, keepdims=0), None)], list(g.x.values()))
    assert all(dx is not None for dx in grads)
    assert len(grads[0].producer().outputs) == 3


@pytest.mark.parametrize(("bounds", "of_result"), [((0.0, 6.0), True), ((-1.0, 0.7), False)])
def test_the_gradient_of_a_clamp_reads_the_result_unless_half_precision_would_round_a_bound(bounds, of_result) -> None:
    g = Scratch(x=(4, 3))
    low, high = (np.array(bound, np.float32).astype(np.float64) for bound in bounds)
    y = g.op.composite("Hardtanh", g.x["x"], low, high)
    (dx,) = differentiate(g.op, [(g.op.ReduceSum(y, keepdims=0), None)], [g.x["x"]])
    assert dx.producer().inputs[1] is (y if of_result else g.x["x"])


@pytest.mark.parametrize(("strict", "expected"), [(0, [1, 0, 0, 1, 0, 0]), (1, [0, 0, 0, 1, 0, 0])])
def test_a_strict_clamp_gives_nothing_to_a_nan(strict, expected) -> None:
    g = Scratch(x=(6,))
    y = g.op.composite("Hardtanh", g.x["x"], np.float64(-1), np.float64(0.7), strict=strict)
    (dx,) = differentiate(g.op, [(g.op.ReduceSum(y, keepdims=0), None)], [g.x["x"]])
    (got,) = g.run(dx, x=np.array([np.nan, -2, -1, 0.5, 0.7, 3]))
    np.testing.assert_array_equal(got, expected)


def test_a_rule_that_needs_an_output_the_node_left_out_adds_it() -> None:
    value = Scratch._value("x", (2, 4), ir.DataType.FLOAT)
    model = new_model([value], "layer_norm")
    op = Builder(model.graph)
    y = op.LayerNormalization(value, np.ones(4, np.float32))
    assert len(y.producer().outputs) == 1
    differentiate(op, [(op.ReduceSum(y, keepdims=0), None)], [value])
    mean, inv_std = y.producer().outputs[1:]
    assert static_dims(mean) == static_dims(inv_std) == (2, 1) and mean.name and mean.dtype == ir.DataType.FLOAT


def test_an_output_behind_what_is_flat_is_differentiable_and_one_behind_a_comparison_is_not():
    x, y = (ir.Value(name=n, shape=ir.Shape(["n"]), type=ir.TensorType(ir.DataType.FLOAT)) for n in "xy")
    model = new_model([x, y], "g")
    op = Builder(model.graph)
    outputs = {
        "smooth": op.Exp(x), "flat": op.Exp(op.Floor(x)), "other": op.Exp(y), "both": op.Add(op.Sign(x), op.Sin(x)),
        "compared": op.Cast(op.Greater(x, 0.0), to=ir.DataType.FLOAT), "detached": op.composite("Detach", x),
        "filled": op.composite("ConstantIn", op.Sin(y), x), "rewritten": op.composite("Revalued", y, x),
    }  # fmt: skip
    for name, value in outputs.items():
        value.name = name
        model.graph.outputs.append(value)
    assert differentiable_outputs(model, ["x"]) == ["smooth", "flat", "both", "filled"]
    assert differentiable_outputs(model, ["y"]) == ["other", "filled", "rewritten"]


def test_zeros_are_given_where_autograd_gives_them_if_asked_for() -> None:
    g = Scratch(a=(2,), b=(2,), c=(2,), d=(2,))
    a, b, c, d, op = *g.x.values(), g.op
    compared, filled = op.Cast(op.Greater(c, 0.0), to=ir.DataType.DOUBLE), op.composite("ConstantIn", op.Exp(b), d)
    y = op.Sum(op.Mul(op.Sign(a), b), compared, filled)
    loss = op.ReduceSum(y, keepdims=0)
    assert [grad is None for grad in differentiate(op, [(loss, None)], [a, b, c, d])] == [True, False, True, True]
    grads = differentiate(op, [(loss, None)], [a, b, c, d], zeros=True)
    assert [grad is None for grad in grads] == [False, False, True, False]
    numbers = {name: np.array([-1.5, 2.5]) for name in "abcd"}
    da, db, dd = g.run(*[grad for grad in grads if grad is not None], **numbers)
    np.testing.assert_array_equal(da, 0 * numbers["a"])
    np.testing.assert_array_equal(dd, 0 * numbers["d"])
    np.testing.assert_allclose(db, np.sign(numbers["a"]) + np.exp(numbers["b"]), rtol=1e-12)
