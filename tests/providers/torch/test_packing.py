"""A factor in oneDNN's own order: filled in place, looked at before it is trusted, apart for each thread."""

from __future__ import annotations

import threading

import pytest
import torch

from ontrain.providers.torch import packing
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering import product
from ontrain.providers.torch.plan import outside_bytes

pytestmark = pytest.mark.skipif(
    not packing.can_pack(64, 256, 256), reason="oneDNN keeps filters in an unknown order here"
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(packing, "_packs", packing._Packs())


def _check(rows, inner, columns, *, bias=False, gaps=0, by_column=False):
    x, w = torch.randn(rows, inner + gaps)[:, :inner], torch.randn(inner, columns + gaps)[:, :columns]
    if by_column:
        w = torch.randn(columns, inner + gaps)[:, :inner].t()
    out, added = torch.randn(rows, columns + gaps), torch.randn(columns) if bias else None
    term = added.double() if added is not None else torch.zeros(columns, dtype=torch.float64)
    wanted, sizes = out.double(), out.double().abs()
    wanted[:, :columns] += x.double() @ w.double() + term
    sizes[:, :columns] += x.double().abs() @ w.double().abs() + term.abs()
    packing.add_product(out[:, :columns], x, w, added)
    # What so many roundings may come to; gaps are as they were.
    assert bool(((out.double() - wanted).abs() <= (inner + 2) * 2**-24 * sizes).all())
    assert torch.equal(out[:, columns:].double(), wanted[:, columns:])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gaps", [0, 3])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 16, 16), (40, 17, 64), (33, 100, 65), (64, 256, 48), (20, 48, 1000), (7, 5, 3)]
)
def test_it_adds_the_product(rows, inner, columns, bias, gaps, by_column):
    _check(rows, inner, columns, bias=bias, gaps=gaps, by_column=by_column)


def test_a_pack_holds_its_last_matrix():
    """Of two products of one size the second must not see the first one's factor, nor its padding."""
    for _ in range(3):
        _check(30, 50, 70)
    assert len(packing._packs._made) == 1


def test_threads_fill_packs_of_their_own():
    w = [torch.full((256, 256), float(number)) for number in range(4)]
    x, wrong = torch.ones(64, 256), []

    def multiply(number):
        for _ in range(100):
            out = torch.zeros(64, 256)
            packing.add_product(out, x, w[number], None)
            if not torch.equal(out, torch.full_like(out, 256.0 * number)):
                wrong.append(number)

    threads = [threading.Thread(target=multiply, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_each_number_of_rows_has_the_order_that_suits_it():
    """Of another order the product is right and slow: the widths that oneDNN asks for are kept apart."""
    for rows in (16, 160, 768, 1024, 160):
        _check(rows, 160, 768)
    wanted = {packing._Pack(rows, 160, 768).stripes.shape[2] for rows in (16, 160, 768, 1024)}
    assert {width for _, _, width in packing._packs._made} == wanted


def test_what_packs_take_is_bounded(monkeypatch):
    monkeypatch.setattr(packing, "_KEPT_BYTES", 40_000)
    for columns in (16, 32, 48, 64):
        _check(20, 100, columns)
    assert sum(pack.nbytes for pack in packing._packs._made.values()) <= 40_000
    _check(20, 100, 16)


def test_an_unknown_order_is_not_trusted(monkeypatch):
    monkeypatch.setattr(packing, "_WIDTHS", ())
    assert not packing.can_pack(64, 64, 64)
    e = Emitter(torch.device("cpu"))
    factors = product.Factors(e.new((64, 64)), e.new((64, 64)), e.new((64, 64)))
    product.FORMULATIONS["packed"](e, factors)
    assert [instruction.fn for instruction in e.program] == [torch.mm]


@pytest.mark.parametrize("bias", [False, True])
def test_an_order_that_is_unknown_when_a_plan_runs_is_left_to_torch(monkeypatch, bias):
    """The order depends on the number of threads, too: a plan may have been made for another one."""
    order = packing._stripes

    def stripes(memory, numbers):
        if torch.get_num_threads() == 1:
            raise LookupError("unknown")
        return order(memory, numbers)

    monkeypatch.setattr(packing, "_stripes", stripes)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert packing.can_pack(71, 68, 100)
        torch.set_num_threads(1)
        assert not packing.can_pack(71, 68, 100)
        _check(71, 68, 100, bias=bias)
        torch.set_num_threads(2)
        _check(71, 68, 100, bias=bias)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("sizes", [(100, 3072, 3072), (16, 768, 30522), (160, 30522, 768), (64, 70_000, 16)])
def test_large_factors_are_packed_in_parts(sizes):
    rows, inner, columns = sizes
    e = Emitter(torch.device("cpu"))
    product.FORMULATIONS["packed"](
        e, product.Factors(e.new((rows, inner)), e.new((inner, columns)), e.new((rows, columns)))
    )
    parts = [instruction.args[packing.PACKED] for instruction in e.program if instruction.fn is packing.add_product]
    assert max(buf.meta.nbytes for buf in parts) <= 1.1 * packing.PACKED_BYTES
    assert sum(buf.meta.numel() for buf in parts) == inner * columns
    assert outside_bytes(e.program) <= 3 * packing.PACKED_BYTES  # parts of one size share a pack
