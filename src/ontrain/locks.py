"""Locks that a forked process finds open. Outside of the rooms: every room has something that threads share."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Lock", "in_turn"]


class Lock:
    """A lock that the thread which holds it may take again, and that a forked child finds open.

    A child has only the thread that forked. What another thread of the parent held would stay closed in it for good,
    so the child gets a new lock in its place. Whoever writes under such a lock finishes a value first and then puts it
    where others look: the child reads what is there.

    It may be taken again because the garbage collector calls `__del__` in the middle of anything.

    Args:
        holds_forks: a fork waits until the lock is free, for work that changes what a child would inherit half-done.
    """

    def __init__(self, *, holds_forks: bool = False) -> None:
        self._lock = threading.RLock()
        (_holding if holds_forks else _others).add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def open_in_child(self) -> None:
        """Make the lock anew if a thread that is gone held it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()  # nobody held it, or the thread that forked does and goes on
        else:
            self._lock = threading.RLock()


_holding: weakref.WeakSet[Lock] = weakref.WeakSet()
_others: weakref.WeakSet[Lock] = weakref.WeakSet()
_held: list[Lock] = []


def _before() -> None:
    for lock in list(_holding):
        lock.__enter__()
        _held.append(lock)


def _after() -> None:
    while _held:
        _held.pop().__exit__()


def _in_child() -> None:
    _after()
    for lock in list(_others):
        lock.open_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)


Class = TypeVar("Class", bound=type)


class _Turns:
    """The lock of each object of a class, made when first asked for."""

    def __init__(self) -> None:
        self._lock, self._of = Lock(), weakref.WeakKeyDictionary[Any, Lock]()

    def of(self, owner: Any) -> Lock:
        with self._lock:
            if owner not in self._of:
                self._of[owner] = Lock()
            return self._of[owner]


def in_turn(*names: str) -> Callable[[Class], Class]:
    """Return a decorator of a class: threads call these methods of one object one after the other."""

    def decorate(owner: Class) -> Class:
        turns = _Turns()
        for name in names:
            setattr(owner, name, _locked(getattr(owner, name), turns))
        return owner

    return decorate


def _locked(method: Callable[..., Any], turns: _Turns) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        with turns.of(self):
            return method(self, *args, **kwargs)

    return called
