"""Where the values of a graph lie before the first instruction is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ontrain.providers.torch.buffers import Buf, Storage

__all__ = ["Late", "Placement", "Snapshot", "UpdateKey"]

UpdateKey = tuple[object, ...]
"""What updates of an optimizer have in common that are emitted together."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of a resident, made before the resident is updated, for whoever reads the old value later."""

    copy: Buf
    resident: Buf


@dataclass(frozen=True)
class Late:
    """An update that goes to its resident once every node of the forward half has run."""

    value: ir.Value
    resident: Buf


@dataclass(frozen=True)
class Placement:
    """Made before a graph is lowered, and never changed.

    Attributes:
        feeds: places that each run fills before the first instruction, by the name of the input.
        adjoints: places that each run fills before the backward half, by the name of the input.
        bound: the buffers of all graph inputs.
        pins: places that values are computed into.
        snapshots: made before the first instruction.
        late: written after the forward half.
        addends: what the lowering of a value adds it to; both are terms of a sum whose place the value is pinned to.
        skipped: nodes that emit nothing, each with the value where its result is; None for a result that nobody reads.
        updates: nodes of optimizers by what they have in common, in the order of the graph.
        gradients: places of parameters' gradients, by the name of the parameter.
        constants: memory of residents that never change.
    """

    feeds: Mapping[str, Buf] = field(default_factory=dict)
    adjoints: Mapping[str, Buf] = field(default_factory=dict)
    bound: Mapping[ir.Value, Buf] = field(default_factory=dict)
    pins: Mapping[ir.Value, Buf] = field(default_factory=dict)
    snapshots: Sequence[Snapshot] = ()
    late: Sequence[Late] = ()
    addends: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    skipped: Mapping[ir.Node, ir.Value | None] = field(default_factory=dict)
    updates: Mapping[UpdateKey, Sequence[ir.Node]] = field(default_factory=dict)
    gradients: Mapping[str, Buf] = field(default_factory=dict)
    constants: frozenset[Storage] = frozenset()
