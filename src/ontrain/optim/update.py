"""The end of a training step: norm, clipping, and the update of each parameter; as part of a step or on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.functions import lamb_direction, lamb_move
from ontrain.graph import (
    Builder,
    Role,
    Slot,
    StateKind,
    new_model,
    rebuild,
    set_role,
    set_slot,
    set_updates,
    static_dims,
)
from ontrain.operators import Value
from ontrain.optim.hyper import Hyper
from ontrain.optim.spec import OptimizerSpec

__all__ = [
    "Part", "Step", "add_hyper", "build_lamb_directions", "build_lamb_moves", "build_update",
    "clip_and_update",
]  # fmt: skip

_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_'s


@dataclass(frozen=True)
class Part:
    """A parameter, or the stretch of a flattened one that this process updates.

    Attributes:
        name: of the resident tensor. Its gradient is resident as `{name}.grad_acc`, its moments as `{name}.exp_avg` …
        parameter: the one whose hyper-parameters hold.
        shape, dtype: of the tensor.
    """

    name: str
    parameter: str
    shape: tuple[int, ...]
    dtype: ir.DataType


@dataclass
class Step:
    """What the stages of building a step share."""

    op: Builder
    hyper: Hyper[ir.Value]
    optimizer: OptimizerSpec
    grads: dict[ir.Value, ir.Value]
    """Parameters on which the loss depends, and their gradients."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The parameter that a part belongs to, by the part's name."""

    def owner(self, param: ir.Value) -> str:
        """Name of the parameter whose hyper-parameters hold."""
        name = param.name or ""
        return self.owners.get(name, name)

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int], role: Role) -> ir.Value:
        """Add an input to the graph."""
        return _add_input(self.op, name, dtype, shape, role)

    def state(self, slot: Slot, param: ir.Value) -> ir.Value:
        """Add a resident input of the parameter's shape, in float32 at least."""
        return set_slot(self.input(slot.name, _state_dtype(param), static_dims(param), Role.STATE), slot)

    def moments(self, param: ir.Value) -> list[ir.Value]:
        """Add the optimizer's state of one parameter."""
        kinds = self.optimizer.state_kinds(self.owner(param))
        return [self.state(Slot(param.name or "", kind), param) for kind in kinds]

    def output(self, value: ir.Value, name: str) -> ir.Value:
        """Make `value` an output under `name`."""
        if self.op.fresh(name) != name:
            raise GraphError(f"the model has a value named {name!r} already", way_out="rename it: the step needs it")
        value.name = name
        self.op.graph.outputs.append(value)
        return value

    def update(self, value: ir.Value, name: str) -> None:
        """Make `value` the next value of the resident input `name`."""
        set_updates(self.output(value, f"{name}.next"), name)


def clip_and_update(step: Step, scale: ir.Value, max_norm: float | None) -> None:
    """Append norm, clipping and, after everything else, the updates, so that they may run in place."""
    op = step.op
    norm = op.Mul(op.composite("GlobalNorm", *step.grads.values()), scale)
    finite = op.Not(op.Or(op.IsNaN(norm), op.IsInf(norm)))
    scale = _clipped(op, scale, norm, max_norm)
    step.output(norm, "grad_norm")
    step.output(finite, "all_finite")
    states = {p: step.moments(p) for p in step.grads}
    for param, grad in step.grads.items():
        olds = [param, *states[param]]
        news = _updated(step, param, grad, states[param], scale)
        for old, new in zip(olds, news, strict=True):
            step.update(new, old.name or "")


def build_update(parts: Sequence[Part], optimizer: OptimizerSpec, max_norm: float | None = None) -> ir.Model:
    """Return the update alone, of a gradient that is complete but for the loss scale, and finite.

    Inputs are those of `Hyper`, `norm` (0-d float32, of the whole gradient, of which there may be more than these
    parts), and parameters, gradients and moments as `Part` names them; outputs are `{name}.next`.

    Args:
        parts: what to update.
        optimizer: algorithm and hyper-parameters.
        max_norm: clip the gradient to this norm; None leaves it.
    """
    model, step, scale = _update_of(parts, optimizer, max_norm)
    states = {p: step.moments(p) for p in step.grads}
    with step.op.arithmetic():
        for param, grad in step.grads.items():
            news = _updated(step, param, grad, states[param], scale)
            for old, new in zip([param, *states[param]], news, strict=True):
                step.update(new, old.name or "")
    return model


