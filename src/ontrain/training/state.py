"""The trainer's state_dict: what it holds, and how one is checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ontrain.errors import CheckpointError, nearest
from ontrain.session import TrainingSession

__all__ = ["apply_state_dict", "make_state_dict"]

# onnxruntime's names for an optimizer's state, by ours.
_UPSTREAM = {
    "exp_avg": "Moment_1",
    "exp_avg_sq": "Moment_2",
    "momentum_buffer": "Momentum_Buffer",
    "grad_acc": "Gradient",
}
_OURS = {theirs: ours for ours, theirs in _UPSTREAM.items()}


def make_state_dict(session: TrainingSession, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of parameters and buffers, moments, counters and the options that a load must match.

    `parts` are the loss scaler and the scheduler, where there are such, each with a `state_dict` of plain values.
    """
    optimizer: dict[str, dict[str, torch.Tensor]] = {}
    for name in session.trainable:
        kinds = [*session.optimizer.state_names(name)]
        kinds += [f"{name}.grad_acc"] if f"{name}.grad_acc" in session.state else []
        optimizer[name] = {_UPSTREAM[kind.removeprefix(f"{name}.")]: _copy(session, kind) for kind in kinds}
    if "loss_weight_acc" in session.state:
        optimizer["loss_weight_acc"] = {"Gradient": _copy(session, "loss_weight_acc")}
    counters = session.counters
    return {
        "model": {"fp32": {name: _copy(session, name) for name in session.model_tensors}},
        "optimizer": optimizer,
        "trainer_options": {
            "mixed_precision": session.precision is not None,
            "zero_stage": 0,
            "world_rank": 0,
            "world_size": 1,
            "optimizer_name": session.optimizer.algorithm,
        },
        "train_step_info": {
            "optimization_step": counters.updates,
            "step": counters.micro_steps,
            "pending": counters.pending,
            "seed": session.seed,
        },
        **{name: part.state_dict() for name, part in parts.items()},
    }


def apply_state_dict(
    session: TrainingSession, state: Mapping[str, Any], strict: bool, parts: Mapping[str, Any]
) -> None:
    """Check a state_dict against the session, then take it over.

    Raises:
        CheckpointError: lists every name that is missing, unexpected or of another shape; nothing was changed.
    """
    model = state.get("model", {}).get("fp32") if isinstance(state.get("model"), Mapping) else None
    if model is None:
        raise CheckpointError(
            "this is no state_dict of ORTTrainer", reason="it has no ['model']['fp32']",
            way_out="for a plain state_dict call load_state_dict of the module itself before the first step",
        )  # fmt: skip
    wanted = {name: torch.as_tensor(session.state[name]) for name in session.model_tensors}
    _compare("parameter", wanted, model, strict)
    moments: dict[str, torch.Tensor] = {}
    for name, kinds in state.get("optimizer", {}).items():
        for kind, tensor in kinds.items():
            moments[name if name == "loss_weight_acc" else f"{name}.{_OURS.get(kind, kind)}"] = tensor
    resident = {name: torch.as_tensor(session.state[name]) for name in session.state if name not in wanted}
    if moments:
        algorithm = state.get("trainer_options", {}).get("optimizer_name")
        if algorithm != session.optimizer.algorithm:
            raise CheckpointError(
                f"the state is of optimizer {algorithm}, this trainer uses {session.optimizer.algorithm}"
            )
        _compare("optimizer state", resident, moments, strict)
    # A state from before mixed precision, or without a scheduler, leaves what the trainer has.
    before = {name: part.state_dict() for name, part in parts.items()}
    try:
        for name, part in parts.items():
            if name in state:
                part.load_state_dict(dict(state[name]))
    except CheckpointError:
        for name, part in parts.items():
            part.load_state_dict(before[name])
        raise
    for name, tensor in {**model, **moments}.items():
        if name in session.state:
            session.state[name] = tensor
    seen = state.get("train_step_info", {})
    session.counters.updates = int(seen.get("optimization_step", 0))
    session.counters.micro_steps = int(seen.get("step", 0))
    session.counters.pending = int(seen.get("pending", 0))
    session.seed = int(seen.get("seed", session.seed))


def _copy(session: TrainingSession, name: str) -> torch.Tensor:
    return torch.as_tensor(session.state[name]).detach().clone()


def _compare(what: str, wanted: Mapping[str, Any], given: Mapping[str, Any], strict: bool) -> None:
    problems: list[str] = []
    for name, tensor in wanted.items():
        if name not in given:
            problems += [f"missing {what} {name!r}"] if strict else []
        elif tuple(torch.as_tensor(given[name]).shape) != tuple(tensor.shape):
            have = list(torch.as_tensor(given[name]).shape)
            problems.append(f"{what} {name!r} has shape {have}, the model's is {list(tensor.shape)}")
    for name in given:
        if name not in wanted and strict:
            problems.append(f"unexpected {what} {name!r} (nearest: {nearest(name, wanted, 1)})")
    if wanted and given and not set(wanted) & set(given):
        problems.append(f"no {what} of the model is in it")
    if problems:
        raise CheckpointError(
            "the state does not fit the model:\n    " + "\n    ".join(problems),
            way_out="load it into the model it was saved from, or pass strict=False for missing and unexpected names",
        )
