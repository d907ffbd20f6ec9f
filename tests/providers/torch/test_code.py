"""Programs as straight-line code: which results are held, for how long, and that they are what a copy would be."""

from __future__ import annotations

import weakref

import onnx_ir as ir
import pytest
import torch

from ontrain.providers.torch import plan
from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.instructions import outside
from ontrain.providers.torch.plan import HELD_LONG, outside_bytes, plan_memory
from ontrain.training.ortmodule import ORTModule

SMALL, LARGE = 16, HELD_LONG // 4 + 16


def _emitter() -> Emitter:
    return Emitter(torch.device("cpu"))


def _run(e: Emitter, *outputs, cuts=()):
    """Plan and run a program in parts; return its outputs and what each part held for the next."""
    nbytes = plan_memory(e.program, [buf.storage for buf in outputs])
    binder = Binder(torch.zeros(nbytes, dtype=torch.uint8))
    parts = [e.program[a:b] for a, b in zip((0, *cuts), (*cuts, len(e.program)), strict=True)]
    held, between = [], []
    for code in codes(parts):
        held = code.bind(binder.resolve)(held)
        between.append(len(held))
    return list(binder.tensors({str(i): buf for i, buf in enumerate(outputs)}).values()), between


def _wait(e: Emitter, count: int) -> None:
    """Calls that have nothing to do with the value in question."""
    for _ in range(count):
        e.run(torch.Tensor.zero_, other := e.new((1,)), writes=[other])


def _doubled(e: Emitter, size: int, *, fresh: bool = True):
    """2 · (0, 1, …), by a function that returns it, and that input."""
    x = e.constant(torch.arange(float(size)))
    y = e.new((size,))
    e.compute(lambda t: t * 2, x, outs=[y], fresh=fresh)
    return x, y


@pytest.mark.parametrize(
    ("size", "wait", "fresh", "held"),
    [(SMALL, 50, True, True), (LARGE, 2, True, True), (LARGE, 50, True, False), (SMALL, 2, False, False)],
    ids=["small", "large-read-soon", "large-read-late", "shares-memory"],
)
def test_a_result_is_held_where_a_copy_costs_more(size, wait, fresh, held, monkeypatch):
    monkeypatch.setattr(plan, "_LONG", 0)
    e = _emitter()
    x, y = _doubled(e, size, fresh=fresh)
    _wait(e, wait)
    out = e.call(torch.add, x, y, out=e.new((size,)))
    (result,), _ = _run(e, out)
    assert y.storage.held is held
    assert torch.equal(result, torch.arange(float(size)) * 3)
    assert outside_bytes(e.program) == size * 4


def test_what_is_held_long_is_no_more_than_the_c_library_keeps(monkeypatch):
    monkeypatch.setattr(plan, "_LONG", 2 * LARGE * 4)
    e = _emitter()
    results = [_doubled(e, LARGE) for _ in range(3)]
    _wait(e, 50)
    sums = [e.call(torch.add, x, y, out=e.new((LARGE,))) for x, y in results]
    _, late = _doubled(e, LARGE)
    _wait(e, 50)
    sums.append(e.call(torch.add, late, late, out=e.new((LARGE,))))
    totals, _ = _run(e, *sums)
    assert [y.storage.held for _, y in results] == [True, True, False]
    assert late.storage.held  # the first three are read by then
    for total, factor in zip(totals, (3, 3, 3, 4), strict=True):
        assert torch.equal(total, torch.arange(float(LARGE)) * factor)


def test_a_held_result_is_freed_when_its_last_reader_has_run():
    alive = []

    def make(t):
        result = t + 1
        alive.append(weakref.ref(result))
        return result

    def look(t, out):
        out.fill_(sum(ref() is not None for ref in alive))

    e = _emitter()
    counts = [e.new(()) for _ in range(3)]
    x = e.constant(torch.zeros(SMALL))
    for count in counts:
        y = e.new((SMALL,))
        e.compute(make, x, outs=[y], fresh=True)
        e.run(look, y, count, writes=[count])
    reads, _ = _run(e, *counts)
    assert [int(read) for read in reads] == [1, 1, 1]
    assert all(ref() is None for ref in alive)


def test_a_result_goes_on_to_the_part_that_reads_it():
    e = _emitter()
    x, y = _doubled(e, SMALL)
    first = len(e.program)
    _wait(e, 1)
    second = len(e.program)
    out = e.call(torch.add, x, y, out=e.new((SMALL,)))
    (result,), between = _run(e, out, cuts=(first, second))
    assert between == [1, 1, 0]
    assert torch.equal(result, torch.arange(float(SMALL)) * 3)