def build_lamb_directions(parts: Sequence[Part], optimizer: OptimizerSpec, max_norm: float | None = None) -> ir.Model:
    """Return the first half of LAMB's update, for parameters that lie on several processes: moments and directions.

    Inputs are those of `build_update`. The direction of each part takes the place of its gradient. Outputs are
    `param_squares` and `update_squares`, [parts] float64: the sums of squares of the parts and of their directions,
    which all processes that hold a part of the same parameter have to add up.
    """
    model, step, scale = _update_of(parts, optimizer, max_norm)
    op = step.op
    squares: dict[str, list[ir.Value]] = {name: [] for name in _SQUARES}
    with op.arithmetic():
        for param, grad in step.grads.items():
            m, v = step.moments(param)
            chosen: dict[str, Any] = optimizer.attributes_for(step.owner(param))
            ours = {name: value for name, value in chosen.items() if name not in _RATIO}
            direction, *moments = lamb_direction(op, param, grad, m, v, step.hyper.step, scale, **ours)
            for name, value in zip(_SQUARES, (param, direction), strict=True):
                total = op.ReduceSumSquare(op.Cast(value, to=ir.DataType.DOUBLE), keepdims=0)
                squares[name].append(op.Reshape(total, [1]))
            for old, new in zip((grad, m, v), (direction, *moments), strict=True):
                step.update(new, old.name or "")
        for name, values in squares.items():
            step.output(op.Concat(*values, axis=0), name)
    return rebuild(model)  # without the casts that were none


def build_lamb_moves(parts: Sequence[Part], optimizer: OptimizerSpec) -> ir.Model:
    """Return the second half: the squares of whole parameters and directions in, the parts' next values out.

    Inputs are those of `Hyper`, `norm`, `param_squares` and `update_squares` as above, the parts, and their directions
    as gradients.
    """
    model, step, _ = _update_of(parts, optimizer, None)
    op = step.op
    squares = [step.input(name, ir.DataType.DOUBLE, [len(parts)], Role.HYPER) for name in _SQUARES]
    with op.arithmetic():
        norms = [op.Sqrt(total) for total in squares]
        for number, (param, direction) in enumerate(step.grads.items()):
            ratio = {k: v for k, v in optimizer.attributes_for(step.owner(param)).items() if k in _RATIO}
            learning_rate, of_param, of_update = (
                op.Cast(v, to=param.dtype)
                for v in (step.hyper.learning_rate, *(op.Gather(norm, [number], axis=0) for norm in norms))
            )
            moved = lamb_move(
                op, cast(Value, param), cast(Value, direction), learning_rate, of_param, of_update, **ratio
            )
            step.update(moved, param.name or "")
    return rebuild(model)  # without the casts that were none


_SQUARES = ("param_squares", "update_squares")
_RATIO = ("ratio_min", "ratio_max")


def _update_of(
    parts: Sequence[Part], optimizer: OptimizerSpec, max_norm: float | None
) -> tuple[ir.Model, Step, ir.Value]:
    """A model with hyper-parameters, parts and their gradients as inputs, and the scale of the gradient."""
    model = new_model([], "update")
    op = Builder(model.graph)
    hyper = add_hyper(op)
    norm = _add_input(op, "norm", ir.DataType.FLOAT, [], Role.HYPER)
    step = Step(op, hyper, optimizer, {}, {part.name: part.parameter for part in parts})
    for part in parts:
        param = step.input(part.name, part.dtype, part.shape, Role.PARAMETER)
        step.grads[param] = step.state(Slot(part.name, StateKind.GRADIENT_SUM), param)
    with op.arithmetic():
        scale = op.Reciprocal(hyper.loss_scale)
        return model, step, _clipped(op, scale, norm * scale, max_norm)


def _clipped(op: Builder, scale: ir.Value, norm: ir.Value, max_norm: float | None) -> ir.Value:
    """The scale that brings a gradient of this norm to `max_norm` at most, as torch.nn.utils.clip_grad_norm_."""
    if max_norm is None:
        return scale
    clipped: ir.Value = op.Mul(scale, op.Min(op.Div(max_norm, op.Add(norm, _EPSILON)), 1.0))
    return clipped


def _updated(
    step: Step, param: ir.Value, grad: ir.Value, states: Sequence[ir.Value], scale: ir.Value
) -> tuple[ir.Value, ...]:
    """Append the update function of one parameter; the new parameter and states."""
    spec, learning_rate, number = step.optimizer, step.hyper.learning_rate, step.hyper.step
    return spec.update(step.op, step.owner(param), param, grad, states, learning_rate, number, scale)


def add_hyper(op: Builder) -> Hyper[ir.Value]:
    """Add the inputs that bring the numbers of each step.

    Raises:
        GraphError: the model has a value of such a name.
    """
    return Hyper.of(lambda name: _add_input(op, name, ir.DataType.FLOAT, [], Role.HYPER))


def _add_input(op: Builder, name: str, dtype: ir.DataType, shape: Sequence[int], role: Role) -> ir.Value:
    if op.fresh(name) != name:
        raise GraphError(f"the model has a value named {name!r} already", way_out="rename it: the step needs the name")
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
    op.graph.inputs.append(set_role(value, role))
    return value


def _state_dtype(param: ir.Value) -> ir.DataType:
    return ir.DataType.DOUBLE if param.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
