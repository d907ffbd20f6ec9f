"""Where the other rooms get what torch does not promise: looked up, tried on a torch that is new, refused by name."""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import torch

from ontrain.errors import OntrainError
from ontrain.internals.row import TESTED, Finding, Row
from ontrain.internals.table import TABLE
from ontrain.locks import Lock

__all__ = [
    "answering_class",
    "available",
    "check_all",
    "injected",
    "lost_calls_refused",
    "mark_parameter",
    "of",
    "private",
    "replaced",
    "substituted",
    "version_of",
    "wrapped",
]

_ROWS: Mapping[str, Row] = {row.name: row for row in TABLE}
_ATTRIBUTES: Mapping[str, str] = {row.name: row.attribute for row in TABLE}
_objects: dict[str, Any] = {}
_replacing = Lock()


def private(name: str) -> Any:
    """Return what torch has under a name of the table.

    Raises:
        OntrainError: it is gone, or does something else in this torch.
    """
    try:
        return _objects[name]
    except KeyError:
        _objects[name] = checked = _checked(name)
        return checked


def available(name: str) -> Any:
    """Return what torch has under a name of the table, None if it is gone or does something else."""
    try:
        return _objects[name]  # asked for in each run
    except KeyError:
        return private(name) if _finding(name).holds else None


def of(name: str, instance: Any) -> Any:
    """Return an attribute of an object of torch's, which the table lists as "torch.Class.attribute".

    Raises:
        OntrainError: such objects have it no longer.
    """
    try:
        return getattr(instance, _ATTRIBUTES[name])
    except AttributeError as error:
        raise _refusal(Finding(_ROWS[name], "gone", str(error))) from None


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; 0 for one made in inference mode, where torch does not count."""
    return 0 if tensor.is_inference() else int(of("torch.Tensor._version", tensor))


def mark_parameter(tensor: torch.Tensor) -> None:
    """Let a tensor be an `nn.Parameter` to `isinstance`."""
    setattr(tensor, _ATTRIBUTES["torch.nn.Parameter._is_param"], True)


@contextmanager
def replaced(replacements: Mapping[str, Any]) -> Iterator[None]:
    """Have something else under names of the table, for a while, for the whole process.

    One thread at a time replaces: two that do so overlapping would leave each other's behind.

    Args:
        replacements: what to put there, by name. Other threads go on meanwhile, so it must ask who calls.

    Raises:
        OntrainError: a name is gone, or replacing it has no effect in this torch.
    """
    with _replacing, ExitStack() as stack:
        for name, replacement in replacements.items():
            if not _ROWS[name].of_instance:
                private(name)
            owner, _, attribute = name.rpartition(".")
            stack.enter_context(mock.patch.object(_walk(owner), attribute, replacement, create=_ROWS[name].of_instance))
        yield


@contextmanager
def substituted(substitutes: Iterable[tuple[object, str, Any]], *, new: bool = False) -> Iterator[None]:
    """Have something else as attributes of Python's own modules and classes, for a while, for the whole process.

    One thread at a time replaces, here as in `replaced`.

    Args:
        substitutes: the module or class, the attribute, and what to put there. It must ask which thread calls.
        new: whether there is nothing of that name otherwise.
    """
    with _replacing, ExitStack() as stack:
        for owner, attribute, substitute in substitutes:
            stack.enter_context(mock.patch.object(owner, attribute, substitute, create=new))
        yield


@contextmanager
def wrapped(wrappers: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Have something made of what is there under names of the table, as `replaced` does, where they hold.

    A name that does not hold stays as it is. Without it either torch itself refuses what hangs on it, or
    `lost_calls_refused` does.
    """
    # What is there is asked for in turn, too: it might be what another thread has put there for a while.
    with _replacing:
        # Within another call, that is what this thread has put there.
        holding = {name: wrap(_walk(name)) for name, wrap in wrappers.items() if available(name) is not None}
        with replaced(holding):
            yield


