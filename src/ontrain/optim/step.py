"""The graph of a training step: forward, loss, backward, accumulation, clipping and update in one model."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import onnx_ir as ir

from ontrain.autodiff import differentiate
from ontrain.errors import GradientError, GraphError, OptionError, nearest
from ontrain.graph import (
    Builder,
    Role,
    Slot,
    StateKind,
    by_role,
    dims,
    is_float,
    rebuild,
    set_slot,
    set_updates,
    static_dims,
    updates_of,
)
from ontrain.optim.loss import loss_weight, named_output
from ontrain.optim.spec import OptimizerSpec
from ontrain.optim.update import Step, add_hyper, clip_and_update

__all__ = ["StepKind", "build_step"]

_LABEL_COUNT = Slot("", StateKind.LABEL_COUNT)


class StepKind(enum.StrEnum):
    """What a step graph does with the gradient."""

    UPDATE = "update"  # one micro-batch is the batch
    ACCUMULATE = "accumulate"  # add to the accumulators, nothing else
    ACCUMULATE_UPDATE = "accumulate_update"  # the last micro-batch: add, then update


def build_step(
    model: ir.Model,
    loss: str,
    optimizer: OptimizerSpec,
    *,
    trainable: Iterable[str],
    kind: StepKind = StepKind.UPDATE,
    max_norm: float | None = None,
    narrow: bool = False,
) -> ir.Model:
    """Return a new model that makes one training step; resident inputs have an output that updates them.

    Beside the model's own outputs it gives `{name}.next` for each parameter or state it changes, and with an update
    `grad_norm` (0-d float32, of the gradient before clipping and without loss scale) and `all_finite` (0-d bool).
    Moments are inputs `{param}.exp_avg` and the like, accumulators `{param}.grad_acc` and `loss_weight_acc`, all of
    role STATE and zero at first. The step graph does not reset accumulators: whoever keeps them does after
    ACCUMULATE_UPDATE. The loss is normalised by labels over all micro-batches, not by their number, see
    `ontrain.optim.loss.loss_weight`. A parameter on which the loss does not depend is left alone, as by torch.

    Args:
        model: forward graph with concrete shapes and roles; left untouched.
        loss: name of the output that is the loss, of one element.
        optimizer: algorithm and hyper-parameters.
        trainable: names of the parameters to train.
        kind: what to do with the gradient.
        max_norm: clip the gradient to this norm, as torch.nn.utils.clip_grad_norm_; None leaves it.
        narrow: parts of the model compute in half precision. Gradients are then weighted by labels when they are added
            up, in float32, and not through the adjoint of the loss, whose range the loss scale needs; and running
            statistics take over finite values only.

    Raises:
        OptionError: unknown loss or parameter, or `max_norm` not positive.
        GraphError: the model uses a name that the step needs.
        GradientError: the loss depends on none of the parameters, or an operator has no gradient.
    """
    if max_norm is not None and not max_norm > 0:
        raise OptionError(f"max_norm is {max_norm}", way_out="use a positive norm, or None for no clipping")
    kind, step_model = StepKind(kind), rebuild(model)
    graph, op = step_model.graph, Builder(step_model.graph)
    wanted = _trainable(graph, trainable, optimizer)
    value = _loss(graph, loss)
    hyper = add_hyper(op)
    seed, weight = hyper.loss_scale, None
    if kind is not StepKind.UPDATE:
        with op.arithmetic():
            weight = loss_weight(op, graph, value)
            # Accumulated gradients are sums over labels until the update divides them.
            seed = seed if narrow else op.Mul(seed, weight)
    seed = op.Cast(seed, to=value.dtype)
    seed = op.Reshape(seed, list(static_dims(value))) if dims(value) else seed
    grads = differentiate(op, [(value, seed)], wanted, zeros=True)
    step = Step(op, hyper, optimizer, {p: g for p, g in zip(wanted, grads, strict=True) if g is not None})
    if not step.grads:
        raise GradientError(
            f"the loss {loss!r} depends on none of the {len(wanted)} trainable parameters",
            way_out="check that the output named as loss is computed from the parameters, and that not all are frozen",
        )
    with op.arithmetic():
        if narrow:
            _keep_finite(step)
        labels = None if weight is None else _accumulate(step, weight, kind, narrow)
        if kind is not StepKind.ACCUMULATE:
            scale = hyper.loss_scale if labels is None else hyper.loss_scale * labels
            clip_and_update(step, op.Reciprocal(scale), max_norm)
    return step_model


def _keep_finite(step: Step) -> None:
    """Let running statistics stay as they are where a batch overflowed: its update will be skipped, too."""
    op, graph = step.op, step.op.graph
    resident = {v.name: v for v in by_role(graph, Role.BUFFER)}
    for i, value in enumerate(graph.outputs):
        name = updates_of(value)
        if name is None or not is_float(value):
            continue
        before = resident[name]
        checked = op.Where(op.Or(op.IsNaN(value), op.IsInf(value)), before, value)
        checked.name, value.name = value.name, op.fresh(f"{name}.unchecked")
        value.metadata_props.clear()
        graph.outputs[i] = set_updates(checked, name)


def _accumulate(step: Step, weight: ir.Value, kind: StepKind, narrow: bool) -> ir.Value | None:
    """Add to the accumulators; for an update return the number of labels to divide the sums by, else the new sums."""
    op = step.op
    before = {p: step.state(Slot(p.name or "", StateKind.GRADIENT_SUM), p) for p in step.grads}
    count = step.input(_LABEL_COUNT.name, ir.DataType.FLOAT, [], Role.STATE)
    weight_before = set_slot(count, _LABEL_COUNT)
    for param, acc in before.items():
        grad = op.Cast(step.grads[param], to=acc.dtype)
        step.grads[param] = op.Add(acc, op.Mul(grad, weight) if narrow else grad)
    labels = op.Add(weight_before, weight)
    if kind is StepKind.ACCUMULATE:
        for param, acc in before.items():
            step.update(step.grads[param], acc.name or "")
        step.update(labels, _LABEL_COUNT.name)
        return None
    # No label anywhere: the sums are zero, and so shall the gradient be, as in eager PyTorch.
    divisor: ir.Value = op.Where(op.Greater(labels, 0.0), labels, 1.0)
    return divisor


def _trainable(graph: ir.Graph, names: Iterable[str], optimizer: OptimizerSpec) -> list[ir.Value]:
    known = {v.name or "": v for v in by_role(graph, Role.PARAMETER)}
    optimizer.check_parameters(known)
    names = set(names)
    for name in sorted(names - set(known)):
        raise OptionError(f"the model has no parameter {name!r}", way_out=f"nearest: {nearest(name, known)}")
    return [value for name, value in known.items() if name in names]


def _loss(graph: ir.Graph, name: str) -> ir.Value:
    loss = named_output(graph, name)
    shape = static_dims(loss)
    if any(d != 1 for d in shape):
        raise GraphError(f"the loss {name!r} has shape {list(shape)}", way_out="reduce it to one element")
    return loss
