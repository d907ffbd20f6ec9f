"""Trials of kernels: each computes a few numbers, and compares them with another way to compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ontrain.internals.canary import expect, expect_close

__all__ = [
    "adaptive_average_backward",
    "attention_backward",
    "attention_forward",
    "batch_norm_backward",
    "convolution_backward",
    "convolves_fused",
    "convolves_packed",
    "efficient_attention",
    "embedding_bag_backward",
    "flash_attention",
    "fuses_adam",
    "fuses_amp",
    "layer_norm_backward",
    "linear",
    "lstm_backward",
    "multiplies_lists",
    "runs_lstm",
    "softmax_backward",
]


def expect_results(results: Any, like: Sequence[tuple[Sequence[int], torch.dtype]]) -> None:
    """Raise unless there are so many results, of these shapes and dtypes."""
    expect(isinstance(results, tuple | list) and len(results) == len(like), f"not {len(like)} results")
    for place, (result, (shape, dtype)) in enumerate(zip(results, like, strict=True)):
        expect(result.dtype == dtype and tuple(result.shape) == tuple(shape), f"result {place} has another form")


def _numbers(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1.0, 1.0, count).mul(2.7).sin().view(shape)


def multiplies_lists(fn: str, *rest: Any, **named: Any) -> Callable[[Any], None]:
    """A function of lists does to each tensor what the plain one does."""

    def check(function: Any) -> None:
        lists = [[_numbers(3).abs() + 1, _numbers(2, 2).abs() + 1] for _ in range(2)]
        others = [[tensor.clone() * 2 for tensor in lists[0]] for value in rest if value is list] + [
            value for value in rest if value is not list
        ]
        plain = getattr(torch.Tensor, fn)
        wanted = [
            plain(tensor.clone(), *(o[i] if isinstance(o, list) else o for o in others), **named)
            for i, tensor in enumerate(lists[0])
        ]
        results = function(lists[1], *others, **named)
        got = lists[1] if fn.endswith("_") else results
        expect(len(got) == 2, "not a result for each")
        for mine, theirs in zip(got, wanted, strict=True):
            expect_close(mine, theirs, "a result")

    return check


def _adam(decoupled: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p, g, b1, b2, lr, decay, eps = _numbers(4), _numbers(4) * 2, 0.9, 0.99, 0.1, 0.01, 1e-3
    g = g if decoupled else g + decay * p
    m, v = g * (1 - b1), g * g * (1 - b2)
    p = p * (1 - lr * decay) if decoupled else p
    return p - lr * (m / (1 - b1)) / ((v / (1 - b2)).sqrt() + eps), m, v


def fuses_adam(decoupled: bool) -> Callable[[Any], None]:
    """One step is Adam's, and parameters and moments are written."""

    def check(kernel: Any) -> None:
        p, m, v = [_numbers(4)], [torch.zeros(4)], [torch.zeros(4)]
        kernel(
            p, [_numbers(4) * 2], m, v, [], [torch.tensor(1.0)], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.01,
            eps=1e-3, amsgrad=False, maximize=False,
        )  # fmt: skip
        for got, wanted in zip((p[0], m[0], v[0]), _adam(decoupled), strict=True):
            expect_close(got, wanted, "a step's result")

    return check


def fuses_amp(kernel: Any) -> None:
    """Gradients are scaled in place, and what is infinite is found."""
    for value, infinite in ((2.0, 0.0), (float("inf"), 1.0)):
        grads, overflow = [torch.full((2,), value)], torch.zeros(1)
        kernel(grads, overflow, torch.full((1,), 0.5))
        expect(float(overflow) == infinite, "what is infinite is not found")
        expect(infinite == 1.0 or float(grads[0][0]) == 1.0, "gradients are not scaled")


def softmax_backward(logarithm: bool) -> Callable[[Any], None]:
    """The adjoint of softmax from its result, written where it is told to."""

    def check(operator: Any) -> None:
        x, dy = _numbers(2, 3).requires_grad_(), _numbers(2, 3) + 1
        y = (torch.log_softmax if logarithm else torch.softmax)(x, -1)
        (wanted,) = torch.autograd.grad(y, x, dy)
        out = torch.empty(2, 3)
        operator.out(dy, y.detach(), -1, torch.float32, **{"out" if logarithm else "grad_input": out})
        expect_close(out, wanted, "the adjoint")

    return check


def _attention() -> tuple[torch.Tensor, ...]:
    return tuple(_numbers(1, 2, 5, 4) * factor for factor in (1.0, 0.7, 1.3))


