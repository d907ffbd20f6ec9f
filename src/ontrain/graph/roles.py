"""What the inputs and outputs of a graph are for, kept as metadata on the values themselves."""

from __future__ import annotations

import enum

import onnx_ir as ir

__all__ = [
    "Role", "adjoint_of", "by_role", "gradient_of", "role_of", "set_adjoint_of", "set_gradient_of", "set_role",
    "set_updates", "updates_of",
]  # fmt: skip

_ROLE, _UPDATES, _GRADIENT, _ADJOINT = "ontrain.role", "ontrain.updates", "ontrain.gradient", "ontrain.adjoint"


class Role(enum.StrEnum):
    """What a graph input is."""

    INPUT = "input"
    LABEL = "label"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    STATE = "state"  # optimizer moments, gradient accumulators
    HYPER = "hyper"  # learning rate, step, loss scale
    RNG = "rng"
    ADJOINT = "adjoint"  # of an output, brought by the caller after the forward pass

    @property
    def resident(self) -> bool:
        """Whether the value stays with the session from step to step."""
        return self in (Role.PARAMETER, Role.BUFFER, Role.STATE)


def set_role(value: ir.Value, role: Role) -> ir.Value:
    """Mark a graph input and return it."""
    value.metadata_props[_ROLE] = role.value
    return value


def role_of(value: ir.Value) -> Role:
    """Return the role of a graph input; an unmarked one is plain input."""
    return Role(value.metadata_props.get(_ROLE, Role.INPUT))


def by_role(graph: ir.Graph, *roles: Role) -> list[ir.Value]:
    """Return the graph's inputs that have one of the roles, in graph order."""
    return [value for value in graph.inputs if role_of(value) in roles]


def set_updates(value: ir.Value, name: str) -> ir.Value:
    """Mark a graph output as the next value of the resident input `name`."""
    value.metadata_props[_UPDATES] = name
    return value


def updates_of(value: ir.Value) -> str | None:
    """Return the resident input that this graph output replaces, if any."""
    return value.metadata_props.get(_UPDATES)


def set_gradient_of(value: ir.Value, name: str) -> ir.Value:
    """Mark a graph output as the gradient of the input `name`."""
    value.metadata_props[_GRADIENT] = name
    return value


def set_adjoint_of(value: ir.Value, name: str) -> ir.Value:
    """Mark a graph input as the adjoint of the output `name`, and return it."""
    value.metadata_props[_ADJOINT] = name
    return set_role(value, Role.ADJOINT)


def adjoint_of(value: ir.Value) -> str | None:
    """Return the output whose adjoint this graph input is, if any."""
    return value.metadata_props.get(_ADJOINT)


def gradient_of(value: ir.Value) -> str | None:
    """Return the input whose gradient this graph output is, if any."""
    return value.metadata_props.get(_GRADIENT)
