"""A trained graph as a stand-alone ONNX file: plain operators, parameters inside, loss and label gone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import onnx
import onnx_ir as ir

from ontrain.errors import GraphError, OptionError
from ontrain.functions import inline_all
from ontrain.graph import (
    DOMAIN,
    OPSET,
    Builder,
    Role,
    all_nodes,
    by_role,
    captured,
    live_nodes,
    rebuild,
    subgraphs,
)
from ontrain.passes import pipeline, run_passes, with_weights
from ontrain.session.opsets import check_opset, import_opset, with_operators_of

__all__ = [
    "EXTERNAL_DATA_THRESHOLD", "check_written", "inference_model", "save_model", "served_model", "training_model",
]  # fmt: skip

_ATTENTION = 23
"""The opset that brought attention as one operator."""
EXTERNAL_DATA_THRESHOLD = 1 << 30
"""Bytes of parameters beyond which they go to a file of their own beside the model (protobuf ends at 2 GiB)."""


def inference_model(
    model: ir.Model, state: Mapping[str, ir.TensorProtocol], outputs: Sequence[str], opset: int = OPSET, *,
    axes: Mapping[str, Sequence[int | str]] | None = None, optimize: bool = True,
) -> ir.Model:  # fmt: skip
    """Return an evaluation graph with its parameters as initializers.

    The passes of the stage "inference" fold batch normalisations into convolutions and lay weights as they are
    multiplied by: both under their names.

    Args:
        model: captured in evaluation mode; symbolic dimensions stay.
        state: values of parameters and buffers by name, as arrays.
        outputs: names of the outputs to keep; inputs that only the others need are dropped.
        opset: version of the standard whose operators are used.
        axes: what axes of outputs are called, by the outputs' names, where inference of shapes does not know.
        optimize: run these passes. Without them every parameter is in the file as it was trained. A graph with
            branches or loops is left as it is.

    Raises:
        OptionError: no such opset.
        GraphError: an operator cannot be written at it; names the node.
    """
    check_opset(opset)
    plain = inline_all(rebuild(model, _standard_attention if opset >= _ATTENTION else None))
    graph = plain.graph
    outputs_left = [v for v in graph.outputs if v.name in outputs]
    del graph.outputs[:]
    graph.outputs.extend(outputs_left)
    plain = rebuild(plain, _without_dropout)
    if optimize and not any(subgraphs(node) for node in plain.graph):
        weights = with_weights(plain, state)
        plain, _ = run_passes(plain, pipeline("inference"), stage="inference")
        plain, state = inline_all(weights.settle(plain)), weights.values
    plain = with_operators_of(plain, opset)
    graph = plain.graph
    used = set(graph.outputs)
    for node in live_nodes(graph):
        used.update((*(v for v in node.inputs if v is not None), *captured(node)))
    for value in by_role(graph, Role.PARAMETER, Role.BUFFER):
        graph.inputs.remove(value)
        if value in used:
            _give_value(graph, value, state)
    for value in list(graph.inputs):
        if value not in used:
            graph.inputs.remove(value)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]  # of a Dropout that is gone; onnxruntime would warn of it
    for value in graph.outputs:
        _name_axes(value, (axes or {}).get(value.name or "", ()))
    return _finished(plain, opset)


def _standard_attention(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """The composite as the standard's operator, where nothing but the result is read and nothing is dropped."""
    if (node.domain, node.op_type) != (DOMAIN, "Attention") or _number(node, "dropout"):
        return None
    more, (q, k, _, bias) = node.outputs[1:], (*node.inputs, None)[:4]
    if any(value.uses() or value.is_graph_output() for value in more) or any(v is not None for v in inputs[4:]):
        return None
    if bias is not None and not _spans(bias, q, k):
        return None
    y = op.Attention(*inputs[:4], scale=_number(node, "scale", 1.0))
    return [y, *(None for _ in more)]


def _number(node: ir.Node, name: str, default: float = 0.0) -> float:
    return node.attributes[name].as_float() if name in node.attributes else default


def _spans(bias: ir.Value, q: ir.Value | None, k: ir.Value | None) -> bool:
    """Whether a bias has a number for each query and key: onnxruntime repeats one along batch and heads alone."""
    if q is None or k is None or q.shape is None or k.shape is None or bias.shape is None:
        return False
    known = [dim for dim in (q.shape[2], k.shape[2]) if isinstance(dim, int) or dim.value is not None]
    return len(known) == 2 and len(bias.shape) in (2, 4) and list(bias.shape[-2:]) == known


def _name_axes(value: ir.Value, described: Sequence[int | str]) -> None:
    """Give the axes of an output whose sizes inference does not know their names."""
    if value.shape is None or len(value.shape) != len(described):
        return
    known = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    value.shape = ir.Shape([name if dim is None else dim for dim, name in zip(known, described, strict=True)])