def attention_forward(kernel: Any) -> None:
    """Two results: attention, and the logarithms of the sums."""
    q, k, v = _attention()
    results = kernel.default(q, k, v, 0.0, False, attn_mask=None, scale=0.5)
    expect_results(results, [((1, 2, 5, 4), torch.float32), ((1, 2, 5), torch.float32)])
    scores = q @ k.transpose(-1, -2) * 0.5
    expect_close(results[0], scores.softmax(-1) @ v, "the result")
    expect_close(results[1], scores.logsumexp(-1), "the logarithm of the sums")


def attention_backward(kernel: Any) -> None:
    """Three results: the adjoints of query, key and value."""
    q, k, v = (tensor.requires_grad_() for tensor in _attention())
    scores = q @ k.transpose(-1, -2) * 0.5
    y, dy = scores.softmax(-1) @ v, _numbers(1, 2, 5, 4)
    wanted = torch.autograd.grad(y, (q, k, v), dy)
    operands = [tensor.detach() for tensor in (dy, q, k, v, y, scores.logsumexp(-1))]
    results = kernel.default(*operands, 0.0, False, attn_mask=None, scale=0.5)
    expect_results(results, [((1, 2, 5, 4), torch.float32)] * 3)
    for got, expected in zip(results, wanted, strict=True):
        expect_close(got, expected, "an adjoint")


def aligns(backward: bool) -> Callable[[Any], None]:
    """The loss of two times and one label, and sums over alignments; or the adjoint made of them."""

    def check(kernel: Any) -> None:
        scores = _numbers(2, 1, 3).log_softmax(-1)
        operands = scores, torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1])
        first, second = scores[:, 0].exp()
        # The label at both times, or a blank before or behind it.
        ways = torch.stack([first[1] * second[1], first[0] * second[1], first[1] * second[0]])
        loss, alpha = torch.ops.aten._ctc_loss(*operands, 0, False) if backward else kernel(*operands, 0, False)
        expect_results([loss, alpha], [((1,), torch.float32), ((1, 2, 3), torch.float32)])
        expect_close(loss, -ways.sum().log()[None], "the loss")
        if backward:
            gradient = kernel(torch.ones(1), *operands, loss, alpha, 0, False)
            share = torch.stack([ways[1], ways[0] + ways[2], ways[0] * 0]) / ways.sum()
            expect_close(gradient[0, 0], first - share, "the adjoint")

    return check


def _expect_adjoints(results: Any, y: torch.Tensor, operands: Sequence[torch.Tensor], dy: torch.Tensor) -> None:
    """The adjoints of the operands of y, as autograd computes them from that of y."""
    expect_results(results, [(tensor.shape, tensor.dtype) for tensor in operands])
    for adjoint, expected in zip(results, torch.autograd.grad(y, operands, dy), strict=True):
        expect_close(adjoint, expected, "an adjoint")


def layer_norm_backward(kernel: Any) -> None:
    """Three results: the adjoints of input, weight and bias."""
    x, w, b = (_numbers(*shape).requires_grad_() for shape in ((2, 3), (3,), (3,)))
    y, dy = torch.nn.functional.layer_norm(x, (3,), w, b), _numbers(2, 3) + 1
    _, mean, rstd = torch.native_layer_norm(x.detach(), (3,), w.detach(), b.detach(), 1e-5)
    results = kernel.default(dy, x.detach(), [3], mean, rstd, w.detach(), b.detach(), [True, True, True])
    _expect_adjoints(results, y, (x, w, b), dy)


def batch_norm_backward(kernel: Any) -> None:
    """Three results: the adjoints of input, weight and bias."""
    x, w, b = (_numbers(*shape).requires_grad_() for shape in ((4, 3), (3,), (3,)))
    y, dy = torch.nn.functional.batch_norm(x, None, None, w, b, training=True), _numbers(4, 3) + 1
    _, mean, inverse = torch.native_batch_norm(x.detach(), w.detach(), b.detach(), None, None, True, 0.1, 1e-5)
    results = kernel(dy, x.detach(), w.detach(), None, None, mean, inverse, True, 1e-5, [True, True, True])
    _expect_adjoints(results, y, (x, w, b), dy)


def group_norm_backward(kernel: Any) -> None:
    """Three results: the adjoints of input, weight and bias."""
    x, w, b = (_numbers(*shape).requires_grad_() for shape in ((2, 4, 3), (4,), (4,)))
    y, dy = torch.nn.functional.group_norm(x, 2, w, b), _numbers(2, 4, 3) + 1
    _, mean, inverse = torch.native_group_norm(x.detach(), w.detach(), b.detach(), 2, 4, 3, 2, 1e-5)
    results = kernel(dy, x.detach(), mean, inverse, w.detach(), 2, 4, 3, 2, [True, True, True])
    _expect_adjoints(results, y, (x, w, b), dy)


