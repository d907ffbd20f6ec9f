"""What an ORTModule recomputes: its `memory_budget`, or what the environment says under onnxruntime's names."""

from __future__ import annotations

import os

from ontrain.errors import OptionError
from ontrain.passes import Recomputation, parse_budget, parse_clusters

__all__ = ["recomputation_of"]

_BUDGET, _LEVEL, _CONFIG = "ONTRAIN_MEMORY_BUDGET", "ORTMODULE_MEMORY_OPT_LEVEL", "ORTMODULE_MEMORY_OPT_CONFIG"


def recomputation_of(memory_budget: int | float | str | None) -> Recomputation:
    """Return what to compute again.

    Args:
        memory_budget: bytes, a text with a unit, or a fraction; None reads ONTRAIN_MEMORY_BUDGET.

    Environment: ORTMODULE_MEMORY_OPT_LEVEL 0 (what the config names), 1 (everything inside repeated layers), 2 (as
    little memory as can be reached); ORTMODULE_MEMORY_OPT_CONFIG, see `ontrain.passes.recompute.parse_clusters`.

    Raises:
        OptionError: a value that is none of these.
    """
    name = "memory_budget"
    if memory_budget is None:
        name, memory_budget = _BUDGET, os.environ.get(_BUDGET) or None
    level = os.environ.get(_LEVEL, "0")
    if level not in ("0", "1", "2"):
        raise OptionError(
            f"{_LEVEL} is {level!r}",
            way_out=f"0 recomputes what {_CONFIG} names, 1 whole layers, 2 all that saves memory",
        )
    return Recomputation(
        budget=None if memory_budget is None else parse_budget(memory_budget, name),
        layers=level == "1",
        number_of_layers=-1,
        clusters=parse_clusters(os.environ.get(_CONFIG, ""), _CONFIG),
        least=level == "2",
    )
