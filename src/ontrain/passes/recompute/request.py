"""What a user asks for: a memory budget, switches for parts of a model, clusters of operators by name."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from ontrain.disk import read_file
from ontrain.errors import OptionError

__all__ = ["BUDGET_ALLOWED", "ClusterRequest", "Recomputation", "parse_budget", "parse_clusters"]

BUDGET_ALLOWED = "bytes, a text like '2GiB' or '500 MB', or a fraction above 0 and up to 1.0 of the memory without it"
_MOST = 1 << 20
"""Bytes of a file of clusters: a line is some twenty."""
_UNITS = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*")


def parse_budget(budget: int | float | str, name: str = "memory_budget") -> int | float:
    """Return a budget as bytes (int) or as a fraction (float) of the working memory that a step needs without it.

    Args:
        budget: an int is bytes; a float a fraction; a text has a unit ("2GiB", "500 MB"), or is read as a number.
        name: what the error calls it.

    Raises:
        OptionError: it is none of these, or out of range.
    """
    wrong = OptionError(f"{name} is {budget!r}", way_out=f"allowed: {BUDGET_ALLOWED}")
    if isinstance(budget, bool):
        raise wrong
    if isinstance(budget, str):
        match = _TEXT.fullmatch(budget)
        if match is None or match[2].upper() not in _UNITS:
            raise wrong
        plain = not match[2] and not match[1].isdigit()
        budget = float(match[1]) if plain else int(float(match[1]) * _UNITS[match[2].upper()])
    if isinstance(budget, int) and budget > 0:
        return budget
    if isinstance(budget, float) and math.isfinite(budget) and 0 < budget <= 1:
        return budget
    raise wrong


@dataclass(frozen=True)
class ClusterRequest:
    """Operators to compute again, by the name that the plan table gives them.

    Attributes:
        name: as "Gelu+", or "*" for all clusters.
        recompute: whether to; False leaves them alone (strategy 0).
        count: how many of them, from the first on; −1 is all.
    """

    name: str
    recompute: bool
    count: int


@dataclass(frozen=True)
class Recomputation:
    """What to compute again in the backward pass instead of keeping it.

    Attributes:
        budget: bytes (int) or fraction (float) of working memory to fit into; None for no bound.
        attention_dropout: attention probabilities, and dropout on them.
        gelu: results of Gelu, however it is written.
        layers: everything inside repeated layers, whose inputs are kept.
        number_of_layers: how many of them, from the first on; 0 is all but the last, −1 all.
        clusters: groups of operators by name.
        least: as little memory as can be reached, whatever it costs.
    """

    budget: int | float | None = None
    attention_dropout: bool = False
    gelu: bool = False
    layers: bool = False
    number_of_layers: int = 0
    clusters: tuple[ClusterRequest, ...] = ()
    least: bool = False

    @property
    def asked(self) -> bool:
        """Whether anything is to be done at all."""
        switches = self.attention_dropout or self.gelu or self.layers or self.least
        return self.budget is not None or switches or bool(self.clusters)


def parse_clusters(plan: str, name: str) -> tuple[ClusterRequest, ...]:
    """Read "Gelu+:1:-1,LayerNormalization+:1:2", or a JSON file with a list of such texts.

    A text is cluster:strategy:count. Strategy 0 leaves the cluster alone, 1 and 2 compute it again; count is how many
    of its places from the first on, −1 for all. This is what onnxruntime's ORTMODULE_MEMORY_OPT_CONFIG holds.

    Raises:
        OptionError: a text is malformed, or the file cannot be read.
    """
    texts = _from_file(plan, name) if plan.endswith(".json") else plan.split(",")
    return tuple(_cluster(text.strip(), name) for text in texts if text.strip())


def _from_file(path: str, name: str) -> list[str]:
    try:
        entries = json.loads(read_file(path, _MOST))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"{name} names {path!r}, which cannot be read", reason=str(error),
            way_out='give a JSON file with a list: ["Gelu+:1:-1"]',
        ) from error  # fmt: skip
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise OptionError(f"{path!r} holds no list of texts", way_out='write it as ["Gelu+:1:-1"]')
    return entries


def _cluster(text: str, name: str) -> ClusterRequest:
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not parts[0] or parts[1] not in ("0", "1", "2") or not re.fullmatch(r"-1|\d+", parts[2]):
        raise OptionError(
            f"{name} has {text!r}",
            way_out="write cluster:strategy:count: strategy 0 (keep), 1 or 2 (compute again), count from 0, or -1 for "
            "all; as 'Gelu+:1:-1'",
        )
    return ClusterRequest(parts[0], parts[1] != "0", int(parts[2]))
