"""What forward asks of its surroundings, and finds in objects of several kinds: each call is eager PyTorch's."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import functools
import logging
import os
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError, OntrainError
from ontrain.training.ortmodule import ORTModule

LOGGER = logging.getLogger(__name__)
SCALE = contextvars.ContextVar("scale", default=1)
COUNT = contextvars.ContextVar("count", default=0)
OWN = threading.local()


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.begin()

    def begin(self):
        pass


def outputs(model, prepare=lambda call: None, sizes=(3, 3, 5, 3, 5)):
    """The results of several calls, of which each finds what the one before has left."""
    results = []
    for call, size in enumerate(sizes):
        prepare(call)
        generator = torch.Generator().manual_seed(call)
        results.append(model(torch.randn(size, 4, generator=generator)).detach().clone())
    return results


def compare(module, prepare=lambda call: None, reset=lambda: None):
    """Compare an ORTModule's calls with those of a copy of the module in eager PyTorch."""
    twin = copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reset()
        wanted = outputs(twin, prepare)
        reset()
        got = outputs(ORTModule(module), prepare)
    for ours, eager in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, eager)
    return twin


class Deterministic(Base):
    def forward(self, x):
        return self.layer(x) * (2 if torch.are_deterministic_algorithms_enabled() else 1)


class Threads(Base):
    def forward(self, x):
        return self.layer(x) * torch.get_num_threads()


class Environment(Base):
    def forward(self, x):
        return self.layer(x) * float(os.environ.get("ONTRAIN_TEST_SCALE", "1"))


class Logs(Base):
    def forward(self, x):
        y = self.layer(x)
        return y * 2 if LOGGER.isEnabledFor(logging.INFO) else y


class InContext(Base):
    def forward(self, x):
        return self.layer(x) * SCALE.get()


class OfThread(Base):
    def forward(self, x):
        return self.layer(x) * OWN.scale


