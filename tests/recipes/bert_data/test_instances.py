"""Pairs, cutting and masking: by hand, and against the algorithm written a token at a time."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from corpus.instances import Documents, Pairs, build, cut, cut_sizes, make_instances, mask, pair, read_documents
from corpus.workspace import Settings
from harness.files import DataError
from harness.wordpiece import Vocabulary, read_vocabulary
from hypothesis import given, strategies as st
from tokenizers import BertWordPieceTokenizer

from benchmarks.bert_data import plain_cut, plain_pairs

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
CLS, SEP, MASK = 2, 3, 4


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def as_lists(documents: Documents) -> list[list[list[int]]]:
    return [
        [documents.tokens[documents.starts[s] : documents.starts[s + 1]].tolist() for s in range(*span)]
        for span in zip(documents.first, documents.first[1:], strict=False)
    ]


@pytest.fixture(scope="module")
def vocabulary(vocab_file: Path) -> Vocabulary:
    return read_vocabulary(vocab_file, lower=True)


@pytest.fixture(scope="module")
def documents(shards: Path, vocabulary: Vocabulary) -> Documents:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(shards.glob("*.txt")))
    return read_documents(iter(text.split("\n")), vocabulary)


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_tokenizers(shards: Path, vocab_file: Path, vocabulary: Vocabulary) -> None:
    lines = [line for path in sorted(shards.glob("*.txt")) for line in path.read_text(encoding="utf-8").split("\n")]
    plain = BertWordPieceTokenizer(str(vocab_file), lowercase=True)
    expected = [plain.encode(line, add_special_tokens=False).ids for line in lines]
    assert [list(numbers) for numbers in vocabulary.encode(lines)] == expected
    assert sum(map(len, expected)) > 15_000


_any_text = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("aZ .,-'\x1c\x85\u3000ΣéÅ中\u0301"))
)


@given(_any_text)
def test_numbers_are_those_of_tokenizers_for_any_text(text: str) -> None:
    letters = [*"abcdefghijklmnopqrstuvwxyz.,-'é中σς", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyzéσς")]
    words = [*WORDS[:5], *letters, "A", "Z"]
    for lower in (True, False):
        plain = BertWordPieceTokenizer({word: i for i, word in enumerate(words)}, lowercase=lower)
        if any(word in text for word in WORDS[:5]):
            continue
        expected = plain.encode(text, add_special_tokens=False).ids
        assert list(Vocabulary(words, lower).encode([text])[0]) == expected


def test_special_words_in_a_text_are_ordinary() -> None:
    words = [*WORDS, "[", "]", "cls"]
    assert list(Vocabulary(words, lower=True).encode(["a [CLS]"])[0]) == [5, 15, 17, 16]


@pytest.mark.parametrize(
    ("content", "lower", "said"),
    [
        (b'{"model": {}}', True, r"no WordPiece vocabulary of BERT: 1 lines, none of them \[PAD\] or \[UNK\]"),
        ("\n".join(WORDS[1:] + ["[PAD]"]).encode(), True, r"number 0 is '\[UNK\]' and not \[PAD\]"),
        ("\n".join([*WORDS, "a"]).encode(), True, "has 'a' twice"),
        ("\n".join([*WORDS, *"ABCDE"]).encode(), True, "is cased .*give --do_lower_case 0"),
        ("\n".join(WORDS).encode(), False, "is uncased .*give --do_lower_case 1"),
        (b"\xff\xfe", True, "is not UTF-8 text"),
    ],
)
def test_a_wrong_vocabulary_is_refused(tmp_path: Path, content: bytes, lower: bool, said: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_vocabulary(tmp_path / "vocab.txt", lower)


# --- pairs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [Settings(128), Settings(64, short_seq_prob=1.0), Settings(512, short_seq_prob=0)])
def test_pairs_equal_those_of_the_plain_loop_draw_by_draw(documents: Documents, settings: Settings) -> None:
    expected = plain_pairs(as_lists(documents), settings, random.Random(3))
    pairs = pair(documents, settings, random.Random(3))
    assert len(pairs.a) == len(expected) > 50
    tokens = documents.tokens.tolist()
    spans = zip(pairs.a, pairs.a_size, pairs.b, pairs.b_size, pairs.is_random, strict=True)
    assert [(tokens[a : a + m], tokens[b : b + n], r) for a, m, b, n, r in spans] == expected


def test_a_document_of_one_sentence_is_followed_by_another_document() -> None:
    documents = Documents.of([[[5, 6]], [[7, 8, 9]]])
    pairs = pair(documents, Settings(16, 2, short_seq_prob=0, dupe_factor=1), random.Random(0))
    assert pairs.a.tolist() == [0, 2]
    assert pairs.a_size.tolist() == [2, 3]
    assert pairs.b.tolist() == [2, 0]
    assert pairs.is_random.tolist() == [1, 1]


def test_a_lone_document_can_only_be_followed_by_itself() -> None:
    pairs = pair(Documents.of([[[5, 6]]]), Settings(16, 2, dupe_factor=3), random.Random(0))
    assert pairs.b.tolist() == [0, 0, 0]


def test_empty_sentences_and_documents_are_left_out() -> None:
    documents = Documents.of([[], [[], [5]], [[]], [[6], [], [7, 8]]])
    assert as_lists(documents) == [[[5]], [[6], [7, 8]]]


# --- cutting ---------------------------------------------------------------------------------------------------------


def test_sizes_after_cutting_equal_those_of_taking_tokens_one_by_one() -> None:
    sizes = [(a, b, longest) for a in range(1, 14) for b in range(1, 14) for longest in range(2, 16)]
    for a, b, longest in sizes:
        left, right = [0] * a, [0] * b
        plain_cut(left, right, longest, random.Random(0))
        remaining = cut_sizes(ints(a), ints(b), longest)
        assert (remaining[0][0], remaining[1][0]) == (len(left), len(right)), (a, b, longest)


def test_tokens_are_cut_from_front_and_back_evenly(rng: np.random.Generator) -> None:
    n = 4000
    pairs = Pairs(np.zeros(n, np.int64), np.full(n, 30), np.full(n, 100), np.full(n, 50), np.zeros(n, np.int64))
    shortened = cut(pairs, 60, rng)
    assert (shortened.a_size == 30).all()
    assert (shortened.b_size == 30).all()
    assert (shortened.a == 0).all()
    front = shortened.b - 100  # of 20 cut, how many from the front: binomial, mean 10, variance 5
    assert front.mean() == pytest.approx(10, abs=5 * (5 / n) ** 0.5)
    assert front.var() == pytest.approx(5, rel=0.15)


# --- building and masking --------------------------------------------------------------------------------------------


def test_a_sequence_is_cls_a_sep_b_sep_and_padding() -> None:
    tokens = np.array([5, 6, 7, 8, 9, 10], np.int32)
    pairs = Pairs(ints(0, 3), ints(2, 1), ints(4, 0), ints(1, 3), ints(1, 0))
    ids, last_sep = build(tokens, pairs, 8, Vocabulary(WORDS, lower=True))
    assert ids.tolist() == [[CLS, 5, 6, SEP, 9, SEP, 0, 0], [CLS, 8, SEP, 5, 6, 7, SEP, 0]]
    assert last_sep.tolist() == [5, 6]


def test_masking_by_hand() -> None:
    # Of 10 and 7 tokens 30 % are 3 and 2; the special tokens have the smallest order and are never chosen.
    ids = np.array([[CLS, 5, 6, 7, SEP, 8, 9, 10, 11, SEP], [CLS, 5, SEP, 6, 7, 8, SEP, 0, 0, 0]], np.int32)
    order = np.array([[0, 0.9, 0.2, 0.8, 0, 0.7, 0.1, 0.6, 0.3, 0], [0, 0.5, 0, 0.4, 0.9, 0.8, 0, 0, 0, 0]], np.float32)
    kind = np.array([[0.79, 0.85, 0.95, 0.0], [0.95, 0.1, 0.0, 0.0]])
    words = np.array([[12, 12, 13, 12], [14, 12, 12, 12]], np.int32)
    settings = Settings(10, 4, masked_lm_prob=0.3)
    positions, labels = mask(ids, ints(9, 6), ints(4, 2), settings, MASK, order, kind, words)
    assert positions.tolist() == [[2, 6, 8, 0], [1, 3, 0, 0]]
    assert labels.tolist() == [[6, 9, 11, 0], [5, 6, 0, 0]]
    assert ids.tolist() == [[CLS, 5, MASK, 7, SEP, 8, 9, 10, 13, SEP], [CLS, 14, SEP, MASK, 7, 8, SEP, 0, 0, 0]]


@pytest.mark.parametrize(
    ("length", "probability", "most", "wanted"),
    # 0.15·10 = 1.5 and 0.15·30 = 4.5: halves go to the even number, as Python rounds.
    [(10, 0.15, 20, 2), (30, 0.15, 20, 4), (128, 0.15, 20, 19), (128, 0.15, 10, 10), (8, 0.0, 20, 1), (5, 1.0, 20, 2)],
)
def test_as_many_are_masked_as_the_formula_says(
    rng: np.random.Generator, length: int, probability: float, most: int, wanted: int
) -> None:
    row = [CLS, 5, SEP, *[6] * (length - 4), SEP]
    ids = np.array([row + [0] * (128 - length)], np.int32)
    settings = Settings(128, most, masked_lm_prob=probability)
    order, kind = rng.random((1, 128), np.float32), rng.random((1, most))
    positions, _ = mask(ids, ints(length - 1), ints(2), settings, MASK, order, kind, np.full((1, most), 7, np.int32))
    assert np.count_nonzero(positions) == min(wanted, length - 3)


def test_instances_of_real_text_keep_every_rule(documents: Documents, vocabulary: Vocabulary) -> None:
    settings = Settings(64, 9, dupe_factor=2, short_seq_prob=0.7)
    instances = make_instances(documents, vocabulary, settings, (12345, 0, 0))
    flat = documents.tokens.tolist()
    whole = " " + " ".join(map(str, flat)) + " "
    follows = 0
    for row in range(len(instances.input_ids)):
        length = int(instances.input_mask[row].sum())
        ids = instances.input_ids[row].copy()
        positions = instances.masked_lm_positions[row]
        count = np.count_nonzero(positions)
        assert count == min(9, max(1, round(length * 0.15)))
        assert (np.diff(positions[:count]) > 0).all()
        assert not positions[count:].any()
        assert not instances.masked_lm_ids[row, count:].any()
        ids[positions[:count]] = instances.masked_lm_ids[row, :count]
        assert ids[0] == vocabulary.cls
        assert np.flatnonzero(ids == vocabulary.sep).tolist() == [instances.segment_ids[row].argmax() - 1, length - 1]
        assert not ids[length:].any()
        assert not instances.input_mask[row, length:].any()
        assert instances.segment_ids[row, length - 1] == 1
        a = ids[1 : instances.segment_ids[row].argmax() - 1].tolist()
        b = ids[instances.segment_ids[row].argmax() : length - 1].tolist()
        assert f" {' '.join(map(str, a))} " in whole
        assert f" {' '.join(map(str, b))} " in whole
        if not instances.next_sentence_labels[row] and length < 64:  # nothing was cut
            follows += 1
            assert f" {' '.join(map(str, a + b))} " in whole
    assert follows > 50


def test_shares_are_80_10_10_and_half_the_pairs_are_random(documents: Documents, vocabulary: Vocabulary) -> None:
    settings = Settings(128, 20, dupe_factor=30)
    instances = make_instances(documents, vocabulary, settings, (1, 0, 0))
    plain = plain_pairs(as_lists(documents), settings, random.Random(5))
    n = len(instances.input_ids)
    assert n == pytest.approx(len(plain), rel=0.03)
    assert instances.next_sentence_labels.mean() == pytest.approx(sum(r for *_, r in plain) / len(plain), abs=0.03)
    rows, columns = np.nonzero(instances.masked_lm_positions)
    now = instances.input_ids[rows, instances.masked_lm_positions[rows, columns]]
    was = instances.masked_lm_ids[rows, columns]
    count = len(now)
    assert count > 50_000
    five_sigma = 5 * (0.8 * 0.2 / count) ** 0.5
    assert (now == vocabulary.mask).mean() == pytest.approx(0.8, abs=five_sigma)
    assert (now == was).mean() == pytest.approx(0.1, abs=five_sigma)
    other = now[(now != was) & (now != vocabulary.mask)]
    assert len(other) / count == pytest.approx(0.1, abs=five_sigma)
    # A random word is any word: the mean number is the middle of the vocabulary.
    size = len(vocabulary)
    assert other.mean() == pytest.approx(size / 2, abs=5 * size / (12 * len(other)) ** 0.5)
    # Every place of a full sequence is as likely as another.
    full = instances.input_mask.all(axis=1)
    hits = np.bincount(instances.masked_lm_positions[full].ravel(), minlength=128)[1:127] / full.sum()
    assert hits.mean() == pytest.approx(19 / 126, rel=0.01)
    assert hits[:40].mean() == pytest.approx(hits[-40:].mean(), rel=0.05)


def test_equal_seeds_make_equal_instances_and_others_do_not(documents: Documents, vocabulary: Vocabulary) -> None:
    settings = Settings(64, 9, dupe_factor=1)
    first, same, other = (make_instances(documents, vocabulary, settings, (5, 0, shard)) for shard in (1, 1, 2))
    assert all(np.array_equal(getattr(first, name), getattr(same, name)) for name in vars(first))
    assert not np.array_equal(first.input_ids[:50], other.input_ids[:50])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_seq_length": 4}, "--max_seq_length 4 is not between 5 and"),
        ({"max_seq_length": 16, "max_predictions_per_seq": 20}, "--max_predictions_per_seq 20 is not between 1 and 13"),
        ({"masked_lm_prob": 1.5}, "--masked_lm_prob 1.5"),
        ({"dupe_factor": 0}, "--dupe_factor 0"),
    ],
)
def test_numbers_out_of_range_are_refused(values: dict[str, float], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Settings(**values)  # type: ignore[arg-type]
