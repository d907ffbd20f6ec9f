"""Text as tokens: a byte-level BPE from its two files, blocks in the order of training, the unigram model."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from tokenizers.implementations import ByteLevelBPETokenizer

from lm.arguments import Arguments
from ontrain.disk import open_file
from ontrain.distributed import Processes
from ontrain.errors import InputError, OptionError

END = "<|endoftext|>"
"""What GPT-2 has between two documents."""

Ids = np.ndarray[Any, np.dtype[np.int64]]

_PIECE = 1 << 18
# A word's first letter takes the space before it along, so no token reaches over such a place.
_SAFE_CUT = re.compile(r"(?<=\S) (?=\S)")


class Vocabulary:
    """GPT-2's byte-level BPE (Radford et al. 2019, section 2.2), from the two files that every GPT-2 comes with.

    What does not fit together is refused: a byte-level BPE without some byte would drop text without a word, and one
    with the merges of another vocabulary would cut it otherwise than the model learnt.

    Attributes:
        size: how many tokens there are.
        end: the id of `<|endoftext|>`; None if the vocabulary lacks it.
        digest: of both files' contents: equal digests cut equally.

    Args:
        vocab_file: JSON, the id of each token.
        merges_file: two tokens a line, in order of rank, after a line with the version.
    """

    def __init__(self, vocab_file: Path, merges_file: Path) -> None:
        self.files = (vocab_file, merges_file)
        vocab, merges = _read_vocab(vocab_file), _read_merges(merges_file)
        special = _check(vocab, merges, *self.files)
        self._tokenizer = ByteLevelBPETokenizer(vocab, merges)
        self._tokenizer.add_special_tokens(special)
        self.size, self.end = len(vocab), vocab.get(END)
        self.digest = hashlib.sha256(json.dumps([sorted(vocab.items()), merges]).encode()).hexdigest()

    def encode(self, text: str) -> Ids:
        """Return the ids of a text's tokens; `<|endoftext|>` in it is the token."""
        parts: list[Ids] = []
        pieces = list(_pieces(text))
        for i in range(0, len(pieces), 64):
            encoded = self._tokenizer.encode_batch(pieces[i : i + 64])
            parts += [np.array(piece.ids, np.int64) for piece in encoded]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of tokens; bytes that are no UTF-8, as of a character cut in two, become U+FFFD."""
        return str(self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=False))


def _text(path: Path) -> str:
    with io.TextIOWrapper(open_file(path), encoding="utf-8") as file:
        return file.read()


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        vocab = json.loads(_text(path))
    except (OSError, ValueError) as error:
        raise InputError(f"the vocabulary {path} cannot be read", reason=str(error)) from error
    if not isinstance(vocab, dict) or sorted(map(str, vocab.values())) != sorted(map(str, range(len(vocab)))):
        raise InputError(
            f"{path} is no vocabulary of a byte-level BPE", reason="its ids are not the whole numbers from 0"
        )
    return vocab


def _read_merges(path: Path) -> list[tuple[str, str]]:
    try:
        lines = _text(path).split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"the merges {path} cannot be read", reason=str(error)) from error
    merges = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise InputError(f"{path}, line {number}: {line!r} is no merge", way_out="two tokens a line, one space")
        merges.append((parts[0], parts[1]))
    return merges


def _check(
    vocab: dict[str, int], merges: list[tuple[str, str]], vocab_file: Path, merges_file: Path
) -> list[str]:  # fmt: skip
    """Return the tokens that are neither bytes nor merged."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    lacking = alphabet - vocab.keys()
    if lacking:
        raise InputError(
            f"{vocab_file} lacks {len(lacking)} of the 256 bytes",
            reason="text with them would vanish",
            way_out="use the vocab.json of a byte-level BPE, as GPT-2's",
        )
    other = f"{merges_file} are merges of another vocabulary than {vocab_file}"
    merged = set()
    for number, (left, right) in enumerate(merges, 1):
        for token in (left, right, left + right):
            if token not in vocab:
                raise InputError(other, reason=f"merge {number}, {left!r} {right!r}, has {token!r}, which it lacks")
        merged.add(left + right)
    rest = sorted(vocab.keys() - alphabet - merged, key=lambda token: vocab[token])
    for token in rest:
        if not re.fullmatch(r"<\S+>", token):
            raise InputError(other, reason=f"no merge makes the token {token!r}")
    return rest


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text where the tokens of the pieces are those of the whole."""
    start = 0
    while len(text) - start > _PIECE:
        cut = _SAFE_CUT.search(text, start + _PIECE)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    if start < len(text):
        yield text[start:]


def read_text(path: Path, vocabulary: Vocabulary) -> Ids:
    """Return the tokens of a UTF-8 file, the whole as one stream."""
    try:
        text = _text(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text", reason=f"byte {error.start:,}: {error.reason}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read", reason=error.strerror) from error
    ids = vocabulary.encode(text)
    if not text.strip() or not len(ids):
        raise InputError(f"{path} is empty", way_out="name a file with text")
    start = text[:10_000]
    if vocabulary.decode(vocabulary.encode(start)) != start:
        raise InputError(
            f"{path} does not come back from its tokens", reason=f"{vocabulary.files[0]} is no lossless vocabulary"
        )
    return ids


def blocks(ids: Ids, size: int) -> Ids:
    """Return the text in rows [count, size], as TextDataset cuts it; what is left at the end is dropped."""
    count = len(ids) // size
    return ids[: count * size].reshape(count, size)


def batches(ids: Ids, size: int, count: int) -> Iterator[Ids]:
    """Yield the whole text in arrays [≤ count, size]; the last is one shorter row, unless it predicts nothing."""
    rows = blocks(ids, size)
    for i in range(0, len(rows), count):
        yield rows[i : i + count]
    rest = ids[rows.size :]
    if len(rest) > 1:
        yield rest[None]


def unigram_loss(train: Ids, labels: Iterator[Ids], vocabulary_size: int) -> float:
    """Mean negative log-likelihood of labels under the training text's token counts, one added to each."""
    counts = np.bincount(train, minlength=vocabulary_size) + 1.0
    loss = np.log(counts.sum()) - np.log(counts)
    total, count = 0.0, 0
    for ids in labels:
        total, count = total + float(loss[ids].sum()), count + ids.size
    return total / count


