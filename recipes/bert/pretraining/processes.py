"""The processes of a run: who this one is, which device it uses, and sums over all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from corpus.workspace import DataError

from ontrain.distributed import Processes, find_processes
from pretraining.options import Options

if TYPE_CHECKING:
    from ontrain.distributed import World

__all__ = ["joined", "total"]


@contextmanager
def joined(options: Options) -> Iterator[tuple[Processes, str, World | None]]:
    """Join the other processes for the time of a run.

    Yields:
        This process's place, its device, and all processes together; None for a single one.

    Raises:
        DataError: there is no such device, or a flag cannot be honoured with several processes.
        OptionError, ProcessError: the launcher's variables are wrong, or the others were not met.
    """
    processes = find_processes()
    device = _device(options, processes)
    if processes.world_size == 1:
        yield processes, device, None
        return
    if options.allreduce_post_accumulation_fp16:
        raise DataError(
            "--allreduce_post_accumulation_fp16: gradients are added up over processes in float32 here, as over "
            "micro-batches; leave the flag out"
        )
    from ontrain.distributed import World  # brings torch.distributed

    if options.use_ib:
        os.environ["NCCL_IB_DISABLE"] = "0"
    mine = not torch.distributed.is_initialized()
    world = World(processes.rank, processes.world_size, torch.device(device))
    try:
        yield processes, device, world
    finally:
        if mine:
            torch.distributed.destroy_process_group()


def total(numbers: Sequence[float], world: World | None) -> list[float]:
    """Return the sum of each number over all processes."""
    if world is None:
        return list(numbers)
    found: list[float] = world.sum_(torch.tensor(numbers, dtype=torch.float64, device=world.device)).tolist()
    return found


def _device(options: Options, processes: Processes) -> str:
    if options.device is not None:
        return options.device
    if not torch.cuda.is_available():
        return "cpu"
    number = processes.local_rank
    if options.local_rank >= 0 and not options.use_env:  # as the launcher of old says it
        number = options.local_rank
    count = torch.cuda.device_count()
    if number >= count:
        raise DataError(f"process {number} of this machine has no GPU: there are {count}; start as many processes")
    torch.cuda.set_device(number)
    return f"cuda:{number}"
