"""Random numbers of Python and numpy in a forward: refused by line, for a graph would keep those of its capture."""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import multiprocessing.synchronize
import random
import tempfile
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from ontrain.capture import capture
from ontrain.capture.generators import without_draws
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.capture import held

pytestmark = pytest.mark.sampled(4)

GENERATOR = np.random.default_rng(3)


class Slots:
    __slots__ = ("generator",)

    def __init__(self):
        self.generator = np.random.default_rng(4)


class Sampler:
    generator = random.Random(5)
    slots = Slots()


def factor_of(generator):
    return lambda _: generator.random()


def by_default(_, generator=random.Random(6)):  # noqa: B008
    return generator.random()


def imported_inside(_):
    from tests.capture.held import RANDOM

    return RANDOM.random()


def imported_relatively(_):
    from . import held  # noqa: TID252

    return held.RANDOM.random()


def named_by_a_text(_):
    return getattr(held, "RANDOM").random()  # noqa: B009


def numbers(generator):
    while True:
        yield generator.random()


SEQUENCE = numbers(random.Random(7))


class Drawing(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.linear, self.factor = nn.Linear(3, 3), factor
        self.own, self.held = random.Random(1), {"rng": np.random.RandomState(2)}

    def forward(self, x):
        return self.linear(x) * self.factor(self)


def choice():
    return random.choice([1.0, 2.0])  # the line that draws


DRAWS = {
    "python": lambda _: random.uniform(0, 1),
    "numpy": lambda _: np.random.rand(),
    "in a function": lambda _: choice(),
    "of the module": lambda module: module.own.random(),
    "held in a dict": lambda module: module.held["rng"].randint(1, 3),
    "of the file": lambda _: GENERATOR.random(),
    "of a class": lambda _: Sampler.generator.random(),
    "in a slot": lambda _: Sampler.slots.generator.random(),
    "in a closure": factor_of(random.Random(8)),
    "bound": functools.partial(by_default, generator=np.random.default_rng(9)),
    "by default": by_default,
    "of a sequence": lambda _: next(SEQUENCE),
    "of a module": lambda _: held.RANDOM.random(),
    "imported inside": imported_inside,
    "imported relatively": imported_relatively,
    "named by a text": named_by_a_text,
}
LINES = {
    "in a function": "random.choice([1.0, 2.0])  # the line that draws",
    "in a closure": "return lambda _: generator.random()",
    "bound": "return generator.random()",
    "by default": "return generator.random()",
    "of a sequence": "yield generator.random()",
    "imported inside": "return RANDOM.random()",
    "imported relatively": "return held.RANDOM.random()",
    "named by a text": 'return getattr(held, "RANDOM").random()',
}


def states(module):
    return [
        repr(state)
        for state in (random.getstate(), np.random.get_state(), module.own.getstate(), module.held["rng"].get_state(),
                    GENERATOR.bit_generator.state)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def _thawed():
    """GENERATOR was made before the tests' objects were frozen."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.parametrize("kind", ["python", "numpy", "in a function"])
def test_the_modules_own_generators_are_looked_at_where_all_is_frozen(kind):
    module = Drawing(DRAWS[kind])
    gc.freeze()
    with pytest.raises(CaptureError, match="draws random numbers"):
        capture(module, (torch.randn(2, 3),))


@pytest.mark.parametrize("kind", DRAWS)
def test_a_draw_in_forward_is_refused_by_line_and_leaves_the_generators(kind):
    module = Drawing(DRAWS[kind])
    before = states(module)
    with pytest.raises(CaptureError, match="draws random numbers") as refusal:
        capture(module, (torch.randn(2, 3),))
    assert LINES.get(kind, f'"{kind}": lambda') in refusal.value.source
    assert states(module) == before


def test_a_generator_in_an_argument_is_looked_at():
    class Choosing(nn.Module):
        def forward(self, x, generator):
            return x * generator.random()

    with pytest.raises(CaptureError):
        capture(Choosing(), (torch.randn(2, 3), random.Random(1)))


def test_a_generator_of_an_installed_package_is_looked_at_each_time(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "drawing_package.py").write_text(
        "import random\n_GENERATOR = random.Random(1)\ndef factor(_):\n    return _GENERATOR.random()\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    factor = importlib.import_module("drawing_package").factor
    for _ in range(2):
        with pytest.raises(CaptureError, match="draws random numbers") as refusal:
            capture(Drawing(factor), (torch.randn(2, 3),))
        assert "return _GENERATOR.random()" in refusal.value.source


def test_tuples_that_other_threads_make_meanwhile_are_made():
    """A list of all of the collector's objects has tuples in it that are being made, and so spoils them."""
    stop, errors, module = threading.Event(), [], Drawing(lambda _: 2.0)

    def build():
        try:
            while not stop.is_set():
                tuple(number for number in range(50))
        except SystemError as error:
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            without_draws(lambda run: run(lambda: module))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors


def draw_until(stop):
    while not stop.wait(0.001):
        random.random()


def test_another_threads_draws_are_no_concern_of_a_capture():
    stop = threading.Event()
    thread = threading.Thread(target=draw_until, args=(stop,))
    thread.start()
    try:
        capture(Drawing(lambda _: 2.0), (torch.randn(2, 3),))
    finally:
        stop.set()
        thread.join()


def test_a_decision_handed_in_is_captured_once_for_each_value():
    class Skipping(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, skip):
            return x * 2 if skip else self.linear(x)

    plain = Skipping()
    model, x = ORTModule(plain), torch.randn(2, 3)
    for _ in range(2):
        for skip in (True, False):
            torch.testing.assert_close(model(x, skip), plain(x, skip))
    assert model._engine.captures == 2


def test_a_refused_forward_runs_on_pytorch_with_the_numbers_it_would_have_had():
    plain = Drawing(DRAWS["python"])
    model, x = ORTModule(plain, fallback="FALLBACK_UNSUPPORTED_TORCH_MODEL"), torch.randn(2, 3)
    random.seed(5)
    expected = plain(x)
    random.seed(5)
    with pytest.warns(UserWarning, match="draws random numbers"):
        y = model(x)
    torch.testing.assert_close(y, expected)


class Counting(nn.Module):
    """Buffers that forward reads and writes, of all kinds."""

    def __init__(self, draw):
        super().__init__()
        self.old, self.new = spectral_norm(nn.Linear(4, 4)), parametrizations.spectral_norm(nn.Linear(4, 4))
        self.draw, self.norm = draw, nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        self.draw(self)
        self.calls += 1
        x = self.norm(self.new(self.old(x)))
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return (x * self.calls + self.average).square().mean()


@functools.cache
def draw_once(module):
    return random.random()


@pytest.mark.parametrize("drawing", ["once", "another thread"])
def test_buffers_are_written_once_a_step_though_forward_ran_again_to_find_a_draw(drawing):
    plain = Counting(draw_once if drawing == "once" else lambda _: None)
    module = copy.deepcopy(plain)
    model, stop = ORTModule(module), threading.Event()
    thread = threading.Thread(target=lambda: drawing == "once" or draw_until(stop))
    thread.start()
    try:
        for _ in range(3):
            x = torch.randn(5, 4)
            torch.testing.assert_close(model(x), plain(x))
            for (name, buffer), expected in zip(module.named_buffers(), plain.buffers(), strict=True):
                torch.testing.assert_close(buffer, expected, msg=lambda text, name=name: f"{name}: {text}")
    finally:
        stop.set()
        thread.join()


def test_what_torch_draws_while_it_traces_a_branch_is_no_draw_of_forward(monkeypatch):
    """Seen where it is dear: forward is not looked through line by line."""
    from ontrain.capture import generators

    class Branch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.linear(x).relu(), lambda x: self.linear(x) * 2, (x,))

    searched = []
    search = generators._draws
    monkeypatch.setattr(generators, "_draws", lambda *arguments: searched.append(arguments) or search(*arguments))
    module, x = Branch(), torch.randn(2, 4)
    torch.testing.assert_close(ORTModule(module)(x), module(x))
    assert not searched


def checked(forward):
    """A forward behind a check of its argument as beartype writes it: one item of a list, chosen at random."""
    code = """
def checked(self, xs):
    assert xs[getrandbits(32) % len(xs)] is not None
    return forward(self, xs)
"""
    scope = {"getrandbits": random.getrandbits, "forward": forward}
    exec(compile(code, f"<@beartype({__name__}.forward) at 0x7f00>", "exec"), scope)
    return scope["checked"]


class Checked(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.randn(3)), factor

    @checked
    def forward(self, xs):
        return sum(xs) * self.weight * self.factor()


def test_what_a_check_of_arguments_draws_is_no_draw_of_forward():
    ours = Checked(lambda: 2.0)
    eager = copy.deepcopy(ours)
    xs = [torch.randn(3), torch.randn(3)]
    before = random.getstate()
    result = ORTModule(ours)(xs)
    assert random.getstate() == before
    torch.testing.assert_close(result, eager(xs))


def test_a_draw_beside_that_of_a_check_is_refused_by_line():
    with pytest.raises(CaptureError, match="draws random numbers") as refusal:
        capture(Checked(lambda: 1 + random.random()), ([torch.randn(3)],))
    assert "1 + random.random()" in refusal.value.source


def test_names_of_locks_and_of_temporary_files_are_no_draws_of_forward():
    class Locking(nn.Module):
        def __init__(self):
            super().__init__()
            self.names = multiprocessing.synchronize.SemLock._rand, tempfile._get_candidate_names()
            self.last = nn.Linear(3, 2)

        def forward(self, x):
            multiprocessing.RLock()
            with tempfile.NamedTemporaryFile():
                return self.last(x)

    model = Locking()
    x = torch.randn(4, 3)
    torch.testing.assert_close(ORTModule(model)(x), model(x))
