"""A model with a recurrent layer, a loop and a branch, trained from its graph on every provider as torch trains it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Role, control, set_role
from ontrain.optim import OptimizerSpec
from ontrain.providers import available_providers, get_provider
from ontrain.session import TrainingSession, TrainingTask

MODEL = """<ir_version: 10, opset_import: ["": 23]>
g (float[T,N,3] x, float[N] target, float[1,8,3] w, float[1,8,2] r, float[2,2] v, float[2] u) => (float loss)
  <int64 n = {3}, bool c = {1}, float zero = {0.0}> {
  , h = LSTM<hidden_size = 2>(x, w, r)
  axis = Constant<value = int64[1] {0}>()
  h2 = Squeeze(h, axis)
  z = Loop(n, c, h2) <body = b (int64 i, bool c0, float[N,2] s) => (bool c1, float[N,2] new)
    { c1 = Identity(c0)  m = MatMul(s, v)  new = Tanh(m) }>
  sum = ReduceSum<keepdims = 0>(z)
  positive = Greater(sum, zero)
  p = If(positive) < then_branch = t () => (float[N] a) { a = MatMul(z, u) },
                     else_branch = e () => (float[N] o) { q = MatMul(z, u) o = Neg(q) } >
  d = Sub(p, target)
  sq = Mul(d, d)
  loss = ReduceMean<keepdims = 0>(sq)
}"""
SHAPES = {"w": (1, 8, 3), "r": (1, 8, 2), "v": (2, 2), "u": (2,)}


def eager_loss(p: dict[str, torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    h = c = torch.zeros(x.shape[1], 2)
    for row in x:
        i, o, f, g = (row @ p["w"][0].T + h @ p["r"][0].T).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    for _ in range(3):
        h = torch.tanh(h @ p["v"])
    y = h @ p["u"]
    return (((y if h.sum() > 0 else -y) - target) ** 2).mean()


@pytest.mark.parametrize("form", ["unrolled", "kept"])
@pytest.mark.parametrize("provider", available_providers())
def test_losses_are_torchs(provider: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "kept":
        monkeypatch.setattr(control, "UNROLL_LIMIT", 0)
    initial = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    for value in model.graph.inputs:
        if value.name in SHAPES:
            set_role(value, Role.PARAMETER)
    task = TrainingTask(model, loss="loss", optimizer=OptimizerSpec("SGD"), trainable=list(SHAPES))
    session = TrainingSession(task, initial, get_provider(provider))
    twin = {name: tensor.clone().requires_grad_() for name, tensor in initial.items()}
    sgd = torch.optim.SGD(twin.values(), lr=0.1)
    for length in (3, 5, 3):  # lengths vary: each is a plan
        x, target = torch.randn(length, 5, 3), torch.randn(5)
        expected = eager_loss(twin, x, target)
        sgd.zero_grad()
        expected.backward()
        sgd.step()
        loss = session.step({"x": x, "target": target}, 0.1)["loss"]
        np.testing.assert_allclose(float(loss), expected.item(), rtol=2e-5)
    assert len(session.plans) == 2
    for name, tensor in twin.items():
        np.testing.assert_allclose(np.asarray(session.state[name]), tensor.detach().numpy(), rtol=1e-4, atol=1e-6)
