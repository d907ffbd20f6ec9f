"""An evaluation: the exported file's perplexity, PyTorch's beside it, and what the model writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.meter import perplexity
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from lm.arguments import Arguments
from lm.decoding import Decoder, Exporter, Sampler, greedy
from lm.text import Ids, Vocabulary, batches, unigram_loss
from ontrain.errors import InputError, OptionError

PROMPT_TOKENS, SAMPLE_TOKENS = 8, 40
_ROWS = 16


def onnx_loss(decoder: Decoder, batches: Iterator[Ids]) -> float:
    """Mean loss a token of an exported model, from its scores; every token but a row's first is predicted."""
    return mean_loss(lambda ids: torch.from_numpy(decoder.scores(ids)), batches)


def torch_loss(model: nn.Module, batches: Iterator[Ids]) -> float:
    """The same of a module, in evaluation mode."""
    device, training = next(model.parameters()).device, model.training

    def scores(ids: Ids) -> Tensor:
        logits: Tensor = model(input_ids=torch.from_numpy(ids).to(device)).logits
        return logits

    model.eval()
    try:
        with torch.no_grad():
            return mean_loss(scores, batches)
    finally:
        model.train(training)


def mean_loss(scores: Callable[[Ids], Tensor], batches: Iterator[Ids]) -> float:
    """Mean negative log-likelihood a predicted token, added up in double precision.

    Args:
        scores: of the token after each place, [rows, length, vocabulary], for ids [rows, length].
        batches: of ids; they may differ in both sizes.
    """
    total, count = 0.0, 0
    for ids in batches:
        for scores_TV, row in zip(scores(ids), torch.from_numpy(ids), strict=True):
            label_T = row[1:].to(scores_TV.device)
            # In parts small enough for memory that is there already, and without a copy of the scores.
            for some, label in zip(scores_TV[:-1].split(_ROWS), label_T.split(_ROWS), strict=True):
                total += float(nn.functional.cross_entropy(some.float(), label, reduction="none").double().sum())
            count += len(label_T)
    return total / count


class Evaluation:
    """Evaluates one model again and again; it is captured for export once.

    Args:
        arguments: the options.
        model: as it is when it is called.
        vocabulary: the model's.
        ids: the evaluation text.
        size: tokens of a block.
        output: folder of model.onnx.
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
        results: dict[str, Any] = {}
        if self._in_onnx:
            # Captured when it is needed: the module's parameters stay the same objects while it is trained.
            self._exporter = self._exporter or Exporter(self._model)
            self._exporter.save(self._path)
            decoder = Decoder(self._path)
            results["loss"] = onnx_loss(decoder, self._batches())
            results["perplexity"] = perplexity(results["loss"])
            results |= self._texts(decoder, step)
        if self._arguments.do_eval_in_torch:
            loss = torch_loss(self._model, self._batches())
            results.setdefault("loss", loss)
            results["perplexity in PyTorch"] = perplexity(loss)
            results.setdefault("perplexity", perplexity(loss))
        return results

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
