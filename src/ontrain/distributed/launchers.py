"""Which process of how many this is, as the launcher that started it says in the environment.

Known are torchrun, OpenMPI's mpirun, Slurm's srun, and Azure Machine Learning's addition to the first two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ontrain.errors import OptionError

__all__ = ["Processes", "find_processes"]

_AZURE_PORT = 6105


@dataclass(frozen=True)
class Processes:
    """Where a process stands among the processes of a run.

    Attributes:
        launcher: "none", "torchrun", "OpenMPI" or "Slurm".
        rank: number of this process, from 0.
        world_size: number of all processes.
        local_rank, local_size: the same on this machine; the local rank chooses the device.
        master_address, master_port: where process 0 is met.
    """

    launcher: str = "none"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 29500

    def options(self) -> dict[str, int]:
        """Return the part of `ORTTrainerOptions` that says so: `{"distributed": find_processes().options()}`."""
        return {"world_rank": self.rank, "world_size": self.world_size, "local_rank": self.local_rank}

    def environment(self) -> dict[str, str]:
        """Return the variables that `torch.distributed.init_process_group("env://")` reads."""
        return {
            "RANK": str(self.rank), "WORLD_SIZE": str(self.world_size), "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size), "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }  # fmt: skip


# For each launcher its variables for rank, world size, local rank and local size; the first two must be there.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "OpenMPI": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}  # fmt: skip


def find_processes(environ: Mapping[str, str] | None = None) -> Processes:
    """Read the launcher's variables; without any, this process is the only one.

    If srun or mpirun starts torchrun, their variables give a rank to each machine. Then torchrun's variables hold.

    Args:
        environ: the environment; by default this process's.

    Raises:
        OptionError: variables are missing, not numbers, out of range, or two launchers say different things.
    """
    environ = os.environ if environ is None else environ
    launchers = {
        name: place for name, variables in _LAUNCHERS.items() if (place := _read(name, variables, environ)) is not None
    }
    if not launchers:
        address, port = _master("none", environ)
        return Processes(master_address=address, master_port=port)
    if "torchrun" in launchers and "TORCHELASTIC_RUN_ID" in environ:
        launchers = {"torchrun": launchers["torchrun"]}
    if "OpenMPI" in launchers:
        launchers.pop("Slurm", None)  # mpirun in a Slurm allocation: the ranks are mpirun's
    if "torchrun" in launchers and "Slurm" in launchers:
        launchers.pop("Slurm")
    places = {(place.rank, place.world_size) for place in launchers.values()}
    if len(places) > 1:
        said = "; ".join(f"{name}: rank {place.rank} of {place.world_size}" for name, place in launchers.items())
        raise OptionError(
            f"two launchers disagree ({said})",
            way_out="start the processes with one of them, and unset the variables of the other: "
            + ", ".join(_LAUNCHERS["torchrun"][:2]),
        )
    return next(iter(launchers.values()))


def _read(launcher: str, names: tuple[str, ...], environ: Mapping[str, str]) -> Processes | None:
    present = [name for name in names[:2] if name in environ]
    if not present or (launcher == "Slurm" and "SLURM_PROCID" not in environ):
        return None  # inside a Slurm allocation, but not started by srun
    if len(present) == 1:
        missing = next(name for name in names[:2] if name not in environ)
        raise OptionError(
            f"{present[0]} is set to {environ[present[0]]!r}, {missing} is not",
            way_out=f"start with {launcher}, which sets both, or unset {present[0]}",
        )
    rank, world = (_number(name, environ) for name in names[:2])
    if not 0 <= rank < world:
        raise OptionError(f"{names[0]} is {rank} and {names[1]} is {world}", way_out="ranks count from 0 to one less")
    local_rank = _number(names[2], environ) if names[2] in environ else rank
    local_size = world
    if names[3] in environ:
        local_size = _number(names[3], environ, leading=launcher == "Slurm")
    address, port = _master(launcher, environ)
    return Processes(launcher, rank, world, local_rank, local_size, address, port)


def _number(name: str, environ: Mapping[str, str], *, leading: bool = False) -> int:
    """A variable as a number; Slurm writes `4(x2)` for four on each of two machines."""
    text = environ[name].partition("(")[0] if leading else environ[name]
    if not re.fullmatch(r"\d+", text):
        raise OptionError(f"{name} is {environ[name]!r}", way_out="it must be a whole number from 0")
    return int(text)


def _master(launcher: str, environ: Mapping[str, str]) -> tuple[str, int]:
    port = _number("MASTER_PORT", environ) if "MASTER_PORT" in environ else 29500
    if "MASTER_ADDR" in environ:
        return environ["MASTER_ADDR"], port
    if "AZ_BATCH_MASTER_NODE" in environ:  # address:port of the first of several machines
        address, _, own_port = environ["AZ_BATCH_MASTER_NODE"].partition(":")
        return address, int(own_port) if own_port.isdigit() else _AZURE_PORT
    if "AZ_BATCHAI_MPI_MASTER_NODE" in environ:
        return environ["AZ_BATCHAI_MPI_MASTER_NODE"], _AZURE_PORT
    if launcher == "Slurm":
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
        if nodes:
            job = environ.get("SLURM_JOB_ID", "")
            return _first_host(nodes), port if "MASTER_PORT" in environ else 20000 + int(job or 0) % 20000
    return "127.0.0.1", port


def _first_host(nodes: str) -> str:
    """The first host of Slurm's list: node[03-07,9],other gives node03."""
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    assert match is not None
    return match.group(1) + (match.group(2) or "")
