"""A forward graph with parameters, examined: every operator, every parameter, and the cost of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import onnx_ir as ir
import torch

from ontrain.autodiff import Differentiability, differentiability
from ontrain.capture import tensor_dtype
from ontrain.errors import GradientError, GraphError, OntrainError, OptionError, ProviderError, nearest
from ontrain.functions import count_flops, live_bytes, resident_bytes
from ontrain.graph import (
    Builder,
    Role,
    by_role,
    check_sizes,
    describe,
    dims,
    graphs_in,
    is_float,
    rebuild,
    source_of,
    specialise,
    static_dims,
)
from ontrain.optim import LOSSES, TORCH_NAMES, OptimizerSpec, StepKind, add_loss, build_step
from ontrain.passes import pipeline, run_passes
from ontrain.providers import ExecutionProvider
from ontrain.session.check.report import CheckReport, Cost, GradientKind, OperatorUse, ParameterUse, Problem
from ontrain.session.description import TrainingTask
from ontrain.session.failures import explained
from ontrain.session.feeds import batch_inputs
from ontrain.session.memory_limit import memory_limit
from ontrain.session.training import TrainingSession

__all__ = ["Subject", "examine", "with_loss"]

_PLAN_LIMIT = 2 << 30
"""Bytes of parameters up to which the step is really planned, which allocates them and their moments."""
_MAX_NORM = 1.0  # clip as trainers do by default: it is part of a step's cost
_DETACH = "register a rule with ontrain.autodiff.gradient, freeze the parameters before it, or detach its input"
_OTHER = "run on another provider, or register a lowering or a body for the operator"


@dataclass
class Subject:
    """What is examined.

    Attributes:
        name: what to call it.
        model: forward graph in training mode, roles on its inputs.
        tensors: all parameters and buffers of the graph by name.
        trainable: names of the parameters to train.
        frozen: names of those that stay.
    """

    name: str
    model: ir.Model
    tensors: Mapping[str, torch.Tensor]
    trainable: Sequence[str]
    frozen: Sequence[str] = field(default_factory=tuple)


def examine(
    subject: Subject,
    provider: ExecutionProvider,
    *,
    loss: str | None = None,
    sizes: Mapping[str, int] | None = None,
    optimizer: str = "AdamW",
) -> CheckReport:
    """Specialise, look at each node, and plan a step the way a training session does.

    Args:
        subject: the graph and its parameters.
        provider: what shall run it.
        loss: name of an output, or of a loss in `ontrain.optim.LOSSES` to add to the first output; by default an
            output that is a scalar, or else the mean of the first.
        sizes: of dimensions that vary, by name; 1 for those left out.
        optimizer: algorithm whose state counts in the cost.

    Raises:
        OptionError: `loss`, `sizes` or `optimizer` name what there is not.
    """
    spec = OptimizerSpec(optimizer)
    report = CheckReport(subject.name, provider.name, optimizer)
    try:
        model, name, origin = with_loss(subject.model, loss)
    except GraphError as error:
        return replace(report, problems=(Problem.of("loss", error),))
    taken = _sizes(model.graph, sizes or {})
    shapes = {str(v.name): _shape(v, taken) for v in batch_inputs(model.graph)}
    report = replace(report, loss=name, loss_origin=origin, sizes=taken, inputs=shapes)
    try:
        forward = specialise(model, shapes)
        check_sizes(forward, memory_limit())
    except OntrainError as error:
        return replace(report, problems=(Problem.of("capture", error),))
    active, needed = _paths(forward.graph, subject.trainable, name)
    looked = [_look(node, provider, needed) for node in forward.graph]
    operators = _summary([row for rows in looked for row in rows], provider)
    problems = [problem for rows in looked for row in rows for problem in row.problems]
    parameters = _parameters(subject, forward.graph, needed)
    report = replace(report, operators=operators, parameters=parameters)
    if not any(parameter.trainable and parameter.reached for parameter in parameters):
        problems.append(_nothing_to_train(name, len(subject.trainable), bool(active)))
    if not problems:
        try:
            with explained(forward.graph, {}, provider.name, "planning a step"):
                report = replace(report, cost=_cost(subject, model, forward, name, spec, provider))
        except OntrainError as error:
            problems.append(Problem.of(_kind(error), error))
    return replace(report, problems=tuple(problems))


def with_loss(model: ir.Model, wanted: str | None) -> tuple[ir.Model, str, Literal["output", "added", "mean"]]:
    """Return the model, the name of the output to minimise, and how it came about; see `examine`."""
    outputs = [v for v in model.graph.outputs if is_float(v) and "ontrain.updates" not in v.metadata_props]
    names = [str(v.name) for v in outputs]
    if wanted is not None and wanted in names:
        return model, wanted, "output"
    kind = TORCH_NAMES.get(wanted or "", wanted)
    if kind is not None and kind not in LOSSES:
        raise OptionError(
            f"there is no output and no loss called {wanted!r}",
            way_out=f"nearest: {nearest(kind, [*names, *TORCH_NAMES, *LOSSES])}",
        )
    if not outputs:
        raise GraphError(
            "the model has no floating-point output", reason="a loss is computed from one",
            way_out="give the model that computes what its present outputs are made of",
        )  # fmt: skip
    if kind is not None:
        return add_loss(model, kind, names[0]), "loss", "added"
    for value in sorted(outputs, key=lambda v: v.name != "loss"):
        if value.shape is not None and all(d == 1 for d in value.shape):
            return model, str(value.name), "output"
    specialised = rebuild(model)
    first = next(v for v in specialised.graph.outputs if v.name == names[0])
    op = Builder(specialised.graph)
    mean = op.ReduceMean(first, keepdims=0)
    mean.name = op.fresh(f"mean_of_{names[0]}")
    specialised.graph.outputs.insert(0, mean)
    return specialised, str(mean.name), "mean"


def _sizes(graph: ir.Graph, chosen: Mapping[str, int]) -> dict[str, int]:
    varying = {
        d.value: None for v in batch_inputs(graph) for d in dims(v) if not isinstance(d, int) and d.value is not None
    }
    for name, size in chosen.items():
        if name not in varying:
            known = nearest(name, varying) if varying else "all dimensions of this model are fixed"
            raise OptionError(f"the inputs have no dimension {name!r}", way_out=f"nearest: {known}")
        if size < 1:
            raise OptionError(f"dimension {name!r} is {size}", way_out="give a size from 1")
    return {name: chosen.get(name, 1) for name in varying}


def _shape(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else sizes.get(d.value or "", 1) for d in dims(value))


@dataclass
class _Look:
    """What there is to say about one node."""

    operator: str
    runs: str | None
    gradient: Differentiability | None
    problems: list[Problem]


def _look(node: ir.Node, provider: ExecutionProvider, needed: set[ir.Node]) -> list[_Look]:
    """Look at a node and at those of its subgraphs, which share its fate."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    runs = provider.supports(node)
    gradient = differentiability(node) if node in needed else None
    problems = []
    if runs is not None:
        problems.append(_problem("run", f"{provider.name} cannot run {operator}", node, runs, _OTHER))
    if gradient is not None and gradient.kind == "none":
        message = f"{operator} has no gradient, and the loss depends on a trainable parameter through it"
        problems.append(_problem("gradient", message, node, gradient.reason, _DETACH))
    looks = [_Look(operator, runs, gradient, problems)]
    for attr in node.attributes.values():
        for graph in graphs_in(attr):
            for inner in graph:
                looks += _look(inner, provider, {inner} if node in needed and _carries(inner) else set())
    return looks


