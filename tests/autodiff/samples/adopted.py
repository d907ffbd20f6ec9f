"""Operators newer than ontrain's opset, of onnxruntime's own domain, and of ai.onnx.ml."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import Sample, normal, sample, spread, uniform

_ZEROS = np.array([[2.0, 0.0, 3.0, -1.0], [0.5, 0.0, 0.0, 2.0]])


def _tensor_scatter(past, update, at=None, *, circular=False):
    """Along the axis before the last, sample by sample."""
    rows = []
    for b in range(len(past)):
        places = torch.arange(update.shape[-2]) + (0 if at is None else int(at[b]))
        places = places % past.shape[-2] if circular else places
        rows.append(past[b].index_copy(-2, places, update[b]))
    return torch.stack(rows)


def _causal(x, w, b):
    padded = F.pad(x, (2, 0))
    return F.conv1d(padded, w, b, groups=3), padded[..., -2:]


def _linear_attention(q, k, v):
    q, k, v = (t.unflatten(2, (2, 2)).transpose(1, 2) for t in (q, k, v))
    return 0.5 * ((q @ k.mT).tril() @ v).transpose(1, 2).flatten(2)


def _gated_delta(q, k, v, state, decay, beta):
    """Four query heads of width two on two heads of keys, by the recurrence in the operator's description."""
    q, k, v = q.unflatten(2, (2, 2, 2)), k.unflatten(2, (2, 2)), v.unflatten(2, (2, 3))
    rows = []
    for t in range(q.shape[1]):
        old = decay[:, t].exp()[..., None, None] * state
        wrong = v[:, t] - torch.einsum("bhkv,bhk->bhv", old, k[:, t])
        state = old + beta[:, t, :, None, None] * torch.einsum("bhk,bhv->bhkv", k[:, t], wrong)
        rows.append(torch.einsum("bhgk,bhkv->bhgv", q[:, t], state).flatten(1) * 2**-0.5)
    return torch.stack(rows, 1), state


LATER = [
    sample("Swish", normal(3, 4), twin=F.silu),
    sample("Swish", normal(3, 4), alpha=0.5, twin=lambda x: x * torch.sigmoid(0.5 * x)),
    sample("SwiGLU", normal(3, 4), normal(3, 4), twin=lambda gate, up: F.silu(gate) * up),
    sample("CausalConvWithState", normal(2, 3, 5), normal(3, 1, 3), normal(3), outputs=2, seeded=[0, 1], twin=_causal,
           dtype="float32"),
    sample("CausalConvWithState", normal(2, 3, 4), normal(3, 1, 3), None, normal(2, 3, 2), activation="silu", outputs=2,
           dtype="float32", twin=lambda x, w, b, past: F.silu(F.conv1d(torch.cat([past, x], 2), w, groups=3))),
    sample("LinearAttention", normal(2, 3, 4), normal(2, 3, 4), normal(2, 3, 4), q_num_heads=2, kv_num_heads=2,
           update_rule="linear", scale=0.5, outputs=2, dtype="float32", twin=_linear_attention),
    sample("LinearAttention", normal(1, 3, 8), normal(1, 3, 4), normal(1, 3, 6), normal(1, 2, 2, 3), normal(1, 3, 2),
           uniform(0.1, 0.9, 1, 3, 2), q_num_heads=4, kv_num_heads=2, outputs=2, seeded=[0, 1], dtype="float32",
           twin=_gated_delta),
    sample("CumProd", normal(3, 5), np.array(1), twin=lambda x, a: x.cumprod(1)),
    sample("CumProd", _ZEROS, np.array(-1), twin=lambda x, a: x.cumprod(-1)),
    sample("CumProd", normal(2, 5, 3), np.array(1), reverse=1, twin=lambda x, a: x.flip(1).cumprod(1).flip(1)),
    sample("CumProd", _ZEROS, np.array(1), reverse=1, twin=lambda x, a: x.flip(1).cumprod(1).flip(1)),
    sample("CumProd", normal(4, 2), np.array(0), exclusive=1, reverse=1,
           twin=lambda x, a: torch.cat([x, torch.ones_like(x[:1])]).flip(0).cumprod(0).flip(0)[1:]),
    sample("TensorScatter", normal(2, 5, 3), normal(2, 2, 3), np.array([1, 3]), twin=_tensor_scatter),
    sample("TensorScatter", normal(2, 2, 5, 3), normal(2, 2, 3, 3), np.array([4, 1]), mode="circular", fed=[2],
           twin=partial(_tensor_scatter, circular=True)),
    sample("TensorScatter", normal(1, 5, 3), normal(1, 2, 3), twin=_tensor_scatter),
]  # fmt: skip


