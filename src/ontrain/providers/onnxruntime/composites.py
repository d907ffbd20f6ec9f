"""Composites that onnxruntime runs faster in another form than their body."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ontrain.functions import attributes_of, refusing
from ontrain.graph import Builder, static_dims
from ontrain.operators import NO_IGNORE
from ontrain.providers.onnxruntime.random import drawn_share
from ontrain.providers.onnxruntime.rules import Inputs, Outputs

__all__ = ["COMPOSITES", "MASKED"]

_PLACES = 25
"""Up to how many places of a kernel x is copied for each of them."""


Form = Callable[[Builder, ir.Node, Inputs], Outputs | None]
COMPOSITES: dict[str, Form] = {}
"""Forms by composite; None leaves the body."""
MASKED: dict[str, Form] = {}
"""Forms of composites that apply a mask of dropout, where this provider draws it."""


def _written_as(forms: dict[str, Form], *op_types: str) -> Callable[[Form], Form]:
    def register(form: Form) -> Form:
        forms.update(dict.fromkeys(op_types, form))
        return form

    return register


@_written_as(COMPOSITES, "MaxPoolGrad")
def _max_pool_grad(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """MaxUnpool, where no two windows overlap: one write per window instead of an addition per element."""
    dy, places = inputs
    assert places is not None
    pool = places.producer()
    if pool is None or pool.op_type != "MaxPool":
        return None
    kernel = list(pool.attributes["kernel_shape"].as_ints())
    settings = {name: list(pool.attributes[name].as_ints()) for name in ("strides", "dilations", "pads")
                if name in pool.attributes}  # fmt: skip
    strides = settings.get("strides", [1] * len(kernel))
    plain = all(d == 1 for d in settings.get("dilations", [])) and not any(settings.get("pads", []))
    if "auto_pad" in pool.attributes and pool.attributes["auto_pad"].as_string() != "NOTSET":
        plain = False
    if not plain or any(s < k for s, k in zip(strides, kernel, strict=True)):
        return None
    shape = np.array(node.attributes["shape"].as_ints(), np.int64)
    return [op.MaxUnpool(dy, places, shape, kernel_shape=kernel, strides=strides)]


@_written_as(COMPOSITES, "ConvGrad")
def _conv_grad(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """The weight's adjoint as one product over samples and places: a kernel as large as dy is slow to convolve with.

    Row m of dy [M, N·P] meets row (place in the kernel, c) of what the kernel saw of x there, [K·C, N·P].
    """
    dy, x, w = inputs
    assert dy is not None and x is not None and w is not None
    settings = attributes_of(node, {"group": 1, "output_mask": (1, 1, 1)})
    mask, pads = list(settings["output_mask"]), list(settings["pads"])
    space, rank = static_dims(dy)[2:], len(static_dims(dy)) - 2
    kernel = static_dims(w)[2:]
    if settings["group"] != 1 or not mask[1] or math.prod(kernel) > _PLACES:
        return None
    dx, _, db = op.composite("ConvGrad", dy, x, w, outputs=3, **{**settings, "output_mask": [mask[0], 0, mask[2]]})
    if any(pads):
        x = op.Pad(x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]])
    axes = list(range(2, 2 + rank))
    swapped = [1, 0, *axes]
    rows = op.Reshape(op.Transpose(dy, perm=swapped), [static_dims(dy)[1], -1])
    images, seen = op.Transpose(x, perm=swapped), []
    for place in np.ndindex(*kernel):
        starts = [k * d for k, d in zip(place, settings["dilations"], strict=True)]
        ends = [s + (n - 1) * step + 1 for s, n, step in zip(starts, space, settings["strides"], strict=True)]
        seen.append(op.Slice(images, starts, ends, axes, list(settings["strides"])))
    columns = op.Reshape(seen[0] if len(seen) == 1 else op.Concat(*seen, axis=0), [-1, static_dims(rows)[1]])
    product = op.Reshape(op.Gemm(rows, columns, transB=1), [static_dims(w)[0], *kernel, static_dims(w)[1]])
    return [dx, op.Transpose(product, perm=[0, 1 + rank, *range(1, 1 + rank)]), db]


@_written_as(COMPOSITES, "EmbeddingGrad")
def _embedding_grad(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """Without ScatterElements where the ids are known: rows that count from 0, or one row for all."""
    dy, ids = inputs
    assert dy is not None and ids is not None
    settings = attributes_of(node, {"rows": 0, "padding_idx": -1})
    if ids.const_value is None or settings["padding_idx"] >= 0:
        return None
    known, rows = ids.const_value.numpy().ravel(), settings["rows"]
    shape = static_dims(node.outputs[0])
    flat = op.Reshape(dy, [known.size, math.prod(shape[1:])])
    if known.size and (known == np.arange(known.size)).all():
        before = 0
    elif known.size and (known == known[0]).all():
        flat, before = op.ReduceSum(flat, [0], keepdims=1), int(known[0])
    else:
        return None
    behind = rows - before - static_dims(flat)[0]
    return [op.Reshape(op.Pad(flat, [before, 0, behind, 0]), list(shape))]


@_written_as(COMPOSITES, "SoftmaxCrossEntropyLossGrad")
def _softmax_cross_entropy_loss_grad(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """Without masks where no label is ignored and no class has a weight: 1 is taken off at the labels alone."""
    settings = attributes_of(node, {"reduction": "mean", "ignore_index": NO_IGNORE})
    if len(inputs) > 3 or settings["ignore_index"] != NO_IGNORE:
        return None
    dloss, log_prob, labels = inputs
    assert log_prob is not None and labels is not None
    factor = dloss
    if settings["reduction"] == "mean":
        factor = op.Div(dloss, op.const(math.prod(static_dims(labels)), log_prob.dtype))
    elif settings["reduction"] == "none":
        factor = op.Unsqueeze(dloss, [1])
    chosen = op.Unsqueeze(labels, [1])
    ones = op.Expand(op.const(-1.0, log_prob.dtype), list(static_dims(chosen)))
    return [op.ScatterElements(op.Exp(log_prob), chosen, ones, axis=1, reduction="add") * factor]


@_written_as(MASKED, "Attention", "AttentionGrad", "DropoutGrad")
def _drawn(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """With the share that was really dropped, which the factor of what is kept has to follow."""
    name = "ratio" if node.op_type == "DropoutGrad" else "dropout"
    share = node.attributes.get_float(name, 0.5 if name == "ratio" else 0.0)
    if drawn_share(share) == share:
        return None
    attributes = [attr for attr in node.attributes.values() if attr.name != name]
    attributes.append(ir.AttrFloat32(name, drawn_share(share)))
    results = op.add(ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=len(node.outputs)))
    return list(results) if isinstance(results, tuple) else [results]


@_written_as(COMPOSITES, "Embedding", "FromStart")
def _counted_from_start(op: Builder, node: ir.Node, inputs: Inputs) -> Outputs | None:
    """Such that onnxruntime's kernels refuse what is negative, where they would count from the end."""
    return refusing(op, node, inputs)
