"""Branches and loops: one instruction that makes the calls of a body, whose memory is a frame in the plan around it.

A body is lowered like a graph. Values of the graph around it are the same buffers inside, so nothing is copied on the
way in; carried values and rows have places of their own in the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from ontrain.operators import record_of
from ontrain.providers.torch.buffers import Buf, Storage
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.instructions import Body, Instruction, outside
from ontrain.providers.torch.lowering.nodes import lower_nodes, with_bodies
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite
from ontrain.providers.torch.plan import plan_memory
from ontrain.rounds import counted_rounds

__all__: list[str] = []

Calls = Callable[[], None]


@lowers_composite("If")
def branch(e: Emitter, node: ir.Node) -> None:
    cond, *captured = (e.value(v) for v in node.inputs)
    outs = [e.out(v) for v in node.outputs]
    a = attributes(node)
    frame = Storage(1, frame=e.frame)
    then, other = (_lower_body(e, frame, a[name], [], captured) for name in ("then_branch", "else_branch"))
    args = cond, *then, *other, outs
    e.program.append(Instruction(_run_branch, args, {}, [cond, *captured], [*outs, _whole(frame)], node))


@lowers_composite("Loop")
def loop(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    n, m = a["carried"], a["scanned"]
    trip, cond = node.inputs[:2]
    operands = [e.value(v) for v in node.inputs[2:]]
    limit, condition = e.value(trip), None if cond is None else e.value(cond)
    initial, scanned = operands[:n], operands[n : n + m]
    captured = [_as_factor(e, buf, v) for buf, v in zip(operands[n + m :], a["body"].inputs[1 + n + m :], strict=True)]
    frame = Storage(1, frame=e.frame)
    inside = Emitter(e.device, frame=frame)
    at = inside.new((), torch.int64)
    states = [inside.new(buf.shape, buf.dtype) for buf in initial]
    rows = [inside.new(buf.shape[1:], buf.dtype) for buf in scanned]
    body, (go, *results) = _lower_body(e, frame, a["body"], [at, *states, *rows], captured)
    # A loop whose length depends on the data has rows that nobody may read.
    stacked = [(e.out(v), row) for v, row in zip(node.outputs[n:], results[n:], strict=True) if _is_static(v)]
    finals = [e.out(v) for v in node.outputs[:n]]
    args = (body, limit, condition, go, at, states, initial, results[:n], finals, scanned, rows,
            [t for t, _ in stacked], [r for _, r in stacked], bool(a.get("reverse", 0)))  # fmt: skip
    reads = [limit, *initial, *scanned, *captured, *([] if condition is None else [condition])]
    writes = [*finals, *(target for target, _ in stacked), _whole(frame)]
    e.program.append(Instruction(_run_loop, args, {}, reads, writes, node))


def _as_factor(e: Emitter, buf: Buf, formal: ir.Value) -> Buf:
    """A captured matrix, copied once where every iteration multiplies by it and would rearrange it first."""
    across = e.device.type == "cpu" and len(buf.shape) == 2 and buf.meta.stride(0) == 1 < buf.meta.stride(1)
    right = any(
        record_of(use.node).product and use.idx == 1 and not use.node.attributes.get_int("transB", 0)
        for use in formal.uses()
    )
    return e.contiguous(buf) if across and right else buf


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _whole(frame: Storage) -> Buf:
    return Buf(frame, torch.empty(frame.nbytes, dtype=torch.uint8, device="meta"))


def _lower_body(
    e: Emitter, frame: Storage, graph: ir.Graph, places: Sequence[Buf], captured: Sequence[Buf]
) -> tuple[Body, list[Buf]]:
    """The calls of a body and the buffers of its outputs; the frame grows to what they need.

    `places` are buffers in the frame that are filled before each run and keep their memory until its end.
    """
    graph = with_bodies(ir.Model(graph, ir_version=10), e.device.type).graph
    inside = e.inside(frame)
    for value, buf in zip(graph.inputs, [*places, *captured], strict=True):
        inside.bind(value, buf)
    inside.run(outside, writes=list(places))
    lower_nodes(inside, graph)
    outputs = [_apart(inside, inside.value(v), places) for v in graph.outputs]
    inside.run(outside, *places, *outputs)
    frame.nbytes = max(frame.nbytes, plan_memory(inside.program, [], frame=frame))
    return Body([instruction for instruction in inside.program if instruction.fn is not outside]), outputs


def _apart(e: Emitter, buf: Buf, places: Sequence[Buf]) -> Buf:
    """An output that is a view of a place would change while the next iteration's values are put there."""
    if not any(buf.storage is place.storage for place in places):
        return buf
    copy = e.new(buf.shape, buf.dtype)
    e.run(torch.Tensor.copy_, copy, buf, writes=[copy])
    return copy


def _run_branch(
    cond: torch.Tensor, then: Calls, then_outs: Sequence[torch.Tensor], other: Calls,
    other_outs: Sequence[torch.Tensor], outs: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    calls, results = (then, then_outs) if bool(cond) else (other, other_outs)
    calls()
    for out, result in zip(outs, results, strict=True):
        out.copy_(result)


def _run_loop(
    body: Calls, limit: torch.Tensor, cond: torch.Tensor | None, go: torch.Tensor, at: torch.Tensor,
    states: Sequence[torch.Tensor], initial: Sequence[torch.Tensor], nexts: Sequence[torch.Tensor],
    finals: Sequence[torch.Tensor], scanned: Sequence[torch.Tensor], rows: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor], results: Sequence[torch.Tensor], reverse: bool,
) -> None:  # fmt: skip
    for state, value in zip(states, initial, strict=True):
        state.copy_(value)
    count, done = int(limit), 0
    alive = cond is None or bool(cond)
    with counted_rounds() as another:
        while alive and done < count:
            another()
            index = count - 1 - done if reverse else done
            at.fill_(index)
            for row, source in zip(rows, scanned, strict=True):
                row.copy_(source[index])
            body()
            for target, result in zip(targets, results, strict=True):
                target[index].copy_(result)
            for state, value in zip(states, nexts, strict=True):
                state.copy_(value)
            done += 1
            alive = bool(go)
    for final, state in zip(finals, states, strict=True):
        final.copy_(state)
