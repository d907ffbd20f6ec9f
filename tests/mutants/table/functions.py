"""Mistakes in src/ontrain/functions."""

from __future__ import annotations

from tests.mutants.mutant import mutant

GRADIENTS, OPTIMIZERS, RULES = (
    "functions/test_gradients.py",
    "optim/test_optimizer_functions.py",
    "autodiff/test_rules.py",
)
RECURRENT = "control/test_recurrent.py"

MUTANTS = [
    mutant(
        "functions/activation.py",
        "c, k = math.sqrt(2 / math.pi), 0.044715",
        "c, k = math.sqrt(2 / math.pi), 0.0447",
        GRADIENTS,
        "gelu",
    ),
    mutant(
        "functions/activation.py", "dy * (s * (1.0 + x * (1.0 - s)))", "dy * (s * (1.0 + x * s))", GRADIENTS, "silu"
    ),
    mutant(
        "functions/activation.py",
        "op.Where(mask, dy * (1 / (1 - ratio)), 0.0)",
        "op.Where(mask, dy * (1 / ratio), 0.0)",
        GRADIENTS,
        "dropout",
    ),
    mutant(
        "functions/attention.py",
        "dk = op.MatMul(op.Transpose(ds, perm=transposed), q) * scale",
        "dk = op.MatMul(op.Transpose(ds, perm=transposed), q)",
        GRADIENTS,
        "attention",
    ),
    mutant(
        "functions/attention.py",
        "behind = op.GreaterOrEqual(",
        "behind = op.Greater(",
        "providers/torch/test_attention_packed.py passes/rows/test_sequences.py",
    ),
    mutant(
        "functions/embedding.py",
        "if padding_idx >= 0:\n        flat_dy",
        "if padding_idx > 2:\n        flat_dy",
        GRADIENTS,
        "embedding",
    ),
    mutant("functions/embedding.py", "- 1\n    bags", "+ 0\n    bags", GRADIENTS, "bags"),
    mutant("functions/cumulative.py", "op.IsInf(top), 0.0, top", "op.IsInf(top), top, top", GRADIENTS, "running_sums"),
    mutant(
        "functions/distances.py",
        "op.Where(apart, dy / op.Where(apart, y, 1.0), 0.0)",
        "dy / y",
        GRADIENTS,
        "equal_rows",
    ),
    mutant("functions/reduction.py", "(op.ArgMax if largest", "(op.ArgMin if largest", GRADIENTS, "extrema"),
    mutant(
        "functions/loss.py",
        "dloss = dloss / op.ReduceSum(row, keepdims=0)",
        "dloss = dloss / op.const(float(static_dims(labels)[0]), dtype)",
        GRADIENTS,
        "loss_grads",
    ),
    mutant(
        "functions/loss.py",
        "op.Unsqueeze(op.Where(valid, dloss * row, 0.0), [1])",
        "op.Unsqueeze(dloss * row, [1])",
        GRADIENTS + " autodiff/test_conventions.py",
        "loss_grads or ignored",
    ),
    mutant(
        "functions/normalization.py",
        "others = [0, *range(2, rank)]",
        "others = [0, *range(3, rank)]",
        GRADIENTS,
        "batch_normalization",
    ),
    mutant(
        "functions/normalization.py",
        "dscale, dbias = wide_dy * x_hat, op.Identity(wide_dy)",
        "dscale, dbias = wide_dy * wide_x, op.Identity(wide_dy)",
        GRADIENTS,
        "layer_normalization",
    ),
    mutant(
        "functions/optimizer.py", "return float(str(np.float32(value)))", "return float(np.float32(value))", OPTIMIZERS
    ),
    mutant("functions/optimizer.py", "op.Where(first, op.const(1.0, p.dtype), share)", "share", OPTIMIZERS, "sgd"),
    mutant(
        "functions/optimizer.py",
        "g = g + mu * buffer if nesterov else buffer",
        "g = mu * buffer if nesterov else buffer",
        OPTIMIZERS,
        "sgd",
    ),
    mutant(
        "functions/optimizer.py", "p = p * (1.0 - learning_rate * decay)", "p = p * (1.0 - decay)", OPTIMIZERS, "adam"
    ),
    mutant(
        "functions/optimizer.py",
        "b * v + (1.0 - b) * (g * g)",
        "b * v + (1.0 - a) * (g * g)",
        OPTIMIZERS,
        "adam or papers",
    ),
    mutant(
        "functions/optimizer.py",
        "defined = op.And(op.Greater(of_param, 0.0), op.Greater(of_update, 0.0))",
        "defined = op.Greater(of_update, 0.0)",
        OPTIMIZERS,
        "lamb",
    ),
    mutant(
        "functions/optimizer.py",
        "return op.Tanh(-0.5 * x) * (1.0 + op.Exp(x))",
        "return 1.0 - op.Exp(x)",
        OPTIMIZERS,
        "digits",
    ),
    mutant(
        "operators/pooling.py",
        "if count_include_pad else (0, 0)",
        "if not count_include_pad else (0, 0)",
        GRADIENTS,
        "average_pool",
    ),
    mutant(
        "functions/recurrent.py",
        "f = 1 - i if input_forget else f_act(op, bounded(f))",
        "f = f_act(op, bounded(f))",
        RECURRENT,
    ),
    mutant("functions/recurrent.py", "return [(h - n) * z + n]", "return [(n - h) * z + h]", RULES, "GRU-"),
    mutant(
        "functions/recurrent.py",
        "valid = op.Unsqueeze(op.Less(at, captured[-1]), [1])",
        "valid = op.Unsqueeze(op.LessOrEqual(at, captured[-1]), [1])",
        RULES,
        "LSTM- or RNN-",
    ),
    mutant(
        "functions/row_packing.py",
        "op.const(numbers) - before + count)",
        "op.const(numbers) - before + count - 1)",
        GRADIENTS,
        "rows",
    ),
    mutant(
        "functions/interpolation.py",
        '"round_prefer_floor": lambda x: np.ceil(x - 0.5)',
        '"round_prefer_floor": lambda x: np.floor(x + 0.5)',
        RULES,
        "Resize",
    ),
    mutant(
        "functions/windows.py",
        "windows -= (windows - 1) * steps[i] >= size + margins[i]",
        "windows -= (windows - 1) * steps[i] > size + margins[i]",
        RULES,
        "LpPool",
    ),
    mutant(
        "functions/sampling.py",
        "direction = op.Where(op.Equal(op.Less(at, low), even), -1.0, forwards)",
        "direction = op.Where(op.Less(at, low), -1.0, forwards)",
        "functions/test_gradients.py",
        "places",
    ),
]