@pytest.mark.parametrize(
    ("kind", "set_to"),
    [
        (Deterministic, lambda call: torch.use_deterministic_algorithms(call % 2 == 1)),
        (Threads, lambda call: torch.set_num_threads(1 + call % 2)),
        (Environment, lambda call: os.environ.__setitem__("ONTRAIN_TEST_SCALE", str(call))),
        (Logs, lambda call: LOGGER.setLevel([logging.INFO, logging.WARNING][call % 2])),
        (InContext, lambda call: SCALE.set(call)),
        (OfThread, lambda call: setattr(OWN, "scale", call)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_call_computes_by_what_its_surroundings_say_then(kind, set_to, monkeypatch):
    monkeypatch.setenv("ONTRAIN_TEST_SCALE", "1")
    threads = torch.get_num_threads()
    try:
        compare(kind(), set_to)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


class Sizes(Base):
    def begin(self):
        self.seen = set()

    def forward(self, x):
        y = self.layer(x)
        if x.shape[0] in self.seen:
            y = y * 2
        self.seen.add(x.shape[0])
        return y


class Ordered(Base):
    kind = collections.OrderedDict

    def begin(self):
        self.scales = self.kind(a=1.0, b=2.0, c=3.0)

    def forward(self, x):
        name = next(iter(self.scales))
        scale = self.scales.pop(name)
        self.scales[name] = scale
        return self.layer(x) * scale


class Plain(Ordered):
    kind = dict


class Moved(Ordered):
    def forward(self, x):
        name = next(iter(self.scales))
        self.scales.move_to_end(name)
        return self.layer(x) * self.scales[name]


class Bytes(Base):
    def begin(self):
        self.counts, self.rates = bytearray(2), array.array("d", [1.0])

    def forward(self, x):
        self.counts[0] += 1
        self.rates[0] *= 0.5
        return self.layer(x) * (self.counts[0] + self.rates[0])


class CountsInContext(Base):
    def forward(self, x):
        COUNT.set(COUNT.get() + 1)
        return self.layer(x) * COUNT.get()


class CountsInThread(Base):
    def forward(self, x):
        OWN.count += 1
        return self.layer(x) * OWN.count


class OfMethod(Base):
    @functools.cache  # noqa: B019 as it is written in the wild
    def table(self, size):
        return torch.arange(size)[:, None]

    def forward(self, x):
        return self.layer(x) + self.table(x.shape[0])


class Single:
    own = None

    def __new__(cls):
        if cls.own is None:
            cls.own = super().__new__(cls)
            cls.own.calls = 0
        return cls.own


class CountsInSingle(Base):
    def forward(self, x):
        single = Single()
        single.calls += 1
        return self.layer(x) * single.calls


def begin_anew():
    COUNT.set(0)
    OWN.count = 0
    Single.own = None


@pytest.mark.parametrize("kind", [Sizes, Ordered, Plain, Moved, Bytes, CountsInContext, CountsInThread, OfMethod])
def test_a_call_finds_what_the_call_before_has_left(kind):
    module = kind()
    twin = compare(module, reset=begin_anew)
    for name in ("seen", "scales", "counts", "rates"):
        left = getattr(module, name, None)
        assert left == getattr(twin, name, None)
        assert not isinstance(left, dict) or list(left) == list(getattr(twin, name))


def test_an_object_of_which_there_is_one_alone_is_refused_where_forward_makes_it():
    begin_anew()
    model = ORTModule(CountsInSingle())
    model(torch.randn(2, 4))
    with pytest.raises(OntrainError, match="an object that the call before has left in the attribute 'own'"):
        model(torch.randn(2, 4))


class Mean(Base):
    def begin(self):
        self.sum, self.count = 0.0, 0

    def forward(self, x):
        y = self.layer(x)
        self.sum, self.count = self.sum + y.detach().sum().item(), self.count + y.numel()
        return y - self.sum / self.count


def test_a_running_mean_in_plain_numbers_goes_on_from_call_to_call():
    module = Mean()
    twin = compare(module)
    assert module.count == twin.count
    assert module.sum == pytest.approx(twin.sum, abs=1e-5)


class Holds(Base):
    def begin(self):
        self.lock, self.file, self.calls = threading.Lock(), torch, 0

    def forward(self, x):
        with self.lock:
            self.calls = self.calls * 2 + 1
        return self.layer(x) * self.calls


def test_a_module_that_holds_a_lock_and_a_file_finds_what_the_call_before_has_left():
    module, twin = Holds(), Holds()
    twin.load_state_dict(module.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for ours, eager in zip(outputs(ORTModule(module)), outputs(twin), strict=True):
            torch.testing.assert_close(ours, eager)


class Weak(Base):
    def begin(self):
        self.calls = weakref.WeakKeyDictionary()

    def forward(self, x):
        self.calls[self.layer] = self.calls.get(self.layer, 0) + 1
        return self.layer(x) * self.calls[self.layer]


def test_a_weak_dictionary_that_forward_writes_to_is_refused():
    with pytest.raises(CaptureError, match="WeakKeyDictionary 'calls'"):
        ORTModule(Weak())(torch.randn(2, 4))


class Frozen(Base):
    def begin(self):
        self.norm, self.calls = nn.BatchNorm1d(4), 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 2:
            self.norm.eval()
        return self.norm(self.layer(x))


def test_a_part_that_forward_has_put_in_evaluation_stays_there():
    module = Frozen()
    twin = compare(module)
    assert not module.norm.training
    torch.testing.assert_close(module.norm.running_mean, twin.norm.running_mean)


class Registers(Base):
    def forward(self, x):
        if not hasattr(self, "mean"):
            self.register_buffer("mean", x.detach().mean(0), persistent=False)
        return self.layer(x - self.mean)


def test_a_buffer_that_the_first_call_registers_is_that_of_later_calls():
    module = Registers()
    twin = compare(module)
    torch.testing.assert_close(module.mean, twin.mean)
    assert module.state_dict().keys() == twin.state_dict().keys()


class History(Base):
    def begin(self):
        for name in ("first", "second", "third"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x):
        y = self.layer(x)
        result = y + self.third + 2 * self.first
        self.third.copy_(self.second)
        self.second, self.first = self.first, y.detach().mean(0)
        return result


class Swaps(Base):
    def begin(self):
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.ones(4))

    def forward(self, x):
        self.a, self.b = self.b, self.a
        return self.layer(x) + self.a


@pytest.mark.parametrize("kind", [History, Swaps])
def test_a_buffer_becomes_what_another_one_was_before_the_call(kind):
    module = kind()
    twin = compare(module)
    for ours, eager in zip(module.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, eager)


class Shown(Base):
    def begin(self):
        self.register_buffer("all", torch.zeros(2, 4))
        self.row = self.all[0]

    def forward(self, x):
        self.all += 1
        return self.layer(x) + self.row


def test_a_view_of_a_buffer_that_forward_writes_to_is_refused():
    with pytest.raises(CaptureError, match="writes to buffer 'all', and reads a tensor that shares its memory"):
        ORTModule(Shown())(torch.randn(2, 4))


class Follows(Base):
    def forward(self, x):
        x.requires_grad_()
        return self.layer(x) ** 2


@pytest.mark.parametrize("first", [False, True])
def test_a_gradient_that_forward_requires_of_an_argument_reaches_it(first):
    module = Follows()
    model = ORTModule(module)
    for follows in (first, not first):
        ours = torch.randn(3, 4).requires_grad_(follows)
        eager = ours.detach().clone()
        model(ours).sum().backward()
        module(eager).sum().backward()
        assert ours.requires_grad
        torch.testing.assert_close(ours.grad, eager.grad)


class AsksForParameters(Base):
    def forward(self, x):
        return self.layer(x) * (2 if isinstance(x, nn.Parameter) else 1)


def test_forward_finds_that_an_argument_is_a_parameter():
    module = AsksForParameters()
    model = ORTModule(module)
    x = torch.randn(3, 4)
    for argument in (nn.Parameter(x), x, nn.Parameter(x)):
        torch.testing.assert_close(model(argument), module(argument))


class Text(Base):
    def forward(self, x):
        y = self.layer(x)
        return y * (2 if str(y.mean()).startswith("tensor(-") else 1)


class Formatted(Base):
    def forward(self, x):
        y = self.layer(x)
        return y * (2 if f"{y.mean()}".startswith("-") else 1)


@pytest.mark.parametrize("kind", [Text, Formatted])
def test_a_text_of_a_tensor_that_forward_computes_with_is_refused(kind):
    with pytest.raises(CaptureError, match="a text of the numbers in a tensor") as refusal:
        ORTModule(kind())(torch.randn(2, 4))
    assert "y.mean()" in str(refusal.value)


class Messages(Base):
    def forward(self, x):
        y = self.layer(x)
        print("mean", y.mean(), f"of {y}")
        LOGGER.debug("mean %s", y.mean())
        assert y.ndim == 2, f"{y}"
        return y


def test_texts_of_tensors_may_be_messages():
    compare(Messages())


class Takes(Base):
    def forward(self, batch):
        return self.layer(batch.pop("x"))


def test_a_change_of_a_dictionary_among_the_arguments_is_warned_of():
    module = Takes()
    x = torch.randn(2, 4)
    with pytest.warns(UserWarning, match="dictionary or list that it gets in 'batch'"):
        got = ORTModule(module)({"x": x})
    torch.testing.assert_close(got, module({"x": x}))


def test_arguments_by_name_are_nobodys_dictionary():
    class Named(Base):
        def forward(self, **named):
            return self.layer(named.pop("x"))

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*that it gets in.*")
        ORTModule(Named())(x=torch.randn(2, 4))
