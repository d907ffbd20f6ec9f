"""What eager PyTorch writes to Python objects in two calls, one after the other; copies of a module run them.

Two calls tell what one does not: whether the second finds what the first has left, and whether a list grows.
"""

from __future__ import annotations

import copy
import functools
import io
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ontrain.capture import (
    ALL,
    MORE,
    ORDER,
    GeneratorStates,
    Table,
    Tables,
    Write,
    flatten,
    has_attributes,
    held_by,
    tables_of,
    unflatten,
)
from ontrain.internals import MODULE_HOOKS, of, without_dispatch_modes
from ontrain.training.inspection import inspects
from ontrain.training.ortmodule.noting import NotingList, NotingNumber

__all__ = ["Calls", "alike", "copied", "detached", "of_two_rows", "run", "two_calls"]


_SHARED = (type(threading.Lock()), type(threading.RLock()), threading.local, ContextVar, io.IOBase)
"""What cannot be copied, and may be another module's, too."""


@dataclass(frozen=True)
class Calls:
    """Two calls, of which the second may have found some entries as the first had.

    Attributes:
        results: the tensors that the second returns.
        before: of each table that is written to the entries before the first call, by the table's place.
        between: after it.
        after: after the second call.
        read: the written numbers, and the lists that were added to, which the second call has read; see `Write.place`.
        objects: those that the first call has left where a graph cannot write, by `Write.place`. What they refer to is
            the module's own.
    """

    results: list[torch.Tensor]
    before: Mapping[int, Mapping[Any, Any]]
    between: Mapping[int, Mapping[Any, Any]]
    after: Mapping[int, Mapping[Any, Any]]
    read: frozenset[tuple[int, Any]]
    objects: Mapping[tuple[int, Any], Any]


def two_calls(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], writes: Sequence[Write],
    restored: Sequence[Write] = (), *, disturbed: bool = False, other: bool = False, fewer: bool = False,
) -> Calls:  # fmt: skip
    """Run a call twice. The module, and objects beside it, stay as they are.

    Args:
        module: whose forward is called.
        args: positional arguments of the call.
        kwargs: its keyword arguments.
        writes: what forward writes.
        restored: those of them that are taken back between the calls.
        disturbed: whether the second call finds other values in the tensors that the first has left.
        other: whether the second call has other values in its arguments and in the parameters.
        fewer: whether its arguments have a row less.

    Raises:
        Exception: of any kind that forward raises, or a copy of what the module holds.
    """
    double, call, copies = copied(module, args, kwargs)
    tables = {write.table.key: write.table.copy_in(copies) for write in writes}

    ordered = {write.table.key for write in writes if write.name is ORDER}

    def entries() -> dict[int, dict[Any, Any]]:
        orders = {key: {ORDER: tables[key].value(ORDER)} for key in ordered}
        return {key: table.entries() | orders.get(key, {}) for key, table in tables.items()}

    outside, read = Tables(double), set[tuple[int, Any]]()
    lists = _lists(double, tables, writes, read)
    try:
        before = entries()
        run(double, call)
        between = entries()
        objects = _objects(writes, between, copies)
        for write in writes:
            if write in restored:
                replace(write, table=tables[write.table.key]).take_back(before[write.table.key])
            else:
                _mark(tables[write.table.key], write, between[write.table.key], read, disturbed=disturbed)
        if other:
            for parameter in double.parameters():
                parameter.data = _disturbed(parameter)
        read.clear()
        results = run(double, _of_other_values(call) if other else _of_fewer_rows(call) if fewer else call)
        return Calls(results, before, between, entries(), frozenset(read), objects)
    finally:
        for table, name, value in lists:
            table.put(name, value)
        outside.restore()


def _objects(
    writes: Sequence[Write], entries: Mapping[int, Mapping[Any, Any]], copies: dict[int, Any]
) -> dict[tuple[int, Any], Any]:
    """The values that a copy of the module has been given, with originals for copies among what they refer to."""
    originals = {id(copies[id(part)]): part for part in copies.get(id(copies), ()) if id(part) in copies}
    values = {}
    for write in writes:
        own = entries[write.table.key]
        if not write.is_repeatable and (write.name in own or write.name in (ALL, MORE)):
            value = write.of(own)
            with suppress(Exception):  # what autograd has computed is not copied
                double = copy.deepcopy(value, dict(originals))
                if double is not value or not has_attributes(type(value)):  # no object of which there is one alone
                    values[write.place] = double
    return values


def _lists(
    module: nn.Module, tables: dict[int, Table], writes: Sequence[Write], read: set[tuple[int, Any]]
) -> list[tuple[Table, Any, Any]]:
    """Put lists that note who reads them in the places of those that forward adds to; return what was there."""
    growing = [write for write in writes if write.name is MORE and type(tables[write.table.key].owner) is list]
    everywhere = tables_of(module) if growing else []
    held = [(table, name, value) for table in everywhere for name, value in table.entries().items()]
    before = []
    for write in growing:
        key = write.table.key
        owner = tables[key].owner
        noting = NotingList(owner, functools.partial(read.add, write.place))
        for holder, name, value in held:
            if value is owner:
                before.append((holder, name, owner))
                holder.put(name, noting)
        tables[key] = type(tables[key])(noting)
    return before


