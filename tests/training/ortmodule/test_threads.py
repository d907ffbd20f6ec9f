"""Threads that share ORTModules: first calls, captures while others train, and backwards at once."""

import os
import random
import signal
import threading
import traceback

import pytest
import torch
from torch import nn

from ontrain.passes import Pass, register_pass, unregister_pass
from ontrain.training.ortmodule import ORTModule
from tests.passes.rows.encoders import BATCH, LENGTH, VOCABULARY, Tagger
from tests.threads import at_once
from tests.training.ortmodule.networks import Block, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


pytestmark = pytest.mark.usefixtures("switching_often")


def test_first_calls_and_backwards_at_once():
    ours, eager = pair(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)).double())
    inputs = [torch.randn(3 + i % 2, 32, dtype=torch.float64) for i in range(6)]
    want = [torch.autograd.grad(eager(x).square().sum(), list(eager.parameters())) for x in inputs]

    def work(x, expected):
        for _ in range(40):
            gradients = torch.autograd.grad(ours(x).square().sum(), list(ours.parameters()))
            torch.testing.assert_close(gradients, expected, **DOUBLE)

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


def test_two_modules_are_planned_at_once(seed):
    widths = (8, 12)
    pairs = [pair(nn.Sequential(Block(width), nn.Linear(width, 3), nn.Softplus()).double()) for width in widths]

    def work(ours, eager, width):
        sizes = random.Random(seed + width)
        for _ in range(8):
            x = torch.randn(sizes.randint(2, 5), sizes.randint(2, 5), width, dtype=torch.float64)
            gradients = torch.autograd.grad(ours(x).square().sum(), list(ours.parameters()))
            expected = torch.autograd.grad(eager(x).square().sum(), list(eager.parameters()))
            torch.testing.assert_close(gradients, expected, **DOUBLE)

    at_once(*(lambda p=p, w=w: work(*p, w) for p, w in zip(pairs, widths, strict=True)))
    assert [ours._engine.captures for ours, _ in pairs] == [1] * len(pairs)


def test_threads_that_want_one_plan_share_it():
    ours, eager = pair(nn.Linear(4, 4).double())
    ours(torch.randn(2, 4, dtype=torch.float64))
    x = torch.randn(7, 4, dtype=torch.float64)
    start = threading.Barrier(4)

    def work():
        start.wait()
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)

    at_once(*[work] * 4)
    (entry,) = ours._engine.entries
    assert len(entry.session.plans) == 2


@pytest.mark.usefixtures("rows_counted")
def test_threads_whose_batches_have_other_labels_plan_at_once(seed):
    """How many rows of one batch reach the loss is not seen by the planning for another."""
    pairs = [pair(Tagger().double()) for _ in range(3)]

    def work(ours, eager, number):
        generator = torch.Generator().manual_seed(seed + number)
        for labelled in (2, 5, 9, 14):
            ids = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
            labels = torch.where(torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) < labelled + number, ids, -100)
            mask = torch.ones_like(ids)
            gradients = torch.autograd.grad(ours(ids, mask, labels), list(ours.parameters()))
            expected = torch.autograd.grad(eager(ids, mask, labels), list(eager.parameters()))
            torch.testing.assert_close(gradients, expected, **DOUBLE)

    at_once(*(lambda p=p, i=i: work(*p, i) for i, p in enumerate(pairs)))
    for ours, _ in pairs:
        (entry,) = ours._engine.entries
        assert len(entry.session.plans) == 4


def test_evaluation_in_many_threads_is_eagers(seed):
    ours, eager = pair(nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 5)).double())
    ours.eval(), eager.eval()
    inputs = [torch.randn(1 + i, 6, dtype=torch.float64) for i in range(9)]

    def work(number):
        order = random.Random(seed + number)
        with torch.no_grad():
            for _ in range(60):
                x = order.choice(inputs)
                torch.testing.assert_close(ours(x), eager(x), **DOUBLE)

    at_once(*(lambda number=number: work(number) for number in range(8)))


def test_each_call_repeats_its_own_masks_for_a_second_backward():
    """A second backward draws the masks of its forward again, whatever other threads drew in between."""
    module = ORTModule(nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 16)).double())
    x = torch.randn(4, 16, dtype=torch.float64)

    def work():
        for _ in range(30):
            loss = module(x).square().sum()
            first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
            torch.testing.assert_close(torch.autograd.grad(loss, list(module.parameters())), first, **DOUBLE)

    at_once(*[work] * 4)


class _Waits(Pass):
    """Holds a thread in the midst of planning."""

    def __init__(self):
        self.inside, self.go_on, self.held = threading.Event(), threading.Event(), None

    def apply(self, model):
        if threading.current_thread() is self.held:
            self.inside.set()
            assert self.go_on.wait(60)
        return model, 0


@pytest.fixture
def waits():
    graph_pass = _Waits()
    register_pass(graph_pass, stage="forward")
    yield graph_pass
    unregister_pass(graph_pass.name, stage="forward")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_plans_plans_itself(waits):
    ours, eager = pair(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double())
    ours(torch.randn(2, 4, dtype=torch.float64))
    x = torch.randn(3, 4, dtype=torch.float64)
    waits.held = threading.Thread(target=lambda: ours(x))
    waits.held.start()
    assert waits.inside.wait(60)
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(60)
            torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
            fresh, plain = pair(nn.Linear(4, 2).double())
            torch.testing.assert_close(fresh(x), plain(x), **DOUBLE)
            code = 0
        except BaseException:  # noqa: BLE001 (the child must not go on with the tests)
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    waits.go_on.set()
    waits.held.join()
    assert os.waitstatus_to_exitcode(status) == 0
