"""The files of the artifacts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx

from ontrain.errors import OptionError, ProviderError
from ontrain.stock import stock

onnxruntime = stock()

__all__ = ["check_folder", "save"]


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Return an existing folder that can be written to.

    Raises:
        OptionError: it is none.
    """
    path = Path(folder)
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise OptionError(
            f"cannot write to the folder {os.fspath(folder)!r}",
            reason="it does not exist" if not path.exists() else "it is no folder, or is not writable",
            way_out="create the folder, or choose another one as artifact_directory",
        )
    return path


def save(model: onnx.ModelProto, path: Path, *, ort_format: bool) -> None:
    """Write a model beside its place and rename it there; with `ort_format` a second file of that format, too."""
    _replace(path, model.SerializeToString())
    if ort_format:
        _replace(path.with_suffix(".ort"), _as_ort(model))


def _as_ort(model: onnx.ModelProto) -> bytes:
    """The model in onnxruntime's own format, without optimisations that belong to this machine."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    options.add_session_config_entry("session.save_model_format", "ORT")
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "model.ort")
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise ProviderError("onnxruntime cannot convert the model to its format", reason=str(error)) from error
        return (Path(folder) / "model.ort").read_bytes()


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.partial")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        raise OptionError(f"cannot write {os.fspath(path)!r}", reason=str(error)) from error
