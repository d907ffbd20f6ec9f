"""What subscribers are told, in eager PyTorch and under an ORTModule, is what plain hooks of torch see."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ontrain.errors import CaptureError, OptionError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from ontrain.training.utils.hooks import (
    GlobalSubscriberManager,
    Subscriber,
    SubscriberManager,
    inspect_activation,
)
from tests.training.ortmodule.networks import LanguageModel

DOUBLE = dict(rtol=1e-9, atol=1e-12)


class Recorder(Subscriber):
    """Keeps what it is told, by pass, step and name, in the order of arrival."""

    def __init__(self, start_step=None, end_step=None):
        super().__init__(start_step, end_step)
        self.told: dict[tuple[str, int, str], torch.Tensor] = {}
        self.depths: dict[str, int] = {}

    def activation(self, name, depth, step, value):
        assert ("forward", step, name) not in self.told, "told twice"
        self.told["forward", step, name] = value.clone()
        self.depths[name] = depth

    def gradient(self, name, depth, step, value):
        assert ("backward", step, name) not in self.told, "told twice"
        self.told["backward", step, name] = value.clone()


@pytest.fixture(autouse=True)
def _nobody_is_left():
    yield
    GlobalSubscriberManager.unsubscribe()


class Net(nn.Module):
    """A layer that is written to in place, one that runs twice, a value between modules; returns (loss, logits)."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True))
        self.twice = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, label):
        hidden = inspect_activation("between", self.first(x) * 2)
        logits = self.head(self.twice(self.twice(hidden) + hidden))
        return nn.functional.cross_entropy(logits, label), logits


def batches(count):
    return [(torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 3, (5,))) for _ in range(count)]


def train(module, data):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for x, label in data:
        optimizer.zero_grad()
        module(x, label)[0].backward()
        optimizer.step()


def seen_by_plain_hooks(module, data):
    """The oracle: hooks of torch on each module, which give a copy of each output with a hook on its gradient."""
    tensors: dict[tuple[str, int, str], torch.Tensor] = {}
    step, calls = 0, {}

    def see(place):
        def hook(_, __, result):
            copies = [tensor.clone() for tensor in (result if isinstance(result, tuple) else (result,))]
            for i, tensor in enumerate(copies):
                name = f"{place}_{i}th_output"
                calls[name] = calls.get(name, 0) + 1
                name += f"_call{calls[name]}" if calls[name] > 1 else ""
                tensors["forward", step, name] = tensor.detach().clone()
                key = ("backward", step, name)
                tensor.register_hook(lambda gradient, key=key: tensors.__setitem__(key, gradient.clone()))
            return tuple(copies) if isinstance(result, tuple) else copies[0]

        return hook

    handles = [
        part.register_forward_hook(see(f"{type(part).__name__}_{number}"))
        for number, part in enumerate(module.modules())
    ]  # fmt: skip
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step, (x, label) in enumerate(data):  # noqa: B007 (the hooks read it)
        calls.clear()
        optimizer.zero_grad()
        module(x, label)[0].backward()
        optimizer.step()
    for handle in handles:
        handle.remove()
    return tensors


def assert_told(told, expected, beside=()):
    assert {key for key in told if key[2] not in beside} == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(told[key], value, msg=lambda text, key=key: f"{key}: {text}", **DOUBLE)


