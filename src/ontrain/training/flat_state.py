"""The first API's state_dict: one flat dictionary of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["flat_state", "nested_state"]

_KINDS = ("Moment_1", "Moment_2", "Momentum_Buffer", "Gradient")
_STEP, _MICRO, _PENDING, _SEED = "Step", "Micro_Step", "Pending", "Seed"
_COUNTERS = {"optimization_step": _STEP, "step": _MICRO, "pending": _PENDING, "seed": _SEED}


def flat_state(state: Mapping[str, Any], include_optimizer_state: bool) -> dict[str, torch.Tensor]:
    """Return the later trainer's state_dict in one level: "fc.weight", "Moment_1_fc.weight", "Step"."""
    flat: dict[str, torch.Tensor] = dict(state["model"]["fp32"])
    if include_optimizer_state:
        for parameter, kinds in state["optimizer"].items():
            flat.update({f"{kind}_{parameter}": tensor for kind, tensor in kinds.items()})
        info = state["train_step_info"]
        flat.update({name: torch.tensor([info[key]]) for key, name in _COUNTERS.items()})
    return flat


def nested_state(flat: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return a flat state as the later trainer's state_dict; `algorithm` is the optimizer that the moments are of."""
    model: dict[str, Any] = {}
    optimizer: dict[str, dict[str, Any]] = {}
    info: dict[str, int] = {}
    for name, tensor in flat.items():
        kind = next((one for one in _KINDS if name.startswith(f"{one}_")), None)
        if kind is not None:
            optimizer.setdefault(name.removeprefix(f"{kind}_"), {})[kind] = tensor
        elif name in _COUNTERS.values():
            key = next(key for key, value in _COUNTERS.items() if value == name)
            info[key] = int(torch.as_tensor(tensor).item())
        else:
            model[name] = tensor
    return {
        "model": {"fp32": model},
        "optimizer": optimizer,
        "trainer_options": {"optimizer_name": algorithm},
        "train_step_info": info,
    }
