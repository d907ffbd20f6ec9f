"""Mistakes in src/ontrain/passes."""

from __future__ import annotations

from tests.mutants.mutant import mutant

SHARED, LINEAR = "passes/test_common_subexpressions.py", "passes/test_linear_to_gemm.py"
SIMPLE, HEAD, HALF = "passes/test_simplify.py", "passes/test_fuse_head.py", "passes/test_lower_precision.py"
MASKS, EQUAL = "passes/rows/test_masks.py", "passes/rows/test_equality.py"

MUTANTS = [
    mutant(
        "passes/common_subexpressions.py",
        "return not record.distinct and record.chance is Chance.NEVER",
        "return not record.distinct",
        SHARED,
    ),
    mutant(
        "passes/common_subexpressions.py",
        "attributes = tuple(sorted((name, _plain(attr)) for name, attr in node.attributes.items()))",
        "attributes = ()",
        SHARED,
    ),
    mutant("passes/fusion.py", "if len(inner.outputs[0].uses()) > 1 or", "if", LINEAR),
    mutant(
        "passes/linear_to_gemm.py",
        'if "b" in match.values and static_dims(match["b"]) != static_dims(product.outputs[0])[-1:]:',
        "if False:",
        LINEAR + " capture/test_models.py",
        "linear or bias or sum or products or hugging",
    ),
    mutant("passes/simplify.py", "both = [inner[i] for i in perm]", "both = [perm[i] for i in inner]", SIMPLE),
    mutant(
        "passes/simplify.py",
        "return _neutral([None, inputs[1]], 1.0, shape, inputs[0])",
        "return _neutral(inputs, 1.0, shape)",
        SIMPLE,
    ),
    mutant("passes/simplify.py", "or static_dims(other) != shape:", "or False:", SIMPLE),
    mutant(
        "passes/fuse_head.py",
        "if any(value.uses() or value in self._outputs for value in loss.outputs[1:]):",
        "if False:",
        HEAD,
        "left_alone",
    ),
    mutant(
        "passes/fuse_head.py",
        'if loss.attributes.get_string("reduction", "mean") == "none":',
        "if False:",
        HEAD,
        "left_alone",
    ),
    mutant(
        "passes/fuse_head.py",
        'ignore_index=match.node.attributes.get_int("ignore_index", NO_IGNORE),',
        "ignore_index=NO_IGNORE,",
        HEAD,
        "equals_eager or underflows or label",
    ),
    mutant(
        "passes/lower_precision.py", "return not number < np.inf or number <= _LARGEST[self.dtype]", "return True", HALF
    ),
    mutant(
        "passes/lower_precision.py",
        "return floats if trained and self._all_float32(node) else []",
        "return floats if self._all_float32(node) else []",
        HALF,
    ),
    mutant(
        "passes/lower_precision.py",
        "return floats if self.dtype == ir.DataType.BFLOAT16 and self._all_float32(node) else []",
        "return floats",
        HALF + " " + HEAD,
        "half or head or float16",
    ),
    mutant("passes/rows/masks.py", "return -1e9", "return -1e2", MASKS),
    mutant(
        "passes/rows/masks.py",
        'return _both(conditions(graph, condition, "not"), _added(graph, y))',
        'return _both(conditions(graph, condition, "is"), _added(graph, y))',
        MASKS,
    ),
    mutant(
        "passes/rows/selection.py",
        "step = max(power // 8, rows // 64, 1)",
        "step = max(power // 8, rows // 64, 0)",
        "session/test_row_counts.py",
        "bucket",
    ),
    mutant(
        "passes/rows/selection.py",
        "size = max(-(-count // step) * step, 1)",
        "size = max(count // step * step, 1)",
        "session/test_row_counts.py",
        "bucket",
    ),
    mutant(
        "passes/rows/selection.py",
        "if record_of(node).chance is not Chance.NEVER:\n                return None",
        "if False:\n                return None",
        "passes/rows/test_selection.py",
        "chance",
    ),
    mutant(
        "passes/rows/labels.py",
        "has_label: ir.Value = op.Not(op.Equal(flat,",
        "has_label: ir.Value = op.Not(op.Less(flat,",
        "passes/rows/test_labels.py",
    ),
    mutant(
        "passes/rows/operators.py",
        "return None if _axis(node) in layout.axes else _first(node, layout)",
        "return _first(node, layout)",
        "passes/rows/test_operators.py",
    ),
    mutant(
        "passes/rows/operators.py",
        "axes = list(range(len(starts))) if axes is None else [a % len(shape) for a in axes]",
        "axes = list(range(len(starts)))",
        "passes/rows/test_operators.py",
    ),
    mutant("passes/bisect.py", "while bad - good > 1:", "while bad - good > 2:", "passes/test_bisect.py"),
    mutant(
        "passes/bisect.py",
        "finally:\n        _set(before)",
        "finally:\n        pass",
        "passes/test_bisect.py",
        "environment",
    ),
    mutant("passes/recompute/request.py", "0 < budget <= 1:", "0 < budget < 1:", "passes/recompute/test_request.py"),
]
