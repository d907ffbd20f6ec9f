"""Threads that share ORTModules: first calls, captures while others train, and backwards at once."""

import sys
import threading

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


@pytest.fixture(autouse=True)
def _switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(*works):
    """Run functions in a thread each; raise the first error."""
    errors = []

    def guarded(work):
        try:
            work()
        except Exception as error:  # noqa: BLE001 (raised again below)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_first_calls_and_backwards_at_once():
    ours, eager = pair(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)).double())
    inputs = [torch.randn(3 + i % 2, 32, dtype=torch.float64) for i in range(6)]
    want = [torch.autograd.grad(eager(x).square().sum(), list(eager.parameters())) for x in inputs]

    def work(x, expected):
        for _ in range(40):
            found = torch.autograd.grad(ours(x).square().sum(), list(ours.parameters()))
            torch.testing.assert_close(found, expected, **DOUBLE)

    at_once(*(lambda x=x, w=w: work(x, w) for x, w in zip(inputs, want, strict=True)))
    assert ours._engine.captures == 1


def test_one_module_is_captured_while_others_train():
    x = torch.randn(2, 4, dtype=torch.float64)
    trained = ORTModule(nn.Linear(4, 4).double())
    trained(x)
    plain = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    fresh = [pair(nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth))).double()) for depth in (2, 3)]
    captured = threading.Event()

    def training():
        while not captured.is_set():
            torch.autograd.grad(trained(x).square().sum(), list(trained.parameters()))
            torch.autograd.grad((x @ plain).sum(), plain)

    def capturing():
        try:
            at_once(*(lambda ours=ours: ours(x).sum().backward() for ours, _ in fresh))
        finally:
            captured.set()

    at_once(training, capturing)
    for ours, eager in fresh:
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
