"""What a session may be made of: the path of a file, its bytes, or a message."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ontrain.errors import InputError, OntrainError
from ontrain.inference.upstream_errors import also, upstream

__all__ = ["model_source"]


def model_source(source: object) -> str | bytes:
    """Return the path of a model, or its bytes.

    Raises:
        InputError: there is no such file, it is no source of a model, or a message is too large for bytes.
    """
    if isinstance(source, bytes):
        return source
    onnx = sys.modules.get("onnx")  # who has a message has imported it
    if onnx is not None and isinstance(source, onnx.ModelProto):
        try:
            return bytes(source.SerializeToString())
        except Exception as error:  # protobuf's errors share no base but Exception
            raise InputError(
                "the model cannot be written as bytes", reason=f"{error}: protobuf writes less than 2 GiB",
                way_out="save it by onnx.save(model, path, save_as_external_data=True), and give the path",
            ) from error  # fmt: skip
    if not isinstance(source, str | os.PathLike):
        raise also(
            InputError(
                f"the model is a {type(source).__name__}",
                reason=f"Unable to load from type '{type(source)}'",
                way_out="give the path of an ONNX file, its bytes, or an onnx.ModelProto",
            ),
            TypeError,
        )
    path: str = os.fspath(source)
    if not Path(path).is_file():
        raise _no_file(path)
    return path


def _no_file(path: str) -> OntrainError:
    """The error that a path leads to no file, also of the class that onnxruntime raises."""
    reason, kind = "File doesn't exist", "NoSuchFile"
    if Path(path).is_dir() and path:
        reason, kind = "it is a folder", "InvalidProtobuf"
    elif any(above.is_file() for above in Path(path).parents):
        reason, kind = "a part of it is a file and no folder", "Fail"
    error = InputError(
        f"there is no model file {path!r}", reason=f"Load model from {path} failed: {reason}",
        way_out="give the path of an ONNX file",
    )  # fmt: skip
    return also(error, upstream(kind))
