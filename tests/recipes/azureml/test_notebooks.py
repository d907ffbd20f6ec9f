"""Both notebooks run as a user without a workspace runs them: all cells, up to the submission."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from azure.ai.ml import load_job
from nbclient import NotebookClient
from submit import workspace

AZUREML = Path(__file__).parents[3] / "azureml"
HEAD = "# dry run, nothing submitted\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        ("run-pretraining", ["bert-phase1-4x8-mpi", "bert-phase2-4x8-mpi"]),
        ("run-finetuning", ["squad-1x8-pytorch", "gpt2-4x8-pytorch"]),
    ],
)
def test_notebook_prints_the_jobs_that_it_would_submit(name, jobs, tmp_path):
    assert workspace() is None, "there is a config.json: this test would submit the jobs"
    notebook = nbformat.read(AZUREML / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "outputs are not committed"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(AZUREML)}}).execute()
    printed = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.get("name") == "stdout"
    ]
    dry = [listing for text in printed for listing in text.split(HEAD)[1:]]
    names = []
    for number, text in enumerate(dry):
        if "type: command" in text:
            file = tmp_path / f"{number}.yml"
            file.write_text(text)
            names.append(load_job(file).display_name)
    assert names == jobs
    assert len(dry) == len(jobs) + 2  # and the cluster and the environment
