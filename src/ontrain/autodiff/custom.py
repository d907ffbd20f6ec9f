"""A backward that the user wrote: its nodes are in the graph already, and are made again of the real adjoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.autodiff.op import Op
from ontrain.graph import DOMAIN, reads, static_dims, subgraphs
from ontrain.operators import gradient

__all__: list[str] = []


@gradient("Through", domain=DOMAIN)
def through(op: Op, _: ir.Value, *values: ir.Value, results: int = 1) -> Any:
    """The user's gradient of each x, with the adjoints of the results where the forward has stand-ins for them.

    Results that nothing flows back from have an adjoint of zeros, as torch makes it.
    """
    count = (len(values) - 2 * results) // 2
    standing, gradients = values[results : 2 * results], values[len(values) - count :]
    copies = {
        place: op.const(np.zeros(static_dims(place)), place.dtype) if dy is None else dy
        for place, dy in zip(standing, op.dys, strict=True)
    }
    wanted = op.wanted[2 * results : 2 * results + count]
    grads = [_again(op, g, copies) if want else None for g, want in zip(gradients, wanted, strict=True)]
    return *[None] * (2 * results), *grads, *[None] * count


def _again(op: Op, value: ir.Value, copies: dict[ir.Value, ir.Value]) -> ir.Value:
    """The value computed from what `copies` holds instead of the stand-ins; nodes that read none of them are shared."""
    waiting = [value]
    while waiting:
        node = waiting[-1]
        producer = node.producer()
        if node in copies or producer is None:
            copies.setdefault(node, node)
            waiting.pop()
            continue
        unknown = [v for v in reads(producer) if v not in copies]
        if unknown:
            waiting.extend(unknown)
            continue
        waiting.pop()
        copies.update(_copied(op, producer, copies))
    return copies[value]


def _copied(op: Op, node: ir.Node, copies: dict[ir.Value, ir.Value]) -> dict[ir.Value, ir.Value]:
    if all(copies[v] is v for v in reads(node)):
        return {v: v for v in node.outputs}
    if subgraphs(node):
        raise op.refused(
            f"its backward has {node.op_type}, which reads the adjoint", "write that backward without a branch or loop"
        )
    inputs = [None if v is None else copies[v] for v in node.inputs]
    copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
    copy.metadata_props.update(node.metadata_props)
    outputs = op.add(copy)
    return dict(zip(node.outputs, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
