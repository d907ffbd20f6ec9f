"""SQuAD: questions out of a file, windows of the paragraphs for a model, and answers out of its logits.

Windows and rules are those of BERT's run_squad.py: [CLS] question [SEP] part of the paragraph [SEP], a window every
`doc_stride` tokens. Positions of characters come from `tokenizers`, so that an answer is a slice of the paragraph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from harness.files import DataError
from numpy.typing import NDArray
from tokenizers import BertWordPieceTokenizer

T = TypeVar("T", str, int, list, dict)
_KINDS = {str: "text", int: "whole number", list: "list", dict: "object"}


@dataclass(frozen=True)
class Question:
    """A question about a paragraph; `start` is where the first of `answers` begins, -1 where there is none."""

    id: str
    text: str
    context: str
    answers: tuple[str, ...]
    start: int

    @property
    def stop(self) -> int:
        """Where the answer ends in the paragraph."""
        return self.start + len(self.answers[0]) if self.answers else -1


def read_questions(
    data: Mapping[str, Any], *, version_2: bool = False, skip_bad: bool = False, called: str = "the data"
) -> tuple[list[Question], int]:
    """Return the questions of a JSON file of SQuAD's form, and how many were left out.

    `version_2` allows questions without answer. Questions whose answer does not stand where it should are refused, or
    left out by `skip_bad`. `called` is what an error calls the data.
    """
    questions, bad, seen = list[Question](), list[str](), set[str]()
    try:
        for question in _walk(data):
            if question.id in seen:
                raise _FormError(f"two questions have the id {question.id!r}")
            seen.add(question.id)
            if wrong := _wrong(question, version_2):
                bad.append(f"{question.id}{wrong}")
            else:
                questions.append(question)
    except _FormError as error:
        raise DataError(f"{called} is not of SQuAD's form: {error}; mend the file, or get it anew") from None
    if bad and not skip_bad:
        more = f" (and {len(bad) - 1:,} more of {len(seen):,})" if len(bad) > 1 else ""
        raise DataError(f"{called}: question {bad[0]}{more}; --skip_bad leaves such questions out")
    if not questions:
        left_out = f": all {len(bad):,} were left out as bad" if bad else ""
        raise DataError(f"{called} holds no question{left_out}")
    return questions, len(bad)


def _wrong(question: Question, version_2: bool) -> str:
    """What is wrong with an answer, nothing if it stands where it should."""
    if not question.answers:
        return "" if version_2 else " has no answer, as questions of version 2.0 may: give --version_2_with_negative"
    answer, start = question.answers[0], question.start
    if not answer.strip():
        return " has an answer without a letter"
    if start >= 0 and question.context[start : question.stop] == answer:
        return ""
    place = question.context.find(answer)
    where = f", but at {place}" if place >= 0 else ", nor anywhere else in it"
    return f": {answer!r} does not stand at character {start} of its paragraph{where}"


class _FormError(ValueError):
    """The place, and what it lacks."""


def _walk(data: Mapping[str, Any]) -> Iterator[Question]:
    for a, article in enumerate(_field(data, "data", list)):
        for p, paragraph in enumerate(_field(article, "paragraphs", list, f"data[{a}]")):
            place = f"data[{a}].paragraphs[{p}]"
            context = _field(paragraph, "context", str, place)
            for q, asked in enumerate(_field(paragraph, "qas", list, place)):
                here = f"{place}.qas[{q}]"
                answers = _field(asked, "answers", list, here)
                texts = tuple(_field(answer, "text", str, f"{here}.answers[{n}]") for n, answer in enumerate(answers))
                start = _field(answers[0], "answer_start", int, f"{here}.answers[0]") if answers else -1
                identity, text = _field(asked, "id", str, here), _field(asked, "question", str, here)
                yield Question(identity, text, context, texts, start)


def _field(holder: object, name: str, kind: type[T], place: str = "") -> T:
    whole = f"{place}.{name}" if place else name
    if not isinstance(holder, dict):
        raise _FormError(f"{place} is no object")
    if name not in holder:
        raise _FormError(f"there is no {whole}")
    value = holder[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _FormError(f"{whole} is no {_KINDS[kind]}, but {str(value)[:40]!r}")
    return value


@dataclass(frozen=True)
class Windows:
    """W windows of L tokens.

    Attributes:
        input_ids, segment_ids, input_mask: [W, L]; the segment is 1 from the paragraph on.
        start_positions, end_positions: [W]: the answer's first and last token; 0, [CLS], where the answer is not wholly
            in the window.
        question: [W]: number of the question.
        characters: [W, L, 2]: begin and end of each token in the paragraph; -1 where there is none.
        widest: [W, L]: of the windows that hold this token of the paragraph, here it has most context on both sides.
    """

    input_ids: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    input_mask: NDArray[np.int32]
    start_positions: NDArray[np.int32]
    end_positions: NDArray[np.int32]
    question: NDArray[np.int32]
    characters: NDArray[np.int32]
    widest: NDArray[np.bool_]


def cut_windows(
    questions: Sequence[Question], vocab_file: Path, *, lower: bool = True, max_seq_length: int = 384,
    doc_stride: int = 128, max_query_length: int = 64,
) -> Windows:  # fmt: skip
    """Cut every paragraph to windows of `max_seq_length` tokens, after its question's first `max_query_length`."""
    room = max_seq_length - max_query_length - 3
    if min(room, doc_stride, max_query_length) < 1:
        raise DataError(
            f"--max_seq_length {max_seq_length} and --max_query_length {max_query_length} leave {room} tokens for the "
            f"paragraph, --doc_stride is {doc_stride}: all must be positive"
        )
    if doc_stride > room:
        raise DataError(
            f"--doc_stride {doc_stride} would leave out tokens between windows of {room}: take {room} or less"
        )
    tokenizer = BertWordPieceTokenizer(str(vocab_file), lowercase=lower)
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    contexts = list(dict.fromkeys(question.context for question in questions))  # one paragraph, many questions
    encoded = dict(zip(contexts, tokenizer.encode_batch(contexts, add_special_tokens=False), strict=True))
    asked = tokenizer.encode_batch([question.text for question in questions], add_special_tokens=False)
    rows: list[tuple[int, list[int], int, int]] = []
    for number, question in enumerate(questions):
        head = [cls, *asked[number].ids[:max_query_length], sep]
        size, space, begin = len(encoded[question.context].ids), max_seq_length - len(head) - 1, 0
        while True:
            rows.append((number, head, begin, min(size - begin, space)))
            if begin + space >= size:
                break
            begin += doc_stride
    shape = (len(rows), max_seq_length)
    ids, segments, mask = (np.zeros(shape, np.int32) for _ in range(3))
    starts, ends, numbers = (np.zeros(len(rows), np.int32) for _ in range(3))
    characters = np.full((*shape, 2), -1, np.int32)
    for row, (number, head, begin, size) in enumerate(rows):
        numbers[row], question = number, questions[number]
        context = encoded[question.context]
        offsets, first, stop = context.offsets[begin : begin + size], len(head), len(head) + size
        ids[row, : stop + 1] = [*head, *context.ids[begin : begin + size], sep]
        segments[row, first : stop + 1] = mask[row, : stop + 1] = 1
        characters[row, first:stop] = np.array(offsets, np.int32).reshape(-1, 2)
        if question.answers and offsets and offsets[0][0] <= question.start and question.stop <= offsets[-1][1]:
            inside = [i for i, (a, b) in enumerate(offsets) if b > question.start and a < question.stop]
            if inside:
                starts[row], ends[row] = first + inside[0], first + inside[-1]
    return Windows(ids, segments, mask, starts, ends, numbers, characters, _widest(shape, rows))


