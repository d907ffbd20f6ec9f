"""GLUE's sentences and labels out of its TSV files, as the benchmark's archives have them.

Files and columns: https://gluebenchmark.com/tasks. Labels are numbered as Hugging Face's run_glue.py does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from harness.files import DataError, read_text
from numpy.typing import NDArray
from tokenizers import BertWordPieceTokenizer

_TWO, _ENTAILED = ("0", "1"), ("entailment", "not_entailment")
_NATURAL = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True)
class Task:
    """Where a task's files have what; a column is a name in the header, or a number where there is no header.

    `labels` are the classes' names in order; none for STS-B, whose label is a number from 0 to 5.
    """

    name: str
    first: str | int
    second: str | None
    label: str | int
    labels: tuple[str, ...]
    dev: dict[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """The file of each set to evaluate on, by the name under which `scoring.glue` scores it."""
        return self.dev or {self.name: "dev.tsv"}


TASKS = {
    task.name: task
    for task in (
        Task("cola", 3, None, 1, _TWO),
        Task("sst-2", "sentence", None, "label", _TWO),
        Task("mrpc", "#1 String", "#2 String", "Quality", _TWO),
        Task("sts-b", "sentence1", "sentence2", "score", ()),
        Task("qqp", "question1", "question2", "is_duplicate", _TWO),
        Task("mnli", "sentence1", "sentence2", "gold_label", _NATURAL,
             {"mnli": "dev_matched.tsv", "mnli-mm": "dev_mismatched.tsv"}),
        Task("qnli", "question", "sentence", "label", _ENTAILED),
        Task("rte", "sentence1", "sentence2", "label", _ENTAILED),
        Task("wnli", "sentence1", "sentence2", "label", _TWO),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Sentences:
    """N sentences, or pairs of them, with a label each: a class number, for STS-B a number from 0 to 5."""

    first: list[str]
    second: list[str] | None
    labels: list[float]


def read_sentences(path: Path, task: Task, *, skip_bad: bool = False) -> tuple[Sentences, int]:
    """Return the sentences of train.tsv, dev.tsv or a file of that form, and how many lines were left out.

    Lines that lack a field or have another label are refused, or left out by `skip_bad`.
    """
    # "\n" alone ends a line, and quotes are text: sentences hold other characters that end lines for Python.
    lines = enumerate(read_text(path, encoding="utf-8-sig").split("\n"), 1)
    rows = [(number, line.rstrip("\r").split("\t")) for number, line in lines if line.strip()]
    wanted = [column for column in (task.first, task.second, task.label) if column is not None]
    if isinstance(task.first, int):
        columns = {column: int(column) for column in wanted}
    else:
        header = rows.pop(0)[1] if rows else []
        if absent := [column for column in wanted if column not in header]:
            raise DataError(f"{path} is no file of {task.name}: its header has no column {absent[0]!r}, but {header}")
        columns = {column: header.index(str(column)) for column in wanted}
    sentences, bad = Sentences([], None if task.second is None else [], []), []
    for number, row in rows:
        if max(columns.values()) >= len(row):
            bad.append(f"{path}:{number} has {len(row)} fields, column {max(columns.values()) + 1} is needed")
            continue
        label = _number(row[columns[task.label]], task.labels)
        if label is None:
            kinds = ", ".join(task.labels) or "a number from 0 to 5"
            bad.append(f"{path}:{number} has the label {row[columns[task.label]]!r}, not {kinds}")
            continue
        sentences.first.append(row[columns[task.first]])
        if sentences.second is not None and task.second is not None:
            sentences.second.append(row[columns[task.second]])
        sentences.labels.append(label)
    if bad and not skip_bad:
        more = f" (and {len(bad) - 1:,} more lines are bad)" if len(bad) > 1 else ""
        raise DataError(f"{bad[0]}{more}; --skip_bad leaves such lines out")
    if not sentences.labels:
        raise DataError(f"{path} holds no example")
    return sentences, len(bad)


def encode(
    sentences: Sentences, vocab_file: Path, *, lower: bool = True, max_seq_length: int = 128
) -> dict[str, NDArray[np.int32]]:
    """Cut sentences to [CLS] first [SEP] or [CLS] first [SEP] second [SEP]; the longer of a pair is shortened first.

    Returns input_ids, attention_mask and token_type_ids, each [N, L] with L the longest example's length.
    """
    tokenizer = BertWordPieceTokenizer(str(vocab_file), lowercase=lower)
    tokenizer.enable_truncation(max_seq_length, strategy="longest_first")
    tokenizer.enable_padding()
    pairs = list(zip(sentences.first, sentences.second, strict=True)) if sentences.second is not None else None
    encoded = tokenizer.encode_batch(pairs or sentences.first)
    names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {ours: np.array([getattr(row, theirs) for row in encoded], np.int32) for ours, theirs in names.items()}


def _number(text: str, labels: tuple[str, ...]) -> float | None:
    if labels:
        return labels.index(text) if text in labels else None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= 5 else None
