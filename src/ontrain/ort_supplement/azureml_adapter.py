"""Which process this is among those that the launcher started."""

from __future__ import annotations

import os

from ontrain.distributed import find_processes

__all__ = [
    "get_global_size",
    "get_local_rank",
    "get_local_size",
    "get_world_rank",
    "get_world_size",
    "set_environment_variables_for_nccl_backend",
]


def get_world_rank() -> int:
    """Return the number of this process among all, 0 where no launcher speaks."""
    return find_processes().rank


def get_world_size() -> int:
    """Return the number of processes, 1 where no launcher speaks."""
    return find_processes().world_size


def get_global_size() -> int:
    """Return the number of processes."""
    return get_world_size()


def get_local_rank() -> int:
    """Return the number of this process among those of its machine."""
    return find_processes().local_rank


def get_local_size() -> int:
    """Return the number of processes on this machine."""
    return find_processes().local_size


def set_environment_variables_for_nccl_backend(single_node: bool = False, IB: bool = True) -> None:
    """Say to torch.distributed what the launcher says: this process's rank, and where the first one is met.

    Args:
        single_node: all processes are on this machine.
        IB: the machines are connected by InfiniBand; if not, NCCL is told to do without it.

    Raises:
        OptionError: the launcher's variables are malformed or disagree.
    """
    processes = find_processes()
    os.environ.update(processes.environment())
    if single_node:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    if not IB:
        os.environ["NCCL_IB_DISABLE"] = "1"
