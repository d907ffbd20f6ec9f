"""What a node's attributes may say, as its operator's record tells it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph import describe, source_of
from ontrain.operators import record_of

__all__ = ["check_settings"]


def check_settings(node: ir.Node) -> None:
    """Refuse attributes whose values mean nothing to the operator, or that do not fit together.

    Args:
        node: of a file, converted to ontrain's operator set.

    Raises:
        GraphError: names the node, the attribute, and the values that it may have.
    """
    record = record_of(node)
    for name, known in record.choices.items():
        value = _stated(node, name)
        stated = value if isinstance(value, tuple) else (value,)
        if value is not None and any(each not in known for each in stated):
            _refuse(
                node,
                f"attribute {name!r} is {value!r}",
                f"it must be one of {', '.join(repr(word) for word in known if word != '')}",
            )
    for name, least in record.least.items():
        value = _stated(node, name)
        if value is not None and value < least:
            _refuse(node, f"attribute {name!r} is {value!r}", f"it must not be less than {least}")
    if record.fault is not None and (reason := record.fault(node)):
        _refuse(node, f"the attributes of {node.domain or 'ai.onnx'}.{node.op_type} do not fit together", reason)


def _stated(node: ir.Node, name: str) -> Any:
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute.value


def _refuse(node: ir.Node, problem: str, reason: str) -> None:
    raise GraphError(
        problem,
        node=describe(node),
        source=source_of(node),
        reason=reason,
        way_out="export the model again; the file may be damaged",
    )
