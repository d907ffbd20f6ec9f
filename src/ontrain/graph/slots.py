"""What a resident tensor is, and to which parameter it belongs: said on specifications and values, not by names."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.graph.roles import Role, set_role

__all__ = ["Slot", "StateKind", "set_slot", "slot_of"]

_OWNER, _KIND = "ontrain.owner", "ontrain.kind"


class StateKind(enum.StrEnum):
    """What a resident tensor is: of the model itself, or to a parameter."""

    FIXED = "fixed"  # a buffer, or a parameter that is not trained
    CONSTANT = "constant"  # of a session for inference: nobody ever writes to it again
    PARAMETER = "parameter"
    GRADIENT = "gradient"
    GRADIENT_SUM = "grad_acc"  # over the micro-batches of an update
    LABEL_COUNT = "loss_weight_acc"  # what those sums are divided by; of no parameter alone
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    MOMENTUM = "momentum_buffer"


@dataclass(frozen=True)
class Slot:
    """What a run keeps beside a parameter.

    Attributes:
        owner: the parameter, or the stretch of one that a process updates; "" for what belongs to none.
        kind: what it is to the owner.
    """

    owner: str
    kind: StateKind

    @property
    def name(self) -> str:
        """What the resident tensor is called: "fc.weight.exp_avg"."""
        return f"{self.owner}.{self.kind}" if self.owner else self.kind.value


def set_slot(value: ir.Value, slot: Slot) -> ir.Value:
    """Mark a graph input as a parameter's state, and return it."""
    value.metadata_props[_OWNER], value.metadata_props[_KIND] = slot.owner, slot.kind.value
    return set_role(value, Role.STATE)


def slot_of(value: ir.Value) -> Slot | None:
    """Return what a graph input is to which parameter; None for one that is no state."""
    kind = value.metadata_props.get(_KIND)
    return None if kind is None else Slot(value.metadata_props[_OWNER], StateKind(kind))