def _problem(kind: Literal["run", "gradient"], message: str, node: ir.Node, reason: str, way_out: str) -> Problem:
    return Problem(kind, message, describe(node), source_of(node), reason, way_out)


def _carries(node: ir.Node) -> bool:
    """Whether a node of a subgraph computes with floating-point numbers: its gradient may be asked for."""
    return any(is_float(v) for v in node.outputs) and any(v is not None and is_float(v) for v in node.inputs)


_WORST: tuple[GradientKind, ...] = ("none", "zero", "body", "rule")


def _summary(looked: Sequence[_Look], provider: ExecutionProvider) -> tuple[OperatorUse, ...]:
    groups: dict[str, list[_Look]] = {}
    for look in looked:
        groups.setdefault(look.operator, []).append(look)
    rows = []
    for operator, group in groups.items():
        refused = next((look.runs for look in group if look.runs is not None), None)
        gradients = [look.gradient for look in group if look.gradient is not None]
        worst = min(gradients, key=lambda gradient: _WORST.index(gradient.kind), default=None)
        reason = refused or (worst.reason if worst is not None else "no trainable parameter lies behind it")
        rows.append(
            OperatorUse(
                operator,
                len(group),
                provider.name if refused is None else None,
                worst.kind if worst is not None else "not needed",
                len(gradients),
                reason,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.count, row.operator)))


