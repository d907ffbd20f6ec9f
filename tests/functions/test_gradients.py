"""The body of each gradient composite equals torch's own backward kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ontrain.functions import composites, inline_all
from ontrain.graph import DOMAIN, Builder, new_model
from tests.autodiff.evaluator import CORRECTED

aten = torch.ops.aten


def run(op_type: str, *arrays: Any, outputs: int = 1, **attributes: Any) -> list[np.ndarray | None]:
    """Evaluate a composite by its body; an output that the body leaves out is None. Checks the inferred types too."""
    values = [
        None if a is None else ir.Value(
            name=f"x{i}", shape=ir.Shape(a.shape), type=ir.TensorType(ir.DataType.from_numpy(a.dtype))
        )
        for i, a in enumerate(arrays)
    ]  # fmt: skip
    model = new_model([v for v in values if v is not None], op_type)
    op = Builder(model.graph)
    results = op.composite(op_type, *values, outputs=outputs, **attributes)
    results = list(results) if isinstance(results, tuple) else [results]
    mask = attributes.get("output_mask", [1] * outputs)
    model.graph.outputs.extend(v for v, selected in zip(results, mask, strict=True) if selected)
    promised = [(v.dtype, tuple(v.shape)) for v in model.graph.outputs]
    plain = inline_all(model)
    assert [(v.dtype, tuple(v.shape)) for v in plain.graph.outputs] == promised
    assert all(node.domain != DOMAIN for node in plain.graph)
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    got = iter(ReferenceEvaluator(ir.to_proto(plain), new_ops=CORRECTED).run(None, feeds))
    return [np.asarray(next(got)) if selected else None for selected in mask]


def check(got: Sequence[np.ndarray | None], *expected: torch.Tensor | None) -> None:
    for have, want in zip(got, expected, strict=True):
        if want is None:
            assert have is None
        else:
            np.testing.assert_allclose(have, want.detach().numpy(), rtol=1e-10, atol=1e-12)


def t(*arrays: Any) -> list[torch.Tensor]:
    return [torch.tensor(a) for a in arrays]


@pytest.mark.parametrize("ends", [[2, 4, 5], [0, 3, 3], [5, 5, 5]])
def test_grouped_products(rng: np.random.Generator, ends: list[int]) -> None:
    x, y, w = rng.standard_normal((5, 3)), rng.standard_normal((5, 2)), rng.standard_normal((3, 3, 2))
    groups = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    products = np.zeros((5, 2))
    for group, matrix in zip(groups, w, strict=True):
        products[group] = x[group] @ matrix
    check(run("GroupedMatMul", x, w, np.array(ends)), torch.tensor(products))
    check(
        run("GroupedOuter", x, y, np.array(ends)), torch.tensor(np.stack([x[group].T @ y[group] for group in groups]))
    )


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_grad(rng: np.random.Generator, zero_infinity: bool) -> None:
    x, dy = rng.standard_normal((6, 3, 4)), rng.standard_normal(3)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    numbers = np.array([[1, 1, 2], [3, 2, 3], [1, 1, 1]]), np.array([6, 5, 4]), np.array([3, 1, 3])
    loss, alpha = aten._ctc_loss(*t(x, *numbers), 0, zero_infinity)
    assert bool(loss[2].isinf())
    check(
        run("CTC", x, *numbers, zero_infinity=int(zero_infinity)),
        loss.nan_to_num(posinf=0.0) if zero_infinity else loss,
    )
    expected = aten._ctc_loss_backward(*t(dy, x, *numbers), loss, alpha, 0, zero_infinity)
    check(run("CTCGrad", dy, x, *numbers, zero_infinity=int(zero_infinity)), expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_grad(rng: np.random.Generator, approximate: str) -> None:
    dy, x = rng.standard_normal((2, 3, 4))
    check(run("GeluGrad", dy, x, approximate=approximate), aten.gelu_backward(*t(dy, x), approximate=approximate))


def test_silu_and_its_gradient(rng: np.random.Generator) -> None:
    dy, x = rng.standard_normal((2, 3, 4))
    check(run("Silu", x), torch.nn.functional.silu(*t(x)))
    check(run("SiluGrad", dy, x), aten.silu_backward(*t(dy, x)))


def test_hardtanh(rng: np.random.Generator) -> None:
    x, low, high = 2 * rng.standard_normal((3, 4)), np.array(-0.5), np.array(1.5)
    check(run("Hardtanh", x, low, high), torch.nn.functional.hardtanh(*t(x), -0.5, 1.5))


@pytest.mark.parametrize("delta", [0.3, 1.0, 2.5])
def test_losses_of_pairs(rng: np.random.Generator, delta: float) -> None:
    x = np.concatenate([3 * rng.standard_normal(20), [-delta, 0.0, delta, np.inf, -np.inf, np.nan]])
    target = np.concatenate([rng.standard_normal(20), np.zeros(6)])
    dy, scale = rng.standard_normal(26), rng.standard_normal(1)
    functional, pair = torch.nn.functional, t(x, target)
    check(run("SquaredError", x, target), functional.mse_loss(*pair, reduction="none"))
    check(run("Huber", x, target, delta=delta), functional.huber_loss(*pair, "none", delta))
    smooth = functional.smooth_l1_loss(*pair, reduction="none", beta=delta)
    check(run("Huber", x, target, delta=delta, unit_slope=1), smooth)
    for adjoint in (dy, scale):
        whole = torch.tensor(adjoint).expand(26)
        check(run("SquaredErrorGrad", adjoint, x, target), aten.mse_loss_backward(whole, *pair, 0))
        check(run("HuberGrad", adjoint, x, target, delta=delta), aten.huber_loss_backward(whole, *pair, 0, delta))
        check(run("HuberGrad", adjoint, x, target, delta=delta, unit_slope=1),
              aten.smooth_l1_loss_backward(whole, *pair, 0, delta))  # fmt: skip


def test_cross_entropy_of_a_sigmoid(rng: np.random.Generator) -> None:
    x = np.concatenate([3 * rng.standard_normal(9), [0.0, 40.0, -40.0, 800.0, -800.0]])
    target = np.concatenate([rng.uniform(0, 1, 9), [0.0, 1.0, 0.0, 1.0, 0.0]])
    scores, (dy,) = torch.tensor(x, requires_grad=True), rng.standard_normal((1, 14))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor(target), reduction="none")
    check(run("SigmoidCrossEntropy", x, target), loss)
    (dx,) = torch.autograd.grad(loss, scores, torch.tensor(dy))
    check(run("SigmoidCrossEntropyGrad", dy, x, target), dx)


def test_cross_entropy_of_probabilities(rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(0, 1, 9), [0.0, 1.0, 0.0, 1.0, 1e-9]])
    target = np.concatenate([rng.uniform(0, 1, 9), [0.0, 1.0, 1.0, 0.0, 0.5]])
    scores, (dy,) = torch.tensor(x, requires_grad=True), rng.standard_normal((1, 14))
    loss = torch.nn.functional.binary_cross_entropy(scores, torch.tensor(target), reduction="none")
    check(run("BinaryCrossEntropy", x, target), loss)
    (dx,) = torch.autograd.grad(loss, scores, torch.tensor(dy))
    check(run("BinaryCrossEntropyGrad", dy, x, target), dx)


AT_BOUNDS = np.array([-4.0, -3.0, -1.0, 0.0, 0.5, 1.0, 3.0, 4.0])
"""Where pieces of an activation meet, and between."""


@pytest.mark.parametrize(
    "name, forward, attributes",
    [
        ("ReluGrad", torch.relu, {}), ("LeakyReluGrad", torch.nn.LeakyReLU(0.3), {"alpha": 0.3}),
        ("EluGrad", torch.nn.ELU(0.7), {"alpha": 0.7}),
        ("EluGrad", lambda x: aten.elu(x, 1.3, 1.1, 0.6), {"alpha": 1.3, "scale": 1.1, "input_scale": 0.6}),
        ("EluGrad", torch.selu, {"alpha": 1.6732632423543772, "scale": 1.0507009873554805}),
        ("HardSwishGrad", torch.nn.functional.hardswish, {}),
        ("MishGrad", torch.nn.Mish(), {}), ("HardtanhGrad", torch.nn.ReLU6(), {"low": 0.0, "high": 6.0}),
        ("HardtanhGrad", torch.nn.Hardtanh(-3.0, 0.5), {"low": -3.0, "high": 0.5}),
        ("TanhGrad", torch.tanh, {}), ("SigmoidGrad", torch.sigmoid, {}),
    ],
)  # fmt: skip
def test_the_gradient_of_an_activation_is_autograds(rng, name, forward, attributes) -> None:
    numbers = np.concatenate([AT_BOUNDS, rng.standard_normal(8)])
    x, dy = torch.tensor(numbers, requires_grad=True), rng.standard_normal(16)
    y = forward(x)
    y.backward(torch.tensor(dy))
    of_result = name in ("ReluGrad", "TanhGrad", "SigmoidGrad")
    check(run(name, dy, (y if of_result else x).detach().numpy(), **attributes), x.grad)


@pytest.mark.parametrize("alpha, beta", [(0.25, 0.5), (-0.5, 0.25), (0.0, 0.5)])
def test_a_hard_sigmoid_rises_falls_or_is_level(rng: np.random.Generator, alpha: float, beta: float) -> None:
    x, dy = torch.linspace(-4, 4, 16, dtype=torch.float64, requires_grad=True), rng.standard_normal(16)
    torch.clamp(alpha * x + beta, 0, 1).backward(torch.tensor(dy))
    check(run("HardSigmoidGrad", dy, x.detach().numpy(), alpha=alpha, beta=beta), x.grad)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_linear_cross_entropy_makes_its_own_gradient(
    rng: np.random.Generator, reduction: str, transposed: int
) -> None:  # fmt: skip
    labels = np.array([2, -100, 0, 4, 1])
    arrays = rng.standard_normal((5, 3)), rng.standard_normal((6, 3)), rng.standard_normal(6)
    hidden, weight, bias = (torch.tensor(a, requires_grad=True) for a in arrays)
    scores = torch.nn.functional.linear(hidden, weight, bias)
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels), reduction=reduction)
    loss.backward()
    stored = arrays[1] if transposed else np.ascontiguousarray(arrays[1].T)
    results = run(
        "LinearCrossEntropy", arrays[0], labels, stored, arrays[2], outputs=4, transB=transposed, reduction=reduction,
        ignore_index=-100,
    )  # fmt: skip
    assert weight.grad is not None
    check(results, loss, hidden.grad, weight.grad if transposed else weight.grad.T, bias.grad)
    unit, dy = rng.standard_normal((2, 3)), np.array(0.5)
    check(run("ScaleGrad", unit, dy), torch.tensor(unit * 0.5))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_and_log_softmax_grad(rng: np.random.Generator, axis: int) -> None:
    dy, x = rng.standard_normal((2, 3, 4, 2))
    for op_type, forward, backward in (
        ("SoftmaxGrad", torch.softmax, aten._softmax_backward_data),
        ("LogSoftmaxGrad", torch.log_softmax, aten._log_softmax_backward_data),
    ):
        y = forward(torch.tensor(x), axis)
        check(run(op_type, dy, y.numpy(), axis=axis), backward(torch.tensor(dy), y, axis, torch.float64))


def test_dropout_grad(rng: np.random.Generator) -> None:
    dy, mask = rng.standard_normal((3, 4)), rng.random((3, 4)) < 0.7
    check(run("DropoutGrad", dy, mask, ratio=0.25), aten.native_dropout_backward(*t(dy, mask), 1 / 0.75))


@pytest.mark.parametrize("axis", [2, 1, 0, -1])
def test_layer_normalization_grad(rng: np.random.Generator, axis: int) -> None:
    dy, x = rng.standard_normal((2, 2, 3, 4))
    inner = [2, 3, 4][axis:]
    scale = rng.standard_normal(inner)
    _, mean, inv_std = aten.native_layer_norm(torch.tensor(x), inner, None, None, 1e-5)
    expected = aten.native_layer_norm_backward(*t(dy, x), inner, mean, inv_std, *t(scale, scale), [True] * 3)
    got = run("LayerNormalizationGrad", dy, x, scale, mean.numpy(), inv_std.numpy(), outputs=3, axis=axis)
    check(got, *expected)


def test_layer_normalization_grad_of_half_precision_computes_in_single(rng: np.random.Generator) -> None:
    dy, x = rng.standard_normal((2, 4, 64)).astype(np.float16) + np.float16(30)
    scale = rng.standard_normal(64).astype(np.float16)
    mean = x.astype(np.float32).mean(1, keepdims=True)
    inv_std = 1 / np.sqrt(x.astype(np.float32).var(1, keepdims=True) + np.float32(1e-5))
    got = run("LayerNormalizationGrad", dy, x, scale, mean, inv_std, outputs=3)
    xt, st = torch.tensor(x).double().requires_grad_(), torch.tensor(scale).double().requires_grad_()
    y = torch.nn.functional.layer_norm(xt, (64,), st)
    dx, dscale = torch.autograd.grad(y, (xt, st), torch.tensor(dy).double())
    assert all(g.dtype == np.float16 for g in got)
    np.testing.assert_allclose(got[0], dx.numpy(), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(got[1], dscale.numpy(), rtol=2e-3, atol=5e-2)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2), (4, 3, 2, 5)])
def test_batch_normalization_grad(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    dy, x, scale = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(3)
    eps = 2**-10
    _, mean, inv_std = aten.native_batch_norm(*t(x, scale), None, None, None, True, 0.1, eps)
    expected = aten.native_batch_norm_backward(*t(dy, x, scale), None, None, mean, inv_std, True, eps, [True] * 3)
    check(run("BatchNormalizationGrad", dy, x, scale, outputs=3, epsilon=eps), *expected)


@pytest.mark.parametrize("shape", [(2, 6, 5), (3, 6, 4, 2), (2, 6, 2, 3, 2)])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_normalization_grad(rng: np.random.Generator, shape: tuple[int, ...], groups: int) -> None:
    dy, x, scale = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(6)
    eps, extent = 2**-10, (shape[0], 6, int(np.prod(shape[2:])))
    _, mean, inv_std = aten.native_group_norm(*t(x, scale, scale), *extent, groups, eps)
    expected = aten.native_group_norm_backward(*t(dy, x), mean, inv_std, *t(scale), *extent, groups, [True] * 3)
    check(run("GroupNormalizationGrad", dy, x, scale, outputs=3, num_groups=groups, epsilon=eps), *expected)


@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_embedding_grad(rng: np.random.Generator, padding_idx: int) -> None:
    dy, ids = rng.standard_normal((2, 5, 3)), rng.integers(0, 4, (2, 5))
    expected = aten.embedding_dense_backward(*t(dy, ids), 6, padding_idx, False)
    check(run("EmbeddingGrad", dy, ids, rows=6, padding_idx=padding_idx), expected)


def test_embedding_grad_of_vectors_and_of_one_row(rng: np.random.Generator) -> None:
    dy, ids = rng.standard_normal(5), np.array([1, 0, 1, 1, 3])
    check(run("EmbeddingGrad", dy, ids, rows=4), torch.zeros(4).double().index_add(0, *t(ids, dy)))
    row, index = rng.standard_normal(3), np.array(2)
    expected = torch.zeros(4, 3).double()
    expected[2] = torch.tensor(row)
    check(run("EmbeddingGrad", row, index, rows=4), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLossGrad", "NegativeLogLikelihoodLossGrad"])
def test_loss_grads(rng: np.random.Generator, op_type: str, reduction: str, weighted: bool) -> None:
    scores, labels = rng.standard_normal((4, 5, 2)), rng.integers(0, 5, (4, 2))
    labels[0, 1] = labels[3, 0] = -100
    weights = rng.random(5) + 0.5 if weighted else None
    xt = torch.tensor(scores, requires_grad=True)
    log_prob = torch.log_softmax(xt, 1)
    loss = torch.nn.functional.nll_loss(
        log_prob, torch.tensor(labels), None if weights is None else torch.tensor(weights), reduction=reduction
    )
    dloss = rng.standard_normal(tuple(loss.shape))
    by = xt if op_type.startswith("Softmax") else log_prob
    (expected,) = torch.autograd.grad(loss, by, torch.tensor(dloss))
    arrays = [np.asarray(dloss), log_prob.detach().numpy(), labels, weights]
    check(run(op_type, *arrays, reduction=reduction, ignore_index=-100), expected)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_attention_grad(rng: np.random.Generator, dropout: float) -> None:
    q, k, v = (rng.standard_normal(s) for s in [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)])
    mask = rng.random((2, 2, 3, 5)) >= dropout
    dy = rng.standard_normal((2, 2, 3, 3))
    qt, kt, vt = (torch.tensor(a, requires_grad=True) for a in (q, k, v))
    scores = qt @ kt.mT * 0.5
    probs = torch.softmax(scores, -1)
    y = (probs * torch.tensor(mask) / (1 - dropout)) @ vt
    expected = torch.autograd.grad(y, (qt, kt, vt, scores), torch.tensor(dy))
    arrays = [dy, q, k, v, probs.detach().numpy(), mask]
    check(run("AttentionGrad", *arrays, outputs=4, scale=0.5, dropout=dropout), *expected)


@pytest.mark.parametrize("output_mask", [[1, 1, 1], [0, 1, 1], [1, 0, 0]])
@pytest.mark.parametrize(
    ("x", "w", "strides", "pads", "dilations", "group"),
    [
        ((2, 3, 9), (4, 3, 3), [2], [1], [1], 1),
        ((2, 4, 8, 7), (6, 2, 3, 2), [2, 3], [1, 0], [1, 2], 2),
        ((1, 4, 6, 6), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], 4),
        ((1, 2, 5, 4, 6), (2, 2, 2, 3, 2), [2, 1, 2], [0, 1, 1], [1, 1, 2], 1),
    ],
)
def test_conv_grad(
    rng: np.random.Generator, x: Any, w: Any, strides: Any, pads: Any, dilations: Any, group: int, output_mask: Any
) -> None:
    xv, wv = rng.standard_normal(x), rng.standard_normal(w)
    form = (strides, pads, dilations, False, [0] * len(pads), group)
    dy = rng.standard_normal(tuple(aten.convolution(*t(xv, wv), None, *form).shape))
    expected = aten.convolution_backward(*t(dy, xv, wv), [w[0]], *form, [bool(m) for m in output_mask])
    got = run("ConvGrad", dy, xv, wv, outputs=3, strides=strides, pads=pads * 2, dilations=dilations, group=group,
              output_mask=output_mask)  # fmt: skip
    check(got, *expected)


@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose_grad(rng: np.random.Generator, group: int) -> None:
    x, w = rng.standard_normal((2, 4, 3, 4)), rng.standard_normal((4, 3, 3, 2))
    form = ([2, 3], [1, 0], [1, 2], True, [1, 2], group)
    y = aten.convolution(*t(x, w), None, *form)
    dy = rng.standard_normal(tuple(y.shape))
    expected = aten.convolution_backward(*t(dy, x, w), [3 * group], *form, [True] * 3)
    got = run(
        "ConvTransposeGrad", dy, x, w, outputs=3, strides=[2, 3], pads=[1, 0, 1, 0], dilations=[1, 2], group=group
    )
    check(got, *expected)


def test_max_pool_grad(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 6, 5))
    y, places = aten.max_pool2d_with_indices(torch.tensor(x), [3, 2], [2, 1])
    dy = rng.standard_normal(tuple(y.shape))
    expected = aten.max_pool2d_with_indices_backward(*t(dy, x), [3, 2], [2, 1], [0, 0], [1, 1], False, places)
    images = np.arange(6).reshape(2, 3, 1, 1) * 30  # torch counts within an image, ONNX from the very first element
    check(run("MaxPoolGrad", dy, places.numpy() + images, shape=list(x.shape)), expected)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_average_pool_grad(rng: np.random.Generator, include: int, ceil_mode: bool) -> None:
    x = rng.standard_normal((2, 3, 6, 7))
    form = ([3, 2], [2, 2], [1, 1], ceil_mode, bool(include), None)
    dy = rng.standard_normal(tuple(aten.avg_pool2d(torch.tensor(x), *form).shape))
    got = run("AveragePoolGrad", dy, shape=list(x.shape), kernel_shape=[3, 2], strides=[2, 2], dilations=[1, 1],
              pads=[1, 1, 1, 1], count_include_pad=include)  # fmt: skip
    check(got, aten.avg_pool2d_backward(*t(dy, x), *form))


@pytest.mark.parametrize("mean", [0, 1])
@pytest.mark.parametrize("padding", [-1, 2])
def test_bags_of_rows(rng: np.random.Generator, mean: int, padding: int) -> None:
    w, ids, starts = rng.standard_normal((6, 3)), np.array([5, 0, 2, 2, 4]), np.array([0, 2, 2, 3])
    weight, dy = torch.tensor(w, requires_grad=True), rng.standard_normal((4, 3))
    options = {"mode": ("sum", "mean")[mean], "padding_idx": padding if padding >= 0 else None}
    y = torch.nn.functional.embedding_bag(torch.tensor(ids), weight, torch.tensor(starts), **options)
    check(run("EmbeddingBag", w, ids, starts, mean=mean, padding_idx=padding), y)
    got = run("EmbeddingBagGrad", dy, ids, starts, rows=6, mean=mean, padding_idx=padding)
    check(got, *torch.autograd.grad(y, weight, torch.tensor(dy)))


def test_distances_of_equal_rows_have_no_gradient(rng: np.random.Generator) -> None:
    a, b, dy = (rng.standard_normal(shape) for shape in ((2, 3, 4), (2, 5, 4), (2, 3, 5)))
    a[0, 1] = b[0, 2]
    first, second = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    y = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    check(run("Distances", a, b), y)
    da, db = torch.autograd.grad(y, (first, second), torch.tensor(dy))
    y = y.detach().numpy()
    check(run("DistancesGrad", dy, a, b, y), da)
    check(run("DistancesGrad", dy.swapaxes(1, 2), b, a, y.swapaxes(1, 2)), db)


@pytest.mark.parametrize("special", [[], [-np.inf], [np.inf], [np.nan], [-np.inf, -np.inf]])
@pytest.mark.parametrize("at", [0, 2])
def test_running_sums_of_exponentials(rng: np.random.Generator, special: list[float], at: int) -> None:
    x, dy = rng.standard_normal((2, 3, 6, 2))
    x[1, at : at + len(special), 0] = special
    dy[2, 1] = 0
    operand = torch.tensor(x, requires_grad=True)
    y = operand.logcumsumexp(1)
    check(run("LogCumSumExp", x, axis=1), y)
    (dx,) = torch.autograd.grad(y, operand, torch.tensor(dy))
    check(run("LogCumSumExpGrad", dy, x, y.detach().numpy(), axis=1), dx)


@pytest.mark.parametrize("mode, name", [("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")])
def test_what_flows_back_from_a_border(rng: np.random.Generator, mode: str, name: str) -> None:
    x = torch.tensor(rng.standard_normal((2, 3, 5, 4)), requires_grad=True)
    y = torch.nn.functional.pad(x, (1, 2, 3, 0), name)
    dy = rng.standard_normal(tuple(y.shape))
    got = run("PadGrad", dy, shape=[2, 3, 5, 4], pads=[0, 0, 3, 1, 0, 0, 0, 2], mode=mode)
    check(got, *torch.autograd.grad(y, x, torch.tensor(dy)))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_running_extrema_are_the_last_of_equals(rng: np.random.Generator, dtype: type[np.number[Any]]) -> None:
    x = rng.integers(0, 4, (3, 6, 2)).astype(dtype)
    x[0, 0], x[1, 0] = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype is not np.float64 else (-np.inf, np.inf)
    for largest, function in enumerate((torch.cummin, torch.cummax)):
        check(run("RunningExtremum", x, outputs=2, axis=1, largest=largest), *function(torch.tensor(x), 1))


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("sizes", [(4, 5), (1, 6), (3, 2, 4)])
def test_what_flows_back_from_places(
    rng: np.random.Generator, padding_mode: str, align_corners: int, sizes: tuple[int, ...]
) -> None:
    x = torch.tensor(rng.standard_normal((2, 3, *sizes)), requires_grad=True)
    grid = torch.tensor(rng.uniform(-3.1, 3.1, (2, *[4] * len(sizes), len(sizes))), requires_grad=True)
    y = torch.nn.functional.grid_sample(x, grid, "bilinear", padding_mode, bool(align_corners))
    dy = rng.standard_normal(tuple(y.shape))
    operands = [v.detach().numpy() for v in (x, grid)]
    got = run("GridSampleGrad", dy, *operands, outputs=2, padding_mode=padding_mode, align_corners=align_corners)
    check(got, *torch.autograd.grad(y, [x, grid], torch.tensor(dy)))


@pytest.mark.parametrize("conjugate", [0, 1])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("abc,c->abc", [(2, 3, 4), (4,)]), ("ab,ab->ba", [(1, 3), (2, 3)]), ("bik,iok->bok", [(2, 3, 4), (3, 5, 4)])],
)
def test_products_of_complex_numbers(
    rng: np.random.Generator, conjugate: int, equation: str, shapes: list[tuple[int, ...]]
) -> None:
    a, b = (torch.tensor(rng.standard_normal((*shape, 2))) for shape in shapes)
    first, second = torch.view_as_complex(a), torch.view_as_complex(b)
    y = torch.einsum(equation, first, second.conj() if conjugate else second)
    check(run("ComplexEinsum", a.numpy(), b.numpy(), equation=equation, conjugate=conjugate), torch.view_as_real(y))


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("size", [1, 6, 7])
def test_places_in_the_order(rng: np.random.Generator, dtype: type[np.number[Any]], size: int) -> None:
    x = rng.permutation(3 * size * 2).reshape(3, size, 2).astype(dtype)  # of equal ones a kernel may choose any
    if dtype is np.float64 and size > 2:
        x[1, 2:5, 0] = np.nan
    chosen = {k: ("OrderPlace", torch.tensor(x).kthvalue(k, 1, True)) for k in (1, size // 2 + 1, size)}
    for k, (op_type, (values, places)) in {**chosen, 0: ("MedianPlace", torch.tensor(x).median(1, True))}.items():
        got = run(op_type, x, axis=1, **({"k": k} if k else {}))[0]
        np.testing.assert_array_equal(np.take_along_axis(x, got, 1), values)
        np.testing.assert_array_equal(got[[0, 2]], places[[0, 2]])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(rng: np.random.Generator, zeros: int) -> None:
    x = rng.standard_normal((3, 5, 2))
    x[1, :zeros, 0] = 0
    operand, dy = torch.tensor(x, requires_grad=True), rng.standard_normal((3, 1, 2))
    y = operand.prod(1, keepdim=True)
    got = run("ReduceProdGrad", dy, x, y.detach().numpy(), axes=[1])
    check(got, *torch.autograd.grad(y, operand, torch.tensor(dy)))


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_products_with_zeros(rng: np.random.Generator, zeros: int, reverse: int) -> None:
    x = rng.standard_normal((3, 7, 2))
    x[1, 2 : 2 + zeros, 0] = 0
    operand, dy = torch.tensor(x, requires_grad=True), rng.standard_normal((3, 7, 2))
    y = operand.flip(1).cumprod(1).flip(1) if reverse else operand.cumprod(1)
    got = run("CumProdGrad", dy, x, y.detach().numpy(), axis=1, reverse=reverse)
    check(got, *torch.autograd.grad(y, operand, torch.tensor(dy)))


def test_blocks_of_images(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 7, 6))
    x[0, 1, 3, 2] = np.inf
    columns = torch.nn.functional.unfold(torch.tensor(x), (3, 2), (1, 2), (1, 0), (2, 1))
    form = {"kernel_shape": [3, 2], "dilations": [1, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]}
    check(run("Im2Col", x, **form), columns)


@pytest.mark.parametrize(
    "name, mode, told, sizes",
    [
        ("nearest", "nearest", {}, ([6, 5], [3, 20], [12, 10])),
        ("linear", "bilinear", {"align_corners": False}, ([6, 10], [2, 3], [1, 1], [7, 5])),
        ("aligned", "bilinear", {"align_corners": True}, ([6, 10], [2, 3], [7, 5])),
        ("cubic", "bicubic", {"align_corners": False}, ([6, 10], [2, 3], [7, 5])),
        ("cubic aligned", "bicubic", {"align_corners": True}, ([6, 10], [2, 3], [7, 5])),
    ],
)
def test_images_in_other_sizes(rng: np.random.Generator, name: str, mode: str, told: dict[str, bool], sizes) -> None:
    for size in sizes:
        x = torch.tensor(rng.standard_normal((2, 3, 3, 5)), requires_grad=True)
        y = torch.nn.functional.interpolate(x, size=size, mode=mode, **told)
        dy = rng.standard_normal(tuple(y.shape))
        check(run("Interpolate", x.detach().numpy(), size=size, mode=name), y)
        wanted = torch.autograd.grad(y, x, torch.tensor(dy))
        check(run("InterpolateGrad", dy, size=[3, 5], mode=name), *wanted)


@pytest.mark.parametrize("shape, size", [((2, 3, 7), [3]), ((1, 2, 5, 7), [3, 4]), ((2, 4, 3, 5), [2, 2, 3])])
def test_adaptive_pool_grads(rng: np.random.Generator, shape: tuple[int, ...], size: list[int]) -> None:
    rank, functional = len(size), torch.nn.functional
    x = torch.tensor(rng.standard_normal(shape), requires_grad=True)
    mean = getattr(functional, f"adaptive_avg_pool{rank}d")(x, size)
    most, places = getattr(functional, f"adaptive_max_pool{rank}d")(x, size, return_indices=True)
    dy = rng.standard_normal(tuple(mean.shape))
    dmean, dmost = (torch.autograd.grad(y, x, torch.tensor(dy))[0] for y in (mean, most))
    check(run("AdaptiveAveragePool", x.detach().numpy(), output_size=size), mean)
    check(run("AdaptiveMaxPool", x.detach().numpy(), outputs=2, output_size=size), most, places)
    check(run("AdaptiveAveragePoolGrad", dy, shape=list(shape), rank=rank), dmean)
    check(run("AdaptiveMaxPoolGrad", dy, places.numpy(), shape=list(shape), rank=rank), dmost)


@pytest.mark.parametrize("keep", [0, 1])
def test_extrema_are_the_first_of_equals(rng: np.random.Generator, keep: int) -> None:
    x = rng.integers(0, 3, (3, 4, 5)).astype(np.float64)
    for largest, function in enumerate((torch.min, torch.max)):
        got = run("Extremum", x, outputs=2, axis=1, keepdims=keep, largest=largest)
        check(got, *function(torch.tensor(x), 1, bool(keep)))


def test_forward_composites(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal(s) for s in [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)])
    y = torch.nn.functional.scaled_dot_product_attention(*t(q, k, v), scale=0.5)
    probs = torch.softmax(torch.tensor(q) @ torch.tensor(k).mT * 0.5, -1)
    check(run("Attention", q, k, v, outputs=3, scale=0.5), y, probs, torch.ones(2, 2, 3, 5, dtype=torch.bool))
    w, ids = rng.standard_normal((4, 3)), np.array([[0, 3], [1, 1]])
    check(run("Embedding", w, ids, padding_idx=1), torch.tensor(w)[torch.tensor(ids)])
    check(run("Detach", w), torch.tensor(w))
    check(run("FromStart", ids), torch.tensor(ids))
    check(run("Revalued", w, w + 1), torch.tensor(w + 1))
    check(run("ConstantIn", w + 1, w, w), torch.tensor(w + 1))
    check(run("Inspect", w, name="w"), torch.tensor(w))
    # What the backward of a function of the user's own is written with: tests/capture/test_autograd.py.
    check(run("Adjoint", w), torch.tensor(w))
    check(run("Through", w, q, w + 1, q + 1, v, v + 1, outputs=2, results=2), torch.tensor(w), torch.tensor(q))


@pytest.mark.parametrize("chosen", [[], [0], [4], [1, 2, 4], [0, 1, 2, 3, 4]])
def test_selected_rows_come_first_and_in_order(chosen: list[int]) -> None:
    keep = np.isin(np.arange(5), chosen)
    for bucket in range(max(len(chosen), 1), 6):
        (got,) = run("SelectRows", keep, bucket=bucket)
        others = [i for i in range(5) if i not in chosen]
        assert got.tolist() == (chosen + others)[:bucket]


def test_rows_are_packed_and_put_back(rng: np.random.Generator) -> None:
    x, at = rng.standard_normal((5, 2, 3)), np.array([4, 1])
    check(run("PackRows", x, at), torch.tensor(x)[[4, 1]])
    zeros = torch.zeros(5, 2, 3).double()
    check(run("UnpackRows", x[:2], at, rows=5), zeros.index_copy(0, *t(at, x[:2])))
    places = np.array([0, 1, 0, 0, 0])
    check(run("SpreadRows", x[:2], places, at), torch.tensor(x)[[0, 1, 0, 0, 0]])


def test_numbers_stand_for_nan_alone() -> None:
    x = np.array([1.5, np.nan, np.inf, -np.inf, -np.nan])
    check(run("ReplaceNan", x, number=-128.0), torch.tensor([1.5, -128.0, np.inf, -np.inf, -128.0]).double())


def test_every_composite_of_the_gradient_rules_is_tested_here() -> None:
    # Optimizers are tested beside them, branches and loops in tests/control, linear models, recurrent layers, linear
    # algebra, eigenvalues, linear layers and functions of mathematical physics by the samples of tests/autodiff,
    # complex matrices there and in test_complex_linalg.py, assignments, which have no gradient, in test_assignment.py.
    elsewhere = (
        "optimizer", ".control", ".classical", ".linalg", ".linear", ".factorization", ".lstm", ".special", ".bessel",
        ".draws", ".assignment", ".eigenvalues", ".complex_linalg",
    )  # fmt: skip
    ours = {n for n, c in composites.items() if not c.body.__module__.endswith(elsewhere)}
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    assert [n for n in ours if f'"{n}"' not in text] == []
