"""A linear classifier, its loss and their gradient in chunks of rows: scores are made once, used up, and forgotten."""

from __future__ import annotations

import math
from dataclasses import replace

import onnx_ir as ir
import torch

from ontrain.operators import NO_IGNORE
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.half_product import add_half_product
from ontrain.providers.torch.lowering.product import Factors, multiply
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite
from ontrain.providers.torch.state import ALIGN

__all__: list[str] = []


@lowers_composite("ScaleGrad")
def scale_grad(e: Emitter, node: ir.Node) -> None:
    unit, dy = (e.value(v) for v in node.inputs)
    source, place = node.inputs[0], e.pinned(node.outputs[0])
    assert source is not None
    in_place = len(source.uses()) == 1 and not source.is_graph_output() and source.producer() is not None
    if in_place and (place is None or place.same_elements(unit)):
        e.run(_scale, unit, dy, writes=[unit])
        e.bind(node.outputs[0], unit)
    else:
        e.call(torch.mul, unit, dy, out=e.out(node.outputs[0]))


def _scale(unit: torch.Tensor, dy: torch.Tensor) -> None:
    # The adjoint of a loss is one unless it is scaled: a look at it spares a walk over the gradient of a vocabulary.
    # On another device the look would be a wait.
    if dy.device.type != "cpu" or dy.item() != 1.0:
        unit.mul_(dy)


_TILE = 4 << 20
"""Bytes of scores in single precision that are made of half's at a time on a CPU: its cache holds them."""