def _contributed(op_type: str, *inputs, twin, **options) -> Sample:
    return sample(op_type, *inputs, twin=twin, domain="com.microsoft", **options)


def _fused_matmul(a, b, *, alpha=1.0, axes=None):
    first, second = axes or (None, None)
    return alpha * (a if first is None else a.permute(first)) @ (b if second is None else b.permute(second))


def _rms(x, scale):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 2**-10) * scale


_eps = {"epsilon": 2**-10}
_PACKED = np.random.default_rng(5).integers(0, 256, (3, 2, 8), np.uint8)


def _unpacked():
    """The packed weight's numbers, the lower half of each byte first: [3, 2, 16]."""
    return torch.tensor(np.stack([_PACKED & 15, _PACKED >> 4], -1).reshape(3, 2, 16).astype(np.float32))


def _heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _attended(q, k, v, bias=None, causal=False):
    y = F.scaled_dot_product_attention(*(_heads(x, 2) for x in (q, k, v)), bias, is_causal=causal)
    return y.transpose(1, 2).flatten(2)


_TURNS = np.linspace(0.1, 2.0, 6).reshape(3, 2)


def _rotated(x, places, cosines, sines):
    c, s = (table[places][:, :, None] for table in (cosines, sines))
    left, right = x.unflatten(-1, (2, 2, 2)).unbind(3)
    return torch.stack([left * c - right * s, right * c + left * s], 3).flatten(2)


def _experts(x, router, w1, b1, w2, b2):
    shares, chosen = router.softmax(-1).topk(2, -1)
    outer = torch.stack([(x @ w1[e].T + b1[e]).relu() @ w2[e].T + b2[e] for e in range(3)], 1)
    return (shares[..., None] * outer.gather(1, chosen[..., None].expand(-1, -1, outer.shape[-1]))).sum(1)


_REGULAR = 2 * np.eye(3)[::-1] + np.random.default_rng(3).uniform(-0.3, 0.3, (2, 3, 3))

