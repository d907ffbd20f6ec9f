"""What torch.autocast casts inside of a composite operator, cast before it: the operator itself stays whole.

    einsum(x, y)                     →   einsum(x.to(bfloat16), y.to(bfloat16))
    cross_entropy_loss(scores, …)    →   cross_entropy_loss(scores.to(float32), …)        on a GPU

Autocast's lists name the operators that such a one is made of. In a graph it is one call. Where the call by itself has
a result of another dtype than under autocast, its operands are cast to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ontrain.capture.arrays import HALF_DTYPES
from ontrain.capture.aten.registry import find, schema
from ontrain.internals import HigherOrderOperator, OpOverload, available, of

__all__ = ["cast_before"]

Cast = tuple[str, torch.dtype] | None
"""The device and the dtype of an autocast that is on."""


def cast_before(module: fx.GraphModule) -> None:
    """Cast the operands of composite operators in a program's blocks under autocast."""
    _cast_in(module, None, {})


def _cast_in(module: fx.GraphModule, cast: Cast, known: dict[Any, torch.dtype | None]) -> None:
    for node in list(module.graph.nodes):
        if isinstance(node.target, HigherOrderOperator):
            inner = cast
            if str(of("torch._ops.HigherOrderOperator._name", node.target)) == "wrap_with_autocast":
                inner = (node.args[0], node.args[1]) if node.args[2] else None
            for block in _blocks(module, node):
                _cast_in(block, inner, known)
        elif cast is not None and _casts_inside(node.target, cast[0]):
            key = node.target, *(str(fx.map_arg(part, _dtype)) for part in (node.args, node.kwargs))
            if key not in known:
                known[key] = _unlike_eager(node, cast)
            dtype = known[key]
            if dtype is not None:
                _cast_operands(node, dtype)
    module.recompile()


def _dtype(operand: fx.Node) -> Any:
    return str(getattr(operand.meta.get("val"), "dtype", None))


def _blocks(module: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    for operand in node.args:
        block = getattr(module, str(operand.target), None) if isinstance(operand, fx.Node) else None
        if isinstance(block, fx.GraphModule):
            yield block


def _casts_inside(target: Any, device: str) -> bool:
    """Whether an operator is translated whole, made of others, and unknown to autocast itself."""
    if not isinstance(target, OpOverload) or find(target) is None:
        return False
    name, key = schema(target).name, {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}.get(device)
    has_kernel = available("torch._C._dispatch_has_kernel_for_dispatch_key")
    if key is None or has_kernel is None:
        return False
    name = f"{name}.{schema(target).overload_name}".removesuffix(".")
    return bool(has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, key))


def _unlike_eager(node: fx.Node, cast: tuple[str, torch.dtype]) -> torch.dtype | None:
    """The dtype of eager's result, where the operator by itself has another one, or none."""
    value: Any = node.meta.get("val")
    if not _is_cast(value) or not any(_is_cast(operand.meta.get("val")) for operand in node.all_input_nodes):
        return None
    args, named = fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    target: Any = node.target
    dtypes: list[torch.dtype | None] = []
    for enabled in (True, False):
        try:
            with value.fake_mode, torch.autocast(*cast, enabled=enabled):
                dtypes.append(target(*args, **named).dtype)
        except RuntimeError:  # as of operands of two dtypes, which are of one within autocast
            dtypes.append(None)
    eager, alone = dtypes
    return None if eager is alone else eager


def _is_cast(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (*HALF_DTYPES, torch.float32)


def _cast_operands(node: fx.Node, dtype: torch.dtype) -> None:
    def cast(operand: fx.Node) -> fx.Node:
        value: Any = operand.meta.get("val")
        if not _is_cast(value) or value.dtype is dtype:
            return operand
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(torch.ops.aten.to.dtype, (operand, dtype))
        copy.meta = {**node.meta, "val": torch.empty_like(value, dtype=dtype)}
        return copy

    node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), cast)
