"""What is written of a plan, and how passes are switched off: every stage, readable by us and by other tools."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import onnx
import onnxruntime
import pytest

from ontrain import GraphError, OptionError
from ontrain.passes import FORWARD_PASSES, STEP_PASSES, Pass, register_pass, run_passes, unregister_pass
from tests.passes.planned import batch, loss, make_trainer, network

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]

TRAINED = [graph_pass for graph_pass in FORWARD_PASSES if not graph_pass.serves]
"""The forward passes of a graph that is trained."""
STAGES = [
    "captured",
    "specialised",
    *(f"forward-{graph_pass.name}" for graph_pass in TRAINED),
    "step",
    *(f"step-{graph_pass.name}" for graph_pass in STEP_PASSES),
    "provider",
]


@pytest.fixture
def dump(tmp_path, monkeypatch):
    monkeypatch.setenv("ONTRAIN_DUMP", str(tmp_path / "dump"))
    return tmp_path / "dump"


def test_every_stage_of_every_plan_is_written(dump):
    trainer = make_trainer()
    trainer.train_step(*batch())
    trainer.eval_step(*batch())
    assert sorted(p.name for p in dump.iterdir()) == ["000-update", "001-eval"]
    names = {f"{i:02d}-{stage}" for i, stage in enumerate(STAGES)}
    written = {p.name for p in (dump / "000-update").iterdir()}
    assert written == {f"{name}.{kind}" for name in names for kind in ("onnx", "txt")} | {"passes.json"}
    evaluated = {p.name for p in (dump / "001-eval").iterdir()}
    assert not any("step" in name for name in evaluated)


def test_the_text_has_the_lines_of_the_users_model(dump):
    make_trainer().train_step(*batch())
    text = (dump / "000-update" / "01-specialised.txt").read_text()
    assert "planned.py:" in text and "torch.tanh(self.second(torch.tanh(self.first(x))))" in text


def test_every_file_with_concrete_shapes_passes_the_full_check(dump):
    make_trainer().train_step(*batch())
    files = sorted((dump / "000-update").glob("*.onnx"))
    for path in files[1:]:
        onnx.checker.check_model(str(path), full_check=True)
    assert len(files) == len(STAGES)


def test_stock_onnxruntime_computes_the_step_that_was_written(dump):
    model = network()
    trainer = make_trainer(model)
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    x, label = batch()
    ours = float(trainer.train_step(x, label)[0])
    path = dump / "000-update" / f"{len(STAGES) - 1:02d}-provider.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    hyper = {"learning_rate": 0.1, "step": 1.0, "loss_scale": 1.0}
    feeds = {"x": x.numpy(), "label": label.numpy(), **before}
    feeds.update((i.name, np.float32(hyper[i.name]).reshape(())) for i in session.get_inputs() if i.name in hyper)
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    results = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
    assert float(results["loss"]) == pytest.approx(ours, rel=1e-6)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(results[f"{name}.next"], value.numpy(), rtol=1e-5, atol=1e-6)


def test_the_journal_counts_passes_over_both_stages_and_times_them(dump):
    make_trainer().train_step(*batch())
    journal = json.loads((dump / "000-update" / "passes.json").read_text())
    assert [row["number"] for row in journal["passes"]] == list(range(1, len(TRAINED) + len(STEP_PASSES) + 1))
    assert [row["stage"] for row in journal["passes"]] == ["forward"] * len(TRAINED) + ["step"] * len(STEP_PASSES)
    assert all(row["seconds"] > 0 for row in journal["passes"])
    assert set(journal["seconds"]) == {"specialise", "forward passes", "differentiate", "step passes", "compile"}
    assert journal["error"] is None


@pytest.mark.parametrize("limit", [0, 2, len(TRAINED) + 1])
def test_the_limit_counts_over_all_passes_of_a_plan(dump, monkeypatch, limit):
    wanted = [graph_pass.name for graph_pass in (*TRAINED, *STEP_PASSES)][:limit]
    monkeypatch.setenv("ONTRAIN_PASS_LIMIT", str(limit))
    limited = loss()
    journal = json.loads((dump / "000-update" / "passes.json").read_text())
    assert [row["name"] for row in journal["passes"]] == wanted
    monkeypatch.delenv("ONTRAIN_PASS_LIMIT")
    assert limited == pytest.approx(loss(), rel=1e-6)


def test_a_pass_may_stop_after_some_of_its_rewrites(dump, monkeypatch):
    number = [graph_pass.name for graph_pass in TRAINED].index("LinearToGemm") + 1
    monkeypatch.setenv("ONTRAIN_PASS_LIMIT", f"{number}:1")
    loss()
    journal = json.loads((dump / "000-update" / "passes.json").read_text())
    assert journal["passes"][-1]["name"] == "LinearToGemm" and journal["passes"][-1]["rewrites"] == 1
    text = (dump / "000-update" / f"{number + 1:02d}-forward-LinearToGemm.txt").read_text()
    assert text.count(" Gemm(") == 1 and text.count(" Add(") == 1  # the second layer still adds its bias


@pytest.mark.parametrize("text", ["x", "-1", "2:", ":3", "2:x", "1.5"])
def test_a_malformed_limit_is_refused(monkeypatch, text):
    monkeypatch.setenv("ONTRAIN_PASS_LIMIT", text)
    with pytest.raises(OptionError, match="ONTRAIN_PASS_LIMIT"):
        loss()


def test_passes_are_disabled_by_name_in_both_stages(dump, monkeypatch):
    monkeypatch.setenv("ONTRAIN_DISABLE_PASSES", "Simplify, LinearToGemm")
    loss()
    journal = json.loads((dump / "000-update" / "passes.json").read_text())
    every = {graph_pass.name for graph_pass in (*TRAINED, *STEP_PASSES)}
    assert {row["name"] for row in journal["passes"]} == every - {"Simplify", "LinearToGemm"}
    assert journal["disabled"] == ["LinearToGemm", "Simplify"]


def test_an_unknown_name_to_disable_is_refused(monkeypatch):
    monkeypatch.setenv("ONTRAIN_DISABLE_PASSES", "Simplfy")
    with pytest.raises(OptionError, match="(?s)'Simplfy'.*'Simplify'"):
        loss()


def test_the_option_dumps_as_the_variable_does(tmp_path):
    loss(debug={"dump": str(tmp_path / "here")})
    assert (tmp_path / "here" / "000-update" / "passes.json").is_file()


def test_onnxruntimes_paths_get_the_stages_they_are_named_after(tmp_path):
    names = {
        "model_after_graph_transforms_path": "a/forward.onnx",
        "model_with_training_graph_path": "b/step.onnx",
        "model_with_training_graph_after_optimization_path": "c/final.onnx",
    }
    trainer = make_trainer(debug={"graph_save_paths": {key: str(tmp_path / path) for key, path in names.items()}})
    trainer.train_step(*batch())
    forward, step, final = (onnx.load(tmp_path / path).graph for path in names.values())
    assert "loss" in {v.name for v in forward.output} and "all_finite" not in {v.name for v in forward.output}
    assert "all_finite" in {v.name for v in step.output} & {v.name for v in final.output}
    assert [node.op_type for node in final.node] == [node.op_type for node in trainer.step_model().graph]


def test_a_path_for_the_gradient_alone_is_refused_with_the_reason():
    with pytest.raises(OptionError, match="made at once"):
        make_trainer(debug={"graph_save_paths": {"model_with_gradient_graph_path": "x.onnx"}})


class _Broken(Pass):
    def apply(self, model):
        raise GraphError("broken on purpose")


def test_a_plan_that_fails_says_how_far_it_came_and_leaves_no_half_file(dump):
    register_pass(_Broken(), stage="step")
    try:
        with pytest.raises(GraphError, match="on purpose"):
            loss()
    finally:
        unregister_pass("_Broken", stage="step")
    journal = json.loads((dump / "000-update" / "passes.json").read_text())
    assert journal["error"] == "broken on purpose"
    assert journal["stages"][-1].endswith("step-ShareCommonSubexpressions")
    assert not [p for p in (dump / "000-update").iterdir() if p.name.startswith(".")]


def test_a_folder_that_cannot_be_made_is_an_error_and_not_a_crash(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONTRAIN_DUMP", str(tmp_path / "file"))
    with pytest.raises(OptionError, match="cannot write graphs"):
        loss()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_an_error(tmp_path, monkeypatch):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("ONTRAIN_DUMP", str(tmp_path / "below"))
    with pytest.raises(OptionError, match="cannot write graphs"):
        loss()


def test_passes_that_run_outside_a_plan_are_written_too(dump):
    model = make_trainer()
    model.train_step(*batch())
    run_passes(model.step_model(), STEP_PASSES, stage="again")
    again = sorted(dump.iterdir())[-1]
    assert {p.name for p in again.glob("*.txt")} == {
        f"{i:02d}-again-{graph_pass.name}.txt" for i, graph_pass in enumerate(STEP_PASSES)
    }
