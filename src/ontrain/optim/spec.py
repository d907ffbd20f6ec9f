"""What an optimizer is to a graph: the name of its update function, and the attributes of each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ontrain.errors import OptionError, nearest
from ontrain.functions import composites
from ontrain.graph import Builder, Slot, StateKind
from ontrain.operators import OPERATORS

__all__ = ["ALGORITHMS", "OptimizerSpec"]

ALGORITHMS = {
    record.name: tuple(map(StateKind, record.moments)) for record in OPERATORS.values() if record.moments is not None
}
"""The state that each algorithm keeps per parameter, under torch.optim's names, in the order of its operands."""


@dataclass(frozen=True)
class OptimizerSpec:
    """An algorithm with its hyper-parameters; the learning rate is not among them, it is an input of the graph.

    Args:
        algorithm: "SGD", "Adam", "AdamW" or "Lamb", a composite function of that name.
        defaults: attributes of that function for all parameters; what is left out has the function's own default.
        groups: (parameter names, attributes) that override `defaults` for these parameters.

    Raises:
        OptionError: an unknown algorithm or hyper-parameter, or a parameter in two groups.
    """

    algorithm: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[tuple[AbstractSet[str], Mapping[str, Any]]] = ()

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise OptionError(
                f"there is no optimizer {self.algorithm!r}", way_out=f"use one of {', '.join(map(repr, ALGORITHMS))}"
            )
        known = composites[self.algorithm].defaults
        for attributes in (self.defaults, *(overrides for _, overrides in self.groups)):
            for name in attributes:
                if name not in known:
                    raise OptionError(
                        f"{self.algorithm} has no hyper-parameter {name!r}", way_out=f"nearest: {nearest(name, known)}"
                    )
        seen: set[str] = set()
        for names, _ in self.groups:
            twice = seen & names
            if twice:
                raise OptionError(
                    f"parameter {min(twice)!r} is in two groups", way_out="name each parameter in one group at most"
                )
            seen |= names

    def check_parameters(self, known: Iterable[str]) -> None:
        """Raise OptionError if a group names a parameter that is not among `known`."""
        known = set(known)
        for names, _ in self.groups:
            for name in sorted(names - known):
                raise OptionError(
                    f"a parameter group names {name!r}, which is no parameter of the model",
                    way_out=f"nearest: {nearest(name, known)}",
                )

    def attributes_for(self, param: str) -> dict[str, int | float]:
        """Return all attributes of the update function for one parameter, its group's overrides applied."""
        known = composites[self.algorithm].defaults
        chosen = {**known, **self.defaults}
        for names, overrides in self.groups:
            if param in names:
                chosen.update(overrides)
        return {name: type(known[name])(value) for name, value in chosen.items()}

    def update(
        self, op: Builder, name: str, param: ir.Value, grad: ir.Value, states: Sequence[ir.Value],
        learning_rate: ir.Value, number: ir.Value, scale: ir.Value,
    ) -> tuple[ir.Value, ...]:  # fmt: skip
        """Append the update function of the parameter of this name; return the new parameter and states."""
        operands = [param, grad, *states, learning_rate, number, scale]
        if self.algorithm == "SGD":
            operands = [param, grad, learning_rate, scale, *states, *([number] if states else [])]
        results = op.composite(self.algorithm, *operands, outputs=1 + len(states), **self.attributes_for(name))
        return results if isinstance(results, tuple) else (results,)

    def state_names(self, param: str) -> tuple[str, ...]:
        """Return the names of the state that the parameter needs: "fc.weight.exp_avg", …; plain SGD needs none."""
        return tuple(slot.name for slot in self.slots(param))

    def slots(self, param: str) -> tuple[Slot, ...]:
        """Return the state that the parameter needs."""
        return tuple(Slot(param, kind) for kind in self.state_kinds(param))

    def state_kinds(self, param: str) -> tuple[StateKind, ...]:
        """Return the kinds of state that the parameter needs."""
        if self.algorithm == "SGD" and not self.attributes_for(param)["momentum"]:
            return ()
        return ALGORITHMS[self.algorithm]
