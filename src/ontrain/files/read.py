"""From a path, bytes or a message to a `ModelProto` that holds all its data and lies inside its folder."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import onnx

from ontrain.disk import open_file, read_file
from ontrain.errors import GraphError, OptionError
from ontrain.files.expansion import check_expansion
from ontrain.files.inner_graphs import subgraphs
from ontrain.files.left import LeftData, left_data, may_be_left
from ontrain.files.sparse import made_dense
from ontrain.files.tensors import raw_size
from ontrain.places import model_file

__all__ = ["Source", "check_external", "read_proto", "tensors_of"]

Source = str | os.PathLike[str] | bytes | onnx.ModelProto

_MOST = 2**31 - 1
"""Bytes of one message, by protobuf's rules."""
_OUTSIDE = "give a regular file below 2 GiB; larger models keep their weights in files beside them"


def read_proto(
    source: Source, *, folder: str | os.PathLike[str] | None = None, brought: Collection[str] = (),
    contents: Mapping[str, bytes] | None = None, leaves: bool = False,
) -> tuple[onnx.ModelProto, str]:  # fmt: skip
    """Return the model with its external data read in and its sparse tensors dense, and what to call it in messages.

    Args:
        source: a path, the file's bytes, or a message.
        folder: where external data lie of a model that is no path.
        brought: names of initializers whose values the caller has; their external data is left unread.
        contents: of files with external data by their names, which then need not be on the disk.
        leaves: whether large initializers stay in their files; see `ontrain.files.left`.

    Raises:
        InputError: there is no such file.
        OptionError: the source is of another kind.
        GraphError: it is no ONNX model, its functions expand beyond all proportion, or its external data is missing,
            short, or outside the model's folder.
    """
    proto, name, place = _opened(source, folder)
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise GraphError(f"{name} holds no graph", way_out="give a file written by onnx.save or an exporter")
    check_expansion(proto, name)
    proto = made_dense(proto, name)
    contents = contents or {}
    for graph in _graphs(proto.graph):
        for tensor in graph.initializer:
            if _is_elsewhere(tensor, brought) and not (
                leaves and graph is proto.graph and _left(tensor, place, name, contents)
            ):
                _read_external(tensor, place, name, contents)
    for tensor in tensors_of(proto):
        if _is_elsewhere(tensor, brought) and left_data(tensor) is None:
            raise GraphError(
                f"the constant {tensor.name!r} in {name} lies in a file of its own",
                reason="only initializers may have external data",
                way_out="store it in the model with onnx.external_data_helper.convert_model_from_external_data",
            )
    return proto, name


def _is_elsewhere(tensor: onnx.TensorProto, brought: Collection[str]) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL and tensor.name not in brought


def _opened(source: Source, folder: str | os.PathLike[str] | None) -> tuple[onnx.ModelProto, str, Path | None]:
    """The message, its name in messages, and where its external data lie."""
    place = None if folder is None else Path(folder)
    if isinstance(source, onnx.ModelProto):
        return source, "the model", place
    if isinstance(source, bytes):
        return _parse(source, "the model"), "the model", place
    if not isinstance(source, str | os.PathLike):
        raise OptionError(
            f"the model is a {type(source).__name__}",
            way_out="give the path of an ONNX file, its bytes, or an onnx.ModelProto",
        )
    path = model_file(source)
    try:
        content = read_file(path, _MOST)
    except OSError as error:
        raise GraphError(f"{path.name} cannot be read", reason=str(error), way_out=_OUTSIDE) from error
    return _parse(content, repr(os.fspath(source))), path.name, path.parent


