"""Operators that a program registers run, are differentiated, and have bodies for providers without PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

import ontrain
from ontrain.errors import GradientError, GraphError, OptionError, ProviderError
from ontrain.functions import adopted
from ontrain.graph import infer
from ontrain.operators import OPERATORS
from ontrain.operators.gradients import rules
from ontrain.providers.torch import program_operators
from ontrain.providers.torch.lowering import registry
from ontrain.training import ORTTrainer, optim

TORCH = ["TorchExecutionProvider"]
W = np.linspace(-1.2, 1.3, 12, dtype=np.float32).reshape(4, 3)


def register():
    @ontrain.op("test.program::Snake", like=0, autograd=True)
    def snake(x, *, alpha=1.0):
        return x + torch.sin(alpha * x) ** 2 / alpha

    @ontrain.op("test.program::Halves", outputs=2)
    def halves(x, scale=None, *, swap=0):
        left, right = x.chunk(2, -1)
        if scale is not None:
            left = left * scale
        return (right, left) if swap else (left, right)

    @halves.shape
    def _(x, scale=None, *, swap):
        half = x.replace(shape=(*x.shape[:-1], x.shape[-1] // 2))
        return [half, half]

    @halves.gradient
    def _(dleft, dright, x, scale=None, *, swap):
        if swap:
            dleft, dright = dright, dleft
        dscale = None
        if scale is not None:
            dscale = (dleft * x.chunk(2, -1)[0]).sum(tuple(range(x.ndim - 1)))
            dleft = dleft * scale
        dx = torch.cat([dleft, dright], -1)
        return (dx,) if scale is None else (dx, dscale)

    @ontrain.op("test.program::Cubed", like=0)
    def cubed(x, *, times=1.0):
        return times * x**3

    @cubed.body
    def _(op, x, *, times=1.0):
        return x * x * x * times

    @ontrain.op("test.program::Positive")
    def positive(x):
        return x[x.sum(-1) > 0]

    @ontrain.op("test.program::Wrong", like=0)
    def wrong(x):
        return x[:1]


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The operators of this file, which no other file's tests see."""
    tables = (OPERATORS, adopted, rules, infer._ours, registry._table, program_operators._operators)
    before = [dict(table) for table in tables]
    register()
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def model(text, **weights):
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "test.program": 1]> m {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    return proto


def run(proto, **feeds):
    return ontrain.InferenceSession(proto, providers=TORCH).run(None, feeds)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("rows", [1, 5])
def test_an_operator_of_the_program_runs_with_the_attributes_of_the_node(rows):
    x = draw(rows, 4)
    (y,) = run(model("(float[n, 4] x) => (float[n, 4] y) { y = test.program.Snake<alpha = 2.0>(x) }"), x=x)
    np.testing.assert_allclose(y, x + np.sin(2 * x) ** 2 / 2, rtol=1e-6, atol=1e-7)


def test_a_shape_function_speaks_of_dimensions_that_the_file_leaves_open():
    text = "(float[n, m] x) => (float[n, k] y) { a, b = test.program.Halves<swap = 1>(x) y = Sub(a, b) }"
    for width in (4, 6):
        x = draw(3, width)
        np.testing.assert_array_equal(run(model(text), x=x)[0], x[:, width // 2 :] - x[:, : width // 2])


def test_an_operator_without_a_shape_function_is_sized_when_it_runs():
    text = "(float[n, 4] x) => (float[k, 4] y) { p = test.program.Positive(x) y = Relu(p) }"
    x = draw(9, 4)
    np.testing.assert_array_equal(run(model(text), x=x)[0], np.maximum(x[x.sum(-1) > 0], 0))


def train(proto, x, y, provider="TorchExecutionProvider"):
    desc = {"inputs": [("x", ["n", 4]), ("target", ["n", 3])], "outputs": [("loss", [], True), ("out", ["n", 3])]}
    options = {"device": {"id": "cpu"}, "provider": provider}
    trainer = ORTTrainer(proto, desc, optim.SGDConfig(lr=0.1), torch.nn.functional.mse_loss, options)
    loss = float(trainer.train_step(torch.from_numpy(x), torch.from_numpy(y))[0])
    return loss, {name: np.asarray(w) for name, w in trainer.state_dict()["model"]["full_precision"].items()}


def eager(function, x, y, **weights):
    """The loss before a step of SGD, and the weights after it, by torch alone."""
    tensors = {name: torch.tensor(w, requires_grad=True) for name, w in weights.items()}
    loss = torch.nn.functional.mse_loss(function(torch.from_numpy(x), **tensors), torch.from_numpy(y))
    loss.backward()
    return float(loss.detach()), {name: (w - 0.1 * w.grad).detach().numpy() for name, w in tensors.items()}


def same(result, wanted):
    assert result[0] == pytest.approx(wanted[0], rel=1e-5)
    assert result[1].keys() == wanted[1].keys()
    for name, weight in wanted[1].items():
        np.testing.assert_allclose(result[1][name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


def test_torch_differentiates_the_function_where_it_is_asked_to():
    text = "(float[n, 4] x) => (float[n, 3] out) { h = test.program.Snake<alpha = 2.0>(x1) out = MatMul(h, w) }"
    text = text.replace("{", "{ x1 = Mul(x, gain)", 1)
    gain, x, y = draw(4, seed=1), draw(5, 4), draw(5, 3, seed=2)

    def forward(x, w, gain):
        h = x * gain
        return (h + torch.sin(2 * h) ** 2 / 2) @ w

    same(train(model(text, w=W, gain=gain), x, y), eager(forward, x, y, w=W, gain=gain))


@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_of_the_program_is_called_with_adjoints_inputs_and_attributes(swap, scaled):
    scale = ", scale" if scaled else ""
    text = f"""(float[n, 4] x) => (float[n, 3] out) {{
        h = MatMul(x, v) a, b = test.program.Halves<swap = {swap}>(h{scale})
        t = Tanh(a) s = Mul(t, b) out = MatMul(s, w)
    }}"""
    weights = {"v": draw(4, 4, seed=3), "w": W[:2]} | ({"scale": draw(2, seed=4)} if scaled else {})
    x, y = draw(5, 4), draw(5, 3, seed=2)

    def forward(x, v, w, scale=1.0):
        left, right = (x @ v).chunk(2, -1)
        a, b = (right, left * scale) if swap else (left * scale, right)
        return (torch.tanh(a) * b) @ w

    same(train(model(text, **weights), x, y), eager(forward, x, y, **weights))


def test_an_output_that_nothing_flows_back_from_has_an_adjoint_of_zeros():
    text = """(float[n, 4] x) => (float[n, 3] out) {
        h = MatMul(x, v) a, b = test.program.Halves(h) out = MatMul(a, w)
    }"""
    weights, x, y = {"v": draw(4, 4, seed=3), "w": W[:2]}, draw(5, 4), draw(5, 3, seed=2)
    same(train(model(text, **weights), x, y), eager(lambda x, v, w: (x @ v)[:, :2] @ w, x, y, **weights))


@pytest.mark.parametrize(
    "provider", ["TorchExecutionProvider", "OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"]
)
def test_a_body_trains_on_every_provider(provider):
    text = "(float[n, 4] x) => (float[n, 3] out) { h = MatMul(x, w) out = test.program.Cubed<times = 0.5>(h) }"
    x, y = draw(5, 4), draw(5, 3, seed=2)
    same(train(model(text, w=W), x, y, provider), eager(lambda x, w: 0.5 * (x @ w) ** 3, x, y, w=W))


def test_an_operator_without_gradient_is_refused_by_its_node():
    text = "(float[n, 4] x) => (float[n, 3] out) { h = MatMul(x, w) out = test.program.Wrong(h) }"
    with pytest.raises(GradientError, match=r"Wrong[^$]*-> out[^$]*without a gradient[^$]*Wrong\.gradient"):
        train(model(text, w=W), draw(1, 4), draw(1, 3))


def test_an_operator_without_a_shape_function_cannot_be_trained():
    text = "(float[n, 4] x) => (float[n, 3] out) { h = MatMul(x, w) out = test.program.Positive(h) }"
    with pytest.raises(GraphError, match="shape function"):
        train(model(text, w=W), draw(1, 4), draw(1, 3))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("y = test.program.Wrong(x)", "its function gave float32 .1, 4.[^$]*said float32 .3, 4."),
        ("y = test.program.Snake<beta = 1.0>(x)", "no attribute 'beta'[^$]*alpha"),
        ("y = test.program.Snake(x, x)", "the node has 2 inputs"),
        ("y, z = test.program.Snake(x)", "2 outputs"),
    ],
)
def test_what_does_not_fit_is_told_with_the_node(text, told):
    with pytest.raises((GraphError, ProviderError), match=told):
        run(model(f"(float[n, 4] x) => (float[n, 4] y) {{ {text} }}"), x=draw(3, 4))


def test_an_unknown_operator_says_how_to_have_one():
    proto = model("(float[n, 4] x) => (float[n, 4] y) { y = test.program.Nowhere(x) }")
    for providers in (TORCH, ["CPUExecutionProvider"]):
        with pytest.raises((GraphError, ontrain.InputError), match="ontrain.op"):
            ontrain.InferenceSession(proto, providers=providers)


@pytest.mark.parametrize("name", ["Relu", "ai.onnx::Relu", "ontrain::Detach", "com.microsoft::FusedConv", "a::b::c"])
def test_names_that_are_none_or_taken_are_refused(name):
    with pytest.raises(OptionError, match=name):
        ontrain.op(name)(lambda x: x)


def test_a_function_of_any_keyword_is_refused():
    with pytest.raises(OptionError, match="any keyword"):
        ontrain.op("test.program::Any")(lambda x, **rest: x)


def test_a_name_registered_anew_is_the_new_functions():
    proto = model("(float[n] x) => (float[n] y) { y = test.program.Again(x) }")
    for factor in (2.0, 3.0):
        ontrain.op("test.program::Again", like=0)(lambda x, factor=factor: x * factor)
        np.testing.assert_array_equal(run(proto, x=np.ones(2, np.float32))[0], [factor] * 2)


def test_a_tensor_attribute_comes_as_a_tensor_and_a_left_out_input_as_none():
    @ontrain.op("test.program::Pick", like=0)
    def pick(x, absent=None, *, table, mode):
        assert absent is None and mode == "plus"
        return x + table.to(x.dtype)

    text = '(float[n, 2] x) => (float[n, 2] y) { y = test.program.Pick<table = int64[2] {1, 2}, mode = "plus">(x) }'
    np.testing.assert_array_equal(run(model(text), x=np.zeros((1, 2), np.float32))[0], [[1, 2]])


def test_an_error_of_the_function_names_the_node():
    @ontrain.op("test.program::Fails", like=0)
    def fails(x):
        raise RuntimeError("no such table")

    with pytest.raises(ProviderError, match=r"Fails[^$]*no such table"):
        run(model("(float[n] x) => (float[n] y) { y = test.program.Fails(x) }"), x=np.zeros(1, np.float32))


def test_models_mix_operators_of_the_program_with_what_onnxruntime_runs():
    text = "(float[n, 4] x) => (float[n, 4] y) { h = test.program.Snake(x) y = com.microsoft.BiasGelu(h, b) }"
    proto = model(text, b=np.ones(4, np.float32))
    proto.opset_import.add(domain="com.microsoft", version=1)
    x = draw(3, 4)
    session = ontrain.InferenceSession(proto, providers=["TorchExecutionProvider", "CPUExecutionProvider"])
    h = torch.from_numpy(x + np.sin(x) ** 2 + 1)
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], torch.nn.functional.gelu(h).numpy(), rtol=1e-5, atol=1e-6
    )
