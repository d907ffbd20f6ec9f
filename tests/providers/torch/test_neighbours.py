"""Beside other work threads sleep while they wait for one another, and every result stays what it was."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from torch import nn

from ontrain import OptionError
from ontrain.providers import get_provider
from ontrain.providers.torch.neighbours import Neighbours, neighbours
from ontrain.training.ortmodule import ORTModule

on_linux = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system counts no waits")


@pytest.fixture
def asked(monkeypatch):
    """A `Neighbours` whose looks are due at once, and what it sees: seconds run and waited, by thread."""
    ours, seen = Neighbours(), {}
    monkeypatch.setattr("ontrain.providers.torch.neighbours._LOOK", 0.0)
    monkeypatch.setattr("ontrain.providers.torch.neighbours._tasks", lambda: list(seen))
    monkeypatch.setattr("ontrain.providers.torch.neighbours._waited", lambda task: tuple(seen[task]))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.delenv("ONTRAIN_YIELD", raising=False)
    main = str(threading.get_native_id())
    seen[main], seen["0"] = [0.0, 0.0], [0.0, 0.0]

    def look(ran, late):
        seen[main][0] += ran
        seen[main][1] += late
        ours.look()
        return ours.sleeping

    look(1.0, 0.0)
    yield look
    ours._spin()


def test_threads_sleep_while_they_wait_for_cores_and_spin_again_when_it_is_calm(asked):
    assert not asked(1.0, 0.05)
    assert asked(1.0, 1.5)
    assert [asked(1.0, 0.0) for _ in range(6)] == [True] * 4 + [False] * 2


def test_a_neighbour_that_wants_a_core_half_of_the_time_leaves_threads_spinning(asked):
    assert not any(asked(1.0, late) for late in (0.1, 0.3, 0.5, 0.7, 0.9) * 3)
    assert asked(1.0, 1.5)
    assert [asked(1.0, 0.7) for _ in range(6)] == [True] * 4 + [False] * 2


def test_what_the_process_did_not_want_to_run_says_nothing(asked):
    assert not asked(0.001, 0.01)


def test_threads_that_still_wait_now_and_then_stay_asleep(asked):
    asked(1.0, 1.5)
    assert all(asked(1.0, late) for late in (0, 0, 0, 0, 1.0, 0, 0, 0, 0))


def test_it_can_be_declined(asked, monkeypatch):
    monkeypatch.setenv("ONTRAIN_YIELD", "0")
    assert not asked(1.0, 0.9)
    monkeypatch.setenv("ONTRAIN_YIELD", "maybe")
    with pytest.raises(OptionError, match="ONTRAIN_YIELD"):
        get_provider("TorchExecutionProvider")


def test_results_are_the_same_to_the_bit():
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(200, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 200)),
        torch.randn(400, 200),
    )
    wrapped, results = ORTModule(model), []
    for asleep in (False, True, False):
        if asleep:
            neighbours._sleep([str(threading.get_native_id())])
        model.zero_grad(set_to_none=True)
        loss = wrapped(x).square().mean()
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        if asleep:
            neighbours._spin()
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@on_linux
def test_a_busy_machine_is_noticed_and_a_child_begins_anew():
    """More threads want to run than the process has cores."""
    text = """
        import os, subprocess, sys, time
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        import torch
        from ontrain.providers.torch.neighbours import neighbours
        torch.set_num_threads(2)
        x = torch.ones(300, 300)
        end = time.monotonic() + 60
        while not neighbours.sleeping and time.monotonic() < end:
            x @ x
            neighbours.look()
        other.kill()
        print(neighbours.sleeping)
        child = os.fork()
        if child == 0:
            os._exit(int(neighbours.sleeping))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.split() == ["True", "0"]


@pytest.mark.parametrize(
    "program", ["neighbours._sleep([])", "neighbours._sleep([]); neighbours._spin(); neighbours._sleep([])"]
)
def test_a_process_ends_in_peace_while_threads_begin_to_sleep(program):
    lines = ["from ontrain.providers.torch.neighbours import neighbours", program]
    runs = [subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True) for _ in range(2)]
    assert [(run.returncode, run.stderr) for run in runs] == [(0, b"")] * 2
