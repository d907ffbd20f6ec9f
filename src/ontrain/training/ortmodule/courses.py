"""What becomes of an entry that forward writes: told from two calls of eager PyTorch, one after the other."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MemberDescriptorType
from typing import Any

import torch
from torch import nn

from ontrain.capture import ALL, MISSING, MORE, Write, flatten, is_same
from ontrain.training.ortmodule.trials import Calls, alike, of_two_rows, two_calls

__all__ = ["Course", "Courses", "courses", "lasting"]


class Course(Enum):
    """What becomes of an entry that forward writes."""

    EACH = "each call writes it, and none reads what the call before has left"
    MORE = "each call adds to the number that is there, and does not read it otherwise"
    ANEW = "each call makes the list anew"
    ONCE = "the next call finds it written"
    VALUE = "a number, text or the like that forward reads: the graph is for the value before"
    CARRIED = "the next call reads the tensors, or the items of a list, that the call before has left"
    LOST = "each call writes it, and a graph cannot"


@dataclass(frozen=True)
class Courses:
    """What becomes of entries.

    Attributes:
        each: the course of each entry.
        objects: what eager PyTorch leaves at the first call where a graph cannot write, see `Calls.objects`.
    """

    each: Sequence[Course]
    objects: Mapping[tuple[int, Any], Any] = field(default_factory=dict)


def courses(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], writes: Sequence[Write]
) -> Courses | None:
    """Return the course of each entry; None if the module cannot be copied, or its copy raises an error.

    Args:
        module: whose forward writes; it stays as it is.
        args: positional arguments of a call.
        kwargs: its keyword arguments.
        writes: what the call writes.
    """
    if _are_found_as_they_were(module, args, kwargs, writes):
        return Courses([Course.ONCE] * len(writes))
    call = functools.partial(two_calls, module, args, kwargs, writes)
    for disturbed in (True, False):  # forward may check what it reads, and raise an error
        try:
            calls, read = _compared(writes, functools.partial(call, disturbed=disturbed))
        except Exception:  # noqa: BLE001 - a module of the user's, which may hold what cannot be copied
            continue
        read = read or _read_by_other_calls(writes, call)
        each = [_course(write, calls, is_read=write in read) for write in writes]
        return Courses([_of_numbers(*pair, call) for pair in zip(writes, each, strict=True)], calls.objects)
    return None


def _are_found_as_they_were(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], writes: Sequence[Write]
) -> bool:
    """Whether forward writes nothing but plain values, which the next call leaves as they are.

    So it is with what a model notes of its task in its configuration. Small calls tell, which take little time.
    """
    if not all(write.is_repeatable and not write.holds_tensors and write.name not in (ALL, MORE) for write in writes):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calls = two_calls(module, *of_two_rows(args, kwargs), writes)
    except Exception:  # noqa: BLE001 - a module of the user's, which may need more rows
        return False
    return all(_plain(w, calls.between) is _plain(w, calls.after) is not _plain(w, calls.before) for w in writes)


def lasting(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], writes: Sequence[Write], seen: Courses
) -> list[Write]:
    """Return the entries that the first call alone writes, and by which later calls compute otherwise than the first.

    A flag, the number of a first call and a tensor of the first batch are such entries; a table of positions is none.

    Args:
        module: whose forward writes; it stays as it is.
        args: positional arguments of a call.
        kwargs: its keyword arguments.
        writes: what the call writes.
        seen: what becomes of the entries.
    """
    once = [write for write, course in zip(writes, seen.each, strict=True) if course is Course.ONCE]
    if not once:
        return []
    trial = functools.partial(two_calls, module, args, kwargs, writes)
    # Forward may refuse other values, and other sizes.
    lasting = _lasting(once, functools.partial(trial, other=True))
    if lasting is None:
        lasting = _lasting(once, trial)
    if not lasting and any(write.holds_sizes for write in once):
        lasting = _lasting(once, functools.partial(trial, fewer=True))
    return lasting or []


def _lasting(once: list[Write], call: Callable[..., Calls]) -> list[Write] | None:
    """Return the entries by which the second of two calls returns something else; None if one raises an error."""
    try:
        results = call().results
        if alike(results, call(once).results):
            return []
        return [write for write in once if _returns_others(call, write, results)] or once
    except Exception:  # noqa: BLE001 - a module of the user's, as above
        return None


def _returns_others(call: Callable[..., Calls], write: Write, results: Sequence[torch.Tensor]) -> bool:
    """Whether a second call that finds one entry as the first found it returns something else."""
    try:
        return not alike(results, call([write]).results)
    except Exception:  # noqa: BLE001 - one entry without another that belongs to it
        return False


def _compared(writes: Sequence[Write], call: Callable[..., Calls]) -> tuple[Calls, list[Write]]:
    """Two calls, and the entries of which the second depends on what the first has left."""
    calls = call()
    if _agree(calls, call(writes), writes):
        return calls, []
    read = [write for write in writes if _depends_on(write, calls, call)]
    return calls, read or list(writes)


def _read_by_other_calls(writes: Sequence[Write], call: Callable[..., Calls]) -> list[Write]:
    """The entries on which a second call with other values depends: a running mean of one batch is that of two."""
    if all(write.holds_tensors and not write.holds_numbers for write in writes):
        return []
    try:
        return _compared(writes, functools.partial(call, other=True))[1]
    except Exception:  # noqa: BLE001 - forward may refuse other values
        return []


def _of_numbers(write: Write, course: Course, call: Callable[..., Calls]) -> Course:
    """The course of a number that two equal calls leave equal: other values tell whether the second call writes it."""
    if course is not Course.ONCE or not write.holds_numbers:
        return course
    try:
        return _course(write, call(other=True), is_read=False)
    except Exception:  # noqa: BLE001 - forward may refuse other values
        return course


def _depends_on(write: Write, calls: Calls, call: Callable[..., Calls]) -> bool:
    """Whether a second call does something else, be it to fail, if it finds one entry as the first found it."""
    try:
        return not _agree(calls, call([write]), [write])
    except Exception:  # noqa: BLE001 - one entry without another that belongs to it
        return True


def _agree(calls: Calls, restored: Calls, compared: Sequence[Write]) -> bool:
    """Whether second calls return the same, and write the same tensors, and numbers out of tensors, to some entries."""
    if not alike(calls.results, restored.results):
        return False
    for write in compared:
        (tensors, spec), (others, other_spec) = flatten(_value(write, calls)), flatten(_value(write, restored))
        if not alike(tensors, others) or (write.holds_numbers and spec != other_spec):
            return False
    return True


def _value(write: Write, calls: Calls) -> Any:
    return write.of(calls.after[write.table.key])


def _plain(write: Write, entries: Mapping[int, Mapping[Any, Any]]) -> Any:
    """What code reads in the place of an entry."""
    return entries[write.table.key].get(write.name, _of_class(write))


def _course(write: Write, calls: Calls, *, is_read: bool) -> Course:
    before, between, after = (entries[write.table.key] for entries in (calls.before, calls.between, calls.after))
    if write.name in (ALL, MORE):
        course = _course_of_list(write, list(before.values()), list(between.values()), list(after.values()))
    else:
        values = (entries.get(write.name, MISSING) for entries in (between, after))
        course = _course_of_value(write, before.get(write.name, _of_class(write)), *values, is_read=is_read)
    if course is Course.ONCE and (write.is_repeatable or write.place in calls.objects):
        return course
    grows = write.name in (ALL, MORE) and course not in (Course.ANEW, Course.ONCE)
    if is_read and (write.outputs or not write.is_repeatable or grows):
        return Course.CARRIED
    if not write.is_repeatable:
        return Course.LOST
    if write.place in calls.read and course is not Course.ANEW:
        return Course.LOST if write.name in (ALL, MORE) else Course.VALUE
    return course


def _course_of_list(write: Write, before: list[Any], between: list[Any], after: list[Any]) -> Course:
    if len(between) == len(after) and all(a is b for a, b in zip(between, after, strict=True)):
        return Course.ONCE
    limit = getattr(write.table.owner, "maxlen", None)
    rest = after[: -write.length]
    lost = len(between) - len(rest) if len(after) == limit else 0
    grows = len(between) - lost == len(rest) and all(a is b for a, b in zip(between[lost:], rest, strict=True))
    if write.name is ALL or grows or before:
        return Course.EACH
    return Course.ANEW  # what looked like a list that grows was empty before the first call


def _of_class(write: Write) -> Any:
    """What code reads where an object has no attribute of its own yet."""
    value = getattr(type(write.table.owner), str(write.name), MISSING) if write.table.has_attributes else MISSING
    return MISSING if isinstance(value, MemberDescriptorType) else value


def _course_of_value(write: Write, before: Any, between: Any, after: Any, *, is_read: bool) -> Course:
    if before is between is after:  # two calls wrote nothing: an object behind it makes copies by a way of its own
        return Course.EACH
    if between is after or (write.holds_tensors and is_same(between, after)):
        return Course.ONCE
    if write.holds_tensors:
        return Course.EACH
    if is_read:
        return Course.VALUE
    if not (_is_number(before) and _is_number(between) and _is_number(after)):
        return Course.EACH if between == after else Course.LOST if isinstance(between, bytes) else Course.VALUE
    if between == after:
        return Course.EACH
    return Course.MORE if after - between == between - before else Course.VALUE


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
