"""The table of lowerings: how one node becomes instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ontrain.graph import DOMAIN
from ontrain.providers.torch.emitter import Emitter

__all__ = [
    "Attributes",
    "Lowering",
    "attributes",
    "called_by_element",
    "can_add",
    "computed_by",
    "find_lowering",
    "lowers",
    "lowers_composite",
]

Lowering = Callable[[Emitter, ir.Node], None]

Attributes = dict[str, Any]
"""Attributes by name, as Python values; the schema says of what type."""

_table: dict[tuple[str, str], Lowering] = {}
_adding: set[Lowering] = set()
_when: dict[Lowering, Callable[[ir.Node], bool]] = {}
_devices: dict[Lowering, Sequence[str]] = {}


def _runs_all(node: ir.Node) -> bool:
    return True


def lowers(
    *op_types: str, domain: str = "", adds: bool = False, when: Callable[[ir.Node], bool] = _runs_all,
    devices: Sequence[str] = (),
) -> Callable[[Lowering], Lowering]:  # fmt: skip
    """Register the decorated function as the lowering of standard operators.

    Args:
        op_types: names of the operators.
        domain: of the operators.
        adds: whether the lowering can add its result to something; see `Emitter.added_to`.
        when: which uses of the operators it is for; the others run by their bodies.
        devices: types of devices that it is for, by default all; on others the bodies run.
    """

    def register(lowering: Lowering) -> Lowering:
        _when[lowering], _devices[lowering] = when, devices
        for op_type in op_types:
            _table[domain, op_type] = lowering
        if adds:
            _adding.add(lowering)
        return lowering

    return register


def lowers_composite(
    *op_types: str, adds: bool = False, when: Callable[[ir.Node], bool] = _runs_all, devices: Sequence[str] = ()
) -> Callable[[Lowering], Lowering]:  # fmt: skip
    """Register the decorated function as the native implementation of composites."""
    return lowers(*op_types, domain=DOMAIN, adds=adds, when=when, devices=devices)


def computed_by(*, fresh: bool = False, **functions: Callable[..., object]) -> None:
    """Lower standard operators to functions of (attributes, *tensors) that return the result.

    Args:
        fresh: whether the results share no memory with the operands; see `Emitter.compute`.
        functions: by operator.
    """

    def lowering_by(function: Callable[..., object]) -> Lowering:
        def lower(e: Emitter, node: ir.Node) -> None:
            stated = attributes(node)
            operands = [e.value(v) for v in node.inputs]
            e.compute(lambda *x: function(stated, *x), *operands, outs=[e.out(node.outputs[0])], fresh=fresh)

        lower.__module__ = function.__module__
        return lower

    for op_type, function in functions.items():
        lowers(op_type)(lowering_by(function))


def called_by_element(page: str, *, domain: str = "", **functions: Callable[..., object]) -> None:
    """Lower operators to one elementwise function of torch each, called with `out=`, in place where an operand dies.

    Args:
        page: `__name__` of the module whose operators these are.
        domain: of all of them.
        functions: by operator.
    """

    def lowering_by(function: Callable[..., object]) -> Lowering:
        def lower(e: Emitter, node: ir.Node) -> None:
            inputs = [e.value(v) for v in node.inputs]
            e.call(function, *inputs, out=e.out(node.outputs[0], *inputs), elementwise=True)

        lower.__module__ = page
        return lower

    for op_type, function in functions.items():
        lowers(op_type, domain=domain)(lowering_by(function))


def can_add(node: ir.Node) -> bool:
    """Whether the lowering of a node can add its result to something."""
    return find_lowering(node) in _adding


def find_lowering(node: ir.Node, device: str = "cpu") -> Lowering | None:
    """Return the lowering of a node's operator, if there is one for such a use of it on such a type of device."""
    lowering = _table.get((node.domain, node.op_type))
    if lowering is None or (_devices[lowering] and device not in _devices[lowering]):
        return None
    return lowering if _when[lowering](node) else None


def attributes(node: ir.Node) -> Attributes:
    """Return the node's attributes as Python values."""
    return {k: v.value.decode() if isinstance(v.value, bytes) else v.value for k, v in node.attributes.items()}
