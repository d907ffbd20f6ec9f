"""Nothing falls back to PyTorch unless a policy says so, and then it is said what and why."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError, GradientError, InputError, OntrainError, OptionError
from ontrain.training.ortmodule import FallbackPolicy, ORTModule
from tests.training.ortmodule.networks import Perceptron, assert_same_gradients

pytestmark = pytest.mark.sampled(4)


class Branches(Perceptron):
    """Cannot be captured: its path depends on a number that is drawn at random."""

    def forward(self, x, scale=None):
        return super().forward(x if torch.randn(()) < 99 else -x, scale)


class Undifferentiable(nn.Module):
    """Can be captured, and its graph cannot be differentiated: nothing in it draws with a gradient inside a branch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        hidden = self.linear(x)
        return torch.cond(
            hidden.sum() > 0, lambda h: h * torch.rand_like(h), lambda h: h * torch.rand_like(h), (hidden,)
        )


def nested(module):
    return module(torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)], layout=torch.jagged))


def transformed(module):
    return torch.func.vmap(module)(torch.ones(2, 4, 6))


def on_meta(module):
    return module.to("meta")(torch.ones(2, 6, device="meta"))


def plain(module):
    return module(torch.randn(4, 6))


CASES = {
    "FALLBACK_UNSUPPORTED_TORCH_MODEL": (Branches, plain, CaptureError),
    "FALLBACK_UNSUPPORTED_ONNX_MODEL": (Undifferentiable, plain, GradientError),
    "FALLBACK_FORCE_TORCH_BACKWARD": (Undifferentiable, plain, GradientError),
    "FALLBACK_UNSUPPORTED_DATA": (lambda: nn.Linear(6, 3), nested, InputError),
    "FALLBACK_UNSUPPORTED_DEVICE": (lambda: nn.Linear(6, 3), on_meta, InputError),
}


@pytest.mark.parametrize("name", CASES)
def test_each_policy_answers_its_refusals(name, monkeypatch):
    make, call, _ = CASES[name]
    for policy in (name, "FALLBACK_FORCE_TORCH_FORWARD"):
        monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
        with pytest.warns(UserWarning, match=rf"PyTorch answers this and all further calls .*\({policy}\)"):
            call(ORTModule(make()))


@pytest.mark.parametrize("name", CASES)
def test_a_policy_answers_no_other_refusals(name, monkeypatch):
    make, call, error = CASES[name]
    others = [name for name in CASES if CASES[name][2] is not error]
    for policies in ("FALLBACK_DISABLE", "|".join([*others, "FALLBACK_BAD_INITIALIZATION"])):
        monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policies)
        with pytest.raises(error):
            call(ORTModule(make()))


def test_the_warning_says_what_and_why_once_and_the_numbers_are_eagers():
    module = Branches()
    eager, ours = copy.deepcopy(module), ORTModule(module, fallback=FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL)
    x = torch.randn(4, 6)
    with pytest.warns(UserWarning) as said:
        for variant in (ours, eager):
            for _ in range(2):
                variant(x).sum().backward()
    assert_same_gradients(ours, eager, rtol=0, atol=0)
    (text,) = [str(warning.message) for warning in said if "PyTorch answers" in str(warning.message)]
    assert "of Branches" in text and "branches on a number that is drawn at random" in text
    assert "test_fallback.py" in text and "torch.where" in text


def test_disable_is_the_default_and_wins():
    for policy in (None, "FALLBACK_DISABLE", "FALLBACK_DISABLE|FALLBACK_FORCE_TORCH_FORWARD"):
        with pytest.raises(CaptureError):
            plain(ORTModule(Branches(), fallback=policy))


def test_what_can_be_captured_is_not_fallen_back_on():
    ours = ORTModule(Perceptron(), fallback="FALLBACK_FORCE_TORCH_FORWARD")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain(ours)
    assert ours._engine.captures == 1


