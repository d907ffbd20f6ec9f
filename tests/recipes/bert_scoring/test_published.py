"""Scores that others published with their predictions and truths.

squad, squad_v2, glue: the metric cards of Hugging Face's `datasets`, whose metrics wrap the official scripts; parts of
answers: a published run of `evaluate.load("squad")`. Correlations: the examples in the manuals of scikit-learn
(`matthews_corrcoef`) and SciPy (`spearmanr`, `pearsonr`).
"""

from __future__ import annotations

import pytest
from glue import score
from squad.scoring import score_v1, score_v2

ANSWERS = {
    "56e10a3be3433e1400422b22": "1976",
    "56d2051ce7d4791d0090260b": "Beyoncé and Bruno Mars",
    "5733b5344776f419006610e1": "climate change",
}


def squad(truths: dict[str, str]) -> dict[str, list[str]]:
    return {key: [text] for key, text in truths.items()}


@pytest.mark.parametrize(("said", "value"), [("1976", 100.0), ("1999", 0.0)])
def test_the_largest_and_the_smallest_score(said: str, value: float) -> None:
    (key,) = [key for key, text in ANSWERS.items() if text == "1976"]
    data, predictions = squad({key: "1976"}), {key: said}
    assert score_v1(data, predictions) == {"exact_match": value, "f1": value}
    assert score_v2(data, predictions, {key: 0.0}) == {
        "exact": value, "f1": value, "total": 1,
        "HasAns_exact": value, "HasAns_f1": value, "HasAns_total": 1,
        "best_exact": value, "best_exact_thresh": 0.0, "best_f1": value, "best_f1_thresh": 0.0,
    }  # fmt: skip


def test_two_answers_of_three() -> None:
    said = dict(zip(ANSWERS, ("1976", "Beyonce", "climate change"), strict=True))  # no é: another word
    two = pytest.approx(66.66666666666667, abs=1e-12)
    assert score_v1(squad(ANSWERS), said) == {"exact_match": two, "f1": two}
    assert score_v2(squad(ANSWERS), said, dict.fromkeys(said, 0.0)) == {
        "exact": two, "f1": two, "total": 3, "HasAns_exact": two, "HasAns_f1": two, "HasAns_total": 3,
        "best_exact": two, "best_exact_thresh": 0.0, "best_f1": two, "best_f1_thresh": 0.0,
    }  # fmt: skip


def test_parts_of_answers() -> None:
    truths = {"a": "Saint Bernadette Soubirous", "b": "Salma Hayek and Frida Giannini", "c": "1000 MB"}
    said = {"a": "Saint Bernadette", "b": "Salma Hayek", "c": "1000 MB"}
    assert score_v1(squad(truths), said) == pytest.approx(
        {"exact_match": 33.333333333333336, "f1": 79.04761904761905}, abs=1e-12
    )


def test_tasks_of_glue() -> None:
    assert score("mrpc", [0, 1], [0, 1]) == {"acc": 1.0, "f1": 1.0, "acc_and_f1": 1.0}
    said = score("sts-b", [-10, -11, -12, -13, -14, -15], [0, 1, 2, 3, 4, 5])
    assert said == pytest.approx({"pearson": -1.0, "spearmanr": -1.0, "corr": -1.0})
    assert score("cola", [1, 1], [0, 1]) == {"mcc": 0.0}


def test_correlations() -> None:
    assert score("cola", [1, 0, 1, 1], [1, 1, 1, 0])["mcc"] == pytest.approx(-0.33, abs=0.005)
    ranks = score("sts-b", [1, 2, 3, 4, 5], [5, 6, 7, 8, 7])
    assert ranks["spearmanr"] == pytest.approx(0.8207826816681233)
    numbers = score("sts-b", [1, 2, 3, 4, 5], [10, 9, 2.5, 6, 4])
    assert numbers["pearson"] == pytest.approx(-0.7426106572325057)
