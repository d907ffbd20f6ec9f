"""Which process this is, as its launcher says in the environment: Open MPI, Slurm, PMI, torchrun, or none."""

from __future__ import annotations

import os

from ontrain.errors import OptionError

__all__ = [
    "get_global_size",
    "get_local_rank",
    "get_local_size",
    "get_world_rank",
    "get_world_size",
    "set_environment_variables_for_nccl_backend",
]

_WORLD_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")
_WORLD_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE")
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE", "LOCAL_WORLD_SIZE")
_MASTERS = ("AZ_BATCH_MASTER_NODE", "AZ_BATCHAI_MPI_MASTER_NODE")


def get_world_rank() -> int:
    """Return the number of this process among all, 0 where no launcher speaks."""
    return _first(_WORLD_RANK, 0)


def get_world_size() -> int:
    """Return the number of processes, 1 where no launcher speaks."""
    return _first(_WORLD_SIZE, 1)


def get_global_size() -> int:
    """Return the number of processes."""
    return get_world_size()


def get_local_rank() -> int:
    """Return the number of this process among those of its machine."""
    return _first(_LOCAL_RANK, 0)


def get_local_size() -> int:
    """Return the number of processes on this machine."""
    return _first(_LOCAL_SIZE, 1)


def set_environment_variables_for_nccl_backend(single_node: bool = False, IB: bool = True) -> None:
    """Say to torch.distributed who the master is, as Azure's batch service says it.

    Args:
        single_node: all processes are on this machine.
        IB: the machines are connected by InfiniBand; without, NCCL is told to do without it.

    Raises:
        OptionError: the environment is not that of Azure's batch service, and there are several machines.
    """
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(get_world_rank()), str(get_world_size())
    if single_node:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "54965"
    else:
        master = next((os.environ[name] for name in _MASTERS if name in os.environ), None)
        if master is None:
            raise OptionError(
                "there is no master among several machines",
                reason=f"none of {', '.join(_MASTERS)} is set",
                way_out="set MASTER_ADDR and MASTER_PORT yourself, or run on one machine",
            )
        address, _, port = master.partition(":")
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, port or "6105"
    if not IB:
        os.environ["NCCL_IB_DISABLE"] = "1"


def _first(names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = os.environ.get(name)
        if text is None:
            continue
        if not text.isdecimal():
            raise OptionError(f"the environment variable {name} is {text!r}", way_out="set it to a whole number")
        return int(text)
    return default
