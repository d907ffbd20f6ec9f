"""Who of the processes is still there: found out when a collective fails, by asking each of the others."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ontrain.distributed.presence import Peer, Responder, State, Verdict, ask, named
from ontrain.errors import ProcessError

__all__ = ["Liveness", "patience"]

_PATIENCE = (3.0, 5.0)
"""Seconds, at least and at most, that a process has for an answer."""
_PAUSE = 0.1

_STEPS = (
    "all processes must make the same number of steps, and save, at the same times; "
    "for slow ones raise the option distributed.timeout"
)
_FIRST_ERROR = "look for the first error in its own output, and go on from the last checkpoint"


def patience(timeout: float) -> float:
    """Return the seconds to wait for an answer where the others are waited for `timeout` seconds."""
    return min(max(timeout / 4, _PATIENCE[0]), _PATIENCE[1])


class Liveness:
    """What one process knows of the others.

    Args:
        responder: what answers for this process.
        peers: all processes, by rank.
        timeout: seconds that the others are waited for.
    """

    def __init__(self, responder: Responder, peers: Sequence[Peer], timeout: float) -> None:
        self._responder, self._peers, self._patience = responder, list(peers), patience(timeout)

    @property
    def is_over(self) -> bool:
        """Whether a process, this or another, has found that the run cannot go on."""
        return self._responder.verdict is not None

    def begin(self) -> None:
        """Count a collective that begins."""
        self._responder.collectives += 1

    def explain(self, doing: str, error: BaseException | None = None, *, met: bool = True) -> ProcessError:
        """Find out which process is to blame, after `doing` something with the others failed; takes some seconds.

        The others are told before this returns: who reads the error ends next, and must not be taken for the cause.

        Args:
            doing: what failed.
            error: what it failed with; None where another process has found out that the run cannot go on.
            met: whether all processes know where the others are. Some that do not may have ended without a word.
        """
        responder = self._responder
        responder.noticed = True
        verdict, silent = responder.verdict, set[int]()
        end = time.monotonic() + self._patience
        while verdict is None:
            answers = ask(responder, self._others(), self._patience)
            silent = {rank for rank, answer in answers.items() if answer is State.SILENT}
            verdict = responder.verdict
            ended = [rank for rank, answer in answers.items() if answer is State.ENDED]
            if verdict is None and ended and (met or not silent):
                verdict = Verdict(State.ENDED, tuple(ended))  # certain; what does not answer may only be slow to
            elif verdict is None and silent:
                verdict = Verdict(State.SILENT, tuple(sorted(silent)))
            elif verdict is None and time.monotonic() > end:
                own = responder.collectives
                behind = [
                    rank for rank, answer in answers.items()
                    if not isinstance(answer, State) and answer["collectives"] < own
                ]  # fmt: skip
                verdict = Verdict(State.BEHIND, tuple(behind)) if behind else Verdict(State.LOST, ())
            elif verdict is None:
                time.sleep(_PAUSE)  # one that ends may answer until it has
        verdict = responder.settle(verdict)
        ask(responder, [peer for peer in self._others() if peer.rank not in silent], self._patience)
        # One that goes on after all finds the message, too.
        ask(responder, [peer for peer in self._others() if peer.rank in silent], _PAUSE)
        return self._error(verdict, doing, error)

    def _others(self) -> list[Peer]:
        return [peer for peer in self._peers if peer.rank != self._responder.rank]

    def _error(self, verdict: Verdict, doing: str, error: BaseException | None) -> ProcessError:
        own, size, several = self._responder.rank, self._responder.size, len(verdict.ranks) > 1
        said = "another process gave up" if error is None else _first_line(error)
        reason = f"{doing} failed: {said}"
        if own in verdict.ranks:
            return ProcessError(
                f"the others waited in vain for this process, rank {own} of {size}",
                reason="it did not answer them: it was stopped, or hung" if verdict.state is State.SILENT else reason,
                way_out=_STEPS,
            )
        who = f"{named(verdict.ranks)} of {size}"
        if verdict.state is State.ENDED:
            return ProcessError(
                f"{who} {'have' if several else 'has'} died or ended ({self._places(verdict.ranks)})",
                reason=reason, way_out=_FIRST_ERROR,
            )  # fmt: skip
        if verdict.state is State.SILENT:
            return ProcessError(
                f"{who} {'do' if several else 'does'} not answer ({self._places(verdict.ranks)})",
                reason=f"{reason}; stopped by a signal or a debugger, hung in a call that keeps Python's lock, or on a "
                "machine that cannot be reached",
                way_out="end what is left of it, and go on from the last checkpoint; "
                "for one that comes back by itself raise the option distributed.timeout",
            )
        if verdict.state is State.BEHIND:
            return ProcessError(
                f"{who} did not take part ({self._places(verdict.ranks)})",
                reason=f"{reason}; {'they are' if several else 'it is'} alive",
                way_out=_STEPS,
            )
        return ProcessError(
            "the processes lost each other", reason=f"{reason}; all of them are alive",
            way_out="look at the network between their machines; for slow ones raise the option distributed.timeout",
        )  # fmt: skip

    def _places(self, ranks: Sequence[int]) -> str:
        places = {peer.rank: f"process {peer.process} on {peer.host}" for peer in self._peers}
        return ", ".join(places[rank] for rank in ranks)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].partition(". This is typically")[0]
