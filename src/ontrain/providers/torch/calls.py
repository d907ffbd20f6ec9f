"""What a timed run says of each call of a program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import onnx_ir as ir

from ontrain.graph import name_of
from ontrain.operators import static_dims
from ontrain.providers.base import NodeTime
from ontrain.providers.torch.buffers import Storage
from ontrain.providers.torch.instructions import Instruction

__all__ = ["node_times"]


def node_times(program: Sequence[Instruction], start: int, marks: Sequence[int]) -> list[NodeTime]:
    """Return the calls of a run.

    Args:
        program: that was run.
        start: when it began, in nanoseconds of `time.perf_counter_ns()`.
        marks: when each call had ended.
    """
    return [
        NodeTime(
            "" if call.node is None else name_of(call.node), "copy" if call.node is None else call.node.op_type,
            begin - start, end - begin, memory, sum(buf.meta.numel() * buf.dtype.itemsize for buf in call.writes),
            () if call.node is None else _types(call.node.inputs),
            () if call.node is None else _types(call.node.outputs),
        )
        for call, memory, begin, end in zip(program, _living(program), [start, *marks], marks, strict=False)
    ]  # fmt: skip


def _types(values: Sequence[ir.Value | None]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    present = [value for value in values if value is not None and value.dtype is not None and value.shape is not None]
    return tuple((str(value.dtype).lower(), static_dims(value)) for value in present)


def _living(program: Sequence[Instruction]) -> list[int]:
    """Bytes of planned memory that hold values, at each call."""
    roots = {buf.storage.root() for call in program for buf in (*call.reads, *call.writes) if buf.storage.planned}
    changes = [0] * (len(program) + 1)
    for storage in roots:
        born, dies = _life(storage, len(program))
        changes[born] += storage.nbytes
        changes[dies + 1] -= storage.nbytes
    return list(accumulate(changes))[: len(program)]


def _life(storage: Storage, calls: int) -> tuple[int, int]:
    return max(storage.born, 0), min(max(storage.dies, storage.born, 0), calls - 1)
