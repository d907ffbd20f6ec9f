"""What forward keeps from call to call in attributes, lists and dictionaries: inputs and outputs of the graph.

    self.hidden = self.cell(x, self.hidden.detach())
    self.average = 0.9 * self.average + 0.1 * y.detach().mean()

Each call reads the entry as it is then, so a loop may set it anew, and leaves there what the graph has computed.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ontrain.capture import (
    ALL,
    MISSING,
    MORE,
    Captured,
    Spec,
    Table,
    Write,
    flatten,
    plain_leaves,
    tables_of,
    unflatten,
    ways_to,
)
from ontrain.training.ortmodule.key import PLAIN

__all__ = ["KeptState", "KeptStateError", "Place", "kept_outputs", "places_of"]


@dataclass(frozen=True)
class Place:
    """An entry that forward reads and writes.

    Attributes:
        table: which has it.
        name: of the entry.
        ways: the entries by which forward comes to the table, and their values: where one is another, so is the table.
        is_number: whether forward computes a number there from one that it finds: both vary.
    """

    table: Table
    name: Any
    ways: Sequence[tuple[Table, Any, Any]] = ()
    is_number: bool = False

    @property
    def key(self) -> tuple[int, Any]:
        """What a watch knows the entry by, see `Write.place`."""
        return self.table.key, self.name

    def value(self) -> Any:
        """Return what is there now, `MISSING` if there is nothing."""
        return list(self.table.owner) if self.name is ALL else self.table.value(self.name)

    def argument(self) -> Any:
        """Return what is there as an argument of a call: a number that varies in a tensor."""
        value = self.value()
        if not self.is_number or type(value) not in (int, float):
            return _copied(value)
        return torch.tensor(value, dtype=torch.float64 if type(value) is float else torch.int64, device="cpu")

    def put(self, value: Any, *, within: bool = False) -> None:
        """Write to the entry, or into the dictionary or list that is there; of a number's tensor the number."""
        if self.is_number and isinstance(value, torch.Tensor):
            value = value.item()
        now = self.table.value(self.name) if within else MISSING
        if type(now) is dict and type(value) is dict:
            now.clear()
            now.update(value)
        elif type(now) is list and type(value) is list:
            now[:] = value
        else:
            self.table.put(self.name, value)


