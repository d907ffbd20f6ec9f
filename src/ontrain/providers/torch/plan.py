"""Lifetimes of storages, results computed in place of what dies, and their offsets in one arena."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ontrain.providers.torch.arena import place
from ontrain.providers.torch.buffers import Buf, Storage
from ontrain.providers.torch.instructions import Body, Instruction, outside
from ontrain.providers.torch.packing import PACKED, add_product
from ontrain.providers.torch.stock_kernel import StockKernel

__all__ = ["ALWAYS", "HELD_LONG", "outside_bytes", "plan_memory"]

HELD_LONG = 64 << 10
"""Bytes up to which a kernel's own result is held however long it is needed, and not copied into the arena.

The C library hands such memory out again without returning it to the system. A larger result is held if it is read
soon: then the next one like it takes its place. Copying costs bandwidth, and page faults would cost more. What is read
late is held as far as `_LONG` goes.
"""
ALWAYS = 1 << 62
"""What a GPU's results are held up to: its allocator keeps memory, so that to hold costs nothing and to copy does."""
LENT = 64 << 10
"""Bytes above which what is fed is read where the caller has it. A copy of less takes no longer than a look at it."""
_SOON = 8
_LONG = 48 << 20
"""Bytes of larger results that are held long at any time, at most.

The C library keeps somewhat more when all of it is free (`heap.keep_freed_pages`), so that no step faults it in anew.
"""


def plan_memory(
    program: Sequence[Instruction], outputs: Iterable[Storage], frame: Storage | None = None, *, held: int = HELD_LONG,
    lends: bool = False,
) -> int:  # fmt: skip
    """Place every planned storage of the program in one arena and return the arena's bytes.

    Args:
        program: instructions in order; `Storage.born`, `dies`, `merged` and `offset` are set.
        outputs: storages that must survive to the end of the program.
        frame: place the storages inside this one only; the others are placed by the plan around it.
        held: bytes up to which a kernel's own result is held however long it is needed.
        lends: whether what is fed may stay where the caller has it.
    """
    outputs = list(outputs)
    storages = _lifetimes(program, outputs, frame)
    placed = _placed(program, outputs)
    if frame is None:
        _hold(program, placed, held)
    if lends:
        _lend(program, placed)
    _reuse_dying_inputs(program, frame, placed, held)
    return place([s for s in storages if s.merged is None and not s.held])


def outside_bytes(program: Sequence[Instruction]) -> int:
    """Return the bytes outside of the arena: at most of results that kernels return, at one time, and of packs."""
    packed = (instruction.args[PACKED] for instruction in program if instruction.fn is add_product)
    sizes = {buf.shape: buf.meta.nbytes for buf in packed if isinstance(buf, Buf)}
    return sum(sizes.values()) + _result_bytes(program)


def _result_bytes(program: Sequence[Instruction]) -> int:
    most, living = 0, dict[int, Storage]()
    for index, instruction in enumerate(program):
        results = [buf for buf in instruction.results or () if buf is not None]
        living.update({id(buf.storage): buf.storage for buf in results if buf.storage.held})
        # Of a buffer, not its storage: a gradient's is the flat one of all parameters.
        copied = sum(buf.meta.numel() * buf.dtype.itemsize for buf in results if not buf.storage.held)
        most = max(most, copied + sum(s.nbytes for s in living.values()))
        living = {key: s for key, s in living.items() if s.dies > index}
    return most


def _placed(program: Sequence[Instruction], outputs: Sequence[Storage]) -> set[int]:
    """The storages that need a place: no variable may hold them."""
    placed = {id(storage) for storage in outputs}
    for instruction in program:
        # A body is bound to tensors that exist before it runs, and so is what is read from outside.
        bound = any(isinstance(argument, Body) for argument in instruction.args)
        if bound or instruction.fn is outside:
            placed.update(id(buf.storage) for buf in instruction.reads)
        if bound:
            placed.update(id(buf.storage) for buf in instruction.writes)
    return placed


def _hold(program: Sequence[Instruction], placed: set[int], held: int) -> None:
    """Let results that kernels return be held in variables where that is cheaper than a copy."""
    long: list[Storage] = []
    for index, instruction in enumerate(program):
        for buf in (instruction.results or ()) if instruction.fresh else ():
            if buf is None or not buf.storage.planned or id(buf.storage) in placed or buf.storage.born != index:
                continue
            if buf.meta.numel() * buf.dtype.itemsize != buf.storage.nbytes:
                continue
            if buf.storage.nbytes > held and buf.storage.dies - index > _SOON:
                long = [storage for storage in long if storage.dies >= index]
                if sum(storage.nbytes for storage in (*long, buf.storage)) > _LONG:
                    continue
                long.append(buf.storage)
            buf.storage.layout = buf.layout()


def _lend(program: Sequence[Instruction], placed: set[int]) -> None:
    """Let what is fed stay where the caller has it, if it is large and nobody writes to it or binds its address."""
    fed, touched = list[Buf](), set[int]()
    for instruction in program:
        if instruction.fn is outside:
            fed += instruction.writes
        else:
            bound = instruction.reads if isinstance(instruction.fn, StockKernel) else ()
            touched.update(id(buf.storage) for buf in (*instruction.writes, *bound))
    for buf in fed:
        if buf.storage.nbytes > LENT and id(buf.storage) not in placed | touched:
            buf.storage.layout, buf.storage.lent = buf.layout(), True


def _lifetimes(program: Sequence[Instruction], outputs: Iterable[Storage], frame: Storage | None) -> list[Storage]:
    storages: dict[int, Storage] = {}
    for index, instruction in enumerate(program):
        for buf in (*instruction.reads, *instruction.writes):
            storage = buf.storage
            if not storage.planned or storage.frame is not frame:
                continue
            if id(storage) not in storages:
                storages[id(storage)] = storage
                storage.born = index
            storage.dies = index
    for storage in outputs:
        storage.dies = len(program)
    return list(storages.values())


def _reuse_dying_inputs(program: Sequence[Instruction], frame: Storage | None, placed: set[int], held: int) -> None:
    """Let an elementwise result take over the memory of an input that nobody reads afterwards."""
    for index, instruction in enumerate(program):
        if not instruction.reuses:
            continue
        out = instruction.writes[0]
        if not out.storage.planned or out.storage.born != index or not out.fills_storage():
            continue
        for source in instruction.reuses:
            root = source.storage.root()
            if not root.planned or root.lent or root.frame is not frame or root is out.storage:
                continue
            if root.dies != index or root.nbytes != out.storage.nbytes:
                continue
            if root.held and (root.nbytes > held or id(out.storage) in placed):
                continue
            readers = [b for b in instruction.reads if b.storage.root() is root]
            if all(b.same_layout(out) for b in readers):
                out.storage.merged = root
                root.dies = out.storage.dies
                break
