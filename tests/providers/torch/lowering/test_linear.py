"""Linear layers of files: oneDNN's order of weights, and what follows them, beside the formulas in double precision."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import ontrain
from ontrain.providers.torch.weights import LINEAR, Weights
from tests.providers.torch.lowering.files import calls

ROWS, INNER, COLUMNS = 33, 48, 80
FOLLOWS = {
    "nothing": ([], lambda y, z: y),
    "Relu": ([("Relu", ["y"], {})], lambda y, z: y.relu()),
    "Sigmoid": ([("Sigmoid", ["y"], {})], lambda y, z: y.sigmoid()),
    "Tanh": ([("Tanh", ["y"], {})], lambda y, z: y.tanh()),
    "Gelu": ([("Gelu", ["y"], {})], lambda y, z: torch.nn.functional.gelu(y)),
    "Gelu, tanh": (
        [("Gelu", ["y"], {"approximate": "tanh"})], lambda y, z: torch.nn.functional.gelu(y, approximate="tanh"),
    ),
    "Silu": ([("Sigmoid", ["y"], {}), ("Mul", ["y", "r0"], {})], lambda y, z: torch.nn.functional.silu(y)),
    "a sum": ([("Add", ["y", "z"], {})], lambda y, z: y + z),
    "the Relu of a sum": ([("Add", ["z", "y"], {}), ("Relu", ["r0"], {})], lambda y, z: (y + z).relu()),
}  # fmt: skip


def _file(follows, *, layer, dtype=np.float32, shape=("n", INNER)):
    """A layer, as a Gemm of either order or as a product of more axes with its bias, and what follows."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((INNER, COLUMNS)).astype(dtype) / 7
    weights = {"w": w.T.copy() if layer == "transposed" else w, "b": rng.standard_normal(COLUMNS).astype(dtype)}
    nodes = (
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
        if layer == "product"
        else [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(layer == "transposed"))]
    )
    for number, (kind, inputs, attributes) in enumerate(follows):
        nodes.append(helper.make_node(kind, inputs, [f"r{number}"], **attributes))
    result, kind = nodes[-1].output[0], helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    wide = [*shape[:-1], COLUMNS]
    graph = helper.make_graph(
        nodes, "layer",
        [helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("z", kind, wide)],
        [helper.make_tensor_value_info(result, kind, wide)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString(), torch.from_numpy(w).double(), torch.from_numpy(weights["b"]).double()


def _feeds(lead, dtype=np.float32):
    rng = np.random.default_rng(1)
    return {
        "x": rng.standard_normal((*lead, INNER)).astype(dtype),
        "z": rng.standard_normal((*lead, COLUMNS)).astype(dtype),
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tune", ["0", "1", "aten", "linear"])
@pytest.mark.parametrize("layer", ["plain", "transposed"])
@pytest.mark.parametrize("name", FOLLOWS)
def test_layers_of_two_axes_are_the_formulas(name, layer, tune, monkeypatch):
    monkeypatch.setenv("ONTRAIN_TUNE", tune)
    follows, formula = FOLLOWS[name]
    content, w, b = _file(follows, layer=layer)
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"])
    for rows in (ROWS, 1, 260):
        feeds = _feeds((rows,))
        x, z = (torch.from_numpy(array).double() for array in feeds.values())
        (y,) = session.run(None, feeds)
        np.testing.assert_allclose(y, formula(x @ w + b, z).numpy(), 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FOLLOWS)
def test_layers_of_three_axes_are_the_formulas(name, dtype):
    follows, formula = FOLLOWS[name]
    content, w, b = _file(follows, layer="product", dtype=dtype, shape=("n", "length", INNER))
    feeds = _feeds((3, 11), dtype)
    x, z = (torch.from_numpy(array).double() for array in feeds.values())
    (y,) = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(y, formula(x @ w + b, z).numpy(), 1e-5, 1e-5)


@pytest.mark.skipif(LINEAR is None, reason="this torch has no linear layers by oneDNN")
def test_a_layer_and_its_gelu_are_one_call():
    content, *_ = _file(FOLLOWS["Gelu"][0], layer="plain")
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"])
    session.run(None, _feeds((1000,)))
    assert len(calls(session)) == 1


def test_few_rows_are_a_product_of_ATens_which_takes_no_time_to_begin():
    content, *_ = _file(FOLLOWS["Gelu"][0], layer="plain")
    session = ontrain.InferenceSession(content, providers=["TorchExecutionProvider"])
    session.run(None, _feeds((1,)))
    assert "addmm" in calls(session)


@pytest.mark.skipif(LINEAR is None, reason="this torch has no linear layers by oneDNN")
def test_plans_of_all_numbers_of_rows_share_a_weight_in_oneDNN_order():
    weights, w = Weights(), torch.randn(COLUMNS, INNER)
    assert weights.matrix(w) is weights.matrix(w) is not weights.matrix(torch.randn(COLUMNS, INNER))


def test_a_session_whose_weights_are_fed_computes_with_what_is_fed():
    """An initializer that is an input, too, may be fed: it is no constant."""
    content, *_ = _file([], layer="plain")
    model = onnx.load_from_string(content)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [INNER, COLUMNS]))
    session = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    feeds, b = _feeds((ROWS,)), numpy_helper.to_array(model.graph.initializer[1])
    session.run(None, feeds)
    for scale in (1.0, -2.0):
        w = np.full((INNER, COLUMNS), scale, np.float32)
        (y,) = session.run(None, {**feeds, "w": w})
        np.testing.assert_allclose(y, feeds["x"] @ w + b, 1e-4, 1e-4)
