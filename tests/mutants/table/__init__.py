"""The mutants by room: a hand-picked selection of mistakes that somebody could make."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.table import (
    autodiff,
    capture,
    capture_files,
    checkpoint,
    command_line,
    distributed,
    functions,
    graph,
    internals,
    operators,
    optim,
    passes,
    providers,
    session,
    training,
)

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = [
    mutant
    for room in (
        operators, graph, functions, capture, capture_files, autodiff, optim, passes, providers, session, distributed,
        checkpoint, training, command_line, internals,
    )
    for mutant in room.MUTANTS
]  # fmt: skip
