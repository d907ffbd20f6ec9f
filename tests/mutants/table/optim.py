"""Mistakes in src/ontrain/optim."""

from __future__ import annotations

from tests.mutants.mutant import mutant

LOSS, STEP, GRAPH, UPDATE = (f"optim/test_{name}.py" for name in ("loss", "step", "step_graph", "update"))

MUTANTS = [
    mutant("optim/loss.py", "safe = op.Where(valid, labels, 0)", "safe = labels", LOSS),
    mutant("optim/loss.py", "return node if mean and value is node.outputs[0] else None", "return node", LOSS),
    mutant(
        "optim/loss.py",
        "op.Cast(op.Size(labels), to=ir.DataType.FLOAT)",
        "op.Cast(op.Size(node.inputs[0]), to=ir.DataType.FLOAT)",
        LOSS,
    ),
    mutant("optim/loss.py", "m = op.Relu(logits)", "m = op.Neg(op.Relu(logits))", LOSS, "bce"),
    mutant(
        "optim/step.py",
        "seed = seed if narrow else op.Mul(seed, weight)",
        "seed = op.Mul(seed, weight)",
        "training/test_mixed_precision.py " + STEP,
        "micro_batches",
    ),
    mutant(
        "optim/step.py",
        "divisor: ir.Value = op.Where(op.Greater(labels, 0.0), labels, 1.0)",
        "divisor: ir.Value = labels",
        STEP,
    ),
    mutant("optim/step.py", "step.update(labels, _LABEL_COUNT.name)", "pass", STEP),
    mutant(
        "optim/step.py",
        "checked = op.Where(op.Or(op.IsNaN(value), op.IsInf(value)), before, value)",
        "checked = op.Where(op.IsNaN(value), before, value)",
        "training/test_mixed_precision.py " + GRAPH,
        "overflow or finite or statistic",
    ),
    mutant(
        "optim/update.py",
        "finite = op.Not(op.Or(op.IsNaN(norm), op.IsInf(norm)))",
        "finite = op.Not(op.IsNaN(norm))",
        GRAPH,
    ),
    mutant("optim/update.py", "_EPSILON = 1e-6", "_EPSILON = 1e-2", STEP, "twenty"),
    mutant(
        "optim/update.py",
        "op.Min(op.Div(max_norm, op.Add(norm, _EPSILON)), 1.0)",
        "op.Div(max_norm, op.Add(norm, _EPSILON))",
        STEP,
        "twenty",
    ),
    mutant("optim/update.py", "norm * scale, max_norm)", "norm, max_norm)", UPDATE),
    mutant(
        "optim/update.py",
        "return ir.DataType.DOUBLE if param.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT",
        "return param.dtype or ir.DataType.FLOAT",
        GRAPH,
    ),
    mutant(
        "optim/spec.py",
        'and not self.attributes_for(param)["momentum"]',
        'and not self.defaults.get("momentum")',
        "optim/test_spec.py " + STEP,
        "state_names or twenty",
    ),
]
