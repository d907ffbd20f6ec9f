"""Nodes that are refused, or put right, before stock onnxruntime gets them: no node before them could guard them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

import onnx

from ontrain.errors import GraphError
from ontrain.files.schemas import schema_of

__all__ = ["check_form", "check_labels", "check_range", "check_scales", "check_text", "without_empty_names"]

_STANDARD = ("", "ai.onnx")
_CHOICE, _TREES = "QLinearWhere", "TreeEnsembleClassifier"
_SCALES, _OF_RESULT = (2, 3, 5, 6, 7, 8), (7, 8)
"""Positions of a choice's scales and zeros, and of those of its result."""


def check_text(node: onnx.NodeProto) -> None:
    """Refuse a node whose operator or domain has no name."""
    if not isinstance(node.op_type, str) or not isinstance(node.domain, str):
        raise GraphError(
            f"the operator {node.op_type!r} of the domain {node.domain!r} is none",
            reason="its name is no UTF-8", way_out="export the model again; the file may be damaged",
        )  # fmt: skip


def check_form(node: onnx.NodeProto, inner: Sequence[onnx.GraphProto], opset: int) -> None:
    """Refuse a node that lacks what guarding it looks at; onnxruntime would refuse it later."""
    if node.domain not in _STANDARD or schema_of(node.op_type, "", opset) is None:
        return
    fewest_inputs, fewest_outputs, graphs = _least(node.op_type, opset)
    short = len(node.input) < fewest_inputs or len(node.output) < fewest_outputs
    if len(inner) != graphs or (short and not graphs):
        said = f"{len(node.input)} inputs, {len(node.output)} outputs and {len(inner)} graphs inside"
        raise GraphError(f"{node.op_type} {node.name!r} is damaged", reason=f"it has {said}")
    if node.op_type == "Loop" and not inner[0].output:
        raise GraphError(f"{node.op_type} {node.name!r} is damaged", reason="its body says not whether to go on")


@cache
def _least(op_type: str, opset: int) -> tuple[int, int, int]:
    """How many operands, results and graphs inside an operator must have."""
    schema = schema_of(op_type, "", opset)
    assert schema is not None
    graphs = [a for a in schema.attributes.values() if a.required and a.type == onnx.defs.OpSchema.AttrType.GRAPH]
    return schema.min_input, schema.min_output, len(graphs)


def without_empty_names(node: onnx.NodeProto, opset: int) -> bool:
    """Drop empty names at the end of a node's operands, which mean nothing; return whether there were any.

    Raises:
        GraphError: an operand is left out of several of one kind.
    """
    if node.domain not in _STANDARD:
        return False
    if node.op_type == "LayerNormalization" and node.input and not node.input[-1]:
        while node.input and not node.input[-1]:
            node.input.pop()
        return True
    if "" in node.input and _takes_any_number(node, opset):
        raise GraphError(
            f"an operand of {node.op_type} {node.name!r} is left out",
            reason="all of its operands are needed, and onnxruntime's process would end",
            way_out="export the model again; the file may be damaged",
        )
    return False


def check_range(node: onnx.NodeProto) -> None:
    """Refuse draws from a range or of a deviation that there are none of: onnxruntime asserts that there are."""
    if node.domain not in _STANDARD or not node.op_type.startswith("Random"):
        return
    told = {"low": 0.0, "high": 1.0, "scale": 1.0} | {a.name: a.f for a in node.attribute}
    is_normal = node.op_type.startswith("RandomNormal")
    if told["scale"] > 0 if is_normal else told["low"] <= told["high"]:
        return
    said = f"a deviation of {told['scale']}" if is_normal else f"numbers from {told['low']} to {told['high']}"
    raise GraphError(
        f"{node.op_type} {node.name!r} draws {said}",
        reason="there are none, and onnxruntime's process would end",
        way_out="export the model again; the file may be damaged",
    )


def check_scales(node: onnx.NodeProto, fixed: Collection[str]) -> None:
    """Refuse a choice of bytes whose result has a constant scale and zero, but not each operand.

    onnxruntime writes the operands' tables when the session is made, and reads all six scales and zeros for them.

    Args:
        node: of any operator.
        fixed: names of values that are the same at each run.
    """
    if (node.domain, node.op_type) != ("com.microsoft", _CHOICE) or len(node.input) <= max(_SCALES):
        return
    if all(node.input[at] in fixed for at in _SCALES) or not all(node.input[at] in fixed for at in _OF_RESULT):
        return
    varying = ", ".join(node.input[at] for at in _SCALES if node.input[at] not in fixed)
    raise GraphError(
        f"{_CHOICE} {node.name or node.output[0]!r} has constant scales, and {varying} from elsewhere",
        reason="onnxruntime's process would end",
        way_out="make the scales and zeros all initializers, or use one of ontrain's providers",
    )


def check_labels(node: onnx.NodeProto) -> None:
    """Refuse trees of one class that is a string.

    Onnxruntime looks for a second string, and its process ends; see `ontrain.files.traps`.
    """
    if (node.domain, node.op_type) != ("ai.onnx.ml", _TREES):
        return
    if any(attribute.name == "classlabels_strings" and len(attribute.strings) == 1 for attribute in node.attribute):
        raise GraphError(
            f"{_TREES} {node.name or node.output[0]!r} has one class",
            reason="it tells which rows are of the class and which are not, and has one string for both: onnxruntime's "
            "process would end",
            way_out="train it on two classes or more, or give it whole numbers: then the label is 1 or 0",
        )


def _takes_any_number(node: onnx.NodeProto, opset: int) -> bool:
    schema = schema_of(node.op_type, "", opset)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return schema is not None and bool(schema.inputs) and schema.inputs[0].option == variadic
