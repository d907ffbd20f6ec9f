"""What every script of the recipes does before it does anything: it helps, and it says what it lacks."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    "getting_started/train.py", "bert/prepare.py", "bert/run_pretraining.py", "bert/convert_checkpoint.py",
    "bert/compare_runs.py", "bert/run_squad.py", "bert/run_glue.py", "gpt2/run_lm.py", "on_device/make_artifacts.py",
]  # fmt: skip


@pytest.mark.parametrize("script", ["bert/run_pretraining.sh", "gpt2/run_lm.sh"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_a_shell_script_prints_its_manual(script: str, flag: str, tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "recipes" / script), flag]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{Path(script).name}" in done.stdout and not done.stdout.startswith("#")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_waits_for_no_torch(script: str) -> None:
    # A module of that name that cannot be imported stands before the real one.
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = None\n"
        f"sys.path.insert(0, {str((ROOT / 'recipes' / script).parent)!r})\n"
        f"sys.argv = [{script!r}, '--help']\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: True if name == 'torch' else real(name, *rest)\n"
        f"runpy.run_path({str(ROOT / 'recipes' / script)!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_read_in_one_go(script: str) -> None:
    assert len((ROOT / "recipes" / script).read_text().splitlines()) < 250


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    return folder / "bin" / "python"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_without_its_packages_says_what_installs_them(script: str, bare: Path) -> None:
    command = [str(bare), "-E", str(ROOT / "recipes" / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "torch" in done.stderr and f"make -C {ROOT} recipes" in done.stderr and "[recipes,hf]" in done.stderr
    assert "Traceback" not in done.stderr
