"""onnxruntime's own format (`.ort`): only onnxruntime reads and writes it, so it converts models from it and to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ontrain.disk import open_file
from ontrain.errors import GraphError, OptionError
from ontrain.inference.options import config_entry
from ontrain.inference.upstream_errors import also, told_by_onnxruntime, upstream
from ontrain.stock import stock

__all__ = ["as_onnx", "as_ort", "check_stated_format", "is_ort_format", "wants_ort_format"]

_SAVED = "session.save_model_format"
_LOADED = "session.load_model_format"


def is_ort_format(source: str | bytes) -> bool:
    """Return whether a model is in onnxruntime's own format.

    Args:
        source: a path, or the file's bytes.
    """
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"
    try:
        with open_file(source) as file:
            return bool(file.read(8)[4:8] == b"ORTM")
    except OSError:  # whoever reads the model says what hinders
        return False


def check_stated_format(source: str | bytes, options: Any) -> None:
    """Refuse a model that is not in this format where the options say that it is.

    Args:
        source: a path, or the file's bytes.
        options: of the session, or None.

    Raises:
        GraphError: it is in another format.
    """
    if config_entry(options, _LOADED) == "ORT" and not is_ort_format(source):
        error = GraphError(
            "the model is not in onnxruntime's own format",
            reason=f"the entry {_LOADED!r} says that it is",
            way_out="leave the entry out, or set it to ONNX",
        )
        raise also(error, upstream("Fail"))


def wants_ort_format(options: Any, path: str) -> bool:
    """Return whether the optimised model at a path is to be in this format, by the rules of onnxruntime.

    Args:
        options: of the session, or None.
        path: of the optimised model.
    """
    asked = config_entry(options, _SAVED)
    return asked.upper() == "ORT" if asked else path.endswith(".ort")


def as_onnx(source: str | bytes, libraries: Iterable[str] = ()) -> bytes:
    """Return a model of this format as an ONNX file.

    The operators are those that the file has: onnxruntime may have fused them when it wrote the file.

    Args:
        source: a path, or the file's bytes.
        libraries: paths of libraries with the custom operators that it uses.

    Raises:
        GraphError: onnxruntime cannot read the file.
    """
    with told_by_onnxruntime(
        lambda error: GraphError("onnxruntime cannot read a model in its own format", reason=str(error))
    ):
        return _converted(source, "ONNX", libraries)


def as_ort(model: bytes) -> bytes:
    """Return an ONNX file in this format, with the nodes that it has.

    Raises:
        OptionError: onnxruntime cannot write it.
    """
    with told_by_onnxruntime(
        lambda error: OptionError(
            "onnxruntime cannot write the optimised model in its own format",
            reason=str(error),
            way_out=f"leave out the entry {_SAVED!r}, and choose a path that ends in .onnx",
        )  # fmt: skip
    ):
        return _converted(model, "ORT")


def _converted(source: str | bytes, kind: str, libraries: Iterable[str] = ()) -> bytes:
    upper = stock()
    options = upper.SessionOptions()
    options.graph_optimization_level = upper.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry(_SAVED, kind)
    for library in libraries:
        options.register_custom_ops_library(library)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        options.optimized_model_filepath = str(path)
        upper.InferenceSession(source, options, ["CPUExecutionProvider"])
        return path.read_bytes()
