"""Windows by hand, and answers against every span tried one by one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.files import DataError
from squad.reading import Question, Windows, best_answers, cut_windows, read_questions

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##x", "?", "who", "."]
NUMBER = {word: number for number, word in enumerate(WORDS)}


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return path


def words(windows: Windows, row: int) -> str:
    return " ".join(WORDS[number] for number in windows.input_ids[row])


def squad(context: str | None, *qas: dict[str, Any]) -> dict[str, Any]:
    return {"data": [{"paragraphs": [{"context": context, "qas": list(qas)}]}]}


def asked(answer: dict[str, Any]) -> dict[str, Any]:
    return {"id": "q", "question": "who?", "answers": [answer]}


def test_windows_by_hand(vocab_file: Path) -> None:
    # 7 tokens of paragraph, room for 9 − 2 − 3 = 4, a new window every 2.
    question = Question("q", "who ?", "A b cx. d e", ("cx",), 4)
    windows = cut_windows([question], vocab_file, max_seq_length=9, doc_stride=2, max_query_length=2)
    assert [words(windows, row) for row in range(3)] == [
        "[CLS] who ? [SEP] a b c ##x [SEP]",
        "[CLS] who ? [SEP] c ##x . d [SEP]",
        "[CLS] who ? [SEP] . d e [SEP] [PAD]",
    ]
    assert windows.segment_ids.tolist() == [[0] * 4 + [1] * 5, [0] * 4 + [1] * 5, [0] * 4 + [1] * 4 + [0]]
    assert windows.input_mask.sum(axis=1).tolist() == [9, 9, 8]
    assert windows.start_positions.tolist() == [6, 4, 0]
    assert windows.end_positions.tolist() == [7, 5, 0]
    assert windows.characters[0, 4:8].tolist() == [[0, 1], [2, 3], [4, 5], [5, 6]]
    assert (windows.characters[0, :4] == -1).all()
    # c: one token on its left in the first window (its right has one), none in the second; . has one on each side in
    # the second (minimum 1) and none on the left in the third.
    assert [np.flatnonzero(row).tolist() for row in windows.widest] == [[4, 5, 6], [5, 6], [5, 6]]


def test_every_token_of_a_paragraph_counts_in_one_window(vocab_file: Path, rng: np.random.Generator) -> None:
    context = " ".join(rng.choice(list("abcdefghij"), 50))
    windows = cut_windows(
        [Question("q", "who?", context, (), -1)], vocab_file, max_seq_length=20, doc_stride=5, max_query_length=4
    )
    places = windows.characters[windows.widest][:, 0]
    assert sorted(places.tolist()) == list(range(0, 100, 2))


def test_a_long_question_is_cut_and_a_short_one_leaves_its_room_to_the_paragraph(vocab_file: Path) -> None:
    questions = [Question("q", "a b c d e", "f g h i", (), -1), Question("r", "a", "f g h i", (), -1)]
    windows = cut_windows(questions, vocab_file, max_seq_length=8, doc_stride=2, max_query_length=3)
    assert [words(windows, row) for row in range(3)] == [
        "[CLS] a b c [SEP] f g [SEP]",
        "[CLS] a b c [SEP] h i [SEP]",
        "[CLS] a [SEP] f g h i [SEP]",
    ]
    assert windows.question.tolist() == [0, 0, 1]


def test_perfect_logits_give_the_answers_back(vocab_file: Path, rng: np.random.Generator) -> None:
    questions = []
    for number in range(60):
        letters = rng.choice([*"abcdefghij", "ax", "bx", "c."], rng.integers(1, 60)).tolist()
        context = " ".join(letters)
        first = int(rng.integers(len(letters)))
        answer = " ".join(letters[first : first + int(rng.integers(1, 5))])
        start = len(" ".join(letters[:first])) + (first > 0)
        questions.append(Question(str(number), "who?", context, (answer,), start))
    windows = cut_windows(questions, vocab_file, max_seq_length=24, doc_stride=8, max_query_length=4)
    rows = np.arange(len(windows.question))
    start, end = np.zeros((2, *windows.input_ids.shape))
    start[rows, windows.start_positions] = end[rows, windows.end_positions] = 5
    answers = best_answers(questions, windows, start, end)
    assert answers.predictions == {question.id: question.answers[0] for question in questions}


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_equal_those_of_trying_every_span(vocab_file: Path, rng: np.random.Generator, version_2: bool) -> None:
    questions = [
        Question(str(number), "who?", " ".join(rng.choice(list("abcdefghij"), 30)), (), -1) for number in range(8)
    ]
    windows = cut_windows(questions, vocab_file, max_seq_length=24, doc_stride=6, max_query_length=4)
    start, end = rng.normal(size=(2, *windows.input_ids.shape))
    answers = best_answers(questions, windows, start, end, n_best_size=24, max_answer_length=3, version_2=version_2)
    for number, question in enumerate(questions):
        spans: dict[str, float] = {}
        none = []
        for row in np.flatnonzero(windows.question == number):
            none.append(start[row, 0] + end[row, 0])
            for i in range(24):
                for j in range(i, min(i + 3, 24)):
                    if windows.widest[row, i] and windows.characters[row, j, 0] >= 0:
                        text = question.context[windows.characters[row, i, 0] : windows.characters[row, j, 1]]
                        spans[text] = max(spans.get(text, -1e9), start[row, i] + end[row, j])
        best = max(spans, key=lambda text: spans[text])
        nbest = answers.nbest[question.id]
        if version_2:
            odds = min(none) - spans[best]
            assert answers.null_odds[question.id] == pytest.approx(odds)
            assert answers.predictions[question.id] == ("" if odds > 0 else best)
            assert len(nbest) == 25
        else:
            assert answers.predictions[question.id] == best
            assert len(nbest) == 24
            assert [answer["text"] for answer in nbest] == sorted(spans, key=lambda text: -spans[text])[:24]
        assert sum(answer["probability"] for answer in nbest) == pytest.approx(1)
        scores = [answer["start_logit"] + answer["end_logit"] for answer in nbest]
        assert scores == sorted(scores, reverse=True)
        assert nbest[0]["probability"] / nbest[1]["probability"] == pytest.approx(np.exp(scores[0] - scores[1]))
    json.dumps(answers.nbest)  # as nbest_predictions.json wants it


def test_a_threshold_shifts_between_an_answer_and_none(vocab_file: Path) -> None:
    question = Question("q", "who?", "a b", (), -1)
    windows = cut_windows([question], vocab_file, max_seq_length=12, doc_stride=2, max_query_length=4)
    start, end = np.zeros((2, 1, 12))
    start[0, 0], start[0, 4] = 3.0, 2.0  # none leads by 1
    for threshold, said in ((0.0, ""), (1.5, "a")):
        answers = best_answers([question], windows, start, end, version_2=True, null_score_diff_threshold=threshold)
        assert answers.predictions == {"q": said}
        assert answers.null_odds == {"q": 1.0}


@pytest.mark.parametrize(
    ("answers", "version_2", "said"),
    [
        ([{"text": "b", "answer_start": 0}], False, "question q: 'b' does not stand at character 0 of its paragraph"),
        ([{"text": "a", "answer_start": -3}], True, "'a' does not stand at character -3"),
        ([{"text": "b", "answer_start": 0}], False, "of its paragraph, but at 2; --skip_bad leaves such questions out"),
        ([{"text": "c", "answer_start": 0}], False, "of its paragraph, nor anywhere else in it; --skip_bad"),
        ([{"text": " ", "answer_start": 1}], False, "question q has an answer without a letter"),
        ([], False, "question q has no answer, as questions of version 2.0 may: give --version_2_with_negative"),
    ],
)
def test_questions_that_do_not_fit_their_paragraph_are_refused(
    answers: list[dict[str, Any]], version_2: bool, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        read_questions(squad("a b", {"id": "q", "question": "who?", "answers": answers}), version_2=version_2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"version": "1.1"}, "there is no data;"),
        ({"data": {}}, "data is no list, but '{}'"),
        ({"data": ["Tides"]}, "data[0] is no object"),
        (squad(None), "data[0].paragraphs[0].context is no text, but 'None'"),
        (squad("a b", {"question": "who?", "answers": []}), "there is no data[0].paragraphs[0].qas[0].id"),
        (squad("a b", {"id": "q", "question": 5, "answers": []}), "qas[0].question is no text, but '5'"),
        (squad("a b", {"id": "q", "question": "who?"}), "there is no data[0].paragraphs[0].qas[0].answers"),
        (squad("a b", asked({"text": "b"})), "there is no data[0].paragraphs[0].qas[0].answers[0].answer_start"),
        (squad("a b", asked({"text": "b", "answer_start": None})), "answer_start is no whole number, but 'None'"),
        (squad("a b", asked({"text": "b", "answer_start": True})), "answer_start is no whole number, but 'True'"),
        (squad("a b", asked({"text": 5, "answer_start": 0})), "answers[0].text is no text, but '5'"),
        (squad("a b", *[asked({"text": "b", "answer_start": 2})] * 2), "two questions have the id 'q'"),
    ],
)
def test_what_is_not_of_squads_form_is_named_by_its_place(data: dict[str, Any], said: str) -> None:
    for flags in ({}, {"skip_bad": True, "version_2": True}):
        with pytest.raises(DataError, match=re.escape(said)) as refused:
            read_questions(data, called="dev.json", **flags)
        assert str(refused.value).startswith("dev.json is not of SQuAD's form: ")
        assert str(refused.value).endswith("; mend the file, or get it anew")


def test_bad_questions_are_left_out_when_asked_for_and_counted() -> None:
    good = {"id": "good", "question": "who?", "answers": [{"text": "b", "answer_start": 2}]}
    bad = {"id": "bad", "question": "who?", "answers": [{"text": "b", "answer_start": 0}]}
    questions, left_out = read_questions(squad("a b", good, bad), skip_bad=True)
    assert ([question.id for question in questions], left_out) == (["good"], 1)
    with pytest.raises(DataError, match="holds no question"):
        read_questions(squad("a b", bad), skip_bad=True)


def test_lengths_and_logits_that_do_not_fit_are_refused(vocab_file: Path) -> None:
    question = Question("q", "who?", "a b", (), -1)
    with pytest.raises(DataError, match="leave 0 tokens for the paragraph"):
        cut_windows([question], vocab_file, max_seq_length=10, max_query_length=7)
    with pytest.raises(DataError, match="--max_query_length -5 leave 12 tokens .* all must be positive"):
        cut_windows([question], vocab_file, max_seq_length=10, max_query_length=-5)
    with pytest.raises(DataError, match="--doc_stride 8 would leave out tokens between windows of 5"):
        cut_windows([question], vocab_file, max_seq_length=12, max_query_length=4, doc_stride=8)
    windows = cut_windows([question], vocab_file, max_seq_length=12, max_query_length=4, doc_stride=2)
    with pytest.raises(DataError, match=r"logits \[1, 5\] and \[1, 12\] are not those of windows \[1, 12\]"):
        best_answers([question], windows, np.zeros((1, 5)), np.zeros((1, 12)))
    with pytest.raises(DataError, match="not finite"):
        best_answers([question], windows, np.full((1, 12), np.nan), np.zeros((1, 12)))
