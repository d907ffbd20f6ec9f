"""Questions over paragraphs to [CLS] question [SEP] part of the paragraph [SEP], a window every `doc_stride` tokens.

The scheme is that of BERT's run_squad.py. Positions of characters come from `tokenizers`, so that an answer is a slice
of the paragraph and needs no alignment afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from corpus.workspace import DataError
from numpy.typing import NDArray
from tokenizers import BertWordPieceTokenizer

from reading.questions import Question

__all__ = ["Windows", "cut_windows"]


@dataclass(frozen=True)
class Windows:
    """W windows of L tokens."""

    input_ids: NDArray[np.int32]
    """[W, L]"""
    segment_ids: NDArray[np.int32]
    """[W, L]: 1 from the paragraph on."""
    input_mask: NDArray[np.int32]
    """[W, L]"""
    start_positions: NDArray[np.int32]
    """[W]: the answer's first token; 0, [CLS], where the answer is not wholly in the window."""
    end_positions: NDArray[np.int32]
    """[W]: its last token, or 0."""
    question: NDArray[np.int32]
    """[W]: number of the question."""
    characters: NDArray[np.int32]
    """[W, L, 2]: begin and end of each token in the paragraph; -1 where there is none."""
    widest: NDArray[np.bool_]
    """[W, L]: of the windows that hold this token of the paragraph, here it has most context on both sides."""


def cut_windows(
    questions: Sequence[Question],
    vocab_file: Path,
    *,
    lower: bool = True,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
) -> Windows:
    """Cut every paragraph to windows.

    Args:
        questions: with their paragraphs.
        vocab_file: BERT's vocab.txt.
        lower: for an uncased vocabulary.
        max_seq_length: L.
        doc_stride: tokens from the beginning of a window to that of the next.
        max_query_length: tokens of the question that are kept.

    Raises:
        DataError: lengths leave no room for the paragraph, or windows would leave gaps.
    """
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
        size = len(encoded[question.context].ids)
        space = max_seq_length - len(head) - 1
        begin = 0
        while True:
            rows.append((number, head, begin, min(size - begin, space)))
            if begin + space >= size:
                break
            begin += doc_stride
    shape = (len(rows), max_seq_length)
    made = Windows(
        input_ids=np.zeros(shape, np.int32),
        segment_ids=np.zeros(shape, np.int32),
        input_mask=np.zeros(shape, np.int32),
        start_positions=np.zeros(len(rows), np.int32),
        end_positions=np.zeros(len(rows), np.int32),
        question=np.zeros(len(rows), np.int32),
        characters=np.full((*shape, 2), -1, np.int32),
        widest=np.zeros(shape, np.bool_),
    )
    for row, (number, head, begin, size) in enumerate(rows):
        question = questions[number]
        context = encoded[question.context]
        offsets = context.offsets[begin : begin + size]
        first, stop = len(head), len(head) + size
        made.question[row] = number
        made.input_ids[row, : stop + 1] = [*head, *context.ids[begin : begin + size], sep]
        made.segment_ids[row, first : stop + 1] = 1
        made.input_mask[row, : stop + 1] = 1
        made.characters[row, first:stop] = np.array(offsets, np.int32).reshape(-1, 2)
        if question.answers and offsets and offsets[0][0] <= question.start and question.stop <= offsets[-1][1]:
            inside = [i for i, (a, b) in enumerate(offsets) if b > question.start and a < question.stop]
            if inside:
                made.start_positions[row], made.end_positions[row] = first + inside[0], first + inside[-1]
    _mark_widest(made, rows)
    return made


def _mark_widest(made: Windows, rows: Sequence[tuple[int, list[int], int, int]]) -> None:
    """A token counts in the window where the smaller of its contexts is largest; a longer window wins a tie."""
    best: dict[tuple[int, int], tuple[float, int, int]] = {}
    for row, (number, head, begin, size) in enumerate(rows):
        for place in range(size):
            merit = min(place, size - 1 - place) + 0.01 * size
            if merit > best.get((number, begin + place), (-1.0, 0, 0))[0]:
                best[number, begin + place] = (merit, row, len(head) + place)
    for _, row, position in best.values():
        made.widest[row, position] = True
