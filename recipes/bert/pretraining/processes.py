"""The processes of a run: who this one is, which device it uses, and sums over all."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from corpus.workspace import DataError

from ontrain.distributed import Processes, World, find_processes
from pretraining.options import Options

__all__ = ["join", "total"]


def join(options: Options) -> tuple[Processes, str, World | None]:
    """Meet the other processes; they part when the program ends.

    Returns:
        This process's place, its device, and all processes together; None for a single one.

    Raises:
        DataError: there is no such device, or a flag cannot be honoured with several processes.
        OptionError, ProcessError: the launcher's variables are wrong, or the others were not met.
    """
    processes = find_processes()
    device = _device(options, processes)
    if processes.world_size == 1:
        return processes, device, None
    if options.allreduce_post_accumulation_fp16:
        raise DataError(
            "--allreduce_post_accumulation_fp16: gradients are added up over processes in float32 here, as over "
            "micro-batches; leave the flag out"
        )
    if options.use_ib:
        os.environ["NCCL_IB_DISABLE"] = "0"
    return processes, device, World(processes.rank, processes.world_size, torch.device(device))


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
