"""Operators over lists of tensors, `torch._foreach_mul` and its like, as one operator for each place of the lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ontrain.internals import OpOverload, of

__all__ = ["over_lists"]

_PREFIX = "_foreach_"


def over_lists(operators: Iterable[OpOverload]) -> dict[OpOverload, Callable[..., Any]]:
    """Return how those of some operators that go over lists are written in operators of single tensors.

    Args:
        operators: that a program calls. Of those that write in place, which a program without writes has not, the
            entry is of what computes the same; those whose operator of single tensors is unknown have none.

    Source: https://docs.pytorch.org/docs/stable/torch.html#foreach-operations.
    """
    rows = ((_without_writes(op), _of_one_place(_without_writes(op))) for op in operators if op.namespace == "aten")
    return {target: functools.partial(_placewise, target, single) for target, single in rows if single is not None}


def _schema(target: OpOverload) -> Any:
    return of("torch._ops.OpOverload._schema", target)


def _without_writes(target: OpOverload) -> OpOverload:
    """The operator that returns what this one writes in place, if it has one; else this one."""
    name = _schema(target).name.partition("::")[2]
    if not name.startswith(_PREFIX) or not name.endswith("_"):
        return target
    overloads = getattr(torch.ops.aten, name[:-1], None)
    functional: OpOverload = getattr(overloads, of("torch._ops.OpOverload._overloadname", target), target)
    return functional


def _of_one_place(target: OpOverload) -> Callable[..., Any] | None:
    """What an operator over lists does to the tensors of one place; None if it is none, or writes in place."""
    schema = _schema(target)
    name = schema.name.partition("::")[2]
    if not name.startswith(_PREFIX) or schema.is_mutable:
        return None
    if name == "_foreach_norm":  # of all numbers of a tensor, which `norm` of one tensor has in another form
        return lambda self, ord, dtype: torch.linalg.vector_norm(self, ord, dtype=dtype)
    single = getattr(torch.ops.aten, name.removeprefix(_PREFIX), None)
    return None if single is None else functools.partial(_called, single)


def _placewise(target: OpOverload, single: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """Call an operator of single tensors with the values of each place; what is no list is the same for all."""
    expected = _schema(target).arguments
    named = {argument.name: value for argument, value in zip(expected, arguments, strict=False)} | options
    values: dict[str, Any] = {argument.name: named.get(argument.name, argument.default_value) for argument in expected}
    count = len(values[expected[0].name])
    return [
        single(**{name: value[place] if isinstance(value, (list, tuple)) else value for name, value in values.items()})
        for place in range(count)
    ]


def _called(single: Any, **values: Any) -> Any:
    """Call an operator with values in its arguments' order; what it takes by name alone is handed over by name."""
    forms = [_schema(getattr(single, overload)).arguments for overload in single.overloads()]
    arguments = next(form for form in forms if len(form) >= len(values))
    options = {argument.name: value for argument, value in zip(arguments, values.values(), strict=False)
               if argument.kwarg_only}  # fmt: skip
    return single(*list(values.values())[: len(values) - len(options)], **options)