@lowers_composite("LinearCrossEntropy")
def linear_cross_entropy(e: Emitter, node: ir.Node) -> None:
    hidden, labels, weight = (e.value(v) for v in node.inputs[:3])
    bias = e.optional(node, 3)
    a = attributes(node)
    weight = e.view(weight, torch.t) if a.get("transB", 1) else weight  # [K, V]
    outs = [e.out(v) if e.reads(v) else None for v in node.outputs]
    loss, dhidden, dweight, dbias = (*outs, None, None, None)[:4]
    dweight = e.view(dweight, torch.t) if dweight is not None and a.get("transB", 1) else dweight
    rows, classes = hidden.shape[0], weight.shape[1]
    labels = e.cast(labels, torch.int64) if labels.dtype != torch.int64 else labels
    mean = a.get("reduction", "mean") == "mean"
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    safe, share = e.new((rows, 1), torch.int64), e.new((rows, 1), exact)
    counts, labelled = e.new((rows, 1), torch.bool), e.new((), torch.int64)
    total, divisor = (e.new((), exact) for _ in range(2))
    ignored = e.constant(torch.tensor(a.get("ignore_index", NO_IGNORE), device=e.device))
    one = e.constant(torch.ones((), dtype=exact, device=e.device))
    e.run(_shares, e.reshape(labels, (rows, 1)), ignored, one, mean, counts, labelled, total, divisor, safe, share,
          writes=[counts, labelled, total, divisor, safe, share])  # fmt: skip
    losses = e.new((rows, 1), exact)
    # Rows that begin at a cache line make ATen's products a third quicker where the number of classes is odd.
    step = ALIGN // hidden.dtype.itemsize
    width = -(-classes // step) * step
    # As torch.autocast has it: products in half precision, the softmax and the loss of their results in single.
    halves = hidden.dtype != exact
    tiles = halves and e.device.type == "cpu"
    height = _height(rows, width * (hidden.dtype if tiles else exact).itemsize, e.settings.logits_bytes)
    tile = min(height, max(1, _TILE // (width * exact.itemsize))) if tiles else height
    scores = e.new((tile, width), exact)
    raw = e.new((height, width), hidden.dtype) if halves else scores
    aligned = halves and _wants_aligned(e.device, classes)
    if aligned:
        weight, bias = _widened(e, weight, width), None if bias is None else _widened(e, bias, width)
    elif halves and width > classes:
        # oneDNN's products in half precision read on past the classes and multiply it by zero, which keeps a NaN.
        spare = e.narrow(raw, 1, classes, width - classes)
        e.run(torch.Tensor.zero_, spare, writes=[spare])
    bias_sums = e.new((classes,), exact) if dbias is not None and dbias.dtype != exact else dbias
    # Half precision would round the sum at each chunk.
    sums = _same_order(e, dweight, exact) if dweight is not None and halves and height < rows else None
    total_dweight = dweight
    if aligned and dweight is not None:
        sums, dweight = dweight if sums is None else sums, _same_order(e, dweight, dweight.dtype, width)
    minus = e.constant(torch.full((1, 1), -1.0, dtype=exact, device=e.device))
    differentiates = any(place is not None for place in (dhidden, dweight, dbias))
    for start in range(0, rows, height):
        count = min(height, rows - start)
        chunk = e.narrow(e.narrow(raw, 0, 0, count), 1, 0, width if aligned else classes)
        taken = e.narrow(hidden, 0, start, count)
        multiply(e, Factors(taken, weight, chunk, bias))
        known = [e.narrow(value, 0, start, count) for value in (safe, share)]
        noted = e.narrow(losses, 0, start, count)
        writes = [scores, chunk, noted, *([] if bias_sums is None else [bias_sums])]
        e.run(_lose, scores, chunk, *known, minus, noted, bias_sums, classes, differentiates, start == 0, writes=writes)
        if dhidden is not None:
            place = e.narrow(dhidden, 0, start, count)
            multiply(e, Factors(chunk, e.view(weight, torch.t), place))
            e.run(torch.Tensor.mul_, place, e.narrow(share, 0, start, count), writes=[place])
        if dweight is not None:
            shared = e.call(torch.mul, taken, e.narrow(share, 0, start, count), out=e.new(taken.shape, taken.dtype))
            _differentiate_weight(e, Factors(e.view(shared, torch.t), chunk, dweight), sums, first=start == 0)
    if sums is not None and total_dweight is not None and sums is not total_dweight:
        e.run(torch.Tensor.copy_, total_dweight, sums, writes=[total_dweight])
    if dbias is not None and bias_sums is not None and bias_sums is not dbias:
        e.run(torch.Tensor.copy_, dbias, bias_sums, writes=[dbias])
    if loss is not None:
        nothing = e.constant(torch.zeros((), dtype=losses.dtype, device=e.device))
        e.run(_total, losses, counts, total if mean else None, nothing, loss, writes=[losses, loss])


def _wants_aligned(device: torch.device, classes: int) -> bool:
    """Whether products in half precision are several times slower for that many classes than for a few more.

    Kernels of a GPU read vectors of eight; for other sizes cuBLAS takes those of two or of single elements.
    """
    return device.type == "cuda" and classes % 8 != 0


def _widened(e: Emitter, x: Buf, width: int) -> Buf:
    """A copy of weights [K, V] or a bias [V] with zeros for classes up to `width`."""
    wide, axis = _same_order(e, x, x.dtype, width), len(x.shape) - 1
    classes = x.shape[axis]
    own, spare = e.narrow(wide, axis, 0, classes), e.narrow(wide, axis, classes, width - classes)
    e.run(torch.Tensor.copy_, own, x, writes=[own])
    e.run(torch.Tensor.zero_, spare, writes=[spare])
    return wide


def _same_order(e: Emitter, buf: Buf, dtype: torch.dtype, width: int | None = None) -> Buf:
    """A temporary of another type, or with another number of columns, whose elements lie in the order of a matrix's."""
    shape = buf.shape if width is None else (*buf.shape[:-1], width)
    if len(shape) == 2 and buf.meta.stride(0) == 1:
        return e.view(e.new(shape[::-1], dtype), torch.t)
    return e.new(shape, dtype)


def _height(rows: int, row_bytes: int, limit: int) -> int:
    """Rows of a chunk: equal chunks, as few as the limit allows."""
    chunks = -(-rows // max(1, limit // row_bytes))
    return -(-rows // chunks)


def _lose(
    scores: torch.Tensor, raw: torch.Tensor, labels: torch.Tensor, share: torch.Tensor, minus: torch.Tensor,
    losses: torch.Tensor, dbias: torch.Tensor | None, classes: int, differentiates: bool, first: bool,
) -> None:  # fmt: skip
    """Note each row's loss, and turn its scores into their adjoints but for the row's share.

    Args:
        scores: memory [n, V + columns to spare] in which the softmax of n rows at a time is made.
        raw: the scores that the products make and take, of all rows [N, V or more]; in `scores` unless those of the
            products are in half precision.
        labels: [N, 1].
        share: [N, 1]; what a row counts for in the loss.
        minus: −1, [1, 1].
        losses: [N, 1], written.
        dbias: [V]; the bias's adjoint is added to it, if it has one. The first time it is overwritten.
        classes: V.
        differentiates: whether the adjoints are wanted; their softmax is left otherwise.
        first: whether nothing is in `dbias` yet.
    """
    count, halves = len(scores), raw.dtype != scores.dtype
    if dbias is not None and first:
        # In bfloat16 `mv` multiplies what is in its result by zero, which keeps what is not finite.
        dbias.zero_()
    tiles = zip(*(tensor.split(count) for tensor in (raw, labels, share, losses)), strict=True)
    for own, label, part, loss in tiles:
        full = scores[: len(own)]
        plain = full[:, :classes]
        if halves:
            plain.copy_(own[:, :classes])
        full[:, classes:].fill_(-math.inf)
        chosen, largest = plain.gather(1, label), full.amax(1, True)
        torch.softmax(full, 1, out=full)
        # log Σ exp = max − log(max of the probabilities), which never underflows as a label's own probability may.
        torch.sub(largest.sub_(full.amax(1, True).log_()), chosen, out=loss)
        if not differentiates:
            continue
        plain.scatter_add_(1, label, minus.expand(label.shape))
        if halves:
            own.copy_(full[:, : own.shape[1]])
        if dbias is not None:
            dbias.addmv_(plain.t(), part.view(-1))


def _differentiate_weight(e: Emitter, f: Factors, sums: Buf | None, *, first: bool) -> None:
    """Add a chunk's product to the gradient [K, V] of the weight, or to the sums that stand for it.

    The product may have columns to spare, which the sums have not.
    """
    if f.out.meta.stride(0) == 1:
        f, sums = f.across(e), None if sums is None else e.view(sums, torch.t)
    alike = f.out.meta.is_contiguous() if sums is None else sums.shape == f.out.shape
    if e.device.type == "cpu" and f.out.dtype == torch.bfloat16 and alike:
        add_half_product(e, f, sums, first=first)
        return
    multiply(e, replace(f, before=None if first or sums is not None else f.out))
    if sums is not None:
        axis = next((i for i, size in enumerate(sums.shape) if size < f.out.shape[i]), 0)
        product = e.narrow(f.out, axis, 0, sums.shape[axis])
        e.run(torch.Tensor.copy_ if first else torch.Tensor.add_, sums, product, writes=[sums])


def _shares(
    labels: torch.Tensor, ignored: torch.Tensor, one: torch.Tensor, mean: bool, counts: torch.Tensor,
    count: torch.Tensor, total: torch.Tensor, divisor: torch.Tensor, safe: torch.Tensor, share: torch.Tensor,
) -> None:  # fmt: skip
    """Which rows count, how many, what each counts for in the loss, and labels that may be looked up."""
    torch.ne(labels, ignored, out=counts)
    safe.copy_(counts)
    torch.sum(safe, (0, 1), out=count)
    total.copy_(count)
    safe.mul_(labels)
    share.copy_(counts)
    if mean:
        # Without any label the loss is 0/0 and the gradient zero, as in torch.
        share.div_(torch.maximum(total, one, out=divisor))


def _total(
    losses: torch.Tensor, counts: torch.Tensor, total: torch.Tensor | None, nothing: torch.Tensor, loss: torch.Tensor
) -> None:
    """Sum or mean over the rows that count, whatever the others hold."""
    torch.sum(torch.where(counts, losses, nothing, out=losses), (0, 1), out=loss)
    if total is not None:
        loss.div_(total)
