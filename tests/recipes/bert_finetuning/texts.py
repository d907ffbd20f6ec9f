"""Paragraphs with questions, in SQuAD's form and in CoLA's, and a tiny BERT with a vocabulary of their words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ARTICLES = {
    "Tides": [
        (
            "The tide is the rise and fall of the sea. It is caused by the moon and, less, by the sun. In the Bay of "
            "Fundy the water rises by sixteen metres, more than anywhere else. Harbours there fall dry twice a day.",
            [
                ("What causes the tide?", "the moon and, less, by the sun"),
                ("How much does the water rise in the Bay of Fundy?", "sixteen metres"),
                ("How often do harbours fall dry?", "twice a day"),
            ],
        )
    ],
    "Printing": [
        (
            "Johannes Gutenberg printed in Mainz with movable type. His Bible was finished about 1455; some 180 copies "
            "were made, most of them on paper.",
            [("Where did Gutenberg print?", "Mainz"), ("How many copies of the Bible were made?", "180")],
        ),
        (
            "Before that, books in Europe were copied by hand. A monk took a year or more for one Bible.",
            [("Who copied a Bible in a year or more?", "A monk")],
        ),
    ],
    "Salt": [
        (
            "Salt keeps meat and fish for months. Roman soldiers were given some, and the word salary may come from "
            "it. Venice grew rich by its trade in salt.",
            [("Which city grew rich by trade in salt?", "Venice"), ("What may come from salt?", "the word salary")],
        )
    ],
}
UNANSWERABLE = ["Who was the king of Venice?", "How deep is the sea?"]


def squad(*, unanswerable: bool = False) -> dict[str, Any]:
    """The articles in SQuAD's form; with `unanswerable`, a question without answer in each of two paragraphs."""
    data, none = [], list(UNANSWERABLE) if unanswerable else []
    for title, paragraphs in ARTICLES.items():
        contexts = []
        for number, (context, pairs) in enumerate(paragraphs):
            qas: list[dict[str, Any]] = [
                {
                    "id": f"{title}-{number}-{index}",
                    "question": question,
                    "answers": [{"text": answer, "answer_start": context.index(answer)}],
                }
                for index, (question, answer) in enumerate(pairs)
            ]
            if none:
                text = none.pop()
                qas.append({"id": f"{title}-{number}-none", "question": text, "answers": [], "is_impossible": True})
            contexts.append({"context": context, "qas": qas})
        data.append({"title": title, "paragraphs": contexts})
    return {"version": "1.1", "data": data}


def sentences() -> list[tuple[str, int]]:
    """The articles' sentences as they stand (1), and with their words in the reverse order (0)."""
    texts = [context for paragraphs in ARTICLES.values() for context, _ in paragraphs]
    pieces = [sentence for text in texts for sentence in re.split(r"(?<=\.) ", text)]
    return [pair for sentence in pieces for pair in ((sentence, 1), (" ".join(reversed(sentence.split())), 0))]


def make_model(folder: Path, **changes: Any) -> Path:
    """Write a model as transformers does: config.json, model.safetensors, vocab.txt; random weights, no task's head."""
    import torch
    from transformers import BertConfig, BertModel

    texts = [context for paragraphs in ARTICLES.values() for context, _ in paragraphs]
    texts += [question for paragraphs in ARTICLES.values() for _, pairs in paragraphs for question, _ in pairs]
    tokens = re.findall(r"\w+|[^\w\s]", " ".join([*texts, *UNANSWERABLE]).lower())
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(tokens)]
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(**{"vocab_size": len(words), "max_position_embeddings": 96, **sizes, **changes})
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder
