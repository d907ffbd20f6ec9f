"""What every script of the recipes does before it does anything: it helps, and it says what it lacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.imports import slow_imports

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
SCRIPTS = [
    "getting_started/train.py", "bert/prepare.py", "bert/run_pretraining.py", "bert/convert_checkpoint.py",
    "bert/compare_runs.py", "bert/run_squad.py", "bert/run_glue.py", "gpt2/run_lm.py", "on_device/make_artifacts.py",
]  # fmt: skip
EVERY = sorted(
    str(path.relative_to(RECIPES))
    for path in (*RECIPES.glob("*/*.sh"), *RECIPES.glob("*/*.py"))
    if path.suffix == ".sh" or '__name__ == "__main__"' in path.read_text()
)


@pytest.mark.parametrize("script", ["bert/run_pretraining.sh", "gpt2/run_lm.sh"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_a_shell_script_prints_its_manual(script: str, flag: str, tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "recipes" / script), flag]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{Path(script).name}" in done.stdout and not done.stdout.startswith("#")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", EVERY)
def test_help_waits_for_nothing_slow(script: str, tmp_path: Path) -> None:
    program = "bash" if script.endswith(".sh") else sys.executable
    done, slow = slow_imports([program, RECIPES / script, "--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "--" in done.stdout
    assert not slow


@pytest.mark.parametrize("script", [*SCRIPTS, "on_device/train_digits.py"])
def test_help_is_the_whole_manual(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "recipes" / script), "--help"], capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "120", "TERM": "dumb"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exit codes: 0 done;" in done.stdout
    examples = rf"^ +\$ (python|torchrun).* (recipes/)?({script}|{Path(script).name})\b"
    assert len(re.findall(examples, done.stdout, re.MULTILINE)) >= 3
    flags = re.split(r"^  (?=-)", re.split(r"\n(?:Options|options):\n", done.stdout)[1], flags=re.MULTILINE)[1:]
    undefined = [
        flag for flag in flags if not re.search(r"[\[ ]default: |[\[ ]required\]|--help", " ".join(flag.split()))
    ]
    assert not undefined
    silent = [flag for flag in flags if not re.search(r"  \w.*\[|\n +\w.*\[|--help", flag, re.DOTALL)]
    assert not silent


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("getting_started/train.py", ["--data", "absent"]),
        ("bert/run_pretraining.py", ["--do_train", "--output_dir", "run", "--input_dir", "absent"]),
        ("bert/convert_checkpoint.py", ["absent", "new"]),
        ("bert/compare_runs.py", ["absent", "absent", "--data", "absent", "--output", "new"]),
        (
            "bert/run_squad.py",
            ["--do_train", "--model_name_or_path", ".", "--output_dir", "run", "--train_file", "absent"],
        ),
        (
            "bert/run_glue.py",
            [
                "--do_train",
                "--task_name",
                "CoLA",
                "--model_name_or_path",
                ".",
                "--output_dir",
                "run",
                "--data_dir",
                "absent",
            ],
        ),
        ("bert/prepare.py", ["--action", "show", "--vocab_file", "absent"]),
        ("gpt2/run_lm.py", ["--do_train", "--output_dir", "run", "--train_data_file", "absent"]),
        ("on_device/train_digits.py", ["--artifacts", "absent"]),
    ],
)
def test_a_wrong_path_is_told_before_any_slow_import(script: str, words: list[str], tmp_path: Path) -> None:
    # Modules that take seconds say so where they are imported.
    for name in ("torch", "onnxruntime", "transformers", "h5py"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "recipes" / script), *words], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])},
    )  # fmt: skip
    assert done.returncode == 2 and "absent" in done.stderr and "imported" not in done.stderr


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


def test_what_a_device_runs_says_its_two_packages(bare: Path, tmp_path: Path) -> None:
    for name in ("training_model.onnx", "optimizer_model.onnx", "eval_model.onnx", "checkpoint"):
        (tmp_path / name).touch()
    command = [str(bare), "-E", str(ROOT / "recipes/on_device/train_digits.py"), "--artifacts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "pip install numpy onnxruntime" in done.stderr and "Traceback" not in done.stderr
