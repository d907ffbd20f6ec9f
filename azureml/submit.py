"""The jobs of azureml/jobs in Python: print one as it would be submitted, or submit it.

    $ python azureml/submit.py bert-phase1             print the job: 4 machines of 8 A100, PyTorch's launcher
    $ python azureml/submit.py bert-phase1 --nodes 2 --launcher mpi --size Standard_ND40rs_v2
    $ python azureml/submit.py bert-phase1 --submit    submit it to the workspace that config.json names
    $ python azureml/submit.py --write                 write azureml/jobs/*.yml anew

It needs `pip install -e '.[azure]'` in the clone. Nothing but `--submit` needs a network or an account.

Exit codes: 0 done; 2 an option or the workspace is at fault.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from catalogue import MACHINES, RECIPES

if TYPE_CHECKING:
    # The SDK takes seconds to import, and --help shall not wait for it.
    from azure.ai.ml import MLClient
    from azure.ai.ml.entities import CommandJob

__all__ = ["Launcher", "build", "check_sdk", "describe", "submit", "workspace"]

FOLDER = Path(__file__).resolve().parent
ENVIRONMENT = "azureml:ontrain@latest"
DEFAULT_SIZE = "Standard_ND96amsr_A100_v4"
SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
VARIABLES = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "^docker0,lo"}
DAYS = 24 * 60 * 60
EXAMPLES = """\b
Examples:
  python azureml/submit.py bert-phase1
      print the job: as many machines of 8 GPUs as published, PyTorch's launcher
  python azureml/submit.py bert-phase1 --nodes 2 --launcher mpi --size Standard_ND40rs_v2
      print the job for two machines of 8 V100, started by MPI
  python azureml/submit.py bert-phase1 --submit
      submit the job to the workspace that config.json names