def _widest(shape: tuple[int, int], rows: Sequence[tuple[int, list[int], int, int]]) -> NDArray[np.bool_]:
    """A token counts in the window where the smaller of its contexts is largest; a longer window wins a tie."""
    best: dict[tuple[int, int], tuple[float, int, int]] = {}
    for row, (number, head, begin, size) in enumerate(rows):
        for place in range(size):
            merit = min(place, size - 1 - place) + 0.01 * size
            if merit > best.get((number, begin + place), (-1.0, 0, 0))[0]:
                best[number, begin + place] = (merit, row, len(head) + place)
    widest = np.zeros(shape, np.bool_)
    for _, row, position in best.values():
        widest[row, position] = True
    return widest


@dataclass(frozen=True)
class Answers:
    """By question id: the answer, the n best with probabilities, and for version 2.0 null score less best score."""

    predictions: dict[str, str] = field(default_factory=dict)
    nbest: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    null_odds: dict[str, float] = field(default_factory=dict)


def best_answers(
    questions: Sequence[Question], windows: Windows, start_logits: NDArray[np.floating[Any]],
    end_logits: NDArray[np.floating[Any]], *, n_best_size: int = 20, max_answer_length: int = 30,
    version_2: bool = False, null_score_diff_threshold: float = 0.0,
) -> Answers:  # fmt: skip
    """Choose answers by logits, [W, L] each.

    A span begins and ends at one of the window's `n_best_size` highest logits, lies in the paragraph, begins where its
    token has most context, and has at most `max_answer_length` tokens. Of spans that say the same the best counts. In
    version 2.0 the span at [CLS] stands for no answer; it is given where its score, the lowest of the question's
    windows, exceeds the best answer's by more than `null_score_diff_threshold`.
    """
    shapes = [list(array.shape) for array in (start_logits, end_logits, windows.input_ids)]
    if not shapes[0] == shapes[1] == shapes[2]:
        raise DataError(f"logits {shapes[0]} and {shapes[1]} are not those of windows {shapes[2]}")
    if not (np.isfinite(start_logits).all() and np.isfinite(end_logits).all()):
        raise DataError("the model's logits are not finite: it has diverged")
    spans: list[list[tuple[float, float, str]]] = [[] for _ in questions]
    null = [(float("inf"), 0.0, 0.0)] * len(questions)
    for row, number in enumerate(windows.question.tolist()):
        start, end = start_logits[row].astype(np.float64), end_logits[row].astype(np.float64)
        null[number] = min(null[number], (float(start[0] + end[0]), float(start[0]), float(end[0])))
        inside = windows.characters[row, :, 0] >= 0
        starts = [i for i in _highest(start, n_best_size) if inside[i] and windows.widest[row, i]]
        ends = [i for i in _highest(end, n_best_size) if inside[i]]
        context = questions[number].context
        for first in starts:
            for last in ends:
                if first <= last < first + max_answer_length:
                    begin, stop = windows.characters[row, first, 0], windows.characters[row, last, 1]
                    spans[number].append((float(start[first]), float(end[last]), context[begin:stop]))
    answers = Answers()
    for question, of_question, (none, none_start, none_end) in zip(questions, spans, null, strict=True):
        texts: dict[str, tuple[float, float]] = {}
        for start_logit, end_logit, text in sorted(of_question, key=lambda span: -(span[0] + span[1])):
            if len(texts) < n_best_size:
                texts.setdefault(text, (start_logit, end_logit))
        best = prediction = next(iter(texts), "")
        if version_2:
            odds = none - sum(texts[best]) if texts else float("inf")
            answers.null_odds[question.id] = odds
            prediction = "" if odds > null_score_diff_threshold else best
            texts[""] = (none_start, none_end)
        answers.predictions[question.id] = prediction
        answers.nbest[question.id] = _with_probabilities(texts)
    return answers


def _highest(logits: NDArray[np.float64], count: int) -> list[int]:
    """Indices of the highest logits, the highest first, the earlier of equal ones first."""
    return [int(index) for index in np.argsort(-logits, kind="stable")[:count]]


def _with_probabilities(texts: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    ranked = sorted(texts.items(), key=lambda item: -sum(item[1]))
    if not ranked:
        return []
    scores = np.array([sum(pair) for _, pair in ranked])
    weights = np.exp(scores - scores.max())
    return [
        {"text": text, "probability": float(p), "start_logit": start, "end_logit": end}
        for (text, (start, end)), p in zip(ranked, weights / weights.sum(), strict=True)
    ]