def adaptive_average_backward(kernel: Any) -> None:
    """The adjoint of images, from that of their means."""
    x = _numbers(1, 2, 5, 4).requires_grad_()
    y = torch.nn.functional.adaptive_avg_pool2d(x, (2, 3))
    dy = _numbers(*y.shape) + 1
    (wanted,) = torch.autograd.grad(y, x, dy)
    expect_close(kernel(dy, x.detach()), wanted, "the adjoint")


def embedding_bag_backward(kernel: Any) -> None:
    """The adjoint of an embedding, from that of means over two bags of its rows."""
    weight, ids = _numbers(4, 3).requires_grad_(), torch.tensor([2, 0, 2, 3, 1])
    y = torch.nn.functional.embedding_bag(ids, weight, torch.tensor([0, 2]), mode="mean", padding_idx=3)
    dy, bag, sizes = _numbers(2, 3) + 1, torch.tensor([0, 0, 1, 1, 1]), torch.tensor([2, 2])
    (wanted,) = torch.autograd.grad(y, weight, dy)
    expect_close(kernel(dy, ids, bag, sizes, sizes, 4, False, 1, None, 3), wanted, "the adjoint")


def convolution_backward(kernel: Any) -> None:
    """Three results: the adjoints of input, filters and bias."""
    x, w, b = (_numbers(*shape).requires_grad_() for shape in ((1, 2, 5), (3, 2, 3), (3,)))
    y = torch.nn.functional.conv1d(x, w, b)
    dy = _numbers(*y.shape) + 1
    results = kernel(dy, x.detach(), w.detach(), [3], [1], [0], [1], False, [0], 1, [True, True, True])
    _expect_adjoints(results, y, (x, w, b), dy)


def flash_attention(backward: bool) -> Callable[[Any], None]:
    """On a GPU: nine results, the sums second and the state of the draws seventh and eighth; three going back."""

    def check(kernel: Any) -> None:
        q, k, v = (tensor.cuda().half() for tensor in _attention())
        forward: Any = kernel if not backward else torch.ops.aten._scaled_dot_product_flash_attention
        results = forward(q, k, v, 0.0, False, False, scale=0.5)
        expect(len(results) == 9 and results[0].shape == q.shape and results[1].dtype == torch.float32, "other results")
        if backward:
            dq = kernel(
                results[0], q, k, v, results[0], results[1], None, None, 5, 5, 0.0, False, results[6], results[7],
                scale=0.5,
            )  # fmt: skip
            expect_results(dq, [(q.shape, torch.float16)] * 3)

    return check


def efficient_attention(backward: bool) -> Callable[[Any], None]:
    """On a GPU: four results, and four going back, of which the last is the bias's."""

    def check(kernel: Any) -> None:
        q, k, v = (tensor.cuda() for tensor in _attention())
        forward: Any = kernel if not backward else torch.ops.aten._scaled_dot_product_efficient_attention
        results = forward(q, k, v, None, True, 0.0, False, scale=0.5)
        expect(len(results) == 4 and results[0].shape == q.shape and results[1].dtype == torch.float32, "other results")
        if backward:
            grads = kernel(
                results[0], q, k, v, None, results[0], results[1], results[2], results[3], 0.0,
                [True, True, True, False], False, scale=0.5,
            )  # fmt: skip
            expect(len(grads) == 4 and grads[0].shape == q.shape, "other results going back")

    return check


def linear(kernel: Any) -> None:
    """x · wᵀ and a bias."""
    x, w, b = _numbers(4, 3), _numbers(5, 3), _numbers(5)
    expect_close(kernel(x, w, b, "none", [], ""), x @ w.t() + b, "the product")


def linear_ordered(reorder: Any) -> None:
    """A weight in oneDNN's order for any number of rows, a sum with something else, and activations of the product."""
    kernel: Any = torch.ops.mkldnn._linear_pointwise
    x, w, bias, z = _numbers(4, 3), _numbers(5, 3), _numbers(5), _numbers(4, 5)
    weight, plain = reorder(w, None), x @ w.t() + bias
    functional = torch.nn.functional
    applied = {"none": lambda y: y, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
               "swish": functional.silu}  # fmt: skip
    for name, function in applied.items():
        expect_close(kernel(x, weight, bias, name, [], ""), function(plain), name)
    for form in ("none", "tanh"):
        expect_close(kernel(x, weight, bias, "gelu", [], form), functional.gelu(plain, approximate=form), "gelu")
    expect_close(kernel.binary(x, z, weight, bias, "add"), plain + z, "a sum")


