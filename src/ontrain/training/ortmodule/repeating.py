"""What a call of a graph does to the Python objects that forward writes to: the same as a call of forward.

self.losses.append(loss)       # in each call
self.seen["hidden"] = hidden   # in each call
if self.mask is None:
    self.mask = mask           # in the first call, and the next ones find it
"""

from __future__ import annotations

import dis
import linecache
import warnings
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ontrain.capture import (
    ALL,
    MISSING,
    MORE,
    Captured,
    Items,
    Table,
    Write,
    held_by,
    line_text,
    tables_of,
    ways_to,
)
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.graph import follows_from_sizes_alone
from ontrain.training.ortmodule.counting import loads_of
from ontrain.training.ortmodule.courses import Course, Courses, courses, lasting
from ontrain.training.ortmodule.derived import deriving_hooks
from ontrain.training.ortmodule.kept_state import KeptStateError, Place, places_of
from ontrain.training.ortmodule.left import Left

__all__ = ["Repetition", "refuse_writes", "repetitions", "warn_of_arguments", "write_input"]

_EACH_OUT = "keep it in a buffer, self.register_buffer(name, torch.tensor(0)), or train with ORTModule"
_ONCE_OUT = (
    "call the model once before it is given to the trainer, so that it finds it written, or train with ORTModule"
)


_WEAK: Any = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


@dataclass(frozen=True)
class Repetition:
    """An entry that forward writes, and what a call of the graph does to it.

    Attributes:
        write: what the call of forward did that was captured.
        names: of the graph's outputs that the value consists of.
        course: what becomes of the entry.
        ways: the entries by which forward comes to the table, and their values: where one is another, so is the table.
        left: what calls leave for the next call, which would read it.
        replacement: what to write where the value is no tensor, size or plain value.
    """

    write: Write
    names: Sequence[str]
    course: Course
    ways: Sequence[tuple[Table, Any, Any]] = field(default=(), compare=False)
    left: Left | None = field(default=None, compare=False)
    replacement: Any = field(default=MISSING, compare=False)

    @property
    def is_of_list(self) -> bool:
        """Whether the entry is an item of a list, or items that are added to it."""
        return isinstance(self.write.table, Items)

    def apply(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Do what a call of forward does.

        Args:
            tensors: the values of `names`.
            sizes: of the call, by symbol.
        """
        write, course = self.write, self.course
        if course is Course.LOST:
            return
        if self.left is not None:
            self.left.leave(write.value(tensors, sizes) if write.is_repeatable else self.left)
            return
        value = write.value(tensors, sizes) if self.replacement is MISSING else self.replacement
        if course is Course.MORE:
            value = write.table.value(write.name) + value - write.before
        write.table.put(ALL if course is Course.ANEW else write.name, value)


def warn_of_arguments(captured: Captured) -> None:
    """Warn of the dictionaries and lists among the arguments of a call that forward changes.

    Warns:
        UserWarning: names the argument.
    """
    for name in captured.changed_arguments:
        warnings.warn(
            f"forward changes a dictionary or list that it gets in {name!r}; the caller's stays as it was: return what "
            "is new",
            stacklevel=6,
        )


def write_input(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write to an argument of the call what forward writes there in place.

    Warns:
        UserWarning: autograd follows the argument, which stays as it was.
    """
    if tensor.requires_grad:
        warnings.warn(
            "forward writes in place to an argument that requires gradients; a graph leaves it as it was: write to a "
            "clone of it",
            stacklevel=7,
        )
        return
    with torch.no_grad():
        (torch.view_as_real(tensor) if tensor.is_complex() else tensor).copy_(value)


def repetitions(
    module: nn.Module, captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any],
    counted: Collection[tuple[int, Any]], functions: Iterable[FunctionType], told: set[tuple[int, Any]],
    left: dict[tuple[int, Any], Left], known: Collection[Place] = (),
) -> list[Repetition]:  # fmt: skip
    """Return what calls of a module's graph do to Python objects.

    Args:
        module: stays as it is.
        captured: the module.
        args: positional arguments of the call.
        kwargs: its keyword arguments.
        counted: the entries that somebody else sees to, see `Write.place`.
        functions: all that forward may run of the user's and of the modules' classes.
        told: the entries that were warned of; more are added.
        left: what calls leave for the next call, by entry; more is added.
        known: entries that are inputs of the graph.

    Raises:
        KeptStateError: forward reads what the call before has left, and a graph can have it as an input.
        CaptureError: forward reads tensors of a list to which it has added them in the call before.

    Warns:
        UserWarning: a graph cannot write an entry, or is captured anew for each value of it.
    """
    own = [(w, names) for w, names in captured.written if w.place not in counted and not _is_derived(w)]
    # A module's mode is part of what a call is known by, and set anew by `model.train()`.
    modes = [Repetition(write, names, Course.EACH) for write, names in own if _is_mode(write)]
    written = [(write, names) for write, names in own if not _is_mode(write)]
    if not written:
        return modes
    writes, functions = [write for write, _ in written], list(functions)
    named = dict.fromkeys([*functions, *(part for part in held_by([module]) if type(part) is FunctionType)])
    _refuse_weak(module, writes, functions)
    seen = courses(module, args, kwargs, writes)
    if seen is None:
        seen = Courses([_by_names(write, named) for write in writes])
    carried = [write for write, course in zip(writes, seen.each, strict=True) if course is Course.CARRIED]
    if carried and (places := places_of(module, carried, known)):
        raise KeptStateError(places)
    tables, repeated = tables_of(module), modes
    for (write, names), course in zip(written, seen.each, strict=True):
        if course is Course.ONCE and names and not write.holds_numbers:
            course = _by_graph(captured, names)
        elif write.is_repeatable or write.is_bare:
            course = _by_code(write, course, functions)
        if write.is_bare and course in (Course.LOST, Course.EACH):  # no later call reads the object
            continue
        if course is Course.CARRIED and write.name in (ALL, MORE):
            raise Left(write).error(_line_naming(write.table, tables, functions))
        for_next = left.setdefault(write.place, Left(write)) if course is Course.CARRIED else None
        replacement = MISSING if write.is_repeatable else seen.objects.get(write.place, MISSING)
        repeated.append(Repetition(write, names, course, ways_to(write.table, tables), for_next, replacement))
        if write.place not in told:
            _tell(write, course, told)
    return repeated