def _paths(graph: ir.Graph, trainable: Sequence[str], loss: str) -> tuple[set[ir.Value], set[ir.Node]]:
    """The values that depend on a parameter by a gradient, and the nodes between a parameter and the loss."""
    wanted = set(trainable)
    active = {v for v in by_role(graph, Role.PARAMETER) if v.name in wanted}
    for node in graph:
        if any(v in active for v in _read(node)) and differentiability(node).kind != "zero":
            active.update(v for v in node.outputs if is_float(v))
    behind = {v for v in graph.outputs if v.name == loss}
    needed: set[ir.Node] = set()
    for node in reversed(graph):
        if any(v in behind for v in node.outputs):
            if any(v in active for v in _read(node)):
                needed.add(node)
            if differentiability(node).kind != "zero":
                behind.update(_read(node))
    return active, needed


def _read(node: ir.Node) -> list[ir.Value]:
    """What a node reads, its subgraphs included."""
    values = [v for v in node.inputs if v is not None]
    for attr in node.attributes.values():
        for graph in graphs_in(attr):
            for inner in graph:
                values += _read(inner)
    return values


def _parameters(subject: Subject, graph: ir.Graph, needed: set[ir.Node]) -> tuple[ParameterUse, ...]:
    reached = {
        str(v.name)
        for node in needed
        if differentiability(node).kind != "zero"
        for v in _read(node)
        if v.name is not None
    }
    return tuple(
        ParameterUse(
            str(v.name), static_dims(v), str(v.dtype).lower(), v.name in subject.trainable, str(v.name) in reached
        )
        for v in by_role(graph, Role.PARAMETER)
    )


def _nothing_to_train(loss: str, count: int, used: bool) -> Problem:
    if not count:
        return Problem(
            "loss", "no parameter is chosen to train", way_out="name some with --trainable, or freeze fewer of them"
        )
    return Problem(
        "loss",
        f"the loss {loss!r} depends on none of the {count} trainable parameters",
        reason="their values reach other outputs only, or pass an operator whose gradient is zero" if used else None,
        way_out="choose the output that is to be minimised with --loss",
    )


def _kind(error: OntrainError) -> Literal["run", "gradient", "capture"]:
    if isinstance(error, GradientError):
        return "gradient"
    return "run" if isinstance(error, ProviderError) else "capture"


def _cost(
    subject: Subject, model: ir.Model, forward: ir.Model, loss: str, spec: OptimizerSpec, provider: ExecutionProvider
) -> Cost:
    """Make the step as a session does, and count it."""
    resident = resident_bytes(forward, Role.PARAMETER, Role.BUFFER)
    if resident <= _PLAN_LIMIT:
        step, working = _planned(subject, model, forward, loss, spec, provider)
    else:
        step = _built(subject, forward, loss, spec, provider)
        working = live_bytes(step)
    before, whole = count_flops(forward), count_flops(step)
    return Cost(
        forward_flop=before.total,
        forward_product_flop=before.products,
        backward_flop=max(whole.total - before.total, 0),
        backward_product_flop=max(whole.products - before.products, 0),
        parameter_bytes=resident,
        optimizer_bytes=resident_bytes(step, Role.STATE),
        working_bytes=working,
        working_is_planned=resident <= _PLAN_LIMIT,
    )


def _planned(
    subject: Subject, model: ir.Model, forward: ir.Model, loss: str, spec: OptimizerSpec, provider: ExecutionProvider
) -> tuple[ir.Model, int]:
    device = provider.device
    task = TrainingTask(model, loss=loss, optimizer=spec, trainable=subject.trainable, max_norm=_MAX_NORM)
    session = TrainingSession(task, subject.tensors, provider, device)
    feeds = {
        str(v.name): torch.zeros(static_dims(v), dtype=tensor_dtype(v.dtype), device=device)
        for v in batch_inputs(forward.graph)
        if v.dtype is not None
    }
    plan = session.plan(StepKind.UPDATE, feeds)
    # A provider may keep gradients, or a second copy, with the state.
    named = resident_bytes(plan.model, Role.PARAMETER, Role.BUFFER, Role.STATE)
    return plan.model, plan.executable.planned_bytes + max(session.state_bytes() - named, 0)


def _built(
    subject: Subject, forward: ir.Model, loss: str, spec: OptimizerSpec, provider: ExecutionProvider
) -> ir.Model:
    """The step graph of a model too large to allocate here just for a look at it."""
    graph, _ = run_passes(forward, pipeline("forward"), stage="forward")
    step = build_step(graph, loss, spec, trainable=subject.trainable, max_norm=_MAX_NORM)
    step, _ = run_passes(step, pipeline("step"), stage="step")
    for node in step.graph:
        reason = provider.supports(node)
        if reason is not None:
            raise ProviderError(
                f"{provider.name} cannot run {node.op_type}", node=describe(node), source=source_of(node),
                reason=reason, way_out=_OTHER,
            )  # fmt: skip
    return step
