"""Mistakes in src/ontrain/operators: what records say."""

from __future__ import annotations

from tests.mutants.mutant import mutant

OVERWRITES = "operators/test_overwrites.py"

MUTANTS = [
    mutant(
        "operators/activation.py",
        'define("SoftmaxGrad", domain=DOMAIN, overwrites=(0,))',
        'define("SoftmaxGrad", domain=DOMAIN, overwrites=(0, 1))',
        OVERWRITES,
    ),
    mutant(
        "operators/pooling.py",
        "-(-(i + 1) * size // count)",
        "(i + 1) * size // count",
        "providers/torch/lowering/test_adaptive_pooling.py",
        "bodies",
    ),
    mutant("operators/math.py", 'define("Mean", POINTWISE, overwrites=(0, 1)', 'define("Mean", POINTWISE', OVERWRITES),
    mutant("operators/loss.py", "Precision.SCALED", "Precision.HALF", "passes/test_fuse_head.py", "half or float16"),
]
