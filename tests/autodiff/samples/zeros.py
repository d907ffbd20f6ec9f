"""Operators whose derivative is zero wherever it exists, or that make their result from sizes and chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import Sample, sample, spread, uniform

_FLAGS = np.array([True, False, True, False]), np.array([True, True, False, False])
_WHOLE = np.array([5, 12, 7, 0]), np.array([3, 10, 7, 9])
_x, _y = spread(3, 4), uniform(-2, 2, 4)
_STEPS = np.array([0, 3, 200, 7], np.uint8)
_SMALL = np.array([[-3, 5], [7, -2]], np.int8)
_SINGLE = {"dtype": "float32"}


def _one_of(x: torch.Tensor) -> torch.Tensor:
    return F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)


def _quantised(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return (torch.round(x / scale) + zero).clamp(-128, 127).to(torch.int8)


def _qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, scale, zero):
    product = ((a.float() - a_zero) * a_scale) @ ((b.float() - b_zero) * b_scale)
    return _quantised(product, scale, zero)


def _qlinear_conv(x, x_scale, x_zero, w, w_scale, w_zero, scale, zero):
    return _quantised(F.conv1d((x.float() - x_zero) * x_scale, (w.float() - w_zero) * w_scale), scale, zero)


def _mel(*_: torch.Tensor) -> torch.Tensor:
    """Points 8/5 Hz apart fall into the bins 0, 0, 1, 2 and 3 of five; the middle three are the tips of the filters."""
    return torch.eye(5, 3)


_BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 3, 1, 4]]])
_SCORES = np.array([[[0.9, 0.8, 0.7]]])
_QUANTUM = np.array(0.23), np.array(3, np.int8)
_IMAGE = np.array([[[-3, 5, 7, 1, 0]]], np.int8)
_KERNEL = np.array([[[2, -1]]], np.int8)

ZEROS: list[Sample] = [
    sample("BitwiseAnd", *_WHOLE, twin=torch.bitwise_and),
    sample("BitwiseOr", *_WHOLE, twin=torch.bitwise_or),
    sample("BitwiseXor", *_WHOLE, twin=torch.bitwise_xor),
    sample("BitwiseNot", _WHOLE[0], twin=torch.bitwise_not),
    sample("BitShift", _STEPS, np.array([1, 2, 1, 0], np.uint8), direction="RIGHT", twin=torch.bitwise_right_shift),
    sample("BitShift", _STEPS, np.array([1, 2, 1, 0], np.uint8), direction="LEFT", twin=torch.bitwise_left_shift),
    *(sample(name, *_FLAGS, twin=getattr(torch, f"logical_{name.lower()}")) for name in ("And", "Or", "Xor")),
    sample("Not", _FLAGS[0], twin=torch.logical_not),
    sample("Equal", _x, _y, twin=torch.eq),
    sample("Less", _x, _y, twin=torch.lt),
    sample("LessOrEqual", _x, _y, twin=torch.le),
    sample("Greater", _x, _y, twin=torch.gt),
    sample("GreaterOrEqual", _x, _y, twin=torch.ge),
    sample("Binarizer", _x, threshold=0.25, domain="ai.onnx.ml", twin=lambda x: (x > 0.25).to(x.dtype)),
    sample("OneHotEncoder", np.array([[1, 5], [2, 3]]), cats_int64s=[1, 2, 3], domain="ai.onnx.ml",
           twin=lambda x: (x[..., None] == torch.tensor([1, 2, 3])).float()),
    sample("IsNaN", np.array([1.0, np.nan]), fixed=[0], twin=torch.isnan),
    sample("IsInf", np.array([1.0, np.inf, -np.inf]), fixed=[0], twin=torch.isinf),
    sample("Sign", _x, twin=torch.sign),
    sample("Floor", _x, twin=torch.floor),
    sample("Ceil", _x, twin=torch.ceil),
    sample("Round", _x, twin=torch.round),
    sample("ArgMax", _x, axis=1, keepdims=0, twin=lambda x: x.argmax(1)),
    sample("ArgMin", _x, axis=0, twin=lambda x: x.argmin(0, True)),
    sample("Hardmax", _x, twin=_one_of),
    sample("Shape", _x, twin=lambda x: torch.tensor(x.shape)),
    sample("Size", _x, twin=lambda x: torch.tensor(x.numel())),
    sample("ConstantOfShape", [2, 3], twin=lambda s: torch.zeros(2, 3)),
    sample("Range", np.array(1), np.array(9), np.array(3), twin=torch.arange),
    sample("EyeLike", _x, k=1, twin=lambda x: torch.eye(3, 4 + 1, dtype=x.dtype)[:, :4].roll(1, 1).triu(1)),
    sample("NonZero", _WHOLE[0], fed=[0], seeded=(), twin=lambda x: x.nonzero().T),
    sample("NonMaxSuppression", _BOXES, _SCORES, np.array([3]), np.array([0.5]), seeded=(), **_SINGLE,
           twin=lambda *_: torch.tensor([[0, 0, 0], [0, 0, 2]])),
    sample("Gcd", np.array([[12, 18, -7], [0, 5, 21]]), np.array([8, 27, 14]), domain="ontrain", fed=(0, 1),
           twin=torch.gcd),
    sample("HannWindow", np.array(6), output_datatype=11, twin=lambda n: torch.hann_window(6, dtype=torch.float64)),
    sample("HammingWindow", np.array(6), output_datatype=11,
           twin=lambda n: torch.hamming_window(6, True, 25 / 46, 21 / 46, dtype=torch.float64)),
    sample("BlackmanWindow", np.array(6), output_datatype=11,
           twin=lambda n: torch.blackman_window(6, dtype=torch.float64)),
    sample("MelWeightMatrix", np.array(3), np.array(8), np.array(16), np.array(0.0, np.float32),
           np.array(8.0, np.float32), fixed=[3, 4], single=[3, 4], seeded=(), twin=_mel),
    sample("QuantizeLinear", _x, *_QUANTUM, twin=_quantised, **_SINGLE),
    sample("ConvInteger", _IMAGE, _KERNEL, np.array(1, np.int8),
           twin=lambda x, w, z: F.conv1d((x.int() - z).double(), w.double()).int()),
    sample("MatMulInteger", _SMALL, _SMALL.T.copy(), np.array(1, np.int8), np.array(2, np.int8),
           twin=lambda a, b, p, q: (a.int() - p) @ (b.int() - q)),
    sample("QLinearMatMul", _SMALL, *_QUANTUM, _SMALL.T.copy(), *_QUANTUM, *_QUANTUM, twin=_qlinear_matmul, **_SINGLE),
    sample("QLinearConv", _IMAGE, *_QUANTUM, _KERNEL, *_QUANTUM, *_QUANTUM, twin=_qlinear_conv, **_SINGLE),
]  # fmt: skip


def _chance(op_type: str, *inputs: Any, **options: Any) -> Sample:
    return sample(op_type, *inputs, twin=None, **options)


CHANCE = [
    _chance("Bernoulli", np.full((3, 4), 0.5)),
    _chance("Multinomial", np.log(np.full((2, 3), 1 / 3)), sample_size=4, dtype="float32"),
    _chance("RandomNormal", shape=[2, 3]),
    _chance("RandomUniform", shape=[2, 3]),
    _chance("RandomNormalLike", _x),
    _chance("RandomUniformLike", _x),
    _chance("StandardGamma", np.full((2, 3), 1.5), domain="ontrain"),
    _chance("Dirichlet", np.full((2, 3), 1.5), domain="ontrain"),
    _chance("Poisson", np.full((2, 3), 1.5), domain="ontrain"),
    _chance("Binomial", np.full((2, 3), 4.0), np.full((2, 3), 0.3), domain="ontrain"),
]
