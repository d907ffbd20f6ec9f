"""Mistakes in src/ontrain/graph."""

from __future__ import annotations

from tests.mutants.mutant import mutant

GRAPH, GENERAL = "graph/test_graph.py", "graph/test_generalise.py"

MUTANTS = [
    # Two constants of the same bytes and another dtype would be one.
    mutant("graph/builder.py", "key = (array.dtype.str, array.shape, content)", "key = (array.shape, content)", GRAPH),
    mutant(
        "graph/builder.py",
        "hashlib.blake2b(array.tobytes()).digest()",
        "hashlib.blake2b(array.tobytes()[:4]).digest()",
        GRAPH,
    ),
    mutant("graph/builder.py", "wanted = list(x.shape)[start:end] if", "wanted = list(x.shape)[start:] if", GRAPH),
    mutant("graph/fold.py", 'd == 0 and not a.get("allowzero")', "d == 0", GRAPH),
    mutant(
        "graph/fold.py",
        "or node.op_type in _NOT_EVALUATED or node.op_type in RANDOM",
        "or node.op_type in _NOT_EVALUATED",
        GRAPH,
    ),
    mutant(
        "graph/axes.py",
        "not -rank - more <= axis.as_int()",
        "not -rank - more - 1 <= axis.as_int()",
        GRAPH,
    ),
    mutant(
        "graph/polynomials.py",
        "if abs(made - number) > abs(number) * tolerance",
        "if abs(made - number) > abs(number) * tolerance + 1",
        GENERAL,
    ),
    mutant(
        "graph/polynomials.py",
        "found[key] = value - slope * low[first]",
        "found[key] = value + slope * low[first]",
        GENERAL,
    ),
    mutant(
        "graph/generalise.py",
        "if subgraphs(one) or _attributes(one) != _attributes(first):",
        "if subgraphs(one):",
        GENERAL,
    ),
    mutant("graph/verify.py", "if value.name in names:", "if False:", GRAPH),
    mutant(
        "graph/verify.py",
        "if target is not None and target not in residents:",
        "if target is not None and not residents:",
        GRAPH,
    ),
    mutant("graph/verify.py", "if used is not None and used not in defined:", "if False:", GRAPH),
    mutant(
        "graph/corrections.py",
        "np.take_along_axis(x, ids, axis)",
        "np.take_along_axis(x, ids % (x.shape[axis] + 1), axis)",
        "graph/test_corrections.py",
    ),
]
