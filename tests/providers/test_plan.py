"""The memory plan: what lives at the same time never overlaps, and the arena is not wasteful."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from ontrain.providers.torch.buffers import Buf, Storage
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.instructions import Instruction
from ontrain.providers.torch.plan import plan_memory


def _overlap(a: Storage, b: Storage) -> bool:
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


@st.composite
def programs(draw):
    """Random programs: each instruction reads some earlier results and writes a new one, perhaps reusing an input."""
    bufs: list[Buf] = []
    program: list[Instruction] = []
    e = Emitter(torch.device("cpu"))
    for _ in range(draw(st.integers(1, 25))):
        reads = draw(st.lists(st.sampled_from(bufs), max_size=3)) if bufs else []
        size = draw(st.sampled_from([1, 16, 17, 100, 1000]))
        out = e.new((size,))
        reuses = reads if draw(st.booleans()) else []
        program.append(Instruction(torch.add, (), {}, reads, [out], None, reuses))
        bufs.append(out)
    lasting = draw(st.lists(st.sampled_from(bufs), max_size=2))
    return program, bufs, [b.storage for b in lasting]


@given(programs())
def test_storages_that_live_together_never_overlap(case):
    program, bufs, lasting = case
    last = {id(b): i for i, ins in enumerate(program) for b in (*ins.reads, *ins.writes)}
    plan_memory(program, lasting)
    for i, a in enumerate(bufs):
        for j, b in enumerate(bufs[:i]):
            # b is written at j, a at i > j: b is alive at i if somebody reads it later, or reads it there without
            # having given its memory to a.
            alive = last[id(b)] > i or b.storage in lasting
            if alive:
                assert not _overlap(a.storage.root(), b.storage.root()), (i, j)


@given(programs())
def test_the_arena_holds_every_storage(case):
    program, bufs, lasting = case
    nbytes = plan_memory(program, lasting)
    for buf in bufs:
        root = buf.storage.root()
        assert root.offset >= 0 and root.offset % 64 == 0
        assert root.offset + root.nbytes <= nbytes


def test_a_chain_of_elementwise_calls_takes_one_buffer():
    e = Emitter(torch.device("cpu"))
    first = e.new((1024,))
    e.run(torch.Tensor.zero_, first, writes=[first])
    x = first
    for _ in range(5):
        x = e.call(torch.exp, x, out=e.new((1024,)), elementwise=True)
    assert plan_memory(e.program, [x.storage]) == 4096


def test_an_input_read_again_later_is_not_overwritten():
    e = Emitter(torch.device("cpu"))
    x = e.new((1024,))
    e.run(torch.Tensor.zero_, x, writes=[x])
    y = e.call(torch.exp, x, out=e.new((1024,)), elementwise=True)
    e.call(torch.add, x, y, out=e.new((1024,)), elementwise=True)
    plan_memory(e.program, [])
    assert y.storage.root() is not x.storage


def test_a_transposed_reader_forbids_computing_in_place():
    e = Emitter(torch.device("cpu"))
    x = e.new((32, 32))
    e.run(torch.Tensor.zero_, x, writes=[x])
    out = e.call(torch.add, x, e.view(x, torch.t), out=e.new((32, 32)), elementwise=True)
    plan_memory(e.program, [out.storage])
    assert out.storage.root() is not x.storage