@pytest.mark.parametrize("retry", ["0", "1"])
def test_a_retry_tries_the_graph_at_each_call(monkeypatch, retry):
    class Sometimes(Perceptron):
        def forward(self, x, branch=False):
            return super().forward(x if not branch or torch.randn(()) < 99 else -x)

    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", retry)
    ours = ORTModule(Sometimes(), fallback="FALLBACK_UNSUPPORTED_TORCH_MODEL")
    with pytest.warns(UserWarning, match="PyTorch answers this call" if retry == "1" else "all further calls"):
        ours(torch.randn(4, 6), branch=True)
    ours(torch.randn(4, 6))
    # The refused capture and, with a retry, the one of the other call.
    assert ours._engine.captures == (2 if retry == "1" else 1)


def test_errors_of_the_users_own_model_are_raised_as_they_are():
    class Wrong(nn.Linear):
        def forward(self, x):
            raise KeyError("my own mistake")

    ours = ORTModule(Wrong(6, 3), fallback="FALLBACK_FORCE_TORCH_FORWARD")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="my own mistake") as caught:
            plain(ours)
    assert caught.value.__context__ is None and caught.value.__cause__ is None


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
def test_a_module_that_cannot_be_wrapped():
    module = nn.Sequential(torch.jit.script(nn.Linear(6, 3)))
    with pytest.raises(OptionError):
        ORTModule(module, fallback="FALLBACK_FORCE_TORCH_FORWARD")
    with pytest.warns(UserWarning, match="submodule '0' is a ScriptModule"):
        ours = ORTModule(module, fallback="FALLBACK_BAD_INITIALIZATION")
    torch.testing.assert_close(ours(torch.ones(2, 6)), module(torch.ones(2, 6)), rtol=0, atol=0)
    with pytest.raises(OptionError, match="not a str"):
        ORTModule("module", fallback="FALLBACK_BAD_INITIALIZATION")


def test_names_are_joined_and_a_wrong_one_is_told_the_right_one(monkeypatch):
    both = FallbackPolicy.FALLBACK_UNSUPPORTED_DATA | FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    for policy in ("FALLBACK_UNSUPPORTED_DATA|FALLBACK_UNSUPPORTED_DEVICE",
                  "FALLBACK_UNSUPPORTED_DEVICE, FALLBACK_UNSUPPORTED_DATA"):  # fmt: skip
        assert ORTModule(nn.Linear(2, 2), fallback=policy)._fallback.policy == both
    with pytest.raises(OptionError, match="fallback names 'UNSUPPORTED_DATA'[^$]*'FALLBACK_UNSUPPORTED_DATA'"):
        ORTModule(nn.Linear(2, 2), fallback="UNSUPPORTED_DATA")
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLED")
    with pytest.raises(OptionError, match="ORTMODULE_FALLBACK_POLICY names[^$]*'FALLBACK_DISABLE'"):
        ORTModule(nn.Linear(2, 2))
    monkeypatch.delenv("ORTMODULE_FALLBACK_POLICY")
    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", "maybe")
    with pytest.raises(OptionError, match="ORTMODULE_FALLBACK_RETRY is 'maybe'"):
        ORTModule(nn.Linear(2, 2))


def test_a_copy_keeps_the_policy():
    ours = ORTModule(Perceptron(), fallback="FALLBACK_UNSUPPORTED_DATA")
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):  # noqa: S301 (made here)
        assert copied._fallback.policy is FallbackPolicy.FALLBACK_UNSUPPORTED_DATA


def test_the_values_are_onnxruntimes():
    names = ["DISABLE", "FORCE_TORCH_FORWARD", "FORCE_TORCH_BACKWARD", "UNSUPPORTED_DEVICE", "UNSUPPORTED_DATA",
             "UNSUPPORTED_TORCH_MODEL", "UNSUPPORTED_ONNX_MODEL", "BAD_INITIALIZATION"]  # fmt: skip
    assert [(policy.name, policy.value) for policy in FallbackPolicy] == [
        (f"FALLBACK_{n}", 1 << i) for i, n in enumerate(names)
    ]
    assert issubclass(InputError, OntrainError)
