"""Equal computations done once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, live_nodes
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

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Rebuild the model; what changed are the nodes that are gone."""
        before = len(live_nodes(model.graph))
        shared, _ = super().apply(model)
        return shared, before - len(live_nodes(shared.graph))

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Return the outputs of the equal node, if there was one."""
        record = record_of(node)
        if record.distinct or record.chance is not Chance.NEVER:
            return None
        key = (
            node.domain,
            node.op_type,
            len(node.outputs),
            tuple(id(v) for v in inputs),
            tuple(sorted((name, _plain(attr)) for name, attr in node.attributes.items())),
        )
        if key in self._seen:
            return self._seen[key]
        copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
        outputs = op.add(copy, [v.name for v in node.outputs])
        self._seen[key] = list(outputs) if isinstance(outputs, tuple) else [outputs]
        return self._seen[key]


def _plain(attr: ir.Attr) -> Hashable:
    if attr.type is ir.AttributeType.TENSOR:
        array = np.asarray(attr.value.numpy())
        return (array.dtype.str, array.shape, array.tobytes())
    return tuple(attr.value) if isinstance(attr.value, list) else attr.value
