"""Byte-level BPE against the published algorithm; vocabularies and texts that must be refused; blocks and batches."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import published_bpe
import pytest
from hypothesis import given, strategies as st
from lm import text as module
from lm.text import Batches, Vocabulary, batches, blocks, epoch_order, read_text, unigram_loss

from ontrain.errors import InputError

ODD = [
    "", " ", "\n", "a", "Hello world", "it's we'll I'VE 'd", "  two  spaces ", "tabs\t\tand\r\nlines\n\n\n end",
    "naïve café — “quoted” …", "数字123と漢字", "🙂🙃👩‍👩‍👧",
    "\x00\x07\x7f\x85\xa0\u2003x", " @-@ <unk> = = Heading = =",
    "e\u0301\u0302 combining", "x" * 300, "½ ² Ⅷ ١٢٣", "\ufeffbom",
]  # fmt: skip


def parts(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    lines = (folder / "merges.txt").read_text().splitlines()[1:]
    return json.loads((folder / "vocab.json").read_text()), [tuple(line.split(" ")) for line in lines]


def read(folder: Path) -> Vocabulary:
    return Vocabulary(folder / "vocab.json", folder / "merges.txt")


def test_tokens_are_those_of_the_published_algorithm(bpe: Path, prose: str) -> None:
    vocabulary = read(bpe)
    vocab, merges = parts(bpe)
    assert vocabulary.size == 600 and len(merges) == 600 - 256 - 1
    for text in [*ODD, prose[50_000:70_000]]:
        assert vocabulary.encode(text).tolist() == published_bpe.encode(text, vocab, merges), repr(text[:40])


@given(st.text())
def test_any_text_comes_back_from_its_tokens(bpe: Path, text: str) -> None:
    vocabulary = read(bpe)
    assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_text_cut_into_pieces_has_the_tokens_of_the_whole(
    bpe: Path, prose: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    vocabulary = read(bpe)
    text = prose[:3_000] + "".join(ODD) + "\n \n  a  b\t c <|endoftext|> d"
    whole = vocabulary.encode(text)
    monkeypatch.setattr(module, "_PIECE", size)
    assert len(list(module._pieces(text))) > 10
    assert vocabulary.encode(text).tolist() == whole.tolist()


def test_the_end_of_a_text_is_one_token(bpe: Path) -> None:
    vocabulary = read(bpe)
    ids = vocabulary.encode("a<|endoftext|>b").tolist()
    assert ids[1] == vocabulary.end == json.loads((bpe / "vocab.json").read_text())["<|endoftext|>"]
    assert len(ids) == 3 and vocabulary.decode(ids) == "a<|endoftext|>b"


def copy(bpe: Path, folder: Path) -> Path:
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes((bpe / name).read_bytes())
    return folder


def test_merges_of_another_vocabulary_are_refused(bpe: Path, tmp_path: Path, prose: str) -> None:
    from tokenizers.implementations import ByteLevelBPETokenizer

    other = ByteLevelBPETokenizer()
    other.train_from_iterator([prose[::-1]], vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False)
    folder = copy(bpe, tmp_path)
    other.save_model(str(tmp_path), "other")
    (tmp_path / "other-merges.txt").rename(tmp_path / "merges.txt")
    with pytest.raises(InputError, match=r"merges of another vocabulary than .*\n.*reason: merge \d+, "):
        read(folder)


def test_merges_that_are_cut_off_are_refused(bpe: Path, tmp_path: Path) -> None:
    folder = copy(bpe, tmp_path)
    lines = (folder / "merges.txt").read_text().splitlines()
    (folder / "merges.txt").write_text("\n".join(lines[:-3]))
    with pytest.raises(InputError, match="no merge makes the token"):
        read(folder)


def test_a_vocabulary_without_some_byte_is_refused(bpe: Path, tmp_path: Path) -> None:
    folder = copy(bpe, tmp_path)
    vocab = json.loads((folder / "vocab.json").read_text())
    del vocab["q"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    with pytest.raises(InputError, match="lacks 1 of the 256 bytes"):
        read(folder)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("vocab.json", "{}", "lacks 256 of the 256 bytes"),
        ("vocab.json", "[1, 2]", "no vocabulary"),
        ("vocab.json", '{"a": 0, "b": 2}', "not the whole numbers from 0"),
        ("vocab.json", "{", "cannot be read"),
        ("vocab.json", None, "cannot be read"),
        ("merges.txt", None, "cannot be read"),
        ("merges.txt", "#version: 0.2\na b c\n", "line 2: 'a b c' is no merge"),
        ("merges.txt", b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_damaged_vocabulary_is_refused_by_file(
    bpe: Path, tmp_path: Path, file: str, content: str | bytes | None, said: str
) -> None:
    folder = copy(bpe, tmp_path)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said) as caught:
        read(folder)
    assert str(folder / file) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"", "is empty"), (b" \n\t\n", "is empty"), (b"good \xe9", "byte 5")],
)
def test_an_unusable_text_is_refused_by_file(bpe: Path, tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_text(tmp_path / "text", read(bpe))
    assert str(tmp_path / "text") in str(caught.value)


def test_training_blocks_drop_the_rest_and_evaluation_keeps_it() -> None:
    ids = np.arange(100, 123)
    assert blocks(ids, 5).tolist() == ids[:20].reshape(4, 5).tolist()
    evaluation = list(batches(ids, 5, 3))
    assert [block.shape for block in evaluation] == [(3, 5), (1, 5), (1, 3)]
    assert np.concatenate([block.reshape(-1) for block in evaluation]).tolist() == ids.tolist()
    assert [block.shape for block in batches(ids[:21], 5, 4)] == [(4, 5)]  # a lone last token predicts nothing


def test_unigram_loss_counts_every_token_once_more() -> None:
    # counts 2, 1, 0 plus one: 3/6, 2/6, 1/6
    loss = unigram_loss(np.array([0, 0, 1]), iter([np.array([0]), np.array([2, 1])]), 3)
    assert loss == pytest.approx((math.log(2) + math.log(6) + math.log(3)) / 3)


def test_an_epoch_is_a_shuffle_of_its_own() -> None:
    first, second = epoch_order(50, 3, 0), epoch_order(50, 3, 1)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first.tolist() != second.tolist() != list(range(50))
    assert first.tolist() == epoch_order(50, 3, 0).tolist() != epoch_order(50, 4, 0).tolist()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_an_update_and_together_read_each_block_once_an_epoch(processes: int) -> None:
    rows = np.arange(26 * 4).reshape(26, 4)
    own = [Batches(rows, 2, 2, rank, processes, seed=0) for rank in range(processes)]
    updates = own[0].updates_an_epoch
    assert updates == 26 // (4 * processes)
    seen = [batch for process in own for number in range(updates) for batch in process.of_update(number)]
    assert all(batch.shape == (2, 4) for batch in seen)
    starts = sorted(int(row[0]) for batch in seen for row in batch)
    assert len(starts) == len(set(starts)) == updates * 4 * processes
    # The same update, whoever makes it: the joined rows do not depend on the number of processes.
    joined = {int(row[0]) for process in own for batch in process.of_update(0) for row in batch}
    alone = Batches(rows, 2 * processes, 2, 0, 1, seed=0)
    assert joined == {int(row[0]) for batch in alone.of_update(0) for row in batch}


def test_a_pipe_or_an_endless_device_is_refused_at_once(bpe: Path, tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    vocabulary = read(bpe)
    for file in (tmp_path / "endless", tmp_path / "pipe"):
        with pytest.raises(InputError, match="cannot be read"):
            read_text(file, vocabulary)
        with pytest.raises(InputError, match="cannot be read"):
            Vocabulary(file, bpe / "merges.txt")
        with pytest.raises(InputError, match="cannot be read"):
            Vocabulary(bpe / "vocab.json", file)