def _refuse_weak(module: nn.Module, writes: Sequence[Write], functions: Sequence[FunctionType]) -> None:
    """Refuse a forward that writes to a container of a module's whose entries go with their keys or values.

    Raises:
        CaptureError: names it.
    """
    held = [(name, value) for part in module.modules() for name, value in vars(part).items()]
    weak = {id(value.data): (name, value) for name, value in held if isinstance(value, _WEAK)}
    for name, value in (weak[write.table.key] for write in writes if write.table.key in weak):
        raise CaptureError(
            f"forward writes to the {type(value).__name__} {name!r}",
            source=_first_line(functions, name),
            reason="a call of a graph cannot tell which of its entries are still there",
            way_out=f"keep what it holds in a dictionary or a set, under names of parameters or modules; or {BROKEN}",
        )


def _line_naming(table: Table, tables: Iterable[Table], functions: Iterable[FunctionType]) -> str | None:
    """Return "file.py:12: code" for the first line outside of __init__ that names the way to a table, if any does."""
    return next((_first_line(functions, name) for _, name, _ in ways_to(table, tables)[:1]), None)


def _first_line(functions: Iterable[FunctionType], name: object) -> str | None:
    """Return "file.py:12: code" for the first line outside of __init__ that has a name, if any has."""
    for function in (function for function in functions if function.__name__ != "__init__"):
        for step in dis.get_instructions(function.__code__):
            if step.argval == name and step.positions is not None and step.positions.lineno is not None:
                file, line = function.__code__.co_filename, step.positions.lineno
                return line_text(file, line, linecache.getline(file, line))
    return None


