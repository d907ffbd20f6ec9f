"""Graphs bound to sizes are those that are made at these sizes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model, specialise
from ontrain.graph.family import Family
from ontrain.graph.sheet import read

SIZES = [(4, 11), (4, 17), (4, 13), (4, 23), (6, 11), (6, 19), (9, 13), (9, 23), (5, 18), (8, 21)]


def _model() -> ir.Model:
    """Positions, a causal mask, a mean over tokens, and rows of a flattened batch, from x [batch, length, 3]."""
    x = ir.Value(name="x", shape=ir.Shape(["batch", "length", 3]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "sizes")
    op = Builder(model.graph)
    shape = op.Shape(x)
    batch, length = op.Squeeze(op.Slice(shape, [0], [1])), op.Squeeze(op.Slice(shape, [1], [2]))
    positions = op.Range(np.int64(0), length, np.int64(1))
    causal = op.GreaterOrEqual(op.Unsqueeze(positions, [1]), op.Unsqueeze(positions, [0]))
    masked = op.Where(causal, op.const(np.float32(0)), op.const(np.float32(-1e9)))
    scores = op.Add(op.MatMul(x, op.Transpose(x, perm=[0, 2, 1])), masked)
    flat = op.Reshape(op.MatMul(scores, x), op.Concat(op.Unsqueeze(op.Mul(batch, length), [0]), [3], axis=0))
    first = op.Mul(op.Range(np.int64(0), batch, np.int64(1)), length)
    mean = op.Div(op.ReduceSum(flat), op.Cast(op.Mul(batch, length), to=ir.DataType.FLOAT))
    inverse = op.Mul(mean, op.Reciprocal(op.Cast(length, to=ir.DataType.FLOAT)))
    model.graph.outputs.extend([op.Gather(flat, first), op.Add(inverse, op.Cast(op.ReduceMax(first), to=1))])
    return model


def _at(model: ir.Model, sizes: tuple[int, ...]) -> ir.Model:
    return specialise(model, {"x": (*sizes, 3)})


def _same(a: ir.Model, b: ir.Model) -> bool:
    first, other = read(a), read(b)
    pairs = zip(first.constants, other.constants, strict=True)
    return (first.structure, first.numbers) == (other.structure, other.numbers) and all(
        x.dtype == y.dtype and np.array_equal(x.numpy(), y.numpy()) for x, y in pairs
    )


def test_a_bound_graph_is_the_one_made_at_its_sizes() -> None:
    model, family = _model(), Family()
    for sizes in SIZES:
        family.learn(sizes, _at(model, sizes), beside=(sizes[0] * sizes[1], 7))
    bound = 0
    for sizes in itertools.product(range(4, 10), range(11, 24)):
        got = family.bind(sizes)
        if got is not None:
            bound += 1
            assert _same(got.model, _at(model, sizes)), sizes
            assert got.beside == (sizes[0] * sizes[1], 7)
    differences = [length - batch for batch, length in SIZES]
    between = [min(differences) <= n - b <= max(differences) for b in range(4, 10) for n in range(11, 24)]
    assert bound == sum(between)


def test_what_was_learned_stays_as_it_was() -> None:
    model, family = _model(), Family()
    graphs = {sizes: _at(model, sizes) for sizes in SIZES}
    for sizes, graph in graphs.items():
        family.learn(sizes, graph)
    before = {sizes: read(graph) for sizes, graph in graphs.items()}
    assert family.bind((7, 15)) is not None
    assert {sizes: read(graph) for sizes, graph in graphs.items()} == before


@pytest.mark.parametrize("sizes", [(3, 15), (10, 15), (5, 10), (5, 24)])
def test_nothing_is_said_of_sizes_beyond_those_seen(sizes: tuple[int, int]) -> None:
    model, family = _model(), Family()
    for seen in SIZES:
        family.learn(seen, _at(model, seen))
    assert family.bind(sizes) is None


def test_too_few_graphs_say_nothing() -> None:
    model, family = _model(), Family()
    for sizes in SIZES[:7]:  # a product of two sizes needs one more
        family.learn(sizes, _at(model, sizes))
        assert family.bind((5, 13)) is None


def test_sizes_that_were_always_equal_have_to_be() -> None:
    model, family = _model(), Family()
    for size in (4, 7, 8, 11, 13, 14, 17):
        family.learn((size, size), _at(model, (size, size)))
    assert family.bind((9, 9)) is not None
    assert family.bind((9, 10)) is None


def test_products_that_lie_on_a_plane_are_not_taken_for_sums() -> None:
    family = Family()
    for batch, length in [(2, 5), (5, 2), (3, 5), (5, 4)]:
        family.learn((batch, length), _by(0, batch * length))
    assert family.bind((4, 3)) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(40))
def test_a_rule_is_right_or_there_is_none(seed: int) -> None:
    """Numbers that are polynomials of the second degree, of the third, and none at all, at few and small sizes."""
    draw, rules = random.Random(seed), [
        lambda b, n: b * n, lambda b, n: b * n * n, min, lambda b, n: b * ((n + 1) // 2), lambda b, n: max(n, 13),
    ]  # fmt: skip
    highest = draw.choice([7, 10, 30])
    for rule in rules:
        family, seen = Family(), set[tuple[int, int]]()
        while len(seen) < draw.randrange(4, 20):
            seen.add((draw.randrange(2, highest), draw.randrange(2, highest)))
        for sizes in seen:
            family.learn(sizes, _by(0, rule(*sizes)))
        for sizes in itertools.product(range(2, highest), repeat=2):
            bound = family.bind(sizes)
            if bound is not None and rule(*sizes) > 1:
                assert read(bound.model).numbers == read(_by(0, rule(*sizes))).numbers, (sizes, sorted(seen))


def _by(number: int, size: int) -> ir.Model:
    """A graph whose structure or number is another for some sizes."""
    x = ir.Value(name="x", shape=ir.Shape([size]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "by")
    op = Builder(model.graph)
    model.graph.outputs.append(op.Mul(op.Exp(x) if number else op.Neg(x), op.const(np.float32(number or size))))
    return model


def test_numbers_that_are_rounded_are_told_by_sizes_that_leave_the_same_rest() -> None:
    def halved(width: int) -> int:
        return ((width + 1) // 2 + 1) // 2 * 3

    family, bound = Family(), set[int]()
    for width in range(20, 84, 3):
        family.learn((width,), _by(0, halved(width)))
    for width in range(20, 84):
        graph = family.bind((width,))
        if graph is not None:
            bound.add(width)
            assert read(graph.model).numbers == read(_by(0, halved(width))).numbers, width
    assert bound >= set(range(32, 72))


def test_graphs_of_which_one_alone_settles_a_term_tell_nothing() -> None:
    """Of odd lengths, 3 batches of one size, each in another number: they fit any polynomial in it."""
    family = Family()
    for batch, length in [*((3, n) for n in range(5, 29, 2)), (27, 25), (29, 7), (13, 23), (3, 6), (4, 8), (3, 10)]:
        family.learn((batch, length), _by(0, batch * length * length))
    assert all(family.bind((5, length)) is None for length in range(7, 25, 2))


def test_a_graph_of_another_structure_between_leaves_nothing_bound() -> None:
    family = Family()
    for size in (4, 7, 8, 12, 15, 16, 20):
        family.learn((size,), _by(0, size))
    assert family.bind((10,)) is not None
    family.learn((11,), _by(3, 11))
    assert family.bind((10,)) is None


@pytest.mark.parametrize("number", [lambda n: -(-n // 8) * 8, lambda n: min(n, 13), lambda n: 1 << n.bit_length()])
def test_numbers_that_are_no_polynomials_are_not_bound(number: object) -> None:
    family = Family()
    for size in (4, 7, 9, 11, 13, 14, 17, 19, 22):
        family.learn((size,), _by(number(size), size))  # type: ignore[operator]
    assert family.bind((12,)) is None


def test_a_shape_that_depends_on_data_is_not_learned() -> None:
    x = ir.Value(name="x", shape=ir.Shape([5]), type=ir.TensorType(ir.DataType.FLOAT))
    model = new_model([x], "data")
    model.graph.outputs.append(Builder(model.graph).NonZero(x))
    family = Family()
    for size in (5, 6, 7, 8):
        family.learn((size,), model)
    assert family.bind((6,)) is None
