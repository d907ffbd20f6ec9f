"""Dropout's random stream: how often it drops, that its expectation is kept, and that a seed repeats it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ontrain.autodiff import differentiate
from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from tests.providers.graphs import float_input, run

SIZE = 400_000


@pytest.fixture(params=["TorchExecutionProvider", "OnnxRuntimeExecutionProvider"])
def name(request) -> str:
    return request.param


def _dropout(ratio: float, with_gradient: bool = False, size: int = SIZE):
    x = float_input("x", (size,))
    model = new_model([x], "dropout")
    op = Builder(model.graph)
    y, _ = op.Dropout(x, ratio, True, outputs=2)
    outputs = [y]
    if with_gradient:
        (dx,) = differentiate(op, [(op.ReduceSum(y, keepdims=0), None)], [x])
        outputs.append(dx)
    model.graph.outputs.extend(outputs)
    return model


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.93])
def test_it_drops_as_often_as_asked_and_keeps_the_mean(ratio, name):
    (y,) = run(_dropout(ratio), {"x": torch.ones(SIZE)}, rng=(3, 4), name=name)
    deviation = np.sqrt(ratio * (1 - ratio) / SIZE)
    assert abs(float((y == 0).float().mean()) - ratio) < 5 * deviation + 2**-16
    assert abs(float(y.mean()) - 1) < 5 * deviation / (1 - ratio)


def test_no_position_is_favoured(name):
    (y,) = run(_dropout(0.5), {"x": torch.ones(SIZE)}, rng=(3, 4), name=name)
    # Several decisions come from one random number: each must be fair, and independent of the others.
    # The torch provider lays them side by side, the onnxruntime provider a quarter of the tensor apart.
    for mask in ((y != 0).view(-1, 4).double(), (y != 0).view(4, -1).double().T):
        assert torch.allclose(mask.mean(0), torch.full((4,), 0.5, dtype=torch.float64), atol=0.01)
        assert torch.allclose(torch.cov(mask.T), torch.eye(4, dtype=torch.float64) / 4, atol=0.01)


ROWS, COLUMNS = 512, 2048  # of decisions: what the torch provider spreads from two tables for a mask of 2²⁰


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_decisions_depend_on_no_others_around_them(ratio, name):
    size = ROWS * COLUMNS
    (y,) = run(_dropout(ratio, size=size), {"x": torch.ones(size)}, rng=(5, 6), name=name)
    dropped = (y == 0).double().view(ROWS, COLUMNS) - ratio
    variance = ratio * (1 - ratio)

    def deviations(products: torch.Tensor, factors: int) -> float:
        return abs(float(products.sum())) / (products.numel() * variance**factors) ** 0.5

    for down in (1, 2, 3, 64, 255):
        pairs = dropped[:-down] * dropped[down:]
        assert deviations(pairs, 2) < 5
        # Words made from a table of rows and one of columns have the corners of rectangles in common until mixed.
        for across in (1, 2, 3, 64, 1023):
            assert deviations(pairs[:, :-across] * pairs[:, across:], 4) < 5
            assert deviations(dropped[:, :-across] * dropped[:, across:], 2) < 5


def test_sums_of_rows_and_columns_spread_as_they_should(name):
    size = ROWS * COLUMNS
    (y,) = run(_dropout(0.5, size=size), {"x": torch.ones(size)}, rng=(9, 6), name=name)
    mask = (y != 0).double().view(ROWS, COLUMNS)
    for sums, count in ((mask.sum(0), ROWS), (mask.sum(1), COLUMNS)):
        chi_square = float(((sums - count / 2) ** 2).sum() / (count / 4))
        assert abs(chi_square - len(sums)) < 5 * (2 * len(sums)) ** 0.5


def test_a_mask_larger_than_a_block_is_fair_in_every_part(name):
    size = 2_300_001
    (y,) = run(_dropout(0.3, size=size), {"x": torch.ones(size)}, rng=(1, 2), name=name)
    for part in (y[:1000], y[1_000_000:1_100_000], y[-1000:], y):
        deviation = np.sqrt(0.3 * 0.7 / len(part))
        assert abs(float((part == 0).float().mean()) - 0.3) < 5 * deviation
    assert not torch.equal(y[:200_001], y[-200_001:])


@pytest.mark.parametrize("power", [10, 11, 12, 13])
def test_no_two_columns_of_a_mask_are_alike(name, power):
    """A decision made from half of a word alone would repeat wherever two entries of a table share that half."""
    size = 1 << 22
    (y,) = run(_dropout(0.5, size=size), {"x": torch.ones(size)}, rng=(8, 3), name=name)
    columns = np.packbits((y != 0).view(-1, 1 << power).T.numpy(), axis=1)
    assert len(np.unique(columns, axis=0)) == 1 << power


LARGE = 6_291_456 + 12_345  # as GPT-2's attention: 8 sequences of 12 heads of 256 x 256 probabilities, and an odd rest


def test_no_part_of_a_large_mask_is_another(name):
    (y,) = run(_dropout(0.5, size=LARGE), {"x": torch.ones(LARGE)}, rng=(4, 7), name=name)
    mask = y != 0
    # Whatever a mask is made of block by block, it would repeat after a multiple of some power of two.
    shifts = {odd << power for power in range(8, 23) for odd in (1, 3, 5)}
    for shift in sorted(shift for shift in shifts if shift < LARGE - 100_000):
        count = LARGE - shift
        agree = int((mask[shift:] == mask[:-shift]).sum())
        assert abs(agree - count / 2) < 6 * (count / 4) ** 0.5, shift


@pytest.mark.parametrize("ratio", [0.1, 1 / 3, 0.93, 0.9999, 1 - 2**-20])
@pytest.mark.parametrize("size", [20_000, 200_000])  # drawn in two ways
def test_what_is_kept_is_scaled_by_the_share_that_is_kept(name, ratio, size):
    dropped = min(round(ratio * 2**16), 2**16 - 1)  # a decision has 16 bits
    (y,) = run(_dropout(ratio, size=size), {"x": torch.ones(size)}, rng=(2, 9), name=name)
    survivors = y[y != 0]
    expected = size * (1 - dropped / 2**16)
    assert abs(len(survivors) - expected) < 5 * expected**0.5 + 1
    torch.testing.assert_close(survivors, torch.full_like(survivors, 2**16 / (2**16 - dropped)), rtol=3e-7, atol=0)


def test_a_mask_takes_one_byte_an_element():
    size, planned = 1 << 18, []
    for count in (2, 6):
        x = float_input("x", (size,))
        model = new_model([x], "chain")
        op = Builder(model.graph)
        y = x
        for _ in range(count):
            y, _ = op.Dropout(y, 0.3, True, outputs=2)
        model.graph.outputs.extend(differentiate(op, [(op.ReduceSum(y, keepdims=0), None)], [x]))
        provider = get_provider("TorchExecutionProvider")
        planned.append(provider.compile(model, provider.create_state([])).planned_bytes)
    assert planned[1] - planned[0] == 4 * size


def test_the_gradient_sees_the_same_mask(name):
    y, dx = run(_dropout(0.3, with_gradient=True), {"x": torch.ones(SIZE)}, rng=(1, 1), name=name)
    assert torch.equal(y, dx)


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_small_mask_is_the_same_in_the_gradient_and_to_those_who_look_at_it(name, size):
    x = float_input("x", (size,))
    model = new_model([x], "seen")
    op = Builder(model.graph)
    y, mask = op.Dropout(x, 0.3, True, outputs=2)
    (dx,) = differentiate(op, [(op.ReduceSum(y, keepdims=0), None)], [x])
    model.graph.outputs.extend([y, dx, op.Not(mask)])
    y, dx, dropped = run(model, {"x": torch.ones(size)}, rng=(2, 1), name=name)
    assert torch.equal(y, dx) and torch.equal(dropped, y == 0) and 0 < int(dropped.sum()) < size


def test_equal_seed_and_offset_repeat_and_others_do_not(name):
    model, feeds = _dropout(0.5), {"x": torch.ones(SIZE)}
    first, again = run(model, feeds, rng=(7, 1), name=name), run(model, feeds, rng=(7, 1), name=name)
    assert torch.equal(first[0], again[0])
    for other in ((7, 2), (8, 1), (0, 0)):
        (y,) = run(model, feeds, rng=other, name=name)
        agree = float((y == first[0]).float().mean())
        assert abs(agree - 0.5) < 0.01


def test_two_dropouts_of_one_graph_draw_different_masks(name):
    x = float_input("x", (SIZE,))
    model = new_model([x], "two")
    op = Builder(model.graph)
    model.graph.outputs.extend(op.Dropout(x, 0.5, True, outputs=2)[0] for _ in range(2))
    a, b = run(model, {"x": torch.ones(SIZE)}, name=name)
    assert abs(float((a == b).float().mean()) - 0.5) < 0.01


@pytest.mark.parametrize("length", [16, 96])  # masks of 1,536 and of 55,296 elements are drawn and kept differently
def test_attention_drops_its_probabilities_and_their_gradient_alike(name, length):
    q, k, v = (float_input(n, (2, 3, length, 8)) for n in "qkv")
    model = new_model([q, k, v], "attention")
    op = Builder(model.graph)
    y, probs, _ = op.composite("Attention", q, k, v, scale=0.3, dropout=0.4, outputs=3)
    (dv,) = differentiate(op, [(op.ReduceSum(y, keepdims=0), None)], [v])
    model.graph.outputs.extend([y, probs, dv])
    feeds = {n: torch.randn(2, 3, length, 8) for n in "qk"} | {"v": torch.ones(2, 3, length, 8)}
    y, probs, dv = run(model, feeds, name=name)
    # With values of one, an output is the sum of the kept probabilities: neither 1 everywhere nor 1/(1−p).
    sums = y[..., 0]
    assert torch.allclose(probs.sum(-1), torch.ones(2, 3, length), atol=1e-5)
    assert sums.std() > 0.02 and abs(float(sums.mean()) - 1) < 0.1
    assert torch.allclose(dv[..., 0].sum(-1), sums.sum(-1), atol=1e-4)