@dataclass(frozen=True)
class Batches:
    """A shuffled text, the same for every engine, and joined over the processes for any number of them.

    What is left over at the end of an epoch, too little for an update, waits for the order of another epoch.

    Attributes:
        rows: the text's blocks, [blocks, tokens].
        batch: rows that one process takes at a time.
        accumulation: batches an update.
        rank, processes: which process of how many this is.
        seed: of the order.
        total: updates of the whole run.
    """

    rows: Ids
    batch: int
    accumulation: int
    rank: int
    processes: int
    seed: int
    total: int = 0

    @property
    def rows_an_update(self) -> int:
        """Over all processes."""
        return self.batch * self.processes * self.accumulation

    @property
    def tokens_an_update(self) -> int:
        """Over all processes."""
        return self.rows_an_update * int(self.rows.shape[1])

    @property
    def updates_an_epoch(self) -> int:
        """Whole ones."""
        return len(self.rows) // self.rows_an_update

    def of_update(self, number: int) -> Iterator[torch.Tensor]:
        """Yield this process's batches of an update, counted from 0 over all epochs: int64 [batch, tokens]."""
        epoch, place = divmod(number, self.updates_an_epoch)
        order = epoch_order(len(self.rows), self.seed, epoch)
        joined = order[place * self.rows_an_update : (place + 1) * self.rows_an_update]
        for micro in joined.reshape(self.accumulation, self.processes, self.batch):
            yield torch.from_numpy(self.rows[micro[self.rank]])


def epoch_order(count: int, seed: int, epoch: int) -> Ids:
    """Return the order of `count` blocks in an epoch: a permutation that depends on nothing else."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def training_batches(arguments: Arguments, ids: Ids, size: int, processes: Processes) -> Batches:
    """Cut the training text into blocks of `size` tokens."""
    data = Batches(
        blocks(ids, size), arguments.per_gpu_train_batch_size, arguments.gradient_accumulation_steps, processes.rank,
        processes.world_size, arguments.seed,
    )  # fmt: skip
    if not data.updates_an_epoch:
        raise InputError(
            f"{arguments.train_data_file} has {len(data.rows):,} blocks of {size:,} tokens, an update takes "
            f"{data.rows_an_update:,}",
            reason=f"{data.batch} rows a batch, {data.accumulation} batches an update, {data.processes} processes",
            way_out="lower --gradient_accumulation_steps, --per_gpu_train_batch_size or --block_size, or use more text",
        )
    total = arguments.max_steps
    if total <= 0:
        total = int(data.updates_an_epoch * arguments.num_train_epochs)
    if total < 1:
        raise OptionError(
            f"--num_train_epochs {arguments.num_train_epochs:g} of {data.updates_an_epoch} updates is no update",
            way_out="train for longer",
        )
    return replace(data, total=total)
