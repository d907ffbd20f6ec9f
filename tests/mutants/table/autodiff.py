"""Mistakes in src/ontrain/autodiff."""

from __future__ import annotations

from tests.mutants.mutant import mutant

RULES, DRIVER, SHAPES = "autodiff/test_rules.py", "autodiff/test_driver.py", "autodiff/test_shapes.py"

MUTANTS = [
    mutant(
        "autodiff/driver.py",
        "adjoints[value] = grad if before is None else op.Add(before, grad)",
        "adjoints[value] = grad",
        DRIVER,
    ),
    mutant("autodiff/driver.py", "grad = op.Cast(grad, to=value.dtype)", "pass", DRIVER),
    mutant("autodiff/driver.py", "if w == 1 and have[lead + i] != 1)]", "if w == 1 and have[i] != 1)]", SHAPES),
    mutant(
        "autodiff/driver.py",
        "return () if zero_gradient_of(node.domain, node.op_type) else reads(node)",
        "return reads(node)",
        DRIVER,
    ),
    mutant(
        "operators/gradients.py",
        "return max(fitting, key=lambda e: e.since)",
        "return min(fitting, key=lambda e: e.since)",
        "autodiff/test_registry.py autodiff/test_driver.py autodiff/test_rules.py",
        "registry or driver or GroupNorm",
    ),
    mutant(
        "operators/activation.py",
        "dy, x, alpha=alpha, input_scale=1 / alpha",
        "dy, x, alpha=alpha, input_scale=alpha",
        RULES,
        "Celu",
    ),
    mutant(
        "operators/activation.py",
        "dy * op.Min(x, 0.0) if",
        "dy * op.Max(x, 0.0) if",
        RULES,
        "PRelu",
    ),
    mutant("functions/activation.py", "dy * (x / 3 + 0.5), dy)", "dy * (x / 6 + 0.5), dy)", RULES, "HardSwish"),
    mutant(
        "operators/activation.py",
        "op.Where(op.saved(1), dy / (1 - op.Cast(ratio, to=dy.dtype)), 0.0)",
        "op.Where(op.saved(1), dy, 0.0)",
        RULES + " autodiff/test_conventions.py",
        "Dropout or mask",
    ),
    mutant(
        "operators/attention.py",
        "op.RotaryEmbedding(dy, cos, op.Neg(sin), positions",
        "op.RotaryEmbedding(dy, cos, sin, positions",
        RULES,
        "Rotary",
    ),
    mutant(
        "operators/conv.py",
        "less + more if upper else more + less",
        "more + less if upper else less + more",
        RULES,
        "Conv or AveragePool",
    ),
    mutant(
        "operators/conv.py",
        "totals = [s * (d - 1) + e + span - m",
        "totals = [s * d + e + span - m",
        RULES,
        "ConvTranspose",
    ),
    mutant(
        "operators/normalization.py",
        "inv * (g - x_hat * op.ReduceMean(g * x_hat, inner, keepdims=1))",
        "inv * (g - x_hat * op.ReduceMean(g * wide, inner, keepdims=1))",
        RULES,
        "RMSNorm",
    ),
    mutant(
        "operators/normalization.py",
        "dvar = -0.5 * dslope * slope * inv_std * inv_std",
        "dvar = -0.5 * dslope * slope * inv_std",
        RULES,
        "BatchNorm",
    ),
    # The window of an even size reaches one channel further on one side than on the other; backward it is mirrored.
    mutant(
        "operators/normalization.py",
        "op.outputs[0] / s, after, before)",
        "op.outputs[0] / s, before, after)",
        RULES,
        "LRN",
    ),
    mutant("operators/normalization.py", "(2 * alpha * beta) * x * inner", "(2 * alpha) * x * inner", RULES, "LRN"),
    mutant(
        "operators/pooling.py",
        "hits * (dy / op.ReduceSum(hits,",
        "hits * (dy / op.ReduceMax(hits,",
        RULES + " autodiff/test_conventions.py",
        "GlobalMaxPool or ties",
    ),
    mutant(
        "operators/reduce.py",
        "if i in over else d",
        "if i in over and noop_with_empty_axes == 0 else d",
        RULES + " autodiff/test_shapes.py",
        "Reduce or reductions",
    ),
    mutant("operators/reduce.py", "reverse=1 - reverse", "reverse=reverse", RULES, "CumSum"),
    mutant(
        "operators/scatter.py",
        "ids = op.Where(op.Less(ids, 0), op.Add(ids, size), ids)",
        "pass",
        "providers/torch/lowering/test_indexing.py",
        "Gather-",
    ),
    mutant(
        "operators/scatter.py",
        "strides = np.array([math.prod(sizes[i + 1 :])",
        "strides = np.array([math.prod(sizes[i:])",
        RULES,
        "GatherND",
    ),
    mutant(
        "operators/scatter.py",
        "return op.Where(padding, 0.0, picked), None",
        "return picked, None",
        "autodiff/test_conventions.py",
    ),
    mutant(
        "operators/shape.py",
        "start + size * (start < 0), end + size * (end < 0)",
        "start + size * (start < 0), end",
        RULES + " autodiff/test_shapes.py",
        "Slice or slice",
    ),
    mutant("operators/shape.py", "for i in np.argsort(perm)]", "for i in perm]", RULES, "Transpose"),
    mutant(
        "operators/einsum.py",
        "spread, 0.0)",
        "spread, 1.0)",
        RULES,
        "Einsum",
    ),
]
