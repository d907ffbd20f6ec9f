"""A model of one node, for values at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ontrain.errors import InputError
from ontrain.files import with_shapes
from ontrain.graph import OPSET

__all__ = ["model_of", "newest"]

_IR_VERSION = 10
"""Of the format, so that an older onnxruntime reads the model."""
_STRING = onnx.TensorProto.STRING


def model_of(
    node: onnx.NodeProto,
    inputs: Sequence[Any],
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None,
    opset: int | None,
) -> onnx.ModelProto:
    """Return a model of a node whose inputs and outputs are the graph's.

    Args:
        node: its empty names are inputs and outputs left out.
        inputs: a value for each name, each once: arrays, and lists of arrays for sequences.
        outputs_info: dtype and shape of each output, for operators whose types onnx does not know.
        opset: version of the standard's operators; None for one that has the node's.

    Raises:
        InputError: the number of values or the type of an output is wrong or not known.
    """
    opset = _opset_of(node) if opset is None else opset
    names = [name for name in dict.fromkeys(node.input) if name]
    if len(inputs) != len(names):
        raise InputError(
            f"{node.op_type} has {len(names)} inputs, {len(inputs)} are given",
            way_out=f"give values for {', '.join(names) or 'none'}",
        )
    model = onnx.ModelProto(ir_version=_IR_VERSION if opset <= OPSET else onnx.IR_VERSION)
    model.opset_import.add(domain="", version=opset)
    if node.domain not in ("", "ai.onnx"):
        model.opset_import.add(domain=node.domain, version=newest(node.domain))
    model.graph.name = node.op_type
    model.graph.node.append(node)
    for name, value in zip(names, inputs, strict=True):
        model.graph.input.append(onnx.ValueInfoProto(name=name, type=_type(value)))
    outputs = [name for name in node.output if name]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    inferred = with_shapes(model)
    for i, output in enumerate(inferred.graph.output):
        if not output.type.WhichOneof("value"):
            if outputs_info is None or i >= len(outputs_info):
                raise InputError(
                    f"the type of output {output.name!r} of {node.op_type} is not known",
                    reason="onnx has no schema of this operator",
                    way_out="give outputs_info: dtype and shape of each output",
                )
            dtype, shape = outputs_info[i]
            output.type.CopyFrom(_type(np.empty(tuple(shape), dtype)))
    return inferred


def _type(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        if not value:
            raise InputError("an empty list tells no type of its elements", way_out="run a model with a typed input")
        return onnx.TypeProto(sequence_type=onnx.TypeProto.Sequence(elem_type=_type(value[0])))
    array = np.asarray(value)
    kind = numpy_helper.from_array(array.reshape(-1)[:0]).data_type if array.dtype.kind not in "OSU" else _STRING
    dims = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in array.shape]
    return onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=kind, shape=onnx.TensorShapeProto(dim=dims)))


def newest(domain: str) -> int:
    """Return the newest version of a domain's operators that onnx knows, 1 if it knows none."""
    if domain in ("", "ai.onnx"):
        return int(onnx.defs.onnx_opset_version())
    return max((schema.since_version for schema in onnx.defs.get_all_schemas() if schema.domain == domain), default=1)


def _opset_of(node: onnx.NodeProto) -> int:
    """The opset that ontrain works with, or the newest for an operator that came later."""
    is_later = node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type, OPSET)
    return newest("") if is_later else OPSET
