"""An evaluation: the exported file's perplexity, PyTorch's beside it, and what the model writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from transformers import GPT2LMHeadModel

from lm.arguments import Arguments
from lm.decoding import Decoder, Exporter, Sampler, greedy
from lm.scoring import onnx_loss, perplexity, torch_loss
from lm.text import Ids, Vocabulary, batches, unigram_loss
from ontrain.errors import InputError, OptionError

__all__ = ["TOLERANCE", "Evaluation"]

TOLERANCE = 1e-3
"""Between PyTorch's and onnxruntime's perplexity, as a part of it."""
PROMPT_TOKENS, SAMPLE_TOKENS = 8, 40


class Evaluation:
    """Evaluates one model again and again; it is captured for export once.

    Args:
        arguments: the options.
        model: as it is when it is called.
        vocabulary: the model's.
        ids: the evaluation text.
        size: tokens of a block.
        output: folder of model.onnx.

    Raises:
        InputError: the prompt is empty.
        OptionError: prompt and sample are longer than the model has positions.
    """

    def __init__(
        self, arguments: Arguments, model: GPT2LMHeadModel, vocabulary: Vocabulary, ids: Ids, size: int, output: Path
    ) -> None:  # fmt: skip
        self._arguments, self._model, self._vocabulary, self._ids = arguments, model, vocabulary, ids
        self._size, self._path = size, output / "model.onnx"
        self._in_onnx = arguments.do_eval or not arguments.do_eval_in_torch
        self._exporter: Exporter | None = None
        positions = model.config.n_positions
        prompt = ids[: min(PROMPT_TOKENS, positions // 2)]
        if arguments.prompt is not None:
            prompt = vocabulary.encode(arguments.prompt)
        if not len(prompt):
            raise InputError("--prompt is empty", way_out="give some text, or leave it out")
        room = positions - len(prompt)
        self._length = max(1, min(SAMPLE_TOKENS, room)) if arguments.sample_length is None else arguments.sample_length
        if self._length > room:
            raise OptionError(
                f"a prompt of {len(prompt)} tokens and --sample_length {self._length} are too many",
                reason=f"the model has {positions} positions",
                way_out="ask for a shorter text",
            )
        self._prompt = prompt[None]

    def __call__(self, step: int) -> dict[str, Any]:
        """Return "loss" and "perplexity", and as asked for "perplexity in PyTorch", "greedy" and "sampled" text."""
        found: dict[str, Any] = {}
        if self._in_onnx:
            # Captured when it is needed: the module's parameters stay the same objects while it is trained.
            self._exporter = self._exporter or Exporter(self._model)
            self._exporter.save(self._path)
            decoder = Decoder(self._path)
            found["loss"] = onnx_loss(decoder, self._batches())
            found["perplexity"] = perplexity(found["loss"])
            found |= self._texts(decoder, step)
        if self._arguments.do_eval_in_torch:
            loss = torch_loss(self._model, self._batches())
            found.setdefault("loss", loss)
            found["perplexity in PyTorch"] = perplexity(loss)
            found.setdefault("perplexity", perplexity(loss))
        return found

    def unigram(self, train: Ids) -> float:
        """Perplexity of the training text's token frequencies on what the model predicts: what is to be beaten."""
        labels = (rows[:, 1:].reshape(-1) for rows in self._batches())
        return perplexity(unigram_loss(train, labels, self._vocabulary.size))

    def _batches(self) -> Any:
        return batches(self._ids, self._size, self._arguments.per_gpu_eval_batch_size)

    def _texts(self, decoder: Decoder, step: int) -> dict[str, str]:
        arguments = self._arguments
        if self._length < 1:
            return {}
        # The draws belong to the step, so that a run that was resumed writes what it would have written.
        random = np.random.default_rng((arguments.seed, step))
        sampler = Sampler(random, arguments.temperature, arguments.top_k, arguments.top_p)
        written = {
            name: decoder.generate(self._prompt, self._length, choose)[0]
            for name, choose in (("greedy", greedy), ("sampled", sampler))
        }
        return {name: self._vocabulary.decode(ids) for name, ids in written.items()}
