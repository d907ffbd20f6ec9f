"""The definition that a node is written by, where later versions of the standard gave an operator more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.operators.record import OPSET, schema_of

__all__ = ["form_of"]

_NAMES_RESULT = ("to", "dtype", "output_dtype")
"""Attributes that say of what type the first result is."""
_DTYPES = frozenset(dtype.value for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED)


def form_of(node: ir.Node) -> onnx.defs.OpSchema | None:
    """Return the definition that a node is written by; None for an operator that is not the standard's.

    That is the one at `OPSET`, or where it lacks an attribute, an operand or a type of the node's, the first later
    one that has it.
    """
    forms = _forms(node.op_type, node.domain)
    if len(forms) == 1:
        return forms[0]
    return next((form for form in forms if _includes(form, node)), forms[0] if forms else None)


@cache
def _forms(op_type: str, domain: str) -> tuple[onnx.defs.OpSchema, ...]:
    """The definitions of an operator from the one at `OPSET` on, oldest first."""
    forms: dict[int, onnx.defs.OpSchema] = {}
    for version in range(OPSET, onnx.defs.onnx_opset_version() + 1):
        schema = schema_of(op_type, domain, version)
        if schema is not None:
            forms.setdefault(schema.since_version, schema)
    return tuple(forms.values())


@cache
def _allowed(op_type: str, domain: str, since: int) -> dict[str, frozenset[str]]:
    """The types that each type variable of a definition stands for."""
    (schema,) = (form for form in _forms(op_type, domain) if form.since_version == since)
    return {kind.type_param_str: frozenset(kind.allowed_type_strs) for kind in schema.type_constraints}


def _includes(form: onnx.defs.OpSchema, node: ir.Node) -> bool:
    """Whether a definition has all that a node states."""
    if len(node.inputs) > form.max_input or any(name not in form.attributes for name in node.attributes):
        return False
    allowed = _allowed(form.name, form.domain, form.since_version)

    def takes(parameters: Sequence[Any], at: int, dtype: ir.DataType | None) -> bool:
        types = allowed.get(parameters[min(at, len(parameters) - 1)].type_str) if parameters else None
        return dtype is None or types is None or f"tensor({dtype.name.lower()})" in types

    if not all(takes(form.inputs, i, value.dtype) for i, value in enumerate(node.inputs) if value is not None):
        return False
    named = [node.attributes[name] for name in _NAMES_RESULT if name in node.attributes]
    if "value" in node.attributes and node.attributes["value"].type == ir.AttributeType.TENSOR:
        return takes(form.outputs, 0, node.attributes["value"].value.dtype)
    return all(
        takes(form.outputs, 0, ir.DataType(attr.value)) for attr in named if not attr.is_ref() and attr.value in _DTYPES
    )
