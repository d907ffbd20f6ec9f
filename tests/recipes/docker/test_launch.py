"""The images' scripts as a user calls them, with an engine in docker's place that says how it was called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
ENGINE = f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv))\n"


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A folder with a program called docker that prints its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(ENGINE)
    (folder / "docker").chmod(0o755)
    return folder


def call(script: str, *args: str, cwd: Path, path: Path | None = None, **variables: str):
    """Run a script of docker/ with no variables but these; a path of None has no engine on it."""
    search = f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin"
    return subprocess.run(
        [str(DOCKER / script), *args],
        cwd=cwd,
        env={"PATH": search, "HOME": os.environ.get("HOME", "/"), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def arguments(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[1:]


def values(said: list[str], option: str) -> list[str]:
    return [said[i + 1] for i, word in enumerate(said) if word == option]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("script", sorted(path.name for path in DOCKER.glob("*.sh")))
def test_a_script_says_how_it_is_called(script, flag, tmp_path):
    done = call(script, flag, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")  # a Python that it started would say so
    assert (done.returncode, done.stderr) == (0, "")
    assert f"  docker/{script} " in done.stdout and "set -euo" not in done.stdout
    assert not any(line.startswith("#") for line in done.stdout.splitlines())


def test_recipe_runs_as_the_caller_and_gets_its_options(engine, tmp_path):
    said = arguments(call("launch.sh", "getting-started", "--lr", "0.1", "two words", cwd=tmp_path, path=engine))
    assert values(said, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert values(said, "--volume") == [f"{tmp_path}/runs:/workspace/runs:rw"]
    assert (tmp_path / "runs").is_dir()
    assert "--gpus" not in said
    image = said.index("ontrain:cpu")
    script = ["python", "recipes/getting_started/train.py", "--output", "runs/getting-started"]
    assert said[image + 1 :] == [*script, "--lr", "0.1", "two words"]


def test_gpus_choose_the_cuda_image(engine, tmp_path):
    folders = {}
    for name in ("128", "512"):
        (tmp_path / "hdf5 files" / name).mkdir(parents=True)
        folders[name] = str(tmp_path / "hdf5 files" / name)
    done = call(
        "launch.sh", "bert-pretraining", cwd=tmp_path, path=engine,
        GPUS="device=0,2", DATA_PHASE1=folders["128"], DATA_PHASE2=folders["512"],
    )  # fmt: skip
    said = arguments(done)
    assert values(said, "--gpus") == ["device=0,2"]
    assert said[said.index("ontrain:cuda") + 1 :] == ["bash", "recipes/bert/run_pretraining.sh"]
    # Where the script of the recipe looks for them.
    assert values(said, "--volume") == [
        f"{folders['128']}:/data/128:ro",
        f"{folders['512']}:/data/512:ro",
        f"{tmp_path}/runs/bert-pretraining:/workspace/recipes/bert/results:rw",
    ]
    script = (ROOT / "recipes" / "bert" / "run_pretraining.sh").read_text()
    assert all(place in script for place in ("/data/128", "/data/512", "results_dir=$codedir/results"))


def test_gpt2_gets_its_texts_and_the_callers_settings(engine, tmp_path):
    said = arguments(
        call("launch.sh", "gpt2", "--max_steps=9", cwd=tmp_path, path=engine, DATA=".", TEST_FILE="/data/x")
    )
    settings = values(said, "--env")
    assert {"TRAIN_FILE=/data/wiki.train.tokens", "TEST_FILE=/data/x", "num_gpus", "use_ort"} <= set(settings)
    script = (ROOT / "recipes" / "gpt2" / "run_lm.sh").read_text()
    assert all(name.partition("=")[0] in script for name in settings if not name.startswith("HOME="))


def test_data_is_read_only_but_where_it_is_made(engine, tmp_path):
    for recipe, mode in (("bert-data", "rw"), ("squad", "ro"), ("gpt2", "ro")):
        said = arguments(call("launch.sh", recipe, cwd=tmp_path, path=engine, DATA="."))
        assert values(said, "--volume")[0] == f"{tmp_path}:/data:{mode}"


def test_dry_run_prints_a_command_for_the_shell_and_does_nothing(tmp_path):
    done = call("launch.sh", "glue", "--task_name", "a b", cwd=tmp_path, DRY_RUN="1")
    assert done.returncode == 0
    assert done.stdout.startswith("docker run ")
    assert done.stdout.rstrip().endswith("python recipes/bert/run_glue.py --task_name a\\ b")
    assert not (tmp_path / "runs").exists()


def test_several_processes_train_where_they_are_asked_for(tmp_path):
    for recipe in ("squad", "glue"):
        done = call("launch.sh", recipe, "--do_train", cwd=tmp_path, DRY_RUN="1", num_gpus="8")
        script = f"recipes/bert/run_{recipe}.py"
        assert done.stdout.rstrip().endswith(f"torchrun --standalone --nproc_per_node 8 {script} --do_train")


def test_podman_keeps_the_callers_number(engine, tmp_path):
    (engine / "docker").rename(engine / "podman")
    said = arguments(call("launch.sh", "shell", cwd=tmp_path, path=engine, DOCKER="podman"))
    assert values(said, "--userns") == ["keep-id"]


def test_what_cannot_be_is_refused_before_the_engine_is_called(engine, tmp_path):
    assert "getting-started, bert-data" in refused(call("launch.sh", "bert", cwd=tmp_path, path=engine))
    assert "which recipe?" in refused(call("launch.sh", cwd=tmp_path, path=engine))
    nowhere = refused(call("launch.sh", "squad", cwd=tmp_path, path=engine, DATA="nowhere"))
    assert "DATA: there is no folder nowhere" in nowhere
    assert "bert-data writes" in refused(call("launch.sh", "bert-data", cwd=tmp_path, path=engine))
    both = call("launch.sh", "bert-pretraining", cwd=tmp_path, path=engine, DATA=".", DATA_PHASE1=".")
    assert "the one or the others" in refused(both)
    (tmp_path / "a:b").mkdir()
    assert "colon" in refused(call("launch.sh", "squad", cwd=tmp_path, path=engine, DATA="a:b"))
    assert "there is no nerdctl" in refused(call("launch.sh", "squad", cwd=tmp_path, DOCKER="nerdctl"))


def test_build_names_file_tag_and_context(engine, tmp_path):
    said = arguments(call("build.sh", "cuda", "--build-arg", "TORCH_INDEX=x", cwd=tmp_path, path=engine))
    assert said == [
        "build", "--file", f"{DOCKER}/Dockerfile.cuda", "--tag", "ontrain:cuda",
        "--build-arg", "TORCH_INDEX=x", str(ROOT),
    ]  # fmt: skip
    assert "docker/build.sh cpu, or" in refused(call("build.sh", "gpu", cwd=tmp_path, path=engine))
    assert "there is no nerdctl" in refused(call("build.sh", "cpu", cwd=tmp_path, DOCKER="nerdctl"))


def test_every_recipe_that_can_be_launched_is_there(tmp_path):
    for recipe in ("getting-started", "bert-data", "bert-pretraining", "squad", "glue", "gpt2", "on-device"):
        words = call("launch.sh", recipe, cwd=tmp_path, DRY_RUN="1", DATA=".").stdout.split()
        (script,) = [word for word in words if word.startswith("recipes/")]
        assert (ROOT / script).is_file(), f"{recipe} runs {script}, which is not there"
