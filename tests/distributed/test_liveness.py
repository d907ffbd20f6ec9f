"""Whichever process stands still, and wherever: the others end by themselves, and say which one it was."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from ontrain import ProcessError
from ontrain.checkpoint import together
from ontrain.distributed import Processes, World, find_processes, meeting
from ontrain.session import TrainingSession
from ontrain.training import ORTTrainer
from tests.distributed import together as t
from tests.processes import start

TIMEOUT = 6
PATIENCE = 200
"""Seconds after which a test says that a process does not end by itself: far above what an idle machine takes."""


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_instead_of(module: Any, name: str, after: Callable[[], None] = lambda: None) -> None:
    """Stand still as soon as something is called and `after` has returned, and go on with it once continued."""
    before = getattr(module, name)

    def stopping(*args: Any, **kwargs: Any) -> Any:
        after()
        stop()
        return before(*args, **kwargs)

    setattr(module, name, stopping)


@contextmanager
def started(size: int, function: Callable[..., None], *args: Any) -> Iterator[list[Any]]:
    """Processes that share nothing but what they import; those that are left are killed."""
    processes = start(t.enter, t.rows(size, function, *args))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextmanager
def started_together(folder: Path, cases: Sequence[tuple[Any, ...]]) -> Iterator[list[tuple[Path, list[Any]]]]:
    """Three processes for each case (function, *arguments), which call it with a folder of their own in front.

    The cases wait for their timeouts side by side. Yields each one's folder and processes.
    """
    with ExitStack() as stack:
        groups = []
        for number, (function, *arguments) in enumerate(cases):
            own = folder / str(number)
            own.mkdir()
            groups.append((own, stack.enter_context(started(3, function, own, *arguments))))
        yield groups


def told_by_the_others(folder: Path, processes: list[Any], absent: tuple[int, ...]) -> list[str]:
    others = [rank for rank in range(len(processes)) if rank not in absent]
    for rank in others:
        processes[rank].join(PATIENCE)
        assert processes[rank].exitcode == 0, f"rank {rank} did not end by itself"
    return [(folder / f"told{rank}").read_text() for rank in others]


@contextmanager
def telling(folder: Path) -> Iterator[None]:
    try:
        yield
    except ProcessError as error:
        (folder / f"told{find_processes().rank}").write_text(str(error))


def meet_by_files(folder: Path, name: str, me: int, ranks: Iterable[int]) -> None:
    """Wait until all of these processes are here."""
    (folder / f"{name}{me}").touch()
    while not all((folder / f"{name}{rank}").exists() for rank in ranks):
        time.sleep(0.01)


def meet_and_stop(folder: Path, stopping: tuple[int, ...], where: str) -> None:
    me = find_processes()
    # From here on none is far behind another, however busy the machine is.
    meet_by_files(folder, "ready", me.rank, range(me.world_size))
    if me.rank in stopping and not where:
        stop()
    elif me.rank in stopping:
        # One that stands still first would keep the others from getting here: rank 0 has the store.
        stop_instead_of(
            torch.distributed if where == "init_process_group" else meeting, where,
            after=lambda: meet_by_files(folder, f"at {where}", me.rank, stopping),
        )  # fmt: skip
    with telling(folder):
        World(me.rank, me.world_size, torch.device("cpu"), TIMEOUT).gather(None)


@pytest.mark.parametrize("cases", [[(0,), (2,)], pytest.param([(1, 2)], marks=pytest.mark.thorough)], ids=str)
def test_processes_that_do_not_come_are_named(tmp_path, cases):
    with started_together(tmp_path, [(meet_and_stop, stopping, "") for stopping in cases]) as groups:
        for stopping, (folder, processes) in zip(cases, groups, strict=True):
            for text in told_by_the_others(folder, processes, stopping):
                if 0 in stopping:
                    assert re.match(r"rank 0 did not answer rank . of 3 at 127.0.0.1:\d+", text)
                else:
                    assert re.match(rf"rank.? {', '.join(map(str, stopping))} of 3 did not come", text)


@pytest.mark.thorough
@pytest.mark.parametrize("cases", [[(0,), (1,)], pytest.param([(0, 2)], marks=pytest.mark.thorough)], ids=str)
def test_processes_that_stop_while_the_others_are_met_are_named(tmp_path, cases):
    places = [(where, stopping) for where in ("_wait_for_all", "init_process_group") for stopping in cases]
    with started_together(tmp_path, [(meet_and_stop, stopping, where) for where, stopping in places]) as groups:
        for (_, stopping), (folder, processes) in zip(places, groups, strict=True):
            pids = [processes[rank].pid for rank in stopping]
            for text in told_by_the_others(folder, processes, stopping):
                if re.match(r"rank 0 did not answer rank . of 3 at 127.0.0.1:\d+", text):
                    assert 0 in stopping  # its store was not asked in time for where the others are
                    continue
                assert re.match(rf"rank.? {', '.join(map(str, stopping))} of 3 do(es)? not answer", text)
                assert all(f"process {pid} on" in text for pid in pids)


def warmed_up(stage: int = 0) -> tuple[ORTTrainer, tuple[Any, Any]]:
    """A trainer that has captured and planned, so that from now on no process is far behind another."""
    trainer = t.trainer("Adam", stage=stage)
    batch = t.batches(1)[0][find_processes().rank]
    trainer.train_step(*batch)
    trainer.eval_step(*batch)
    trainer._run.setup.reduction.world.gather(None)
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT))
    return trainer, batch


def train_and_stop(folder: Path, stopping: tuple[int, ...], where: str) -> None:
    """Train, evaluate and save; some processes stand still at one of the places, the others tell what they meet."""
    trainer, batch = warmed_up(stage=1)
    mine = where if find_processes().rank in stopping else ""
    with telling(folder):
        if mine == "between steps":
            stop()
        elif mine == "in a collective":
            stop_instead_of(torch.distributed, "all_to_all_single")
        trainer.train_step(*batch)
        if mine == "in evaluation":
            stop_instead_of(TrainingSession, "evaluate")
        trainer.eval_step(*batch)
        if mine == "while a checkpoint is written":
            stop_instead_of(together, "write_tensors")
        trainer.save_checkpoint(folder / "checkpoint")


PLACES = ["between steps", "in a collective", "in evaluation", "while a checkpoint is written"]
STOPPING = [(0,), (1,), (0, 2)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(
            [(where, STOPPING[(turn - i) % 3]) for i, where in enumerate(PLACES) if i // 2 == half],
            marks=[pytest.mark.thorough] if turn else [],
        )
        for turn in range(3)
        for half in range(2)
    ],
    ids=str,
)
def test_processes_that_stand_still_are_named(tmp_path, cases):
    with started_together(tmp_path, [(train_and_stop, stopping, where) for where, stopping in cases]) as groups:
        for (_, stopping), (folder, processes) in zip(cases, groups, strict=True):
            pids = [processes[rank].pid for rank in stopping]
            for text in told_by_the_others(folder, processes, stopping):
                assert re.match(rf"rank.? {', '.join(map(str, stopping))} of 3 do(es)? not answer", text)
                assert all(f"process {pid} on" in text for pid in pids)


def train_on(folder: Path) -> None:
    trainer, batch = warmed_up()
    rank = find_processes().rank
    if rank == 0:
        (folder / "stops").touch()
        stop()
    trainer.train_step(*batch)
    assert trainer.train_step_info.optimization_step == 2
    (folder / f"done{rank}").touch()


def test_training_goes_on_after_a_pause(tmp_path):
    with started(2, train_on, tmp_path) as processes:
        is_stopped = Path(f"/proc/{processes[0].pid}/stat")
        while not (tmp_path / "stops").exists() or is_stopped.read_text().rpartition(")")[2].split()[0] != "T":
            assert processes[0].is_alive()
            time.sleep(0.1)
        time.sleep(1)
        os.kill(processes[0].pid, signal.SIGCONT)
        for process in processes:
            process.join(PATIENCE)
        assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "done0").exists() and (tmp_path / "done1").exists()


def hang_in_python(folder: Path) -> None:
    trainer, batch = warmed_up()
    if find_processes().rank == 1:
        while True:  # the interpreter's lock is let go now and then, so this one answers
            pass
    with telling(folder):
        trainer.train_step(*batch)


def keep_the_lock(folder: Path) -> None:
    trainer, batch = warmed_up()
    if find_processes().rank == 0:
        ctypes.PyDLL(None).sleep(PATIENCE)  # a call of C that keeps the interpreter's lock
    with telling(folder):
        trainer.train_step(*batch)


def raise_between_steps(folder: Path) -> None:
    trainer, batch = warmed_up()
    if find_processes().rank == 1:
        raise SystemExit(3)
    with telling(folder):
        trainer.train_step(*batch)


ELSEWHERE = [
    (hang_in_python, 1, "rank 1 of 3 did not take part .process"),
    (keep_the_lock, 0, "rank 0 of 3 does not answer .process"),
    (raise_between_steps, 1, "rank 1 of 3 has died or ended .process"),
]


@pytest.mark.thorough
def test_processes_that_are_elsewhere_are_named(tmp_path):
    with started_together(tmp_path, [(function,) for function, _, _ in ELSEWHERE]) as groups:
        for (_, rank, says), (folder, processes) in zip(ELSEWHERE, groups, strict=True):
            for text in told_by_the_others(folder, processes, (rank,)):
                assert re.match(says, text)


SCRIPT = """
import os, signal, torch
from ontrain.distributed import World, find_processes

me = find_processes()
world = World(me.rank, me.world_size, torch.device("cpu"), 5)
if me.rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
world.gather(None)
"""


def test_programs_end_by_themselves_while_process_0_stands_still(tmp_path):
    """Nothing at the end of an interpreter waits for it: neither threads, nor the process group."""
    port, programs = t.free_port(), []
    for rank in range(3):
        environment = {**os.environ, **Processes("torchrun", rank, 3, rank, 3, "127.0.0.1", port).environment()}
        programs.append(
            subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stderr=subprocess.PIPE, text=True)
        )
    try:
        for program in programs[1:]:
            _, said = program.communicate(timeout=PATIENCE)
            assert program.returncode == 1
            assert f"ProcessError: rank 0 of 3 does not answer (process {programs[0].pid} on " in said
    finally:
        for program in programs:
            program.kill()
            program.wait()
