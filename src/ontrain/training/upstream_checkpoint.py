"""Checkpoint files of onnxruntime.training, `{prefix}.ort.pt`: read as tensors and numbers, never run as code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ontrain.errors import CheckpointError

__all__ = ["read_upstream_checkpoint"]

_MOMENTS = ("Moment_1_", "Moment_2_")
_COUNT = "Update_Count_"


def read_upstream_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flat state of such a file, as `experimental_state_dict` gives it, and what the user had put beside it.

    Upstream counts updates from 1, and keeps names under the module that it wraps around model and loss, and copies of
    the weights in half precision: the first two are translated, the copies left out.

    Raises:
        CheckpointError: the file is no such checkpoint, is torn, or holds anything but tensors and plain values.
    """
    # Torch raises pickle's error; the module itself is not for us to import.
    refused = torch.serialization.pickle.UnpicklingError  # type: ignore[attr-defined]
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (refused, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(
            f"cannot read {str(path)!r}",
            reason=str(error).strip().partition("\n")[0],
            way_out="only tensors and plain values are read from such a file; write it anew from what you trust",
        ) from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{str(path)!r} holds a {type(content).__name__}", way_out="give a checkpoint's file")
    nested = isinstance(content.get("model"), Mapping)
    model: Mapping[str, Any] = content["model"] if nested else content
    beside = {key: value for key, value in content.items() if key != "model"} if nested else {}
    flat: dict[str, Any] = {}
    for name, value in model.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"{name!r} in {str(path)!r} is a {type(value).__name__}, and no tensor")
        if name == "Step" or name.startswith(_COUNT):
            flat["Step"] = value - 1
        elif not name.endswith("_fp16"):
            flat[_own(name)] = value
    return flat, beside


def _own(name: str) -> str:
    """The name of a parameter or moment in the module itself."""
    start = next((one for one in _MOMENTS if name.startswith(one)), "")
    return start + name.removeprefix(start).removeprefix("model_.")