@pytest.mark.parametrize("how", ["eager", "wrapped before", "wrapped after"])
def test_values_and_gradients_are_those_of_plain_hooks(how):
    module, data = Net().double(), batches(2)
    expected = seen_by_plain_hooks(copy.deepcopy(module), data)
    recorder = Recorder()
    if how == "wrapped before":
        module = ORTModule(module)
        train(module, [])
    GlobalSubscriberManager.subscribe(module, [recorder])
    if how == "wrapped after":
        module = ORTModule(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(module, data)
    assert_told(recorder.told, expected, beside={"between"})
    assert any(name == "Linear_4_0th_output_call2" for _, _, name in expected), "the case is empty"
    assert recorder.depths["Net_0_1th_output"] == 1 and recorder.depths["ReLU_3_0th_output"] == 3
    assert recorder.depths["between"] == -1
    # The value between modules: twice what the activation gave, and its gradient by the chain rule.
    for step in (0, 1):
        between, relu = (recorder.told["forward", step, name] for name in ("between", "ReLU_3_0th_output"))
        torch.testing.assert_close(between, 2 * relu, **DOUBLE)
        back, relu_back = (recorder.told["backward", step, name] for name in ("between", "ReLU_3_0th_output"))
        torch.testing.assert_close(2 * back, relu_back, **DOUBLE)


def test_the_order_is_that_of_execution_in_both_engines():
    module, data = Net().double(), batches(1)
    orders = []
    for variant in (copy.deepcopy(module), ORTModule(copy.deepcopy(module))):
        recorder = Recorder()
        GlobalSubscriberManager.subscribe(variant, [recorder])
        train(variant, data)
        orders.append(list(recorder.told))
    assert orders[0] == orders[1]
    assert orders[0].index(("forward", 0, "Linear_2_0th_output")) < orders[0].index(("forward", 0, "between"))


@pytest.mark.parametrize("provider", ["OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"])
def test_other_providers_hand_values_out_too(provider):
    module, data = Net().double(), batches(1)
    expected = seen_by_plain_hooks(copy.deepcopy(module), data)
    module, recorder, manager = ORTModule(module, provider=provider), Recorder(), SubscriberManager()
    manager.subscribe(module, [recorder])
    train(module, data)
    assert_told(recorder.told, expected)


@pytest.mark.usefixtures("rows_counted")
def test_rows_that_reach_no_loss_are_seen_in_full():
    module, ids = LanguageModel().double(), torch.randint(0, 20, (3, 6))
    labels = torch.where(torch.arange(6) < 4, -100, ids)
    recorders = []
    for variant in (copy.deepcopy(module), ORTModule(module)):
        recorders.append(Recorder())
        SubscriberManager().subscribe(variant, [recorders[-1]])
        variant(ids, labels)[0].backward()
    assert_told(recorders[1].told, recorders[0].told)
    assert recorders[1].told["forward", 0, "LanguageModel_0_1th_output"].shape == (3, 6, 20)


def test_steps_outside_of_the_window_are_not_told():
    for wrap in (lambda module: module, ORTModule):
        module, recorder = Net().double(), Recorder(start_step=1, end_step=3)
        SubscriberManager().subscribe(module, [recorder])
        train(wrap(module), batches(4))
        assert {step for _, step, _ in recorder.told} == {1, 2}


def test_an_evaluation_is_a_step_without_gradients():
    for wrap in (lambda module: module, ORTModule):
        module, recorder = Net().double(), Recorder()
        SubscriberManager().subscribe(module, [recorder])
        wrapped = wrap(module)
        with torch.no_grad():
            wrapped.eval()(*batches(1)[0])
        assert {(kind, step) for kind, step, _ in recorder.told} == {("forward", 0)}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_told_of_once(reentrant):
    class Checkpointed(Net):
        def forward(self, x, label):
            logits = self.head(checkpoint(self.twice, self.first[0](x), use_reentrant=reentrant))
            return nn.functional.cross_entropy(logits, label), logits

    module, data, told = Checkpointed().double(), batches(2), []
    for variant in (copy.deepcopy(module), ORTModule(module)):
        recorder = Recorder()
        SubscriberManager().subscribe(variant, [recorder])
        train(variant, data)
        told.append(recorder.told)
    assert ("backward", 1, "Linear_4_0th_output") in told[0]
    assert_told(told[1], told[0])


def test_a_subscription_after_the_first_call_is_followed_and_one_that_ends_too():
    module, manager, recorder = ORTModule(Net().double()), SubscriberManager(), Recorder()
    train(module, batches(1))
    manager.subscribe(module, [recorder])
    train(module, batches(1))
    assert {step for _, step, _ in recorder.told} == {0}
    manager.unsubscribe()
    count = len(recorder.told)
    train(module, batches(1))
    assert len(recorder.told) == count
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_without_subscribers_an_inspected_activation_is_the_tensor_itself():
    x = torch.randn(3)
    assert inspect_activation("x", x) is x
    module = ORTModule(Net().double())
    train(module, batches(1))
    model = module._engine.entries[0].captured.model
    assert not any(node.op_type == "Inspect" for node in model.graph)


def test_what_is_inspected_outside_of_the_module_belongs_to_the_step_before():
    for wrap in (lambda module: module, ORTModule):
        module, recorder = Net().double(), Recorder()
        GlobalSubscriberManager.subscribe(module, [recorder])
        wrapped = wrap(module)
        for batch in batches(2):
            inspect_activation("scaled", wrapped(*batch)[0] * 3).backward()
        for step in (0, 1):
            loss = recorder.told["forward", step, "Net_0_0th_output"]
            torch.testing.assert_close(recorder.told["forward", step, "scaled"], 3 * loss, **DOUBLE)
            assert recorder.told["backward", step, "scaled"] == 1
            assert recorder.told["backward", step, "Net_0_0th_output"] == 3


def test_a_forward_that_fails_is_no_step():
    module, recorder = nn.Linear(4, 3), Recorder()
    SubscriberManager().subscribe(module, [recorder])
    with pytest.raises(RuntimeError):
        module(torch.randn(2, 5))
    module(torch.randn(2, 4))
    assert {step for _, step, _ in recorder.told} == {0}


def test_a_copy_of_a_module_is_watched_by_the_same():
    module, recorder = Net().double(), Recorder()
    SubscriberManager().subscribe(module, [recorder])
    train(copy.deepcopy(module), batches(1))
    assert ("backward", 0, "Linear_5_0th_output") in recorder.told


def test_a_trainer_refuses_what_it_would_not_hand_out():
    module, manager = nn.Linear(4, 3), SubscriberManager()
    manager.subscribe(module, [Recorder()])
    desc = {"inputs": [("x", [5, 4]), ("label", [5])], "outputs": [("loss", [], True), ("out", [5, 3])]}
    batch = torch.randn(5, 4), torch.randint(0, 3, (5,))

    def step():
        options = {"device": {"id": "cpu"}}
        return ORTTrainer(module, desc, optim.SGDConfig(), nn.functional.cross_entropy, options).train_step(*batch)

    with pytest.raises(CaptureError, match="Linear_0_0th_output"):
        step()
    manager.unsubscribe()
    step()


def test_wrong_subscriptions():
    manager = SubscriberManager()
    for module, subscribers, match in (
        (nn.Linear(2, 2), [], "no subscriber"),
        (nn.Linear(2, 2), ["folder"], "str is no Subscriber"),
        (torch.tanh, [Recorder()], "torch.nn.Module"),
    ):
        with pytest.raises(OptionError, match=match):
            manager.subscribe(module, subscribers)


class Choosing(nn.Module):
    """A layer in a branch, and a value in the other one."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = self.first(x)
        y = torch.cond(x.sum() > 0, lambda y: self.inner(y).tanh(), lambda y: inspect_activation("other", y * 2), (y,))
        return self.head(y)


def test_what_lies_in_a_branch_is_left_out_and_said():
    x, told = torch.rand(3, 4), []
    eager = Choosing()
    for net in (eager, ORTModule(copy.deepcopy(eager))):
        recorder = Recorder()
        GlobalSubscriberManager.subscribe(net, [recorder])
        says = nullcontext() if net is eager else pytest.warns(UserWarning, match=r"torch.cond \(test_subscribers")
        with says:
            net(x).square().sum().backward()
        told.append(recorder.told)
    assert list(told[0]) == list(told[1])
    assert {name for _, _, name in told[0]} == {"Linear_1_0th_output", "Linear_3_0th_output", "Choosing_0_0th_output"}
    for key, value in told[0].items():
        torch.testing.assert_close(told[1][key], value)
