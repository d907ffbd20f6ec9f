"""The benchmark of GPUs, run on the CPU: every engine trains the same model, and rows say what was measured on what."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys

import pytest
import torch

from benchmarks import figures as results, gpu, other_tables, rows, step
from tests.processes import Piped

FIGURES = {
    "step_s", "step_min_s", "step_max_s", "ratio", "ratio_min", "ratio_max", "first_step_s", "peak_bytes", "faults",
    "first_loss", "last_loss", "flop", "utilisation",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _forked():
    """Workers begin with torch and transformers, which take longer to import than the models to train."""
    import transformers.models.bert.modeling_bert  # noqa: F401 (and so in the process that they are forked from)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step.Worker, "start", Piped)
        yield


def run(folder, monkeypatch, *options: str) -> dict:
    monkeypatch.setattr(rows, "RESULTS", folder)
    assert gpu.main(["--device", "cpu", "--size", "tiny", "--rounds", "2", "--steps", "2", *options]) == 0
    (line,) = (folder / "gpu.jsonl").read_text().splitlines()
    return json.loads(line)


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("workload", "dtype", "engines", "tolerance"),
    [
        ("bert-large-128", "float32", ("ontrain", "ortmodule", "eager", "eager-chunked"), 1e-5),
        ("gpt2-medium-1024", "bfloat16", ("ontrain", "ortmodule", "eager"), 5e-3),
    ],
)
def test_all_engines_train_the_same_model(workload, dtype, engines, tolerance, tmp_path, monkeypatch):
    if not hasattr(torch.nn.functional, "linear_cross_entropy"):
        engines = tuple(engine for engine in engines if "chunked" not in engine)
    chosen = [part for engine in engines for part in ("--engine", engine)]
    row = run(tmp_path, monkeypatch, "--workload", workload, "--dtype", dtype, "--peak", "0.1", *chosen)
    assert list(row["engines"]) == list(engines)
    for name, figures in row["engines"].items():
        assert set(figures) == FIGURES, name
        assert figures["step_min_s"] <= figures["step_s"] <= figures["step_max_s"]
        assert figures["utilisation"] == pytest.approx(figures["flop"] / figures["step_s"] / 1e11)
        for key in ("first_loss", "last_loss"):
            assert figures[key] == pytest.approx(row["engines"]["eager"][key], rel=tolerance), (name, key)
    # A warming turn and two more, of two steps each, after the first step.
    assert row["engines"]["eager"]["last_loss"] < row["engines"]["eager"]["first_loss"]
    assert row["device"] == {"name": "CPU"} and row["versions"]["torch"] and row["workload"] == workload


@pytest.fixture(scope="module")
def measured() -> tuple[dict, str]:
    """Figures of a model's engines, and what was said: torch has no mode "nothing", so that engine ends at once."""
    setting = gpu.Setting("gpt2-medium-1024", "tiny", "cpu", "float32", 0, 1)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        figures = gpu.measure(setting, ["eager", "compile-nothing", "ontrain"], 1, None, together=2)
    return figures, said.getvalue()


def test_operations_are_those_of_the_products_that_are_made(measured):
    """Every token is labelled, attention included: forward, and backward twice as much."""
    tokens, width, length = 2 * 16, 64, 16
    layer = 2 * tokens * 12 * width**2 + 2 * 2 * tokens * length * width
    head = 2 * 2 * 15 * width * 1000
    assert measured[0]["ontrain"]["flop"] == pytest.approx(3 * (2 * layer + head), rel=0.08)


def test_an_engine_that_ends_is_left_out_and_the_others_are_measured(measured):
    figures, said = measured
    assert list(figures) == ["eager", "ontrain"]
    assert "compile-nothing left out, the worker ended with 1" in said


@pytest.mark.parametrize(
    ("name", "rate"),
    [("NVIDIA H200", 989.4e12), ("NVIDIA H100 80GB HBM3", 989.4e12), ("NVIDIA H100 PCIe", 756e12), ("Abacus", None)],
)
def test_the_peak_rate_is_found_by_the_devices_name(name, rate):
    assert gpu.peak_rate(name) == rate


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_what_to_do():
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--no-row"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2 and not run.stdout
    assert "torch sees no CUDA device" in run.stderr and "--device cpu --size tiny" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_page_says_what_was_not_run_and_shows_what_was(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert "Not run" in "\n".join(other_tables.gpu())
    figures = dict.fromkeys(FIGURES, 1.0) | {"step_s": 0.0123, "utilisation": 0.456}
    row = {
        "date": "2026-01-02", "workload": "bert-large-128", "size": "full", "rows": 64, "length": 128, "rounds": 10,
        "steps": 10, "dtype": "bfloat16", "device": {"name": "NVIDIA H200", "cuda": "13.0"}, "python": "3.12",
        "command": "python -m benchmarks.gpu", "versions": {"torch": "2.11"}, "engines": {"ontrain": figures},
        "hardware": {"cpu": "a processor", "cores": 16, "avx512": True},
    }  # fmt: skip
    small = {**row, "size": "tiny", "device": {"name": "CPU"}}
    (tmp_path / "gpu.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (row, small)))
    text = "\n".join(other_tables.gpu())
    assert "NVIDIA H200" in text and "| 12.3 |" in text and "46%" in text and "Not run" not in text
