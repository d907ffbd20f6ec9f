"""A model for inference from the evaluation graph and the parameters of a device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from ontrain.arguments import checked_names, checked_path
from ontrain.errors import OptionError, nearest
from ontrain.graph import live_nodes
from ontrain.training.api.tensors import Tensors

__all__ = ["inference_model"]


def inference_model(
    evaluation: str | os.PathLike[str], values: Tensors, outputs: Sequence[str], target: str | os.PathLike[str]
) -> None:
    """Write the part of an evaluation graph that some values need, with its parameters as initializers.

    Raises:
        OptionError: the graph is in ORT format, has no such output, or the target cannot be written.
    """
    if Path(evaluation).suffix == ".ort":
        raise OptionError(
            "a model in ORT format cannot be exported", way_out="give Module the evaluation model as .onnx"
        )
    target, outputs = checked_path("the path of the model", target), checked_names("graph_output_names", outputs)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.load(evaluation)))
    graph = model.graph
    known = {value.name or "": value for node in graph for value in node.outputs}
    if not outputs:
        raise OptionError("no output was named", way_out="name outputs of the model that the artifacts were made of")
    for name in outputs:
        if name not in known:
            raise OptionError(f"the model has no output {name!r}", way_out=f"nearest: {nearest(name, known)}")
    _cut(graph, [known[name] for name in outputs])
    _give(graph, values)
    beside = Path(target).with_name(f".{Path(target).name}.partial")
    try:
        ir.save(model, beside)
        os.replace(beside, target)
    except OSError as error:
        raise OptionError(
            f"cannot write {target!r}", reason=str(error), way_out="create the folder, or choose another"
        ) from error


def _cut(graph: ir.Graph, outputs: Sequence[ir.Value]) -> None:
    """Leave of a graph what these outputs need."""
    del graph.outputs[:]
    graph.outputs.extend(outputs)
    live = set(live_nodes(graph))
    graph.remove([node for node in graph if node not in live], safe=True)


def _give(graph: ir.Graph, values: Tensors) -> None:
    """Make initializers of the inputs that have values, and leave out inputs and initializers that nobody reads."""
    for value in list(graph.inputs):
        used = bool(value.uses()) or value.is_graph_output()
        if used and (value.name or "") not in values:
            continue
        graph.inputs.remove(value)
        if used:
            value.const_value = ir.tensor(values[value.name or ""], name=value.name)
            graph.register_initializer(value)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
