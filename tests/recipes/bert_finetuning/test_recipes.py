"""run_squad.py and run_glue.py as a user runs them, on a tiny model."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import run_glue
import run_squad
import torch
import typer
from harness.finetuning.flags import Engine, Flags
from harness.finetuning.model_folder import ModelFolder
from harness.terminal import speaker
from safetensors.numpy import load_file, save_file
from transformers import BertConfig, BertForPreTraining, BertForSequenceClassification

from tests.processes import lines_said, start_file
from tests.recipes.bert_finetuning.texts import make_model, squad

pytestmark = pytest.mark.sampled(2)

ONE_STEP = {"max_steps": 1, "engine": Engine.pytorch}
LEARN = {"learning_rate": 5e-3, "dropout": 0.0}
SHORT = {"max_seq_length": 64, "max_query_length": 16, "doc_stride": 24, "per_gpu_train_batch_size": 4}
"""Paragraphs of up to 50 words make two windows."""


def answer(model: Path, questions: Path, output: Path, **flags: Any) -> dict[str, Any]:
    """Train and evaluate on the same questions; return eval_results.json."""
    settings = {"do_train": True, "do_eval": True, "train_file": questions, "predict_file": questions, **SHORT, **flags}
    run_squad.main(model_name_or_path=str(model), output_dir=output, **settings)
    return results(output)


def judge(model: Path, data: Path, output: Path, **flags: Any) -> dict[str, Any]:
    settings = {"do_train": True, "do_eval": True, "task_name": "CoLA", "max_seq_length": 48, **flags}
    run_glue.main(data_dir=data, model_name_or_path=str(model), output_dir=output, **settings)
    return results(output)


def results(output: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((output / "eval_results.json").read_text())
    return scores


def losses(output: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (output / "train_log.jsonl").read_text().splitlines()]


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a run that ended with an error."""
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said
    return said


