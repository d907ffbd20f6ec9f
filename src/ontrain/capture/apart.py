"""Operators without a translation, each written in others where it stands; the rest of the program stays as it is.

fft_rfft(x, n)   →   constant_pad_nd(x, …) → _fft_r2c(…)

Torch offers to write a whole program anew, and runs through all of it twice for that. Here it runs through the operator
alone, on the tensors without values that stand for its operands. An operator that writes to an operand is left to
torch, and so is one that brings a size that only values tell.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ontrain.capture.aliases import mutates
from ontrain.capture.sympy_sizes import size_of
from ontrain.internals import FakeTensor, OpOverload, available, private

__all__ = ["written_in_others"]

_TRACE = "torch.fx.experimental.proxy_tensor.make_fx"
_DISPATCHER = "torch._dispatch.python.enable_python_dispatcher"
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)
"""Of an operator's own code; the error is told when torch writes the whole program."""


def written_in_others(missing: Sequence[fx.Node], decompositions: Mapping[OpOverload, Callable[..., Any]]) -> bool:
    """Write operators in others, in the graphs that they stand in.

    Args:
        missing: the operators' nodes, in order; nodes have tensors without values in their `meta`.
        decompositions: of operators without a translation; composite operators need none.

    Returns:
        Whether each of them is written in others. If not, the graphs stay as they were.
    """
    if not all(map(available, (_TRACE, _DISPATCHER))) or not all(map(_is_simple, missing)):
        return False
    traced = {node: _traced(node, decompositions) for node in missing}
    if None in traced.values():
        return False
    new: dict[fx.Node, Any] = {}
    for node, program in traced.items():
        assert program is not None
        operands = [new.get(operand, operand) for operand in node.all_input_nodes]
        new.update(_put_in_place(node, program, operands))
    for node in reversed([*missing, *new.keys() - {*missing}]):
        if node in new:
            node.replace_all_uses_with(new[node])
        node.graph.erase_node(node)
    return True


def _is_simple(node: fx.Node) -> bool:
    """Whether an operator gives new tensors, or views, of operands that are known without values."""
    return (
        isinstance(node.target, OpOverload)
        and not mutates(node)
        and any(isinstance(operand.meta.get("val"), FakeTensor) for operand in node.all_input_nodes)
        and all("val" in operand.meta for operand in (node, *node.all_input_nodes))
        and (isinstance(node.meta["val"], torch.Tensor) or all(user.target is operator.getitem for user in node.users))
    )


def _traced(node: fx.Node, decompositions: Mapping[OpOverload, Callable[..., Any]]) -> fx.GraphModule | None:
    """What an operator is in others, as a program of its operands; None if torch fails."""
    operands = node.all_input_nodes
    target: Any = node.target

    def call(*values: Any) -> Any:
        value_of = dict(zip(operands, values, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of.__getitem__)
        return target(*args, **kwargs)

    values = [operand.meta["val"] for operand in operands]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    try:
        with mode, private(_DISPATCHER)():
            program: fx.GraphModule = private(_TRACE)(call, decomposition_table=dict(decompositions))(*values)
    except _FAILURES:
        return None
    inner = [value for other in program.graph.nodes for value in _leaves(other.meta.get("val"))]
    known = _symbols(inner) <= _symbols([*values, *_leaves(node.meta["val"])])
    results = _results(program)
    computed = all(isinstance(r, fx.Node) for r in (results if isinstance(results, tuple | list) else [results]))
    return program if known and computed else None


def _put_in_place(node: fx.Node, program: fx.GraphModule, operands: list[fx.Node]) -> dict[fx.Node, Any]:
    """Copy an operator's program in front of its node; return what is to be read in place of the node."""
    copies: dict[fx.Node, Any] = dict(zip(program.graph.find_nodes(op="placeholder"), operands, strict=True))

    def renamed(value: Any) -> Any:
        return fx.map_arg(value, copies.__getitem__)

    with node.graph.inserting_before(node):
        for other in program.graph.nodes:
            if other.op in ("placeholder", "output"):
                continue
            copies[other] = node.graph.node_copy(other, renamed)
            copies[other].meta = {**node.meta, **other.meta}
            if other.op == "get_attr":
                copies[other].meta["ontrain.constant"] = getattr(program, str(other.target))
    results = renamed(_results(program))
    if not isinstance(results, tuple | list):
        return {node: results}
    places: dict[fx.Node, Any] = {user: user.args[1] for user in node.users}
    return {user: results[place] for user, place in places.items()}


def _results(program: fx.GraphModule) -> Any:
    return program.graph.output_node().args[0]


def _leaves(value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, tuple | list) else [value]:
        if isinstance(item, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            yield item


def _symbols(values: Iterable[Any]) -> set[str]:
    sizes = (size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else [value]))
    symbolic = (size for size in sizes if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool))
    return {symbol for size in symbolic for symbol in size_of(size.node.expr).symbols()}
