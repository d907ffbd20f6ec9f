"""SQuAD's exact match and F1 as evaluate-v1.1.py and evaluate-v2.0.py compute them (https://rajpurkar.github.io/SQuAD-explorer/).

Both compare answers without case, ASCII punctuation, English articles and superfluous white space. They differ where
an answer has no word left: two such answers have F1 0 in v1.1 and 1 in v2.0, where the empty answer means "not
answerable".
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.files import DataError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class ScoreError(DataError):
    """Data or predictions cannot be scored; the message is one line for the user."""


def normalise(answer: str) -> str:
    """Lower the case, take out punctuation, then articles, then all white space but single spaces between words."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact(prediction: str, truth: str) -> float:
    """1 if the normalised answers are equal, else 0."""
    return float(normalise(prediction) == normalise(truth))


def f1(prediction: str, truth: str, *, empty_equal: bool) -> float:
    """Harmonic mean of precision and recall of the normalised answers' words, counted as often as they occur.

    Two answers without words agree if `empty_equal`: no in v1.1, yes in v2.0.
    """
    said, wanted = normalise(prediction).split(), normalise(truth).split()
    if not said or not wanted:
        return float(empty_equal and said == wanted)
    same = sum((Counter(said) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(said), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score_v1(truths: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return SQuAD 1.1's exact_match and f1, in percent: for each question the best over its truths, then the mean.

    Both are by question id: the answers of annotators, at least one, and the prediction.
    """
    _complete(predictions, truths, "no prediction")
    for identity, texts in truths.items():
        if not texts:
            raise ScoreError(f"question {identity} has no answer: data of version 2.0 is scored by score_v2")
    exacts = sum(max(exact(predictions[i], text) for text in texts) for i, texts in truths.items())
    f1s = sum(max(f1(predictions[i], text, empty_equal=False) for text in texts) for i, texts in truths.items())
    return {"exact_match": 100 * exacts / len(truths), "f1": 100 * f1s / len(truths)}


def score_v2(
    truths: Mapping[str, Sequence[str]], predictions: Mapping[str, str], no_answer: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:  # fmt: skip
    """Score SQuAD 2.0: a question without truths is not answerable, and the empty prediction says so.

    `no_answer` says how sure the model is, by question id, that there is no answer. Above `threshold` the prediction
    counts as empty, and the thresholds that would have been best are found.

    Returns:
        exact, f1, total; the same with HasAns_ and NoAns_ before it for either kind of question, where there is one;
        with `no_answer` also best_exact, best_exact_thresh, best_f1, best_f1_thresh. Scores are in percent.
    """
    _complete(predictions, truths, "no prediction")
    exacts, f1s, answerable = {}, {}, {}
    for identity, texts in truths.items():
        said, wanted = predictions[identity], [text for text in texts if normalise(text)] or [""]
        answerable[identity] = bool(texts)
        exacts[identity] = max(exact(said, text) for text in wanted)
        f1s[identity] = max(f1(said, text, empty_equal=True) for text in wanted)
    best: dict[str, float] = {}
    if no_answer is not None:
        _complete(no_answer, exacts, "no_answer has no number")
        for name, scores in (("exact", exacts), ("f1", f1s)):
            best[f"best_{name}"], best[f"best_{name}_thresh"] = _best(scores, predictions, no_answer, answerable)
        for scores in (exacts, f1s):
            for identity in scores:
                if no_answer[identity] > threshold:
                    scores[identity] = float(not answerable[identity])
    result = _means("", exacts, f1s, list(exacts))
    for prefix, kind in (("HasAns_", True), ("NoAns_", False)):
        if some := [identity for identity in exacts if answerable[identity] is kind]:
            result |= _means(prefix, exacts, f1s, some)
    return result | best


def _means(prefix: str, exacts: Mapping[str, float], f1s: Mapping[str, float], some: Sequence[str]) -> dict[str, float]:
    sums = {"exact": sum(exacts[identity] for identity in some), "f1": sum(f1s[identity] for identity in some)}
    return {f"{prefix}{name}": 100 * value / len(some) for name, value in sums.items()} | {f"{prefix}total": len(some)}


def _best(
    scores: Mapping[str, float], predictions: Mapping[str, str], no_answer: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:  # fmt: skip
    """The best mean that any threshold reaches, in percent, and the first such threshold.

    At first every question counts as not answerable; then answers are let in, the surest first.
    """
    now = best = float(sum(not kind for kind in answerable.values()))
    threshold = 0.0
    for identity in sorted(no_answer, key=no_answer.__getitem__):
        if identity not in scores:
            continue
        if answerable[identity]:
            now += scores[identity]
        elif predictions[identity]:
            now -= 1
        if now > best:
            best, threshold = now, no_answer[identity]
    return 100 * best / len(scores), threshold


def _complete(values: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    if not wanted:
        raise ScoreError("there is no question")
    if missing := [identity for identity in wanted if identity not in values]:
        raise ScoreError(f"{what} for {len(missing):,} of {len(wanted):,} questions, {missing[0]} first")