def refuse_writes(module: nn.Module, captured: Captured, args: Sequence[Any]) -> None:
    """Refuse a module that leaves tensors, or numbers that it computes with, in Python objects for its next call.

    Args:
        module: stays as it is.
        captured: the module; its graph repeats no writes.
        args: positional arguments of the call.

    Raises:
        CaptureError: it does.

    Warns:
        UserWarning: it leaves tensors there for others, or adds to a list.
    """
    writes = [write for write in captured.writes if not _is_derived(write) and not _is_mode(write)]
    if not writes:
        return
    seen = courses(module, args, {}, writes)
    each = [Course.EACH] * len(writes) if seen is None else seen.each
    first = [] if seen is None else lasting(module, args, {}, writes, seen)
    for write, course in zip(writes, each, strict=True):
        if course is Course.CARRIED:
            raise Left(write).error()
        if course is Course.VALUE or write in first:
            raise CaptureError(
                f"forward computes with {write}, which it writes itself",
                reason="a graph of whole steps repeats no writes, so each step would compute as the first",
                way_out=_ONCE_OUT if write in first else _EACH_OUT,
            )
        if course is not Course.ONCE and (write.holds_tensors or write.name in (ALL, MORE)):
            warnings.warn(
                f"forward writes to {write}, which stays as it was: a graph of whole steps repeats no writes. Describe "
                "the value as an output of the model, or train with ORTModule, which repeats them",
                stacklevel=9,
            )


def _is_mode(write: Write) -> bool:
    """Whether it is the mode of a module, training or evaluation, that forward sets."""
    return write.name == "training" and isinstance(write.table.owner, nn.Module)


def _is_derived(write: Write) -> bool:
    """Whether a hook of torch's own sets the attribute, which is called by itself."""
    owner = write.table.owner
    return isinstance(owner, nn.Module) and bool(deriving_hooks(owner))


def _by_graph(captured: Captured, names: Sequence[str]) -> Course:
    """The course of tensors that the next call finds: a table of positions or a mask is made anew for other sizes."""
    values = {str(value.name): value for value in captured.model.graph.outputs}
    return Course.EACH if all(follows_from_sizes_alone(values[name]) for name in names) else Course.ONCE


def _by_names(write: Write, named: Iterable[FunctionType]) -> Course:
    """The course of an entry of a module that cannot be called twice: it is read if code names it.

    Args:
        write: of the entry.
        named: all functions that forward can come to.
    """
    if not write.is_repeatable:
        return Course.LOST
    if write.name in (ALL, MORE) or (write.table.has_attributes and not loads_of(write.name, named)):
        return Course.EACH
    return Course.CARRIED if write.outputs else Course.VALUE


def _by_code(write: Write, course: Course, functions: Sequence[FunctionType]) -> Course:
    """The course of an attribute by who reads it: two calls with the same arguments do not tell all.

    Args:
        write: of the attribute.
        course: that two calls tell.
        functions: all that forward may run of the user's and of the modules' classes.
    """
    fixed = write.holds_tensors and not write.holds_numbers
    if fixed or not write.table.has_attributes or course not in (Course.ONCE, Course.MORE):
        return course
    loads = loads_of(write.name, functions)
    if course is Course.ONCE:
        return course if loads else Course.EACH
    return course if all(loads) and write.before is not MISSING else Course.VALUE


def _tell(write: Write, course: Course, told: set[tuple[int, Any]]) -> None:
    if course is Course.LOST:
        told.add(write.place)
        warnings.warn(f"forward {write.problem}", stacklevel=7)
    if course is Course.VALUE:
        told.add(write.place)
        warnings.warn(
            f"forward changes {write} from {write.before!r} to {write.after}: each other value of it is captured anew; "
            "keep it in a buffer, self.register_buffer(name, torch.tensor(0)), and compute with that",
            stacklevel=7,
        )
