"""GLUE's scores, by hand and against other formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from glue import SETS, score
from numpy.typing import ArrayLike
from scipy.stats import ConstantInputWarning
from squad.scoring import ScoreError


def matthews(predictions: ArrayLike, truths: ArrayLike) -> float:
    return score("cola", predictions, truths)["mcc"]


def f1(predictions: ArrayLike, truths: ArrayLike) -> float:
    return score("mrpc", predictions, truths)["f1"]


def pearson(predictions: ArrayLike, truths: ArrayLike) -> float:
    return score("sts-b", predictions, truths)["pearson"]


def spearman(predictions: ArrayLike, truths: ArrayLike) -> float:
    return score("sts-b", predictions, truths)["spearmanr"]


def test_matthews_by_hand() -> None:
    # 3 hits, 1 false, 2 missed, 4 right: (3·4 − 1·2) / √(4·5·5·6)
    said = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    wanted = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    assert score("cola", said, wanted) == {"mcc": pytest.approx(10 / math.sqrt(600))}
    assert matthews(wanted, wanted) == 1
    assert matthews([0, 1], [1, 0]) == -1
    assert matthews([1, 1], [1, 0]) == 0


def test_matthews_is_pearsons_correlation_of_two_classes(rng: np.random.Generator) -> None:
    said, wanted = rng.integers(0, 2, (2, 500))
    assert matthews(said, wanted) == pytest.approx(np.corrcoef(said, wanted)[0, 1])


def test_matthews_of_a_set_as_large_as_qqps_does_not_overflow() -> None:
    said = np.tile([0, 1, 1, 0], 100_000)
    wanted = np.tile([0, 1, 0, 0], 100_000)
    # 1 hit, 1 false, 0 missed, 2 right in four: (1·2) / √(2·1·3·2)
    assert matthews(said, wanted) == pytest.approx(2 / math.sqrt(12))


def test_accuracy_and_f1_by_hand() -> None:
    # 2 hits, 1 false, 1 missed, 1 right
    scores = score("mrpc", [1, 1, 1, 0, 0], [1, 1, 0, 1, 0])
    assert scores == pytest.approx({"acc": 0.6, "f1": 2 / 3, "acc_and_f1": (0.6 + 2 / 3) / 2})
    assert f1([0, 0], [0, 0]) == 0
    assert score("mnli", [0, 1, 2], [0, 2, 2]) == {"mnli/acc": pytest.approx(2 / 3)}
    assert score("mnli-mm", [0], [0]) == {"mnli-mm/acc": 1.0}


def test_correlations_by_hand() -> None:
    # Deviations -2, 0, 2 and -1, -1, 2: 6 / √(8·6)
    assert pearson([1, 3, 5], [2, 2, 5]) == pytest.approx(6 / math.sqrt(48))
    # Ranks 1, 2, 3 and 1.5, 1.5, 3: deviations -1, 0, 1 and -0.5, -0.5, 1: 1.5 / √(2·1.5)
    assert spearman([1, 3, 500], [2, 2, 5]) == pytest.approx(1.5 / math.sqrt(3))
    assert spearman([1, 2, 3, 4], [1, 8, 27, 64]) == pytest.approx(1)
    with pytest.warns(ConstantInputWarning):
        assert math.isnan(pearson([1, 1], [1, 2]))


def test_correlations_equal_numpys(rng: np.random.Generator) -> None:
    said, wanted = rng.normal(size=(2, 200))
    scores = score("sts-b", said, wanted)
    ranks = np.argsort(np.argsort(said)), np.argsort(np.argsort(wanted))  # no two are equal
    assert scores["pearson"] == pytest.approx(np.corrcoef(said, wanted)[0, 1])
    assert scores["spearmanr"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert scores["corr"] == pytest.approx((scores["pearson"] + scores["spearmanr"]) / 2)


@pytest.mark.parametrize("task", SETS)
def test_perfect_predictions_score_one(task: str) -> None:
    assert set(score(task, [0, 1, 1, 0], [0, 1, 1, 0]).values()) == {1.0}


@pytest.mark.parametrize(
    ("task", "said", "wanted", "message"),
    [
        ("imdb", [1], [1], "imdb is no task of GLUE: cola, "),
        ("cola", [1, 0], [1], r"predictions \[2\] and truths \[1\] are not two lists of equal length"),
        ("cola", [], [], "are not two lists of equal length"),
        ("cola", [[0.2, 0.8]], [[1, 0]], "are not two lists of equal length"),
        ("sts-b", [math.nan, 1], [1, 2], "numbers that are not finite"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_refused(task: str, said: list[float], wanted: list[float], message: str) -> None:
    with pytest.raises(ScoreError, match=message):
        score(task, said, wanted)
