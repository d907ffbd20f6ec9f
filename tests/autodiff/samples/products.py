"""Matrix products, attention, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import Sample, normal, sample, spread


def _gemm(trans_a: int, trans_b: int, alpha: float, beta: float, *c: int) -> Sample:
    def twin(a, b, c=None):
        y = alpha * ((a.T if trans_a else a) @ (b.T if trans_b else b))
        return y if c is None else y + beta * c

    a, b = normal(*((3, 2) if trans_a else (2, 3))), normal(*((4, 3) if trans_b else (3, 4)))
    rest = [normal(*c)] if c else []
    return sample("Gemm", a, b, *rest, twin=twin, transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)


def _einsum(equation: str, *shapes: tuple[int, ...]) -> Sample:
    twin = partial(torch.einsum, equation)
    return sample("Einsum", *(normal(*s) for s in shapes), twin=twin, equation=equation)


def _complex(equation: str, a: tuple[int, ...], b: tuple[int, ...], conjugate: int = 0) -> Sample:
    def twin(a, b):
        first, second = torch.view_as_complex(a), torch.view_as_complex(b)
        return torch.view_as_real(torch.einsum(equation, first, second.conj() if conjugate else second))

    operands = normal(*a, 2), normal(*b, 2)
    return sample("ComplexEinsum", *operands, twin=twin, equation=equation, conjugate=conjugate, domain="ontrain")


def _rotary(x, cos, sin):
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _groups(ends):
    bounds = [0, *ends.tolist()]
    return [slice(start, max(start, end)) for start, end in zip(bounds, bounds[1:], strict=False)]


def _grouped_matmul(x, w, ends):
    rows = [x[group] @ matrix for group, matrix in zip(_groups(ends), w, strict=True)]
    return torch.cat([*rows, x.new_zeros(len(x) - int(ends[-1]), w.shape[2])])


def _grouped_outer(x, y, ends):
    return torch.stack([x[group].T @ y[group] for group in _groups(ends)])


PRODUCTS = [
    *(
        sample("GroupedMatMul", normal(5, 3), normal(3, 3, 2), ends, domain="ontrain", fed=[2], twin=_grouped_matmul)
        for ends in ([2, 4, 5], [0, 3, 3], [5, 5, 5])
    ),
    *(
        sample("GroupedOuter", normal(5, 3), normal(5, 2), ends, domain="ontrain", fed=[2], twin=_grouped_outer)
        for ends in ([2, 4, 5], [0, 3, 3])
    ),
    sample("Linear", normal(2, 3), normal(3, 4), twin=torch.matmul, domain="ontrain"),
    sample("Linear", normal(2, 3), normal(4, 3), normal(4), normal(2, 4), domain="ontrain", transB=1,
           twin=lambda x, w, b, z: F.linear(x, w, b) + z),
    *(
        sample("Linear", normal(2, 3), normal(4, 3), normal(4), domain="ontrain", transB=1, activation=name,
               twin=lambda x, w, b, function=function: function(F.linear(x, w, b)))
        for name, function in (
            ("Relu", F.relu), ("Sigmoid", F.sigmoid), ("Tanh", F.tanh), ("Gelu", F.gelu), ("Silu", F.silu),
        )
    ),
    *(
        sample("MatMul", normal(*a), normal(*b), twin=torch.matmul)
        for a, b in [
            ((2, 3), (3, 4)), ((2, 5, 3), (3, 4)), ((2, 2, 2, 3), (3, 4)), ((2, 5, 3), (2, 3, 4)),
            ((5, 3), (2, 3, 4)), ((1, 5, 3), (2, 3, 4)), ((2, 5, 3), (1, 3, 4)), ((2, 1, 5, 3), (2, 3, 4)),
            ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 5, 3), (3,)), ((3,), (2, 3, 4)), ((1, 5, 3), (1, 3, 4)),
            ((5, 3), (1, 3, 4)),
        ]
    ),
    *(_gemm(a, b, 1.0, 1.0, 4) for a in (0, 1) for b in (0, 1)),
    *(_gemm(a, b, 0.5, 0.75, 2, 4) for a in (0, 1) for b in (0, 1)),
    _gemm(0, 1, 1.0, 1.0),
    _gemm(0, 1, 1.0, 0.5, 1, 4),
    *(_complex("ab,ab->ab", (2, 3), (1, 3), conjugate) for conjugate in (0, 1)),
    *(_complex("bik,iok->bok", (2, 3, 2), (3, 2, 2), conjugate) for conjugate in (0, 1)),
    _complex("bi,iq->b", (2, 3), (3, 2)),
    _einsum("ij,jk->ik", (2, 3), (3, 4)),
    _einsum("bij, bjk -> bki", (2, 3, 4), (2, 4, 2)),
    _einsum("ij,kj", (2, 3), (4, 3)),
    _einsum("bhi,bhj,bij->bh", (2, 2, 3), (2, 2, 4), (2, 3, 4)),
    _einsum("ijk->j", (2, 3, 4)),
    _einsum("...ij,...jk->...ik", (2, 2, 3), (2, 3, 2)),
    _einsum("...ij,jk", (2, 2, 3), (3, 2)),
    _einsum("...i,...i->...", (2, 1, 3), (1, 4, 3)),
    _einsum("ii->i", (3, 3)),
    _einsum("iij,jk->ik", (2, 2, 3), (3, 2)),
    _einsum("ii,jkj->k", (2, 2), (3, 2, 3)),
    sample("Det", normal(3, 3), twin=torch.det),
    sample("Det", normal(2, 2, 2), twin=torch.det),
    sample("Det", normal(2, 1, 1), twin=torch.det),
]  # fmt: skip

ATTENTION = [
    sample(
        "Attention", normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 3), domain="ontrain", outputs=3, scale=0.5,
        twin=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5),
    ),
    sample(
        "Attention", normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 1, 3, 3), domain="ontrain",
        outputs=3, scale=0.25, twin=lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b, scale=0.25),
    ),
    sample(
        "Attention", normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(1, 1, 3, 3), domain="ontrain",
        outputs=3, seeded=[0, 1], scale=0.25,
        twin=lambda q, k, v, b: (
            F.scaled_dot_product_attention(q, k, v, b, scale=0.25), torch.softmax(0.25 * q @ k.mT + b, -1),
        ),
    ),
    sample(
        "RotaryEmbedding", normal(2, 2, 3, 4), normal(2, 3, 2), normal(2, 3, 2), fixed=[1, 2], twin=_rotary,
        dtype="float32",
    ),
    sample("RotaryEmbedding", normal(2, 2, 3, 4), normal(2, 3, 2), normal(2, 3, 2), twin=_rotary, dtype="float32"),
    sample("Attention", normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 3), normal(3, 5), scale=0.5,
           dtype="float32", twin=lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b, scale=0.5)),
    sample("Attention", normal(1, 4, 3, 4), normal(1, 2, 3, 4), normal(1, 2, 3, 4), is_causal=1, dtype="float32",
           twin=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)),
]  # fmt: skip


def _conv(x: tuple[int, ...], w: tuple[int, ...], *, bias: bool = True, dy_only: bool = False, **attributes) -> Sample:
    rank = len(x) - 2
    pads = attributes.get("pads", [0] * (2 * rank))
    function = [F.conv1d, F.conv2d, F.conv3d][rank - 1]

    def twin(x, w, b=None):
        border = [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])]
        auto = attributes.get("auto_pad")
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            border = []
            for i in reversed(range(rank)):
                size, stride = x.shape[2 + i], attributes.get("strides", [1] * rank)[i]
                total = max((-(-size // stride) - 1) * stride + w.shape[2 + i] - size, 0)
                less, more = total // 2, total - total // 2
                border += [less, more] if auto == "SAME_UPPER" else [more, less]
        return function(
            F.pad(x, border), w, b, attributes.get("strides", 1), 0,
            attributes.get("dilations", 1), attributes.get("group", 1),
        )  # fmt: skip

    return sample("Conv", normal(*x), normal(*w), *([normal(w[0])] if bias else []), twin=twin, **attributes)


def _conv_transpose(x: tuple[int, ...], w: tuple[int, ...], bias: int = 0, **attributes) -> Sample:
    rank = len(x) - 2
    pads = attributes.get("pads", [0] * (2 * rank))
    function = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][rank - 1]

    def twin(x, w, b=None):
        strides, extra = attributes.get("strides", [1] * rank), attributes.get("output_padding", [0] * rank)
        y = function(x, w, b, strides, 0, extra, attributes.get("group", 1), attributes.get("dilations", 1))
        before, after = pads[:rank], pads[rank:]
        if "output_shape" in attributes:
            totals = [have - want for have, want in zip(y.shape[2:], attributes["output_shape"], strict=True)]
            before, after = [t - t // 2 for t in totals], [t // 2 for t in totals]
        for i in range(rank):
            y = y.narrow(2 + i, before[i], y.shape[2 + i] - before[i] - after[i])
        return y

    return sample("ConvTranspose", normal(*x), normal(*w), *([normal(bias)] if bias else []), twin=twin, **attributes)


CONV = [
    _conv((2, 3, 7), (4, 3, 3)),
    _conv((2, 4, 8), (6, 2, 3), group=2, strides=[2], pads=[1, 0]),
    _conv((2, 2, 6, 5), (3, 2, 3, 2), bias=False),
    _conv((1, 2, 7, 8), (2, 2, 3, 3), strides=[2, 3], pads=[1, 0, 2, 1]),
    _conv((1, 2, 8, 8), (2, 2, 3, 2), dilations=[2, 3], pads=[1, 1, 1, 1]),
    _conv((1, 4, 6, 6), (4, 1, 3, 3), group=4, pads=[1, 1, 1, 1]),
    _conv((1, 2, 6, 7), (2, 2, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2]),
    _conv((1, 2, 6, 7), (2, 2, 2, 2), auto_pad="SAME_LOWER"),
    _conv((1, 2, 6, 7), (2, 2, 2, 2), auto_pad="VALID", strides=[3, 2]),
    _conv((1, 2, 4, 3, 4), (2, 2, 2, 2, 2), strides=[2, 1, 2], pads=[0, 1, 0, 1, 0, 1]),
    _conv_transpose((2, 3, 4), (3, 2, 3), 2),
    _conv_transpose((1, 4, 4), (4, 3, 3), 6, group=2, strides=[2], pads=[1, 0]),
    _conv_transpose((1, 2, 3, 4), (2, 3, 3, 2), strides=[2, 3], output_padding=[1, 2], pads=[1, 0, 0, 1]),
    _conv_transpose((1, 2, 3, 3), (2, 2, 2, 3), dilations=[2, 2]),
    _conv_transpose((1, 2, 3, 3), (2, 2, 3, 3), strides=[2, 2], output_shape=[6, 5]),
]  # fmt: skip


def _window(a: dict) -> dict:
    """What both poolings call the same in torch."""
    return {
        "kernel_size": a["kernel_shape"],
        "stride": a.get("strides", 1),
        "padding": a.get("pads", [0])[: len(a["kernel_shape"])],
        "ceil_mode": bool(a.get("ceil_mode", 0)),
    }


def _max_pool(shape: tuple[int, ...], kernel: list[int], **rest) -> Sample:
    a = {"kernel_shape": kernel, **rest}
    function = [F.max_pool1d, F.max_pool2d, F.max_pool3d][len(kernel) - 1]
    twin = partial(function, dilation=a.get("dilations", 1), **_window(a))
    return sample("MaxPool", spread(*shape), twin=twin, **a)


def _average_pool(shape: tuple[int, ...], kernel: list[int], **rest) -> Sample:
    a = {"kernel_shape": kernel, **rest}
    function = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][len(kernel) - 1]
    twin = partial(function, count_include_pad=bool(a.get("count_include_pad", 0)), **_window(a))
    return sample("AveragePool", normal(*shape), twin=twin, **a)


def _adaptive(op_type: str, function: Callable[..., Any], shape: tuple[int, ...], size: list[int]) -> Sample:
    outputs = 2 if op_type == "AdaptiveMaxPool" else 1
    twin = partial(function, output_size=size)
    return sample(op_type, spread(*shape), domain="ontrain", outputs=outputs, output_size=size, twin=twin)


POOLING = [
    _max_pool((2, 2, 7), [3], strides=[2]),
    _max_pool((2, 2, 6, 6), [2, 2], strides=[2, 2]),
    _max_pool((1, 2, 6, 7), [3, 3], strides=[2, 1], pads=[1, 1, 1, 1]),
    _max_pool((1, 1, 7, 7), [3, 2], dilations=[2, 2]),
    _max_pool((1, 2, 4, 4), [2, 2], storage_order=1),
    _average_pool((2, 2, 7), [3], strides=[2]),
    _average_pool((1, 2, 6, 6), [2, 3], strides=[2, 2]),
    _average_pool((1, 2, 6, 6), [3, 3], strides=[2, 1], pads=[1, 1, 1, 1], count_include_pad=1),
    _average_pool((1, 2, 6, 6), [3, 3], strides=[2, 1], pads=[1, 1, 1, 1]),
    _average_pool((1, 2, 6, 6), [3, 3], strides=[2, 2], ceil_mode=1),
    _average_pool((1, 1, 4, 3, 4), [2, 2, 2]),
    _adaptive("AdaptiveAveragePool", F.adaptive_avg_pool1d, (2, 2, 7), [3]),
    _adaptive("AdaptiveAveragePool", F.adaptive_avg_pool2d, (1, 2, 5, 7), [3, 4]),
    _adaptive("AdaptiveAveragePool", F.adaptive_avg_pool2d, (2, 3, 4), [5, 2]),  # one place is in two windows
    _adaptive("AdaptiveAveragePool", F.adaptive_avg_pool3d, (1, 2, 4, 3, 5), [2, 2, 3]),
    _adaptive("AdaptiveMaxPool", F.adaptive_max_pool1d, (2, 2, 7), [3]),
    _adaptive("AdaptiveMaxPool", F.adaptive_max_pool2d, (1, 2, 5, 7), [3, 4]),
    _adaptive("AdaptiveMaxPool", F.adaptive_max_pool2d, (2, 3, 4), [5, 2]),
    _adaptive("AdaptiveMaxPool", F.adaptive_max_pool3d, (1, 2, 4, 3, 5), [2, 2, 3]),
    sample("GlobalAveragePool", normal(2, 3, 4, 2), twin=lambda x: x.mean((2, 3), keepdim=True)),
    sample("GlobalMaxPool", spread(2, 3, 4, 2), twin=lambda x: x.amax((2, 3), keepdim=True)),
]
