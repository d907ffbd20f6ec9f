"""The recipe's folder on the path, a tiny model, and files to train it on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.recipes.bert_finetuning.texts import make_model, sentences, squad

RECIPE = Path(__file__).parents[3] / "recipes" / "bert"
sys.path[:0] = [str(RECIPE), str(RECIPE.parent)]


@pytest.fixture(scope="module", autouse=True)
def _captured_once(captured_once: None) -> None:
    """In every module here."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("squad") / "train-v1.1.json"
    path.write_text(json.dumps(squad()))
    return path


@pytest.fixture(scope="session")
def cola(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.tsv and dev.tsv, the same sentences in both: whoever learns the one knows the other."""
    folder = tmp_path_factory.mktemp("cola")
    lines = [f"src\t{label}\t{'' if label else '*'}\t{sentence}\n" for sentence, label in sentences()]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("".join(lines))
    return folder
