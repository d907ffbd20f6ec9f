"""A dump of eleven real articles, a vocabulary of their words, and the recipe's folder on the path."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "bert"
sys.path[:0] = [str(RECIPE), str(RECIPE.parent)]
EXCERPT = Path(__file__).parent / "wikipedia_excerpt.xml.bz2"


@pytest.fixture(scope="session")
def excerpt() -> Path:
    return EXCERPT


@pytest.fixture(scope="session")
def articles() -> dict[str, list[str]]:
    """Prose of the excerpt by title."""
    from corpus.dump import pages
    from corpus.wikitext import prose

    return {page.title: prose(page.text) for page in pages(EXCERPT) if page.is_article}


@pytest.fixture(scope="session")
def vocab_file(articles: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordPiece vocabulary as BERT's is built: special tokens, characters, frequent words."""
    text = " ".join(line for lines in articles.values() for line in lines).lower()
    characters = sorted(set(re.findall(r"\S", text)))
    frequent = [word for word, count in Counter(re.findall(r"[a-z]+", text)).most_common(2500) if len(word) > 1]
    words = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [
        *characters,
        *(f"##{character}" for character in characters if character.isalnum()),
        *frequent,
        "##s",
        "##ing",
        "##ed",
    ]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(words)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def shards(articles: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three training shards and one test shard of the excerpt."""
    from corpus.sharding import distribute, segment, write_shards

    folder = tmp_path_factory.mktemp("shards")
    text = folder / "articles.txt"
    text.write_text("".join(" ".join(lines) + "\n\n" for lines in articles.values() if lines), encoding="utf-8")
    parts, segmented = segment([text], folder / "segmented", 1)
    write_shards(distribute(segmented, "wikicorpus_en", 3, 1, 0.2), segmented, parts, folder / "sharded", 1)
    return folder / "sharded"
