"""What a forward makes at its first call: tables of positions that grow, parameters that begin from the first batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ontrain.internals import of
from ontrain.training.ortmodule.trials import copied, detached, run

__all__ = ["leaves_attributes", "settled"]

_PLAIN = (bool, int, float, str, type(None))


_Place = tuple[int, str, str]
"""The number of a submodule, which of its dictionaries it is, and the name there."""


def settled(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], None] | None:
    """Give a module what its forward makes of a call once, where later calls find it made.

    That is a new buffer, one of another shape or dtype, and what the first of two calls changes and the second does
    not: parameters, buffers, and plain attributes such as `self.initialized`. Copies of the module run the calls. All
    else stays as it is, such as statistics, counters and the random state.

    Returns:
        what undoes it; None if there is nothing of the kind, forward returns something else with it, or the module
        cannot be copied.
    """
    copies = _copied_if_possible(module, args, kwargs)
    if copies is None:
        return None
    double, call = copies
    start = _state(double)
    first, after = run(double, call), _state(double)
    run(double, call)
    last = _state(double)
    formed = {place: after[place] for place in start if _is_formed(start[place], after[place], last[place])}
    new = {place: value for place, value in after.items() if place not in start and place[1] == "buffer"}
    formed |= new
    if not formed or any(_is_of_optimizer(start.get(place), value) for place, value in formed.items()):
        return None
    # What autograd holds of a buffer goes into no later call, or that would return something else.
    formed = {place: detached(value) if place[1] == "buffer" else value for place, value in formed.items()}
    again, call, _ = copied(module, args, kwargs)
    _put(again, formed)
    begun = _state(again)
    second, end = run(again, call), _state(again)
    if len(first) != len(second) or not all(map(_same, first, second)):
        return None
    if any(_form(begun[place]) != _form(end[place]) or _is_written(begun[place], end[place]) for place in begun):
        return None
    before = {place: value for place, value in _state(module).items() if place in formed}
    _put(module, formed)
    registered = _register(module, double, new)

    def undo() -> None:
        _put(module, before)
        for buffers, passing, name in registered:
            del buffers[name]
            passing.discard(name)

    return undo


def _register(
    module: nn.Module, double: nn.Module, new: Collection[_Place]
) -> list[tuple[dict[str, Any], set[str], str]]:
    """Let new buffers be left out of `state_dict` as those of a copy are; return where each of them is."""
    passing = "torch.nn.Module._non_persistent_buffers_set"
    parts, doubles = list(module.modules()), list(double.modules())
    registered = []
    for at, _, name in new:
        names = of(passing, parts[at])
        if name in of(passing, doubles[at]):
            names.add(name)
        registered.append((of("torch.nn.Module._buffers", parts[at]), names, name))
    return registered


def leaves_attributes(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether forward, run by a copy of the module, leaves all plain attributes as they were; False without a copy."""
    copies = _copied_if_possible(module, args, kwargs)
    if copies is None:
        return False
    double, call = copies
    start = _state(double)
    run(double, call)
    after = _state(double)
    attributes = [{p: value for p, value in state.items() if p[1] == "attribute"} for state in (start, after)]
    return attributes[0] == attributes[1]


def _copied_if_possible(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, tuple[Any, Any]] | None:
    try:
        return copied(module, args, kwargs)[:2]
    except Exception:  # noqa: BLE001 - what a module of the user's holds may refuse to be copied in any way
        return None


def _dictionaries(module: nn.Module) -> list[tuple[int, str, dict[str, Any]]]:
    parts = list(enumerate(module.modules()))
    return [
        *((at, "parameter", of("torch.nn.Module._parameters", part)) for at, part in parts),
        *((at, "buffer", of("torch.nn.Module._buffers", part)) for at, part in parts),
        *((at, "attribute", part.__dict__) for at, part in parts),
    ]


def _state(module: nn.Module) -> dict[_Place, Any]:
    """Parameters, buffers and plain attributes, as they are now."""
    return {
        (at, kind, name): copy.deepcopy(value) if isinstance(value, nn.Parameter) else _cloned(value)
        for at, kind, names in _dictionaries(module)
        for name, value in names.items()
        if kind != "attribute" or type(value) in _PLAIN
    }


def _cloned(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad) if value.is_leaf else value.clone()


def _put(module: nn.Module, values: Mapping[_Place, Any]) -> None:
    """Write values into a module, in place where a tensor has the shape and dtype."""
    names = {(at, kind): own for at, kind, own in _dictionaries(module)}
    for (at, kind, name), value in values.items():
        own = names[at, kind]
        if isinstance(value, torch.Tensor) and _form(own.get(name)) == _form(value):
            with torch.no_grad():
                own[name].copy_(value)
        else:
            own[name] = _cloned(value)


def _is_of_optimizer(start: Any, formed: Any) -> bool:
    """Whether an optimizer may hold what is formed anew: a parameter of another shape."""
    return isinstance(start, nn.Parameter) and _form(start) != _form(formed)


def _is_formed(start: Any, after: Any, last: Any) -> bool:
    return _form(start) != _form(after) or (not _same(start, after) and _same(after, last))


def _is_written(before: Any, after: Any) -> bool:
    return isinstance(before, nn.Parameter) and not _same(before, after)


def _form(value: Any) -> tuple[Any, ...] | None:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else None


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    return a.shape == b.shape and torch.allclose(a.detach(), b.detach(), rtol=0, atol=0, equal_nan=True)
