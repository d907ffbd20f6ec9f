"""An interrupt waits for the end of what it would tear apart, and comes then."""

from __future__ import annotations

import io
import logging
import signal
import threading

import pytest
import torch
from torch import nn

from ontrain.interrupts import interrupts_wait
from ontrain.training.ortmodule import ORTModule


@pytest.fixture(autouse=True)
def _interrupts(caplog):
    """As a shell's foreground jobs have it; those in the background are born deaf to it."""
    caplog.set_level(logging.CRITICAL, "ontrain.interrupts")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_comes_at_the_end():
    lines = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait("it is done"):
        signal.raise_signal(signal.SIGINT)
        lines.append("after")
    assert lines == ["after"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_comes_at_once():
    lines = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait("it is done"):
        signal.raise_signal(signal.SIGINT)
        lines.append("after one")
        signal.raise_signal(signal.SIGINT)
        lines.append("after two")
    assert lines == ["after one"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_whoever_waits_is_told_why(caplog):
    caplog.set_level(logging.WARNING, "ontrain.interrupts")
    with pytest.raises(KeyboardInterrupt), interrupts_wait("Net is captured"):
        signal.raise_signal(signal.SIGINT)
    assert "once Net is captured" in caplog.text


def test_a_handler_of_the_users_own_is_called():
    calls = []
    signal.signal(signal.SIGINT, lambda number, _: calls.append(number))
    with interrupts_wait("it is done"):
        signal.raise_signal(signal.SIGINT)
        assert not calls
    assert calls == [signal.SIGINT]


def test_a_handler_that_is_set_inside_stays():
    def own(*_):
        pass

    with interrupts_wait("it is done"):
        signal.signal(signal.SIGINT, own)
    assert signal.getsignal(signal.SIGINT) is own


def test_other_threads_set_no_handler():
    errors = []

    def work():
        try:
            with interrupts_wait("it is done"):
                pass
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors


class Interrupted(nn.Module):
    """Sends an interrupt in its first forward, and notes how often forward came to its end."""

    ends = io.StringIO()
    sent = io.StringIO()

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        y = self.linear(x)
        if not Interrupted.sent.getvalue():
            Interrupted.sent.write("sent")
            signal.raise_signal(signal.SIGINT)
        Interrupted.ends.write("end")
        return y


def test_a_trace_is_not_torn_apart():
    Interrupted.ends, Interrupted.sent = io.StringIO(), io.StringIO()
    eager = Interrupted()
    model, x = ORTModule(eager), torch.randn(2, 4)
    generator = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        model(x)
    assert Interrupted.ends.getvalue(), "the interrupt went through the trace"
    torch.testing.assert_close(torch.get_rng_state(), generator)
    torch.testing.assert_close(model(x), eager(x))
