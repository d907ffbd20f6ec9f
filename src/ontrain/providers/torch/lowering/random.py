"""Random numbers: those of a distribution as torch draws them, and Dropout with masks of one byte an element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.operators import dropped_share
from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import Lowering, attributes, lowers, lowers_composite

__all__ = ["Mask", "apply_mask", "draw_mask", "find_mask", "widen"]

_LEVELS = 1 << 16
_SERIAL = 1 << 14
"""Up to so many elements the generator's own numbers are quicker than eight calls that spread them."""
_BLOCK = 1 << 20
"""Words that are made at a time: two buffers of them stay in a processor's last cache."""


@dataclass(frozen=True)
class Mask:
    """A bool mask, and what the elements that it keeps are multiplied with."""

    buf: Buf
    scale: float


def draw_mask(
    e: Emitter, shape: tuple[int, ...], ratio: float, value: ir.Value | None,
    order: torch.memory_format = torch.contiguous_format,
) -> Mask:  # fmt: skip
    """Emit a mask that drops with probability `ratio`, on a CPU rounded to a multiple of 2⁻¹⁶, and bind it to `value`.

    The factor follows the rounded probability, so that the expectation stays exactly one. The mask lies in `order`.
    """
    mask = e.new(shape, torch.bool, order)
    if e.device.type != "cpu":
        # One kernel that counts through its draws; no table, no rounding.
        e.run(torch.Tensor.bernoulli_, mask, 1 - ratio, generator=e.generator(), writes=[mask])
        return _drawn(e, mask, ratio, value)
    rows = e.permute(mask, (0, 2, 3, 1)) if order is torch.channels_last else mask
    flat = e.view(rows, lambda t: t.view(torch.uint8).view(-1))
    start = 0
    for numbers in _numbers(e, math.prod(shape)):
        # Compared in place: a comparison of 16 bits to 16 bits is vectorised in ATen, one to bool is not.
        e.call(torch.ge, numbers, _dropped(ratio) - _LEVELS // 2, out=numbers)
        part = e.narrow(flat, 0, start, numbers.shape[0])
        e.run(torch.Tensor.copy_, part, numbers, writes=[part])
        start += numbers.shape[0]
    return _drawn(e, mask, ratio, value)


def _drawn(e: Emitter, mask: Buf, ratio: float, value: ir.Value | None) -> Mask:
    if value is not None:
        e.bind(value, mask)
        e.keep(value, mask)
    return Mask(mask, _factor(e, ratio))


def find_mask(e: Emitter, value: ir.Value | None, ratio: float) -> Mask:
    """Return a mask as it was drawn; one from elsewhere, fed to the graph, was drawn with `ratio` itself."""
    return Mask(e.value(value), _factor(e, ratio) if e.kept(value) is not None else 1 / (1 - ratio))


def apply_mask(e: Emitter, x: Buf, mask: Mask, out: Buf) -> Buf:
    """Emit out = x where the mask keeps it, else zero; without the mask's factor."""
    e.run(torch.Tensor.mul_, widen(e, mask, out), x, writes=[out])
    return out


def widen(e: Emitter, mask: Mask, out: Buf) -> Buf:
    """Emit out = 0 or 1 by a mask: ATen's products of two types, and its selections, take many times longer."""
    e.run(torch.Tensor.copy_, out, e.view(mask.buf, lambda t: t.view(torch.uint8)), writes=[out])
    return out


def _scaled(e: Emitter, x: Buf, mask: Mask, out: Buf) -> None:
    if e.device.type != "cpu":
        e.compute(torch.ops.aten.native_dropout_backward.default, x, mask.buf, mask.scale, outs=[out], fresh=True)
        return
    apply_mask(e, x, mask, out)
    e.run(torch.Tensor.mul_, out, mask.scale, writes=[out])


def _factor(e: Emitter, ratio: float) -> float:
    """What the elements kept are multiplied with by a mask that was drawn here."""
    return _LEVELS / (_LEVELS - _dropped(ratio)) if e.device.type == "cpu" else 1 / (1 - ratio)


def _dropped(ratio: float) -> int:
    return min(_LEVELS - 1, round(ratio * _LEVELS))


def _numbers(e: Emitter, count: int) -> Iterator[Buf]:
    """Emit `count` random int16 in blocks.

    ATen's generator for CPUs is serial. Large masks take only two small tables from it, rows and columns, and spread
    them over a matrix of words, x = row + column, in vectorised calls on all cores. Any three words are then
    independent, exactly (tabulation hashing: Zobrist 1970; Carter and Wegman 1979). What four corners of a rectangle
    would have in common is broken by x(2x + 1), a permutation of 32 bits, before and after the upper half is added to
    the lower one.
    """
    if count <= _SERIAL:
        bits = e.new((-(-count // 4),), torch.int64)
        e.run(torch.Tensor.random_, bits, -(2**63), None, generator=e.generator(), writes=[bits])
        yield e.view(bits, lambda t: t.view(torch.int16)[:count])
        return
    words = -(-count // 2)
    columns = min(4096, 1 << math.ceil(math.log2(words) / 2))
    rows = -(-words // columns)
    table = e.new((-(-(rows + columns) // 2),), torch.int64)
    e.run(torch.Tensor.random_, table, -(2**63), None, generator=e.generator(), writes=[table])
    drawn = e.view(table, lambda t: t.view(torch.int32))
    across = e.view(e.narrow(drawn, 0, 0, columns), lambda t: t.unsqueeze(0))
    step = _BLOCK // columns
    for first in range(0, rows, step):
        height = min(step, rows - first)
        down = e.view(e.narrow(drawn, 0, columns + first, height), lambda t: t.unsqueeze(1))
        x, upper = e.new((height, columns), torch.int32), e.new((height, columns), torch.int32)
        e.call(torch.add, down, across, out=x)
        e.run(torch.addcmul, x, x, x, value=2, out=x, writes=[x])
        e.call(torch.bitwise_right_shift, x, 16, out=upper)
        e.run(torch.Tensor.add_, x, upper, writes=[x])
        e.run(torch.addcmul, x, x, x, value=2, out=x, writes=[x])
        here = min(2 * height * columns, count - 2 * first * columns)
        yield e.narrow(e.view(x, lambda t: t.view(-1).view(torch.int16)), 0, 0, here)


@lowers("Dropout")
def dropout(e: Emitter, node: ir.Node) -> None:
    x, share = e.value(node.inputs[0]), dropped_share(node)
    if not share:
        e.bind(node.outputs[0], x)
        if len(node.outputs) > 1:
            ones = e.out(node.outputs[1])
            e.run(torch.Tensor.fill_, ones, True, writes=[ones])
        return
    out = e.out(node.outputs[0], x)
    mask = draw_mask(e, x.shape, share, node.outputs[1] if len(node.outputs) > 1 else None, order_of(out.meta))
    _scaled(e, x, mask, out)


@lowers_composite("DropoutGrad")
def dropout_grad(e: Emitter, node: ir.Node) -> None:
    mask, dy = find_mask(e, node.inputs[1], attributes(node).get("ratio", 0.5)), e.value(node.inputs[0])
    _scaled(e, dy, mask, e.out(node.outputs[0], dy))


@lowers("RandomNormal", "RandomNormalLike")
def random_normal(e: Emitter, node: ir.Node) -> None:
    out, stated = e.out(node.outputs[0]), attributes(node)
    mean, scale = stated.get("mean", 0.0), stated.get("scale", 1.0)
    e.run(torch.Tensor.normal_, out, mean, scale, generator=e.generator(), writes=[out])


@lowers("RandomUniform", "RandomUniformLike")
def random_uniform(e: Emitter, node: ir.Node) -> None:
    out, stated = e.out(node.outputs[0]), attributes(node)
    low, high = stated.get("low", 0.0), stated.get("high", 1.0)
    e.run(torch.Tensor.uniform_, out, low, high, generator=e.generator(), writes=[out])


@lowers("Bernoulli")
def bernoulli(e: Emitter, node: ir.Node) -> None:
    x, out = e.value(node.inputs[0]), e.out(node.outputs[0])
    e.run(torch.Tensor.bernoulli_, out, x, generator=e.generator(), writes=[out])


@lowers("Multinomial")
def multinomial(e: Emitter, node: ir.Node) -> None:
    """Draws with replacement from rows of log-probabilities, which need not be normalised."""
    x, count = e.value(node.inputs[0]), attributes(node).get("sample_size", 1)

    def draw(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.multinomial(torch.softmax(logits, -1), count, replacement=True, generator=generator)

    e.compute(draw, x, outs=[e.out(node.outputs[0])], generator=e.generator())


def _drawn_by(name: str) -> Lowering:
    """The lowering to a function of torch that draws."""

    def lower(e: Emitter, node: ir.Node) -> None:
        inputs = [e.value(v) for v in node.inputs]
        e.compute(private(name), *inputs, outs=[e.out(node.outputs[0])], generator=e.generator())

    return lower


def _slope_by(name: str) -> Lowering:
    def lower(e: Emitter, node: ir.Node) -> None:
        e.compute(private(name), *(e.value(v) for v in node.inputs), outs=[e.out(node.outputs[0])])

    return lower


lowers_composite("StandardGamma")(_drawn_by("torch._standard_gamma"))
lowers_composite("StandardGammaGrad")(_slope_by("torch._standard_gamma_grad"))
lowers_composite("Dirichlet")(_drawn_by("torch._sample_dirichlet"))
lowers_composite("DirichletGrad")(_slope_by("torch._dirichlet_grad"))


@lowers_composite("Poisson")
def poisson(e: Emitter, node: ir.Node) -> None:
    e.compute(torch.poisson, e.value(node.inputs[0]), outs=[e.out(node.outputs[0])], generator=e.generator())


@lowers_composite("Binomial")
def binomial(e: Emitter, node: ir.Node) -> None:
    count, chance = (e.value(v) for v in node.inputs)

    def draw(count: torch.Tensor, chance: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        count, chance = torch.broadcast_tensors(count, chance)
        return torch.binomial(count, chance, generator=generator)

    e.compute(draw, count, chance, outs=[e.out(node.outputs[0])], generator=e.generator())
