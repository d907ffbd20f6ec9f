"""The jobs against the SDK's own schema, each other, the scripts that they run and the published tables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from azure.ai.ml import MLClient, load_compute, load_data, load_environment, load_job
from azure.ai.ml._restclient.arm_ml_service._utils.model_base import SdkJSONEncoder
from azure.ai.ml._utils._asset_utils import get_ignore_file
from azure.ai.ml.entities import AmlCompute, Command, CommandJob
from catalogue import MACHINES, RECIPES
from marshmallow import ValidationError
from submit import DEFAULT_SIZE, Launcher, build, compute_name, files, main, submit, workspace

ROOT = Path(__file__).parents[3]
AZUREML = ROOT / "azureml"
JOBS = sorted((AZUREML / "jobs").glob("*.yml"))
PAIRS = [(name, launcher) for name in RECIPES for launcher in Launcher]


def said(job: CommandJob | Command) -> dict:
    """The request that would be sent, with references to assets in their short form."""
    job = job._to_job() if isinstance(job, Command) else job
    job._validate()
    text = json.dumps(job._to_rest_object(), cls=SdkJSONEncoder, sort_keys=True)
    return json.loads(text.replace("azureml:", ""))


def test_there_is_a_file_for_each_recipe_and_launcher():
    assert [path.name for path in JOBS] == sorted(f"{name}.{launcher}.yml" for name, launcher in PAIRS)
    for path, text in files():
        assert path.read_text() == text, f"{path.name} is not what submit.py says: python azureml/submit.py --write"


@pytest.mark.parametrize(("name", "launcher"), PAIRS)
def test_yaml_and_python_send_the_same_request(name, launcher):
    """The YAML goes through the SDK's schema, the Python through its builder."""
    by_yaml = said(load_job(AZUREML / "jobs" / f"{name}.{launcher}.yml"))
    by_python = said(build(name, launcher=launcher))
    for request in (by_yaml, by_python):
        assert (AZUREML / "jobs" / request["properties"].pop("codeId")).resolve() == ROOT / "recipes"
    assert by_yaml == by_python
    assert by_yaml["properties"]["distribution"] == {
        "distributionType": {"mpi": "Mpi", "pytorch": "PyTorch"}[launcher],
        "processCountPerInstance": 8,
    }


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"distribution": {"type": "mpl"}}, "distribution"),
        ({"resources": {"instance_count": "four"}}, "instance_count"),
        ({"inputs": {"data": {"type": "uri_foldr", "path": "azureml:squad@latest"}}}, "inputs"),
        ({"comand": "python"}, "comand"),
    ],
)
def test_the_schema_would_refuse_a_mistake(wrong, complaint, tmp_path):
    job = yaml.safe_load(JOBS[0].read_text()) | wrong
    file = tmp_path / "job.yml"
    file.write_text(yaml.safe_dump(job))
    with pytest.raises(ValidationError, match=complaint):
        load_job(file)._validate()


@pytest.mark.parametrize("name", RECIPES)
def test_command_uses_all_inputs_and_no_others(name):
    job = load_job(AZUREML / "jobs" / f"{name}.mpi.yml")
    assert set(re.findall(r"\$\{\{inputs\.(\w+)\}\}", job.command)) == set(job.inputs)
    assert set(re.findall(r"\$\{\{outputs\.(\w+)\}\}", job.command)) == set(job.outputs)


def test_scripts_know_of_other_processes():
    """One starts on each GPU; a script that asks no launcher for its rank would run several times over one folder."""
    for recipe in RECIPES.values():
        task = recipe.task(8, 80)
        script = ROOT / "recipes" / task.script
        imported = re.findall(r"^from (\w+)", script.read_text(), re.MULTILINE)
        own = [path for name in imported for room in script.parents[:2] for path in (room / name).rglob("*.py")]
        assert any("find_processes" in path.read_text() for path in [script, *own]), task.script


