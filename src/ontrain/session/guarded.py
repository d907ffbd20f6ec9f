"""A file that stock onnxruntime is to run: looked at first, and guarded where it could end the process or never end."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnxruntime

from ontrain.capture.onnx_file.expansion import call_depth, check_expansion
from ontrain.capture.onnx_file.read import check_external, tensors_of
from ontrain.disk import open_file
from ontrain.errors import GraphError, InputError
from ontrain.graph.traps import TRAPS, guard

__all__ = ["guarded"]

_EXTERNAL = b"location"
_ORT_FORMAT = b"ORTM"
_FUNCTIONS = onnx.ModelProto.DESCRIPTOR.fields_by_name["functions"].number
_DEEPEST = 500
"""Functions that call one another in a row: onnxruntime follows them by recursion, and dies of 3,000."""
_FOLDER = "session.model_external_initializers_file_folder_path"


def guarded(source: str | bytes, options: Any) -> tuple[str | bytes, Any]:
    """Return the source for onnxruntime and its session options: as they are, or a model with guards in its place.

    Only a file that names an operator of `TRAPS`, or data in another file, or that has functions, is parsed here.

    Raises:
        InputError: the file cannot be read.
        GraphError: external data lies outside of the model's folder or is no file; a division cannot be guarded; or
            functions expand beyond all proportion, or call one another too deep.
    """
    proto = _suspect(source)
    if proto is None:
        return source, options
    folder = None if isinstance(source, bytes) else Path(source).parent
    name = "the model" if folder is None else Path(str(source)).name
    external = [tensor for tensor in tensors_of(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in external:
        check_external(tensor, folder, name)
    check_expansion(proto, name)
    depth = call_depth(proto)
    if depth > _DEEPEST:
        raise GraphError(
            f"{name} has functions that call one another {depth} deep",
            reason=f"onnxruntime follows {_DEEPEST} safely",
            way_out="use one of ontrain's providers, TorchExecutionProvider",
        )
    if proto.functions and any(_trapped(function.node) for function in proto.functions):
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
            raise GraphError(f"the functions of {name} cannot be inlined", reason=str(error)) from error
    if not guard(proto):
        return source, options
    if external:
        options = onnxruntime.SessionOptions() if options is None else options
        options.add_session_config_entry(_FOLDER, os.path.abspath(str(folder)))
    return proto.SerializeToString(), options


def _suspect(source: str | bytes) -> onnx.ModelProto | None:
    """The file as a message, if it names what must be looked at, and is one."""
    if isinstance(source, bytes):
        return _parsed(source) if _names_any(source) else None
    try:
        with open_file(source) as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _parsed(content[:]) if _names_any(content) else None
    except (OSError, ValueError) as error:
        raise InputError(f"{source!r} cannot be read", reason=str(error)) from error


def _names_any(content: bytes | mmap.mmap) -> bool:
    # A file of onnxruntime's own format is read by nothing else.
    if content[4:8] == _ORT_FORMAT:
        return False
    return _has_functions(content) or any(content.find(name) >= 0 for name in (*TRAPS, _EXTERNAL))


def _has_functions(content: bytes | mmap.mmap) -> bool:
    """Whether a field of the message is a function: the fields are walked over, none is read."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        if tag >> 3 == _FUNCTIONS:
            return True
        kind = tag & 7
        if kind == 0:
            _, at = _varint(content, at)
        elif kind == 2:
            length, at = _varint(content, at)
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return False  # no message
    return False


def _varint(content: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """A number of protobuf's and the place behind it; a file that ends within gives what there is."""
    value = 0
    for i, byte in enumerate(content[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    return value, len(content)


def _parsed(content: bytes) -> onnx.ModelProto | None:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception:  # noqa: BLE001  # protobuf's errors share no base but Exception; onnxruntime refuses the file
        return None
    return proto


def _trapped(nodes: Any) -> bool:
    names = {name.decode() for name in TRAPS}
    return any(
        node.op_type in names or any(_trapped(a.g.node) for a in node.attribute if a.HasField("g")) for node in nodes
    )