def convolves_fused(convolution: Any) -> None:
    """A convolution with filters in oneDNN's order, a sum with something else, and an activation of it."""
    x, w, bias, z = _numbers(2, 3, 6, 5), _numbers(4, 3, 3, 3), _numbers(4), _numbers(2, 4, 6, 5)
    places = [1, 1], [1, 1], [1, 1], 1
    filters = torch.ops.mkldnn._reorder_convolution_weight(w, *places, [2, 3, 6, 5])
    plain = torch.conv2d(x, w, bias, padding=1)
    applied = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
               "swish": torch.nn.functional.silu, "hardswish": torch.nn.functional.hardswish,
               "hardsigmoid": torch.nn.functional.hardsigmoid}  # fmt: skip
    for name, function in applied.items():
        expect_close(convolution(x, filters, bias, *places, name, [], ""), function(plain), name)
    expect_close(convolution(x, w, None, *places, "none", [], ""), torch.conv2d(x, w, padding=1), "none")
    for follows, wanted in {None: plain + z, "relu": torch.relu(plain + z)}.items():
        expect_close(convolution.binary(x, z, w, bias, *places, "add", None, follows, [], None), wanted, "a sum")
    leaky = convolution(x, filters, bias, *places, "leaky_relu", [0.1], "")
    expect_close(leaky, torch.nn.functional.leaky_relu(plain, 0.1), "leaky_relu")
    expect_close(convolution(x, w, bias, *places, "hardtanh", [0.0, 6.0], ""), plain.clamp(0, 6), "hardtanh")


def convolves_packed(convolution: Any) -> None:
    """A product as a convolution over points with filters in oneDNN's own order, added to what is there."""
    mkldnn: Any = torch.ops.mkldnn
    x, w, out = _numbers(6, 16), _numbers(16, 8), _numbers(6, 8)
    wanted = out + x @ w
    places = [0, 0], [1, 1], [1, 1], 1
    filters = mkldnn._reorder_convolution_weight(w.t().contiguous().view(8, 16, 1, 1), *places, [1, 16, 6, 1])
    expect(mkldnn._nbytes(filters) >= 4 * w.numel() and mkldnn.data_ptr(filters) != 0, "filters have no memory")
    image, result = (matrix.t()[None, :, :, None] for matrix in (x, out))
    convolution.binary(result, image, filters, None, *places, "add", None, None, [], None)
    expect_close(out, wanted, "the sum")


def _lstm() -> tuple[torch.Tensor, ...]:
    """x [T, B, I], two weights, two biases, and the first states."""
    shapes = (3, 2, 2), (8, 2), (8, 2), (8,), (8,), (2, 2), (2, 2)
    return tuple(_numbers(*shape).requires_grad_() for shape in shapes)


def _lstm_by_hand(operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Y and the last states of a layer whose gates are input, forget, cell, output."""
    x, w, r, of_w, of_r, h, c = operands
    steps = []
    for row in x:
        i, f, g, o = (row @ w.T + of_w + h @ r.T + of_r).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        steps.append(h)
    return torch.stack(steps), h, c


def runs_lstm(kernel: Any) -> None:
    """Four results: Y, the last states, and a workspace of bytes."""
    operands = _lstm()
    results = kernel(*(operand.detach() for operand in operands), False, [], 2, 2, 1, True, False, False, True)
    expect(len(results) == 4 and results[3].dtype == torch.uint8 and results[3].dim() == 1, "no workspace")
    for got, wanted in zip(results, _lstm_by_hand(operands), strict=False):
        expect_close(got, wanted.detach(), "a result")


def lstm_backward(kernel: Any) -> None:
    """Seven results: the adjoints of input, weights, biases and first states."""
    operands = _lstm()
    results = _lstm_by_hand(operands)
    adjoints = [_numbers(*result.shape) + 1 for result in results]
    wanted = torch.autograd.grad(results, operands, adjoints)
    x, w, r, of_w, of_r, h, c = detached = [operand.detach() for operand in operands]
    y, last_h, last_c, space = torch.ops.aten.mkldnn_rnn_layer(*detached, False, [], 2, 2, 1, True, False, False, True)
    got = kernel(
        x, w, r, of_w, of_r, h, c, y, last_h, last_c, *adjoints, False, 2, 2, 1, True, True, False, [], False, space
    )
    expect_results(got, [(tensor.shape, tensor.dtype) for tensor in operands])
    for adjoint, expected in zip(got, wanted, strict=True):
        expect_close(adjoint, expected, "an adjoint")
