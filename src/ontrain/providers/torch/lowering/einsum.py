"""Einsum: products of elements by `mul`, with a sum behind where that spares copies; everything else is ATen's.

Complex tensors are pairs along a last axis, which ATen's kernels see as complex numbers.
"""

from __future__ import annotations

from itertools import groupby

import onnx_ir as ir
import torch

from ontrain.operators import static_dims, subscripts
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []


@lowers("Einsum")
def einsum(e: Emitter, node: ir.Node) -> None:
    inputs = [e.value(v) for v in node.inputs]
    equation = attributes(node)["equation"]
    out = e.out(node.outputs[0])
    terms, result = subscripts(equation, [len(buf.shape) for buf in inputs])
    if len(inputs) == 2 and e.reformulates(*inputs) and _no_letter_twice(*terms):
        summed = "".join(c for c in dict.fromkeys("".join(terms)) if c not in result)
        if not summed:
            first, second = (_aligned(e, *operand, result) for operand in zip(inputs, terms, strict=True))
            e.call(torch.mul, first, second, out=out)
            return
        inner, outer = sorted(zip(terms, inputs, strict=True), key=lambda operand: len(operand[0]))
        if _has_all_of(outer, inner) and _is_copied(outer[0], inner[0], result):
            order, left = outer[0], [letter for letter in outer[0] if letter in result]
            product = e.call(torch.mul, outer[1], _aligned(e, inner[1], inner[0], order), out=e.new(outer[1].shape))
            place = e.permute(out, [result.index(letter) for letter in left])
            e.call(torch.sum, product, [order.index(letter) for letter in summed], out=place)
            return
    assert static_dims(node.outputs[0]) is not None
    e.compute(torch.einsum, equation, *inputs, outs=[out], fresh=len(inputs) > 1)


@lowers_composite("ComplexEinsum")
def complex_einsum(e: Emitter, node: ir.Node) -> None:
    a, b, out = (_complex(e, buf) for buf in (*map(e.value, node.inputs), e.out(node.outputs[0])))
    equation = attributes(node)["equation"]
    if attributes(node).get("conjugate", 0):
        b = e.call(torch.conj_physical, b, out=e.new(b.shape, b.dtype))
    terms, result = subscripts(equation, [len(buf.shape) for buf in (a, b)])
    if set(result) == set("".join(terms)):
        e.call(torch.mul, _aligned(e, a, terms[0], result), _aligned(e, b, terms[1], result), out=out)
    else:
        e.compute(torch.einsum, equation, a, b, outs=[out])


def _complex(e: Emitter, buf: Buf) -> Buf:
    """Pairs of real numbers as complex ones, copied only if a pair does not lie side by side."""
    try:
        return e.view(buf, torch.view_as_complex)
    except RuntimeError:
        return e.view(e.contiguous(buf), torch.view_as_complex)


def _no_letter_twice(*terms: str) -> bool:
    return all(len(set(term)) == len(term) for term in terms)


def _has_all_of(outer: tuple[str, Buf], inner: tuple[str, Buf]) -> bool:
    """Whether one operand has all axes of another, and none where the other's is longer."""
    lengths = dict(zip(outer[0], outer[1].shape, strict=True))
    return all(lengths.get(letter) == length for letter, length in zip(inner[0], inner[1].shape, strict=True))


def _aligned(e: Emitter, buf: Buf, term: str, order: str) -> Buf:
    """A view with an axis for each letter of `order`; of length one where the operand has none."""
    here = e.permute(buf, [term.index(letter) for letter in order if letter in term])
    places = tuple(slice(None) if letter in term else None for letter in order)
    return e.view(here, lambda t: t[places])


def _is_copied(outer: str, inner: str, result: str) -> bool:
    """Whether ATen lays the larger operand out anew before it multiplies a batch of matrices by vectors.

    It does unless the letters of the batch come first, and neither those that are summed nor the others are scattered.
    """
    kinds = [("sum" if c not in result else "batch") if c in inner else "free" for c in outer]
    runs = [kind for kind, _ in groupby(kinds)]
    return len(set(runs)) < len(runs) or "batch" in runs[1:]
