"""Questions out of a file of SQuAD's form, each with its paragraph; what is amiss is named by its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from corpus.workspace import DataError

__all__ = ["Question", "read_questions"]

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
    """Read questions of SQuAD's form.

    Args:
        data: the contents of the JSON file.
        version_2: allow questions without answer.
        skip_bad: leave out, and count, questions whose answer does not stand where it should; else refuse them.
        called: what an error calls the data.

    Returns:
        The questions, and how many were left out.

    Raises:
        DataError: the data is of another form, holds no question, or has an answer that is not in its paragraph.
    """
    found: list[Question] = []
    bad: list[str] = []
    seen: set[str] = set()
    try:
        for question in _walk(data):
            if question.id in seen:
                raise _FormError(f"two questions have the id {question.id!r}")
            seen.add(question.id)
            if wrong := _wrong(question, version_2):
                bad.append(f"{question.id}{wrong}")
            else:
                found.append(question)
    except _FormError as error:
        raise DataError(f"{called} is not of SQuAD's form: {error}; mend the file, or get it anew") from None
    if bad and not skip_bad:
        more = f" (and {len(bad) - 1:,} more of {len(seen):,})" if len(bad) > 1 else ""
        raise DataError(f"{called}: question {bad[0]}{more}; --skip_bad leaves such questions out")
    if not found:
        left_out = f": all {len(bad):,} were left out as bad" if bad else ""
        raise DataError(f"{called} holds no question{left_out}")
    return found, len(bad)


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
            for q, one in enumerate(_field(paragraph, "qas", list, place)):
                here = f"{place}.qas[{q}]"
                answers = _field(one, "answers", list, here)
                texts = tuple(_field(answer, "text", str, f"{here}.answers[{n}]") for n, answer in enumerate(answers))
                start = _field(answers[0], "answer_start", int, f"{here}.answers[0]") if answers else -1
                yield Question(_field(one, "id", str, here), _field(one, "question", str, here), context, texts, start)


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
