"""Sentences, and articles dealt out to shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from corpus.sharding import Article, distribute, segment, sentences, shard_names, write_shards
from harness.files import DataError


@pytest.mark.parametrize(
    ("article", "expected"),
    [
        ("Dr. Smith went home. He was tired.", ["Dr. Smith went home.", "He was tired."]),
        ("It grew by 3.5 percent!  Did it? Yes.", ["It grew by 3.5 percent!", "Did it?", "Yes."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("No end", ["No end"]),
        ("  ", []),
    ],
)
def test_sentences_end_where_punkt_ends_them(article: str, expected: list[str]) -> None:
    assert sentences(article) == expected


def test_shards_of_a_kind_are_of_nearly_equal_length(rng: np.random.Generator) -> None:
    counts = np.minimum(rng.zipf(1.6, 2000), 400).tolist()  # many short articles, few long ones, as in Wikipedia
    articles = [Article(0, 0, 0, count) for count in counts]
    shards = distribute(articles, "wikicorpus_en", 8, 3, 0.2)
    assert sorted(number for shard in shards for number in shard.articles) == list(range(2000))
    assert [shard.name for shard in shards] == shard_names("wikicorpus_en", 8, 3)
    for shard in shards:
        assert shard.sentences == sum(counts[number] for number in shard.articles)
    for some in (shards[:8], shards[8:]):
        lengths = [shard.sentences for shard in some]
        assert max(lengths) - min(lengths) <= 2, lengths
    assert sum(shard.sentences for shard in shards[8:]) == pytest.approx(0.2 * sum(counts), rel=0.01)


def test_short_and_long_articles_go_to_both_kinds_of_shards(rng: np.random.Generator) -> None:
    counts = rng.integers(1, 100, 5000).tolist()
    shards = distribute([Article(0, 0, 0, count) for count in counts], "wikicorpus_en", 2, 2, 0.2)
    means = [shard.sentences / len(shard.articles) for shard in shards]
    assert max(means) < 1.1 * min(means)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [((3, 3, 0.2), "5 articles cannot fill 3 training and 3 test shards"), ((1, 1, 0.0), "--fraction_test_set 0.0")],
)
def test_impossible_numbers_of_shards_are_refused(numbers: tuple[int, int, float], said: str) -> None:
    with pytest.raises(DataError, match=said):
        distribute([Article(0, 0, 0, 1)] * 5, "wikicorpus_en", *numbers)


def test_shards_hold_every_article_once_a_sentence_a_line(
    tmp_path: Path, articles: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [" ".join(article) for article in articles.values() if article]
    (tmp_path / "a.txt").write_text("\n\n".join(lines[:4]), encoding="utf-8")  # no line end at the end
    (tmp_path / "b.txt").write_text("\n".join(lines[4:]) + "\n", encoding="utf-8")
    inputs = [tmp_path / "a.txt", tmp_path / "b.txt"]
    monkeypatch.setattr("corpus.sharding.PIECE", 20_000)
    parts, segmented = segment(inputs, tmp_path / "segmented", 1)
    assert len(parts) > 3
    shards = distribute(segmented, "wikicorpus_en", 2, 1, 0.3)
    assert write_shards(shards, segmented, parts, tmp_path / "out", 1) == 0
    assert write_shards(shards, segmented, parts, tmp_path / "out", 1) == 3  # kept
    texts = [(tmp_path / "out" / f"{shard.name}.txt").read_text(encoding="utf-8") for shard in shards]
    assert all(text.endswith("\n\n") for text in texts)
    blocks = [block for text in texts for block in text.split("\n\n") if block]
    assert sorted(blocks) == sorted("\n".join(sentences(line)) for line in lines)


def test_a_text_that_grew_shorter_leaves_no_sentences_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.sharding.PIECE", 10)
    (tmp_path / "in").write_text("One article.\nAnother article.\nA third.\n")
    parts, _ = segment([tmp_path / "in"], tmp_path / "out", 1)
    assert len(parts) == 3
    (tmp_path / "in").write_text("One article.\n")
    parts, articles = segment([tmp_path / "in"], tmp_path / "out", 1)
    assert len(articles) == 1
    assert sorted((tmp_path / "out").glob("part_*")) == parts


def test_a_missing_or_empty_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere cannot be read .*--action text_formatting makes it"):
        segment([tmp_path / "nowhere"], tmp_path / "out", 1)
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(DataError, match="no article in .*empty"):
        segment([tmp_path / "empty"], tmp_path / "out", 1)
    (tmp_path / "latin").write_bytes(b"One.\nTw\xf6.\n")
    with pytest.raises(DataError, match="latin is not UTF-8 text: byte 7 "):
        segment([tmp_path / "latin"], tmp_path / "out", 1)
