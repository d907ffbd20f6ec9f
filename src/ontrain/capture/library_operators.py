"""Operators that a program registers by `torch.library.custom_op`: a trace holds what their Python code computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ontrain.capture.aten import find
from ontrain.capture.autograd import traced_here
from ontrain.internals import OpOverload, available, of

__all__ = ["LibraryOperators"]

_DEFINITION = "torch._library.custom_ops.CustomOpDef"


class LibraryOperators:
    """The autograd functions of such operators, of their code and of their registered backward.

    Operators that have a translation are left alone.
    """

    def __init__(self) -> None:
        self._functions = dict[Any, Callable[..., Any] | None]()

    def code(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return what is called in an operator's place; None for any other function, and where nothing is traced."""
        operator = getattr(function, "default", None) if _is_packet(function) else function
        if not (isinstance(operator, OpOverload) and traced_here()):
            return None
        if operator not in self._functions:
            self._functions[operator] = _code_of(operator)
        return self._functions[operator]


def _is_packet(function: object) -> bool:
    return type(function).__name__ == "OpOverloadPacket"


def _code_of(operator: OpOverload) -> Callable[..., Any] | None:
    """What a call of an operator does, in Python; None if that is not known."""
    definitions = available("torch._library.custom_ops.OPDEFS")
    schema = of("torch._ops.OpOverload._schema", operator)
    definition = None if definitions is None else definitions.get(schema.name)
    if definition is None or find(operator) is not None:
        return None
    if any(argument.kwarg_only for argument in schema.arguments):
        return None
    function = _function_of(definition, schema.name)

    def call(*args: Any, **named: Any) -> Any:
        rest = [named.get(a.name, a.default_value) for a in schema.arguments[len(args) :]]
        return function.apply(*args, *rest)

    return call


def _function_of(definition: Any, name: str) -> Any:
    """An operator's code and backward as an autograd function; without a backward, torch's derivative of the code."""
    kernels = of(f"{_DEFINITION}._backend_fns", definition)
    code = kernels.get("cpu") or kernels.get(None) or of(f"{_DEFINITION}._init_fn", definition)
    backward, setup = (of(f"{_DEFINITION}.{part}", definition) for part in ("_backward_fn", "_setup_context_fn"))

    def forward(*args: Any) -> Any:
        return code(*args)

    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        if setup is not None:
            setup(ctx=context, inputs=inputs, output=output)

    if backward is None:
        return _Plain(code)
    methods = {"forward": forward, "setup_context": setup_context, "backward": backward}
    namespace, _, short = name.partition("::")
    described = {"__module__": namespace, **{key: staticmethod(method) for key, method in methods.items()}}
    return type(short, (torch.autograd.Function,), described)


class _Plain:
    """The code of an operator that has no backward of its own."""

    def __init__(self, code: Callable[..., Any]) -> None:
        self.apply = code
