"""Mistakes in src/ontrain/distributed."""

from __future__ import annotations

from tests.mutants.mutant import mutant

SHARDS, PROCESSES = "distributed/test_shards.py", "distributed/test_training.py"

MUTANTS = [
    mutant(
        "distributed/shares.py",
        "stop = min(math.prod(shape), (rank + 1) * part - first)",
        "stop = min(math.prod(shape), (rank + 1) * part)",
        SHARDS,
    ),
    mutant("distributed/shares.py", "if start < stop:", "if start <= stop:", SHARDS),
    mutant(
        "distributed/agreement.py",
        "if tensor is not None and not tensor.dtype.is_floating_point()",
        "if False",
        "distributed/test_agreement.py",
        "begin_differently",
    ),
    mutant("distributed/shares.py", "start = max(0, rank * part - first)", "start = rank * part", SHARDS),
    mutant(
        "distributed/adasum.py",
        "left = 1 - across / (2 * of_a) if of_a else 1.0",
        "left = 1 - across / of_a if of_a else 1.0",
        PROCESSES,
        "two_and_four",
    ),
    mutant(
        "distributed/adasum.py",
        "first, second = (ours, theirs) if world.rank < partner else (theirs, ours)",
        "first, second = ours, theirs",
        PROCESSES,
        "two_and_four",
    ),
    mutant(
        "distributed/adasum.py", "if size & (size - 1):", "if size % 2:", "distributed/test_failures.py", "power_of_two"
    ),
    mutant(
        "distributed/reduction.py",
        "part.div_(labels or 1.0)",
        "part.div_(own or 1.0)",
        PROCESSES,
        "two_and_four",
    ),
    mutant(
        "distributed/reduction.py",
        '"the learning rate": hyper.learning_rate,',
        "",
        "distributed/test_agreement.py",
        "come_to",
    ),
    mutant(
        "distributed/agreement.py",
        'said[f"the optimizer\'s {attribute} for {name!r}"] = str(value)',
        "pass",
        "distributed/test_agreement.py",
        "begin",
    ),
    mutant(
        "distributed/agreement.py",
        ', "the norm to clip to": str(session.max_norm)}',
        "}",
        "distributed/test_agreement.py",
        "begin",
    ),
]
