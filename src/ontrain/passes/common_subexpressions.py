"""Equal computations done once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, content_of, live_nodes
from ontrain.operators import Chance, record_of
from ontrain.passes.infra import RewritePass

__all__ = ["ShareCommonSubexpressions"]


class ShareCommonSubexpressions(RewritePass):
    """Let two nodes with the same operator, attributes and inputs be one.

        f(x), f(x)   →   y = f(x); y, y

    Equal because operators are functions of their inputs; those that draw random numbers are left alone. So are the
    places of adjoints in a backward of the user's own: each call has its adjoint, and a backward may clip it.
    """

    tidies = True

    def begin(self, graph: ir.Graph) -> None:
        """Forget the graph before."""
        self._seen: dict[Hashable, list[ir.Value | None]] = {}

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether two nodes are alike that read the same values, or constants that are."""
        seen: set[Hashable] = set()
        for node in graph:
            if not _is_shared(node):
                continue
            key = _key(node, tuple(map(_identity, node.inputs)))
            if key in seen:
                return True
            seen.add(key)
        return False

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Rebuild the model; what changed are the nodes that are gone."""
        before = len(live_nodes(model.graph))
        shared, _ = super().apply(model)
        return shared, before - len(live_nodes(shared.graph))

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Return the outputs of the equal node, if there was one."""
        if not _is_shared(node):
            return None
        key = _key(node, tuple(map(id, inputs)))
        if key in self._seen:
            return self._seen[key]
        copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
        outputs = op.add(copy, [v.name for v in node.outputs])
        self._seen[key] = list(outputs) if isinstance(outputs, tuple) else [outputs]
        return self._seen[key]


def _is_shared(node: ir.Node) -> bool:
    record = record_of(node)
    return not record.distinct and record.chance is Chance.NEVER


def _key(node: ir.Node, inputs: Hashable) -> Hashable:
    """What two nodes have in common that compute the same."""
    attributes = tuple(sorted((name, _plain(attr)) for name, attr in node.attributes.items()))
    return node.domain, node.op_type, len(node.outputs), inputs, attributes


def _identity(value: ir.Value | None) -> Hashable:
    """The value itself, and of a constant its contents: a rebuilt graph has equal ones once."""
    if value is None or value.const_value is None:
        return id(value)
    return content_of(np.asarray(value.const_value.numpy()))


def _plain(attr: ir.Attr) -> Hashable:
    if attr.type is ir.AttributeType.TENSOR:
        return content_of(np.asarray(attr.value.numpy()))
    return tuple(attr.value) if isinstance(attr.value, list) else attr.value
