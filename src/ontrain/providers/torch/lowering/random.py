"""Random numbers: those of a distribution as torch draws them, and Dropout with masks of one byte an element."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir
import torch

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__ = ["apply_mask", "draw_mask", "mask_scale", "widen"]

_LEVELS = 1 << 16
_SERIAL = 1 << 14
"""Up to so many elements the generator's own numbers are quicker than eight calls that spread them."""
_BLOCK = 1 << 20
"""Words that are made at a time: two buffers of them stay in a processor's last cache."""


def draw_mask(e: Emitter, shape: tuple[int, ...], ratio: float) -> Buf:
    """Emit a bool mask that is false with probability `ratio`, rounded to a multiple of 2⁻¹⁶; see `mask_scale`."""
    count = math.prod(shape)
    mask = e.new(shape, torch.bool)
    flat = e.view(mask, lambda t: t.view(torch.uint8).view(-1))
    start = 0
    for numbers in _numbers(e, count):
        # Compared in place: a comparison of 16 bits to 16 bits is vectorised in ATen, one to bool is not.
        e.call(torch.ge, numbers, _dropped(ratio) - _LEVELS // 2, out=numbers)
        part = e.narrow(flat, 0, start, numbers.shape[0])
        e.run(torch.Tensor.copy_, part, numbers, writes=[part])
        start += numbers.shape[0]
    return mask


def mask_scale(e: Emitter, mask: ir.Value | None, ratio: float) -> float:
    """Return the factor of the elements kept: that of the probability with which `mask` was really drawn.

    So the expectation stays exactly one. A mask from elsewhere, fed to the graph, was drawn with `ratio` itself.
    """
    return _LEVELS / (_LEVELS - _dropped(ratio)) if e.kept(mask) is not None else 1 / (1 - ratio)


def apply_mask(e: Emitter, x: Buf, mask: Buf, out: Buf, scale: float = 1.0) -> Buf:
    """Emit out = x · mask · scale."""
    e.run(torch.Tensor.mul_, widen(e, mask, out), x, writes=[out])
    if scale != 1.0:
        e.run(torch.Tensor.mul_, out, scale, writes=[out])
    return out


def widen(e: Emitter, mask: Buf, out: Buf) -> Buf:
    """Emit out = 0 or 1 by a bool mask: ATen's products of two types, and its selections, take many times longer."""
    e.run(torch.Tensor.copy_, out, e.view(mask, lambda t: t.view(torch.uint8)), writes=[out])
    return out


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
    if e.device.type != "cpu" or count <= _SERIAL:
        bits = e.new((-(-count // 4),), torch.int64)
        e.run(torch.Tensor.random_, bits, -(2**63), None, generator=e.generator(), writes=[bits])
        yield e.view(bits, lambda t: t.view(torch.int16)[:count])
        return
    words = -(-count // 2)
    columns = min(4096, 1 << math.ceil(math.log2(words) / 2))
    rows = -(-words // columns)
    table = e.new((-(-(rows + columns) // 2),), torch.int64)
    e.run(torch.Tensor.random_, table, -(2**63), None, generator=e.generator(), writes=[table])
    across = e.view(table, lambda t: t.view(torch.int32)[:columns].unsqueeze(0))
    step = _BLOCK // columns
    for first in range(0, rows, step):
        height = min(step, rows - first)
        down = e.view(table, lambda t, a=columns + first, n=height: t.view(torch.int32)[a : a + n].unsqueeze(1))  # type: ignore[misc]
        x, upper = e.new((height, columns), torch.int32), e.new((height, columns), torch.int32)
        e.call(torch.add, down, across, out=x)
        e.run(torch.addcmul, x, x, x, value=2, out=x, writes=[x])
        e.call(torch.bitwise_right_shift, x, 16, out=upper)
        e.run(torch.Tensor.add_, x, upper, writes=[x])
        e.run(torch.addcmul, x, x, x, value=2, out=x, writes=[x])
        here = min(2 * height * columns, count - 2 * first * columns)
        yield e.view(x, lambda t, n=here: t.view(-1).view(torch.int16)[:n])  # type: ignore[misc]


def _constant(value: ir.Value | None, default: float) -> float:
    if value is None:
        return default
    assert value.const_value is not None, "dropout's ratio and mode must be constant"
    return float(value.const_value.numpy())


@lowers("Dropout")
def dropout(e: Emitter, node: ir.Node) -> None:
    inputs = [*node.inputs, None, None][:3]
    x = e.value(inputs[0])
    ratio = _constant(inputs[1], 0.5)
    training = bool(_constant(inputs[2], 0.0))
    if not training or ratio == 0.0:
        e.bind(node.outputs[0], x)
        if len(node.outputs) > 1:
            ones = e.out(node.outputs[1])
            e.run(torch.Tensor.fill_, ones, True, writes=[ones])
        return
    mask = draw_mask(e, x.shape, ratio)
    apply_mask(e, x, mask, e.out(node.outputs[0]), _LEVELS / (_LEVELS - _dropped(ratio)))
    if len(node.outputs) > 1:
        e.bind(node.outputs[1], mask)
        e.keep(node.outputs[1], mask)


@lowers_composite("DropoutGrad")
def dropout_grad(e: Emitter, node: ir.Node) -> None:
    dy, mask = e.value(node.inputs[0]), e.value(node.inputs[1])
    scale = mask_scale(e, node.inputs[1], attributes(node).get("ratio", 0.5))
    apply_mask(e, dy, mask, e.out(node.outputs[0]), scale)


@lowers("RandomNormal", "RandomNormalLike")
def random_normal(e: Emitter, node: ir.Node) -> None:
    out, given = e.out(node.outputs[0]), attributes(node)
    mean, scale = given.get("mean", 0.0), given.get("scale", 1.0)
    e.run(torch.Tensor.normal_, out, mean, scale, generator=e.generator(), writes=[out])


@lowers("RandomUniform", "RandomUniformLike")
def random_uniform(e: Emitter, node: ir.Node) -> None:
    out, given = e.out(node.outputs[0]), attributes(node)
    low, high = given.get("low", 0.0), given.get("high", 1.0)
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
