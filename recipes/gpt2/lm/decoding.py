"""A causal language model as an ONNX file with a key-value cache, and text written by it in onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.export import write_captured
from torch import Tensor, nn
from transformers import DynamicCache, GPT2LMHeadModel

from ontrain import InferenceSession
from ontrain.capture import Captured, capture
from ontrain.errors import InputError

Array = np.ndarray[Any, Any]
Choose = Callable[[Array], Array]
"""choose(scores_BV) -> ids_B: the next token of each row."""

_KINDS = ("key", "value")


class _WithCache(nn.Module):
    """The model as a function of tensors alone: keys and values go in and come out.

    Layouts: B rows, T new tokens, P tokens seen before, H heads of D features, V tokens of the vocabulary.
    """

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, past_BHPD: list[Tensor]) -> tuple[Tensor, ...]:
        """Return scores_BTV for input_ids_BT, then each layer's keys and values with those of the new tokens."""
        cache = DynamicCache(zip(past_BHPD[::2], past_BHPD[1::2], strict=True))
        result = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        return result.logits, *itertools.chain.from_iterable(layer[:2] for layer in result.past_key_values)


class Exporter:
    """Captures a model once, and writes it as often as its weights have changed.

    The file has the inputs `input_ids` int64 [batch, length] and `past_key_values.N.key`, `past_key_values.N.value`
    float [batch, heads, past_length, features] of each layer N; the outputs are `logits` float [batch, length,
    vocabulary] and `present.N.key`, `present.N.value`, which are fed as the past of the next call. The names are those
    that exported decoders mostly have. A `past_length` of 0 begins a text.

    Args:
        model: in any mode; captured in evaluation mode.
    """

    def __init__(self, model: GPT2LMHeadModel) -> None:
        config = model.config
        self._positions, self._end = config.n_positions, config.eos_token_id
        layers = range(config.n_layer)
        self._past = [f"past_key_values.{i}.{kind}" for i in layers for kind in _KINDS]
        self._outputs = ["logits", *(f"present.{i}.{kind}" for i in layers for kind in _KINDS)]
        device = next(model.parameters()).device
        past = [torch.zeros(2, config.n_head, 3, config.n_embd // config.n_head, device=device) for _ in self._past]
        dims = [{0: "batch", 1: "length"}, *({0: "batch", 2: "past_length"} for _ in self._past)]
        modes = {module: module.training for module in model.modules()}
        try:
            self._captured: Captured = capture(
                _WithCache(model).eval(), (torch.zeros(2, 4, dtype=torch.int64, device=device), past),
                input_names=["input_ids", *self._past], dynamic=dims, output_names=self._outputs, prefix="model.",
            )  # fmt: skip
        finally:
            for module, mode in modes.items():
                module.training = mode

    def save(self, path: Path) -> None:
        """Write the model with its present weights, for stock onnxruntime."""
        properties = {"positions": str(self._positions), "end": "" if self._end is None else str(self._end)}
        write_captured(self._captured, self._outputs, path, properties)


def greedy(scores_BV: Array) -> Array:
    """Choose the likeliest token of each row."""
    return np.asarray(scores_BV.argmax(axis=-1))


@dataclass
class Sampler:
    """Chooses tokens at random: temperature, then the `top_k` likeliest, then the fewest that have `top_p` together.

    Attributes:
        random: where the draws come from.
        temperature: scores are divided by it.
        top_k: 0 for all tokens.
        top_p: 1 for all tokens. The nucleus of Holtzman et al. 2020.
    """

    random: np.random.Generator
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.95

    def probabilities(self, scores_BV: Array) -> Array:
        """Return what each token is drawn with, float64 [rows, vocabulary]."""
        scores = scores_BV.astype(np.float64) / self.temperature
        order = np.argsort(-scores, axis=-1, kind="stable")
        scores = np.take_along_axis(scores, order, axis=-1)
        if self.top_k:
            scores[:, self.top_k :] = -np.inf
        chances = np.exp(scores - scores[:, :1])
        chances /= chances.sum(axis=-1, keepdims=True)
        # A token is left out if those before it have enough; the first never is.
        enough = np.cumsum(chances, axis=-1) - chances >= self.top_p
        enough[:, 0] = False
        chances[enough] = 0.0
        chances /= chances.sum(axis=-1, keepdims=True)
        of_tokens = np.zeros_like(chances)
        np.put_along_axis(of_tokens, order, chances, axis=-1)
        return of_tokens

    def __call__(self, scores_BV: Array) -> Array:
        """Draw a token for each row."""
        total = np.cumsum(self.probabilities(scores_BV), axis=-1)
        drawn = self.random.random((len(total), 1)) * total[:, -1:]
        return (total <= drawn).sum(axis=-1)


class Decoder:
    """A file that `Exporter` wrote, in stock onnxruntime.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._session = InferenceSession(str(path))
        self._empty = {
            past.name: np.zeros((0, past.shape[1], 0, past.shape[3]), np.float32)
            for past in self._session.get_inputs()
            if past.name.startswith("past_key_values.")
        }
        if not self._empty:
            raise InputError(f"{path} has no key-value cache", way_out="export the model with run_lm.py --do_eval")
        about = self._session.get_modelmeta().custom_metadata_map
        self.positions = int(about["positions"])
        self.end = int(about["end"]) if about["end"] else None

    def scores(self, ids_BT: Array) -> Array:
        """Return the scores of the token after each place, float32 [rows, length, vocabulary]."""
        (scores_BTV,) = self._session.run(["logits"], {"input_ids": ids_BT, **self._no_past(len(ids_BT))})
        return scores_BTV

    def generate(self, ids_BT: Array, new_tokens: int, choose: Choose = greedy) -> Array:
        """Continue texts; a row that has come to `<|endoftext|>` is filled up with it.

        Args:
            ids_BT: the beginnings, int64 [rows, length], at least one token each.
            new_tokens: how many to add at most; fewer if all rows have ended.
            choose: `greedy`, or a `Sampler`.

        Returns:
            int64 [rows, length + new tokens].
        """
        if ids_BT.ndim != 2 or not ids_BT.shape[1]:
            raise InputError("there is nothing to continue", way_out="give a prompt of one token at least")
        if ids_BT.shape[1] + new_tokens > self.positions:
            raise InputError(
                f"{ids_BT.shape[1]:,} tokens and {new_tokens:,} more are too many",
                reason=f"the model has {self.positions:,} positions",
                way_out="give a shorter prompt, or ask for fewer tokens",
            )
        past, fed, written = self._no_past(len(ids_BT)), ids_BT, [ids_BT]
        ended = np.zeros(len(ids_BT), bool)
        for _ in range(new_tokens):
            # Keys and values of what was fed stay; from now on a row is as long as one token.
            logits, *present = self._session.run(None, {"input_ids": fed, **past})
            past = dict(zip(past, present, strict=True))
            chosen = choose(logits[:, -1]).astype(np.int64)
            if self.end is not None:
                chosen = np.where(ended, self.end, chosen)
                ended |= chosen == self.end
            fed = chosen[:, None]
            written.append(fed)
            if ended.all():
                break
        return np.concatenate(written, axis=1)

    def _no_past(self, rows: int) -> dict[str, Array]:
        return {name: np.zeros((rows, *empty.shape[1:]), np.float32) for name, empty in self._empty.items()}
