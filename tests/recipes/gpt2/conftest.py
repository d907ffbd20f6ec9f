"""The folders of the recipe and of the oracles on the path; a vocabulary, texts and a model to run with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "gpt2"
sys.path[:0] = [str(RECIPE), str(RECIPE.parent), str(Path(__file__).parent)]


@pytest.fixture(scope="module", autouse=True)
def _captured_once(captured_once: None) -> None:
    """In every module here."""


@pytest.fixture(scope="session")
def prose() -> str:
    """English that comes with every Python: what `help()` says of its language."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory, prose: str) -> Path:
    """vocab.json and merges.txt of 600 tokens, trained on the prose."""
    return train_bpe(tmp_path_factory.mktemp("bpe"), prose, 600)


def train_bpe(folder: Path, text: str, size: int) -> Path:
    from tokenizers.implementations import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save_model(str(folder))
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory, prose: str) -> Path:
    """train.txt and eval.txt of the prose."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "train.txt").write_text(prose[:12_000], encoding="utf-8")
    (folder / "eval.txt").write_text(prose[200_000:202_000], encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 over bytes, whose weights come from numpy: they are the same with any torch and transformers."""
    from plain_loop import write_model

    return write_model(tmp_path_factory.mktemp("model"))
