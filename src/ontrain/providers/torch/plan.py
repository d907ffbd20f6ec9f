"""Lifetimes of storages, results computed in place of what dies, and their offsets in one arena."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from ontrain.providers.torch.buffers import Storage
from ontrain.providers.torch.emitter import Instruction
from ontrain.providers.torch.state import ALIGN

__all__ = ["plan_memory"]


def plan_memory(program: Sequence[Instruction], kept: Iterable[Storage], frame: Storage | None = None) -> int:
    """Place every planned storage of the program in one arena and return the arena's bytes.

    Args:
        program: instructions in order; `Storage.born`, `dies`, `merged` and `offset` are set.
        kept: storages that must survive to the end of the program (outputs).
        frame: place the storages inside this one only; the others are placed by the plan around it.
    """
    storages = _lifetimes(program, kept, frame)
    _reuse_dying_inputs(program, frame)
    return _place([s for s in storages if s.merged is None])


def _lifetimes(program: Sequence[Instruction], kept: Iterable[Storage], frame: Storage | None) -> list[Storage]:
    found: dict[int, Storage] = {}
    for index, instruction in enumerate(program):
        for buf in (*instruction.reads, *instruction.writes):
            storage = buf.storage
            if not storage.planned or storage.frame is not frame:
                continue
            if id(storage) not in found:
                found[id(storage)] = storage
                storage.born = index
            storage.dies = index
    for storage in kept:
        storage.dies = len(program)
    return list(found.values())


def _reuse_dying_inputs(program: Sequence[Instruction], frame: Storage | None) -> None:
    """Let an elementwise result take over the memory of an input that nobody reads afterwards."""
    for index, instruction in enumerate(program):
        if not instruction.reuses:
            continue
        out = instruction.writes[0]
        if not out.storage.planned or out.storage.born != index or not out.fills_storage():
            continue
        for source in instruction.reuses:
            root = source.storage.root()
            if not root.planned or root.frame is not frame or root is out.storage:
                continue
            if root.dies != index or root.nbytes != out.storage.nbytes:
                continue
            readers = [b for b in instruction.reads if b.storage.root() is root]
            if all(b.same_layout(out) for b in readers):
                out.storage.merged = root
                root.dies = out.storage.dies
                break


def _place(storages: list[Storage]) -> int:
    """Best fit over a free list, walking the program in order: near-minimal, and neighbours in time stay neighbours."""
    events: list[tuple[int, int, Storage]] = []
    for storage in storages:
        events.append((storage.born, 1, storage))
        events.append((storage.dies + 1, 0, storage))
    # At one instruction memory is given back (0) before more is taken (1): `dies + 1` keeps inputs until it has run.
    events.sort(key=lambda e: (e[0], e[1]))
    free: list[tuple[int, int]] = []  # (offset, size), sorted by offset
    top = 0
    for _, kind, storage in events:
        size = -(-storage.nbytes // ALIGN) * ALIGN
        if kind == 0:
            _give_back(free, storage.offset, size)
            continue
        fitting = [(s, o) for o, s in free if s >= size]
        if fitting:
            have, offset = min(fitting)
            free.remove((offset, have))
            if have > size:
                insort(free, (offset + size, have - size))
        elif free and free[-1][0] + free[-1][1] == top:
            offset = free.pop()[0]
            top = offset + size
        else:
            offset, top = top, top + size
        storage.offset = offset
    return top


def _give_back(free: list[tuple[int, int]], offset: int, size: int) -> None:
    insort(free, (offset, size))
    at = free.index((offset, size))
    if at + 1 < len(free) and offset + size == free[at + 1][0]:
        free[at] = (offset, size + free.pop(at + 1)[1])
    if at > 0 and free[at - 1][0] + free[at - 1][1] == free[at][0]:
        free[at - 1] = (free[at - 1][0], free[at - 1][1] + free.pop(at)[1])
