"""Gradient of preview.training against torch's autograd."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import ontrain

PREVIEW = "ai.onnx.preview.training"
RNG = np.random.default_rng(4)
WEIGHT = RNG.standard_normal((3, 2)).astype(np.float32)


def model(gradient_inputs, xs, zs=(), y="y"):
    """y [n, 2] = tanh(a w) * z, and the derivative of its sum."""
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Mul", ["t", "z"], ["y"]),
    ]
    names = [f"d{i}" for i in range(len(xs))]
    gradient = helper.make_node(
        "Gradient", gradient_inputs, names, domain=PREVIEW, xs=xs, y=y, **({"zs": zs} if zs else {})
    )
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("a", ["n", 3]), ("z", ["n", 2]), ("other", ["n", 3]))
    ]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in (y, *names)]
    graph = helper.make_graph([*nodes, gradient], "g", infos, outputs, [numpy_helper.from_array(WEIGHT, "w")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(PREVIEW, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(file, rows=4, providers=("TorchExecutionProvider",)):
    feeds = {name: RNG.standard_normal((rows, n)).astype(np.float32) for name, n in (("a", 3), ("z", 2), ("other", 3))}
    session = ontrain.InferenceSession(file, providers=providers)
    return [torch.tensor(feeds[name], requires_grad=True) for name in feeds], session.run(None, feeds)


def value(a, z):
    return (a @ torch.tensor(WEIGHT)).tanh() * z


@pytest.mark.parametrize("following", [[], ["CPUExecutionProvider"]], ids=["alone", "onnxruntime next"])
@pytest.mark.parametrize("rows", [4, 1])
def test_derivatives_by_inputs_for_any_size(rows, following):
    (a, z, _), (y, da, dz) = run(model(["a", "z"], ["a", "z"]), rows, ["TorchExecutionProvider", *following])
    expected = value(a, z)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-5)
    for result, wanted in zip((da, dz), torch.autograd.grad(expected.sum(), (a, z)), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_derivatives_are_taken_where_the_operands_say():
    (a, z, other), (y, da) = run(model(["other", "z"], ["a"], ["z"]))
    np.testing.assert_allclose(y, value(a, z).detach(), rtol=1e-5)
    (wanted,) = torch.autograd.grad(value(other, z).sum(), other)
    np.testing.assert_allclose(da, wanted, rtol=1e-5, atol=1e-6)


def test_derivatives_by_an_inner_value_and_by_one_without_part_in_it():
    (a, z, other), (_, dh, nothing) = run(model(["h", "other"], ["h", "other"]))
    h = (a @ torch.tensor(WEIGHT)).detach().requires_grad_()
    (wanted,) = torch.autograd.grad((h.tanh() * z).sum(), h)
    np.testing.assert_allclose(dh, wanted, rtol=1e-5, atol=1e-6)
    assert not nothing.any() and nothing.shape == tuple(other.shape)


def test_a_name_that_stands_for_nothing_is_refused():
    with pytest.raises(ontrain.OntrainError, match="'nowhere'"):
        ontrain.InferenceSession(model(["a"], ["nowhere"]), providers=["TorchExecutionProvider"])


def selecting(nodes, outputs=("loss", "dx"), **constants):
    """A file of nodes that make "loss" of x [5, 4], and its derivative by x."""
    gradient = helper.make_node("Gradient", ["x"], ["dx"], domain=PREVIEW, xs=["x"], y="loss")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    results = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph([*nodes, gradient], "g", [x], results, held)
    opsets = [helper.make_opsetid(domain, n) for domain, n in (("", 17), (PREVIEW, 1), ("ai.onnx.ml", 3))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])


def squares(selected):
    return [
        helper.make_node("Mul", [selected, selected], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["loss"], keepdims=0),
    ]


@pytest.mark.parametrize("outputs", [("loss", "dx"), ("loss", "dx", "p")], ids=len)
def test_a_derivative_flows_through_what_was_selected_by_values_and_what_came_before(outputs):
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Sub", ["e", "one"], ["p"]),
        helper.make_node("Relu", ["p"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        helper.make_node("GatherND", ["p", "rows"], ["selected"]),
        *squares("selected"),
    ]
    session, x = selecting(nodes, outputs, one=np.float32(1)), torch.randn(5, 4, requires_grad=True)
    p = x.exp() - 1
    loss = p[p > 0].square().sum()
    loss.backward()
    results = session.run(None, {"x": x.detach().numpy()})
    for result, wanted in zip(results, [loss, x.grad, p], strict=False):
        np.testing.assert_allclose(result, wanted.detach(), rtol=1e-5, atol=1e-6)


def test_one_through_a_step_is_refused_by_name():
    nodes = [
        helper.make_node("ReduceSum", ["x", "last"], ["sums"], keepdims=0),
        helper.make_node("Greater", ["sums", "zero"], ["rows"]),
        helper.make_node("Compress", ["x", "rows"], ["selected"], axis=0),
        *squares("selected"),
    ]
    with pytest.raises(ontrain.OntrainError, match="Gradient flows back through Compress"):
        session = selecting(nodes, last=np.array([1]), zero=np.float32(0))
        session.run(None, {"x": RNG.standard_normal((5, 4)).astype(np.float32)})


def test_one_through_an_operator_without_a_gradient_is_refused_by_name():
    machine = helper.make_node(
        "SVMRegressor", ["x"], ["selected"], domain="ai.onnx.ml", kernel_type="LINEAR", coefficients=[1.0, 2.0, 3.0, 4],
        kernel_params=[0.0, 0.0, 0.0], rho=[0.5],
    )  # fmt: skip
    with pytest.raises(ontrain.OntrainError, match="SVMRegressor"):
        session = selecting([machine, *squares("selected")])
        session.run(None, {"x": RNG.standard_normal((5, 4)).astype(np.float32)})
