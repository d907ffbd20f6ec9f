"""How a process says that it runs: it answers at a socket of its own, so that asking after one depends on no other.

    who asks ── {token, noticed, verdict} ──▶ who is asked
             ◀── {collectives, noticed, verdict} ──

One line of JSON each way. A process that has ended refuses the connection; one that stands still accepts it, as its
kernel does that, and never answers.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

__all__ = ["Peer", "Responder", "State", "Verdict", "ask", "fall_silent", "named"]

_LONGEST = 1 << 16
_AT_ONCE = 64
_STRANGER = 2.0
"""Seconds in which whoever connects must say what it wants."""
_responders: weakref.WeakSet[Responder] = weakref.WeakSet()


class State(Enum):
    """What is the matter with a process."""

    ENDED = "ended"
    SILENT = "silent"
    BEHIND = "behind"
    LOST = "lost"
    """Nothing that can be seen from here: the connection to it broke."""


@dataclass(frozen=True)
class Verdict:
    """Which processes ended a run, and why it is thought so; the first one holds for all."""

    state: State
    ranks: tuple[int, ...]

    def to_json(self) -> list[Any]:
        """Return what `read` takes."""
        return [self.state.value, *self.ranks]

    @staticmethod
    def read(value: Any, size: int) -> Verdict | None:
        """Return the verdict that a message holds; None where it holds none that makes sense."""
        if not isinstance(value, list) or not value or value[0] not in {state.value for state in State}:
            return None
        ranks = tuple(rank for rank in value[1:] if isinstance(rank, int) and 0 <= rank < size)
        return Verdict(State(value[0]), ranks)


@dataclass(frozen=True)
class Peer:
    """Where a process runs and answers.

    Attributes:
        rank: its number.
        host, process: the machine's name, and the number of the process on it.
        address, port: where it answers.
        token: what a question must hold: anybody may connect, only the others of the run may ask.
    """

    rank: int
    host: str
    process: int
    address: str
    port: int
    token: str

    def to_json(self) -> dict[str, Any]:
        """Return the arguments that make it."""
        return asdict(self)


class Responder:
    """Answers for this process, on a thread of its own, until it is closed.

    Args:
        rank, size: of this process and of all.

    Attributes:
        collectives: how many this process has begun.
        noticed: whether one of them failed here.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.collectives, self.noticed = 0, False
        self._verdict: Verdict | None = None
        self._lock = threading.Lock()
        self._token = secrets.token_hex(16)
        self._listener = _listen()
        self._process = os.getpid()
        # The thread knows this object by a weak reference only: who forgets a world need not close it.
        threading.Thread(
            target=_serve, args=(self._listener, weakref.ref(self)), name="ontrain presence", daemon=True
        ).start()
        weakref.finalize(self, _close, self._listener)
        _responders.add(self)

    def peer(self, address: str) -> Peer:
        """Return where this process is found, as the others reach this machine at `address`."""
        port = self._listener.getsockname()[1]
        return Peer(self.rank, socket.gethostname(), self._process, address, port, self._token)

    @property
    def verdict(self) -> Verdict | None:
        """What was found out about this run, here or by another process; None as long as it goes on."""
        return self._verdict

    def settle(self, verdict: Verdict) -> Verdict:
        """Let a finding hold unless there is one already; return the one that holds."""
        with self._lock:
            if self._verdict is None:
                self._verdict = verdict
            return self._verdict

    def question(self) -> dict[str, Any]:
        """Return what this process tells another when it asks."""
        verdict = self._verdict
        return {"noticed": self.noticed, "verdict": None if verdict is None else verdict.to_json()}

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take over what another process has found out."""
        verdict = Verdict.read(message.get("verdict"), self.size)
        if verdict is not None:
            self.settle(verdict)

    def _answer(self, line: bytes) -> bytes | None:
        message = _parsed(line)
        if not hmac.compare_digest(str(message.get("token", "")).encode(), self._token.encode()):
            return None
        self.hear(message)
        return _line({**self.question(), "collectives": self.collectives})


def ask(responder: Responder, peers: Iterable[Peer], patience: float) -> dict[int, State | dict[str, Any]]:
    """Ask processes whether they run, and tell them what is known here.

    Args:
        responder: of this process.
        peers: whom to ask.
        patience: seconds to wait for an answer.

    Returns:
        For each rank its answer: `collectives`, `noticed` and `verdict`. Or that it is ENDED, or SILENT.
    """
    peers = list(peers)
    if not peers:
        return {}
    question, here = responder.question(), socket.gethostname()
    with ThreadPoolExecutor(min(len(peers), _AT_ONCE), thread_name_prefix="ontrain asks") as pool:
        answers = list(pool.map(lambda peer: _ask(peer, question, here, patience), peers))
    for answer in answers:
        if not isinstance(answer, State):
            responder.hear(answer)
    return {peer.rank: answer for peer, answer in zip(peers, answers, strict=True)}


def fall_silent() -> None:
    """Answer nobody any more: this process is about to end, and shall look so before its connections break."""
    for responder in list(_responders):
        _close(responder._listener)


def named(ranks: Iterable[int]) -> str:
    """Ranks as an error names them: "rank 1", "ranks 1, 3"."""
    ranks = list(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _ask(peer: Peer, question: Mapping[str, Any], here: str, patience: float) -> State | dict[str, Any]:
    address = "127.0.0.1" if peer.host == here else peer.address
    try:
        with socket.create_connection((address, peer.port), timeout=patience) as connection:
            connection.sendall(_line({**question, "token": peer.token}))
            with connection.makefile("rb") as file:
                line = file.readline(_LONGEST)
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return State.ENDED
    except OSError:  # too late, or no way there
        return State.SILENT
    answer = _parsed(line)
    # Another program may have been given the port of one that ended.
    return answer if isinstance(answer.get("collectives"), int) else State.ENDED


def _listen() -> socket.socket:
    """A socket at a free port, for both versions of the protocol where the machine has them."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
        except OSError:  # the kernel knows of the sixth version, and this machine has no address of it
            pass
    return socket.create_server(("", 0), backlog=128)


def _serve(listener: socket.socket, responder: weakref.ref[Responder]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        # One that connects and says nothing holds up nobody else.
        threading.Thread(target=_reply, args=(connection, responder), daemon=True).start()


def _reply(connection: socket.socket, responder: weakref.ref[Responder]) -> None:
    try:
        with connection:
            connection.settimeout(_STRANGER)
            with connection.makefile("rb") as file:
                line = file.readline(_LONGEST)
            present = responder()
            answer = present._answer(line) if present is not None else None
            if answer is not None:
                connection.sendall(answer)
    except OSError:
        return  # it has gone again


def _close(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not everywhere can a socket that listens be shut down
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
    listener.close()


def _close_in_child() -> None:
    """A forked child must not hold the ports of a process that may end before it."""
    for responder in list(_responders):
        responder._listener.close()


os.register_at_fork(after_in_child=_close_in_child)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
