"""GLUE: sentences and labels out of the TSV files that the benchmark's archives have, and the scores of predictions.

Files, columns and scores: https://gluebenchmark.com/tasks. Labels are numbered, and scores named, as in Hugging Face's
examples; as there, scikit-learn and SciPy compute the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from harness.files import DataError, read_text
from numpy.typing import ArrayLike, NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from squad.scoring import ScoreError
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
        """The file of each set to evaluate on, by the name under which `score` scores it."""
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
SETS = [name for task in TASKS.values() for name in task.files()]
"""What is scored: a set of each task, of MNLI two."""


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


def score(task: str, predictions: ArrayLike, truths: ArrayLike) -> dict[str, float]:
    """Score the predictions of a task, [N] class numbers; for sts-b [N] numbers from 0 to 5.

    Returns mcc for cola, 0 where one side says the same of all; acc, f1 of class 1 (0 where that is neither said nor
    wanted) and their mean acc_and_f1 for mrpc and qqp; pearson, spearmanr and their mean corr for sts-b, NaN where one
    side says the same of all; acc for the others, mnli/acc and mnli-mm/acc for MNLI's two sets.
    """
    if task not in SETS:
        raise ScoreError(f"{task} is no task of GLUE: {', '.join(SETS)}")
    said, wanted = (np.asarray(values, np.float64) for values in (predictions, truths))
    if said.ndim != 1 or said.shape != wanted.shape or not len(said):
        raise ScoreError(
            f"predictions {list(said.shape)} and truths {list(wanted.shape)} are not two lists of equal length"
        )
    if not (np.isfinite(said).all() and np.isfinite(wanted).all()):
        raise ScoreError("predictions or truths hold numbers that are not finite")
    if task == "cola":
        return {"mcc": float(matthews_corrcoef(wanted, said))}
    if task == "sts-b":
        both = {
            "pearson": float(pearsonr(said, wanted).statistic),
            "spearmanr": float(spearmanr(said, wanted).statistic),
        }
        return {**both, "corr": sum(both.values()) / 2}
    accuracy = float(accuracy_score(wanted, said))
    if task in ("mrpc", "qqp"):
        f1 = float(f1_score(wanted, said, zero_division=0.0))
        return {"acc": accuracy, "f1": f1, "acc_and_f1": (accuracy + f1) / 2}
    return {f"{task}/acc" if task.startswith("mnli") else "acc": accuracy}
