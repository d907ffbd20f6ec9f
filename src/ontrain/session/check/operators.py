"""Every operator of the standard and of ours: which providers run it, and how it is differentiated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.autodiff import differentiability
from ontrain.functions import adopted, composites
from ontrain.graph import DOMAIN, schema_of
from ontrain.operators import OPERATORS
from ontrain.providers import available_providers, get_provider

__all__ = ["OperatorSupport", "check_operators"]

STANDARD = "ai.onnx"
_LISTED = ("", "ai.onnx.ml")
_PREFERRED = (
    "tensor(float)", "tensor(double)", "tensor(int64)", "tensor(int32)", "tensor(bool)", "tensor(string)",
    "seq(tensor(float))",
)  # fmt: skip


@dataclass(frozen=True)
class OperatorSupport:
    """One operator.

    Attributes:
        domain: "ai.onnx" for operators of the standard, "ontrain" for ontrain's own, others for operators of files.
        operator: its name.
        since: opset version of the definition that ontrain works with, beyond its own for a later operator; 0 for
            operators that no schema describes.
        providers: for each provider None if it runs the operator, else why not. Asked for float inputs where the
            operator takes them, and with nothing but its required attributes.
        gradient: "rule", "body" (through other operators), "zero", or "none".
        reason: why, in a clause.
    """

    domain: str
    operator: str
    since: int
    providers: Mapping[str, str | None]
    gradient: str
    reason: str


def check_operators(providers: Sequence[str] | None = None) -> list[OperatorSupport]:
    """Return what is known of every operator of the installed onnx and of ontrain.

    Left out are operators that the newest version of the standard deprecates, and those that take maps.

    Args:
        providers: names; all installed ones by default.

    Raises:
        OptionError: no such provider.
    """
    runners = [get_provider(name) for name in (providers or available_providers())]
    rows = []
    for domain, operator, since, node in _examples():
        verdict = differentiability(node)
        asked = {runner.name: runner.supports(node) for runner in runners}
        rows.append(OperatorSupport(domain or STANDARD, operator, since, asked, verdict.kind, verdict.reason))
    return rows


def _examples() -> Iterator[tuple[str, str, int, ir.Node]]:
    """(domain, operator, version, a node of it) in the order of the table."""
    schemas = {
        (s.domain, s.name): s
        for s in onnx.defs.get_all_schemas()
        if s.domain in _LISTED and not s.deprecated and not _takes_maps(s)
    }
    for domain, name in sorted(schemas):
        schema = schema_of(name, domain) or schemas[domain, name]
        yield domain, name, schema.since_version, _example(schema)
    for name in sorted(composites):
        yield DOMAIN, name, 0, ir.Node(DOMAIN, name, [], num_outputs=1)
    searches = {key for key, record in OPERATORS.items() if record.searches}
    for where, name in sorted({*adopted, *searches}):
        if where not in _LISTED:  # these have had their turn
            yield where, name, 0, ir.Node(where, name, [], num_outputs=1)


def _takes_maps(schema: onnx.defs.OpSchema) -> bool:
    """Whether an operator takes nothing but maps, of which a node of the graph has no types."""
    return any(all("map" in kind for kind in formal.types) for formal in schema.inputs)


def _example(schema: onnx.defs.OpSchema) -> ir.Node:
    """A node with the operator's required inputs, typed, and its required attributes."""
    chosen = {
        constraint.type_param_str: _preferred(constraint.allowed_type_strs) for constraint in schema.type_constraints
    }
    smallest = OPERATORS[schema.domain, schema.name].smallest
    chosen.update(smallest.types)
    option = onnx.defs.OpSchema.FormalParameterOption
    formals = [formal for formal in schema.inputs if formal.option != option.Optional]
    if smallest.inputs is not None:
        formals = list(schema.inputs[: smallest.inputs])
    inputs = [
        ir.Value(name=f"x{i}", type=_type(chosen.get(formal.type_str, formal.type_str)))
        for i, formal in enumerate(formals)
    ]
    stated = smallest.attributes
    attributes = [
        _attribute(schema.name, name, attribute.type, stated.get(name))
        for name, attribute in sorted(schema.attributes.items())
        if attribute.required or name in stated
    ]
    # Outputs are left to inference: their type may depend on an attribute.
    node = ir.Node(schema.domain, schema.name, inputs, attributes, num_outputs=max(schema.min_output, 1))
    for i, value in enumerate(node.outputs):
        value.name = f"y{i}"
    return node


def _preferred(allowed: Sequence[str]) -> str:
    return next((dtype for dtype in _PREFERRED if dtype in allowed), sorted(allowed)[0])


def _type(text: str) -> ir.TypeProtocol | None:
    """The type that "tensor(float)" or "seq(tensor(float))" names; None for a map."""
    kind, _, inner = text.removesuffix(")").partition("(")
    if kind == "tensor":
        return ir.TensorType(ir.DataType[inner.upper()])
    element = _type(inner) if kind in ("seq", "optional") else None
    if element is None:
        return None
    return ir.SequenceType(element) if kind == "seq" else ir.OptionalType(element)


def _attribute(operator: str, name: str, kind: Any, value: Any) -> ir.Attr:
    simple: dict[str, Any] = {"INT": 1, "FLOAT": 1.0, "STRING": "x", "INTS": [1], "FLOATS": [1.0], "STRINGS": ["x"]}
    if kind.name == "GRAPH":
        return ir.AttrGraph(name, _body(operator))
    return ir.convenience.convert_attribute(name, simple[kind.name] if value is None else value)


def _body(operator: str) -> ir.Graph:
    """The smallest body that the control-flow operator takes."""
    flag = ir.TensorType(ir.DataType.BOOL)
    inputs = []
    if operator == "Loop":
        number = ir.Value(name="number", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        inputs = [number, ir.Value(name="go_on", type=flag, shape=ir.Shape([]))]
    elif operator != "If":
        inputs = [ir.Value(name="element", type=ir.TensorType(ir.DataType.FLOAT))]
    if inputs:
        node = ir.Node("", "Identity", [inputs[-1]], num_outputs=1)
        node.outputs[0].type = inputs[-1].type
    else:
        value = ir.AttrTensor("value", ir.tensor([1.0], dtype=ir.DataType.FLOAT))
        node = ir.Node("", "Constant", [], [value], num_outputs=1)
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    node.outputs[0].name = "result"
    return ir.Graph(inputs, node.outputs, nodes=[node], name="body")
