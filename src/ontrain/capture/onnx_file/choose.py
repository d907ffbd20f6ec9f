"""Which initializers of a file are trained, which stay, which are statistics, and which are mere constants."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.arguments import checked_names
from ontrain.errors import OptionError, nearest
from ontrain.operators import record_of

__all__ = ["Choice", "choose"]

_STATISTICS = (3, 4)


@dataclass(frozen=True)
class Choice:
    """Names of a file's initializers by what becomes of them, each in the file's order.

    Attributes:
        trained: updated by a step.
        frozen: weights that no step changes.
        statistics: running means and variances of batch normalisations.
        frozen_statistics: those of them that stay too, with their normalisation in inference form.
    """

    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    statistics: tuple[str, ...]
    frozen_statistics: frozenset[str]


def choose(graph: ir.Graph, trainable: Sequence[str] | None, frozen: Sequence[str]) -> Choice:
    """Sort the initializers of a graph.

    A weight is a floating-point initializer of at least one dimension that feeds an operator's data: not its scales,
    ratio, bounds or statistics. Scalars are settings until they are named.

    Args:
        graph: whose initializers are still there.
        trainable: names or patterns of what to train; None for every weight.
        frozen: names or patterns of what to leave, taken from `trainable`.

    A pattern is a name, a name with `*`, `?` and `[…]`, or "re:" and a regular expression for the whole name.

    Raises:
        OptionError: a pattern fits no initializer (the nearest names are shown), or names one that is no float.
    """
    weights, statistics = _weights(graph)
    floats = [n for n, v in graph.initializers.items() if v.dtype is not None and v.dtype.is_floating_point()]
    wanted = weights if trainable is None else _matches(graph, trainable, weights, floats, "train")
    left = _matches(graph, frozen, [*weights, *statistics], floats, "freeze")
    for name in wanted:
        if name in statistics and trainable is not None:
            raise OptionError(
                f"initializer {name!r} cannot be trained",
                reason="it is the running mean or variance of a batch normalisation, which training updates itself",
                way_out="leave it out of the names to train",
            )
    trained = {name for name in wanted if name not in left}
    untrained = [name for name in floats if name not in trained and (name in weights or name in left)]
    return Choice(
        tuple(name for name in floats if name in trained),
        tuple(name for name in untrained if name not in statistics),
        tuple(statistics),
        frozenset(name for name in statistics if name in left),
    )


def _weights(graph: ir.Graph) -> tuple[list[str], list[str]]:
    weights: list[str] = []
    statistics: list[str] = []
    for name, value in graph.initializers.items():
        if value.dtype is None or not value.dtype.is_floating_point() or value.dtype.bitwidth < 16:
            continue
        uses = [(use.node, use.idx) for use in value.uses()]
        if any(node.op_type == "BatchNormalization" and i in _STATISTICS for node, i in uses):
            statistics.append(name)
        elif value.shape is not None and len(value.shape) and 0 not in value.shape and any(map(_is_data, uses)):
            weights.append(name)
    return weights, statistics


def _is_data(use: tuple[ir.Node, int]) -> bool:
    node, index = use
    record = record_of(node)
    return index not in record.settings and index not in record.weightless


def _matches(
    graph: ir.Graph, patterns: Sequence[str], weights: Sequence[str], floats: Sequence[str], verb: str
) -> list[str]:
    """The names that the patterns fit; a plain name reaches every float initializer, a pattern weights only."""
    if isinstance(patterns, str):
        raise OptionError(f"{patterns!r} is one string", way_out=f"give a list of names or patterns to {verb}")
    names: dict[str, None] = {}
    for pattern in checked_names(f"the list of what to {verb}", patterns):
        if pattern in graph.initializers:
            if pattern not in floats:
                dtype = graph.initializers[pattern].dtype
                raise OptionError(
                    f"initializer {pattern!r} cannot be trained" if verb == "train" else f"{pattern!r} is no weight",
                    reason=f"it is of type {dtype.name.lower() if dtype is not None else 'unknown'}",
                    way_out="name floating-point initializers",
                )
            names[pattern] = None
            continue
        fits = [name for name in weights if _fits(pattern, name)]
        if not fits:
            others = [name for name in graph.initializers if _fits(pattern, name)]
            raise OptionError(
                f"no initializer to {verb} is called {pattern!r}",
                reason=f"only {', '.join(map(repr, others[:3]))} fits, which holds no weights" if others else None,
                way_out=f"nearest: {nearest(pattern, weights)}",
            )
        names.update(dict.fromkeys(fits))
    return list(names)


def _fits(pattern: str, name: str) -> bool:
    if not pattern.startswith("re:"):
        return fnmatch.fnmatchcase(name, pattern)
    try:
        return re.fullmatch(pattern.removeprefix("re:"), name) is not None
    except re.error as error:
        raise OptionError(f"{pattern!r} is no regular expression", reason=str(error)) from error
