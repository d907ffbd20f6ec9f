"""One line a sample: what a forward might say, and the tensors it says it of. Each is compared with eager PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

_g = torch.Generator().manual_seed(1)


def f(*shape):
    return torch.randn(*shape, generator=_g)


def positive(*shape):
    return torch.rand(*shape, generator=_g) + 0.1


def ints(high, *shape):
    return torch.randint(high, shape, generator=_g)


A, B, M = f(3, 4), f(3, 4), f(3, 4) > 0
N, J = ints(9, 3, 4) - 4, ints(4, 3, 4) + 1
X, IMG, SEQ = f(2, 3, 4), f(2, 4, 8, 6), f(2, 4, 9)
C, LABELS = f(6, 5), torch.tensor([0, 4, -100, 2, 1, -100])
W5, PROBS = positive(5), torch.softmax(f(6, 5), 1)

activation = {
    **{
        name: (getattr(torch, name), f(3, 4))
        for name in ("relu", "tanh", "sigmoid", "erf", "exp", "abs", "neg", "reciprocal", "sin", "cos", "sign", "floor",
                     "ceil", "round", "trunc", "expm1", "square", "exp2", "erfc", "frac", "atan", "sinh", "cosh", "tan")
    },
    # A number next to one forgets the last places of a small one.
    "log1p_small": (lambda x: torch.log1p(x * 1e-6) * 1e6, f(3, 4)),
    "expm1_small": (lambda x: torch.expm1(x * 1e-6) * 1e6, f(3, 4)),
    **{name: (getattr(torch, name), positive(3, 4)) for name in ("log", "sqrt", "rsqrt", "log1p", "log2", "log10")},
    **{
        name: (getattr(F, name), 3 * f(3, 4))
        for name in ("gelu", "silu", "softplus", "elu", "selu", "celu", "leaky_relu", "hardtanh", "relu6", "hardswish",
                     "hardsigmoid", "mish", "logsigmoid", "softsign", "glu")
    },
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), A),
    "softplus_beta": (lambda x: F.softplus(x, beta=2.0), A),
    "elu_alpha": (lambda x: F.elu(x, alpha=0.5), A),
    "prelu": (F.prelu, IMG, positive(4)),
    "threshold": (lambda x: F.threshold(x, 0.1, -3.0), A),
    "softmax": (lambda x: F.softmax(x, -1), X),
    "softmax_of_ints": (lambda x: F.softmax(x, 1, dtype=torch.float32), N),
    "log_softmax": (lambda x: F.log_softmax(x, 1), X),
    "dropout_in_evaluation": (lambda x: F.dropout(x, 0.5, training=False), A),
    "in_place": (lambda x: F.relu_(x * 2).add_(1).mul_(x), A),
}  # fmt: skip

arithmetic = {
    "add": (lambda a, b: a + b, A, B),
    "add_alpha": (lambda a, b: torch.add(a, b, alpha=3), A, B),
    "sub_int_from_float": (lambda a, b: torch.sub(a, b, alpha=2), A, N),
    "rsub": (lambda a: 3 - a, A),
    "int_plus_float_number": (lambda a: a + 1.5, N),
    "int_times_bool": (lambda a, m: a * m, N, M),
    "bool_plus_bool": (lambda m: m + ~m, M),
    "bool_times_number": (lambda m: m * 2, M),
    "half_of_int": (lambda a: a / 2, N),
    "floor_of_negative_ints": (lambda a, b: a // b, N, J),
    "floor_of_floats": (lambda a, b: torch.div(a, b, rounding_mode="floor"), A, B),
    "truncated_ints": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), N, J),
    "truncated_floats": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), A, B),
    "remainder_of_ints": (lambda a, b: a % b, N, J),
    "remainder_of_floats": (lambda a, b: a % b, A, B),
    "fmod": (torch.fmod, A, B),
    "square": (lambda a: a**2, A),
    "cube": (lambda a: a**3, A),
    "root": (lambda a: a**0.5, positive(3)),
    "inverse": (lambda a: a**-1, positive(3)),
    "power": (torch.pow, positive(3), f(3)),
    "number_to_the_power": (lambda a: 2.0**a, A),
    "addcmul": (lambda a, b: torch.addcmul(a, a, b, value=0.5), A, B),
    "addcdiv": (lambda a, b: torch.addcdiv(a, a, b, value=0.5), A, B),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), A, B),
    "maximum": (torch.maximum, A, B),
    "minimum": (torch.minimum, A, B),
    "max_other": (torch.max, A, B),
    "clamp": (lambda a: a.clamp(-0.5, 0.5), A),
    "clamp_ints": (lambda a: a.clamp(min=-1), N),
    "clamp_min": (lambda a: torch.clamp_min(a, 0.1), A),
    "clamp_by_tensors": (lambda a, b: torch.clamp(a, max=b), A, B),
    "compare_int_with_float": (lambda a: a > 0.5, N),
    "compare_ints": (lambda a, b: (a <= b) | (a == b) & (a != 2) ^ (a < b), N, J),
    "compare_bools": (lambda m: m >= False, M),
    "logical": (lambda a, m: torch.logical_and(a, m) | torch.logical_not(m), N, M),
    "bitwise_ints": (lambda a, b: (a & b) | (a ^ b), N, J),
    "not_finite": (lambda a: torch.isnan(a) | torch.isinf(a / 0) | torch.isfinite(a), A),
    "nan_to_num": (torch.nan_to_num, torch.tensor([float("nan"), float("inf"), -1.0])),
    "nan_to_num_of_integers": (lambda i, x: torch.nan_to_num(i) * torch.nan_to_num(x > 0) + x, ints(6, 2, 3), f(2, 3)),
    "where": (torch.where, M, A, B),
    "where_numbers": (lambda m: torch.where(m, 0.0, float("-inf")), M),
    "masked_fill": (lambda a, m: a.masked_fill(m, -1e9), A, M),
    "masked_fill_in_place": (lambda a, m: (a * 1).masked_fill_(m, 3), A, M),
    "xlogy": (torch.xlogy, positive(3), positive(3)),
    "atan2": (torch.atan2, A, B),
}

reduction = {
    "sum": (torch.sum, A),
    "sum_of_bools": (lambda m: m.sum(-1), M),
    "sum_to_float": (lambda a: a.sum((0, 1), dtype=torch.float32), N),
    "mean": (lambda a: a.mean((0, 2), keepdim=True), X),
    "amax": (lambda a: a.amax(1), X),
    "max": (torch.max, A),
    "max_dim": (lambda a: a.max(1), X),
    "min_dim": (lambda a: a.min(-1, keepdim=True), X),
    "argmax": (lambda a: a.argmax(-1), X),
    "argmin_of_all": (torch.argmin, X),
    "prod": (lambda a: a.prod(1), A),
    "any": (lambda m: m.any(1), M),
    "all": (lambda m: torch.all(m), M),
    "var": (lambda a: a.var(1), X),
    "var_biased": (lambda a: a.var((0, 1), unbiased=False, keepdim=True), X),
    "std": (torch.std, X),
    "std_dim": (lambda a: a.std(-1), X),
    "var_mean": (lambda a: torch.var_mean(a, -1), X),
    "cumsum": (lambda a: a.cumsum(1), X),
    "logsumexp": (lambda a: torch.logsumexp(100 * a, 1), X),
    "norm": (lambda a: a.norm(dim=-1), X),
    "norm_1": (lambda a: a.norm(p=1, dim=-1, keepdim=True), X),
    "vector_norm": (torch.linalg.vector_norm, X),
    "vector_norm_inf": (lambda a: torch.linalg.vector_norm(a, float("inf")), X),
    "normalize": (lambda a: F.normalize(a, dim=-1), X),
    "count_nonzero": (lambda a: torch.count_nonzero(a, 1), N),
    "diff": (lambda a: torch.diff(a, dim=1, prepend=a[:, :1] - 1), N),
}

view = {
    "view": (lambda x: x.view(6, -1), X),
    "flatten": (lambda x: x.flatten(1), IMG),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), IMG),
    "transpose": (lambda x: x.transpose(-1, 0).contiguous(), X),
    "permute": (lambda x: x.permute(2, 0, -2), X),
    "t": (lambda x: x.t() + x.T, f(3, 3)),
    "movedim": (lambda x: x.movedim((0, 1), (-1, 0)), IMG),
    "unsqueeze": (lambda x: x.unsqueeze(-1).unsqueeze(0), X),
    "squeeze": (lambda x: x[None, :, None].squeeze(), X),
    "squeeze_dim": (lambda x: x[:, None].squeeze(1).squeeze(0), X),
    "expand": (lambda x: x[:, None].expand(-1, 5, -1), A),
    "expand_as": (lambda x, y: x.expand_as(y), f(4), X),
    "slice": (lambda x: x[..., 1:-1] + x[:, :, ::2], X),
    "select": (lambda x: (x[:, 0], x[:, -1], x.select(2, 1)), X),
    "split": (lambda x: x.split(2, dim=2), X),
    "split_sizes": (lambda x: x.split([1, 3], -1), X),
    "chunk": (lambda x: x.chunk(3, -1), X),
    "unbind": (lambda x: x.unbind(1), X),
    "cat": (lambda x, y: torch.cat([x, y, torch.empty(0)], -1), A, B),
    "cat_promotes": (lambda x, y: torch.cat([x, y]), A, N),
    "stack": (lambda x, y: torch.stack([x, y], -1), A, B),
    "narrow": (lambda x: x.narrow(1, 1, 2), X),
    "repeat": (lambda x: x.repeat(2, 1, 3), A),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, dim=1), X),
    "flip": (lambda x: x.flip([0, 2]), X),
    "roll": (lambda x: x.roll((1, -1), (1, 2)), X),
    "roll_flat": (lambda x: x.roll(2), A),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), X),
    "pad_negative": (lambda x: F.pad(x, (-1, 1)), X),
    "pad_reflect": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), IMG),
    "pad_replicate": (lambda x: F.pad(x, (1, 2), mode="replicate"), SEQ),
    "pad_circular": (lambda x: F.pad(x, (1, 2), mode="circular"), SEQ),
    "to": (lambda x: x.to(torch.float64).long().to(x), A),
    "type_as": (lambda x, y: x.type_as(y), N, A),
    "detach": (lambda x: x.detach() * x.clone(), A),
    "unfold": (lambda x: x.unfold(1, 3, 2), SEQ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMG),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), f(3), f(2)),
    "meshgrid_xy": (lambda x, y: torch.meshgrid(x, y, indexing="xy"), f(3), f(2)),
    "diagonal": (lambda x: x.diagonal(), f(3, 3)),
}

creation = {
    "arange": (lambda x: torch.arange(x.shape[1]) + torch.arange(2, 10, 2), A),
    "arange_float": (lambda x: x + torch.arange(0, 1, 0.25), A),
    "full": (lambda x: torch.full((2, 2), 0.5) + torch.zeros(2, 2) + torch.ones(2, 2), A),
    "like": (lambda x: torch.zeros_like(x) + torch.full_like(x, 2) + torch.ones_like(x, dtype=torch.int64), A),
    "new": (lambda x: x.new_zeros(3, 1) + x.new_ones(4) + x.new_full((4,), 2.0) + x.new_tensor(1.5), A),
    "eye": (lambda x: x @ torch.eye(4), A),
    "tril": (lambda x: x.tril() + x.triu(1), f(4, 4)),
    "causal_mask": (lambda x: torch.triu(torch.full((4, 4), float("-inf")), diagonal=1) + x, f(4, 4)),
    "tril_of_bools": (lambda x: torch.ones(4, 4, dtype=torch.bool).tril(), A),
    "linspace": (lambda x: x + torch.linspace(0, 1, 4), A),
    "scalar_tensor": (lambda x: x * torch.tensor(2.5), A),
    "one_hot": (lambda i: F.one_hot(i.abs(), 5), N),
    "assign_slice": (lambda x: _assigned(x), A),
    "fill_select": (lambda x: _filled(x), A),
}

indexing = {
    "rows": (lambda x, i: x[i], C, ints(6, 3, 2)),
    "negative_rows": (lambda x: x[torch.tensor([-1, 0])], C),
    "columns": (lambda x, i: x[:, i], X, ints(3, 2)),
    "pairs": (lambda x, i, j: x[i, j], X, ints(2, 3), ints(3, 3)),
    "pairs_broadcast": (lambda x, i, j: x[i[:, None], j], X, ints(2, 3), ints(3, 4)),
    "inner_pairs": (lambda x, i, j: x[:, i, j], IMG, ints(4, 3), ints(8, 3)),
    "apart": (lambda x, i, j: x[i, :, j], IMG, ints(2, 3), ints(8, 3)),
    "gather": (lambda x, i: x.gather(1, i), C, ints(5, 6, 2)),
    "gather_fewer_rows": (lambda x, i: x.gather(1, i), C, ints(5, 4, 2)),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), C, ints(5, 6, 2)),
    "index_select": (lambda x, i: x.index_select(1, i), X, ints(3, 2)),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), C, ints(5, 6, 1), f(6, 5)),
    "scatter_number": (lambda x, i: torch.zeros_like(x).scatter(1, i, 1.0), C, ints(5, 6, 1)),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), C, ints(6, 4, 5), f(4, 5)),
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), C, ints(6, 4, 5), f(4, 5)),
    "index_add": (lambda x, i, s: x.index_add(1, i, s), C, ints(5, 3), f(6, 3)),
    "index_copy": (lambda x, s: x.index_copy(0, torch.tensor([3, 1]), s), C, f(2, 5)),
    "index_fill": (lambda x, i: x.index_fill(1, i, 7.0), C, ints(5, 2)),
    "index_put": (lambda x, s: x.index_put((torch.tensor([3, 1]),), s), C, f(2, 5)),
    "index_put_adds": (lambda x, s: x.index_put((torch.tensor([1, 1]),), s, accumulate=True), C, f(2, 5)),
    "index_put_pairs": (lambda x, i, j: x.index_put((i, j), torch.tensor(2.0)), C, ints(6, 3), ints(5, 3)),
    "index_put_columns": (lambda x, s: _put_columns(x, s), C, f(6, 2)),
    "index_put_mask": (lambda x: _put_mask(x), C),
    "topk": (lambda x: x.topk(2), C),
    "topk_smallest": (lambda x: x.topk(2, dim=0, largest=False), C),
    "sort": (lambda x: x.sort(descending=True), C),
    "argsort": (lambda x: x.argsort(0), C),
    "slice_scatter": (lambda x, s: torch.slice_scatter(x, s, 1, 1, 3), C, f(6, 2)),
    "slice_scatter_steps": (lambda x, s: torch.slice_scatter(x, s, 1, 0, 5, 2), C, f(6, 3)),
    "select_scatter": (lambda x, s: torch.select_scatter(x, s, 1, -2), C, f(6)),
}

linear = {
    "linear": (F.linear, X, f(5, 4), f(5)),
    "matmul": (torch.matmul, X, f(4, 5)),
    "vectors": (lambda a, b: a @ b, f(4), f(4)),
    "bmm": (torch.bmm, f(2, 3, 4), f(2, 4, 5)),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), f(5), A, f(4, 5)),
    "baddbmm": (torch.baddbmm, f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)),
    "outer": (torch.outer, f(3), f(4)),
    "einsum": (lambda a, b: torch.einsum("bij,kj->bik", a, b), X, f(5, 4)),
    "einsum_ellipses_of_unequal_rank": (
        lambda a, b: torch.einsum("...ij, ...j -> ...i", a, b), f(3, 5, 4), f(2, 1, 4)
    ),
    "einsum_ellipsis_of_one_operand": (lambda a, b: torch.einsum("...ij,j->...i", a, b), f(2, 3, 4), f(4)),
    "bilinear": (F.bilinear, f(3, 4), f(3, 5), f(2, 4, 5), f(2)),
    "embedding": (lambda i, w: F.embedding(i, w, padding_idx=-1), ints(6, 2, 3), C),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1, stride=2), SEQ, f(6, 4, 3), f(6)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=(1, 2), dilation=2, groups=2), IMG, f(6, 2, 3, 2)),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), IMG, f(6, 4, 3, 2)),
    "conv2d_unbatched": (lambda x, w: F.conv2d(x[0], w), IMG, f(6, 4, 3, 3)),
    "conv3d": (F.conv3d, f(1, 2, 4, 4, 4), f(3, 2, 2, 2, 2)),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1), SEQ, f(4, 3, 3)),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1), IMG, f(4, 3, 3, 3), f(3),
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), SEQ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), IMG),
    "max_pool2d_ceil": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), IMG),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMG),
    "avg_pool2d_count": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMG),
    "avg_pool2d_pad": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMG),
    "adaptive_avg_pool_1": (lambda x: F.adaptive_avg_pool2d(x, 1), IMG),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), IMG),
    "adaptive_avg_pool_overlapping": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMG),
    "adaptive_max_pool_overlapping": (lambda x: F.adaptive_max_pool2d(x, (5, 4)), IMG),
    "adaptive_max_pool": (lambda x: F.adaptive_max_pool2d(x, (4, 3)), IMG),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), IMG),
    "bilinear_resize": (lambda x: F.interpolate(x, size=(16, 12), mode="bilinear"), IMG),
}  # fmt: skip

normalization = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b), X, f(3, 4), f(3, 4)),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (4,)), X),
    "layer_norm_no_bias": (lambda x, w: F.layer_norm(x, (4,), w, eps=1e-3), X, f(4)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), X, f(4)),
    # Values so small that epsilon decides: each function has a default of its own, rms_norm one that follows the dtype.
    **{
        f"{name}_small": (function, x * 1e-3)
        for name, function, x in (
            ("layer_norm", lambda x: F.layer_norm(x, (4,)), X),
            ("rms_norm", lambda x: F.rms_norm(x, (4,)), X),
            ("group_norm", lambda x: F.group_norm(x, 2), IMG),
            ("instance_norm", F.instance_norm, IMG),
            ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), IMG),
            ("local_response_norm", lambda x: F.local_response_norm(x, 2, k=1e-6), IMG),
        )
    },
    "rms_norm_double": (lambda x: F.rms_norm(x, (4,)), X.double() * 1e-7),
    "rms_norm_stated": (lambda x, w: F.rms_norm(x, (4,), w, eps=0.3), X, f(4)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), IMG, f(4), f(4)),
    "instance_norm": (F.instance_norm, IMG),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), IMG, f(4), f(4)),
    "batch_norm_inference": (lambda x, m, v: F.batch_norm(x, m, v), IMG, f(4), positive(4)),
    "attention": (F.scaled_dot_product_attention, f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 6)),
    "attention_causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), f(2, 2, 3, 4)),
    "attention_scaled": (lambda q: F.scaled_dot_product_attention(q, q, q, scale=0.3), f(2, 3, 4)),
    "attention_grouped": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), f(2, 4, 3, 4), f(2, 2, 3, 4),
    ),
    "attention_bias": (F.scaled_dot_product_attention, *[f(2, 2, 3, 4)] * 3, f(2, 1, 3, 3)),
    "attention_masked_row": (
        F.scaled_dot_product_attention, *[f(2, 2, 3, 4)] * 3,
        torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=torch.bool),
    ),
    "attention_minus_infinity": (
        F.scaled_dot_product_attention, *[f(2, 2, 3, 4)] * 3,
        torch.tensor([[0, float("-inf"), 1], [float("-inf")] * 3, [0, 0, 0]]),
    ),
    "attention_lowest": (
        F.scaled_dot_product_attention, *[f(2, 2, 3, 4)] * 3,
        torch.tensor([[0.0, torch.finfo(torch.float32).min, 1], [torch.finfo(torch.float32).min] * 3, [0, 0, 0]]),
    ),
}  # fmt: skip

loss = {
    "cross_entropy": (F.cross_entropy, C, LABELS),
    "cross_entropy_sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum", ignore_index=2), C, LABELS.clamp(min=0)),
    "cross_entropy_none": (lambda x, y: F.cross_entropy(x, y, reduction="none"), C, LABELS),
    "cross_entropy_weighted": (lambda x, y, w: F.cross_entropy(x, y, w), C, LABELS, W5),
    "cross_entropy_smoothed": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), C, LABELS),
    "cross_entropy_smoothed_weighted": (
        lambda x, y, w: F.cross_entropy(x, y, w, label_smoothing=0.1), C, LABELS, W5,
    ),
    "cross_entropy_smoothed_none": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"), C, LABELS,
    ),
    "cross_entropy_probabilities": (F.cross_entropy, C, PROBS),
    "cross_entropy_probabilities_all": (
        lambda x, y, w: F.cross_entropy(x, y, w, label_smoothing=0.2, reduction="sum"), C, PROBS, W5,
    ),
    "cross_entropy_image": (F.cross_entropy, f(2, 5, 3, 3), ints(5, 2, 3, 3)),
    "cross_entropy_one_row": (F.cross_entropy, C[0], torch.tensor(3)),
    "nll": (lambda x, y: F.nll_loss(F.log_softmax(x, 1), y), C, LABELS),
    "mse": (F.mse_loss, A, B),
    "l1": (lambda a, b: F.l1_loss(a, b, reduction="sum"), A, B),
    "smooth_l1": (lambda a, b: F.smooth_l1_loss(a, b, beta=0.7), A, B),
    "huber": (lambda a, b: F.huber_loss(a, b, delta=0.7), A, B),
    "bce": (F.binary_cross_entropy, torch.sigmoid(A), torch.sigmoid(B)),
    "bce_logits": (F.binary_cross_entropy_with_logits, A, torch.sigmoid(B)),
    "bce_logits_weighted": (
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w), A, torch.sigmoid(B), positive(4),
    ),
    "kl_div": (lambda a, b: F.kl_div(a, b, reduction="batchmean"), F.log_softmax(C, 1), PROBS),
    "cosine": (F.cosine_similarity, A, B),
    "l1_weighted": (lambda a, b, w: F.l1_loss(a, b, weight=w), A, B, positive(3, 4)),
    "multi_margin": (lambda x, y, w: F.multi_margin_loss(x, y, p=2, margin=0.7, weight=w), C, LABELS.clamp(min=0), W5),
    "multilabel_margin": (F.multilabel_margin_loss, f(2, 4), torch.tensor([[2, 0, -1, 3], [-1, 1, 2, 3]])),
    "margin": (F.margin_ranking_loss, f(4), f(4), torch.tensor([1.0, -1, 1, -1])),
    "triplet": (F.triplet_margin_loss, A, B, f(3, 4)),
    "triplet by absolutes": (lambda a, b, c: F.triplet_margin_loss(a, b, c, p=1, reduction="none"), A, B, f(3, 4)),
    "triplet by cubes, swapped": (lambda a, b, c: F.triplet_margin_loss(a, b, c, p=3, swap=True), A, B, f(3, 4)),
}  # fmt: skip


def _assigned(x):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    y[:, 0] = 5.0
    return y


def _filled(x):
    y = x.clone()
    y[1].zero_()
    y.view(-1)[2:4].mul_(3)
    return y


def _put_columns(x, s):
    y = x.clone()
    y[:, torch.tensor([1, 3])] = s
    return y


def _put_mask(x):
    y = x.clone()
    y[y > 0] = 0.5
    return y


FAMILIES = {
    "activation": activation, "arithmetic": arithmetic, "reduction": reduction, "view": view, "creation": creation,
    "indexing": indexing, "linear": linear, "normalization": normalization, "loss": loss,
}  # fmt: skip
