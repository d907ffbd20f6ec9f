"""Whatever is put in the place of a value outside of the module, the next call computes what eager PyTorch computes."""

from __future__ import annotations

import copy
import enum
import functools
import importlib
import sys
import types

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)


class Shift(enum.Enum):
    UP, DOWN = 1.0, -1.0


FACTORS = [2.0, 3.0]
OPTIONS = {"inner": {"power": 1}}


class Settings:
    scale = 2.0


def classes():
    """Return classes of their own for one test, which changes them: a metaclass, a base, another base, the module's."""

    class Meta(type):
        offset = 1.0

    class Base(nn.Module, metaclass=Meta):
        gain = 2.0

        def sign(self, y):
            return y

    class OtherBase(nn.Module, metaclass=Meta):
        gain = 2.0

        def sign(self, y):
            return -y

    class Scaled(Base):
        settings, shift, pair, kind = Settings, Shift.UP, (1.0, 2.0), torch.float32
        table, names, levels = {"by": 1.0}, ["plus"], [([2.0],)]
        constant = torch.full((3,), 2.0)
        apart = functools.partial(torch.mul, other=2.0)

        def __init__(self):
            super().__init__()
            self.linear, self.helper = nn.Linear(3, 3), types.SimpleNamespace(inner=types.SimpleNamespace(scale=2.0))
            self.times = functools.partial(torch.mul, other=2.0)

        def power(self, y, exponent):
            return y * exponent

        doubled = functools.partialmethod(power, exponent=2.0)

        def forward(self, x):
            y = self.sign(self.linear(x)) * self.gain + type(self).offset + self.shift.value
            y = self.doubled(self.times(y)) * self.pair[1] * self.settings.scale * self.helper.inner.scale
            y = type(self).apart(y).to(self.kind) * self.constant + self.table["by"] * FACTORS[0] * self.levels[0][0][0]
            return y ** OPTIONS["inner"]["power"] if "plus" in self.names else -y

    return Meta, Base, OtherBase, Scaled


@pytest.fixture
def scaled():
    meta, base, other_base, kind = classes()
    yield types.SimpleNamespace(
        meta=meta,
        base=base,
        other_base=other_base,
        kind=kind,
        module=kind(),
        subclass=meta("Sub", (kind,), {"gain": 7.0}),
    )
    FACTORS[0] = 2.0


CHANGES = {
    "a name that hides the base's": lambda s: setattr(s.kind, "gain", 5.0),
    "the metaclass's": lambda s: setattr(s.meta, "offset", 5.0),
    "a name that hides the metaclass's": lambda s: setattr(s.kind, "offset", 5.0),
    "other bases": lambda s: setattr(s.kind, "__bases__", (s.other_base,)),
    "another class of the module": lambda s: setattr(s.module, "__class__", s.subclass),
    "a member of an enumeration": lambda s: setattr(s.kind, "shift", Shift.DOWN),
    "a tuple": lambda s: setattr(s.kind, "pair", (1.0, 5.0)),
    "a dtype": lambda s: setattr(s.kind, "kind", torch.float16),
    "a tensor": lambda s: setattr(s.kind, "constant", torch.full((3,), 5.0)),
    "values of a tensor": lambda s: s.kind.constant.mul_(2),
    "a list": lambda s: s.kind.names.clear(),
    "a list in a tuple": lambda s: s.kind.levels[0][0].__setitem__(0, 5.0),
    "a dict": lambda s: s.kind.table.update(by=5.0),
    "a partial": lambda s: setattr(s.kind, "apart", functools.partial(torch.mul, other=5.0)),
    "a partial method": lambda s: setattr(s.kind, "doubled", functools.partialmethod(s.kind.power, exponent=5.0)),
    "a partial of the module": lambda s: s.module.times.keywords.update(other=5.0),
    "a helper's helper": lambda s: setattr(s.module.helper.inner, "scale", 5.0),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_class_holds_is_followed(change, scaled):
    model, x = ORTModule(scaled.module), torch.randn(2, 3)
    before = model(x)
    torch.testing.assert_close(before, scaled.module(x))
    change(scaled)
    expected = scaled.module(x)
    assert expected.dtype != before.dtype or not torch.allclose(expected, before)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: FACTORS.__setitem__(0, 9.0),
        lambda patch: patch.setitem(OPTIONS["inner"], "power", 2),
        lambda patch: patch.setattr(Settings, "scale", 9.0),
    ],
    ids=["list", "dict", "class"],
)
def test_what_forward_names_in_its_file_is_followed(change, scaled, monkeypatch):
    model, x = ORTModule(scaled.module), torch.randn(2, 3)
    before = model(x)
    change(monkeypatch)
    expected = scaled.module(x)
    assert not torch.allclose(expected, before)
    torch.testing.assert_close(model(x), expected)