def _without_dropout(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """Dropout in inference form is its input; a mask that someone reads keeps it."""
    masks = node.outputs[1:]
    if node.domain or node.op_type != "Dropout" or any(mask.uses() or mask.is_graph_output() for mask in masks):
        return None
    return [inputs[0], *(None for _ in masks)]


def served_model(model: ir.Model, state: Mapping[str, ir.TensorProtocol], opset: int = OPSET) -> ir.Model:
    """Return the graph of a session for inference as a file of its own, with all inputs and outputs.

    Args:
        model: of open sizes, its weights inputs; left untouched.
        state: values of the weights by name.
        opset: version of the standard whose operators are used.

    Raises:
        OptionError: no such opset.
        GraphError: an operator cannot be written at it; names the node.
    """
    check_opset(opset)
    plain = with_operators_of(inline_all(rebuild(model)), opset)
    for value in by_role(plain.graph, Role.PARAMETER, Role.BUFFER):
        plain.graph.inputs.remove(value)
        if value.uses() or value.is_graph_output():
            _give_value(plain.graph, value, state)
    return _finished(plain, opset)


def training_model(model: ir.Model, state: Mapping[str, ir.TensorProtocol], opset: int = OPSET) -> ir.Model:
    """Return a step's graph as a file of its own: forward, loss, backward and update in plain operators.

    Parameters, buffers and moments are inputs whose present values are the initializers of the same names: what is not
    fed has these. `{name}.next` is to be fed as `name` at the next step. The other inputs are the batch,
    `learning_rate`, `step` (from 1) and `loss_scale` (1).

    Args:
        model: a step graph, of concrete shapes.
        state: values of what is resident by name, as arrays.
        opset: version of the standard whose operators are used.

    Raises:
        OptionError: no such opset.
        GraphError: an operator cannot be written at it; names the node.
    """
    check_opset(opset)
    plain = with_operators_of(inline_all(rebuild(model)), opset)
    for value in by_role(plain.graph, Role.PARAMETER, Role.BUFFER, Role.STATE):
        _give_value(plain.graph, value, state)
    return _finished(plain, opset)


def _give_value(graph: ir.Graph, value: ir.Value, state: Mapping[str, Any]) -> None:
    value.const_value = ir.tensor(state[value.name or ""], name=value.name)
    graph.register_initializer(value)


def _finished(model: ir.Model, opset: int) -> ir.Model:
    """Take away what only ontrain reads."""
    import_opset(model, opset)
    for value in (*model.graph.inputs, *model.graph.initializers.values(), *model.graph.outputs):
        value.metadata_props.clear()
    for node in all_nodes(model.graph):
        node.metadata_props.clear()
    model.graph.opset_imports.pop(DOMAIN, None)
    return model


def save_model(
    model: ir.Model, path: str | os.PathLike[str], external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    data_name: str = "", smallest: int = 256,
) -> None:  # fmt: skip
    """Check a model and write it, beside and then renamed into place.

    Args:
        model: stand-alone, with its parameters.
        path: of the file; a `{name}.data` appears beside it if the parameters take more bytes than the threshold.
        external_data_threshold: protobuf ends at 2 GiB.
        data_name: name of a file beside the model that takes the parameters, however few bytes they have.
        smallest: parameters of fewer bytes stay in the model.

    Raises:
        OptionError: the folder does not exist or cannot be written, or the data's name is no name of a file.
    """
    if not isinstance(path, str | os.PathLike) or not Path(path).name or "\0" in str(path):
        raise OptionError(f"cannot write {path!r}", reason="it is no path of a file", way_out="give the file's name")
    target = Path(path)
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise OptionError(
            f"cannot write {os.fspath(path)!r}",
            reason="its folder does not exist or is not writable",
            way_out="create the folder, or choose another path",
        )
    if data_name and (Path(data_name).name != data_name or "\0" in data_name or data_name == target.name):
        raise OptionError(
            f"cannot write data to {data_name!r}", way_out="give a file name, which lies beside the model"
        )
    sizes = [v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None]
    is_split = max(sizes, default=0) >= smallest if data_name else sum(sizes) > external_data_threshold
    try:
        if is_split:
            _save_in_two(model, target, data_name or f"{target.name}.data", smallest)
        else:
            _save_in_one(model, target)
    except OSError as error:
        raise OptionError(
            f"cannot write {os.fspath(path)!r}", reason=str(error), way_out="free its place, or choose another path"
        ) from error


def check_written(model: onnx.ModelProto | str) -> None:
    """Raise GraphError unless onnx's checker takes a model that is about to be written, or the file at a path."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (
        onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, MemoryError,
    ) as error:  # fmt: skip
        raise GraphError(
            "the model that would be written is no valid ONNX", reason=" ".join(str(error).split()),
            way_out="write it at another opset; if it came from a file, that file may be damaged",
        ) from error  # fmt: skip


def _save_in_one(model: ir.Model, target: Path) -> None:
    proto = ir.to_proto(model)
    check_written(proto)
    beside = target.with_name(f".{target.name}.partial")
    try:
        beside.write_bytes(proto.SerializeToString())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _save_in_two(model: ir.Model, target: Path, data: str, smallest: int) -> None:
    """Write graph and data in a folder beside, let the checker read both, and move the data first."""
    values = [v for graph in model.graphs() for v in graph.initializers.values() if v.const_value is not None]
    tensors = [cast("ir.TensorProtocol", v.const_value) for v in values]
    is_outside = [tensor.nbytes >= smallest and not _says_sizes(tensor) for tensor in tensors]
    outside = [tensor for tensor, goes in zip(tensors, is_outside, strict=True) if goes]
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        written = iter(ir.external_data.convert_tensors_to_external(outside, folder, data))
        try:
            for value, tensor, goes in zip(values, tensors, is_outside, strict=True):
                value.const_value = next(written) if goes else _in_memory(tensor)
            ir.save(model, Path(folder) / target.name)
        finally:
            for value, tensor in zip(values, tensors, strict=True):
                value.const_value = tensor
        check_written(str(Path(folder) / target.name))
        os.replace(Path(folder) / data, target.with_name(data))
        os.replace(Path(folder) / target.name, target)


_MOST_SIZES = 64
"""Numbers of axes, pads and the like; a longer list is an operand."""


def _says_sizes(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor may say sizes, axes or pads, which inference of shapes does not look for outside a file."""
    return tensor.dtype.is_integer() and len(tensor.shape) <= 1 and tensor.size <= _MOST_SIZES


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.external_data.convert_tensors_from_external([tensor])[0]
