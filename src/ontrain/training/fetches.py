"""Which outputs of a step its caller gets: all that are described, or those that are asked for by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch

from ontrain.arguments import checked_names
from ontrain.errors import InputError, OptionError, nearest
from ontrain.session import TrainingSession
from ontrain.training.model_desc import ModelDescription

__all__ = ["check_fetches", "chosen_names", "compare_description", "fetched", "refuse_empty"]

_OF_UPDATES = ("grad_norm", "all_finite")
"""Outputs that a step with an update has beside those of the model."""


def chosen_names(description: ModelDescription, fetches: Sequence[str]) -> list[str]:
    """Return the names of the outputs to return; without any, all that are described."""
    return checked_names("fetches", fetches) or [d.name for d in description.outputs]


def check_fetches(session: TrainingSession, description: ModelDescription, names: Sequence[str]) -> None:
    """Raise OptionError, before a step, for a name that its outputs will not have."""
    described = [d.name for d in description.outputs]
    updating = session.counters.pending + 1 == session.accumulation_steps
    for name in names:
        if name not in (*described, *(_OF_UPDATES if updating else ())):
            raise OptionError(
                f"there is no output {name!r} to fetch",
                reason="it is known after an update only" if name in _OF_UPDATES else None,
                way_out=f"nearest: {nearest(name, [*described, *_OF_UPDATES])}",
            )


def fetched(
    description: ModelDescription, outputs: Mapping[str, torch.Tensor], names: Sequence[str]
) -> torch.Tensor | list[torch.Tensor]:
    """Return the outputs of these names as a list, a single one as itself."""
    for name in names:
        if name not in outputs:
            described = [d.name for d in description.outputs]
            raise OptionError(f"there is no output {name!r} to fetch", way_out=f"nearest: {nearest(name, described)}")
    values = [outputs[name] for name in names]
    return values[0] if len(values) == 1 else values


def refuse_empty(batch: Mapping[str, torch.Tensor]) -> None:
    """Raise InputError for a batch of no rows."""
    for name, tensor in batch.items():
        if tensor.ndim and not tensor.shape[0]:
            raise InputError(
                f"input {name!r} is empty: {list(tensor.shape)}", reason="there is nothing to learn from it",
                way_out="leave the batch out",
            )  # fmt: skip


def compare_description(description: ModelDescription, tensors: Mapping[str, torch.Tensor]) -> None:
    """Warn where the first batch and its outputs have other dimensions than model_desc says."""
    for described in (*description.inputs, *description.outputs):
        tensor = tensors.get(described.name)
        if tensor is not None and described.disagrees(tensor.shape):
            warnings.warn(
                f"model_desc describes {described.name!r} as {list(described.shape)}, in the first batch it is "
                f"{list(tensor.shape)}: training goes on with the batch's; correct the description",
                stacklevel=4,
            )
