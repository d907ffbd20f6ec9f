"""The trainer's state_dict: what it holds, how one is checked before anything is changed, and its place in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from ontrain import __version__
from ontrain.checkpoint import parsed_name, tensor_name
from ontrain.errors import CheckpointError, nearest
from ontrain.graph import Slot, StateKind
from ontrain.internals import tensor_of
from ontrain.session import TrainingSession
from ontrain.training.shared_state import (
    GRADIENT,
    Place,
    check_partition,
    joined_files,
    moment_places,
    own_sums,
    partition_of,
    place_of,
    placed_moments,
    shard_files,
    wanted_moments,
)

__all__ = ["FULL_PRECISION", "apply_state_dict", "check_state", "from_files", "make_state_dict", "to_files"]

FULL_PRECISION = "full_precision"
"""Where a state_dict has the weights; onnxruntime's first releases, and states of ontrain before, say "fp32"."""

# onnxruntime's names for what is kept of a parameter.
_UPSTREAM = {
    StateKind.EXP_AVG: "Moment_1",
    StateKind.EXP_AVG_SQ: "Moment_2",
    StateKind.MOMENTUM: "Momentum_Buffer",
    StateKind.GRADIENT_SUM: GRADIENT,
}
_OURS: dict[str, str] = {theirs: ours for ours, theirs in _UPSTREAM.items()}
_TOLD = 20
"""How many of the names that do not fit a message lists."""
_LABEL_COUNT = Slot("", StateKind.LABEL_COUNT).name
_COUNTERS = ("optimization_step", "step", "pending", "seed", "schedule_start")

Tensors = dict[str, torch.Tensor]


class Stateful(Protocol):
    """What has a state of plain values: a loss scaler, a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from a state."""
        ...


