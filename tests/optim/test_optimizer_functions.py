"""Each optimizer's function against its published formula in float64, and against torch.optim."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.functions.optimizer import decimal
from ontrain.graph import Builder, new_model

STEPS = 20
F32 = np.float32


def scalar(value):
    return np.array(value, np.float32)


def gradients(rng, shape, dtype=np.float32):
    return [rng.normal(size=shape).astype(dtype) for _ in range(STEPS)]


def run_adaptive(run_composite, name, start, grads, *, lr, scale=1.0, **attributes):
    p, m, v = start, np.zeros_like(start), np.zeros_like(start)
    for t, g in enumerate(grads, 1):
        p, m, v = run_composite(name, p, g, m, v, scalar(lr), scalar(t), scalar(scale), **attributes)
    return p, m, v


def adaptive_formula(name, start, grads, *, lr, scale=1.0, alpha=0.9, beta=0.999, epsilon=1e-8, weight_decay=0.0,
                     bias_correction=1, mode=0, ratio_min=-math.inf, ratio_max=math.inf):  # fmt: skip
    """The papers' algorithms as printed, in float64."""
    lr = float(F32(lr))
    p = start.astype(np.float64)
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        g = g.astype(np.float64) * scale
        if name == "Adam":
            g = g + weight_decay * p
        m = alpha * m + (1 - alpha) * g
        v = beta * v + (1 - beta) * g**2
        c1, c2 = (1 - alpha**t, 1 - beta**t) if bias_correction else (1, 1)
        direction = (m / c1) / (np.sqrt(v / c2) + epsilon)
        if name == "Adam":
            p = p - lr * direction
        elif name == "AdamW" and mode == 0:
            p = p - lr * weight_decay * p - lr * direction
        elif name == "AdamW":
            p = p - lr * math.sqrt(c2) / c1 * m / (np.sqrt(v) + epsilon)
            p = p - lr * weight_decay * p
        else:
            u = direction + weight_decay * p
            norm_p, norm_u = math.sqrt((p**2).sum()), math.sqrt((u**2).sum())
            ratio = min(max(norm_p / norm_u, ratio_min), ratio_max) if norm_p > 0 and norm_u > 0 else 1.0
            p = p - lr * ratio * u
    return p, m, v


CASES = [
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "epsilon": 1e-3}),
    ("Adam", {"bias_correction": 0, "alpha": 0.5, "beta": 0.9}),
    ("AdamW", {"weight_decay": 0.1}),
    ("AdamW", {"weight_decay": 0.1, "bias_correction": 0}),
    ("AdamW", {"weight_decay": 0.1, "mode": 1, "epsilon": 1e-3}),
    ("AdamW", {"mode": 1, "bias_correction": 0}),
    ("AdamW", {"alpha": 0.0, "beta": 0.0, "epsilon": 0.1}),
    ("Lamb", {"epsilon": 1e-6}),
    ("Lamb", {"epsilon": 1e-6, "weight_decay": 0.01}),
    ("Lamb", {"epsilon": 1e-6, "weight_decay": 0.01, "bias_correction": 0}),
    ("Lamb", {"epsilon": 1e-6, "weight_decay": 0.01, "ratio_max": 0.5}),
    ("Lamb", {"epsilon": 1e-6, "weight_decay": 0.01, "ratio_min": 2.0, "ratio_max": 3.0}),
]


@pytest.mark.parametrize(("name", "attributes"), CASES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-10)])
def test_adaptive_optimizers_follow_their_papers(run_composite, rng, name, attributes, dtype, tolerance):
    start, grads = rng.normal(size=(4, 3)).astype(dtype), gradients(rng, (4, 3), dtype)
    results = run_adaptive(run_composite, name, start, grads, lr=0.0078125, scale=0.25, **attributes)
    wanted = adaptive_formula(name, start, grads, lr=0.0078125, scale=0.25, **attributes)
    for got, want in zip(results, wanted, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias_correction", [0, 1])
def test_the_first_steps_of_adam_keep_their_digits(run_composite, bias_correction):
    """1 − 0.999 taken in float32 from a float32 attribute would be off by 1.3e-5."""
    start, grad = np.zeros(3, np.float32), np.array([1e-4, 1.0, 300.0], np.float32)
    results = run_adaptive(run_composite, "AdamW", start, [grad], lr=1.0, bias_correction=bias_correction)
    wanted = adaptive_formula("AdamW", start, [grad], lr=1.0, bias_correction=bias_correction)
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=4e-7)


