"""GLUE's scores (https://gluebenchmark.com/tasks), under the names that Hugging Face's examples print.

As there, scikit-learn and SciPy compute them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from scoring.squad import ScoreError

TASKS = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "mnli-mm", "qnli", "rte", "wnli")


def score(task: str, predictions: ArrayLike, truths: ArrayLike) -> dict[str, float]:
    """Score the predictions of a task, [N] class numbers; for sts-b [N] numbers from 0 to 5.

    Returns mcc for cola, 0 where one side says the same of all; acc, f1 of class 1 (0 where that is neither said nor
    wanted) and their mean acc_and_f1 for mrpc and qqp; pearson, spearmanr and their mean corr for sts-b, NaN where one
    side says the same of all; acc for the others, mnli/acc and mnli-mm/acc for MNLI's two sets.
    """
    if task not in TASKS:
        raise ScoreError(f"{task} is no task of GLUE: {', '.join(TASKS)}")
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
