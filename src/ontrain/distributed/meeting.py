"""How the processes of a run meet: the process group is made, and each learns where the others answer.

The store that torch's rendezvous opens lives in one process. Its clients wait for an answer without an end while that
process stands still. So whatever asks the store runs on a thread that may be left behind.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import socket
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ontrain.distributed.launchers import Processes, find_processes
from ontrain.distributed.liveness import Liveness, patience
from ontrain.distributed.presence import Peer, Responder, fall_silent, named
from ontrain.errors import OntrainError, OptionError, ProcessError
from ontrain.internals import private

__all__ = ["address_towards", "check_place", "meet"]

_PAUSE = 0.1
_READING = 1.0
"""Seconds that process 0 leaves the others to read what it found out: the store goes with it."""
_WAY_OUT = (
    "start all of them within distributed.timeout, and set MASTER_ADDR and MASTER_PORT where they do not run on one "
    "machine"
)
_meetings = itertools.count()


def check_place(rank: int, size: int) -> Processes:
    """Return what the launcher says, once it is found to agree with the options, and with a group that is there.

    Raises:
        OptionError: they say different things, or there is no way to meet the others.
    """
    if not 0 <= rank < size:
        raise OptionError(
            f"distributed.world_rank is {rank} and distributed.world_size {size}", way_out="ranks count from 0"
        )
    said = find_processes()
    if dist.is_initialized():
        _compare((rank, size), (dist.get_rank(), dist.get_world_size()), "the process group has")
    elif said.launcher != "none":
        _compare((rank, size), (said.rank, said.world_size), f"{said.launcher} started")
    elif "MASTER_ADDR" not in os.environ:
        raise OptionError(
            f"option 'distributed.world_size' is {size}, and the other processes cannot be met",
            reason="no launcher that is known of started this one, and there is no process group",
            way_out="start with torchrun, mpirun or srun, set MASTER_ADDR and MASTER_PORT, or initialise "
            "torch.distributed first",
        )
    return said


def meet(said: Processes, responder: Responder, device: torch.device, wait: timedelta) -> list[Peer]:
    """Make the process group; return where all processes answer.

    Args:
        said: where process 0 is met.
        responder: what answers for this process.
        device: what the group's backend is for.
        wait: for the others, and of the group's collectives.

    Raises:
        ProcessError: one of the others did not come, or stands still.
    """
    rank, size = responder.rank, responder.size
    place = f"{said.master_address}:{said.master_port}"
    peers: list[Peer] = []
    failure: list[BaseException] = []

    def on_its_way() -> None:
        try:
            _meet(said, responder, device, wait, peers)
        except (RuntimeError, ValueError) as error:  # an OntrainError is a ValueError
            failure.append(error)

    thread = threading.Thread(target=on_its_way, name="ontrain meets the others", daemon=True)
    thread.start()
    thread.join(wait.total_seconds() + patience(wait.total_seconds()))
    if not thread.is_alive() and not failure:
        atexit.register(_leave, os.getpid())
        return peers
    error = failure[0] if failure else TimeoutError(f"no end after {wait.total_seconds():g} seconds")
    if isinstance(error, OntrainError):
        raise error
    if len(peers) == size:  # all of them came, and one was lost before the group stood
        liveness = Liveness(responder, peers, wait.total_seconds())
        raise liveness.explain("meeting the others", error, met=False) from error
    keeper = "torchrun's store" if _agent_keeps_store() else "rank 0"
    problem = f"rank {rank} of {size} did not meet the others at {place}"
    if rank != 0 or _agent_keeps_store():
        problem = f"{keeper} did not answer rank {rank} of {size} at {place}"
    raise ProcessError(problem, reason=str(error).strip().partition("\n")[0], way_out=_WAY_OUT) from error


def address_towards(said: Processes) -> str:
    """Return the address of this machine on the way to process 0's: where the others reach it, too."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            said.master_address, said.master_port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _meet(said: Processes, responder: Responder, device: torch.device, wait: timedelta, peers: list[Peer]) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)  # each thread has its own
    end = time.monotonic() + wait.total_seconds()
    rank, size = responder.rank, responder.size
    keeper = private("torch.distributed.TCPStore")(
        said.master_address, said.master_port, is_master=rank == 0 and not _agent_keeps_store(), timeout=wait,
        wait_for_workers=False, multi_tenant=True,
    )  # fmt: skip
    under = dist.PrefixStore  # type: ignore[attr-defined]
    store = under(f"ontrain {next(_meetings)}", keeper)
    store.set(f"here/{rank}", json.dumps(responder.peer(_own_address(said, rank)).to_json()))
    _wait_for_all(store, rank, size, end)
    peers.extend(Peer(**json.loads(store.get(f"here/{other}"))) for other in range(size))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=under("group", store),
        rank=rank, world_size=size, timeout=wait,
    )  # fmt: skip


def _agent_keeps_store() -> bool:
    """Whether torchrun itself holds the place where the processes that it started meet."""
    return bool(private("torch.distributed.rendezvous._torchelastic_use_agent_store")())


def _own_address(said: Processes, rank: int) -> str:
    # Process 0 may know its own machine by a name that means itself, as 127.0.1.1.
    return said.master_address if rank == 0 else address_towards(said)


def _wait_for_all(store: Any, rank: int, size: int, end: float) -> None:
    """Wait until each process has said where it is; name those that have not in time, alike on all that have."""
    keys = {other: f"here/{other}" for other in range(size)}
    while not store.check(list(keys.values())):
        missing = ""
        if store.check(["missing"]):
            missing = store.get("missing").decode()
        elif time.monotonic() > end:
            absent = [other for other, key in keys.items() if not store.check([key])]
            missing = store.compare_set("missing", "", " ".join(map(str, absent))).decode() if absent else ""
        if missing:
            if rank == 0:
                time.sleep(_READING)
            raise ProcessError(
                f"{named(map(int, missing.split()))} of {size} did not come",
                reason=f"rank {rank} met the others in vain", way_out=_WAY_OUT,
            )  # fmt: skip
        time.sleep(_PAUSE)


def _leave(process: int) -> None:
    """End a group that was made here: some backends complain of one that is left open."""
    if os.getpid() == process and dist.is_initialized():
        fall_silent()
        dist.destroy_process_group()


def _compare(asked: tuple[int, int], present: tuple[int, int], who: str) -> None:
    if asked != present:
        raise OptionError(
            f"the options say rank {asked[0]} of {asked[1]}, {who} rank {present[0]} of {present[1]}",
            way_out="give distributed.world_rank and distributed.world_size as they are; "
            "ontrain.distributed.find_processes reads them of the launcher",
        )
