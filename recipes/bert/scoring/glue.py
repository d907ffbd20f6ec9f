"""GLUE's scores (https://gluebenchmark.com/tasks), under the names that Hugging Face's examples print.

Formulas: Matthews 1975 for CoLA; Pearson's and Spearman's correlations for STS-B; F1 of class 1 for MRPC and QQP.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoring.squad import ScoreError

TASKS = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "mnli-mm", "qnli", "rte", "wnli")


def score(task: str, predictions: ArrayLike, truths: ArrayLike) -> dict[str, float]:
    """Score the predictions of a task, [N] class numbers; for sts-b [N] numbers from 0 to 5.

    Returns mcc for cola; acc, f1 and their mean acc_and_f1 for mrpc and qqp; pearson, spearmanr and their mean corr for
    sts-b; acc for the others, mnli/acc and mnli-mm/acc for MNLI's two sets.
    """
    if task not in TASKS:
        raise ScoreError(f"{task} is no task of GLUE: {', '.join(TASKS)}")
    said, wanted = _pair(predictions, truths)
    if task == "cola":
        return {"mcc": matthews(said, wanted)}
    if task in ("mrpc", "qqp"):
        both = {"acc": accuracy(said, wanted), "f1": f1(said, wanted)}
        return {**both, "acc_and_f1": sum(both.values()) / 2}
    if task == "sts-b":
        both = {"pearson": pearson(said, wanted), "spearmanr": spearman(said, wanted)}
        return {**both, "corr": sum(both.values()) / 2}
    return {f"{task}/acc" if task.startswith("mnli") else "acc": accuracy(said, wanted)}


def accuracy(predictions: ArrayLike, truths: ArrayLike) -> float:
    """Share of equal numbers."""
    said, wanted = _pair(predictions, truths)
    return float((said == wanted).mean())


def f1(predictions: ArrayLike, truths: ArrayLike) -> float:
    """F1 of class 1: 2·hits / (said + wanted); 0 where class 1 is neither said nor wanted."""
    said, wanted = (values == 1 for values in _pair(predictions, truths))
    total = int(said.sum() + wanted.sum())
    return 2 * int((said & wanted).sum()) / total if total else 0.0


def matthews(predictions: ArrayLike, truths: ArrayLike) -> float:
    """Matthews correlation of two classes, -1 to 1; 0 where one side says the same of all."""
    said, wanted = (values == 1 for values in _pair(predictions, truths))
    hits, false, missed, right = (
        int((a & b).sum()) for a, b in ((said, wanted), (said, ~wanted), (~said, wanted), (~said, ~wanted))
    )
    # Integers of Python: the product of four counts of QQP's size passes 2**63.
    square = (hits + false) * (hits + missed) * (right + false) * (right + missed)
    return (hits * right - false * missed) / square**0.5 if square else 0.0


def pearson(predictions: ArrayLike, truths: ArrayLike) -> float:
    """Correlation of the numbers; NaN where one side says the same of all."""
    said, wanted = (values - values.mean() for values in _pair(predictions, truths))
    square = float((said @ said) * (wanted @ wanted))
    return float(said @ wanted) / square**0.5 if square else float("nan")


def spearman(predictions: ArrayLike, truths: ArrayLike) -> float:
    """Correlation of the ranks; equal numbers share the mean of their ranks."""
    said, wanted = _pair(predictions, truths)
    return pearson(_ranks(said), _ranks(wanted))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group], np.float64)


def _pair(predictions: ArrayLike, truths: ArrayLike) -> Sequence[NDArray[np.float64]]:
    said, wanted = (np.asarray(values, np.float64) for values in (predictions, truths))
    if said.ndim != 1 or said.shape != wanted.shape or not len(said):
        raise ScoreError(
            f"predictions {list(said.shape)} and truths {list(wanted.shape)} are not two lists of equal length"
        )
    if not (np.isfinite(said).all() and np.isfinite(wanted).all()):
        raise ScoreError("predictions or truths hold numbers that are not finite")
    return said, wanted
