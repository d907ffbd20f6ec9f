"""Parameters of a training block into a checkpoint file, and from one into a model."""

from __future__ import annotations

import os

import onnx

from ontrain.arguments import checked_flag, checked_kind
from ontrain.errors import CheckpointError, nearest
from ontrain.training.api import checkpoint_file
from ontrain.training.api.checkpoint_file import Content
from ontrain.training.onnxblock.training import Parameters, check_parameters

__all__ = ["load_checkpoint_to_model", "save_checkpoint"]


def save_checkpoint(
    parameters: Parameters, path_to_checkpoint: str | os.PathLike[str], nominal_checkpoint: bool = False
) -> None:
    """Write parameters as a checkpoint that `CheckpointState.load_checkpoint` reads.

    Args:
        parameters: what `TrainingBlock.parameters` returns.
        path_to_checkpoint: the file.
        nominal_checkpoint: write names, shapes and dtypes without the values.

    Raises:
        OptionError: the file cannot be written.
    """
    trained, others = check_parameters(parameters)
    checked_flag("nominal_checkpoint", nominal_checkpoint)
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in (*trained, *others)}
    content = Content(values, [tensor.name for tensor in trained], nominal=nominal_checkpoint)
    checkpoint_file.write(path_to_checkpoint, content)


def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    """Put the values of a checkpoint into the initializers of a model for inference, in place.

    Raises:
        CheckpointError: the file is damaged, nominal, or a parameter has another shape or no initializer.
    """
    checked_kind("the model", model, onnx.ModelProto, "give an onnx.ModelProto; onnx.load reads a file")
    content = checkpoint_file.read(path_to_checkpoint)
    if content.nominal:
        raise CheckpointError("a nominal checkpoint holds no values", way_out="give the full one")
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, array in content.parameters.items():
        if name not in known:
            raise CheckpointError(f"the model has no initializer {name!r}", way_out=f"nearest: {nearest(name, known)}")
        if list(known[name].dims) != list(array.shape):
            raise CheckpointError(
                f"{name!r} has shape {list(array.shape)} in the checkpoint and {list(known[name].dims)} in the model"
            )
    for name, array in content.parameters.items():
        known[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