def test_an_update_is_the_same_after_its_graph_was_a_file():
    assert decimal(float(F32(0.999))) == decimal(0.999) == 0.999
    assert decimal(float(F32(1e-8))) == 1e-8
    assert decimal(-math.inf) == -math.inf


TORCH_CASES = [
    ("Adam", torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 1e-6}, {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-6}),
    ("Adam", torch.optim.Adam, {"weight_decay": 0.3}, {"weight_decay": 0.3}),
    ("AdamW", torch.optim.AdamW, {"weight_decay": 0.3}, {"weight_decay": 0.3}),
    ("AdamW", torch.optim.AdamW, {"weight_decay": 0.0, "betas": (0.5, 0.7)}, {"alpha": 0.5, "beta": 0.7}),
]


@pytest.mark.parametrize(("name", "reference", "options", "attributes"), TORCH_CASES)
def test_adam_and_adamw_step_as_torch_does(run_composite, rng, name, reference, options, attributes):
    start, grads = rng.normal(size=(5, 2)).astype(np.float32), gradients(rng, (5, 2))
    param = torch.nn.Parameter(torch.tensor(start))
    optimizer = reference([param], lr=0.01, **options)
    for g in grads:
        param.grad = torch.tensor(g)
        optimizer.step()
    p, m, v = run_adaptive(run_composite, name, start, grads, lr=0.01, **attributes)
    np.testing.assert_allclose(p, param.detach().numpy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(m, optimizer.state[param]["exp_avg"].numpy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(v, optimizer.state[param]["exp_avg_sq"].numpy(), rtol=1e-6, atol=1e-6)


SGD_CASES = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.5, "weight_decay": 0.1, "dampening": 0.9},
    {"momentum": 0.5, "weight_decay": 0.1, "nesterov": True},
]


@pytest.mark.parametrize("options", SGD_CASES, ids=str)
def test_sgd_steps_as_torch_does(run_composite, rng, options):
    start, grads = rng.normal(size=(5, 2)).astype(np.float32), gradients(rng, (5, 2))
    param = torch.nn.Parameter(torch.tensor(start))
    optimizer = torch.optim.SGD([param], lr=0.1, **options)
    attributes = {name: int(value) if value is True else value for name, value in options.items()}
    p, buffer = start, np.zeros_like(start)
    for t, g in enumerate(grads, 1):
        param.grad = torch.tensor(g)
        optimizer.step()
        if "momentum" in options:
            operands = (p, 2 * g, scalar(0.1), scalar(0.5), buffer, scalar(t))
            p, buffer = run_composite("SGD", *operands, outputs=2, **attributes)
        else:
            (p,) = run_composite("SGD", p, 2 * g, scalar(0.1), scalar(0.5), outputs=1, **attributes)
    np.testing.assert_allclose(p, param.detach().numpy(), rtol=1e-6, atol=1e-6)
    if "momentum" in options:
        np.testing.assert_allclose(buffer, optimizer.state[param]["momentum_buffer"].numpy(), rtol=1e-6, atol=1e-6)


