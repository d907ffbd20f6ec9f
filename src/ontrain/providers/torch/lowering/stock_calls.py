"""Nodes by onnxruntime's kernels, each one call on the planned memory: see `StockKernel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx_ir as ir
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.capture import to_array
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.stock_kernel import StockKernel
from ontrain.stock_node import open_node

__all__ = ["emit_stock"]


def emit_stock(
    e: Emitter, op_type: str, operands: Sequence[Buf | None], results: Sequence[ir.Value],
    stated: Mapping[str, Any], domain: str = "", *, prepares: bool = True,
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
    inputs = {f"i{at}": e.contiguous(buf) for at, buf in fed.items() if at not in fixed}
    outs = {f"o{at}": e.out(value) for at, value in enumerate(results) if e.reads(value)}
    places = {name: out if out.meta.is_contiguous() else e.new(out.shape, out.dtype) for name, out in outs.items()}
    kernel = StockKernel(
        op_type, session, *({name: buf.meta for name, buf in bufs.items()} for bufs in (inputs, places))
    )
    e.run(kernel, *inputs.values(), *places.values(), writes=[*places.values()])
    for name, out in outs.items():
        if places[name] is not out:
            e.copy(places[name], out)


@lru_cache(64)
def _shared(
    op_type: str, kinds: tuple[Any, ...], outputs: int, stated: tuple[tuple[str, Any], ...], domain: str
) -> Any:
    return open_node(op_type, kinds, outputs, dict(stated), domain)
