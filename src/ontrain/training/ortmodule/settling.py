"""What a forward makes at its first call: tables of positions that grow, parameters that begin from the first batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ontrain.capture import GeneratorStates, flatten
from ontrain.internals import of

__all__ = ["carrying", "leaves_attributes", "settled"]

_PLAIN = (bool, int, float, str, type(None))


def settled(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], None] | None:
    """Give a module what its forward makes of a call once, where later calls find it made.

    That is a buffer of another shape or dtype, and what the first of two calls changes and the second does not:
    parameters, buffers, and plain attributes such as `self.initialized`. Copies of the module run the calls. All else
    stays as it is, such as statistics, counters and the random state.

    Returns:
        what undoes it; None if there is nothing of the kind, forward returns something else with it, or the module
        cannot be copied.
    """
    copied = _copied_if_possible(module, args, kwargs)
    if copied is None:
        return None
    double, call = copied
    start = _state(double)
    first, after = _run(double, call), _state(double)
    _run(double, call)
    last = _state(double)
    formed = {place: after[place] for place in start if _is_formed(start[place], after[place], last[place])}
    if not formed or any(_is_of_optimizer(start[place], value) for place, value in formed.items()):
        return None
    # What autograd holds of a buffer goes into no later call, or that would return something else.
    formed = {place: _plain(value) if place[1] == "buffer" else value for place, value in formed.items()}
    again, call = _copied(module, args, kwargs)
    _put(again, formed)
    begun = _state(again)
    second, end = _run(again, call), _state(again)
    if len(first) != len(second) or not all(map(_same, first, second)):
        return None
    if any(_form(begun[place]) != _form(end[place]) or _is_written(begun[place], end[place]) for place in begun):
        return None
    before = {place: value for place, value in _state(module).items() if place in formed}
    _put(module, formed)
    return lambda: _put(module, before)


def leaves_attributes(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether forward, run by a copy of the module, leaves all plain attributes as they were; False without a copy."""
    copied = _copied_if_possible(module, args, kwargs)
    if copied is None:
        return False
    double, call = copied
    start = _state(double)
    _run(double, call)
    after = _state(double)
    attributes = [{p: value for p, value in state.items() if p[1] == "attribute"} for state in (start, after)]
    return attributes[0] == attributes[1]


def carrying(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[_Name]) -> list[_Name]:
    """Return the attributes, of those that forward leaves tensors in, that change the result of the next call.

    Copies of the module run the call twice, each with one of the attributes put back in between.

    Args:
        module: stays as it is.
        args: positional arguments of the call.
        kwargs: its keyword arguments.
        names: the number of a submodule, and the attribute's name there.
    """
    try:
        expected = _again(module, args, kwargs, None)
        return [name for name in names if not _all_alike(expected, _again(module, args, kwargs, name))]
    except Exception:  # noqa: BLE001 - a module of the user's, which may hold what cannot be copied
        return []


def _again(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], name: _Name | None) -> list[torch.Tensor]:
    """The results of the second of two calls, before which one attribute is what it was before the first."""
    double, call = _copied(module, args, kwargs)
    before = None
    if name is not None:
        attributes = list(double.modules())[name[0]].__dict__
        before = attributes.get(name[1], _MISSING)
    _run(double, call)
    if name is not None:
        del attributes[name[1]]
        if before is not _MISSING:
            attributes[name[1]] = before
    return _run(double, call)


_MISSING = object()
_Name = tuple[int, str]
_Place = tuple[int, str, str]
"""The number of a submodule, which of its dictionaries it is, and the name there."""


def _copied(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[nn.Module, tuple[Any, Any]]:
    plain = [_plain(value) for value in args], {name: _plain(value) for name, value in kwargs.items()}
    left = [value for part in module.modules() for value in part.__dict__.values() if isinstance(value, torch.Tensor)]
    # What an earlier call has left in an attribute: torch copies no tensor that autograd has computed.
    computed = {id(tensor): tensor.detach().clone() for tensor in left if tensor.grad_fn is not None}
    return copy.deepcopy((module, plain), computed)


def _copied_if_possible(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, tuple[Any, Any]] | None:
    try:
        return _copied(module, args, kwargs)
    except Exception:  # noqa: BLE001 - what a module of the user's holds may refuse to be copied in any way
        return None


def _run(module: nn.Module, call: tuple[Any, Any]) -> list[torch.Tensor]:
    """Call a module; return the tensors of its result. The generators of random numbers stay as they are."""
    args, kwargs = copy.deepcopy(call)
    states = GeneratorStates()
    try:
        with torch.random.fork_rng(), torch.enable_grad():
            return flatten(module(*args, **kwargs))[0]
    finally:
        states.restore()


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
        if isinstance(value, torch.Tensor) and _form(own[name]) == _form(value):
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


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _form(value: Any) -> tuple[Any, ...] | None:
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else None


def _all_alike(results: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return len(results) == len(others) and all(map(_alike, results, others))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results are equal but for the order in which a device adds up."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.allclose(a.detach(), b.detach(), rtol=1e-4, atol=1e-6, equal_nan=True)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    return a.shape == b.shape and torch.allclose(a.detach(), b.detach(), rtol=0, atol=0, equal_nan=True)