def _mark(table: Table, write: Write, entries: dict[Any, Any], read: set[tuple[int, Any]], *, disturbed: bool) -> None:
    """Put equal numbers, or other tensors, in the places of those that a call has written."""
    added = {MORE: list(entries)[-write.length :], ALL: list(entries)}
    for name in added.get(write.name, [write.name]):
        value = entries.get(name)
        tensors, spec = flatten(value)
        if type(value) is int:
            entries[name] = NotingNumber(value, functools.partial(read.add, write.place))
        elif disturbed and tensors:
            entries[name] = unflatten(spec, [_disturbed(tensor) for tensor in tensors])
        else:
            continue
        table.put(name, entries[name])


def _disturbed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() * 1.5 + 0.25 if tensor.is_floating_point() else tensor.clone()


def _of_other_values(call: tuple[Any, Any]) -> Any:
    """A call with other numbers; for indices, each time the last of those that are there."""
    tensors, spec = flatten(call)
    others = [_disturbed(t) if t.is_floating_point() or not t.numel() else _of_last(t) for t in tensors]
    return unflatten(spec, others)


def _of_fewer_rows(call: tuple[Any, Any]) -> Any:
    tensors, spec = flatten(call)
    return unflatten(spec, [tensor[:-1] if tensor.ndim and len(tensor) > 1 else tensor for tensor in tensors])


def of_two_rows(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return a call with the first two rows of all arguments that have as many rows as the first of them."""
    tensors, spec = flatten((args, kwargs))
    count = len(tensors[0]) if tensors and tensors[0].ndim else 0
    rows = [tensor.detach()[:2] if tensor.ndim and len(tensor) == count else tensor for tensor in tensors]
    small: tuple[Sequence[Any], Mapping[str, Any]] = unflatten(spec, rows)
    return small


def _of_last(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, tensor.flatten()[-1].item())


def copied(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, tuple[Any, Any], dict[int, Any]]:
    """Return copies of a module and of a call's arguments, and all copies by the place of the original."""
    plain = [detached(value) for value in args], {name: detached(value) for name, value in kwargs.items()}
    held = held_by([module])
    tensors = (part for part in held if isinstance(part, torch.Tensor))
    # What an earlier call has left in an object: torch copies no tensor that autograd has computed.
    copies: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in tensors if tensor.grad_fn is not None}
    shared = [part for part in held if isinstance(part, _SHARED)]
    files = [value for part in module.modules() for value in vars(part).values() if isinstance(value, ModuleType)]
    copies.update((id(part), part) for part in (*shared, *files))
    cells = _copy_functions([part for part in held if type(part) is FunctionType and part.__closure__], copies)
    double, call = copy.deepcopy((module, plain), copies)
    for cell, new in cells:
        _fill(new, cell, copies)
    _leave_unseen(double)
    return double, call, copies


def _copy_functions(functions: Sequence[FunctionType], copies: dict[int, Any]) -> list[tuple[CellType, CellType]]:
    """Add copies of functions that have variables of their own; return the variables, and those of the copies, empty.

    A hook may hold the module that way: `layer.register_forward_hook(lambda *_: model.seen.append(1))`.
    """
    cells = {id(cell): cell for function in functions for cell in function.__closure__ or ()}
    copies.update((place, CellType()) for place in cells)
    for function in functions:
        closure = tuple(copies[id(cell)] for cell in function.__closure__ or ())
        known = function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
        copies[id(function)] = double = FunctionType(*known)
        double.__kwdefaults__, double.__qualname__ = function.__kwdefaults__, function.__qualname__
        vars(double).update(vars(function))
    return [(cell, copies[place]) for place, cell in cells.items()]


def _fill(new: CellType, cell: CellType, copies: Mapping[int, Any]) -> None:
    """Give a variable what another one has, or the copy of it."""
    try:
        value = cell.cell_contents
    except ValueError:  # has no value yet
        return
    if isinstance(value, MethodType) and id(value.__self__) in copies:
        value = MethodType(value.__func__, copies[id(value.__self__)])
    new.cell_contents = copies.get(id(value), value)


def _leave_unseen(module: nn.Module) -> None:
    """Take the hooks away that tell somebody of each step."""
    for part in module.modules():
        for table in MODULE_HOOKS:
            hooks = of(f"torch.nn.Module.{table}", part)
            for number in [number for number, hook in hooks.items() if inspects(hook)]:
                del hooks[number]


def run(module: nn.Module, call: tuple[Any, Any]) -> list[torch.Tensor]:
    """Call a module; return the tensors of its result.

    The generators of random numbers stay as they are, and what counts the operators around a step sees none.
    """
    args, kwargs = copy.deepcopy(call)
    states = GeneratorStates()
    try:
        with torch.random.fork_rng(), torch.enable_grad(), without_dispatch_modes():
            return flatten(module(*args, **kwargs))[0]
    finally:
        states.restore()


def alike(results: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether two results are equal but for the order in which a device adds up."""
    return len(results) == len(others) and all(map(_alike, results, others))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.allclose(a.detach(), b.detach(), rtol=1e-4, atol=1e-6, equal_nan=True)


def detached(value: Any) -> Any:
    """Return a tensor as autograd does not follow it; any other value as it is."""
    return value.detach() if isinstance(value, torch.Tensor) else value