@pytest.mark.thorough
def test_answers_are_learnt_by_both_engines_and_given_by_both(model: Path, questions: Path, tmp_path: Path) -> None:
    flags = {"num_train_epochs": 40, "gradient_accumulation_steps": 2, **LEARN}
    outputs = [tmp_path / engine for engine in Engine]
    first, second = (
        answer(model, questions, output, engine=engine, **flags) for engine, output in zip(Engine, outputs, strict=True)
    )
    assert losses(outputs[0])[:10] == pytest.approx(losses(outputs[1])[:10], rel=1e-4)
    for report in (first, second):
        assert report["PyTorch"]["f1"] > 90
        assert report["onnxruntime"] == report["PyTorch"]
        assert report["agreement"]["equal_answers"] == report["agreement"]["questions"] == 8
        assert report["agreement"]["logits_within"] < 1e-4
        assert report["training"]["examples"] > 8  # windows: some paragraphs take two

    said = json.loads((outputs[0] / "predictions.json").read_text())
    assert said == json.loads((outputs[0] / "predictions_onnx.json").read_text())
    truths = {
        qa["id"]: qa["answers"][0]["text"]
        for article in squad()["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }
    assert said.keys() == truths.keys()
    exact = 100 * sum(said[key].strip(".") == truths[key] for key in truths) / len(truths)
    assert first["PyTorch"]["exact_match"] == pytest.approx(exact)
    nbest = json.loads((outputs[0] / "nbest_predictions.json").read_text())
    assert all(nbest[key][0]["text"] == said[key] for key in said)

    # The written folder answers alone, as well as before, and its ONNX file takes a batch of any size.
    again = answer(outputs[0], questions, tmp_path / "again", do_train=False, per_gpu_eval_batch_size=3)
    assert again["PyTorch"] == first["PyTorch"]
    session = onnxruntime.InferenceSession(outputs[0] / "model.onnx", providers=["CPUExecutionProvider"])
    ids = np.ones((1, 5), np.int64)
    start, end = session.run(None, {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids})
    assert start.shape == end.shape == (1, 5)


def test_unanswerable_questions_are_learnt(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "train-v2.0.json"
    path.write_text(json.dumps(squad(unanswerable=True)))
    report = answer(
        model,
        path,
        tmp_path / "run",
        learning_rate=5e-3,
        num_train_epochs=40,
        dropout=0.0,
        version_2_with_negative=True,
    )
    scores = report["PyTorch"]
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (8, 2)
    assert scores["NoAns_f1"] == 100
    assert scores["HasAns_f1"] > 80
    said = json.loads((tmp_path / "run" / "predictions.json").read_text())
    odds = json.loads((tmp_path / "run" / "null_odds.json").read_text())
    assert {key for key, text in said.items() if not text} == {key for key, value in odds.items() if value > 0}


def test_the_last_articles_are_held_out(model: Path, questions: Path, tmp_path: Path) -> None:
    report = answer(model, questions, tmp_path, predict_file=None, holdout_articles=0.3, **ONE_STEP)
    assert report["agreement"]["questions"] == 2  # of the last of three articles
    assert set(json.loads((tmp_path / "predictions.json").read_text())) == {"Salt-0-0", "Salt-0-1"}


def test_sentences_are_learnt_by_both_engines_and_judged_by_both(model: Path, cola: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / engine for engine in Engine]
    for engine, output in zip(Engine, outputs, strict=True):
        report = judge(model, cola, output, engine=engine, num_train_epochs=20, **LEARN)["cola"]
        assert report["PyTorch"]["mcc"] > 0.9
        assert report["onnxruntime"] == report["PyTorch"]
        assert report["agreement"]["equal_predictions"] == report["agreement"]["examples"] == 22
    assert losses(outputs[0])[:10] == pytest.approx(losses(outputs[1])[:10], rel=1e-4)
    rows = [line.split("\t") for line in (outputs[0] / "predictions_cola.tsv").read_text().splitlines()]
    assert rows[0] == ["index", "pytorch", "onnxruntime", "label"]
    assert sum(row[1] == row[3] for row in rows[1:]) >= 21


@pytest.mark.thorough
def test_numbers_and_both_sets_of_mnli_are_scored(model: Path, cola: Path, tmp_path: Path) -> None:
    texts = [line.split("\t")[3] for line in (cola / "train.tsv").read_text().splitlines()]
    pairs = list(zip(texts, texts[1:] + texts[:1], strict=True))
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"{first}\t{second}\t{5 * (len(first) > len(second))}.0" for first, second in pairs]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    report = judge(
        model, folder, tmp_path / "sts", task_name="stsb", learning_rate=5e-3, num_train_epochs=20, dropout=0.0
    )
    assert report["sts-b"]["PyTorch"]["pearson"] > 0.9
    assert report["sts-b"]["onnxruntime"] == pytest.approx(report["sts-b"]["PyTorch"], abs=1e-5)

    named = ("entailment", "neutral", "contradiction")
    rows = [f"{first}\t{second}\t{named[number % 3]}" for number, (first, second) in enumerate(pairs)]
    for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"):
        (folder / name).write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    report = judge(
        model, folder, tmp_path / "mnli", task_name="mnli", max_steps=2, max_train_samples=10, engine=Engine.pytorch
    )
    assert report["training"]["examples"] == 10
    assert report["mnli"]["PyTorch"]["mnli/acc"] == report["mnli-mm"]["PyTorch"]["mnli-mm/acc"]
    config = json.loads((tmp_path / "mnli" / "config.json").read_text())
    assert config["id2label"] == {"0": "contradiction", "1": "entailment", "2": "neutral"}


@pytest.mark.thorough
def test_half_precision_stays_near(model: Path, cola: Path, tmp_path: Path) -> None:
    flags = {"max_seq_length": 48, "dropout": 0.0, "learning_rate": 1e-3, "max_steps": 4}
    for name, more in (("full", {"engine": Engine.pytorch}), ("fp16", {"fp16": True}), ("bf16", {"bf16": True})):
        settings = {"model_name_or_path": str(model), "output_dir": tmp_path / name, "do_train": True, **flags, **more}
        run_glue.main(task_name="cola", data_dir=cola, **settings)
    for name in ("fp16", "bf16"):
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "full"), rel=0.02)
        assert losses(tmp_path / name) != pytest.approx(losses(tmp_path / "full"), rel=1e-6)