class KeptStateError(Exception):
    """Forward reads what the call before has left in objects.

    Args:
        places: the entries.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__(places)
        self.places = tuple(places)


def places_of(module: nn.Module, writes: Sequence[Write], known: Collection[Place]) -> list[Place]:
    """Return where forward keeps what its next call reads, as far as a graph can take it and leave it there.

    Args:
        module: whose forward writes.
        writes: those that the next call reads.
        known: places that are inputs already; forward comes to none of their tables as the module has them.
    """
    tables, taken = tables_of(module), {place.key for place in known}
    places = (_place(write, tables) for write in writes if write.is_repeatable or _has_structure(write))
    fitting = {place.key: place for place in places if place is not None and _is_passable(place.value())}
    return [place for key, place in fitting.items() if key not in taken]


def _place(write: Write, tables: Sequence[Table]) -> Place | None:
    table, name, ways = write.table, write.name, ways_to(write.table, tables)
    if write.is_number:
        return Place(table, name, ways, is_number=True)
    if isinstance(table.owner, deque) and table.owner.maxlen is not None:
        return Place(table, ALL, ways)
    if name is MORE or (name is ALL and write.length != len(table.entries())):
        return None  # a list that grows: each length would be captured anew
    if ways and type(table.owner) in (dict, list) and ways[0][0].has_attributes and _is_passable(table.owner):
        return Place(*ways[0][:2], ways[1:])  # the whole of it, so that a loop may begin with another one
    return Place(table, name, ways)


def _has_structure(write: Write) -> bool:
    """Whether the value consists of tensors and plain values: a result may be complex, which no write is."""
    return write.spec is not None and all(isinstance(leaf, PLAIN) for leaf in plain_leaves(write.spec))


def _is_passable(value: Any) -> bool:
    """Whether a value may be an argument: tensors, plain values, and groups of these."""
    tensors, spec = flatten(value)
    return all(tensor.layout is torch.strided for tensor in tensors) and all(
        leaf is MISSING or isinstance(leaf, PLAIN) for leaf in plain_leaves(spec)
    )


class _Values(dict[str, Any]):
    """By the numbers of places, whether forward wrote into the container that was there, and the value."""


class _Keeping(nn.Module):
    """A module as a function of what it finds in some entries, and of its arguments."""

    def __init__(self, module: nn.Module, places: Sequence[Place]) -> None:
        super().__init__()
        self.module, self.places = module, tuple(replace(place, ways=()) for place in places)

    def __deepcopy__(self, copies: dict[int, Any]) -> _Keeping:
        module = copy.deepcopy(self.module, copies)
        double = _Keeping(module, [replace(place, table=place.table.copy_in(copies)) for place in self.places])
        double.training = self.training
        return double

    def forward(self, state: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, _Values]:
        """Return the module's result, and what it leaves in the entries; these are then as they were."""
        before = [(place, place.value()) for place in self.places]
        contents = [_copied(value) for _, value in before]
        try:
            for number, place in enumerate(self.places):
                place.put(state.get(str(number), MISSING), within=True)
            begun = [place.value() for place in self.places]
            result = self.module(*args, **kwargs)
            left = [(was is place.value(), place.value()) for place, was in zip(self.places, begun, strict=True)]
            values = {str(number): pair for number, pair in enumerate(left) if pair[1] is not MISSING}
            return result, _Values({number: (within, _copied(value)) for number, (within, value) in values.items()})
        finally:
            for (place, value), content in zip(before, contents, strict=True):
                place.put(value)
                if type(value) in (dict, list):
                    place.put(content, within=True)


def _outside_of_inference(left: Any) -> Any:
    """What a call under torch.inference_mode leaves, for later calls that record gradients and write to it."""
    tensors, spec = flatten(left)
    with torch.inference_mode(False):
        return unflatten(spec, [tensor.clone() for tensor in tensors])


def _copied(value: Any) -> Any:
    """A value with containers of its own."""
    if value is MISSING or isinstance(value, (torch.Tensor, *PLAIN)):
        return value
    tensors, spec = flatten(value)
    return unflatten(spec, tensors)


class KeptState:
    """Runs a module whose state is in entries of objects.

    Args:
        module: whose forward it is.
        places: of the state.
        engine: makes what captures and runs a module, whose entries are these.
    """

    def __init__(self, module: nn.Module, places: Sequence[Place], engine: Callable[..., Any]) -> None:
        self._module, self._places = module, places
        self._keeping = _Keeping(module, places)
        self.engine = engine(self._keeping, places=places)

    def is_current(self) -> bool:
        """Whether the entries are still those that forward comes to."""
        return all(table.value(name) is value for place in self._places for table, name, value in place.ways)

    def __call__(self, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what forward returns, and leave what it leaves."""
        self._keeping.training = self._module.training
        values = {str(number): place.argument() for number, place in enumerate(self._places)}
        state = {number: value for number, value in values.items() if value is not MISSING}
        result, left = self.engine((state, args, dict(kwargs)), {})
        if torch.is_inference_mode_enabled():
            left = _outside_of_inference(left)
        for number, place in enumerate(self._places):
            within, value = left.get(str(number), (False, MISSING))
            place.put(value, within=within)
        return result


def kept_outputs(captured: Captured) -> list[str]:
    """Return the outputs of a graph that its next call reads."""
    return [name for name, is_state in zip(captured.output_names, _kept(captured.output_spec), strict=True) if is_state]


def _kept(spec: Spec, within: bool = False) -> list[bool]:
    """For each tensor of a result, whether it is part of what is left for the next call."""
    within = within or spec.type is _Values
    if spec.kind == "tensor":
        return [within]
    return [is_state for child in spec.children for is_state in _kept(child, within)]