CONTRIBUTED = [
    _contributed("Gelu", normal(3, 4), twin=F.gelu),
    _contributed("FastGelu", normal(3, 4), twin=partial(F.gelu, approximate="tanh")),
    _contributed("FastGelu", normal(3, 4), normal(4), twin=lambda x, b: F.gelu(x + b, approximate="tanh")),
    _contributed("BiasGelu", normal(3, 4), normal(4), twin=lambda x, b: F.gelu(x + b)),
    _contributed("QuickGelu", normal(3, 4), twin=lambda x: x * torch.sigmoid(1.5 * x), alpha=1.5),
    _contributed("BiasSplitGelu", normal(2, 3, 8), normal(8),
                 twin=lambda x, b: (x + b)[..., :4] * F.gelu((x + b)[..., 4:])),
    _contributed("FusedMatMul", normal(2, 4, 3), normal(2, 5, 4), transA=1, transB=1, alpha=0.5,
                 twin=partial(_fused_matmul, alpha=0.5, axes=((0, 2, 1), (0, 2, 1)))),
    _contributed("FusedMatMul", normal(4, 2, 3), normal(2, 3, 5), transBatchA=1,
                 twin=partial(_fused_matmul, axes=((1, 0, 2), (0, 1, 2)))),
    _contributed("FusedGemm", normal(2, 3), normal(4, 3), normal(4), transB=1, activation="LeakyRelu",
                 activation_alpha=0.25, twin=lambda a, b, c: F.leaky_relu(a @ b.T + c, 0.25)),
    _contributed("FusedConv", normal(1, 2, 4, 4), normal(3, 2, 3, 3), normal(3), pads=[1, 1, 1, 1], strides=[2, 1],
                 activation="LeakyRelu", activation_params=[0.25],
                 twin=lambda x, w, b: F.leaky_relu(F.conv2d(x, w, b, (2, 1), 1), 0.25)),
    _contributed("FusedConv", normal(1, 2, 3, 3), normal(2, 2, 1, 1), None, normal(1, 2, 3, 3), activation="Tanh",
                 twin=lambda x, w, _, z: (F.conv2d(x, w) + z).tanh()),
    _contributed("FusedConv", normal(1, 2, 5), normal(2, 1, 2), group=2, activation="Clip",
                 activation_params=[-0.5, 0.75], twin=lambda x, w: F.conv1d(x, w, groups=2).clamp(-0.5, 0.75)),
    sample("SimplifiedLayerNormalization", normal(2, 3, 4), normal(4), twin=_rms, **_eps),
    _contributed("SkipLayerNormalization", normal(2, 3, 4), normal(2, 3, 4), normal(4), normal(4), normal(4), **_eps,
                 twin=lambda x, s, g, b, c: F.layer_norm(x + s + c, (4,), g, b, 2**-10)),
    _contributed("SkipLayerNormalization", normal(2, 3, 4), normal(2, 3, 4), normal(4), outputs=4, seeded=[0, 3],
                 twin=lambda x, s, g: (F.layer_norm(x + s, (4,), g, None, 2**-10), x + s), **_eps),
    _contributed("SkipSimplifiedLayerNormalization", normal(2, 3, 4), normal(2, 3, 4), normal(4), outputs=4,
                 seeded=[0, 3], twin=lambda x, s, g: (_rms(x + s, g), x + s), **_eps),
    _contributed("EmbedLayerNormalization", np.array([[1, 0, 3], [2, 1, 1]], np.int32),
                 np.array([[0, 1, 1], [0, 0, 1]], np.int32), normal(4, 6), normal(5, 6), normal(2, 6), normal(6),
                 normal(6), np.array([[1, 1, 0], [1, 1, 1]], np.int32), outputs=2, fed=[0, 1, 7], **_eps,
                 twin=lambda i, s, w, p, t, g, b, m: F.layer_norm(w[i] + p[:3] + t[s], (6,), g, b, 2**-10)),
    _contributed("GroupNorm", normal(2, 3, 2, 4), normal(4), normal(4), groups=2, activation=1, dtype="float32", **_eps,
                 twin=lambda x, g, b: F.silu(F.group_norm(x.movedim(-1, 1), 2, g, b, 2**-10)).movedim(1, -1)),
    _contributed("MatMulNBits", normal(2, 32), _PACKED, normal(3, 2), K=32, N=3, bits=4, block_size=16, fed=[],
                 twin=lambda a, b, s: a @ ((_unpacked().to(a.dtype) - 8) * s[..., None]).reshape(3, 32).T),
    _contributed("TransposeMatMul", normal(2, 4, 3), normal(2, 4, 5), transA=1, alpha=0.5,
                 twin=partial(_fused_matmul, alpha=0.5, axes=((0, 2, 1), (0, 1, 2)))),
    _contributed("Inverse", _REGULAR, twin=torch.linalg.inv),
    _contributed("CDist", normal(3, 4), normal(2, 4), metric="euclidean",
                 twin=lambda a, b: (a[:, None] - b).square().sum(-1).sqrt()),
    _contributed("Attention", normal(2, 3, 4), normal(4, 24), normal(24), num_heads=2, unidirectional=1,
                 twin=lambda x, w, b: _attended(*(x @ w + b).chunk(3, -1), causal=True)),
    _contributed("MultiHeadAttention", normal(2, 3, 8), normal(2, 5, 8), normal(2, 5, 8), None, None,
                 normal(2, 2, 3, 5), num_heads=2, twin=lambda q, k, v, _, m, bias: _attended(q, k, v, bias)),
    _contributed("RotaryEmbedding", normal(2, 3, 8), np.array([[0, 1, 2], [2, 1, 0]]), np.cos(_TURNS), np.sin(_TURNS),
                 fed=[1], dtype="float32", twin=_rotated),
    _contributed("MoE", normal(4, 3), normal(4, 3), normal(3, 5, 3), normal(3, 5), normal(3, 3, 5), normal(3, 3), k=2,
                 twin=_experts),
]  # fmt: skip


def _linear(x, weight, bias):
    return x @ x.new_tensor(weight).T + x.new_tensor(bias)


_single = {"dtype": "float32", "domain": "ai.onnx.ml"}

