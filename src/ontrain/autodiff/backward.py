"""A forward graph with its backward pass appended, for callers that bring the adjoints of the outputs themselves."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.autodiff.driver import differentiate, reached_from
from ontrain.errors import GradientError, OptionError, nearest
from ontrain.graph import Builder, dims, rebuild, set_adjoint_of, set_gradient_of, updates_of

__all__ = ["ADJOINT", "build_backward", "differentiable_outputs", "following_outputs"]

ADJOINT = ".adjoint"
"""What the name of an output's adjoint has behind the output's own."""


def build_backward(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> ir.Model:
    """Return a new model that gives the model's outputs and the gradients of some of its values.

    For each of `outputs` there is a new input `{name}.adjoint` of its shape and dtype, role ADJOINT. For each of `wrt`
    that an output depends on there is a new output `{name}.grad`, marked by `graph.gradient_of`. Nodes that no adjoint
    reaches come first, in their old order.

    Args:
        model: forward graph with concrete shapes and roles; left untouched.
        outputs: names of float outputs whose adjoints the caller has.
        wrt: names of float values to differentiate by: inputs, parameters among them, and outputs that others are
            computed from.

    Raises:
        OptionError: a name is no output or input of the model.
        GradientError: an operator has no gradient, or nothing in `wrt` reaches an output.
    """
    backward = rebuild(model)
    graph, op = backward.graph, Builder(backward.graph)
    known = {v.name or "": v for v in graph.inputs}
    results = {v.name or "": v for v in graph.outputs}
    known = {**results, **known}
    for name, where in [(n, results) for n in outputs] + [(n, known) for n in wrt]:
        if name not in where:
            raise OptionError(f"the model has no {name!r}", way_out=f"nearest: {nearest(name, where)}")
    seeds: list[tuple[ir.Value, ir.Value | None]] = []
    for name in outputs:
        value = results[name]
        adjoint = ir.Value(name=op.fresh(name + ADJOINT), shape=ir.Shape(dims(value)), type=value.type)
        graph.inputs.append(set_adjoint_of(adjoint, name))
        seeds.append((value, adjoint))
    grads = differentiate(op, seeds, [known[name] for name in wrt], zeros=True)
    if all(grad is None for grad in grads):
        raise GradientError(
            f"the outputs {', '.join(outputs)} depend on nothing that wants a gradient",
            way_out="check which parameters have requires_grad set",
        )
    for name, grad in zip(wrt, grads, strict=True):
        if grad is None:
            continue
        # An output of its own: the gradient may be another's, too, an adjoint itself, or a constant.
        own = op.identity(grad)
        own.name = op.fresh(f"{name}.grad")
        graph.outputs.append(set_gradient_of(own, name))
    return backward


def differentiable_outputs(model: ir.Model, wrt: Sequence[str]) -> list[str]:
    """Return the names of the float outputs that depend on one of these inputs; shapes may be symbolic.

    As for autograd, an output does so too where each derivative is zero.
    """
    wanted = set(wrt)
    reached = reached_from(model.graph, [v for v in model.graph.inputs if v.name in wanted], zeros=True)
    return [v.name or "" for v in model.graph.outputs if v in reached and updates_of(v) is None]


def following_outputs(model: ir.Model, output: str) -> frozenset[str]:
    """Return the names of the float outputs that depend on another one, which is left out."""
    value = next(value for value in model.graph.outputs if value.name == output)
    reached = reached_from(model.graph, [value], zeros=True)
    return frozenset(v.name or "" for v in model.graph.outputs if v in reached and updates_of(v) is None) - {output}
