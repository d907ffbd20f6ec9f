"""The first API's state_dict: one flat dictionary of tensors."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from ontrain.errors import CheckpointError
from ontrain.internals import tensor_of
from ontrain.training.state import FULL_PRECISION

__all__ = ["flat_state", "nested_state"]

_KINDS = ("Moment_1", "Moment_2", "Momentum_Buffer", "Gradient")
_STEP, _MICRO, _PENDING, _SEED, _START = "Step", "Micro_Step", "Pending", "Seed", "Schedule_Start"
_RUN = "Run_State"
"""What is not a tensor: loss scale, schedule, and whose moments these are, as the bytes of JSON."""
_COUNTERS = {"optimization_step": _STEP, "step": _MICRO, "pending": _PENDING, "seed": _SEED, "schedule_start": _START}


def flat_state(state: Mapping[str, Any], include_optimizer_state: bool) -> dict[str, torch.Tensor]:
    """Return the later trainer's state_dict in one level: "fc.weight", "Moment_1_fc.weight", "Step", "Run_State".

    Warns:
        UserWarning: the moments are one process's share (ZeRO stage 1): each has to save its own.
    """
    flat: dict[str, torch.Tensor] = dict(state["model"][FULL_PRECISION])
    if include_optimizer_state:
        for parameter, kinds in state["optimizer"].items():
            flat.update({f"{kind}_{parameter}": tensor for kind, tensor in kinds.items()})
        info = state["train_step_info"]
        flat.update({name: torch.tensor([info[key]], device="cpu") for key, name in _COUNTERS.items() if key in info})
        plain = {key: value for key, value in state.items() if key not in ("model", "optimizer", "train_step_info")}
        flat[_RUN] = torch.frombuffer(bytearray(_json(plain)), dtype=torch.uint8)
        if "partition_info" in plain:
            said = plain["trainer_options"]
            warnings.warn(
                f"this state has the share of the moments that rank {said['world_rank']} of {said['world_size']} keeps "
                "(ZeRO stage 1), and only that rank can load it: call save_checkpoint in all processes instead",
                stacklevel=3,
            )
    return flat


def _json(plain: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(plain).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            "the state of the loss scaler or the scheduler is no plain JSON", reason=str(error),
            way_out="return numbers, texts, lists and dictionaries from its state_dict",
        ) from error  # fmt: skip


def _parsed(tensor: object) -> dict[str, Any]:
    try:
        entries = json.loads(tensor_of(tensor).to(torch.uint8).cpu().numpy().tobytes())
        return {"trainer_options": dict(entries.pop("trainer_options")), **entries}
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{_RUN!r} of the state is damaged", reason=str(error), way_out="leave it out to load tensors and counters"
        ) from error


def _number(name: str, tensor: object) -> int:
    try:
        return int(tensor_of(tensor).item())
    except (RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{name!r} of the state is {tensor!r}, and no number") from error


def nested_state(flat: Mapping[str, object], algorithm: str) -> dict[str, Any]:
    """Return a flat state as the later trainer's state_dict; that one itself stays what it is.

    Args:
        flat: made by `flat_state`, or by onnxruntime.
        algorithm: the optimizer that the moments are of, if the state does not say it.

    Raises:
        CheckpointError: what it says beside its tensors cannot be read.
    """
    model: dict[str, Any] = {}
    optimizer: dict[str, dict[str, Any]] = {}
    info: dict[str, int] = {}
    plain: dict[str, Any] = {"trainer_options": {"optimizer_name": algorithm}}
    if not isinstance(flat, Mapping):
        raise CheckpointError(f"the state is a {type(flat).__name__}", way_out="give a dictionary of tensors by name")
    if isinstance(flat.get("model"), Mapping):
        return dict(flat)
    for name, tensor in flat.items():
        if not isinstance(name, str):
            raise CheckpointError(f"the state has the key {name!r}", way_out="give a dictionary of tensors by name")
        kind = next((prefix for prefix in _KINDS if name.startswith(f"{prefix}_")), None)
        if kind is not None:
            optimizer.setdefault(name.removeprefix(f"{kind}_"), {})[kind] = tensor
        elif name in _COUNTERS.values():
            key = next(key for key, value in _COUNTERS.items() if value == name)
            info[key] = _number(name, tensor)
        elif name == _RUN:
            plain = _parsed(tensor)
        else:
            model[name] = tensor
    return {**plain, "model": {FULL_PRECISION: model}, "optimizer": optimizer, "train_step_info": info}