# --- whatever stops it -----------------------------------------------------------------------------------------------

DROPS = {"num_train_epochs": 12, "learning_rate": 1e-3, "save_steps": 2, "gradient_accumulation_steps": 2}
"""Two updates an epoch, with dropout: masks repeat only if torch's random state is kept."""


def train(model: Path, output: Path, questions: Path, engine: Engine = Engine.pytorch, **flags: Any) -> None:
    settings = {"train_file": questions, "do_train": True, "engine": engine, **SHORT, **DROPS, **flags}
    run_squad.main(model_name_or_path=str(model), output_dir=output, **settings)


@pytest.fixture(scope="module")
def uninterrupted(model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted")
    train(model, output, questions)
    return output


def equal(run: Path, other: Path) -> bool:
    """Whether two runs' curves and weights are the same to the last bit."""
    a, b = (load_file(path / "model.safetensors") for path in (run, other))
    return losses(run) == losses(other) and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.thorough
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(model, whole, questions, Engine.ontrain)
    flags = {"model_name_or_path": model, "output_dir": killed, "train_file": questions, **SHORT, **DROPS}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    process, *_ = start_file(Path(run_squad.__file__), ("--do_train", *words), tmp_path)
    while not (killed / "checkpoint~1").exists() and process.is_alive():
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    train(model, killed, questions, Engine.ontrain)
    assert "resumed after update" in capsys.readouterr().out
    assert equal(killed, whole)


def test_a_schedulers_sigterm_lets_the_update_end_and_the_same_command_goes_on(
    model: Path, questions: Path, tmp_path: Path
) -> None:
    whole, parts, flags = tmp_path / "whole", tmp_path / "parts", {"num_train_epochs": 60, "save_steps": 1000}
    train(model, whole, questions, **flags)
    settings = {"model_name_or_path": model, "output_dir": parts, "train_file": questions, "logging_steps": 1}
    words = [
        f"--{name}={value}" for name, value in {**settings, **SHORT, **DROPS, **flags, "engine": "pytorch"}.items()
    ]
    command = Path(run_squad.__file__), ("--do_train", *words), tmp_path
    process, output, errors = start_file(*command)
    for line in lines_said(process, output):
        if line.startswith("step 3/120 "):
            process.terminate()
    assert process.exitcode == 130
    number = len(losses(parts))
    assert 3 <= number < 120
    way_out = "what is finished stays: give the same command again"
    assert errors.read_text() == f"error: interrupted after update {number} of 120; {way_out}\n"
    again, output, _ = start_file(*command)
    again.join()
    assert again.exitcode == 0
    assert f"resumed after update {number} of 120" in output.read_text()
    assert equal(parts, whole)


def test_a_damaged_checkpoint_is_passed_over(
    model: Path, questions: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    file = run / "checkpoint" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    train(model, run, questions)
    said = capsys.readouterr().out
    assert str(file) in said
    assert "resumed after update" in said
    assert equal(run, uninterrupted)

    for folder in run.glob("checkpoint*"):
        (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(typer.Exit) as ended:
        train(model, run, questions)
    assert ended.value.exit_code == 2
    assert "--overwrite_output_dir" in refused(capsys)
    train(model, run, questions, overwrite_output_dir=True)
    assert equal(run, uninterrupted)


def test_a_full_disk_keeps_what_is_finished(
    model: Path, questions: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (uninterrupted / "checkpoint" / "model.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, largest[1]))
    try:
        with pytest.raises(typer.Exit) as ended:
            train(model, tmp_path, questions)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, largest)
    assert ended.value.exit_code == 2
    assert "make room and give the same command again" in refused(capsys)
    assert not (tmp_path / "checkpoint").exists()
    train(model, tmp_path, questions)
    assert equal(tmp_path, uninterrupted)


def test_a_finished_run_is_not_made_again_and_another_is_not_mixed_with_it(
    model: Path, questions: Path, uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    train(model, run, questions)
    assert "resumed after update 24 of 24" in capsys.readouterr().out
    for change in ({"learning_rate": 2e-3}, {"engine": Engine.ontrain}, {"random_init": True}):
        with pytest.raises(typer.Exit):
            train(model, run, questions, **change)
        said = refused(capsys)
        assert f"{run} holds another run (" in said
        assert ("initial weights" if "random_init" in change else next(iter(change))) in said
    assert equal(run, uninterrupted)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"do_train": False}, "nothing to do: give --do_train, --do_eval or both"),
        ({"train_file": None}, "--do_train needs --train_file"),
        ({"do_eval": True}, "--do_eval needs --predict_file"),
        ({"train_file": Path("nowhere.json")}, "nowhere.json cannot be read: No such file"),
        ({"max_seq_length": 97}, "--max_seq_length 97 is more than the 96 positions of the model"),
        ({"doc_stride": 60}, "--doc_stride 60 would leave out tokens"),
        ({"max_query_length": 61}, "leave 0 tokens for the paragraph"),
        ({"max_query_length": -5}, "--max_query_length -5 leave 66 tokens"),
        ({"learning_rate": -1.0}, "--learning_rate -1.0 is not between 0 and 1"),
        ({"holdout_articles": 0.01}, "has too few articles to hold out 1% of them"),
        ({"holdout_articles": 1.5}, "--holdout_articles 1.5 is no share"),
        ({"fp16": True, "bf16": True}, "--fp16 and --bf16 exclude each other"),
        ({"do_lower_case": 0}, "is uncased"),
        ({"vocab_file": Path("nowhere.txt")}, "there is no vocabulary nowhere.txt"),
        ({"init_checkpoint": Path("nowhere")}, "there are no weights nowhere/model.safetensors: convert_checkpoint.py"),
    ],
)
def test_options_that_cannot_be_are_refused(
    flags: dict[str, Any], said: str, model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"train_file": questions, "do_train": True, **SHORT, **flags}
    with pytest.raises(typer.Exit) as ended:
        run_squad.main(model_name_or_path=str(model), output_dir=tmp_path, **settings)
    assert ended.value.exit_code == 2
    assert said in refused(capsys)
    assert not list(tmp_path.iterdir())


def test_an_answer_that_is_not_in_its_paragraph_is_named_or_left_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = squad()
    data["data"][1]["paragraphs"][0]["qas"][1]["answers"][0]["text"] = "181"  # and 180 it says
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(typer.Exit):
        answer(model, path, tmp_path / "run")
    assert f"{path}: question Printing-0-1: '181' does not stand at character 95 of its paragraph" in refused(capsys)
    report = answer(model, path, tmp_path / "run", skip_bad=True, **ONE_STEP)
    assert report["agreement"]["questions"] == 7
    assert "1 bad ones left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no JSON: it is empty; mend the file, or get it anew"),
        (json.dumps(squad()).encode()[:900], "is no JSON: Unterminated string"),
        (b'{"data": "\xff"}', "is not UTF-8 text: byte 10 cannot be decoded"),
        (b"[]", "is not of SQuAD's form: it holds no JSON object"),
        (b'{"data": [{"paragraphs": [{"context": "a"}]}]}', "there is no data[0].paragraphs[0].qas; mend the file"),
        (json.dumps(squad(unanswerable=True)).encode(), "(and 1 more of 10); --skip_bad leaves such questions out"),
    ],
)
def test_files_that_are_not_squads_are_named_with_their_flag_or_place(
    content: bytes, said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.json"
    path.write_bytes(content)
    with pytest.raises(typer.Exit) as ended:
        answer(model, path, tmp_path / "run")
    assert ended.value.exit_code == 2
    message = refused(capsys)
    assert f"{path}" in message
    assert said in message
    assert message.count("\n") == 1


def test_an_output_folder_that_cannot_be_written_is_said_before_anything_is_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(typer.Exit):
            answer(model, tmp_path / "nowhere.json", output)
        assert f"error: --output_dir {output} cannot be written: " in refused(capsys)


def test_models_that_do_not_fit_are_refused(
    model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(name: str | Path, **flags: Any) -> str:
        with pytest.raises(typer.Exit):
            settings = {"train_file": questions, "do_train": True, **SHORT, **flags}
            run_squad.main(model_name_or_path=str(name), output_dir=tmp_path / "run", **settings)
        return refused(capsys)

    size = len((model / "vocab.txt").read_text().splitlines())
    larger = make_model(tmp_path / "larger", vocab_size=size + 20)
    assert f"has {size} words and the model of {larger} {size + 20}: they do not belong together" in said(larger)
    wider = make_model(tmp_path / "wider", hidden_size=48)
    assert "model.safetensors cannot be loaded" in said(model, init_checkpoint=wider)
    shallow = make_model(tmp_path / "shallow", num_hidden_layers=1)
    assert "has no 'bert.encoder.layer.1." in said(model, init_checkpoint=shallow)
    assert "has no 'qa_outputs.bias'; --do_train trains it first" in said(
        model, do_train=False, do_eval=True, predict_file=questions
    )
    other = tmp_path / "other"
    shutil.copytree(model, other)
    (other / "model.safetensors").write_bytes(b"torn")
    assert f"{other}/model.safetensors cannot be loaded" in said(other)
    (other / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert "describes a 'gpt2': this recipe is BERT's" in said(other)
    (other / "config.json").write_text("{")
    assert "config.json is no JSON" in said(other)


def test_weights_of_a_pre_training_are_taken(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = BertConfig.from_pretrained(model)
    torch.manual_seed(7)
    pretrained = BertForPreTraining(config)
    pretrained.save_pretrained(tmp_path)
    flags = Flags(model_name_or_path=str(model), output_dir=tmp_path, do_train=True, init_checkpoint=tmp_path)
    loaded = ModelFolder.open(flags, 48).load(flags, BertForSequenceClassification, speaker())
    assert "; random: classifier.bias, classifier.weight; engine: ontrain\n" in capsys.readouterr().out
    expected = pretrained.bert.state_dict()
    weights = loaded.get_submodule("bert").state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_a_vocabulary_that_pre_training_rounded_up_fits(model: Path, questions: Path, tmp_path: Path) -> None:
    size = len((model / "vocab.txt").read_text().splitlines())
    assert size % 8  # else there is nothing to round
    rounded = make_model(tmp_path / "rounded", vocab_size=-(-size // 8) * 8)
    report = answer(rounded, questions, tmp_path / "run", **ONE_STEP)
    assert report["agreement"]["logits_within"] < 1e-4


def test_a_name_is_looked_up_on_the_hub(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("someone/no-such-model", "no such name"):
        with pytest.raises(typer.Exit):
            run_squad.main(
                model_name_or_path=name, output_dir=tmp_path / "run", train_file=questions, do_train=True, **SHORT
            )
        assert f"there is no folder {name}, and Hugging Face's hub does not give it" in refused(capsys)
    # What was fetched once lies there as the hub's own client lays it.
    place = tmp_path / "hub" / "models--someone--tiny"
    make_model(place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    settings = {"train_file": questions, "do_train": True, **ONE_STEP, **SHORT}
    run_squad.main(model_name_or_path="someone/tiny", output_dir=tmp_path / "run", **settings)
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_glue_refuses_unknown_tasks_and_missing_files(
    model: Path, cola: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        judge(model, cola, tmp_path, task_name="IMDB")
    assert "--task_name IMDB is none of cola, sst-2" in refused(capsys)
    with pytest.raises(typer.Exit):
        judge(model, cola, tmp_path, task_name="MNLI")
    assert "train.tsv is no file of mnli: its header has no column 'sentence1'" in refused(capsys)
    with pytest.raises(typer.Exit):
        judge(model, tmp_path / "nowhere", tmp_path / "run")
    assert "train.tsv cannot be read: No such file" in refused(capsys)


def test_a_loss_that_is_not_finite_ends_the_run(
    model: Path, cola: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"] = tensors["embeddings.word_embeddings.weight"] * np.float32("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(typer.Exit) as ended:
        judge(broken, cola, tmp_path / "run", engine=Engine.pytorch)
    assert ended.value.exit_code == 1
    assert "the loss is nan at update 1" in refused(capsys)
