"""Two real processes over Gloo: they end with the weights of one that takes the micro-batches of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.finetuning.flags import Engine
from harness.processes import Team
from safetensors.numpy import load_file

from tests.distributed.together import run as start

pytestmark = pytest.mark.sampled(2)

CASES: dict[str, dict[str, Any]] = {
    # 22 sentences in 8 batches: two updates an epoch, of 12 and of 10 rows; the last batch has a single one.
    "glue-ontrain": {"per_gpu_train_batch_size": 3, "gradient_accumulation_steps": 2, "engine": Engine.ontrain},
    "glue-pytorch": {"per_gpu_train_batch_size": 3, "gradient_accumulation_steps": 2, "engine": Engine.pytorch},
    # 9 windows in 3 batches: the second update of an epoch has one for the first process, and none for the other.
    "squad": {"per_gpu_train_batch_size": 4, "engine": Engine.ontrain},
}
ROWS = {"glue-ontrain": [12, 10], "glue-pytorch": [12, 10], "squad": [8, 1]}
FLAGS = {"do_train": True, "do_eval": True, "dropout": 0.0, "learning_rate": 2e-3, "num_train_epochs": 2.0}
DROPS = {
    "do_train": True, "dropout": 0.2, "num_train_epochs": 2.0, "save_steps": 1, "per_gpu_train_batch_size": 8,
    "engine": Engine.pytorch,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(
    model: Path, cola: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """The folder of the runs that tests look at: NAME-1 of one process, NAME-2 of two."""
    folder = tmp_path_factory.mktemp("processes")
    own = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    looked_at = {item.callspec.params.get("name") for item in own}
    cases = {name: flags for name, flags in CASES.items() if name in looked_at}
    for name, flags in cases.items():
        steps = 2 * flags.get("gradient_accumulation_steps", 1)
        _run(name, model, cola, questions, folder / f"{name}-1", {**flags, "gradient_accumulation_steps": steps})
    start(2, _both, cases, model, cola, questions, folder)
    return folder


def _both(cases: dict[str, dict[str, Any]], model: Path, cola: Path, questions: Path, folder: Path) -> None:
    from harness.finetuning import training

    for name, flags in cases.items():
        _run(name, model, cola, questions, folder / f"{name}-2", flags)
    _glue(model, cola, folder / "whole", DROPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "alone", _dies_in_update(3, training.alone))
        with pytest.raises(Killed):
            _glue(model, cola, folder / "parts", DROPS)
    _glue(model, cola, folder / "parts", DROPS)


def _run(name: str, model: Path, cola: Path, questions: Path, output: Path, flags: dict[str, Any]) -> None:
    if name == "squad":
        import run_squad

        sizes = {"max_seq_length": 64, "max_query_length": 16, "doc_stride": 24}
        files = {"train_file": questions, "predict_file": questions}
        run_squad.main(model_name_or_path=str(model), output_dir=output, **files, **sizes, **FLAGS, **flags)
    else:
        _glue(model, cola, output, {**FLAGS, **flags})


def _glue(model: Path, cola: Path, output: Path, flags: dict[str, Any]) -> None:
    import run_glue

    names = {"task_name": "CoLA", "data_dir": cola, "model_name_or_path": str(model), "output_dir": output}
    run_glue.main(**names, max_seq_length=48, **flags)


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def _dies_in_update(number: int, real: Any) -> Any:
    begun = 0

    def alone(engine: Any, *, last: bool) -> Any:
        nonlocal begun
        begun += last
        if begun == number:
            raise Killed
        return real(engine, last=last)

    return alone


def _log(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "train_log.jsonl").read_text().splitlines()]


def test_rows_are_dealt_out_with_their_weights_and_none_is_left_waiting() -> None:
    batches = [np.arange(4), np.arange(4, 8), np.arange(8, 9)]
    teams = [Team(rank, 2) for rank in range(2)]
    (first, second), (other,) = (team.shares(batches) for team in teams)
    assert [first[0].tolist(), second[0].tolist(), other[0].tolist()] == [[0, 1, 2, 3], [8], [4, 5, 6, 7]]
    assert [first[1], second[1], other[1]] == pytest.approx([4 / 9, 1 / 9, 4 / 9])
    ((rows, weight),) = teams[1].shares(batches[:1])
    assert len(rows) == 1
    assert weight == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_two_processes_end_where_one_with_the_batches_of_both_does(name: str, runs: Path) -> None:
    single, double = (_log(runs / f"{name}-{size}") for size in (1, 2))
    assert [row["examples"] for row in double] == ROWS[name] * 2
    assert [row["examples"] for row in single] == ROWS[name] * 2
    np.testing.assert_allclose([row["loss"] for row in double], [row["loss"] for row in single], rtol=1e-5)
    a, b = (load_file(runs / f"{name}-{size}" / "model.safetensors") for size in (1, 2))
    assert a.keys() == b.keys()
    for weight in a:
        # key.bias has gradient zero but for rounding, which Adam makes steps of.
        if not weight.endswith("key.bias"):
            np.testing.assert_allclose(b[weight], a[weight], rtol=1e-3, atol=2e-5, err_msg=weight)


@pytest.mark.parametrize("name", CASES)
def test_the_first_evaluates_everything_and_writes(name: str, runs: Path) -> None:
    results = json.loads((runs / f"{name}-2" / "eval_results.json").read_text())
    assert results["training"]["processes"] == 2
    if name == "squad":
        assert (
            results["agreement"]["questions"] == len(json.loads((runs / "squad-2/predictions.json").read_text())) == 8
        )
    else:
        assert results["cola"]["agreement"]["examples"] == 22
        assert len((runs / f"{name}-2" / "predictions_cola.tsv").read_text().splitlines()) == 23


def test_a_stopped_run_goes_on_to_the_last_bit_each_process_with_its_own_dropout(runs: Path) -> None:
    a, b = (load_file(runs / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert _log(runs / "whole") == _log(runs / "parts")
    assert len(_log(runs / "parts")) == 4