@contextmanager
def lost_calls_refused() -> Iterator[None]:
    """Refuse in this thread the calls that a row's `callers` stand for, where neither it nor another with them holds.

    Raises:
        OntrainError: from within the call.
    """
    lost = _lost_calls()
    if not lost:
        yield
        return

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in lost:
            raise _refusal(lost[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def injected(scopes: Iterable[dict[str, Any]], name: str, value: Any) -> Iterator[None]:
    """Give the globals of users' files a name that they lack, for a while."""
    with _replacing:
        lacking = [scope for scope in scopes if name not in scope]
        for scope in lacking:
            scope[name] = value
        try:
            yield
        finally:
            for scope in lacking:
                scope.pop(name, None)


@contextmanager
def answering_class(answers: Mapping[type, Callable[[Any], type]]) -> Iterator[None]:
    """Have the instances of classes name another class as their `__class__`, for a while, for the whole process.

    A class takes no attribute of that name, which would be its own class. So its dictionary gets the entry, and Python
    is told to forget what it looked up there.

    Args:
        answers: what names the class of an instance, by the class that it has. It must ask which thread calls.
    """
    with _replacing:
        tables = {kind: gc.get_referents(vars(kind))[0] for kind in answers}
        before = {kind: table.get("__class__") for kind, table in tables.items()}
        try:
            for kind, answer in answers.items():
                tables[kind]["__class__"] = property(answer)
                _forget_lookups(kind)
            yield
        finally:
            for kind, table in tables.items():
                del table["__class__"]
                table.update({} if before[kind] is None else {"__class__": before[kind]})
                _forget_lookups(kind)


def _forget_lookups(kind: type) -> None:
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def check_all() -> list[Finding]:
    """Try every row of the table, whatever the version of torch."""
    return [_try(row) for row in TABLE]


def _checked(name: str) -> Any:
    finding = _finding(name)
    if not finding.holds:
        raise _refusal(finding)
    return _at(_ROWS[name])


@cache
def _finding(name: str) -> Finding:
    """What can be said of a row: on a torch that was tested, whether it is there; on a newer one it is tried."""
    row = _ROWS[name]
    if _release() <= TESTED:
        return _presence(row)
    _warn_of_newer()
    return _try(row)


def _lost_calls() -> dict[CodeType, Finding]:
    """The code of public functions that hang on a name which does not hold."""
    guards: dict[str, list[Row]] = {}
    for row in TABLE:
        for caller in row.callers:
            guards.setdefault(caller, []).append(row)
    return {
        inspect.unwrap(_walk(caller)).__code__: _finding(rows[-1].name)
        for caller, rows in guards.items()
        if not any(_finding(row.name).holds for row in rows)
    }


def _presence(row: Row) -> Finding:
    # A newer release than was tested may have gone back.
    if _release() < row.since or (row.until is not None and row.until < _release() <= TESTED):
        return Finding(row, "of another release")
    if row.of_instance:
        return Finding(row, "there")
    try:
        _at(row)
    except (AttributeError, ImportError, RuntimeError) as error:
        return Finding(row, "gone", str(error))
    return Finding(row, "there")


def _try(row: Row) -> Finding:
    finding = _presence(row)
    if not finding.holds or row.canary is None:
        return finding
    if row.device == "cuda" and not torch.cuda.is_available():
        return Finding(row, "not tried")
    raised: list[str] = []

    def sing() -> None:
        try:
            with torch.random.fork_rng(devices=[]):
                row.canary(None if row.of_instance else _at(row))  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001 (whatever a torch that nobody has seen raises)
            raised.append(f"{type(error).__name__}: {error}".strip().splitlines()[0])

    # A thread of its own has none of the modes of a trace that may be under way.
    thread = threading.Thread(target=sing)
    thread.start()
    thread.join()
    return Finding(row, "changed", raised[0]) if raised else Finding(row, "works")


def _refusal(finding: Finding) -> OntrainError:
    row = finding.row
    what = "does something else with" if finding.state == "changed" else "has no"
    return OntrainError(
        f"torch {torch.__version__} {what} {row.name}, so this does not work: {row.refuses}",
        reason=f"it is there to {row.purpose} ({finding.reason})",
        way_out="install a torch that docs/dependencies.md lists; `ontrain env` shows what else this one lacks",
    )


@cache
def _warn_of_newer() -> None:
    newest = ".".join(map(str, TESTED))
    warnings.warn(
        f"torch {torch.__version__} is newer than any that ontrain was tested with, the newest of which is {newest}; "
        "each of its private functions is tried before it is used",
        stacklevel=2,
    )


def _release() -> tuple[int, int]:
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def _at(row: Row) -> Any:
    return _walk(row.name)


def _walk(name: str) -> Any:
    """The object of a dotted name; a module that nothing has imported yet is imported.

    A module goes before a function of its name, as torch.distributed.rendezvous is both.
    """
    first, *rest = name.split(".")
    owner: Any = {"torch": torch}[first]
    path = first
    for part in rest:
        path = f"{path}.{part}"
        if not hasattr(owner, part) and isinstance(owner, type(torch)):
            _import(path)
        owner = sys.modules[path] if path in sys.modules else getattr(owner, part)
    return owner


def _import(path: str) -> None:
    import importlib

    try:
        importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise


def _outlive_threads() -> None:
    """Have the stand-in for missing GPUs made by the thread that imports ontrain.

    In torch 2.11 it belongs to the thread that first enters a fake tensor mode. After that thread's end each
    backward pass reads memory that is no longer there.
    """
    row = _ROWS["torch._C._ensureCUDADeviceGuardSet"]
    if torch.version.cuda is not None and torch.cuda.device_count() == 0 and _presence(row).holds:
        _at(row)()


_outlive_threads()