def test_a_record_that_another_method_keeps_makes_no_new_capture(scaled, monkeypatch):
    monkeypatch.setitem(globals(), "RECORD", [])
    scaled.kind.note = lambda self, loss: globals()["RECORD"].append(loss) or RECORD  # noqa: F821
    model, x = ORTModule(scaled.module), torch.randn(2, 3)
    model(x)
    watch = model._engine._cache.watch
    scaled.module.note(1.0)
    assert not watch.changed()


def test_a_trainer_of_an_installed_package_makes_no_new_capture(scaled, tmp_path, monkeypatch):
    (tmp_path / "trainers_of_others-1.0.dist-info").mkdir()
    (tmp_path / "trainers_of_others-1.0.dist-info" / "RECORD").write_text("trainers_of_others.py,,\n")
    (tmp_path / "trainers_of_others.py").write_text("class Trainer:\n    def __init__(self):\n        self.scale = 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trainers_of_others", raising=False)
    scaled.module.trainer = importlib.import_module("trainers_of_others").Trainer()
    model, x = ORTModule(scaled.module), torch.randn(2, 3)
    model(x)
    watch = model._engine._cache.watch
    scaled.module.trainer.scale = 1
    assert not watch.changed()


def test_a_copy_of_the_module_makes_no_new_capture(scaled):
    model, x = ORTModule(scaled.module), torch.randn(2, 3)
    model(x)
    watch = model._engine._cache.watch
    copy.deepcopy(scaled.module)
    assert not watch.changed()


CIRCLE = {"factor": 2.0, "items": [1.0]}
CIRCLE["items"].append(CIRCLE)


class Circling(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x) * CIRCLE["factor"] + CIRCLE["items"][0]


@pytest.mark.parametrize(("table", "place"), [(CIRCLE, "factor"), (CIRCLE["items"], 0)], ids=["dict", "list"])
def test_containers_that_hold_themselves_are_followed_once(table, place):
    module, x = Circling(), torch.randn(2, 3)
    model = ORTModule(module)
    for _ in range(2):
        torch.testing.assert_close(model(x), module(x))
    assert model._engine.captures == 1
    before, table[place] = table[place], 5.0
    torch.testing.assert_close(model(x), module(x))
    table[place] = before


def reloadable():
    """Return a module of a class of its own, and the function that its forward calls."""

    def bent(x, by=2.0, *, plus=0.0):
        return torch.tanh(x) * by + plus

    class Reloadable(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return bent(self.linear(x))

    return Reloadable(), bent


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("__code__", (lambda x, by=2.0, *, plus=0.0: torch.sin(x) * by + plus).__code__),
        ("__defaults__", (3.0,)),
        ("__kwdefaults__", {"plus": 1.0}),
    ],
)
def test_a_function_that_autoreload_gave_other_code_is_followed(part, value):
    """IPython's `%autoreload 2` puts what a file now says into the functions that are there."""
    eager, bent = reloadable()
    ours, x = ORTModule(eager), torch.randn(2, 3)
    for _ in range(2):
        torch.testing.assert_close(ours(x), eager(x))
    setattr(bent, part, value)
    torch.testing.assert_close(ours(x), eager(x))
    assert ours._engine.captures == 2


def test_a_forward_that_autoreload_gave_other_code_is_followed():
    eager, _ = reloadable()
    ours, x = ORTModule(eager), torch.randn(2, 3)
    ours(x)
    source = "def forward(self, x):\n    return self.linear(x) * 7\n"
    space: dict[str, types.FunctionType] = {}
    exec(source, space)
    type(eager).forward = space["forward"]
    torch.testing.assert_close(ours(x), eager(x))
    space["forward"].__code__ = compile(source.replace("7", "9"), "edited", "exec").co_consts[0]
    torch.testing.assert_close(ours(x), eager(x))