CLASSICAL = [
    sample("Scaler", normal(3, 2), offset=[0.5, -1.0], scale=[2.0, 0.25], **_single,
           twin=lambda x: (x - x.new_tensor([0.5, -1.0])) * x.new_tensor([2.0, 0.25])),
    sample("Normalizer", uniform(0.5, 2, 3, 4), norm="L2", twin=F.normalize, **_single),
    sample("Normalizer", spread(3, 4), norm="L1", twin=partial(F.normalize, p=1.0), **_single),
    sample("LinearRegressor", normal(4, 2), coefficients=[1.0, -2.0, 0.5, 0.25, 3.0, 1.5], intercepts=[1.0, 2.0, 3.0],
           targets=3, **_single, twin=lambda x: x @ x.new_tensor([[1, -2], [0.5, 0.25], [3, 1.5]]).T
           + x.new_tensor([1, 2, 3])),
    sample("LinearRegressor", normal(4, 2), coefficients=[1.0, -2.0, 0.5, 0.25], intercepts=[1.0, 2.0], targets=2,
           post_transform="SOFTMAX", **_single, twin=lambda x: _linear(x, [[1, -2], [0.5, 0.25]], [1, 2]).softmax(-1)),
    sample("LinearRegressor", uniform(0, 0.4, 4, 2), coefficients=[0.5, 0.25, 0.75, 0.5], intercepts=[0.25, 0.125],
           targets=2, post_transform="PROBIT", **_single,
           twin=lambda x: math.sqrt(2) * torch.erfinv(2 * _linear(x, [[0.5, 0.25], [0.75, 0.5]], [0.25, 0.125]) - 1)),
    sample("LinearClassifier", spread(3, 2), coefficients=[1.0, -2.0], intercepts=[0.5], classlabels_ints=[0, 1],
           post_transform="LOGISTIC", outputs=2, seeded=[1], **_single,
           twin=lambda x: torch.cat([-_linear(x, [[1, -2]], [0.5]), _linear(x, [[1, -2]], [0.5])], 1).sigmoid()),
    sample("LinearClassifier", normal(3, 2), coefficients=[1.0, -2.0, 0.5, 0.25, 3.0, 1.5], intercepts=[1.0, 2.0, 3.0],
           classlabels_ints=[4, 5, 6], post_transform="SOFTMAX_ZERO", outputs=2, seeded=[1], **_single,
           twin=lambda x: _linear(x, [[1, -2], [0.5, 0.25], [3, 1.5]], [1, 2, 3]).softmax(-1)),
    sample("Imputer", np.array([[math.nan, 2.0], [1.0, math.nan]]), imputed_value_floats=[7.0, 8.0],
           replaced_value_float=math.nan, **_single, twin=lambda x: torch.where(x.isnan(), x.new_tensor([7, 8]), x)),
    sample("FeatureVectorizer", normal(3, 2), normal(3, 1), normal(3, 2), inputdimensions=[1, 2, 2], **_single,
           twin=lambda a, b, c: torch.cat([a[:, :1], F.pad(b, (0, 1)), c], 1)),
    sample("ArrayFeatureExtractor", normal(2, 3), [2, 0, 2], **_single, twin=lambda x, at: x[:, at]),
]  # fmt: skip

_BYTES = np.array([[-3, 5, 120], [7, -128, 2]], np.int8)
_BLOCKS = np.arange(-8, 16, dtype=np.int8).reshape(2, 6, 2)

QUANTISED = [
    sample("DequantizeLinear", _BYTES, normal(), np.array(3, np.int8), dtype="float32",
           twin=lambda x, s, z: (x.float() - 3) * s),
    sample("DequantizeLinear", _BYTES, normal(3), dtype="float32", twin=lambda x, s: x * s),
    sample("DequantizeLinear", _BYTES, normal(2), np.array([1, -2], np.int8), axis=0, dtype="float32",
           twin=lambda x, s, z: (x.float() - z[:, None]) * s[:, None]),
    sample("DequantizeLinear", _BLOCKS, normal(2, 2, 2), block_size=4, dtype="float32",
           twin=lambda x, s: x * s.repeat_interleave(4, 1)[:, :6]),
    sample("DynamicQuantizeLinear", uniform(-1, 3, 2, 5), outputs=3, seeded=[1], dtype="float32",
           twin=lambda x: (x.max() - x.min()) / 255),
]  # fmt: skip

ADOPTED = [*LATER, *CONTRIBUTED, *CLASSICAL, *QUANTISED]
