"""From an ONNX model with a loss to the graphs that any onnxruntime trains with, for all sizes of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.autodiff import differentiate
from ontrain.capture import OnnxModel, load_onnx
from ontrain.errors import GradientError, OptionError, nearest
from ontrain.graph import (
    KEEPS_FILLS,
    Builder,
    Role,
    by_role,
    generalise,
    rebuild,
    set_gradient_of,
    settle,
    shapes_at,
    specialise,
    static_dims,
    updates_of,
    with_sizes,
)
from ontrain.operators import OPERATORS, Chance
from ontrain.passes import ExpandRecurrent, LinearToGemm, Pass, ShareCommonSubexpressions, Simplify, run_passes
from ontrain.providers.onnxruntime.rewriting import prepare
from ontrain.sizes import Sizes
from ontrain.training.portable_names import gradient_name

__all__ = ["Extend", "Source", "evaluation_graph", "load_source", "training_graph"]

Extend = Callable[[Builder, dict[ir.Value, ir.Value]], None]
"""Given the builder of a graph and the gradient of each trained parameter, adds to the graph."""

_FORWARD: tuple[Pass, ...] = (ExpandRecurrent(), Simplify(), ShareCommonSubexpressions(), LinearToGemm())
_WHOLE: tuple[Pass, ...] = (Simplify(), ShareCommonSubexpressions())
# Masks come from onnxruntime's own stream: no input has to be fed for them.
_KEPT = [record.name for record in OPERATORS.values() if not record.domain and record.chance is not Chance.NEVER]


@dataclass
class Source:
    """A model with its loss, loaded.

    Attributes:
        loaded: its graphs and the values of its weights.
        loss: name of the output to minimise.
        trainable: names of the parameters to train.
        inputs: names of the model's inputs to differentiate by, too.
        frozen: names of the parameters that are inputs all the same.
        buffers: running statistics that training updates.
        named: whether the parameters to train were chosen by name.
        beside: names of outputs that the graphs do not return, but that the evaluation graph computes.
    """

    loaded: OnnxModel
    loss: str
    trainable: list[str]
    frozen: list[str]
    buffers: list[str]
    named: bool
    beside: list[str]
    inputs: list[str]

    @property
    def user_inputs(self) -> list[str]:
        """What a batch brings, in order: the model's inputs, then what the loss compares with."""
        return self.loaded.input_names

    def values(self, names: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the values of parameters or buffers in the file."""
        return {name: self.loaded.initial[name].numpy() for name in names}


def load_source(
    proto: onnx.ModelProto, loss: str, requires_grad: Sequence[str] | None, frozen: Sequence[str],
    beside: Sequence[str] = (),
) -> Source:  # fmt: skip
    """Load a model whose outputs include the loss.

    Args:
        proto: any operator set.
        loss: name of the output to minimise.
        requires_grad: initializers to train, and inputs to differentiate by; None for all weights that are not frozen.
        frozen: names of initializers that are not trained and yet parameters, which can be set later. What neither
            list names stays a constant of the graphs.
        beside: outputs that are no results of a step, but of a model for inference.

    A batch normalisation of which neither scale nor bias is trained keeps its running statistics.

    Raises:
        OptionError: an initializer is unknown, or no float.
        GraphError: the model cannot be trained.
    """
    known = [tensor.name for tensor in proto.graph.initializer]
    for name in frozen:
        if name not in known:
            raise OptionError(
                f"frozen_params has {name!r}, which is no initializer of the model",
                way_out=f"nearest: {nearest(name, known)}",
            )
    inputs = [v.name for v in proto.graph.input if v.name in (requires_grad or ()) and v.name not in known]
    if requires_grad is not None:
        requires_grad = [name for name in requires_grad if name not in inputs]
    constants = [*frozen, *(() if requires_grad is None else _statistics_to_keep(proto, requires_grad))]
    loaded = _settled(load_onnx(proto, trainable=requires_grad, frozen=list(dict.fromkeys(constants))))
    for model in (loaded.model, loaded.evaluation):
        model.graph.meta[KEEPS_FILLS] = True
    parameters = [*frozen, *loaded.trainable]
    for name in (*loaded.frozen, *loaded.buffers):
        if name not in parameters and (name in constants or name in loaded.frozen):
            for model in (loaded.model, loaded.evaluation):
                _make_constant(model.graph, name, loaded.initial[name].numpy())
    buffers = [name for name in loaded.buffers if name not in constants]
    return Source(
        loaded, loss, loaded.trainable, list(frozen), buffers, requires_grad is not None, list(beside), inputs
    )


def training_graph(source: Source, extend: Extend | None = None) -> ir.Model:
    """Return forward, loss and gradients: an output `{name}_grad` for each trained parameter, and input asked for.

    Inputs are the model's, then parameters and running statistics; outputs the model's, then the gradients (or what
    `extend` adds in their place), then the statistics' next values.

    Raises:
        GradientError: an operator has no gradient, or the loss does not depend on a parameter.
        GraphError: the model cannot be written for all sizes of its batch.
    """

    def build(forward: ir.Model) -> ir.Model:
        _leave_inside(forward, source.beside)
        copy = rebuild(forward)
        op = Builder(copy.graph)
        grads = _gradients(op, source)
        updates = [value for value in copy.graph.outputs if updates_of(value) is not None]
        del copy.graph.outputs[len(copy.graph.outputs) - len(updates) :]
        if extend is None:
            for param, grad in grads.items():
                own = op.identity(grad)
                own.name = op.fresh(gradient_name(param.name or ""))
                copy.graph.outputs.append(set_gradient_of(own, param.name or ""))
        else:
            extend(op, grads)
        copy.graph.outputs.extend(updates)
        return copy

    return _portable(source.loaded.model, build)


def evaluation_graph(source: Source) -> ir.Model:
    """Return forward and loss with dropout off and running statistics in use; inputs and outputs as for training.

    Values of the names that `source.beside` has are computed by it too, so that a model for inference can be cut out.
    """
    model = _portable(source.loaded.evaluation, None)
    _leave_inside(model, source.beside)
    return model


def _leave_inside(model: ir.Model, names: Sequence[str]) -> None:
    """Take values from the outputs; their nodes stay."""
    outputs = [value for value in model.graph.outputs if value.name not in names]
    del model.graph.outputs[:]
    model.graph.outputs.extend(outputs)


def _portable(model: ir.Model, build: Callable[[ir.Model], ir.Model] | None) -> ir.Model:
    def make(sizes: Sizes) -> ir.Model:
        graph, _ = run_passes(specialise(model, shapes_at(model, sizes)), _FORWARD)
        if build is not None:
            graph = build(graph)
        # Last, as bodies that are put in repeat what they share.
        return run_passes(prepare(graph, keep=_KEPT), _WHOLE, stage="step")[0]

    return generalise(model, make)


def _gradients(op: Builder, source: Source) -> dict[ir.Value, ir.Value]:
    graph = op.graph
    known = {v.name or "": v for v in by_role(graph, Role.PARAMETER, Role.INPUT, Role.LABEL)}
    outputs = {v.name or "": v for v in graph.outputs}
    loss = outputs[source.loss]
    if any(d != 1 for d in static_dims(loss)):
        raise GradientError(
            f"the loss {source.loss!r} has shape {list(static_dims(loss))}", way_out="reduce it to one element"
        )
    wanted = [known[name] for name in (*source.trainable, *source.inputs)]
    if not wanted and not source.named:
        return {}  # a model without weights has a loss all the same
    seed = op.const(np.ones(static_dims(loss), loss.dtype.numpy() if loss.dtype is not None else np.float32))
    grads = differentiate(op, [(loss, seed)], wanted, zeros=True)
    gradients = {param: grad for param, grad in zip(wanted, grads, strict=True) if grad is not None}
    missing = [param.name or "" for param in wanted if param not in gradients]
    if not gradients or (missing and source.named):
        what = "input" if missing and missing[0] in source.inputs else "parameter"
        which = f"{what} {missing[0]!r}" if missing else "any parameter"
        raise GradientError(
            f"the loss {source.loss!r} does not depend on {which}",
            way_out="leave it out of requires_grad, or use another output for the loss",
        )
    return gradients


def _settled(loaded: OnnxModel) -> OnnxModel:
    """The model with the sizes that its weights fix as numbers, and equal sizes under one name."""
    sizes = settle(loaded.model)
    if not sizes:
        return loaded
    return replace(loaded, model=with_sizes(loaded.model, sizes), evaluation=with_sizes(loaded.evaluation, sizes))


def _statistics_to_keep(proto: onnx.ModelProto, requires_grad: Sequence[str]) -> list[str]:
    """Running statistics of batch normalisations that are not trained."""
    initializers = {tensor.name for tensor in proto.graph.initializer}
    statistics = []
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization" and not set(node.input[1:3]) & set(requires_grad):
            statistics += [name for name in node.input[3:5] if name in initializers]
    return statistics


def _make_constant(graph: ir.Graph, name: str, array: np.ndarray[Any, Any]) -> None:
    for value in graph.inputs:
        if value.name == name:
            value.const_value = ir.tensor(array, name=name)
            value.metadata_props.clear()
            graph.inputs.remove(value)
            graph.register_initializer(value)
            return
