"""The table from ATen operators to ONNX: one decorated function an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ontrain.internals import OpOverload, of

__all__ = ["aten", "entered", "find", "is_view", "operator_name", "table", "writes_first_only"]

Handler = Callable[..., Any]
Translation = TypeVar("Translation", bound=Handler)

table: dict[str, Handler] = {}
"""Translation functions by operator name, with or without overload: "add.Tensor", "linear"."""


def aten(*names: str) -> Callable[[Translation], Translation]:
    """Register the decorated function as the translation of ATen operators.

    It takes an `AtenBuilder` and the operator's arguments as ATen orders and names them: tensors as graph values,
    symbolic sizes as `Size`, all else as torch gives it. It returns a value, or a tuple or list as the operator does.

    Args:
        names: "linear" for all overloads, "add.Tensor" for one; other namespaces as "prims::name".
    """

    def register(handler: Translation) -> Translation:
        for name in names:
            assert name not in table, f"{name} is translated twice"
            table[name] = handler
        return handler

    return register


def entered(handlers: dict[str, Handler], *names: str) -> Callable[[Translation], Translation]:
    """Enter the decorated function into a table of translations for another kind of tensors, by names of operators."""

    def register(handler: Translation) -> Translation:
        handlers.update(dict.fromkeys(names, handler))
        return handler

    return register


def schema(target: OpOverload) -> Any:
    """Return what an operator takes and returns, and what it writes."""
    return of("torch._ops.OpOverload._schema", target)


def overload(target: OpOverload) -> str:
    """Return the name of an operator's overload."""
    return str(of("torch._ops.OpOverload._overloadname", target))


def operator_name(target: OpOverload) -> str:
    """Return "add" for aten::add.Tensor, "prims::add" in another namespace, the functional name of an in-place one.

    Of two names for the same operator it is the one that has the translation: "mul" for aten::multiply.
    """
    name: str = schema(target).name.removeprefix("aten::")
    if schema(target).is_mutable:
        name = f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")
    return _SYNONYMS.get(name, name)


def find(target: Any) -> Handler | None:
    """Return the translation of an operator; an in-place operator has that of its functional form."""
    if not isinstance(target, OpOverload):
        return None
    if not writes_first_only(target):
        return None
    name = operator_name(target)
    handler = table.get(f"{name}.{overload(target)}", table.get(name))
    if handler is not None:
        return handler
    # A graph has no memory to share: what copies is what views.
    same = name.removesuffix("_copy").removeprefix("prims::" if name in _SAME_PRIMS else "")
    return table.get(f"{same}.{overload(target)}", table.get(same)) if same != name else None


_SYNONYMS = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "multiply": "mul", "negative": "neg", "not_equal": "ne", "subtract": "sub",
}  # fmt: skip
"""torch's second names of operators, as it documents them: torch.multiply is torch.mul."""

_SAME_PRIMS = frozenset({
    "prims::abs", "prims::acos", "prims::acosh", "prims::add", "prims::asin", "prims::asinh", "prims::atan",
    "prims::atanh", "prims::ceil", "prims::cos", "prims::cosh", "prims::div", "prims::eq", "prims::erf",
    "prims::exp", "prims::floor", "prims::ge", "prims::gt", "prims::le", "prims::log", "prims::lt", "prims::mul",
    "prims::ne", "prims::neg", "prims::pow", "prims::remainder", "prims::reshape", "prims::sin", "prims::sinh",
    "prims::sqrt", "prims::sub", "prims::tan", "prims::tanh", "prims::where",
})  # fmt: skip


def is_view(target: Any) -> bool:
    """Whether the operator's result may share memory with an argument that it does not write."""
    if not isinstance(target, OpOverload):
        return False
    return any(out.alias_info is not None and not out.alias_info.is_write for out in schema(target).returns)


def writes_first_only(target: OpOverload) -> bool:
    """Whether an operator writes to its first argument, as `add_` does, or to none; with `out=` it writes elsewhere."""
    arguments = schema(target).arguments
    return not any(a.alias_info is not None and a.alias_info.is_write for a in arguments[1:])
