"""A call that eager PyTorch refuses, too, is refused in torch's own words, with the user's line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.capture.own_failure import refuse_as_eager
from ontrain.errors import CaptureError
from ontrain.training import optim
from ontrain.training.ortmodule import ORTModule
from ontrain.training.orttrainer import ORTTrainer


class Wrong(nn.Module):
    """Does one thing that its input does not fit, behind what it leaves in the module."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0
        self.linear, self.lstm, self.norm = nn.Linear(8, 4), nn.LSTM(8, 4, batch_first=True), nn.BatchNorm1d(5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        x.mul_(2)
        h = self.norm(x) + torch.rand(())
        if self.kind == "linear":
            return self.linear(h)
        if self.kind == "lstm":
            return self.lstm(h[:, None])[0]
        if self.kind == "sum":
            return h + self.linear.bias
        if self.kind == "dtype":
            return self.linear(torch.cat([h, h], 1)[:, :8].double())
        if self.kind == "loss":
            return nn.functional.cross_entropy(h, torch.zeros(len(x) + 1, dtype=torch.int64))
        if self.kind == "name":
            return self.head(h)
        raise KeyError("no such kind")


KINDS = ["linear", "lstm", "sum", "dtype", "loss", "name", "key"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("breaks", ["refuse", "allow"])
def test_torchs_own_words_the_line_and_a_way_out_that_helps(kind: str, breaks: str) -> None:
    model = Wrong(kind)
    with pytest.raises((RuntimeError, ValueError, AttributeError, KeyError)) as eager:
        Wrong(kind)(torch.ones(3, 5))
    x, generator = torch.ones(3, 5), torch.get_rng_state()
    with pytest.raises(CaptureError) as refusal:
        ORTModule(model, breaks=breaks)(x)
    told = refusal.value
    assert f"Wrong fails in eager PyTorch, too: {type(eager.value).__name__}: {eager.value}" == told.problem
    assert "test_own_failure.py" in told.source and "float32[3, 5]" in told.reason
    assert "breaks=" not in str(told) and "report" not in str(told)
    assert model.calls == 0 and model.seen == 0 and not model.norm.num_batches_tracked
    assert x.eq(1).all() and torch.equal(torch.get_rng_state(), generator)


def test_a_fallback_raises_torchs_own_error() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2") as refusal:
        ORTModule(Wrong("linear"), fallback="FALLBACK_FORCE_TORCH_FORWARD")(torch.ones(3, 5))
    assert not isinstance(refusal.value, CaptureError)


def test_a_trainer_names_the_users_model() -> None:
    description = {"inputs": [("x", ["batch", 5]), ("y", ["batch"])], "outputs": [("loss", [], True)]}
    options = {"device": {"id": "cpu"}}
    trainer = ORTTrainer(Wrong("linear"), description, optim.SGDConfig(), nn.functional.cross_entropy, options)
    with pytest.raises(CaptureError, match=r"^Wrong fails in eager PyTorch, too: RuntimeError: .*mat1 and mat2 shapes"):
        trainer.train_step(torch.ones(3, 5), torch.zeros(3, dtype=torch.int64))


class OutOfSight(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.numpy(force=True).sum())


def test_what_eager_computes_is_told_of_as_before() -> None:
    with pytest.raises(CaptureError, match="torch.export cannot trace the module"):
        ORTModule(OutOfSight())(torch.ones(3, 5, requires_grad=True))


class Decaying(nn.Module):
    """Shrinks its weight in each call, in its memory or in another."""

    def __init__(self, exchanged: bool) -> None:
        super().__init__()
        self.linear, self.exchanged = nn.Linear(8, 4), exchanged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.exchanged:
            self.linear.weight.data = self.linear.weight.data * 0.5
        else:
            self.linear.weight.data.mul_(0.5)
        return self.linear(x)


@pytest.mark.parametrize("exchanged", [False, True])
def test_asking_pytorch_writes_to_no_parameter(exchanged: bool) -> None:
    torch.manual_seed(0)
    eager, ours = Decaying(exchanged), Decaying(exchanged)
    ours.load_state_dict(eager.state_dict())
    compiled = torch.compile(ours, backend="ontrain")
    for batch in (2, 3, 2):
        x = torch.randn(batch, 8)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(ours.linear.weight, eager.linear.weight)


def test_a_parameter_keeps_its_values_and_its_memory() -> None:
    for exchanged in (False, True):
        module, x = Decaying(exchanged), torch.randn(2, 8)
        weight = module.linear.weight
        before, pointer = weight.detach().clone(), weight.data_ptr()
        failed = CaptureError("no trace")
        failed.__cause__ = RuntimeError()
        refuse_as_eager(module, (x,), {}, failed)
        assert torch.equal(weight, before) and weight.data_ptr() == pointer