def test_sgd_without_step_treats_a_zero_buffer_as_the_first_step(run_composite, rng):
    p, g = rng.normal(size=3).astype(np.float32), rng.normal(size=3).astype(np.float32)
    _, buffer = run_composite("SGD", p, g, scalar(0.1), scalar(1), np.zeros_like(p), outputs=2, momentum=0.9)
    np.testing.assert_array_equal(buffer, g)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_takes_a_ratio_of_one_for_a_zero_weight(run_composite, weight_decay):
    zero, grad = np.zeros(4, np.float32), np.array([1, -2, 3, 0], np.float32)
    p, *_ = run_adaptive(run_composite, "Lamb", zero, [grad], lr=0.5, weight_decay=weight_decay, ratio_min=7.0)
    np.testing.assert_allclose(p, [-0.5, 0.5, -0.5, 0], rtol=1e-5)


def test_lamb_leaves_a_weight_without_gradient_or_decay(run_composite):
    weight = np.array([1.0, 2.0], np.float32)
    p, *_ = run_adaptive(run_composite, "Lamb", weight, [np.zeros_like(weight)], lr=0.5, ratio_min=7.0)
    np.testing.assert_array_equal(p, weight)


def test_lamb_steps_by_the_weights_norm(run_composite, rng):
    """Without decay or bounds ‖p' − p‖ = lr · ‖p‖, whatever the gradient's size."""
    weight, grad = rng.normal(size=(6, 6)).astype(np.float32), 1e4 * rng.normal(size=(6, 6)).astype(np.float32)
    p, *_ = run_adaptive(run_composite, "Lamb", weight, [grad], lr=0.125)
    assert np.linalg.norm(p - weight) == pytest.approx(0.125 * np.linalg.norm(weight), rel=1e-5)


@pytest.mark.parametrize("dtypes", [[F32], [F32, F32, F32], [np.float16, F32], [np.float64, F32]], ids=str)
def test_global_norm_is_that_of_all_elements(run_composite, rng, dtypes):
    shapes = [(3, 4), (5,), ()]
    grads = [np.asarray(rng.normal(size=s)).astype(d) for s, d in zip(shapes, dtypes, strict=False)]
    (norm,) = run_composite("GlobalNorm", *grads, outputs=1)
    flat = np.concatenate([g.ravel().astype(np.float64) for g in grads])
    assert norm.shape == () and norm.dtype == np.float32
    assert norm == pytest.approx(np.linalg.norm(flat), rel=1e-6)


def test_global_norm_of_half_precision_does_not_overflow(run_composite):
    (norm,) = run_composite("GlobalNorm", np.full(100, 6e4, np.float16), outputs=1)
    assert norm == pytest.approx(6e5, rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_global_norm_shows_one_bad_element(run_composite, bad):
    (norm,) = run_composite("GlobalNorm", np.ones(3, np.float32), np.array([1, bad], np.float32), outputs=1)
    assert not np.isfinite(norm)


def test_narrow_parameters_are_updated_in_float32_and_rounded_once(run_composite, rng):
    weight = rng.normal(size=8).astype(np.float16)
    grad, zero = rng.normal(size=8).astype(np.float16), np.zeros(8, np.float32)
    operands = (grad, zero, zero, scalar(0.01), scalar(1), scalar(1))
    p, m, _ = run_composite("AdamW", weight, *operands, weight_decay=0.1)
    wide, *_ = run_composite("AdamW", weight.astype(np.float32), *operands, weight_decay=0.1)
    assert p.dtype == np.float16 and m.dtype == np.float32
    np.testing.assert_array_equal(p, wide.astype(np.float16))


def test_updates_have_the_types_of_what_they_update():
    values = [
        ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        for name, shape, dtype in (
            ("p", [2, 3], ir.DataType.BFLOAT16), ("g", [2, 3], ir.DataType.BFLOAT16), ("m", [2, 3], ir.DataType.FLOAT),
            ("v", [2, 3], ir.DataType.FLOAT), ("lr", [], ir.DataType.FLOAT), ("t", [], ir.DataType.FLOAT),
            ("s", [], ir.DataType.FLOAT),
        )
    ]  # fmt: skip
    outputs = Builder(new_model(values, "types").graph).composite("Lamb", *values, outputs=3)
    assert [v.dtype for v in outputs] == [ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.FLOAT]
    assert all(tuple(v.shape) == (2, 3) for v in outputs)
