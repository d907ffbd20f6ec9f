"""Proof that a captured graph computes what the module computes: checker, training modes, state, forward values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from ontrain.capture.arrays import to_array
from ontrain.capture.captured import Captured
from ontrain.capture.structure import flatten
from ontrain.errors import CaptureError
from ontrain.functions import expand, inline_all
from ontrain.graph import CORRECTIONS, Builder, describe, rebuild, source_of, specialise, updates_of
from ontrain.internals import private, replaced
from ontrain.operators import Chance, operand_of, record_of

__all__ = ["validate"]

_DROPOUTS = [f"{kind}dropout{place}" for kind in ("", "feature_", "alpha_", "feature_alpha_") for place in ("", "_")]
_COARSE = {ir.DataType.FLOAT16: 2.0**-7, ir.DataType.BFLOAT16: 2.0**-4}


def validate(
    captured: Captured,
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> None:
    """Check a captured graph against its module, which must be in the mode it was captured in and stays as it is.

    Args:
        args: positional arguments of a call like the captured one; dynamic dimensions may have other sizes.
        kwargs: its keyword arguments.
        rtol: greatest error of an output relative to its greatest magnitude, dropout off.
        atol: greatest absolute error where the output is all but zero.

    Raises:
        CaptureError: says what differs.
        InputError: the call does not fit the graph.
    """
    tensors = captured.flatten(args, kwargs)
    shapes = {name: tuple(tensor.shape) for name, tensor in zip(captured.input_names, tensors, strict=True)}
    model = inline_all(specialise(captured.model, shapes))
    _check_proto(model)
    if captured.training:
        _check_training(captured, model, module)
    with _unchanged(module), _no_dropout(module), torch.enable_grad():
        try:
            outputs, _ = flatten(module(*args, **(kwargs or {})))
        except (IndexError, RuntimeError, ValueError) as error:
            raise CaptureError(
                "the module itself fails on the inputs that it is captured with",
                reason=f"{type(error).__name__}: {error}",
                way_out="give inputs that the module takes, indices and labels within their range",
            ) from error
        _check_parameters(captured, module, outputs)
        after = {name: buffer.detach().clone() for name, buffer in captured.buffers.items()}
    if any(record_of(node).chance is Chance.ALWAYS for node in model.graph):
        return  # the module draws its own numbers: no two runs are equal
    expected = {name: to_array(tensor) for name, tensor in zip(captured.output_names, outputs, strict=True)}
    for value in model.graph.outputs:
        target = updates_of(value)
        if target is not None:
            expected[str(value.name)] = to_array(after[target])
    _compare(captured, model, tensors, expected, rtol, atol)


def _check_proto(model: ir.Model) -> None:
    try:
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise CaptureError("the captured graph is no valid ONNX", reason=str(error)) from error


def _check_training(captured: Captured, model: ir.Model, module: nn.Module) -> None:
    norms = {
        name: part
        for name, part in module.named_modules()
        if hasattr(part, "track_running_stats") and isinstance(part, private("torch.nn.modules.batchnorm._BatchNorm"))
    }
    normalises = all(norm.training for norm in norms.values())
    for node in model.graph:
        if _drops_nothing(node) or (normalises and _keeps_statistics(node)):
            raise CaptureError(
                f"{node.op_type} was captured in inference mode, and the module is in training mode",
                node=describe(node),
                source=source_of(node),
            )
    updated = {updates_of(value) for value in captured.model.graph.outputs}
    for name, norm in norms.items():
        if not norm.training or not norm.track_running_stats:
            continue
        for own in ("running_mean", "running_var", "num_batches_tracked"):
            full = f"{name}.{own}" if name else own
            full = captured.names.get(full, full)
            if full in captured.buffers and full not in updated:
                raise CaptureError(f"buffer {full!r} has no next value in the graph", reason="its update was lost")


def _drops_nothing(node: ir.Node) -> bool:
    """Whether a node is a dropout in inference mode, of another rate than zero."""
    if node.op_type != "Dropout":
        return False
    flag = operand_of(node, 2)
    off = flag is None or flag.const_value is None or not bool(flag.const_value.numpy())
    return off and not _ratio_is_zero(node)


def _keeps_statistics(node: ir.Node) -> bool:
    """Whether a node is a batch normalisation in inference mode."""
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and (mode is None or mode.value != 1)


def _ratio_is_zero(node: ir.Node) -> bool:
    ratio = operand_of(node, 1)
    return ratio is not None and ratio.const_value is not None and float(ratio.const_value.numpy()) == 0


def _check_parameters(captured: Captured, module: nn.Module, outputs: Sequence[torch.Tensor]) -> None:
    wanted = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    total = [output.float().sum() for output in outputs if output.requires_grad]
    if not wanted or not total:
        return
    gradients = torch.autograd.grad(torch.stack(total).sum(), list(wanted.values()), allow_unused=True)
    for name, grad in zip(wanted, gradients, strict=True):
        if grad is not None and captured.names[name] not in captured.parameters:
            raise CaptureError(f"parameter {name!r} is used by forward and is no input of the captured graph")


def _compare(
    captured: Captured, model: ir.Model, tensors: Sequence[torch.Tensor], expected: Mapping[str, Any],
    rtol: float, atol: float,
) -> None:  # fmt: skip
    state = {**captured.parameters, **captured.buffers}
    feeds = {name: to_array(tensor) for name, tensor in zip(captured.input_names, tensors, strict=True)}
    feeds.update({name: to_array(tensor) for name, tensor in state.items()})
    names = [str(value.name) for value in model.graph.outputs]
    # A half-precision sum in another order differs by a few of its last places, in what is made of it too.
    dtypes = {value.dtype for node in model.graph for value in node.outputs}
    coarse = max((_COARSE[dtype] for dtype in dtypes if dtype in _COARSE), default=0.0)
    quiet = inline_all(rebuild(model, _evaluable))
    results = dict(
        zip(names, ReferenceEvaluator(ir.to_proto(quiet), new_ops=CORRECTIONS).run(None, feeds), strict=True)
    )
    for name in names:
        ours, theirs = np.asarray(results[name]), expected[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise CaptureError(
                f"output {name!r} is {ours.dtype}{list(ours.shape)}, the module's is {theirs.dtype}{list(theirs.shape)}"
            )
        if not ours.size:
            continue
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = float(np.abs(np.where(same, 0, a - b)).max())
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0))
        if not error <= atol + max(rtol, coarse) * scale:
            raise CaptureError(
                f"output {name!r} differs from the module's by {error:.3g}, where the greatest value is {scale:.3g}",
                reason=f"the tolerance is {atol:g} + {rtol:g} of the greatest value, dropout off",
                way_out="please report the model; the graph must not be trained with",
            )


def _evaluable(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """Dropout off; recurrent layers in other operators, because onnx's evaluator has them in part only."""
    if node.op_type == "Dropout":
        return [op.Identity(inputs[0]), None]
    if record_of(node).recurrent:
        return expand(op, node, inputs)
    return None


@contextmanager
def _no_dropout(module: nn.Module) -> Iterator[None]:
    """Turn every dropout off: what torch.nn.functional calls, attention's own, and that of recurrent layers."""
    functional: Any = nn.functional
    attention = functional.scaled_dot_product_attention
    rates = [(part, part.dropout) for part in module.modules() if isinstance(part, nn.RNNBase)]

    def without(query: Any, key: Any, value: Any, mask: Any = None, p: float = 0.0, *rest: Any, **named: Any) -> Any:
        named.pop("dropout_p", None)
        return attention(query, key, value, named.pop("attn_mask", mask), 0.0, *rest, **named)

    names = [f"{owner}.{name}" for owner in ("torch", "torch._VF") for name in _DROPOUTS]
    with replaced(
        {**dict.fromkeys(names, lambda x, *_, **__: x), "torch.nn.functional.scaled_dot_product_attention": without}
    ):
        for layer, _ in rates:
            layer.dropout = 0.0
        try:
            yield
        finally:
            for layer, rate in rates:
                layer.dropout = rate


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Give buffers their values, and torch its random state, back."""
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
