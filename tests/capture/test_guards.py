"""The sizes that a captured graph holds for, at their very bounds."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy import functions as of_torch

from ontrain.capture.guards import Guards
from ontrain.capture.sympy_sizes import size_of

B, S = sympy.symbols("b s", integer=True, positive=True)


def guards(conditions=(), ranges=(("b", 2, 8),)) -> Guards:
    dims = [("x", 0, B), ("x", 1, S), ("y", 0, B), ("y", 1, sympy.Integer(3)), ("z", 0, 2 * S + 1)]
    return Guards(
        [(name, axis, size_of(size)) for name, axis, size in dims],
        [size_of(condition) for condition in conditions],
        list(ranges),
    )


def shapes(b=4, s=5, **changed):
    return {"x": (b, s), "y": (b, 3), "z": (2 * s + 1,), **changed}


@pytest.mark.parametrize(
    "form", [lambda original: original, lambda original: Guards.from_plain(original.plain())], ids=["made", "read"]
)
@pytest.mark.parametrize(
    ("sizes", "violated"),
    [
        ({}, None),
        ({"b": 8}, None),
        ({"b": 9}, "2 <= x.shape[0] <= 8"),
        ({"b": 2}, None),
        ({"b": 1}, "2 <= x.shape[0] <= 8"),
        ({"y": (5, 3)}, "y.shape[0] == x.shape[0]"),
        ({"y": (4, 2)}, "y.shape[1] == 3"),
        ({"z": (10,)}, "z.shape[0] == "),
    ],
)
def test_a_size_on_either_side_of_a_bound(form, sizes, violated):
    said = form(guards()).violated(shapes(**sizes))
    assert said is None if violated is None else said is not None and said.startswith(violated)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [(S <= 5, (5, 6)), (S < 5, (4, 5)), (S >= 5, (5, 4)), (S > 5, (6, 5)), (sympy.Eq(S % 4, 0), (8, 9)),
     (sympy.Ne(S, 5), (4, 5)), (B + S <= 9, (5, 6))],
)  # fmt: skip
def test_a_condition_holds_up_to_its_bound_and_not_beyond(condition, holds):
    fulfils, violates = holds
    assert guards([condition]).violated(shapes(s=fulfils)) is None
    assert guards([condition]).violated(shapes(s=violates)) is not None


@pytest.mark.parametrize(
    "form", [lambda original: original, lambda original: Guards.from_plain(original.plain())], ids=["made", "read"]
)
def test_a_float_that_torch_took_for_a_constant_holds_where_it_was_seen(form):
    seen = form(guards([sympy.Eq(of_torch.IntTrueDiv(2 * S - 4, 3), sympy.Float((2 * 192 - 4) / 3))]))
    assert seen.violated(shapes(s=192)) is None
    assert seen.violated(shapes(s=193)) is not None


def test_one_may_be_allowed_where_torch_only_assumed_two():
    assert guards().violated(shapes(b=1), ones=False) is None
    assert guards(ranges=[("b", 3, None)]).violated(shapes(b=2), ones=False) is not None
    assert guards(ranges=[("b", 3, None)]).violated(shapes(b=10**6), ones=False) is None


@pytest.mark.parametrize(
    "form", [lambda original: original, lambda original: Guards.from_plain(original.plain())], ids=["made", "read"]
)
def test_what_torch_assumed_of_a_size_that_follows_holds_where_ones_count(form):
    dims = [("x", 0, size_of(S))]
    unasked = [(size_of(condition), size_of(S - 1)) for condition in (sympy.Ne(S - 1, 1), S - 1 >= 2)]
    assumed = form(Guards(dims, [], [("s", 3, None)], unasked))
    assert [assumed.violated({"x": (size,)}) is None for size in (1, 2, 3)] == [False, False, True]
    assert [assumed.violated({"x": (size,)}, ones=False) is None for size in (0, 1, 2)] == [False, True, True]
    real = form(Guards(dims, [size_of(S > 2)], [("s", 3, None)], unasked))
    assert [real.violated({"x": (size,)}, ones=False) is None for size in (1, 2, 3)] == [False, False, True]
