"""The trainer among several processes: joins them as the options say, and sees that all of them train the same."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ontrain.distributed import Reduction, World, agree, facts, find_processes
from ontrain.errors import OptionError
from ontrain.session import TrainingSession
from ontrain.training.options import ORTTrainerOptions

__all__ = ["device_of", "join", "start_together"]

# What may differ: the process's own place, and what only writes to files or the screen.
_OWN = ("distributed.world_rank", "distributed.local_rank", "device.", "utils.seed", "debug.")


def device_of(options: ORTTrainerOptions) -> str:
    """Return the device to train on: of several processes on a machine each has its own."""
    given = options.device.id
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if given is None else str(torch.device(given))
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


def start_together(reduction: Reduction, session: TrainingSession, options: ORTTrainerOptions) -> None:
    """Let all processes compare what they will train, and begin with the weights and the seed of process 0.

    Raises:
        ProcessError: they differ.
    """
    said = facts(session)
    said |= {f"the option {path}": _text(value) for path, value in _leaves(options, "") if not path.startswith(_OWN)}
    agree(reduction.world, said)
    session.seed = reduction.world.gather(session.seed)[0]
    reduction.start(session)


def _leaves(section: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, value in vars(section).items():
        if name == "_original":
            continue
        if type(value).__module__ == ORTTrainerOptions.__module__:
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield path + name, value


def _text(value: Any) -> str:
    """An option's value as a text that is the same in all processes."""
    if hasattr(value, "state_dict"):
        return f"{type(value).__name__} {value.state_dict()}"
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else repr(value)
