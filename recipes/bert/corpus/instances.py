"""Sentences to training instances: pairs for next-sentence prediction, cut to length, with words masked.

The algorithm is that of BERT's create_pretraining_data.py; what it does a token at a time is done for many instances at
once. Text is one flat array of token numbers, an instance is two spans of it, and only the last step copies tokens.

Layouts: N instances, L positions of a sequence, P predictions of a sequence.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from harness.wordpiece import Vocabulary
from numpy.typing import NDArray

from corpus.workspace import Settings

Ints = NDArray[np.int64]
_AT_ONCE = 1 << 18  # positions built in one go: a few MB of scratch


@dataclass(frozen=True)
class Documents:
    """Documents of sentences of tokens, flat: all tokens, where each sentence starts, each document's first sentence.

    Both lists end with the end: the number of tokens, and of sentences.
    """

    tokens: NDArray[np.int32]
    starts: list[int]
    first: list[int]

    @classmethod
    def of(cls, documents: Sequence[Sequence[Sequence[int]]]) -> Documents:
        """Flatten; sentences without tokens and documents without sentences are left out."""
        filled = [sentences for document in documents if (sentences := [s for s in document if len(s)])]
        tokens, starts, first = array("i"), [0], [0]
        for document in filled:
            for sentence in document:
                tokens.extend(sentence)
                starts.append(len(tokens))
            first.append(len(starts) - 1)
        return cls(np.frombuffer(tokens, np.intc).astype(np.int32) if tokens else np.empty(0, np.int32), starts, first)

    def __len__(self) -> int:
        return len(self.first) - 1


@dataclass(frozen=True)
class Pairs:
    """N pairs of spans: where A and B start, how long they are, and 1 where B is from elsewhere. All [N], int64."""

    a: Ints
    a_size: Ints
    b: Ints
    b_size: Ints
    is_random: Ints


@dataclass(frozen=True)
class Instances:
    """What an HDF5 file holds.

    Attributes:
        input_ids: [N, L].
        input_mask: [N, L]: 1 at tokens, 0 at padding.
        segment_ids: [N, L]: 1 from B's first token to the last [SEP].
        masked_lm_positions, masked_lm_ids: [N, P]: ascending, and the words that stood there; 0 after the last.
        next_sentence_labels: [N]: 1 where B is from elsewhere.
    """

    input_ids: NDArray[np.int32]
    input_mask: NDArray[np.int8]
    segment_ids: NDArray[np.int8]
    masked_lm_positions: NDArray[np.int32]
    masked_lm_ids: NDArray[np.int32]
    next_sentence_labels: NDArray[np.int8]


def pair(documents: Documents, settings: Settings, rng: random.Random) -> Pairs:
    """Go through all documents `dupe_factor` times and choose A and B, not yet cut to length.

    Sentences are gathered until they fill the target length, which is the longest possible or, with probability
    `short_seq_prob`, a random shorter one for the whole document. A is a random number of them, at least one. B is the
    others, or, every second time and always when there are no others, sentences from a random place of a random
    document; then the others are gathered again.
    """
    columns: tuple[list[int], ...] = ([], [], [], [], [])
    add_a, add_a_size, add_b, add_b_size, add_random = (column.append for column in columns)
    starts, first, count = documents.starts, documents.first, len(documents)
    longest = settings.max_seq_length - 3
    draw, integer = rng.random, rng.randrange
    for number in [*range(count)] * settings.dupe_factor:
        end = first[number + 1]
        target = integer(2, longest + 1) if draw() < settings.short_seq_prob else longest
        begin = now = first[number]
        while begin < end:
            now += 1
            if now < end and starts[now] - starts[begin] < target:
                continue
            middle = integer(begin + 1, now) if now - begin > 1 else now
            add_a(starts[begin])
            add_a_size(starts[middle] - starts[begin])
            if middle == now or draw() < 0.5:
                other = integer(count)
                for _ in range(9):  # ten draws in all; a lone document can but meet itself
                    if other != number:
                        break
                    other = integer(count)
                start = integer(first[other], first[other + 1])
                wanted = target - (starts[middle] - starts[begin])
                stop = start + 1
                while stop < first[other + 1] and starts[stop] - starts[start] < wanted:
                    stop += 1
                add_b(starts[start])
                add_b_size(starts[stop] - starts[start])
                add_random(1)
                now = middle
            else:
                add_b(starts[middle])
                add_b_size(starts[now] - starts[middle])
                add_random(0)
            begin = now
    return Pairs(*(np.array(column, np.int64) for column in columns))


def cut(pairs: Pairs, longest: int, rng: np.random.Generator) -> Pairs:
    """Shorten pairs to `longest` tokens together: token by token of the longer (of B where they are equal).

    Each token is taken from the front or the back with equal probability.
    """
    a_size, b_size = cut_sizes(pairs.a_size, pairs.b_size, longest)
    a_front = rng.binomial(pairs.a_size - a_size, 0.5)
    b_front = rng.binomial(pairs.b_size - b_size, 0.5)
    return Pairs(pairs.a + a_front, a_size, pairs.b + b_front, b_size, pairs.is_random)


def cut_sizes(a_size: Ints, b_size: Ints, longest: int) -> tuple[Ints, Ints]:
    """The sizes that remain, in closed form: first the longer alone loses, from equality on both in turn, B first."""
    excess = np.maximum(a_size + b_size - longest, 0)
    shorter = np.minimum(a_size, b_size)
    alone = np.minimum(excess, np.maximum(a_size, b_size) - shorter)
    in_turn = excess - alone
    return (
        a_size - np.where(a_size > b_size, alone, 0) - in_turn // 2,
        b_size - np.where(a_size > b_size, 0, alone) - (in_turn + 1) // 2,
    )


def build(
    tokens: NDArray[np.int32], pairs: Pairs, length: int, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], Ints]:
    """Copy the tokens to [CLS] A [SEP] B [SEP], padded with 0: input_ids [N, L], and where the last [SEP] is, [N]."""
    position = np.arange(length)
    first_sep = (pairs.a_size + 1)[:, None]
    last_sep = first_sep + pairs.b_size[:, None] + 1
    in_a = (position >= 1) & (position < first_sep)
    in_b = (position > first_sep) & (position < last_sep)
    source = np.where(
        in_a, pairs.a[:, None] + position - 1, np.where(in_b, pairs.b[:, None] + position - first_sep - 1, 0)
    )
    ids = np.where(in_a | in_b, tokens[source], np.int32(vocabulary.pad))
    ids[:, 0] = vocabulary.cls
    np.put_along_axis(ids, first_sep, np.int32(vocabulary.sep), 1)
    np.put_along_axis(ids, last_sep, np.int32(vocabulary.sep), 1)
    return ids, last_sep[:, 0]


def mask(
    ids: NDArray[np.int32], last_sep: Ints, first_sep: Ints, settings: Settings, mask_id: int,
    order: NDArray[np.float32], kind: NDArray[np.float64], words: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:  # fmt: skip
    """Mask words of `ids`, [N, L], in place, never [CLS] or [SEP], which stand at 0, `first_sep` and `last_sep`, [N].

    Of a sequence of n tokens, min(P, max(1, round(0.15·n))) are predicted: those with the smallest `order`, [N, L] in
    [0, 1). Of them those whose `kind`, [N, P] in [0, 1), is below 0.8 become [MASK], those below 0.9 stay, and the
    others become `words`, [N, P].

    Returns:
        masked_lm_positions and masked_lm_ids, [N, P], by ascending position, 0 after the last.
    """
    most = settings.max_predictions_per_seq
    position = np.arange(ids.shape[1])
    free = (position > 0) & (position < last_sep[:, None]) & (position != first_sep[:, None])
    # numpy rounds halves to even, as Python's round does.
    wanted = np.clip(np.rint((last_sep + 1) * settings.masked_lm_prob).astype(np.int64), 1, most)
    wanted = np.minimum(wanted, last_sep - 2)[:, None]  # no more than there are
    order = np.where(free, order, np.float32(2))
    chosen = np.argpartition(order, most - 1, axis=1)[:, :most]
    chosen = np.take_along_axis(chosen, np.argsort(np.take_along_axis(order, chosen, 1), axis=1, kind="stable"), 1)
    chosen = np.sort(np.where(np.arange(most) < wanted, chosen, ids.shape[1]), axis=1)
    used = chosen < ids.shape[1]
    positions = np.where(used, chosen, 0)
    labels = np.take_along_axis(ids, positions, 1)
    now = np.where(kind < 0.8, np.int32(mask_id), np.where(kind < 0.9, labels, words))
    rows = np.nonzero(used)
    ids[rows[0], positions[rows]] = now[rows]
    return positions.astype(np.int32), np.where(used, labels, np.int32(0))


def make_instances(
    documents: Documents, vocabulary: Vocabulary, settings: Settings, stream: Sequence[int]
) -> Instances:
    """Make all instances of a shard, in random order; equal numbers in `stream` give equal instances."""
    seeds = np.random.SeedSequence(list(stream))
    rng = np.random.Generator(np.random.PCG64(seeds))
    draws = random.Random(int.from_bytes(seeds.generate_state(4).tobytes(), "little"))
    length, most = settings.max_seq_length, settings.max_predictions_per_seq
    pairs = cut(pair(documents, settings, draws), length - 3, rng)
    count, position, size = len(pairs.a), np.arange(length), max(_AT_ONCE // length, 1)
    shuffled = rng.permutation(count)
    instances = Instances(
        np.zeros((count, length), np.int32), np.zeros((count, length), np.int8), np.zeros((count, length), np.int8),
        np.zeros((count, most), np.int32), np.zeros((count, most), np.int32), pairs.is_random[shuffled].astype(np.int8),
    )  # fmt: skip
    for start in range(0, count, size):
        rows, chosen = slice(start, start + size), shuffled[start : start + size]
        some, n = Pairs(*(column[chosen] for column in vars(pairs).values())), len(chosen)
        ids, last_sep = build(documents.tokens, some, length, vocabulary)
        first_sep = some.a_size + 1
        instances.masked_lm_positions[rows], instances.masked_lm_ids[rows] = mask(
            ids, last_sep, first_sep, settings, vocabulary.mask,
            rng.random((n, length), np.float32), rng.random((n, most)),
            rng.integers(len(vocabulary), size=(n, most), dtype=np.int32),
        )  # fmt: skip
        instances.input_ids[rows] = ids
        instances.input_mask[rows] = position <= last_sep[:, None]
        instances.segment_ids[rows] = (position > first_sep[:, None]) & (position <= last_sep[:, None])
    return instances


def read_documents(lines: Iterator[str], vocabulary: Vocabulary) -> Documents:
    """Tokenise a shard's lines: a sentence a line, an empty line between documents."""
    documents: list[list[str]] = [[]]
    for line in lines:
        if text := line.strip():
            documents[-1].append(text)
        elif documents[-1]:
            documents.append([])
    flat = [sentence for document in documents for sentence in document]
    ends = list(accumulate(map(len, documents)))
    encoded = vocabulary.encode(flat)
    return Documents.of([encoded[end - len(document) : end] for document, end in zip(documents, ends, strict=True)])