def make_state_dict(session: TrainingSession, parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return copies of parameters and buffers, moments, counters and the options that a load must match.

    Accumulated gradients are among them between two updates only; after an update they are zero.

    `parts` are the loss scaler and the scheduler, where there are such, each with a `state_dict` of plain values.
    """
    counters, processes = session.counters, place_of(session)
    optimizer: dict[str, Tensors] = {}
    places = moment_places(session)
    for name in session.trainable:
        kinds = dict(places.get(name, {}))
        if counters.pending:
            kinds[StateKind.GRADIENT_SUM] = Slot(name, StateKind.GRADIENT_SUM).name
        optimizer[name] = {_UPSTREAM[kind]: _copy(session, place) for kind, place in kinds.items()}
    if counters.pending:
        optimizer[_LABEL_COUNT] = {GRADIENT: _copy(session, _LABEL_COUNT)}
    return {
        "model": {FULL_PRECISION: {name: _copy(session, name) for name in session.model_tensors}},
        "optimizer": optimizer,
        "trainer_options": {
            "mixed_precision": session.precision is not None,
            "zero_stage": processes.stage,
            "world_rank": processes.rank,
            "world_size": processes.size,
            "optimizer_name": session.optimizer.algorithm,
        },
        **({"partition_info": partition_of(session)} if processes.stage else {}),
        "train_step_info": {
            "optimization_step": counters.updates,
            "step": counters.micro_steps,
            "pending": counters.pending,
            "seed": session.seed,
        },
        **{name: part.state_dict() for name, part in parts.items()},
    }


def to_files(state: Mapping[str, Any], include_optimizer_states: bool) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """Return a state_dict as tensors by file, and what is plain.

    Without the optimizer's states it is weights only: who loads them starts to count anew. Of several processes each
    has files of its own, and what all have is process 0's to write.
    """
    said = state["trainer_options"]
    rank, size = said["world_rank"], said["world_size"]
    files: dict[str, Tensors] = {"model": state["model"][FULL_PRECISION]} if rank == 0 else {}
    plain = {name: value for name, value in state.items() if name not in ("model", "optimizer")}
    if include_optimizer_states:
        optimizer = state["optimizer"]
        flat = {tensor_name(p, kind): t for p, kinds in optimizer.items() for kind, t in kinds.items()}
        files |= {"optimizer": flat} if size == 1 else shard_files(optimizer, rank, size, said["zero_stage"])
    else:
        plain = {"trainer_options": state["trainer_options"]}
    return files, {**plain, "versions": {"ontrain": __version__, "torch": str(torch.__version__)}}


def from_files(
    files: Mapping[str, Tensors], plain: Mapping[str, object], processes: Place | None = None
) -> dict[str, Any]:
    """Return the state_dict that `to_files` was given, for a process of a run of any size: moments are whole."""
    optimizer: dict[str, Tensors] = {}
    flat, plain = joined_files(files, plain, processes or Place())
    for name, tensor in flat.items():
        parameter, kind = parsed_name(name)
        optimizer.setdefault(parameter, {})[kind] = tensor
    return {**plain, "model": {FULL_PRECISION: files.get("model", {})}, "optimizer": optimizer}


def check_state(
    state: Mapping[str, object],
    wanted: Mapping[str, torch.Tensor],
    strict: bool,
    algorithm: str,
    accumulation_steps: int,
) -> None:
    """Check what of a state_dict can be checked before there is a session; `wanted` are parameters and buffers.

    Raises:
        CheckpointError: it is malformed, of another optimizer, or of another model.
    """
    _check_model(state, wanted, strict)
    _counters(state, accumulation_steps)
    if any(_optimizer_state(state)):
        _check_algorithm(state, algorithm)


def _check_model(state: Mapping[str, object], wanted: Mapping[str, torch.Tensor], strict: bool) -> Tensors:
    """Return the parameters and buffers of a state_dict, after comparing them with those that a model has.

    Raises:
        CheckpointError: lists every name that is missing, unexpected or of another shape.
    """
    model = state.get("model") if isinstance(state, Mapping) else None
    weights = (model.get(FULL_PRECISION) or model.get("fp32")) if isinstance(model, Mapping) else None
    if not isinstance(weights, Mapping):
        raise CheckpointError(
            "this is no state_dict of ORTTrainer", reason="it has no ['model']['full_precision']",
            way_out="for a plain state_dict call load_state_dict of the module itself before the first step",
        )  # fmt: skip
    return _checked("parameter", wanted, weights, strict)


def apply_state_dict(
    session: TrainingSession, state: Mapping[str, object], strict: bool, parts: Mapping[str, Stateful]
) -> dict[str, int]:
    """Check a state_dict against the session, take it over, and return its counters.

    A state without counters is weights only: counters, moments and `parts` stay.

    Raises:
        CheckpointError: lists every name that is missing, unexpected or of another shape; nothing was changed.
    """
    resident = {name: tensor_of(session.state[name]) for name in session.state}
    wanted = {name: resident.pop(name) for name in session.model_tensors}
    taken = _check_model(state, wanted, strict)
    counters = _counters(state, session.accumulation_steps)
    accumulators = {name: resident[name] for name in session.accumulators}
    moments, sums = _optimizer_state(state)
    own = check_partition(session, state)
    if moments or sums:
        _check_algorithm(state, session.optimizer.algorithm)
        checked = _checked("optimizer state", wanted_moments(session, own), moments, strict)
        taken |= placed_moments(session, checked, own)
    if counters.get("pending"):
        sums = own_sums(session, state, sums)
        taken |= _checked("accumulated gradient", accumulators, sums, strict=True)
    elif counters:
        taken |= {name: torch.zeros_like(tensor) for name, tensor in accumulators.items()}
    _load_parts(parts, state)
    for name, tensor in taken.items():
        session.state[name] = tensor
    session.counters.updates = counters.get("optimization_step", session.counters.updates)
    session.counters.micro_steps = counters.get("step", session.counters.micro_steps)
    session.counters.pending = counters.get("pending", session.counters.pending)
    session.seed = counters.get("seed", session.seed)
    return counters


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state.get(name, {})
    if not isinstance(section, Mapping):
        raise CheckpointError(f"{name!r} of the state is a {type(section).__name__}", way_out="give a dictionary")
    return section


def _check_algorithm(state: Mapping[str, object], present: str) -> None:
    algorithm = _section(state, "trainer_options").get("optimizer_name")
    if algorithm != present:
        raise CheckpointError(
            f"the state is of optimizer {algorithm}, this trainer uses {present}",
            way_out="configure that optimizer, or load the parameters alone: leave out state['optimizer']",
        )


def _copy(session: TrainingSession, name: str) -> torch.Tensor:
    return tensor_of(session.state[name]).detach().clone()


def _optimizer_state(state: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Moments, and accumulated gradients, by the session's names."""
    moments: dict[str, Any] = {}
    sums: dict[str, Any] = {}
    for name, kinds in _section(state, "optimizer").items():
        if not isinstance(kinds, Mapping):
            raise CheckpointError(
                f"the optimizer's state of {name!r} is a {type(kinds).__name__}", way_out="give a dictionary of tensors"
            )
        for kind, tensor in kinds.items():
            into = sums if kind == GRADIENT else moments
            into[name if name == _LABEL_COUNT else f"{name}.{_OURS.get(kind, kind)}"] = tensor
    return moments, sums


def _counters(state: Mapping[str, object], accumulation_steps: int) -> dict[str, int]:
    said = _section(state, "train_step_info")
    counters: dict[str, int] = {}
    for name, value in said.items():
        if name not in _COUNTERS:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(f"train_step_info.{name} of the state is {value!r}, and no whole number from 0")
        counters[name] = value
    pending = counters.get("pending", 0)
    if pending and pending >= accumulation_steps:
        raise CheckpointError(
            f"the state holds the gradients of {pending} micro-batches that wait for their update",
            reason=f"this trainer updates after {accumulation_steps}",
            way_out=f"set batch.gradient_accumulation_steps to more than {pending}, or save after an update",
        )
    return counters


def _load_parts(parts: Mapping[str, Stateful], state: Mapping[str, object]) -> None:
    """Let loss scaler and scheduler take over their state, all or none.

    A state from before mixed precision, or without a scheduler, leaves what the trainer has.
    """
    before = {name: part.state_dict() for name, part in parts.items()}
    try:
        for name, part in parts.items():
            if name in state:
                part.load_state_dict(_checked_values(name, before[name], state[name]))
    except (CheckpointError, AttributeError, KeyError, TypeError, ValueError) as error:
        for name, part in parts.items():
            part.load_state_dict(before[name])
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError("the state of loss scaler or scheduler does not fit", reason=repr(error)) from error


def _checked_values(name: str, present: Mapping[str, object], values: object) -> dict[str, Any]:
    """The state of a scaler or scheduler, if its values are of the kinds of the present ones."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{name!r} is a {type(values).__name__}")
    for key, value in values.items():
        if not _alike(present.get(key), value):
            raise CheckpointError(f"{name}.{key} of the state is {value!r}, here {present[key]!r}")
    return dict(values)


def _alike(present: object, value: object) -> bool:
    """Whether a plain value may take the place of another."""
    if present is None or value is None:
        return True
    for kind in (bool, int | float, str):
        if isinstance(present, kind) or isinstance(value, kind):
            return isinstance(value, kind) is isinstance(present, kind)
    return True


def _misfit(value: object, present: torch.Tensor) -> str | None:
    """Why a value cannot take the place of a tensor."""
    if not isinstance(value, torch.Tensor | np.ndarray):
        return f"is a {type(value).__name__}, and no tensor"
    tensor = tensor_of(value)
    if tensor.shape != present.shape:
        return f"has shape {list(tensor.shape)}, the model's is {list(present.shape)}"
    if tensor.is_meta:
        return "is on the device meta, where tensors have no values"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}: convert it with .to_dense()"
    if tensor.dtype.is_floating_point != present.dtype.is_floating_point:
        return f"has dtype {tensor.dtype}, the model's is {present.dtype}"
    return None


def _checked(what: str, wanted: Mapping[str, torch.Tensor], values: Mapping[str, object], strict: bool) -> Tensors:
    """What is given of the wanted tensors, once all names, shapes and kinds of numbers are found right."""
    taken: Tensors = {}
    problems = [f"missing {what} {name!r}" for name in wanted if name not in values] if strict else []
    for name, value in values.items():
        if name not in wanted:
            if strict:  # what is near is told of the first few alone: a stranger's file may bring any number of names
                near = f" (nearest: {nearest(str(name), wanted, 1)})" if len(problems) < _TOLD else ""
                problems.append(f"unexpected {what} {name!r}{near}")
            continue
        if (problem := _misfit(value, wanted[name])) is not None:
            problems.append(f"{what} {name!r} {problem}")
        else:
            taken[name] = tensor_of(value).to(wanted[name].dtype)
    if wanted and values and not set(wanted) & set(values):
        problems.append(f"no {what} of the model is in it")
    if problems:
        more = [f"and {len(problems) - _TOLD} more"] if len(problems) > _TOLD else []
        raise CheckpointError(
            "the state does not fit the model:\n    " + "\n    ".join([*problems[:_TOLD], *more]),
            way_out="load it into the model it was saved from, or pass strict=False for missing and unexpected names",
        )
    return taken
