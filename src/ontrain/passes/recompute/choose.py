"""What to compute again so that a step fits a budget: the most bytes for the least time, where memory is fullest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.functions import Flops
from ontrain.passes.recompute.schedule import Profile, Schedule

__all__ = ["Choice", "choose"]

_ALIKE = 1.02
"""Candidates whose cost per byte differs by less are taken together, those that free memory for longest first."""


@dataclass
class Choice:
    """Roots that backward does not find in memory, and what follows from it.

    Attributes:
        dropped: the roots, in graph order.
        profile: of memory, with them computed again.
        flops: floating-point operations of computing them and what they need again.
    """

    dropped: tuple[ir.Value, ...]
    profile: Profile
    flops: Flops


@dataclass(frozen=True)
class _Candidate:
    root: ir.Value
    gain: int
    cost: int
    gap: int

    @property
    def price(self) -> float:
        return self.cost / self.gain


def choose(schedule: Schedule, budget: int, forced: Iterable[ir.Value] = ()) -> Choice:
    """Choose what to recompute until the predicted peak is at most `budget` bytes.

    At the node where most memory is in use, values that wait there for backward are dropped, the cheapest per byte
    first: cost is that of computing the value again from what is in memory anyway, and bytes are those that are freed
    there. In the end what turned out to be unnecessary is kept after all, the dearest first.

    Args:
        schedule: the graph.
        budget: bytes.
        forced: roots to drop in any case.

    Returns:
        The choice; if no choice fits, the one with the lowest peak that was met.
    """
    dropped = dict.fromkeys(root for root in forced if schedule.can_recompute(root))
    start = frozenset(dropped)
    profile = schedule.profile(dropped)
    best, least = tuple(dropped), profile
    while profile.peak > budget:
        candidates = _candidates(schedule, profile, dropped)
        if not candidates:
            break
        limit = min(candidate.price for candidate in candidates) * _ALIKE
        alike = sorted(
            (candidate for candidate in candidates if candidate.price <= limit), key=lambda candidate: -candidate.gap
        )
        excess = profile.peak - budget
        for candidate in alike:
            dropped[candidate.root] = None
            excess -= candidate.gain
            if excess <= 0:
                break
        profile = schedule.profile(dropped)
        if profile.peak < least.peak:
            best, least = tuple(dropped), profile
    dropped = dict.fromkeys(best)
    dropped, profile = _give_back(schedule, dropped, least, max(budget, least.peak), start)
    order = tuple(sorted(dropped, key=lambda root: schedule.position[schedule.producer(root)]))
    return Choice(order, profile, _flops(schedule, profile))


def _candidates(schedule: Schedule, profile: Profile, dropped: dict[ir.Value, None]) -> list[_Candidate]:
    """The roots that lie in memory at its fullest only because backward wants them later."""
    at, candidates = profile.at, []
    for root in schedule.crossing:
        wanted = profile.first_backward.get(root, -1)
        if root in dropped or root in profile.copies or not schedule.can_recompute(root) or wanted <= at:
            continue
        born = schedule.last_forward(root)
        if born >= at:
            continue
        gain, cost = _trade(schedule, profile, root, at, wanted)
        if gain > 0:
            candidates.append(_Candidate(root, gain, cost, wanted - born))
    return candidates


def _trade(schedule: Schedule, profile: Profile, root: ir.Value, at: int, wanted: int) -> tuple[int, int]:
    """Bytes that dropping a root frees at a node, and the cost of computing it again at the later one."""
    gain, cost = schedule.bytes_of(root), 0
    seen, work = {root}, [root]
    while work:
        value = work.pop()
        cost += schedule.cost(schedule.producer(value))
        for source in schedule.sources(value):
            if source in seen or source in profile.copies:
                continue
            seen.add(source)
            if profile.last_reads.get(source, -1) >= wanted or source in schedule.memory.lasting:
                continue
            if source in schedule.read_by_backward or schedule.keeps(source, value):
                # It lives on for the recomputation; where it would be gone already, that costs its bytes.
                gain -= schedule.bytes_of(source) if profile.last_reads.get(source, -1) < at else 0
            else:
                work.append(source)
    return gain, cost


def _give_back(
    schedule: Schedule, dropped: dict[ir.Value, None], profile: Profile, limit: int, start: frozenset[ir.Value]
) -> tuple[dict[ir.Value, None], Profile]:
    """Keep what need not be dropped for the peak to stay within the limit."""
    for root in sorted(dropped, key=lambda dropped_root: -schedule.cost(schedule.producer(dropped_root))):
        if root in start:
            continue
        rest = {other: None for other in dropped if other is not root}
        without = schedule.profile(rest)
        if without.peak <= limit:
            dropped, profile = rest, without
    return dropped, profile


def _flops(schedule: Schedule, profile: Profile) -> Flops:
    nodes = dict.fromkeys(schedule.producer(root) for root in profile.copies)
    return sum((schedule.flops(node) for node in nodes), Flops())
