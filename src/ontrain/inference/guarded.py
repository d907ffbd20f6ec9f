"""A file that stock onnxruntime is to run: looked at first, and guarded where it could end the process or never end."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from ontrain.disk import open_file
from ontrain.errors import GraphError
from ontrain.files import TRAPS, call_depth, check_expansion, check_external, guard, in_order, subgraphs, tensors_of
from ontrain.inference.lending import Changes
from ontrain.inference.options import EXTERNAL_FOLDER, SessionOptions, config_entry
from ontrain.stock import stock_module

__all__ = ["guarded", "is_known"]

_DIVIDES = ("Div", "Mod")
"""Operators whose guard asks for the types of what they are given, so that these have to be known."""
_EXTERNAL, _KEY, _MODE = onnx.TensorProto.EXTERNAL, b"location", b"training_mode"
"""Where a tensor's numbers lie; what a file names that has such tensors, and normalisations in training mode."""
_DEEPEST = 500
"""Functions that call one another in a row: onnxruntime follows them by recursion, and dies of 3,000."""


def guarded(source: str | bytes, outline: bytes, options: Any) -> tuple[str | bytes, Changes]:
    """Return the source for onnxruntime, as it is or with guards in it, and what of the options has to change for it.

    Args:
        source: a path, or the file's bytes.
        outline: of the file, see `ontrain.files.suspicion`.
        options: session options, or None.

    Raises:
        GraphError: external data lies outside of the model's folder or is no file; a division cannot be guarded; or
            functions expand beyond all proportion, or call one another too deep.
    """
    proto = _parsed(outline)
    if proto is None:
        return source, Changes()
    told = config_entry(options, EXTERNAL_FOLDER)
    folder = Path(told or os.getcwd()) if isinstance(source, bytes) else Path(source).parent
    name = "the model" if isinstance(source, bytes) else Path(source).name
    external = [tensor for tensor in tensors_of(proto) if tensor.data_location == _EXTERNAL] if _KEY in outline else []
    for tensor in external:
        if not (isinstance(source, bytes) and not told and _brings_data(options)):
            check_external(tensor, folder, name)
    _check_functions(proto, name)
    proto = _inlined(proto, name)
    # onnxruntime's optimisation has such statistics written over the initializers: each run changes the next.
    plain = _MODE in outline and _updates_unread(proto.graph)
    proto = in_order(proto)
    if not guard(proto, _foreign):
        return source, Changes(plain)
    if len(outline) < (len(source) if isinstance(source, bytes) else os.path.getsize(source)):
        whole = _parsed(source if isinstance(source, bytes) else _content(source))
        if whole is None:
            return source, Changes(plain)
        proto = in_order(_inlined(whole, name))
        if not guard(proto, _foreign):  # its large weights divide by nothing that ends a process
            return source, Changes(plain)
    return proto.SerializeToString(), Changes(plain, os.path.abspath(str(folder)) if external and folder else "")


def _check_functions(proto: onnx.ModelProto, name: str) -> None:
    if not proto.functions:
        return
    check_expansion(proto, name)
    depth = call_depth(proto)
    if depth > _DEEPEST:
        raise GraphError(
            f"{name} has functions that call one another {depth} deep",
            reason=f"onnxruntime follows {_DEEPEST} safely",
            way_out="use one of ontrain's providers, TorchExecutionProvider",
        )


def _inlined(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model without functions, if these or what calls them may need a guard."""
    if not proto.functions or not (
        _names_any(proto.graph.node, _DIVIDES) or any(_trapped(f.node) for f in proto.functions)
    ):
        return proto
    try:
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise GraphError(f"the functions of {name} cannot be inlined", reason=str(error)) from error


def is_known(domain: str, op_type: str) -> bool:
    """Return whether onnxruntime has an operator, without libraries of custom ones."""
    return (domain, op_type) in _schemas()


def _foreign(domain: str, op_type: str) -> tuple[list[str], list[str]] | None:
    """How the types of an operator of onnxruntime's own are called; see `ontrain.files.guard`."""
    return _schemas().get((domain, op_type))


@functools.cache
def _schemas() -> dict[tuple[str, str], tuple[list[str], list[str]]]:
    """Operators that are onnxruntime's own, the newest version of each."""
    known = stock_module("onnxruntime.capi.onnxruntime_pybind11_state").get_all_operator_schema()
    return {
        (schema.domain, schema.name): ([v.typeStr for v in schema.inputs], [v.typeStr for v in schema.outputs])
        for schema in sorted(known, key=lambda schema: int(schema.since_version))
    }


def _content(path: str) -> bytes:
    with open_file(path) as file:
        return file.read()


def _brings_data(options: Any) -> bool:
    return isinstance(options, SessionOptions) and bool(options.initializers or options.external_files)


def _parsed(content: bytes) -> onnx.ModelProto | None:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception:  # noqa: BLE001  # protobuf's errors share no base but Exception; onnxruntime refuses the file
        return None
    return proto


def _updates_unread(graph: onnx.GraphProto) -> bool:
    """Whether a batch normalisation in training mode has running statistics of which one is read by nobody."""
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    inner = [body for node in graph.node for body in subgraphs(node)]
    read |= {name for other in inner for node in other.node for name in node.input}
    trains = (
        node
        for node in graph.node
        if node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)
    )
    return any(not read.issuperset(node.output[1:]) for node in trains) or any(map(_updates_unread, inner))


def _trapped(nodes: Any) -> bool:
    return _names_any(nodes, {name.decode() for name in TRAPS})


def _names_any(nodes: Any, names: Collection[str]) -> bool:
    return any(node.op_type in names or any(_names_any(body.node, names) for body in subgraphs(node)) for node in nodes)
