"""The answer to "can this be trained, by whom, and what would a step cost?", as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ontrain.errors import OntrainError

__all__ = ["CheckReport", "Cost", "OperatorUse", "ParameterUse", "Problem"]

SCHEMA_VERSION = 1
"""Of `CheckReport.to_json`: raised when a field is renamed, removed or changes its meaning."""

GradientKind = Literal["rule", "body", "zero", "none", "not needed"]


@dataclass(frozen=True)
class Problem:
    """One reason why training cannot start.

    Attributes:
        kind: "capture" (the graph cannot be read or specialised), "run" (the provider lacks an operator), "gradient"
            (an operator on the way to a parameter has none), or "loss".
        message: the problem in one sentence.
        node: the node, by operator, inputs and outputs with shapes.
        source: the line of the user's model that made it.
        reason: why ontrain cannot go on.
        way_out: what to do about it.
    """

    kind: Literal["capture", "run", "gradient", "loss"]
    message: str
    node: str | None = None
    source: str | None = None
    reason: str | None = None
    way_out: str | None = None

    @classmethod
    def of(cls, kind: Literal["capture", "run", "gradient", "loss"], error: OntrainError) -> Problem:
        """Return an error as a problem."""
        return cls(kind, error.problem, error.node, error.source, error.reason, error.way_out)


@dataclass(frozen=True)
class OperatorUse:
    """An operator of the forward graph.

    Attributes:
        operator: its name, with the domain unless that is the standard's.
        count: nodes of it.
        provider: who runs it; None if the provider refuses one of the nodes.
        gradient: how gradients flow back through it ("rule", "body" or "zero"), "none" if one of the nodes that need a
            gradient has none, and "not needed" if no trainable parameter lies behind any of them.
        needed: nodes on a path from a trainable parameter to the loss.
        reason: why it cannot be run or differentiated, or else how it is differentiated.
    """

    operator: str
    count: int
    provider: str | None
    gradient: GradientKind
    needed: int
    reason: str


@dataclass(frozen=True)
class ParameterUse:
    """A parameter: its shape, whether it is to be trained, and whether the loss depends on it at all."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    reached: bool


@dataclass(frozen=True)
class Cost:
    """What one step needs.

    Attributes:
        forward_flop: of the forward graph; a multiplication and an addition are two.
        forward_product_flop: the part of matrix products and convolutions in it, exact.
        backward_flop, backward_product_flop: the same for the rest of the step, backward and update.
        parameter_bytes: parameters and buffers.
        optimizer_bytes: moments.
        working_bytes: results alive at the same time, gradients included, and the provider's own memory.
        working_is_planned: whether the provider's own plan says so; else it is an estimate.
    """

    forward_flop: int
    forward_product_flop: int
    backward_flop: int
    backward_product_flop: int
    parameter_bytes: int
    optimizer_bytes: int
    working_bytes: int
    working_is_planned: bool

    @property
    def total_bytes(self) -> int:
        """Memory of a step."""
        return self.parameter_bytes + self.optimizer_bytes + self.working_bytes


@dataclass(frozen=True)
class CheckReport:
    """What `check_file` and `check_module` find.

    Attributes:
        subject: what was checked.
        provider, optimizer: what a step was planned for.
        loss: name of the output to minimise, and how it was chosen.
        loss_origin: "output" of the model, "added" by name, or "mean" of the first output for want of any.
        sizes: what the varying dimensions were taken to be.
        inputs: shapes of a batch at these sizes.
        operators: of the specialised forward graph, the most frequent first.
        parameters: all of the model's.
        cost: None where no step can be built.
        problems: what stands in the way; nothing if the model can be trained.
    """

    subject: str
    provider: str
    optimizer: str
    loss: str | None = None
    loss_origin: Literal["output", "added", "mean"] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    operators: tuple[OperatorUse, ...] = ()
    parameters: tuple[ParameterUse, ...] = ()
    cost: Cost | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def trainable(self) -> bool:
        """Whether training can start."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values, with "schema" and "trainable" beside the attributes."""
        content = asdict(self)
        if self.cost is not None:
            content["cost"]["total_bytes"] = self.cost.total_bytes
        for row in content["parameters"]:
            row["shape"] = list(row["shape"])
        content["inputs"] = {name: list(shape) for name, shape in self.inputs.items()}
        for name in ("operators", "parameters", "problems"):
            content[name] = list(content[name])
        return {"schema": SCHEMA_VERSION, "trainable": self.trainable, **content}
