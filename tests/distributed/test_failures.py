"""A process that dies, stands still or is interrupted ends the others, and they say which it was."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from ontrain import OptionError, ProcessError
from ontrain.distributed import Processes, find_processes
from ontrain.distributed.adasum import check_adasum
from ontrain.training import ORTTrainerOptions
from tests.distributed import together as t
from tests.processes import start


def dies_at_the_third_step(folder: Path) -> None:
    rank = find_processes().rank
    trainer = t.trainer("Adam")
    parts = t.batches(1)[0][:3]
    for _ in range(2):
        trainer.train_step(*parts[rank])
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        trainer.train_step(*parts[rank])
    except ProcessError as error:
        (folder / f"told{rank}").write_text(f"{trainer.train_step_info.optimization_step} {error}")


def test_a_process_that_dies_is_named_by_the_others(tmp_path):
    processes = start(t.enter, t.rows(3, dies_at_the_third_step, tmp_path))
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL, 0]
    for rank in (0, 2):
        assert (tmp_path / f"told{rank}").read_text().startswith("2 rank 1 of 3 has died or ended")


def waits_for_the_other(folder: Path) -> None:
    """Process 0 waits for process 1, which stands still: until it is interrupted, and then until the time is over."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    rank = find_processes().rank
    trainer = t.trainer("Adam")
    parts = t.batches(1)[0][:2]
    trainer.train_step(*parts[rank])
    if rank == 1:
        time.sleep(600)
    (folder / "waits").touch()
    try:
        trainer.train_step(*parts[rank])
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=2))
    try:
        trainer.train_step(*parts[rank])
    except ProcessError as error:
        (folder / "told").write_text(str(error))


def test_a_wait_can_be_interrupted_and_has_an_end(tmp_path):
    processes = start(t.enter, t.rows(2, waits_for_the_other, tmp_path))
    try:
        while not (tmp_path / "waits").exists():
            assert all(process.is_alive() for process in processes)
            time.sleep(0.1)
        time.sleep(1)
        os.kill(processes[0].pid, signal.SIGINT)
        processes[0].join()
    finally:
        processes[1].kill()
        processes[1].join()
    assert (tmp_path / "interrupted").exists()
    assert (tmp_path / "told").read_text().startswith("rank 1 of 2 did not take part")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"world_rank": 2, "world_size": 2}, "'distributed.world_rank' is 2, 'distributed.world_size' 2"),
        ({"world_rank": 1}, "'distributed.world_rank' is 1"),
        ({"world_size": 0}, "'distributed.world_size' is 0"),
        ({"deepspeed_zero_optimization": {"stage": 2}}, "stage' is 2(.|\n)*gradients .stage 2."),
        ({"deepspeed_zero_optimization": {"stage": 3}}, "stage' is 3(.|\n)*parameters .stage 3."),
        ({"world_size": 4, "data_parallel_size": 2}, "data_parallel_size' is 2"),
        ({"horizontal_parallel_size": 2}, "horizontal_parallel_size(.|\n)*a whole model"),
        ({"timeout": 0}, "'distributed.timeout' is 0"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options, says):
    with pytest.raises(OptionError, match=says):
        ORTTrainerOptions({"distributed": options})


def test_adaptive_summation_needs_a_power_of_two():
    with pytest.raises(OptionError, match="with 3 processes(.|\n)*start 2 or 4"):
        check_adasum(3)
    for size in (1, 2, 4, 8):
        check_adasum(size)


def without_launcher(monkeypatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMPI_", "SLURM_", "AZ_BATCH", "TORCHELASTIC")) or name in (
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR",
        ):  # fmt: skip
            monkeypatch.delenv(name)


def test_processes_that_cannot_be_met_are_refused_at_once(monkeypatch):
    without_launcher(monkeypatch)
    with pytest.raises(OptionError, match="'distributed.world_size' is 2(.|\n)*torchrun"):
        t.trainer("SGD", distributed={"world_size": 2})


def test_options_and_launcher_must_agree(monkeypatch):
    without_launcher(monkeypatch)
    for name, value in Processes("torchrun", 1, 4, 1, 4).environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="options say rank 0 of 2, torchrun started rank 1 of 4"):
        t.trainer("SGD", distributed={"world_size": 2, "world_rank": 0})


def test_options_and_process_group_must_agree(monkeypatch, tmp_path):
    without_launcher(monkeypatch)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(OptionError, match="options say rank 1 of 2, the process group has rank 0 of 1"):
            t.trainer("SGD", distributed={"world_size": 2, "world_rank": 1})
    finally:
        torch.distributed.destroy_process_group()


def test_a_launcher_that_nobody_listens_to_is_said_aloud(monkeypatch):
    without_launcher(monkeypatch)
    for name, value in Processes("torchrun", 1, 4, 1, 4).environment().items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=r"torchrun started 4 processes.*find_processes\(\).options\(\)"):
        t.trainer("SGD", distributed={"world_size": 1, "world_rank": 0})


def test_another_provider_is_refused(monkeypatch):
    class OfTwo:
        rank, size, device = 0, 2, torch.device("cpu")

    from ontrain.distributed import Reduction
    from ontrain.providers import get_provider

    class Session:
        provider = get_provider("ReferenceExecutionProvider", "cpu")

    with pytest.raises(OptionError, match="ReferenceExecutionProvider cannot train in several processes"):
        Reduction(OfTwo()).create_state(Session(), [])  # type: ignore[arg-type]
