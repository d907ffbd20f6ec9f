"""Random numbers: those of a distribution as torch draws them, and Dropout with masks drawn 16 bits at a time.

ATen's `bernoulli_` is serial and costs up to a tenth of a transformer's step on a CPU; 64 random bits make four
decisions in the time of one. A mask is kept as floats, 0 or 1/(1−p), so that applying it is one product.
"""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__ = ["draw_mask"]

_LEVELS = 1 << 16


def draw_mask(e: Emitter, shape: tuple[int, ...], ratio: float, dtype: torch.dtype, into: Buf | None = None) -> Buf:
    """Emit a mask that is 0 with probability `ratio` and 1/(1−ratio) otherwise.

    The probability is rounded to a multiple of 2⁻¹⁶ and the scale follows it, so the expectation stays exactly one.
    """
    count = 1
    for size in shape:
        count *= size
    mask = into if into is not None else e.new(shape, dtype)
    dropped = min(_LEVELS - 1, round(ratio * _LEVELS))
    bits = e.new((-(-count // 4),), torch.int64)
    e.run(torch.Tensor.random_, bits, -(2**63), None, generator=e.generator(), writes=[bits])
    sixteen = e.view(bits, lambda t: _as_int16(t)[:count].view(shape))
    e.call(torch.ge, sixteen, dropped - _LEVELS // 2, out=mask)
    e.run(torch.Tensor.mul_, mask, _LEVELS / (_LEVELS - dropped), writes=[mask])
    return mask


def _as_int16(meta: torch.Tensor) -> torch.Tensor:
    return meta.view(torch.int16)


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
    mask = draw_mask(e, x.shape, ratio, x.dtype)
    e.call(torch.mul, x, mask, out=e.out(node.outputs[0]), elementwise=True)
    e.program[-1].reuses = [x]
    if len(node.outputs) > 1:
        e.bind(node.outputs[1], mask)


@lowers_composite("DropoutGrad")
def dropout_grad(e: Emitter, node: ir.Node) -> None:
    dy, mask = e.value(node.inputs[0]), e.raw(node.inputs[1])
    out = e.out(node.outputs[0])
    if mask.dtype != torch.bool:
        e.call(torch.mul, dy, mask, out=out, elementwise=True)
        return
    e.call(torch.mul, dy, mask, out=out)
    e.run(torch.Tensor.mul_, out, 1 / (1 - attributes(node).get("ratio", 0.5)), writes=[out])


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
