"""Dropout and batch normalisation as the file has them, in the form for inference, and in the one for training."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from ontrain.graph import Role, every_node, role_of, set_updates, updates_of
from ontrain.operators import operand_of

__all__ = ["as_filed", "to_inference", "to_training"]


def as_filed(graph: ir.Graph) -> None:
    """Leave the modes as they are; batch normalisations in training mode get all three outputs, in place.

    They use the batch's statistics then, and dropouts whose flag is set drop, as in onnxruntime. No next value is
    written anywhere: a file that wants one returns it.
    """
    for node in every_node(graph):
        if node.op_type == "BatchNormalization" and not node.domain and _is_training(node) and len(node.outputs) < 3:
            node.resize_outputs(3)


def to_training(graph: ir.Graph, frozen: Collection[str]) -> None:
    """Let dropouts drop and batch normalisations use the batch's statistics, in place.

    Running statistics that are buffers of the graph get outputs with their next values, by the operator's own formula
    (the variance is the biased one). Two normalisations that share a buffer update it one after the other.

    Args:
        graph: at ontrain's operator set, its statistics inputs of role BUFFER.
        frozen: names of statistics to leave as they are; their normalisation stays in inference form.
    """
    latest: dict[ir.Value, ir.Value] = {}
    for node in list(every_node(graph)):
        if node.domain:
            continue
        if node.op_type == "Dropout":
            _drop(node)
        elif node.op_type == "BatchNormalization":
            statistics = node.inputs[3:5]
            # Inside a branch or a loop there is no output through which a buffer could be updated.
            stays = node.graph is not graph or any(v is not None and v.name in frozen for v in statistics)
            if stays:
                _fix_statistics(node)
            else:
                _normalise_batch(node, latest)
    for buffer, value in latest.items():
        # A copy, as the file may itself return the running statistics.
        copy = ir.node("Identity", [value])
        graph.append(copy)
        copy.outputs[0].name = f"{buffer.name}.next"
        graph.outputs.append(set_updates(copy.outputs[0], buffer.name or ""))


def to_inference(graph: ir.Graph) -> None:
    """Let dropouts pass everything and batch normalisations use their running statistics, in place; drop updates."""
    graph_outputs = [v for v in graph.outputs if updates_of(v) is None]
    del graph.outputs[:]
    graph.outputs.extend(graph_outputs)
    for node in list(every_node(graph)):
        if node.domain:
            continue
        if node.op_type == "Dropout":
            node.resize_inputs(min(len(node.inputs), 2))
        elif node.op_type == "BatchNormalization":
            _fix_statistics(node)


def _is_training(node: ir.Node) -> bool:
    mode = node.attributes.get("training_mode")
    return mode is not None and mode.value == 1


def _drop(node: ir.Node) -> None:
    """Set `training_mode`; a flag that the graph computes or is fed is the model's own affair."""
    flag = operand_of(node, 2)
    if flag is not None and flag.const_value is None and not _is_constant(flag):
        return
    assert node.graph is not None
    on = ir.node("Constant", [], {"value": ir.tensor(np.array(True))})
    on.metadata_props.update(node.metadata_props)
    node.graph.insert_before(node, on)
    node.resize_inputs(3)
    node.replace_input_with(2, on.outputs[0])


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Constant"


def _normalise_batch(node: ir.Node, latest: dict[ir.Value, ir.Value]) -> None:
    node.attributes.add(ir.AttrInt64("training_mode", 1))
    if len(node.outputs) < 3:
        node.resize_outputs(3)
    for index, statistic in enumerate(node.inputs[3:5]):
        if statistic is not None and statistic.is_graph_input() and role_of(statistic) is Role.BUFFER:
            node.replace_input_with(3 + index, latest.get(statistic, statistic))
            latest[statistic] = node.outputs[1 + index]


def _fix_statistics(node: ir.Node) -> None:
    """Inference form: one output; whoever reads the running statistics gets what the node was given."""
    node.attributes.pop("training_mode", None)
    for output, y in zip(list(node.outputs)[1:3], node.inputs[3:5], strict=False):
        assert y is not None
        if output.is_graph_output():
            assert node.graph is not None
            copy = ir.node("Identity", [y])
            node.graph.insert_before(node, copy)
            copy.outputs[0].name = output.name
            y = copy.outputs[0]
        ir.convenience.replace_all_uses_with([output], [y], replace_graph_outputs=True)
    node.resize_outputs(1)
