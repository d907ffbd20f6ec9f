"""The getting-started recipe: its text, its model, and the script as a user runs it."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.sampled(2), pytest.mark.usefixtures("captured_once")]

FOLDER = Path(__file__).parents[2] / "recipes" / "getting_started"
ENGINES = ["ontrain", "pytorch"]
MINUTES = 9
STEPS = 60
sys.path.insert(0, str(FOLDER.parent))  # data.py shares the reading of files with the other recipes


def load(name: str) -> ModuleType:
    """Import a file of the recipe, which is no package, under a name that clashes with no other."""
    spec = importlib.util.spec_from_file_location(f"getting_started_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


data = load("data")


def start(*args: object) -> subprocess.Popen[str]:
    """Start the script in a process of its own."""
    command = [sys.executable, str(FOLDER / "train.py"), *map(str, args)]
    # A terminal of no width to speak of would wrap the lines that are read here.
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def train(*args: object, timed_pairs: int = 1) -> tuple[int, str, str]:
    """Run the script in this process, which has torch already; return exit code, stdout and stderr.

    The script ends with `timed_pairs` steps of each engine, whose times it compares; by itself it takes 30.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [str(FOLDER / "train.py"), *map(str, args)])
        patch.setattr(sys, "path", [str(FOLDER), *sys.path])
        patch.setattr(importlib.import_module("comparison"), "TIMED_PAIRS", timed_pairs)
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def rows(output: Path, split: str = "train") -> list[dict[str, Any]]:
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["split"] == split]


def losses(output: Path, split: str = "train") -> list[float]:
    return [row["loss"] for row in rows(output, split)]


