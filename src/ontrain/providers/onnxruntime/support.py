"""What the onnxruntime that is installed can run, found out by asking it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import onnx
import onnx_ir as ir

from ontrain.graph import OPSET, new_model, subgraphs
from ontrain.operators import record_of
from ontrain.stock import stock

onnxruntime = stock()

__all__ = ["refusal"]


def refusal(node: ir.Node) -> str | None:
    """Return why onnxruntime's CPU kernels cannot run a typed node of a standard operator; None if they can.

    A model of the node alone is given to a session: that fails where no kernel is registered for the operator, its
    opset and its dtypes, and where onnxruntime cannot take the operator apart into others that it has.
    """
    if subgraphs(node):
        return None  # If, Loop and Scan take any type; what lies inside is asked for by itself
    if record_of(node).searches:
        return f"{node.op_type} runs a model again and again, which no plan does"
    if record_of(node).recurrent:
        # Their kernels are registered for more than they do: they say so when they run.
        if node.inputs[0] is not None and node.inputs[0].dtype != ir.DataType.FLOAT:
            return f"{node.op_type} has no CPU kernel in onnxruntime for {node.inputs[0].dtype}"
        if "layout" in node.attributes and node.attributes["layout"].as_int():
            return f"{node.op_type} has no CPU kernel in onnxruntime for layout 1"
    return _ask(_alone(node))


def _alone(node: ir.Node) -> bytes:
    """The node as a model of its own with every input fed; equal for equal operators, attributes, dtypes and ranks."""
    inputs = {v: ir.Value(name=f"i{i}", type=v.type, shape=v.shape) for i, v in enumerate(_distinct(node))}
    model = new_model(list(inputs.values()), "probe")
    attributes = sorted(node.attributes.values(), key=lambda a: a.name)
    outputs = [ir.Value(name=f"o{i}", type=v.type) for i, v in enumerate(node.outputs)]
    operands = [None if v is None else inputs[v] for v in node.inputs]
    copy = ir.Node(node.domain, node.op_type, operands, attributes, outputs=outputs)
    model.graph.append(copy)
    model.graph.outputs.extend(outputs)
    for value in inputs.values():
        if value.shape is not None:
            # Sizes matter to no kernel's registration, so that one answer serves all of a rank.
            value.shape = ir.Shape([f"d{i}" for i in range(len(value.shape))])
    encoded: bytes = ir.to_proto(model).SerializeToString()
    return encoded


def _distinct(node: ir.Node) -> Iterator[ir.Value]:
    yield from dict.fromkeys(v for v in node.inputs if v is not None)


@lru_cache(maxsize=4096)
def _ask(model: bytes) -> str | None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 (onnxruntime's errors share no base but Exception)
        return _in_short(str(error), model)
    return None


def _in_short(message: str, model: bytes) -> str:
    if "NOT_IMPLEMENTED" not in message:
        return f"onnxruntime {onnxruntime.__version__}: {message.removeprefix('[ONNXRuntimeError] : ')}"
    graph = onnx.load_model_from_string(model).graph
    dtypes = ", ".join(onnx.TensorProto.DataType.Name(v.type.tensor_type.elem_type).lower() for v in graph.input)
    return (
        f"onnxruntime {onnxruntime.__version__} has no CPU kernel of {graph.node[0].op_type} (opset {OPSET}) "
        f"for {dtypes}"
    )