def _parse(content: bytes, name: str) -> onnx.ModelProto:
    if content[4:8] == b"ORTM":
        raise GraphError(
            f"{name} is in onnxruntime's own format",
            reason="only onnxruntime's providers read it",
            way_out="use CPUExecutionProvider, or the ONNX file that it was made from",
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # protobuf's errors share no base but Exception
        raise GraphError(
            f"{name} is no ONNX model, or is damaged",
            reason=str(error),
            way_out="export the model again, or copy the whole file",
        ) from error
    return proto


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Return every tensor of a model: initializers and constants, in subgraphs and functions too."""
    for graph in _graphs(proto.graph):
        yield from graph.initializer
        yield from _constants(graph.node)
    for function in proto.functions:
        yield from _constants(function.node)
        for node in function.node:
            for inner in subgraphs(node):
                for graph in _graphs(inner):
                    yield from graph.initializer
                    yield from _constants(graph.node)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    # A message nests a hundred deep at most, so that recursion ends.
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)


def _constants(nodes: Iterator[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def check_external(tensor: onnx.TensorProto, folder: Path | None, model: str) -> None:
    """Check where a tensor's bytes lie without reading them: a relative path that stays in the folder, links followed.

    A file that is not there is no fault: the session's options may have the bytes.

    Raises:
        GraphError: they lie outside, are short or too many, or lie in what is no regular file.
    """
    try:
        _external(tensor, folder, model, read=False)
    except GraphError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


def _read_external(
    tensor: onnx.TensorProto, folder: Path | None, model: str, contents: Mapping[str, bytes]
) -> None:  # fmt: skip
    """Move a tensor's bytes from their file into the message; see `check_external`."""
    left = left_data(tensor)
    try:
        tensor.raw_data = left.read() if left else _external(tensor, folder, model, read=True, contents=contents)
    except OSError as error:
        raise GraphError(f"the data of {tensor.name!r} in {model} cannot be read", reason=str(error)) from error
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.DEFAULT


def _left(tensor: onnx.TensorProto, folder: Path | None, model: str, contents: Mapping[str, bytes]) -> bool:
    """Leave a large tensor's bytes where they are, and check them; return whether they are left."""
    if left_data(tensor) is not None:
        return True
    location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
    if location in contents or not may_be_left(tensor, raw_size(tensor, f"initializer {tensor.name!r} in {model}")):
        return False
    place = _place(tensor, folder, model)
    place.mark(tensor)
    return True


def _external(
    tensor: onnx.TensorProto,
    folder: Path | None,
    model: str,
    *,
    read: bool,
    contents: Mapping[str, bytes] | None = None,
) -> bytes:
    what = f"the external data of initializer {tensor.name!r} in {model}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    content = (contents or {}).get(location)
    if content is not None:
        offset, length = _stretch(tensor, entries, len(content), what)
        return content[offset : offset + length]
    place = _place(tensor, folder, model)
    try:
        return place.read() if read else b""
    except OSError as error:
        raise GraphError(f"{what} cannot be read", reason=str(error)) from error


def _place(tensor: onnx.TensorProto, folder: Path | None, model: str) -> LeftData:
    """Where a tensor's bytes lie; see `check_external`."""
    what = f"the external data of initializer {tensor.name!r} in {model}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise GraphError(f"{what} has no folder to lie in", way_out="give the model's path instead of its content")
    inside = folder.resolve()
    if not location or "\0" in location:
        raise GraphError(f"{what} names no file")
    path = (inside / location).resolve()
    if Path(location).is_absolute() or ".." in Path(location).parts or not path.is_relative_to(inside):
        raise GraphError(
            f"{what} lies outside the model's folder",
            reason=f"its location is {location!r}",
            way_out="a model file may name files beside it only; move the data there and save the model again",
        )
    try:
        with open_file(path) as file:
            return LeftData(str(path), *_stretch(tensor, entries, os.fstat(file.fileno()).st_size, what))
    except (OSError, RuntimeError) as error:  # links that go in a circle are a RuntimeError before Python 3.13
        raise GraphError(
            f"{what} cannot be read", reason=str(error), way_out=f"put {location!r} beside the model"
        ) from error


def _stretch(tensor: onnx.TensorProto, entries: Mapping[str, str], size: int, what: str) -> tuple[int, int]:
    """Where a tensor's bytes begin in a file of so many bytes, and how many they are."""
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
    except ValueError as error:
        raise GraphError(f"{what} has an offset or length that is no number", reason=str(error)) from error
    length = size - offset if "length" not in entries else length
    if offset < 0 or length < 0 or offset + length > size:
        raise GraphError(
            f"{what} is short",
            reason=f"bytes {offset} to {offset + length} of {entries['location']!r} are named, it has {size}",
            way_out="copy the whole data file",
        )
    wanted = raw_size(tensor, what.removeprefix("the external data of "))
    if length != wanted:
        raise GraphError(
            f"{what} has {length} bytes, its shape {list(tensor.dims)} needs {wanted}",
            way_out="copy the model and its data file from one export",
        )
    return offset, length
