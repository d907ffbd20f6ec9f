"""The graph of an update: parameters, gradients and moments in, their next values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ontrain.graph import Builder, Role, new_model, set_role, set_updates, static_dims
from ontrain.optim import OptimizerSpec
from ontrain.passes import ShareCommonSubexpressions, Simplify, run_passes
from ontrain.providers.onnxruntime.rewriting import prepare
from ontrain.training.portable_names import gradient_name, next_name

__all__ = ["add_update", "optimizer_graph"]

_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_'s


def optimizer_graph(
    parameters: Mapping[str, tuple[Sequence[int], ir.DataType]], spec: OptimizerSpec, max_norm: float | None = None
) -> ir.Model:
    """Return the update of some parameters in plain operators.

    Inputs are `learning_rate` and `step` (0-d float32, the number of the update from 1), the parameters, their
    gradients `{parameter}_grad` and moments; outputs are `{name}.next` for parameters and moments.

    Args:
        parameters: shape and dtype by name.
        spec: the algorithm.
        max_norm: clip the gradient's norm to this; None leaves it.
    """
    values = {name: _value(name, shape, dtype, Role.PARAMETER) for name, (shape, dtype) in parameters.items()}
    grads = {values[n]: _value(gradient_name(n), s, t, Role.INPUT) for n, (s, t) in parameters.items()}
    model = new_model([*values.values(), *grads.values()], "optimizer")
    add_update(Builder(model.graph), grads, spec, max_norm)
    model = prepare(model)
    model, _ = run_passes(model, (Simplify(), ShareCommonSubexpressions()), stage="step")
    model.graph.opset_imports.pop("ontrain", None)
    return model


def add_update(op: Builder, grads: Mapping[ir.Value, ir.Value], spec: OptimizerSpec, max_norm: float | None) -> None:
    """Add inputs for hyper-parameters and moments, the update of each parameter, and outputs with the next values."""
    graph = op.graph
    learning_rate, step = (_value(name, [], ir.DataType.FLOAT, Role.HYPER) for name in ("learning_rate", "step"))
    graph.inputs.insert(0, step)
    graph.inputs.insert(0, learning_rate)
    scale = op.const(1.0)
    if max_norm is not None:
        with op.arithmetic():
            scale = op.Min(max_norm / (op.composite("GlobalNorm", *grads.values()) + _EPSILON), 1.0)
    for param, grad in grads.items():
        name = param.name or ""
        assert param.dtype is not None
        dtype = param.dtype if param.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        moments = [_value(moment, static_dims(param), dtype, Role.STATE) for moment in spec.state_names(name)]
        graph.inputs.extend(moments)
        results = spec.update(op, name, param, grad, moments, learning_rate, step, scale)
        for old, new in zip([param, *moments], results, strict=True):
            new.name = op.fresh(next_name(old.name or ""))
            graph.outputs.append(set_updates(new, old.name or ""))


def _value(name: str, shape: Sequence[int], dtype: ir.DataType, role: Role) -> ir.Value:
    return set_role(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)), role)
