"""Nodes by onnxruntime's kernels, one or several in a row by a call on the planned memory: see `StockKernel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx_ir as ir
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.capture import to_array
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.stock_kernel import Check, StockKernel
from ontrain.stock_node import Step, open_node, open_nodes

__all__ = ["emit_session", "emit_stock", "emit_stock_row"]


def emit_stock(
    e: Emitter, op_type: str, operands: Sequence[Buf | None], results: Sequence[ir.Value],
    stated: Mapping[str, Any], domain: str = "", *, prepares: bool = True, check: Check | None = None,
) -> None:  # fmt: skip
    """Emit an operator as one call of onnxruntime's kernel, which runs on the calling thread.

    Args:
        e: what it is emitted with.
        op_type: the operator.
        operands: its inputs in order; None for one that is left out.
        results: the values that its first outputs are.
        stated: its attributes.
        domain: the operator's.
        prepares: whether the kernel makes something of operands that never change, such as a packed weight. If not,
            they are fed like others, and all nodes of the same types share one session.
        check: see `StockKernel`; the operands are i0, i1, …
    """
    fed = {at: buf for at, buf in enumerate(operands) if buf is not None}
    fixed = {at: tensor for at, buf in fed.items() if prepares and (tensor := e.unchanging(buf)) is not None}
    kinds = [
        to_array(fixed[at]) if at in fixed else None if buf is None else from_torch_dtype(buf.dtype)
        for at, buf in enumerate(operands)
    ]

    def opened() -> Any:
        return open_node(op_type, kinds, len(results), stated, domain)

    if not prepares:
        session = _shared(op_type, tuple(kinds), len(results), tuple(sorted(stated.items())), domain)
    elif fixed:
        settings = tuple((name, str(value)) for name, value in sorted(stated.items()))
        types = tuple((at, buf.dtype) for at, buf in fed.items() if at not in fixed)
        held = e.weights(fed[min(fixed)])
        session = held.derived((domain, op_type, settings, len(results), types), [*fixed.values()], opened)
    else:
        session = opened()
    inputs = {f"i{at}": buf for at, buf in fed.items() if at not in fixed}
    emit_session(e, op_type, session, inputs, {f"o{at}": value for at, value in enumerate(results)}, check)


def emit_stock_row(
    e: Emitter, steps: Sequence[tuple[str, Mapping[str, Any]]], operands: Sequence[Sequence[Buf | None]],
    result: ir.Value, domain: str = "",
) -> None:  # fmt: skip
    """Emit operators, each of which reads first what the one before it makes, as one call.

    Args:
        e: what they are emitted with.
        steps: operators with their attributes.
        operands: their inputs in order; of all but the first operator without the first input.
        result: the value that the last one makes.
        domain: of the operators.
    """
    kinds = tuple(tuple(None if buf is None else from_torch_dtype(buf.dtype) for buf in bufs) for bufs in operands)
    told = tuple((op_type, tuple(sorted(stated.items()))) for op_type, stated in steps)
    bufs = {f"i{row}_{at}": buf for row, own in enumerate(operands) for at, buf in enumerate(own) if buf is not None}
    emit_session(e, "_".join(op_type for op_type, _ in steps), _row(told, kinds, domain), bufs, {"o": result})


def emit_session(
    e: Emitter, name: str, session: Any, operands: Mapping[str, Buf], results: Mapping[str, ir.Value],
    check: Check | None = None,
) -> None:  # fmt: skip
    """Emit a call of a session: operands row by row, results in places of their own where theirs are not.

    Args:
        e: what it is emitted with.
        name: of the call, where calls are listed.
        session: of the installed onnxruntime.
        operands: by the session's names.
        results: the same; those that nobody reads are left out.
        check: see `StockKernel`.
    """
    held = {name: tensor for name, buf in operands.items() if (tensor := e.unchanging(buf)) is not None}
    fixed = {name: tensor.contiguous() for name, tensor in held.items()}
    inputs = {name: e.contiguous(buf) for name, buf in operands.items() if name not in fixed}
    outs = {name: e.out(value) for name, value in results.items() if e.reads(value)}
    places = {name: out if out.meta.is_contiguous() else e.new(out.shape, out.dtype) for name, out in outs.items()}
    fed, written = ({name: buf.meta for name, buf in bufs.items()} for bufs in (inputs, places))
    kernel = StockKernel(name, session, fed, written, fixed, check)
    e.run(kernel, *inputs.values(), *places.values(), writes=[*places.values()])
    for name, out in outs.items():
        if places[name] is not out:
            e.copy(places[name], out)


@lru_cache(64)
def _row(
    steps: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...], kinds: tuple[tuple[ir.DataType | None, ...], ...],
    domain: str,
) -> Any:  # fmt: skip
    inputs = {f"i{row}_{at}": kind for row, own in enumerate(kinds) for at, kind in enumerate(own) if kind is not None}
    nodes = list[Step]()
    for row, ((op_type, stated), own) in enumerate(zip(steps, kinds, strict=True)):
        names = ["" if kind is None else f"i{row}_{at}" for at, kind in enumerate(own)]
        before = [f"v{row - 1}"] if row else []
        results = ["o" if row == len(steps) - 1 else f"v{row}"]
        nodes.append(Step(op_type, before + names, results, dict(stated), domain))
    return open_nodes(nodes, inputs, ["o"])


@lru_cache(64)
def _shared(
    op_type: str, kinds: tuple[Any, ...], outputs: int, stated: tuple[tuple[str, Any], ...], domain: str
) -> Any:
    return open_node(op_type, kinds, outputs, dict(stated), domain)
