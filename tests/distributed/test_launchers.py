"""The environments that launchers leave, as their documentation shows them, and the mixtures that cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ontrain.distributed import Processes, find_processes
from ontrain.errors import OptionError

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "3(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "81234",
}  # fmt: skip
TORCHRUN = {
    "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29401", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip


def test_no_launcher() -> None:
    assert find_processes({}) == Processes("none", 0, 1, 0, 1, "127.0.0.1", 29500)


def test_torchrun() -> None:
    assert find_processes(TORCHRUN) == Processes("torchrun", 2, 4, 2, 4, "10.0.0.1", 29401)


def test_openmpi() -> None:
    assert find_processes({**OPENMPI, "MASTER_ADDR": "head"}) == Processes("OpenMPI", 5, 8, 1, 4, "head", 29500)


def test_slurm() -> None:
    assert find_processes(SLURM) == Processes("Slurm", 3, 6, 0, 3, "gpu07", 20000 + 81234 % 20000)
    assert find_processes({**SLURM, "SLURM_STEP_NODELIST": "a1,b2"}).master_address == "a1"


def test_azure_adds_the_master() -> None:
    several = find_processes({**OPENMPI, "AZ_BATCH_MASTER_NODE": "10.1.2.3:6000"})
    assert (several.master_address, several.master_port) == ("10.1.2.3", 6000)
    single = find_processes({**OPENMPI, "AZ_BATCHAI_MPI_MASTER_NODE": "10.1.2.4"})
    assert (single.master_address, single.master_port) == ("10.1.2.4", 6105)


def test_a_launcher_inside_another() -> None:
    assert find_processes({**SLURM, **TORCHRUN}).launcher == "torchrun"
    assert find_processes({**OPENMPI, **TORCHRUN}).world_size == 4
    assert find_processes({**SLURM, **OPENMPI}).launcher == "OpenMPI"
    assert find_processes({name: value for name, value in SLURM.items() if name != "SLURM_PROCID"}).world_size == 1
    agreeing = {"RANK": "5", "WORLD_SIZE": "8"}
    assert find_processes({**OPENMPI, **agreeing}).rank == 5


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "1"}, "RANK is set to '1', WORLD_SIZE is not"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK is not"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4 and WORLD_SIZE is 4"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK is 'x'"),
        ({**OPENMPI, "RANK": "0", "WORLD_SIZE": "2"}, "torchrun: rank 0 of 2; OpenMPI: rank 5 of 8"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
    ],
)
def test_wrong_mixtures(environ: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        find_processes(environ)


def test_what_torchrun_really_sets(tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text(
        "from pathlib import Path\n"
        "from ontrain.distributed import find_processes\n"
        "one = find_processes()\n"
        f"out = Path({str(tmp_path)!r}) / str(one.rank)\n"
        "out.write_text(f'{one.launcher} {one.world_size} {one.local_rank}')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["torchrun 2 0", "torchrun 2 1"]
