"""Which element types the values of a graph have, as far as their operators' definitions say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import onnx

from ontrain.files.schemas import schema_of

__all__ = ["Foreign", "Types", "given_types", "kind_or_twin", "result_types"]

_KIND = onnx.TensorProto
_KINDS = {f"tensor({name.lower()})": number for name, number in _KIND.DataType.items()}
"""Element types by what the standard calls tensors of them."""
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_STATE_TYPE = ("to", "dtype")
"""Attributes that are the type of a result."""
Types = dict[str, int]
"""Element types by name of value; of a sequence and of an optional value that of what it holds."""
Foreign = Callable[[str, str], "tuple[Sequence[str], Sequence[str]] | None"]
"""By domain and name of an operator how its operands' and its results' types are called; None for one unknown."""


def given_types(node: onnx.NodeProto, graphs: Sequence[onnx.GraphProto], types: Mapping[str, int]) -> Types:
    """Return the element types of what a node hands to the graphs inside it."""
    operands = list(node.input)
    if len(graphs) != 1:
        return {}  # none is inside; or the branches of an If, which are given nothing
    (inner,) = graphs
    kinds = [types.get(name) for name in operands]
    if node.op_type == "Loop":
        kinds[:2] = [_KIND.INT64, _KIND.BOOL]
    elif len(kinds) > len(inner.input):
        kinds = kinds[-len(inner.input) :] if len(inner.input) else []  # the oldest Scan has lengths in front
    return {value.name: kind for value, kind in zip(inner.input, kinds, strict=False) if kind is not None}


def result_types(
    node: onnx.NodeProto, types: Mapping[str, int], opset: int, foreign: Foreign,
    inner: Sequence[int | None] | None = None,
) -> list[int | None] | None:  # fmt: skip
    """Return the element types of a node's results, None for each that is not known; None for a custom operator.

    Args:
        node: of a graph in order.
        types: of what comes before it.
        opset: version of the standard.
        foreign: knows operators that are not of the standard.
        inner: element types of the results of the graph inside the node, of an If's those of its last branch; None if
            there is no graph inside.
    """
    for attribute in node.attribute:
        if attribute.name in _STATE_TYPE and attribute.type == onnx.AttributeProto.INT and attribute.i:
            return [attribute.i] * len(node.output)
    if node.domain not in _STANDARD:
        known = foreign(node.domain, node.op_type)
        return None if known is None else _by_names(node, types, *known)
    if node.op_type == "ConstantOfShape":
        held = next((a.t.data_type for a in node.attribute if a.name == "value"), _KIND.FLOAT)
        return [held]
    if node.op_type == "SequenceEmpty":
        return [_KIND.FLOAT]
    if inner is not None:
        return list(inner[1:] if node.op_type == "Loop" else inner)
    called = _called(node.op_type, "" if node.domain == "ai.onnx" else node.domain, opset)
    if called is None:
        return []
    operands, results, holds = called
    kinds = _by_names(node, types, operands, results)
    if holds and node.input:
        return [types.get(node.input[0]) if kind is None else kind for kind in kinds]
    return kinds


def kind_or_twin(node: onnx.NodeProto, result: str, types: Mapping[str, int], opset: int) -> int | str | None:
    """Return the element type of a result, or an operand that has the same; None where the standard tells neither.

    Args:
        node: makes the result; no graph is in it.
        result: name of the value.
        types: those that are known.
        opset: version of the standard.
    """
    for attribute in node.attribute:
        if attribute.name in _STATE_TYPE and attribute.type == onnx.AttributeProto.INT and attribute.i:
            return int(attribute.i)
        if attribute.name == "value" and node.op_type in ("Constant", "ConstantOfShape"):
            return int(attribute.t.data_type) or None
    called = _called(node.op_type, "", opset) if node.domain in ("", "ai.onnx") else None
    if called is None or called[2]:
        return None
    operands, results, _ = called
    name = next((name for value, name in zip(node.output, _repeated(results), strict=False) if value == result), "")
    if name in _KINDS:
        return int(_KINDS[name])
    twins: list[str] = [
        value for value, other in zip(node.input, _repeated(operands), strict=False) if other == name and value
    ]
    return next((types[twin] for twin in twins if twin in types), twins[0] if twins else None)


@cache
def _called(op_type: str, domain: str, opset: int) -> tuple[list[str], list[str], bool] | None:
    """How the types of an operator are called, and whether it makes or takes apart sequences or optional values."""
    schema = schema_of(op_type, domain, opset)
    if schema is None:
        return None
    held = any(map(_holds, (*schema.inputs[:1], *schema.outputs)))
    return [_name(v) for v in schema.inputs], [_name(v) for v in schema.outputs], held


def _name(formal: onnx.defs.OpSchema.FormalParameter) -> str:
    """What the type of an operand or result is called: itself, if it is the only one allowed."""
    return str(next(iter(formal.types))) if len(formal.types) == 1 else str(formal.type_str)


def _holds(formal: onnx.defs.OpSchema.FormalParameter) -> bool:
    return any(kind.startswith(("seq(", "optional(")) for kind in formal.types)


def _by_names(
    node: onnx.NodeProto, types: Mapping[str, int], operands: Sequence[str], results: Sequence[str]
) -> list[int | None]:
    of: dict[str, int] = {}
    for name, called in zip(node.input, _repeated(operands), strict=False):
        if name in types:
            of.setdefault(called, types[name])
    return [_KINDS.get(called) or of.get(called) for _, called in zip(node.output, _repeated(results), strict=False)]


def _repeated(names: Sequence[str]) -> Iterable[str]:
    """Names of formal parameters, of which the last stands for all that follow."""
    return itertools.chain(names, itertools.repeat(names[-1])) if names else ()
