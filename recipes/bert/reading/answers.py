"""A model's logits to answers: the n best spans of each question over all its windows, and how sure "none" is.

Rules and names of files are those of BERT's run_squad.py: predictions.json, nbest_predictions.json, null_odds.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from corpus.workspace import DataError
from numpy.typing import NDArray

from reading.questions import Question
from reading.windows import Windows

__all__ = ["Answers", "best_answers"]


@dataclass(frozen=True)
class Answers:
    """By question id: the answer, the n best with probabilities, and for version 2.0 null score less best score."""

    predictions: dict[str, str] = field(default_factory=dict)
    nbest: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    null_odds: dict[str, float] = field(default_factory=dict)


def best_answers(
    questions: Sequence[Question],
    windows: Windows,
    start_logits: NDArray[np.floating[Any]],
    end_logits: NDArray[np.floating[Any]],
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2: bool = False,
    null_score_diff_threshold: float = 0.0,
) -> Answers:
    """Choose answers.

    A span begins and ends at one of the window's `n_best_size` highest logits, lies in the paragraph, begins where its
    token has most context, and has at most `max_answer_length` tokens. Of spans that say the same the best counts. In
    version 2.0 the span at [CLS] stands for no answer; it is given where its score, the lowest of the question's
    windows, exceeds the best answer's by more than `null_score_diff_threshold`.

    Args:
        questions: those that `windows` were cut of.
        windows: W windows of L tokens.
        start_logits: [W, L].
        end_logits: [W, L].
        n_best_size: answers kept a question.
        max_answer_length: in tokens.
        version_2: questions may have no answer.
        null_score_diff_threshold: see above.

    Raises:
        DataError: the logits are not those of the windows, or are not finite.
    """
    if not start_logits.shape == end_logits.shape == windows.input_ids.shape:
        raise DataError(
            f"logits {list(start_logits.shape)} and {list(end_logits.shape)} are not those of windows "
            f"{list(windows.input_ids.shape)}"
        )
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
    for question, found, (none, none_start, none_end) in zip(questions, spans, null, strict=True):
        kept: dict[str, tuple[float, float]] = {}
        for one, two, text in sorted(found, key=lambda span: -(span[0] + span[1])):
            if len(kept) < n_best_size:
                kept.setdefault(text, (one, two))
        best = next(iter(kept), "")
        prediction = best
        if version_2:
            odds = none - sum(kept[best]) if kept else float("inf")
            answers.null_odds[question.id] = odds
            prediction = "" if odds > null_score_diff_threshold else best
            kept[""] = (none_start, none_end)
        answers.predictions[question.id] = prediction
        answers.nbest[question.id] = _with_probabilities(kept)
    return answers


def _highest(logits: NDArray[np.float64], count: int) -> list[int]:
    """Indices of the highest logits, the highest first, the earlier of equal ones first."""
    return [int(index) for index in np.argsort(-logits, kind="stable")[:count]]


def _with_probabilities(kept: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    ranked = sorted(kept.items(), key=lambda item: -sum(item[1]))
    if not ranked:
        return []
    scores = np.array([sum(pair) for _, pair in ranked])
    weights = np.exp(scores - scores.max())
    return [
        {"text": text, "probability": float(p), "start_logit": one, "end_logit": two}
        for (text, (one, two)), p in zip(ranked, weights / weights.sum(), strict=True)
    ]
