"""The trainer among several processes: joins them as the options say, and sees that all of them train the same."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping

import torch

from ontrain.distributed import Reduction, World, agree, facts, find_processes, tensor_facts, whole_number_facts
from ontrain.errors import OptionError
from ontrain.internals import tensor_of
from ontrain.session import TrainingSession
from ontrain.training.model_desc import ModelDescription
from ontrain.training.options import ORTTrainerOptions, leaves

__all__ = ["device_of", "follow_model", "follow_state", "follow_tensor", "join", "start_together"]

# What may differ: the process's own place, and what only writes to files or the screen.
_OWN = (
    "distributed.world_rank", "distributed.local_rank", "distributed.timeout", "device.", "utils.seed", "debug.dump",
    "debug.verbose", "debug.graph_save_paths", "debug.check_model_export",
)  # fmt: skip


def device_of(options: ORTTrainerOptions) -> str:
    """Return the device to train on: of several processes on a machine each has its own."""
    device = options.device.id
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else str(torch.device(device))
    if chosen == "cuda" and options.distributed.world_size > 1:
        said = find_processes()
        local = said.local_rank if said.launcher != "none" else options.distributed.local_rank
        chosen = f"cuda:{local % torch.cuda.device_count()}"
    return chosen


def join(options: ORTTrainerOptions, device: str) -> Reduction | None:
    """Meet the other processes; None where the options speak of one.

    Raises:
        OptionError: the options do not fit the launcher or the process group.
        ProcessError: the others were not met in time.

    Warns:
        UserWarning: a launcher started several processes, and the options leave each of them alone.
    """
    asked = options.distributed
    if asked.world_size == 1:
        group = torch.distributed
        if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
            raise OptionError(
                f"option 'distributed.world_size' is 1, the process group has {group.get_world_size()} processes",
                reason="each of them would train for itself",
                way_out="set distributed.world_rank and distributed.world_size",
            )
        said = find_processes()
        if said.world_size > 1 and said.launcher != "Slurm":
            warnings.warn(
                f"{said.launcher} started {said.world_size} processes, and each trains for itself: "
                "for one training of all set options['distributed'] = ontrain.distributed.find_processes().options()",
                stacklevel=4,
            )
        return None
    world = World(asked.world_rank, asked.world_size, torch.device(device), asked.timeout)
    return Reduction(world, asked.deepspeed_zero_optimization.stage, asked.enable_adasum)


def start_together(
    reduction: Reduction,
    session: TrainingSession,
    options: ORTTrainerOptions,
    description: ModelDescription,
    loss_tensors: Mapping[str, torch.Tensor],
    learning_rate: float,
) -> None:
    """Let all processes compare what they will train, and begin with the weights and the seed of process 0.

    Args:
        reduction: with the other processes.
        session: that will train.
        options: of the trainer.
        description: of the batch.
        loss_tensors: what the loss function holds and nobody trains, by name. It is compared, not taken from process 0.
        learning_rate: of the first step.

    Raises:
        ProcessError: they differ.
    """
    said = _model_facts(session, description) | tensor_facts("the loss function's", loss_tensors)
    for tensor in (*description.inputs, *description.outputs):
        loss = ", the loss" if tensor.is_loss else ""
        said[f"{tensor.name!r} of the description"] = f"{len(tensor.shape)} dimensions{loss}"
    said |= {f"the option {path}": _text(value) for path, value in leaves(options) if not path.startswith(_OWN)}
    # The learning rate goes with each step from here on.
    agree(reduction.world, said | {"the learning rate": repr(float(learning_rate))})
    reduction.agreement.follow(said)
    session.seed = reduction.world.gather(session.seed)[0]
    reduction.start(session)


def follow_model(reduction: Reduction | None, session: TrainingSession, description: ModelDescription) -> None:
    """Take note of a graph that is trained from now on: with the next update the processes compare theirs."""
    if reduction is not None:
        reduction.agreement.follow(_model_facts(session, description))


def _model_facts(session: TrainingSession, description: ModelDescription) -> dict[str, str]:
    said = facts(session)
    varying = {tensor.name: tensor.dynamic() for tensor in description.inputs}
    # Sizes that a capture has fixed are those of this process's own batches, and numbers follow from them.
    fixed = any(
        isinstance(value.shape[axis], int)
        for value in session.model.graph.inputs
        if value.shape is not None
        for axis in varying.get(value.name or "", {})
    )
    return said if fixed else said | whole_number_facts(session)


def follow_state(
    reduction: Reduction | None, session: TrainingSession, state: Mapping[str, object], first: bool
) -> None:
    """Take note of a state that was loaded: with the next update the processes compare theirs.

    Args:
        reduction: with the other processes; None for one alone.
        session: that took over the state.
        state: see `ORTTrainer.load_state_dict`.
        first: no step was made yet. Weights alone are then those of process 0, whatever the others loaded.
    """
    counted = bool(state.get("train_step_info"))
    if reduction is None or (first and not counted):
        return
    tensors = {name: session.state[name] for name in session.model_tensors}
    if reduction.keeps_moments:
        tensors |= {name: session.state[name] for n in session.trainable for name in session.optimizer.state_names(n)}
    done = f"of update {session.counters.updates} " if counted else ""
    reduction.agreement.follow(
        {"the state that was loaded": f"{done}with hash {_bits(tensors)}", "the seed": str(session.seed)}
    )


def follow_tensor(reduction: Reduction | None, name: str, value: torch.Tensor) -> None:
    """Take note of a parameter that was given another value: with the next update the processes compare theirs."""
    if reduction is not None:
        reduction.agreement.follow({f"the value given to {name!r}": f"one with hash {_bits({name: value})}"})


def _bits(tensors: Mapping[str, object]) -> str:
    """A short hash of tensors: of the sums of their bits, read as numbers, which takes no longer than reading them."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        flat = tensor_of(tensor).detach().contiguous().reshape(-1)
        whole = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(flat.element_size(), torch.int64))
        digest.update(f"{name} {flat.dtype} {int(whole.sum(dtype=torch.int64))} ".encode())
    return digest.hexdigest()[:12]


def _text(value: object) -> str:
    """An option's value as a text that is the same in all processes."""
    if hasattr(value, "state_dict"):
        return f"{type(value).__name__} {value.state_dict()}"
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else repr(value)
