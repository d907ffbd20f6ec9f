"""Text to batches: the default text out of Python's own manual, WikiText files, words, vocabulary, batches."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from harness.files import DataError, read_text
from torch import Tensor

UNK, EOS = "<unk>", "<eos>"
SPLITS = ("train", "valid", "test")

# torchtext's basic_english, in its order.
_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"'", " '  "),
        (r'"', ""),
        (r"\.", " . "),
        (r"<br />", " "),
        (r",", " , "),
        (r"\(", " ( "),
        (r"\)", " ) "),
        (r"!", " ! "),
        (r"\?", " ? "),
        (r"[;:]", " "),
        (r"\s+", " "),
    )
]


@dataclass
class Corpus:
    """Three streams of word numbers and the vocabulary they index; `note` says where the text came from."""

    train: Tensor
    valid: Tensor
    test: Tensor
    words: list[str]
    note: str


def tokenise(line: str) -> list[str]:
    """Split a line into lower-case words and punctuation marks."""
    line = line.lower()
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line.split()


def load(folder: Path | None = None, *, min_frequency: int = 2) -> Corpus:
    """Read the text, build the vocabulary from its training part, and number all words.

    Args:
        folder: WikiText files (see `_wikitext`); None for the text that comes with Python.
        min_frequency: a rarer word of the training text, and any word it lacks, becomes <unk>.
    """
    texts, note = _python_manual() if folder is None else _wikitext(folder)
    number: dict[str, int] = {UNK: 0}
    streams: dict[str, Tensor] = {}
    for split in SPLITS:
        ids = array("i")
        for paragraph in texts[split]:
            ids.extend(number.setdefault(word, len(number)) for word in (*tokenise(paragraph), EOS))
        streams[split] = torch.from_numpy(np.frombuffer(ids, np.intc).astype(np.int64))
    counts = torch.bincount(streams["train"], minlength=len(number))
    counts[0] = min_frequency  # kept, and first among equals
    frequent = (counts >= min_frequency).nonzero().flatten()
    renumber = torch.zeros(len(number), dtype=torch.int64)
    renumber[frequent] = torch.arange(len(frequent))
    words = list(number)
    return Corpus(
        **{split: renumber[stream] for split, stream in streams.items()}, words=[words[i] for i in frequent], note=note
    )


def _python_manual() -> tuple[dict[str, list[str]], str]:
    """Python's help topics by paragraph: in alphabetical order, of every ten, the first tests and the sixth validates.

    Topics quote each other at length (a fifth of all words). A paragraph stays only where it first occurs, so that
    none of the test text is trained on.
    """
    import platform
    from pydoc_data.topics import topics

    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[tuple[str, ...]] = set()
    for index, topic in enumerate(sorted(topics)):
        split = {0: "test", 5: "valid"}.get(index % 10, "train")
        for paragraph in re.split(r"\n\s*\n", topics[topic]):
            words = tuple(tokenise(paragraph))
            if words and words not in seen:
                seen.add(words)
                texts[split].append(paragraph)
    return texts, f"help topics of Python {platform.python_version()}"


def _wikitext(folder: Path) -> tuple[dict[str, list[str]], str]:
    """WikiText-2 or -103 as published: wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens; a line is a paragraph.

    Any name that ends like these will do, as will .raw and .txt. Where only valid and test are at hand, the first nine
    tenths of valid's lines train and the last tenth validates.
    """
    if not folder.is_dir():
        raise DataError(f"--data {folder}: no such folder")
    ending = next((e for e in ("tokens", "raw", "txt") if any(folder.glob(f"*.test.{e}"))), "tokens")
    files: dict[str, Path] = {}
    for split in SPLITS:
        paths = sorted(folder.glob(f"*.{split}.{ending}"))
        if len(paths) > 1:
            raise DataError(f"--data {folder}: {' and '.join(p.name for p in paths)} both claim to be the {split} text")
        files.update((split, path) for path in paths)
    missing = [f"*.{split}.{ending}" for split in SPLITS if split not in files]
    if "valid" not in files or "test" not in files:
        raise DataError(f"--data {folder}: no {' and no '.join(missing)}")
    texts = {split: _lines(path) for split, path in files.items()}
    names = ", ".join(path.name for path in files.values())
    if not missing:
        return texts, names
    cut = len(texts["valid"]) * 9 // 10
    texts["train"], texts["valid"] = texts["valid"][:cut], texts["valid"][cut:]
    return texts, f"{names}; no training file, so the first 90 % of {files['valid'].name} trains, the rest validates"


def _lines(path: Path) -> list[str]:
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty")
    return lines


def batchify(stream: Tensor, batch_size: int) -> Tensor:
    """Cut a stream into `batch_size` equal columns, shape [length, batch_size]; the odd words at the end go."""
    length = len(stream) // batch_size
    return stream[: length * batch_size].view(batch_size, length).t().contiguous()


def batches(columns: Tensor, bptt: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (src [t, batch], label [t · batch]): each label is the word after; t is `bptt`, less in the last batch."""
    for start in range(0, len(columns) - 1, bptt):
        end = min(start + bptt, len(columns) - 1)
        yield columns[start:end], columns[start + 1 : end + 1].reshape(-1)


def unigram_loss(train: Tensor, labels: Iterable[Tensor], vocab_size: int) -> float:
    """Mean cross entropy, in nats, of guessing each word by how often it occurs in the training text, plus one."""
    counts = torch.bincount(train, minlength=vocab_size).double() + 1
    return -torch.log(counts / counts.sum())[torch.cat(list(labels))].mean().item()
