"""Classical models: labels that are strings, maps, and coefficients that are attributes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.graph import DOMAIN, all_nodes
from ontrain.operators import ML

__all__ = ["number_labels", "numbers_only"]

_STRINGS = "classlabels_strings"
_MAPS = ("CastMap", "ZipMap")
_WEIGHTED = {"LinearClassifier": "LinearClassification", "LinearRegressor": "LinearRegression"}
"""Linear models, and what they are with coefficients that are values."""


def number_labels(graph: ir.Graph) -> None:
    """Let classifiers give numbers of classes, and a table behind them the strings, in place.

    So the classifier works on numbers alone, and only the table on strings.
    """
    for node in list(all_nodes(graph)):
        labels = node.attributes.get(_STRINGS)
        if node.domain != ML or node.op_type == "ZipMap" or labels is None or not isinstance(node.graph, ir.Graph):
            continue
        names = labels.as_strings()
        if not names:
            continue
        del node.attributes[_STRINGS]
        ints = "classlabels_int64s" if node.op_type == "TreeEnsembleClassifier" else "classlabels_ints"
        node.attributes.add(ir.AttrInt64s(ints, range(len(names))))
        old = node.outputs[0]
        attributes = [ir.AttrInt64s("keys_int64s", range(len(names))), ir.AttrStrings("values_strings", names)]
        table = ir.Node(ML, "LabelEncoder", [], attributes, num_outputs=1, version=node.version)
        table.metadata_props.update(node.metadata_props)
        label = table.outputs[0]
        label.name, label.type, label.shape = old.name, old.type, old.shape
        ir.convenience.replace_all_uses_with([old], [label], replace_graph_outputs=True)
        old.name, old.type = f"{label.name}.number", ir.TensorType(ir.DataType.INT64)
        table.resize_inputs(1)
        table.replace_input_with(0, old)
        node.graph.insert_after(node, table)


def numbers_only(graph: ir.Graph) -> None:
    """Make the graph one that trains, in place: its outputs are numbers, and linear models have weights.

    The rows of a ZipMap stand in for its maps, and outputs that are strings go. Coefficients and intercepts of linear
    models become initializers.
    """
    _drop_text(graph)
    for node in list(all_nodes(graph)):
        if node.domain == ML and node.op_type in _WEIGHTED and isinstance(node.graph, ir.Graph):
            _lift(node, node.graph, graph)


def _drop_text(graph: ir.Graph) -> None:
    told: set[ir.Value] = set()
    for node in graph:
        text = node.domain == ML and (node.op_type in _MAPS or "values_strings" in node.attributes)
        if text or any(v is not None and (v in told or v.dtype == ir.DataType.STRING) for v in node.inputs):
            told.update(node.outputs)
    outputs = []
    for value in graph.outputs:
        maker = value.producer()
        if value in told and maker is not None and maker.op_type == "ZipMap":
            rows = maker.inputs[0]
            assert rows is not None
            copy = ir.node("Identity", [rows])
            copy.version, copy.outputs[0].name = maker.version, value.name
            copy.metadata_props.update(maker.metadata_props)
            value.name = f"{value.name}.maps"
            graph.insert_after(maker, copy)
            outputs.append(copy.outputs[0])
        elif value not in told:
            outputs.append(value)
    if not told or not outputs:
        return
    graph.outputs[:] = outputs
    for node in reversed(list(graph)):
        if told.intersection(node.outputs) and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)


def _lift(node: ir.Node, within: ir.Graph, main: ir.Graph) -> None:
    a = node.attributes
    wanted = len(a["classlabels_ints"].as_ints()) if "classlabels_ints" in a else 1
    coefficients = np.asarray(a["coefficients"].as_floats() if "coefficients" in a else (), np.float32)
    intercepts = np.asarray(a["intercepts"].as_floats() if "intercepts" in a else (), np.float32)
    targets = a["targets"].as_int() if "targets" in a else len(intercepts) or wanted
    if targets < 1 or not coefficients.size or coefficients.size % targets:
        return  # refused where its body is made
    if not intercepts.size:
        intercepts = np.zeros(targets, np.float32)
    weights = []
    for what, array in (("coefficients", coefficients.reshape(targets, -1)), ("intercepts", intercepts)):
        name = _free(f"{node.name or node.outputs[-1].name}.{what}", main)
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(array.shape)
        main.register_initializer(value)
        weights.append(value)
    attributes = [attr for name, attr in a.items() if name in ("classlabels_ints", "targets", "post_transform")]
    new = ir.Node(
        DOMAIN, _WEIGHTED[node.op_type], [node.inputs[0], *weights], attributes, num_outputs=len(node.outputs)
    )
    new.metadata_props.update(node.metadata_props)
    ir.convenience.replace_nodes_and_values(within, node, [node], [new], node.outputs, new.outputs)


def _free(wish: str, graph: ir.Graph) -> str:
    name, n = wish, 0
    while name in graph.initializers:
        n += 1
        name = f"{wish}_{n}"
    return name
