"""A trained module as an ONNX file of standard operators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ontrain.capture import Captured, capture
from ontrain.session.export import inference_model, save_model


def write_captured(
    captured: Captured, outputs: Sequence[str], path: Path | str, properties: Mapping[str, str] | None = None
) -> None:
    """Write a captured module with its present weights; the file appears under its name when it is complete."""
    tensors = {**captured.parameters, **captured.buffers}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    model = inference_model(captured.model, arrays, outputs)
    model.metadata_props.update(properties or {})
    save_model(model, os.fspath(path))


def export(
    module: nn.Module, inputs: Mapping[str, Any], dims: Sequence[str], outputs: Sequence[str], path: Any
) -> None:
    """Write a module in evaluation mode.

    Args:
        module: takes the inputs by their names.
        inputs: samples.
        dims: names of the inputs' dimensions, which may vary.
        outputs: names of the results.
        path: of the file.
    """
    dynamic = [dict(enumerate(dims))] * len(inputs)
    captured = capture(module.eval(), kwargs=dict(inputs), dynamic=dynamic, output_names=list(outputs))
    write_captured(captured, list(outputs), path)
