"""Exact match and F1, by hand."""

from __future__ import annotations

import pytest
from squad.scoring import ScoreError, exact, f1, normalise, score_v1, score_v2


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Denver\tBroncos.", "denver broncos"),
        ("a man, a plan", "man plan"),
        ("theatre anthem", "theatre anthem"),
        ("U.S.", "us"),
        ("the-end", "theend"),  # punctuation goes before articles
        ("“Les” Misérables", "“les” misérables"),  # only ASCII punctuation goes
        ("An a the", ""),
        ("", ""),
    ],
)
def test_answers_are_compared_without_case_punctuation_and_articles(answer: str, normal: str) -> None:
    assert normalise(answer) == normal


def test_exact_match_is_of_normalised_answers() -> None:
    assert exact("the Broncos!", "Broncos") == 1
    assert exact("Bronco", "Broncos") == 0


@pytest.mark.parametrize(
    ("prediction", "truth", "value"),
    [
        ("Denver Broncos", "the Denver Broncos", 1.0),
        ("Denver", "Denver Broncos", 2 / 3),  # precision 1, recall 1/2
        ("Denver Broncos of Colorado", "Broncos", 0.4),  # 1/4 and 1
        ("to to be", "to be or not to be", 2 * 1 * 0.5 / 1.5),  # to twice, be once: 3/3 and 3/6
        ("Paris", "Denver", 0.0),
    ],
)
def test_f1_counts_words_as_often_as_they_occur(prediction: str, truth: str, value: float) -> None:
    for empty_equal in (True, False):
        assert f1(prediction, truth, empty_equal=empty_equal) == pytest.approx(value)


def test_answers_without_words_agree_in_version_2_only() -> None:
    assert f1("", "the", empty_equal=True) == 1
    assert f1("", "the", empty_equal=False) == 0
    assert f1("", "word", empty_equal=True) == f1("word", "", empty_equal=True) == 0


def test_version_1_takes_the_best_truth_of_each_question_and_the_mean() -> None:
    data = dict(q1=["Denver", "Denver Broncos"], q2=["24", "twenty-four"], q3=["gold"])
    scores = score_v1(data, {"q1": "the Denver Broncos", "q2": "24 to 10", "q3": "red"})
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["f1"] == pytest.approx(100 * (1 + 2 * (1 / 3) / (4 / 3) + 0) / 3)


def test_version_2_scores_answerable_and_unanswerable_questions() -> None:
    data = dict(yes=["gold"], half=["red gold"], no=[], false=[])
    scores = score_v2(data, {"yes": "Gold", "half": "gold", "no": "", "false": "gold"})
    assert scores == pytest.approx(
        {
            "exact": 50, "f1": 100 * (1 + 2 / 3 + 1 + 0) / 4, "total": 4,
            "HasAns_exact": 50, "HasAns_f1": 100 * (1 + 2 / 3) / 2, "HasAns_total": 2,
            "NoAns_exact": 50, "NoAns_f1": 50, "NoAns_total": 2,
        }
    )  # fmt: skip


def test_a_truth_without_words_is_no_truth_in_version_2() -> None:
    assert score_v2(dict(q=["the", "gold"]), {"q": ""})["exact"] == 0
    assert score_v2(dict(q=["the"]), {"q": ""})["exact"] == 100


def test_thresholds_of_no_answer_are_applied_and_the_best_is_found() -> None:
    data = dict(a=["x"], b=["y"], c=[], d=[])
    predictions = {"a": "x", "b": "wrong", "c": "z", "d": "z"}
    no_answer = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.9}
    # With none let in, c and d are right: 2. Let in a: 3. Then c: 2, b: 2, d: 1.
    scores = score_v2(data, predictions, no_answer, threshold=0.35)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (75, 0.1)
    # Above 0.35 are b, which has an answer, and d, which has none; c is answered wrongly.
    assert scores["exact"] == 50
    assert scores["HasAns_exact"] == 50
    assert scores["NoAns_exact"] == 50


def test_a_question_without_prediction_is_refused() -> None:
    data, predictions = dict(q1=["x"], q2=["y"]), {"q1": "x"}
    for score in (score_v1, score_v2):
        with pytest.raises(ScoreError, match="no prediction for 1 of 2 questions, q2 first"):
            score(data, predictions)
    with pytest.raises(ScoreError, match="no_answer has no number for 2 of 2"):
        score_v2(data, {**predictions, "q2": "y"}, {})


def test_no_questions_have_no_score() -> None:
    for score in (score_v1, score_v2):
        with pytest.raises(ScoreError, match="there is no question"):
            score({}, {"q": "x"})


def test_unanswerable_questions_need_version_2() -> None:
    with pytest.raises(ScoreError, match="question q has no answer: data of version 2.0 is scored by score_v2"):
        score_v1(dict(q=[]), {"q": ""})
