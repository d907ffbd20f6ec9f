"""A linear classifier, its loss and their gradient in chunks of rows: scores are made once, used up, and forgotten."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    head = _Head.of(e, node)
    labels, sheet = _Labels.of(e, head), _Sheet.of(e, head)
    sums = _Sums.of(e, head, sheet)
    for start in range(0, head.rows, sheet.height):
        count = min(sheet.height, head.rows - start)
        _emit_chunk(e, head, labels.of_rows(e, start, count), sheet, sums, start, count)
    for total, place in ((sums.weight, head.dweight), (sums.bias, head.dbias)):
        if total is not None and place is not None and total is not place:
            e.run(torch.Tensor.copy_, place, total, writes=[place])
    if head.loss is not None:
        nothing = e.constant(torch.zeros((), dtype=head.exact, device=e.device))
        e.run(_total, labels.losses, labels.counts, labels.total if head.mean else None, nothing, head.loss,
              writes=[labels.losses, head.loss])  # fmt: skip


@dataclass(frozen=True)
class _Head:
    """A node's operands and results, weights as [K, V] in whatever order they lie.

    Attributes:
        hidden: [N, K].
        labels: [N], of any shape.
        exact: the type of softmax and loss.
        mean: whether the loss is the mean over the rows that count, not their sum.
        ignored: the label of rows that do not count.
        loss, dhidden, dweight, dbias: as far as somebody reads them.
    """

    hidden: Buf
    labels: Buf
    weight: Buf
    bias: Buf | None
    exact: torch.dtype
    mean: bool
    ignored: int
    loss: Buf | None
    dhidden: Buf | None
    dweight: Buf | None
    dbias: Buf | None

    @classmethod
    def of(cls, e: Emitter, node: ir.Node) -> _Head:
        hidden, labels, weight = (e.value(v) for v in node.inputs[:3])
        a = attributes(node)
        across = bool(a.get("transB", 1))
        outs = [e.out(v) if e.reads(v) else None for v in node.outputs]
        loss, dhidden, dweight, dbias = (*outs, None, None, None)[:4]
        return cls(
            hidden, e.cast(labels, torch.int64) if labels.dtype != torch.int64 else labels,
            e.view(weight, torch.t) if across else weight, e.optional(node, 3),
            torch.float64 if hidden.dtype == torch.float64 else torch.float32,
            a.get("reduction", "mean") == "mean", a.get("ignore_index", NO_IGNORE), loss, dhidden,
            e.view(dweight, torch.t) if dweight is not None and across else dweight, dbias,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return self.hidden.shape[0]

    @property
    def classes(self) -> int:
        return self.weight.shape[1]

    @property
    def is_half(self) -> bool:
        """Whether, as torch.autocast has it, products are in half precision, and softmax and loss in single."""
        return self.hidden.dtype != self.exact

    @property
    def differentiates(self) -> bool:
        return any(place is not None for place in (self.dhidden, self.dweight, self.dbias))


@dataclass(frozen=True)
class _Labels:
    """Of each row [N, 1] whether it counts, a label that may be looked up, its share in the loss, and its own loss.

    `total`, a scalar, is how many rows count.
    """

    counts: Buf
    safe: Buf
    share: Buf
    losses: Buf
    total: Buf

    @classmethod
    def of(cls, e: Emitter, head: _Head) -> _Labels:
        column = (head.rows, 1)
        counts, labelled = e.new(column, torch.bool), e.new((), torch.int64)
        safe, share = e.new(column, torch.int64), e.new(column, head.exact)
        total, divisor = (e.new((), head.exact) for _ in range(2))
        ignored = e.constant(torch.tensor(head.ignored, device=e.device))
        one = e.constant(torch.ones((), dtype=head.exact, device=e.device))
        e.run(_shares, e.reshape(head.labels, column), ignored, one, head.mean, counts, labelled, total, divisor, safe,
              share, writes=[counts, labelled, total, divisor, safe, share])  # fmt: skip
        return cls(counts, safe, share, e.new(column, head.exact), total)

    def of_rows(self, e: Emitter, start: int, count: int) -> _Labels:
        columns = (self.counts, self.safe, self.share, self.losses)
        counts, safe, share, losses = (e.narrow(column, 0, start, count) for column in columns)
        return _Labels(counts, safe, share, losses, self.total)


@dataclass(frozen=True)
class _Sheet:
    """The memory in which a chunk's scores are made.

    Attributes:
        minus: −1, [1, 1]: what a label adds to the adjoint of its own score.
        scores: [tile, V and columns to spare], in which the softmax of some rows at a time is made.
        raw: [height, the same] as products make and take them: the same memory unless those are in half precision.
        weight, bias: as products read them, with zeros for columns to spare where `columns` counts these.
        columns: of a chunk's products.
    """

    minus: Buf
    scores: Buf
    raw: Buf
    weight: Buf
    bias: Buf | None
    columns: int

    @classmethod
    def of(cls, e: Emitter, head: _Head) -> _Sheet:
        # Rows that begin at a cache line make ATen's products a third quicker where the number of classes is odd.
        step = ALIGN // head.hidden.dtype.itemsize
        width = -(-head.classes // step) * step
        tiles = head.is_half and e.device.type == "cpu"
        itemsize = (head.hidden.dtype if tiles else head.exact).itemsize
        height = _height(head.rows, width * itemsize, e.settings.logits_bytes)
        tile = min(height, max(1, _TILE // (width * head.exact.itemsize))) if tiles else height
        scores = e.new((tile, width), head.exact)
        minus = e.constant(torch.full((1, 1), -1.0, dtype=head.exact, device=e.device))
        if not head.is_half:
            return cls(minus, scores, scores, head.weight, head.bias, head.classes)
        raw = e.new((height, width), head.hidden.dtype)
        if _wants_aligned(e.device, head.classes):
            weight = _widened(e, head.weight, width)
            return cls(minus, scores, raw, weight, None if head.bias is None else _widened(e, head.bias, width), width)
        if width > head.classes:
            # oneDNN's products in half precision read on past the classes and multiply it by zero, which keeps a NaN.
            spare = e.narrow(raw, 1, head.classes, width - head.classes)
            e.run(torch.Tensor.zero_, spare, writes=[spare])
        return cls(minus, scores, raw, head.weight, head.bias, head.classes)

    @property
    def height(self) -> int:
        """Rows of a chunk."""
        return self.raw.shape[0]


@dataclass(frozen=True)
class _Sums:
    """Where gradients are added up over the chunks.

    Attributes:
        product: [K, V], or with columns to spare: of a chunk, or of all where nothing stands for their sum.
        weight: [K, V], what stands for the weight's gradient, if anything does.
        bias: [V].
    """

    product: Buf | None
    weight: Buf | None
    bias: Buf | None

    @classmethod
    def of(cls, e: Emitter, head: _Head, sheet: _Sheet) -> _Sums:
        dweight, dbias = head.dweight, head.dbias
        bias = e.new((head.classes,), head.exact) if dbias is not None and dbias.dtype != head.exact else dbias
        if dweight is None:
            return cls(None, None, bias)
        # Half precision would round the sum at each chunk.
        weight = _same_order(e, dweight, head.exact) if head.is_half and sheet.height < head.rows else None
        if sheet.columns == head.classes:
            return cls(dweight, weight, bias)
        return cls(_same_order(e, dweight, dweight.dtype, sheet.columns), dweight if weight is None else weight, bias)


def _emit_chunk(e: Emitter, head: _Head, labels: _Labels, sheet: _Sheet, sums: _Sums, start: int, count: int) -> None:
    """Emit the loss of some rows and what follows from them; `labels` are theirs."""
    chunk = e.narrow(e.narrow(sheet.raw, 0, 0, count), 1, 0, sheet.columns)
    hidden, is_first = e.narrow(head.hidden, 0, start, count), start == 0
    multiply(e, Factors(hidden, sheet.weight, chunk, sheet.bias))
    writes = [sheet.scores, chunk, labels.losses, *([] if sums.bias is None else [sums.bias])]
    e.run(_lose, sheet.scores, chunk, labels.safe, labels.share, sheet.minus, labels.losses, sums.bias, head.classes,
          head.differentiates, is_first, writes=writes)  # fmt: skip
    if head.dhidden is not None:
        place = e.narrow(head.dhidden, 0, start, count)
        multiply(e, Factors(chunk, e.view(sheet.weight, torch.t), place))
        e.run(torch.Tensor.mul_, place, labels.share, writes=[place])
    if sums.product is not None:
        shared = e.call(torch.mul, hidden, labels.share, out=e.new(hidden.shape, hidden.dtype))
        _differentiate_weight(e, Factors(e.view(shared, torch.t), chunk, sums.product), sums.weight, first=is_first)


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