Exit code: 0 if the command was done, 2 if an option or the workspace is wrong."""


class Launcher(StrEnum):
    """Who starts the processes on a machine; ontrain.distributed knows the environment of both."""

    pytorch = "pytorch"
    mpi = "mpi"


def compute_name(size: str) -> str:
    """Name of the cluster of such machines, as azureml/compute.yml and the notebooks make it."""
    return size.removeprefix("Standard_").replace("_", "-").lower()


def describe(
    name: str, *, size: str = DEFAULT_SIZE, nodes: int | None = None, launcher: Launcher = Launcher.pytorch
) -> dict[str, Any]:
    """The job as `az ml job create --file` reads it.

    Args:
        name: one of RECIPES.
        size: one of MACHINES.
        nodes: machines; by default as published.
        launcher: who starts the processes.

    Raises:
        ValueError: the step's sequences can't be divided among so many GPUs.
    """
    recipe, machine = RECIPES[name], MACHINES[size]
    nodes = recipe.nodes if nodes is None else nodes
    task = recipe.task(nodes * machine.gpus, machine.memory)
    return {
        "$schema": SCHEMA,
        "type": "command",
        "display_name": f"{name}-{nodes}x{machine.gpus}-{launcher}",
        "experiment_name": recipe.experiment,
        "description": task.title,
        "code": "../../recipes",
        "command": task.command(),
        "inputs": {
            key: {"type": "uri_folder", "path": f"azureml:{asset}@latest"} for key, asset in task.inputs.items()
        },
        "outputs": {"results": {"type": "uri_folder", "mode": "rw_mount", "name": task.output}},
        "environment": ENVIRONMENT,
        "environment_variables": VARIABLES,
        "compute": f"azureml:{compute_name(size)}",
        "resources": {"instance_count": nodes, "shm_size": "32g"},
        "distribution": {"type": str(launcher), "process_count_per_instance": machine.gpus},
        "limits": {"timeout": 7 * DAYS},
    }


def build(
    name: str, *, size: str = DEFAULT_SIZE, nodes: int | None = None, launcher: Launcher = Launcher.pytorch
) -> CommandJob:
    """The same job, made with the SDK; arguments and errors as for `describe`."""
    from azure.ai.ml import Input, MpiDistribution, Output, PyTorchDistribution
    from azure.ai.ml.entities import CommandJob, CommandJobLimits, JobResourceConfiguration

    said = describe(name, size=size, nodes=nodes, launcher=launcher)
    distribution = {Launcher.mpi: MpiDistribution, Launcher.pytorch: PyTorchDistribution}[launcher]
    return CommandJob(
        display_name=said["display_name"],
        experiment_name=said["experiment_name"],
        description=said["description"],
        code=str(FOLDER.parent / "recipes"),
        command=said["command"],
        inputs={key: Input(**one) for key, one in said["inputs"].items()},
        outputs={key: Output(**one) for key, one in said["outputs"].items()},
        environment=ENVIRONMENT,
        environment_variables=dict(VARIABLES),
        compute=compute_name(size),
        resources=JobResourceConfiguration(**said["resources"]),
        distribution=distribution(process_count_per_instance=said["distribution"]["process_count_per_instance"]),
        limits=CommandJobLimits(**said["limits"]),
    )


def workspace(folder: Path = FOLDER) -> MLClient | None:
    """The workspace that config.json names, in this folder or one above; None without such a file.

    The file is what the studio's `Download config.json` gives. Nothing is sent yet.
    """
    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential

    found = [
        path
        for place in (folder, *folder.parents)
        for path in (place / "config.json", place / ".azureml" / "config.json")
        if path.is_file()
    ]
    if not found:
        return None
    return MLClient.from_config(DefaultAzureCredential(), path=str(found[0]))


def submit(entity: Any, client: MLClient | None) -> Any:
    """Submit a job, or make an asset or a cluster; without a workspace print it and do nothing.

    Returns:
        what the service made of it, or None.
    """
    if client is None:
        text = io.StringIO()
        entity.dump(text)
        print(f"# dry run, nothing submitted\n{text.getvalue()}")
        return None
    from azure.ai.ml.entities import Compute

    if isinstance(entity, Compute):
        made = client.begin_create_or_update(entity).result()
    else:
        made = client.create_or_update(entity)
    print(getattr(made, "studio_url", None) or f"{type(made).__name__} {made.name}")
    return made


def files() -> Iterator[tuple[Path, str]]:
    """The files of azureml/jobs and what is in them: each recipe with each launcher, as published."""
    import yaml

    for name in RECIPES:
        for launcher in Launcher:
            said = describe(name, launcher=launcher)
            text = yaml.safe_dump(said, sort_keys=False, width=2**16)
            yield FOLDER / "jobs" / f"{name}.{launcher}.yml", f"# Written by azureml/submit.py --write.\n{text}"


def check_sdk() -> None:
    """Look for Azure's SDK.

    Raises:
        ValueError: it is not installed; says which command installs it.
    """
    if find_spec("azure") is None or find_spec("azure.ai") is None or find_spec("azure.ai.ml") is None:
        raise ValueError(f"azure-ai-ml is not installed: {sys.executable} -m pip install -e '{FOLDER.parent}[azure]'")


def main(
    recipe: Annotated[str | None, typer.Argument(help=f"One of {', '.join(RECIPES)}.")] = None,
    size: Annotated[str, typer.Option(help=f"Size of the machines: {', '.join(MACHINES)}.")] = DEFAULT_SIZE,
    nodes: Annotated[int | None, typer.Option(min=1, show_default="as published", help="Number of machines.")] = None,
    launcher: Annotated[Launcher, typer.Option(help="Who starts the processes.")] = Launcher.pytorch,
    send: Annotated[
        bool, typer.Option("--submit", show_default="off", help="Submit the job instead of printing it.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", show_default="off", help="Write azureml/jobs/*.yml anew, nothing else.")
    ] = False,
) -> None:
    """Print a job for Azure Machine Learning, or submit it.

    A job runs a recipe on a number of machines with eight GPUs each. Only --submit needs a network and an account: it
    takes the workspace from the config.json that the studio gives.
    """
    try:
        check_sdk()
        if write:
            for path, text in files():
                path.write_text(text)
            return
        if recipe not in RECIPES:
            raise ValueError(f"there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")
        if size not in MACHINES:
            raise ValueError(f"there is no size {size!r}; there are {', '.join(MACHINES)}")
        client = workspace() if send else None
        if send and client is None:
            raise ValueError(
                "no config.json in azureml/ or above: the studio's `Download config.json` gives one, or "
                "write it: subscription_id, resource_group, workspace_name"
            )
        submit(build(recipe, size=size, nodes=nodes, launcher=launcher), client)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(epilog=EXAMPLES)(main)
    app()