def test_views_of_a_result_in_another_layout_than_planned_are_right():
    e = _emitter()
    x = e.constant(torch.arange(12.0).view(3, 4))
    y = e.new((3, 4))
    e.compute(lambda t: t.clone().t().contiguous().t(), x, outs=[y], fresh=True)  # column-major, as nobody planned
    out = e.call(torch.mul, e.reshape(y, (12,)), 1.0, out=e.new((12,)))
    rows = e.call(torch.mul, e.view(y, lambda t: t[1:]), 1.0, out=e.new((2, 4)))
    (flat, lower), _ = _run(e, out, rows)
    assert y.storage.held
    assert torch.equal(flat, torch.arange(12.0)) and torch.equal(lower, torch.arange(12.0).view(3, 4)[1:])


_PARTS = {
    "first rows": lambda t: t[:2],
    "later rows": lambda t: t[1:],
    "first columns": lambda t: t[:, :3],
    "one row": lambda t: t[0],
    "one row as a matrix": lambda t: t[:1],
    "one column": lambda t: t[:, :1],
    "one element": lambda t: t[0, 0],
    "nothing": lambda t: t[:0],
    "rows turned": lambda t: t[:2].t(),
    "half, in another shape": lambda t: t[:2].reshape(2, 2, 3),
    "all, in another shape": lambda t: t.reshape(3, 8),
    "repeated": lambda t: t[:1].expand(3, 6),
    "bits": lambda t: t.view(torch.int32),
    "some bytes": lambda t: t.view(torch.uint8)[1:, :7],
}


@pytest.mark.parametrize("part", _PARTS)
def test_a_part_of_a_held_result_is_that_part(part):
    """A block of rows lies as densely as the whole does and begins where it begins; it has fewer elements."""
    e = _emitter()
    whole = torch.arange(24.0).view(4, 6)
    y = e.new((4, 6))
    e.compute(torch.clone, e.constant(whole), outs=[y], fresh=True)
    taken = e.view(y, _PARTS[part])
    out = e.new(taken.shape, taken.dtype)
    e.run(torch.Tensor.copy_, out, taken, writes=[out])
    (result,), _ = _run(e, out)
    assert y.storage.held
    assert torch.equal(result, _PARTS[part](whole))


def test_an_elementwise_call_overwrites_a_small_held_result_that_dies():
    e = _emitter()
    _, y = _doubled(e, SMALL)
    z = e.call(torch.neg, y, out=e.new((SMALL,)), elementwise=True)
    out = e.call(torch.mul, z, 1.0, out=e.new((SMALL,)))
    (result,), _ = _run(e, out)
    assert z.storage.root() is y.storage and y.storage.held
    assert torch.equal(result, torch.arange(float(SMALL)) * -2)


@pytest.mark.parametrize("why", ["output", "read from outside", "overwritten output"])
def test_what_is_read_from_outside_has_a_place(why):
    e = _emitter()
    _, y = _doubled(e, SMALL)
    out = y
    if why == "read from outside":
        e.run(outside, y)
    if why == "overwritten output":
        out = e.call(torch.neg, y, out=e.new((SMALL,)), elementwise=True)
    (result,), _ = _run(e, out)
    assert not out.storage.root().held
    assert torch.equal(result, torch.arange(float(SMALL)) * (-2 if out is not y else 2))


def test_results_in_excess_are_dropped_and_several_are_taken_apart():
    e = _emitter()
    x = e.constant(torch.tensor([3.0, 1.0, 2.0]))
    values, places = e.new((3,)), e.new((3,), torch.int64)
    e.compute(lambda t: (*torch.sort(t), t.sum()), x, outs=[values, places, None], fresh=True)
    a = e.call(torch.mul, values, 1.0, out=e.new((3,)))
    b = e.call(torch.mul, places, 1, out=e.new((3,), torch.int64))
    (ordered, order), _ = _run(e, a, b)
    assert ordered.tolist() == [1, 2, 3] and order.tolist() == [1, 2, 0]


def test_an_error_in_a_kernel_names_the_node():
    e = _emitter()
    e.node = ir.node("Sqrt", [ir.Value(name="x")], name="culprit")
    _, y = _doubled(e, SMALL)
    e.run(torch.Tensor.copy_, y, e.constant(torch.zeros(3)), writes=[y])
    with pytest.raises(RuntimeError) as caught:
        _run(e, y)
    assert any("Sqrt" in note for note in caught.value.__notes__)


def test_plans_of_one_model_for_many_sizes_share_one_text():
    """Compiling Python is a tenth of what a plan for new sizes takes."""

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(12, 48), torch.nn.Linear(24, 12)

        def forward(self, x):
            first, second = self.up(x).chunk(2, -1)
            return self.down(torch.nn.functional.silu(first) * second).flatten(1).softmax(-1).square().sum()

    module = ORTModule(Gated())
    for rows in (40, 41, 53):
        module(torch.randn(rows, 17, 12)).backward()
    codes = [
        (plan.executable.current.forward_code.text, plan.executable.current.backward_code.text)
        for entry in module._engine.entries for plan in entry.session.plans.values()
    ]  # fmt: skip
    assert len(codes) == 3 and len(set(codes)) == 1
