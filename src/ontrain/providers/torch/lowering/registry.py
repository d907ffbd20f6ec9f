"""The table of lowerings: how one node becomes instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ontrain.graph import DOMAIN
from ontrain.providers.torch.emitter import Emitter

__all__ = ["Lowering", "attributes", "find_lowering", "lowers"]

Lowering = Callable[[Emitter, ir.Node], None]

_table: dict[tuple[str, str], Lowering] = {}


def lowers(*op_types: str, domain: str = "") -> Callable[[Lowering], Lowering]:
    """Register the decorated function as the lowering of standard operators."""

    def register(lowering: Lowering) -> Lowering:
        for op_type in op_types:
            _table[domain, op_type] = lowering
        return lowering

    return register


def lowers_composite(*op_types: str) -> Callable[[Lowering], Lowering]:
    """Register the decorated function as the native implementation of composites."""
    return lowers(*op_types, domain=DOMAIN)


def find_lowering(node: ir.Node) -> Lowering | None:
    """Return the lowering of a node's operator, if there is one."""
    return _table.get((node.domain, node.op_type))


def attributes(node: ir.Node) -> dict[str, Any]:
    """Return the node's attributes as Python values."""
    return {k: v.value.decode() if isinstance(v.value, bytes) else v.value for k, v in node.attributes.items()}
