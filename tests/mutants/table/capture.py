"""Mistakes in src/ontrain/capture: the table from ATen to ONNX, guards and the cache."""

from __future__ import annotations

from tests.mutants.mutant import mutant

OPERATORS, TRAPS, CACHE = "capture/test_operators.py", "capture/test_traps.py", "capture/test_cache.py"
GUARDS, LOSSES = "capture/test_guards.py", "capture/test_operators.py"
DETACHED = "capture/test_detached.py"

MUTANTS = [
    # torch's default is the dtype's own step from one to the next number.
    mutant(
        "capture/aten/normalization.py",
        "eps = torch.finfo(computed).eps if eps is None else eps",
        "eps = 1e-5 if eps is None else eps",
        OPERATORS,
    ),
    mutant(
        "capture/aten/normalization.py",
        "op.cast(1 / (n - 1) if n > 1 else 0.0, dtype)",
        "op.cast(0.0, dtype)",
        TRAPS,
        "statistics",
    ),
    mutant(
        "capture/aten/normalization.py",
        "epsilon=eps, momentum=1 - momentum, training_mode=1",
        "epsilon=eps, momentum=momentum, training_mode=1",
        TRAPS,
        "statistics",
    ),
    mutant(
        "capture/aten/normalization.py",
        "own, [0, *axes], keepdims=0), before.dtype)",
        "own, axes, keepdims=0), before.dtype)",
        "capture/test_autograd.py",
        "instance_norm",
    ),
    mutant("capture/aten/activation.py", "alpha=1 / 6, beta=0.5)", "alpha=0.2, beta=0.5)", OPERATORS, "activation"),
    mutant(
        "capture/aten/activation.py", "x, op.Softplus(x * b) / b)", "x, op.Softplus(x * b))", OPERATORS, "activation"
    ),
    mutant(
        "capture/aten/activation.py",
        "small = op.Less(op.Abs(x), op.cast(0.5, op.dtype))",
        "small = op.Less(op.Abs(x), op.cast(-1, op.dtype))",
        OPERATORS,
    ),
    mutant("capture/aten/attention.py", "return 1 / math.sqrt(width)", "return 1 / width", OPERATORS, "normalization"),
    mutant(
        "capture/aten/attention.py",
        "op.Where(op.Less(rows, columns), op.cast(_lowest(dtype), dtype)",
        "op.Where(op.LessOrEqual(rows, columns), op.cast(_lowest(dtype), dtype)",
        OPERATORS,
        "normalization",
    ),
    mutant("capture/aten/attention.py", "y = y * seen", "pass", OPERATORS, "normalization"),
    mutant(
        "capture/aten/attention.py",
        "scale=float(scale), dropout=float(dropout_p), outputs=3)",
        "scale=float(scale), outputs=3)",
        TRAPS,
        "attention_dropout",
    ),
    mutant(
        "capture/aten/convolution.py",
        "pads = [w // 2 for w in whole] + [w - w // 2 for w in whole]",
        "pads = [w - w // 2 for w in whole] + [w // 2 for w in whole]",
        OPERATORS,
        "linear",
    ),
    mutant(
        "capture/aten/convolution.py",
        "output_padding=full(output_padding, rank), dilations",
        "dilations",
        OPERATORS,
        "linear",
    ),
    mutant(
        "capture/aten/loss.py",
        "op.cast(1 - label_smoothing, op.dtype) + op.cast(label_smoothing / classes, op.dtype)",
        "op.cast(1 - label_smoothing, op.dtype) + op.cast(label_smoothing, op.dtype)",
        OPERATORS,
        "loss",
    ),
    mutant(
        "capture/aten/loss.py",
        "rows = op.Where(ignored, zero, op.Gather(weight, safe, axis=0))",
        "rows = op.Gather(weight, safe, axis=0)",
        OPERATORS,
        "loss",
    ),
    mutant("capture/aten/pooling.py", "count_include_pad=int(count_include_pad),", "", OPERATORS, "linear"),
    mutant(
        "capture/aten/recurrent.py",
        "if dropout and train and layer < num_layers - 1:",
        "if dropout and train:",
        "capture/test_recurrent.py capture/test_models.py",
        "dropout",
    ),
    mutant(
        "capture/aten/recurrent.py",
        "return [parts[i] for i in kind.order]",
        "return list(parts)",
        "capture/test_recurrent.py",
        "gradients",
    ),
    mutant(
        "capture/aten/random.py",
        "high - low, low))\n    return op.cast(op.Min(drawn",
        "high - low + 1, low))\n    return op.cast(op.Min(drawn",
        "capture/test_autograd.py",
        "distribution",
    ),
    mutant(
        "capture/aten/reduction.py",
        'spread = _root(op, variance) if name.startswith("std") else variance',
        "spread = variance",
        OPERATORS,
        "reduction",
    ),
    mutant(
        "capture/aten/indexing.py", 'reduction="add" if accumulate else None)', "reduction=None)", OPERATORS, "indexing"
    ),
    mutant(
        "capture/guards.py",
        "if (upper is not None and size > upper) or",
        "if (upper is not None and size >= upper) or",
        "capture/test_guards.py capture/test_cache.py training/test_errors.py training/ortmodule/test_cases.py",
        "branch or branches or size or guards",
    ),
    mutant(
        "capture/guards.py",
        "not condition.value(sizes):",
        "condition.value(sizes) is None:",
        CACHE + " training/test_errors.py capture/test_guards.py",
        "branch or condition",
    ),
    mutant(
        "capture/cache/question.py",
        "sys.version, platform.machine(), torch.__version__,",
        "sys.version, platform.machine(),",
        CACHE,
        "replaced and changed4",
    ),
    mutant(
        "capture/cache/question.py",
        "if isinstance(table, dict) and table:",
        "if False:",
        CACHE,
        "compared and with_hook",
    ),
    mutant(
        "capture/cache/folder.py",
        "if not data.startswith(_MAGIC) or hashlib.sha256(data[start:]).digest() != data[len(_MAGIC) : start]:",
        "if not data.startswith(_MAGIC):",
        CACHE,
        "torn",
    ),
    mutant(
        "capture/cache/folder.py",
        'files = sorted(self.path.glob(f"*{_SUFFIX}"), key=_time, reverse=True)',
        'files = sorted(self.path.glob(f"*{_SUFFIX}"), key=_time)',
        CACHE,
        "longest",
    ),
    mutant("capture/detached.py", "self._insert_behind(view)", "pass", DETACHED, "copy_of"),
    mutant("capture/no_grad.py", "if all(map(self._is_made_here, written_to(node))):", "if True:", DETACHED, "buffer"),
    mutant("capture/sharing.py", 'or named.get("p") == 0', "", DETACHED, "dropout"),
    # A trace would write to tensors outside of the module.
    mutant("capture/outside.py", "if _writes(name):", "if False:", "training/ortmodule/test_repeating.py"),
    mutant("capture/writes.py", "write.take_back(before)", "pass", "training/ortmodule/test_repeating.py"),
    mutant(
        "capture/windows.py",
        "places / (count if periodic else count - 1)",
        "places / count",
        "capture/test_windows.py",
    ),
    mutant(
        "capture/ranges.py",
        "return limit.detach() if isinstance(limit, torch.Tensor) else limit",
        "return limit",
        "capture/test_ranges.py",
        "no_gradient",
    ),
    mutant(
        "capture/structure.py",
        "return number if isinstance(number, _VARYING) else kind(number)",
        "return values[0]",
        "capture/test_number_types.py",
        "each_step",
    ),
    mutant(
        "capture/number_types.py",
        "return torch.sym_float(value)",
        "return builtins.float(value)",
        "capture/test_number_types.py",
        "vary",
    ),
    mutant(
        "capture/unfit_numbers.py",
        "if func in operators and traced_here():",
        "if False:",
        "capture/test_unfit_numbers.py",
        "each_number",
    ),
]
