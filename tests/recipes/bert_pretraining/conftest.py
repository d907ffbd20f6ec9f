"""HDF5 files made by the recipe from eleven real articles, a tiny BERT, and runs of the recipe on them."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "bert"
sys.path[:0] = [str(RECIPE), str(RECIPE.parent)]
EXCERPT = Path(__file__).parents[1] / "bert_data" / "wikipedia_excerpt.xml.bz2"
LENGTHS = {1: (32, 5), 2: (48, 7)}
"""Tokens and predictions of each phase's sequences."""


@pytest.fixture(scope="module", autouse=True)
def _captured_once(captured_once: None) -> None:
    """In every module here."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, and phase1 and phase2 with three training files and a test file each."""
    from corpus.dump import pages
    from corpus.hdf5 import create
    from corpus.sharding import distribute, segment, write_shards
    from corpus.wikitext import prose
    from corpus.workspace import Settings

    folder = tmp_path_factory.mktemp("pretraining-data")
    articles = [prose(page.text) for page in pages(EXCERPT) if page.is_article]
    text = folder / "articles.txt"
    text.write_text("".join(" ".join(lines) + "\n\n" for lines in articles if lines), encoding="utf-8")
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(_vocabulary(text.read_text(encoding="utf-8").lower())) + "\n", encoding="utf-8")
    parts, segmented = segment([text], folder / "segmented", 1)
    write_shards(distribute(segmented, "wiki", 3, 1, 0.2), segmented, parts, folder / "shards", 1)
    for phase, (length, predictions) in LENGTHS.items():
        settings = Settings(max_seq_length=length, max_predictions_per_seq=predictions, dupe_factor=1)
        create(sorted((folder / "shards").glob("*.txt")), folder / f"phase{phase}", vocab, settings, 1)
    return folder


def _vocabulary(text: str) -> list[str]:
    """Special tokens, characters, frequent words; its number of words is no multiple of 8."""
    characters = sorted(set(re.findall(r"\S", text)))
    frequent = [word for word, count in Counter(re.findall(r"[a-z]+", text)).most_common(500) if len(word) > 1]
    words = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [*characters, *(f"##{character}" for character in characters if character.isalnum()), *frequent]
    words = list(dict.fromkeys(words))
    return words if len(words) % 8 else [*words, "##s"]


@pytest.fixture(scope="session")
def config_file(corpus: Path) -> Callable[..., Path]:
    """A function that writes a tiny BERT's bert_config.json, some settings changed."""

    def write(**changed: Any) -> Path:
        words = (corpus / "vocab.txt").read_text(encoding="utf-8").split("\n")
        settings = {
            "vocab_size": len(words) - 1, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1, **changed,
        }  # fmt: skip
        text = json.dumps(settings)
        path = corpus / f"config-{abs(hash(text))}.json"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def run(corpus: Path, config_file: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A function that runs a phase in this process and returns its output folder."""

    def start(phase: int = 1, dropout: float = 0.0, **changed: Any) -> Path:
        from run_pretraining import pretrain

        options = make_options(corpus, config_file, tmp_path, phase, dropout, **changed)
        assert pretrain(options, time.perf_counter())
        return options.output_dir

    return start


def make_options(
    corpus: Path, sizes: Callable[..., Path], output: Path, phase: int = 1, dropout: float = 0.0, **changed: Any
) -> Any:
    """The flags of a tiny run; phase 2 goes on behind six steps of phase 1."""
    from pretraining.flags import Engine, Options

    length, predictions = LENGTHS[phase]
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    flags: dict[str, Any] = {
        "do_train": True, "input_dir": corpus / f"phase{phase}", "output_dir": output / "run",
        "config_file": sizes(**drops), "max_seq_length": length, "max_predictions_per_seq": predictions,
        "train_batch_size": 8, "gradient_accumulation_steps": 2, "learning_rate": 5e-2, "warmup_proportion": 0.2,
        "max_steps": 6, "num_steps_per_checkpoint": 3, "device": "cpu", "disable_progress_bar": True,
    }  # fmt: skip
    if phase == 2:
        flags |= {"phase2": True, "phase1_end_step": 6, "resume_from_checkpoint": True, "max_steps": 4}
    flags |= changed
    flags["engine"] = Engine(flags.get("engine", "ontrain"))
    return Options(**flags)


def log(output: Path, key: str = "average_loss", phase: int | None = None) -> list[Any]:
    """A key of the log's rows, in order."""
    rows = [json.loads(line)["data"] for line in (output / "dllogger.json").read_text().splitlines()]
    return [row[key] for row in rows if key in row and phase in (None, row.get("phase"))]