@pytest.fixture(scope="module")
def small_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files of 12 training batches, cut from the default text."""
    folder = tmp_path_factory.mktemp("text")
    texts, _ = data._python_manual()
    for split, words in (("train", 8000), ("valid", 1000), ("test", 1000)):
        tokens = " ".join(texts[split]).split()[:words]
        lines = [" ".join(tokens[i : i + 20]) for i in range(0, len(tokens), 20)]
        (folder / f"wiki.{split}.tokens").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("The 'assert' statement.", ["the", "'", "assert", "'", "statement", "."]),
        ('say "x"; (a, b): yes!?', ["say", "x", "(", "a", ",", "b", ")", "yes", "!", "?"]),
        ("= Valkyria <unk> = one<br />two", ["=", "valkyria", "<unk>", "=", "one", "two"]),
        ("  \t ", []),
    ],
)
def test_words_are_split_as_basic_english_does(line: str, words: list[str]) -> None:
    assert data.tokenise(line) == words


def test_no_paragraph_of_the_test_text_is_trained_on() -> None:
    texts, _ = data._python_manual()
    seen = {split: {tuple(data.tokenise(p)) for p in paragraphs} for split, paragraphs in texts.items()}
    assert all(len(paragraphs) > 50 for paragraphs in seen.values())
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["valid"]
    assert not seen["valid"] & seen["test"]


def test_the_vocabulary_is_of_training_words_seen_twice() -> None:
    corpus = data.load()
    counts = torch.bincount(corpus.train, minlength=len(corpus.words))
    assert corpus.words[0] == "<unk>"
    assert len(set(corpus.words)) == len(corpus.words)
    assert counts[1:].min() >= 2
    assert corpus.words.index("<eos>") in corpus.test
    assert all(stream.max() < len(corpus.words) for stream in (corpus.valid, corpus.test))
    again = data.load()
    assert torch.equal(corpus.train, again.train)


def test_wikitext_files_are_read_by_line(tmp_path: Path) -> None:
    for split, text in (("train", " = a = \n \n b b a\n"), ("valid", "a c\n"), ("test", "b\n")):
        (tmp_path / f"wiki.{split}.tokens").write_text(text)
    corpus = data.load(tmp_path)
    words = [corpus.words[i] for i in corpus.train]
    assert words == ["=", "a", "=", "<eos>", "b", "b", "a", "<eos>"]
    assert [corpus.words[i] for i in corpus.valid] == ["a", "<unk>", "<eos>"]


def test_without_a_training_file_nine_tenths_of_valid_train(tmp_path: Path) -> None:
    (tmp_path / "wikitext2.valid.tokens").write_text("".join(f"a{i // 9} x\n" for i in range(10)))
    (tmp_path / "wikitext2.test.tokens").write_text("x\n")
    (tmp_path / "other.train.tsv").write_text("of another data set\n")
    corpus = data.load(tmp_path)
    assert (len(corpus.train), len(corpus.valid)) == (27, 3)
    assert "first 90 % of wikitext2.valid.tokens trains" in corpus.note


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no *.train.tokens and no *.valid.tokens and no *.test.tokens"),
        ({"wiki.train.tokens": b"a", "wiki.test.tokens": b"a"}, "no *.valid.tokens"),
        ({"a.test.tokens": b"a", "b.test.tokens": b"a"}, "a.test.tokens and b.test.tokens both claim"),
        ({"wiki.valid.tokens": b"a\xff", "wiki.test.tokens": b"a"}, "wiki.valid.tokens is not UTF-8 text: byte 1"),
        ({"wiki.valid.tokens": b"\n \n", "wiki.test.tokens": b"a"}, "wiki.valid.tokens is empty"),
    ],
)
def test_unusable_text_is_refused_by_file_name(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(data.DataError) as caught:
        data.load(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_label_is_the_word_after_and_the_last_batch_is_shorter() -> None:
    columns = data.batchify(torch.arange(103), 10)  # 10 columns of 10, three words left over
    batches = list(data.batches(columns, 4))
    assert [tuple(src.shape) for src, _ in batches] == [(4, 10), (4, 10), (1, 10)]
    for src, label in batches:
        assert torch.equal(label, src.reshape(-1) + 1)
    assert torch.equal(columns[:, 3], torch.arange(30, 40))


def test_unigram_loss_counts_every_word_once_more() -> None:
    # counts 2, 1, 0 plus one: 3/6, 2/6, 1/6
    loss = data.unigram_loss(torch.tensor([0, 0, 1]), [torch.tensor([0]), torch.tensor([2, 1])], 3)
    assert loss == pytest.approx((math.log(2) + math.log(6) + math.log(3)) / 3)


def test_a_position_sees_nothing_of_the_words_after_it() -> None:
    model = load("model").TransformerModel(50, 20, 2, 20, 2).eval()
    src = torch.randint(50, (7, 3))
    changed = src.clone()
    changed[4:] = (changed[4:] + 1) % 50
    before, after = model(src), model(changed)
    assert torch.allclose(before[:4], after[:4], atol=1e-6)
    assert not torch.allclose(before[4:], after[4:], atol=1e-3)


def test_an_unwritable_output_fails_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, err = train("--output", tmp_path / "file" / "run")
    assert code == 2
    assert out == ""
    assert err.startswith("error: --output")
    assert len(err.splitlines()) == 1


def test_a_missing_text_folder_ends_in_one_line(tmp_path: Path) -> None:
    code, out, err = train("--output", tmp_path / "run", "--data", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert err == f"error: --data {tmp_path / 'nowhere'}: no such folder\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_resuming_what_never_ran_is_refused(tmp_path: Path, engine: str) -> None:
    code, _, err = train("--output", tmp_path / "run", "--resume", "--engine", engine)
    assert code == 2
    assert err.startswith("error: --resume: ")
    assert "Traceback" not in err


@pytest.mark.slow
def test_both_engines_draw_one_curve_that_ends_below_the_unigram_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONTRAIN_TUNE", "0")  # the fastest products round otherwise, and Adam makes much of it
    said = []
    for engine in ENGINES:
        options = ("--engine", engine, "--output", tmp_path / engine, "--dropout", 0, "--max-steps", STEPS)
        code, out, err = train(*options, timed_pairs=30 if engine == "ontrain" else 1)
        assert code == 0, err
        said.append(out)
    ours, eager = (losses(tmp_path / engine) for engine in ENGINES)
    assert len(ours) == len(eager) == STEPS
    # Equal to the last bit on the machines tried. Another processor's kernels may round otherwise, and then Adam lets
    # two runs drift apart; the first steps still agree.
    assert max(abs(a - b) for a, b in zip(ours[:20], eager[:20], strict=True)) < 1e-5
    assert max(abs(a - b) for a, b in zip(ours, eager, strict=True)) < 1e-4
    for split in ("valid", "test"):
        assert losses(tmp_path / "ontrain", split) == pytest.approx(losses(tmp_path / "pytorch", split), abs=1e-4)
    # The text is that of the Python that runs, and no two versions have the same.
    words = int(said[0].split(" words train")[0].split()[-1].replace(",", ""))
    steps = math.ceil((words // 20 - 1) / 35)
    assert f"| epoch   1 |    20/{steps:5d} batches | lr 0.00100 | ms/batch" in said[0]
    ppl, unigram = said[0].split("ppl ")[-2].split()[0], said[0].split("unigram ppl ")[1].split(")")[0]
    assert float(ppl) < 0.8 * float(unigram)
    last = said[0].splitlines()[-1]
    assert last.startswith("step: ontrain ")
    assert last.endswith("x), alternating medians over 30 batches")
    left = {path.name.split(".")[0] for path in (tmp_path / "ontrain").iterdir()}
    assert left == {"metrics", "model", "checkpoint", "best", "events", "report"}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_interrupted_and_resumed_equals_one_that_was_not(tmp_path: Path, small_text: Path, engine: str) -> None:
    options = ("--engine", engine, "--data", small_text, "--epochs", 2)
    code, _, err = train(*options, "--output", tmp_path / "whole")
    assert code == 0, err

    halves = tmp_path / "halves"
    process = start(*options, "--output", halves)
    deadline = time.monotonic() + 60 * MINUTES
    while not (halves / "metrics.jsonl").exists() or not rows(halves):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60 * MINUTES)
    assert process.returncode == 130, err
    done = len(rows(halves))
    assert f"interrupted after step {done}; go on with\n  python " in out
    assert "--resume" in out

    code, out, err = train(*options, "--output", halves, "--resume")
    assert code == 0, err
    assert f"resumed after step {done}" in out
    for split in ("train", "valid", "test"):
        assert losses(halves, split) == losses(tmp_path / "whole", split)
    assert [row["step"] for row in rows(halves)] == list(range(1, len(rows(halves)) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(
    tmp_path: Path, small_text: Path, engine: str
) -> None:
    options = ("--engine", engine, "--data", small_text, "--output", tmp_path)
    code, _, err = train(*options, "--max-steps", 2)
    assert code == 0, err
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()}
    code, _, err = train(*options, "--resume", "--lr", 1e30)
    assert code == 1
    assert "Traceback" not in err
    assert "step" in err
    assert f"the last good checkpoint stays in {tmp_path / 'checkpoint'}" in err
    assert {path: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()} == before


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoint/manifest.json"])
def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path, left: str) -> None:
    leftover = tmp_path / "run" / left
    leftover.parent.mkdir(parents=True)
    leftover.write_text("{}\n")
    code, out, err = train("--output", tmp_path / "run", "--max-steps", 1)
    assert (code, out) == (2, "") and leftover.read_text() == "{}\n"
    assert "--resume goes on" in err and "--overwrite begins anew" in err
    code, _, err = train("--output", tmp_path / "run", "--resume", "--overwrite")
    assert code == 2 and "give one of them" in err


def test_overwriting_begins_anew(tmp_path: Path, small_text: Path) -> None:
    options = ("--data", small_text, "--output", tmp_path / "run", "--max-steps", 1)
    assert train(*options)[0] == 0
    first = rows(tmp_path / "run")
    assert train(*options, "--overwrite")[0] == 0
    assert [row["loss"] for row in rows(tmp_path / "run")] == [row["loss"] for row in first]
