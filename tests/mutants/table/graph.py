"""Mistakes in src/ontrain/graph."""

from __future__ import annotations

from tests.mutants.mutant import mutant

BUILDER, FOLD, AXES, VERIFY = (f"graph/test_{name}.py" for name in ("builder", "fold", "axes", "verify"))
GENERAL, INTERPOLATION = "graph/test_generalise.py", "sizes/test_interpolation.py"

MUTANTS = [
    # Two constants of the same bytes and another dtype would be one.
    mutant("graph/builder.py", "return array.dtype, array.shape, held", "return array.shape, held", BUILDER),
    mutant(
        "graph/builder.py",
        "hashlib.blake2b(array.tobytes()).digest()",
        "hashlib.blake2b(array.tobytes()[:4]).digest()",
        BUILDER,
    ),
    mutant(
        "graph/builder.py",
        "wanted = list(x.shape)[start:end] if",
        "wanted = list(x.shape)[start:] if",
        "graph/test_rebuild.py",
    ),
    mutant("operators/shape.py", 'd == 0 and not a.get("allowzero")', "d == 0", FOLD),
    mutant(
        "graph/fold.py",
        "record.evaluator is not Evaluator.WHOLE or record.chance is not Chance.NEVER",
        "record.evaluator is not Evaluator.WHOLE",
        FOLD,
    ),
    mutant(
        "graph/axes.py",
        "not -rank - more <= axis.as_int()",
        "not -rank - more - 1 <= axis.as_int()",
        AXES,
    ),
    mutant(
        "sizes/interpolation.py",
        "<= abs(n) * tolerance for",
        "<= abs(n) * tolerance + 1 for",
        INTERPOLATION,
    ),
    mutant(
        "sizes/interpolation.py",
        "(Size.symbol(first) - low[first])",
        "(Size.symbol(first) + low[first])",
        INTERPOLATION,
    ),
    mutant(
        "graph/generalise.py",
        "if subgraphs(other) or _attributes(other) != _attributes(first):",
        "if subgraphs(other):",
        GENERAL,
    ),
    mutant("graph/verify.py", "if value.name in names:", "if False:", VERIFY),
    mutant(
        "graph/verify.py",
        "if target is not None and target not in residents:",
        "if target is not None and not residents:",
        VERIFY,
    ),
    mutant("graph/verify.py", "if used is not None and used not in defined:", "if False:", VERIFY),
    mutant(
        "graph/evaluator_corrections.py",
        "np.take_along_axis(x, ids, axis)",
        "np.take_along_axis(x, ids % (x.shape[axis] + 1), axis)",
        "graph/test_evaluator_corrections.py",
    ),
]