def test_scripts_know_each_option():
    """Each command ends in an option that does not exist: the script complains of that, and of no other."""
    started = {}
    for name, recipe in RECIPES.items():
        command = recipe.task(8, 80).command() + " --no_such_option"
        started[name] = subprocess.Popen(
            [sys.executable, *command.split()[1:]],
            cwd=ROOT / "recipes",
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    for name, process in started.items():
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 2, (name, output)
        assert re.search(r"(No such option|unrecognized arguments): --no_such_option\s", output), (name, output)


def test_assets_that_jobs_read_are_uploaded_or_made_by_another_job():
    outputs = {RECIPES[name].task(8, 80).output for name in RECIPES}
    described = {load_data(path).name for path in (AZUREML / "data").glob("*.yml")}
    assert {path.stem for path in (AZUREML / "data").glob("*.yml")} == described
    read = {asset for name in RECIPES for asset in RECIPES[name].task(8, 80).inputs.values()}
    assert read - described <= outputs
    assert described <= read


# (size, machines): sequences a GPU and step, pieces; as the reference recipe's notebook recommends.
PUBLISHED = {
    "bert-phase1": {1: (8192, 64), 2: (4096, 32), 4: (2048, 16), 8: (1024, 8)},
    "bert-phase2": {1: (4096, 256), 2: (2048, 128), 4: (1024, 64), 8: (512, 32)},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_batches_on_32_gb_are_the_published_ones(name):
    machine = MACHINES["Standard_ND40rs_v2"]
    for nodes, numbers in PUBLISHED[name].items():
        options = RECIPES[name].task(nodes * machine.gpus, machine.memory).options
        assert (options["train_batch_size"], options["gradient_accumulation_steps"]) == numbers


def test_gpt2_on_32_gb_is_the_published_one():
    """4 blocks at once and 4 times that an update, as the reference recipe's notebook has it."""
    options = RECIPES["gpt2"].task(32, 32).options
    assert (options["per_gpu_train_batch_size"], options["gradient_accumulation_steps"]) == (4, 4)
    for machine in MACHINES.values():
        options = RECIPES["gpt2"].task(32, machine.memory).options
        assert options["per_gpu_train_batch_size"] * options["gradient_accumulation_steps"] == 16


@pytest.mark.parametrize("size", MACHINES)
@pytest.mark.parametrize(("name", "step"), [("bert-phase1", 65_536), ("bert-phase2", 32_768)])
def test_a_step_takes_as_many_sequences_on_any_number_of_machines(name, step, size):
    machine = MACHINES[size]
    for nodes in (1, 2, 4, 8, 16):
        options = RECIPES[name].task(nodes * machine.gpus, machine.memory).options
        assert options["train_batch_size"] * nodes * machine.gpus == step
        assert options["train_batch_size"] % options["gradient_accumulation_steps"] == 0


def test_cluster_is_of_the_default_size():
    cluster = load_compute(AZUREML / "compute.yml")
    assert isinstance(cluster, AmlCompute)
    assert (cluster.size, cluster.name) == (DEFAULT_SIZE, compute_name(DEFAULT_SIZE))
    assert cluster.max_instances >= max(recipe.nodes for recipe in RECIPES.values())


def test_environment_is_built_from_this_checkout_without_what_it_does_not_need():
    environment = load_environment(AZUREML / "environment.yml")
    assert (AZUREML / environment.build.path).resolve() == ROOT
    dockerfile = ROOT / environment.build.dockerfile_path
    ignored = get_ignore_file(ROOT)
    needed = [environment.build.dockerfile_path]
    for words in re.findall(r"^COPY (?!--from)(.+)$", dockerfile.read_text(), re.MULTILINE):
        for source in words.split()[:-1]:
            path = ROOT / source
            needed += [source] if path.is_file() else [str(file.relative_to(ROOT)) for file in path.rglob("*.py")]
    assert len(needed) > 100
    assert not [file for file in needed if ignored.is_file_excluded(ROOT / file)]
    for file in (".git/config", ".venv/bin/python", "tests/test_tiny.py", "src/ontrain/__pycache__/errors.pyc"):
        assert ignored.is_file_excluded(ROOT / file), file


def call(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(AZUREML / "submit.py"), *args],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_command_line_prints_what_it_would_submit(tmp_path):
    done = call("bert-phase1", "--nodes", "2", "--launcher", "mpi", "--size", "Standard_ND40rs_v2")
    assert done.returncode == 0, done.stderr
    head, _, rest = done.stdout.partition("\n")
    assert "nothing submitted" in head
    # What is printed is a job that the service would take.
    file = tmp_path / "job.yml"
    file.write_text(rest)
    job = load_job(file)
    assert job.resources.instance_count == 2
    assert "--train_batch_size 4096 --gradient_accumulation_steps 32" in job.command


@pytest.mark.parametrize(
    ("recipe", "options", "words"),
    [
        ("bert", {}, "there is no recipe 'bert'"),
        ("squad", {"size": "Standard_NC24rs_v3"}, "there is no size"),
        ("bert-phase1", {"nodes": 3}, "can't be divided among 24 GPUs"),
        ("squad", {"nodes": 5}, "can't be divided among 40 GPUs"),
        ("squad", {"send": True}, "no config.json"),
    ],
)
def test_mistakes_are_said_in_a_line(recipe, options, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(recipe, **options)
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert words in said
    assert len(said.splitlines()) == 1, said


def test_submit_hands_a_job_to_the_workspace_and_a_cluster_waits():
    asked = []
    job, cluster = object(), load_compute(AZUREML / "compute.yml")
    client = SimpleNamespace(
        create_or_update=lambda job: asked.append(job) or SimpleNamespace(studio_url="https://studio", name="job"),
        begin_create_or_update=lambda job: asked.append(job) or SimpleNamespace(result=lambda: job),
    )
    assert submit(job, client).name == "job"
    assert submit(cluster, client) is cluster
    assert asked == [job, cluster]


def test_workspace_is_read_from_config_json_in_this_folder_or_above(tmp_path, monkeypatch):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert workspace(inner) is None
    named = {"subscription_id": "0" * 8, "resource_group": "group", "workspace_name": "mine"}
    (tmp_path / "config.json").write_text(json.dumps(named))
    client = workspace(inner)
    assert isinstance(client, MLClient)
    assert (client.workspace_name, client.resource_group_name) == ("mine", "group")
