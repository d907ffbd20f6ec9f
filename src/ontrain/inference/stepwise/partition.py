"""Which nodes of a graph run together: regions, and steps between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum

import onnx_ir as ir

from ontrain.graph import reads
from ontrain.inference.stepwise.kernels.registry import find_kernel, runs_as_step
from ontrain.operators import Chance, record_of

__all__ = ["Kind", "Stage", "dying", "partition"]


class Kind(Enum):
    """How nodes run."""

    PLAN = "by plans"
    STEP = "as a step"
    ELSEWHERE = "by the next provider of the list"


@dataclass
class Stage:
    """Nodes of a graph in order: those of a region, one node that runs as a step, or what another provider runs."""

    nodes: list[ir.Node]
    kind: Kind


def partition(nodes: Sequence[ir.Node], lacks: Callable[[ir.Node], bool]) -> list[Stage]:
    """Return the nodes in stages, each of which reads what those before it make.

    Levels alternate: at an even one lie nodes that plans may hold together, at an odd one steps. A node lies at the
    first level where all it reads is there. If sizes, axes or modes of it are computed from data, they are made at a
    level before it, so that a plan has them as numbers; where it has a kernel that takes them as they come, it is a
    step. What the provider lacks lies among the steps.
    """
    level: dict[ir.Value, int] = {}
    from_data: set[ir.Value] = set()
    placed: dict[int, list[ir.Node]] = {}
    foreign: set[ir.Node] = set()
    for node in nodes:
        record = record_of(node)
        inner = reads(node)
        at = max((level.get(value, 0) for value in inner), default=0)
        settings = [node.inputs[i] for i in record.settings if i < len(node.inputs)]
        computed = [v for v in settings if v is not None and v in from_data]
        known = find_kernel(node)
        if lacks(node):
            foreign.add(node)
        if node in foreign or runs_as_step(node) or (computed and known is not None):
            at += 1 - at % 2
            from_data.update(node.outputs)
        else:
            at += at % 2
            if any(level.get(value) == at for value in computed):
                at += 2
            varies = record.chance is not Chance.NEVER or any(v in from_data or not _fixed(v, level) for v in inner)
            if varies and not record.reads_shape:
                from_data.update(node.outputs)
        placed.setdefault(at, []).append(node)
        level.update(dict.fromkeys(node.outputs, at))
    return list(_stages(placed, foreign))


def _stages(placed: Mapping[int, list[ir.Node]], foreign: Set[ir.Node]) -> Iterator[Stage]:
    """The nodes of each level, by levels: one plan, or steps, those together that the provider lacks."""
    for at, members in sorted(placed.items()):
        if at % 2 == 0:
            yield Stage(members, Kind.PLAN)
            continue
        for is_foreign, run in itertools.groupby(members, foreign.__contains__):
            if is_foreign:
                yield Stage(list(run), Kind.ELSEWHERE)
            else:
                yield from (Stage([node], Kind.STEP) for node in run)


def _fixed(value: ir.Value, level: dict[ir.Value, int]) -> bool:
    """Whether a value is a constant, or made by the graph; what comes from outside varies."""
    return value.const_value is not None or value in level


def dying(stages: Sequence[Iterable[ir.Value]], outputs: Iterable[ir.Value]) -> list[list[ir.Value]]:
    """Return for each stage, given as what it reads, the values that no later one reads, but for those kept."""
    seen, dead = set(outputs), []
    for values in reversed(stages):
        last = [value for value in dict.fromkeys(values) if value not in seen]
        seen.update(last)
        dead.append(last)
    return dead[::-1]
