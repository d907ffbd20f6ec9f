"""Lowering of all nodes of a graph, those without a kernel of their own by their bodies."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ontrain.errors import ProviderError
from ontrain.functions import expand, has_body
from ontrain.graph import Builder, blamed_on, describe, rebuild, source_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.carried_halves import carries_halves, carry_single
from ontrain.providers.torch.lowering.joined_rows import bind_fixed, emit_joined
from ontrain.providers.torch.lowering.registry import find_lowering
from ontrain.providers.torch.lowering.small_nodes import Row, rows_of_small
from ontrain.providers.torch.lowering.stock_alone import emit_alone, has_channels_last, runs_alone
from ontrain.providers.torch.lowering.unsigned import UNSIGNED, signed

__all__ = ["lower_nodes", "why_not", "with_bodies"]


def why_not(node: ir.Node) -> str | None:
    """Return None if the node has a lowering or a body, else the reason."""
    if find_lowering(node) is not None or has_body(node) is not None:
        return None
    return f"no lowering for {node.domain or 'ai.onnx'}.{node.op_type}"


def with_bodies(model: ir.Model, device: str = "cpu", *, serves: bool = False) -> ir.Model:
    """Replace operators that have no lowering for a type of device by their bodies, ours or the specification's.

    Args:
        model: what is to be lowered.
        device: the type of device.
        serves: whether nobody trains by it. Halves are then computed in single precision, see `carried_halves`, and
            what `runs_alone` stays what it is.
    """

    def body(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        if find_lowering(node, device) is not None:
            return signed(op, node, inputs)
        return None if serves and runs_alone(node) else expand(op, node, inputs)

    if serves and carries_halves(model):
        model = carry_single(model)
    unsigned = any(v is not None and v.dtype in UNSIGNED for node in model.graph for v in node.inputs)
    if unsigned:
        model = rebuild(model, body)
    left = _without_lowering(model, device, serves=serves)
    while left:
        model = rebuild(model, body)
        before, left = left, _without_lowering(model, device, serves=serves)
        if left == before:
            break
    return model


def _without_lowering(model: ir.Model, device: str, *, serves: bool) -> set[tuple[str, str]]:
    """Domain and name: some of onnxruntime's operators have bodies of the standard's ones of the same name."""
    nodes = (node for node in model.graph if find_lowering(node, device) is None)
    return {(node.domain, node.op_type) for node in nodes if not (serves and runs_alone(node))}


def lower_nodes(e: Emitter, nodes: Iterable[ir.Node]) -> None:
    """Emit the instructions of nodes in order.

    Raises:
        ProviderError: a node has no lowering.
    """
    for row in rows_of_small(e, bind_fixed(e, [*nodes])) if e.joins else (Row(nodes),):
        if not row.joined or not emit_joined(e, row.nodes):
            for node in row.nodes:
                _lower(e, node)
    e.node = None


def _lower(e: Emitter, node: ir.Node) -> None:
    lowering = find_lowering(node, e.device.type)
    if lowering is None or (e.joins and not has_channels_last(e, node)):
        lowering = emit_alone if runs_alone(node) else lowering
    if lowering is None:
        raise ProviderError(
            f"TorchExecutionProvider cannot run {node.op_type}",
            node=describe(node),
            source=source_of(node),
            reason=why_not(node),
            way_out="run on another provider, or register a lowering (see CONTRIBUTING)",
        )
    if e.skipped(node):
        return
    e.node = node
    with blamed_on(node, f"TorchExecutionProvider cannot run this use of {node.op_type}", ProviderError):
        lowering(e, node)
