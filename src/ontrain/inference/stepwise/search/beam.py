"""BeamSearch: the likeliest continuations of each sequence, of which the best ones that ended are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ontrain.errors import InputError
from ontrain.graph import describe
from ontrain.inference.stepwise.search.models import DecoderOnly, EncoderDecoder, Model, Transcriber
from ontrain.inference.stepwise.search.scores import Rules, best
from ontrain.inference.stepwise.search.search import Search
from ontrain.inference.stepwise.search.settings import (
    Settings,
    checked_features,
    checked_ids,
    checked_mask,
    number,
)
from ontrain.inference.stepwise.search.timestamps import Timestamps
from ontrain.inference.stepwise.step import Environment
from ontrain.inference.stepwise.values import Array, Value
from ontrain.operators import model_kind
from ontrain.rounds import counted_rounds

__all__ = ["BeamSearch", "WhisperBeamSearch"]

_MOST_BEAMS = 128
_UNLIKELY = -1e9
"""The score of all beams but the first at the beginning: they hold the same tokens."""


@dataclass
class _Hypotheses:
    """The best sequences of one input that have ended, best first, with their scores.

    Attributes:
        most: how many are kept.
        length_penalty: the power of the length by which sums of logarithms are divided.
        done: no better one can come.
    """

    most: int
    length_penalty: np.float32
    scores: list[np.float32] = field(default_factory=list)
    sequences: list[torch.Tensor] = field(default_factory=list)
    done: bool = False

    def add(self, sequence: torch.Tensor, total: np.float32) -> None:
        """Take a sequence in, if it is among the best."""
        score = self._score(total, len(sequence))
        if len(self.scores) == self.most and score <= self.scores[-1]:
            return
        del self.scores[self.most - 1 :], self.sequences[self.most - 1 :]
        at = len(self.scores)
        while at > 0 and score > self.scores[at - 1]:
            at -= 1
        self.scores.insert(at, score)
        self.sequences.insert(at, sequence)

    def may_improve(self, total: np.float32, length: int) -> bool:
        """Whether a sequence of this sum and length would be better than the worst one."""
        return bool(self.scores[-1] < self._score(total, length))

    def _score(self, total: np.float32, length: int) -> np.float32:
        return np.float32(total / np.float32(length) ** self.length_penalty)


class BeamSearch(Search):
    """Beams of continuations; see `ontrain.inference.stepwise.search.models` for what runs them."""

    operator = "BeamSearch"

    def _results(self, inputs: list[Value], outer: Environment) -> list[Value]:
        node, inputs = self.node, [*inputs, *[None] * 15]
        kind = model_kind(node)
        ids = checked_features(node, inputs[0]) if kind == 2 else checked_ids(node, inputs[0])
        beams = int(number(node, inputs, 3, "num_beams", 1))
        count = int(number(node, inputs, 4, "num_return_sequences", 1))
        if not 1 <= count <= beams <= _MOST_BEAMS:
            raise InputError(
                f"{node.op_type}: num_beams is {beams}, num_return_sequences is {count}",
                reason=f"beams are 1 to {_MOST_BEAMS}, and no more sequences than beams come back",
            )
        start = self._start(kind, ids, inputs[10])
        settings = Settings.of(node, inputs, start.shape[1], 6)
        mask = checked_mask(node, "attention_mask", inputs[9], 2, settings.batch)
        model = self._model(kind, outer, ids, mask, beams, settings, start)
        penalty = np.float32(number(node, inputs, 5, "length_penalty", 1.0))
        hypotheses = [_Hypotheses(beams, penalty) for _ in range(settings.batch)]
        stops_early = bool(node.attributes.get_int("early_stopping", 0))
        keeps = len(self.outputs) > 2 and bool(self.outputs[2].name)
        first = model.first()
        stamped = kind == 2 and int(number(node, inputs, 11, "logits_processor", 0)) == 1
        rules = Rules(settings, None, Timestamps.of(node, first.shape[1]) if stamped else None)
        rows = start.long().repeat_interleave(beams, 0)
        tables = _search(model, first, rules, settings, rows, hypotheses, stops_early, keeps)
        sequences = _sequences(hypotheses, count, settings)
        scores = np.array([ended.scores[:count] for ended in hypotheses], np.float32).reshape(settings.batch, count)
        results = [sequences, torch.from_numpy(scores), tables, None, self._silence(first[::beams])]
        return [None if result is None else result.to(ids.device) for result in results]

    def _start(self, kind: int, ids: torch.Tensor, begun: Value) -> torch.Tensor:
        """The tokens that the decoder begins with, [B, length]."""
        tokens: torch.Tensor | None = None
        if kind == 2:
            tokens = checked_mask(self.node, "decoder_input_ids", begun, 2, len(ids))
        if tokens is not None:
            return tokens
        if not kind:
            return ids
        token = self.node.attributes["decoder_start_token_id"].as_int()
        return torch.full([len(ids), 1], token, dtype=torch.int32, device=ids.device)

    def _model(
        self, kind: int, outer: Environment, ids: torch.Tensor, mask: torch.Tensor | None, beams: int,
        settings: Settings, start: torch.Tensor,
    ) -> Model:  # fmt: skip
        if kind == 2:
            return Transcriber(self.programs, outer, ids, beams, settings, start)
        if kind:
            return EncoderDecoder(self.programs, outer, ids, mask, beams, settings, start)
        return DecoderOnly(self.programs, outer, ids, mask, beams, settings)

    def _silence(self, logits: torch.Tensor) -> torch.Tensor | None:
        """How likely there is no speech at all, [batch], by the logits of the first token [batch, vocab_size]."""
        return None


class WhisperBeamSearch(BeamSearch):
    """Beams of transcriptions, which also tells how likely there is no speech.

    onnxruntime computes `non_speech_probs` on GPUs only.
    """

    operator = "WhisperBeamSearch"

    def _check_form(self) -> None:
        super()._check_form()
        if len(self.outputs) > 3 and self.outputs[3].name:
            raise self._unfit("it is asked for cross_qk", "that is for GPUs, in onnxruntime, too")

    def _silence(self, logits: torch.Tensor) -> torch.Tensor | None:
        if len(self.outputs) < 5 or not self.outputs[4].name:
            return None
        token = self.node.attributes.get_int("no_speech_token_id", -1)
        if token is None or not 0 <= token < logits.shape[1]:
            raise InputError(
                f"{self.node.op_type}: no_speech_token_id is {token}", node=describe(self.node),
                reason=f"non_speech_probs are those of this token, which has to be below {logits.shape[1]}",
            )  # fmt: skip
        return torch.softmax(logits, -1)[:, token]


def _sequences(hypotheses: Sequence[_Hypotheses], count: int, settings: Settings) -> torch.Tensor:
    """The `count` best sequences of each row, padded, int32 [B, count, max_length]."""
    shape = (settings.batch, count, settings.max_length)
    sequences = torch.full(shape, settings.pad, dtype=torch.int32, device="cpu")
    for row, ended in enumerate(hypotheses):
        for at in range(count):
            sequences[row, at, : len(ended.sequences[at])] = ended.sequences[at]
    return sequences


def _search(
    model: Model, logits: torch.Tensor, rules: Rules, settings: Settings, sequences: torch.Tensor,
    hypotheses: list[_Hypotheses], stops_early: bool, keeps: bool,
) -> torch.Tensor:  # fmt: skip
    """Fill the hypotheses; return the scores of all tokens at each step, [steps, batch, beams, vocab_size]."""
    batch, begins = settings.batch, sequences.shape[1]
    beams = hypotheses[0].most if hypotheses else 1
    totals = np.full((batch, beams), _UNLIKELY, np.float32)
    totals[:, 0] = 0
    tables = []
    with counted_rounds() as another:
        for step in range(1, settings.max_length - begins + 1):
            another()
            scores = rules.applied(torch.log_softmax(logits, -1), sequences, step)
            scores = scores + torch.from_numpy(totals.reshape(-1, 1)).to(scores.device)
            if keeps:
                tables.append(scores.reshape(batch, beams, -1).cpu())
            vocab_size = scores.shape[1]
            values, places = (x.cpu().numpy() for x in best(scores.reshape(batch, -1), 2 * beams))
            totals, tokens, origins = _advanced(
                hypotheses, values, places // vocab_size, places % vocab_size, sequences, settings, stops_early
            )
            chosen, rows = (torch.from_numpy(x.reshape(-1)).to(sequences.device) for x in (tokens, origins))
            sequences = torch.cat([sequences[rows], chosen[:, None]], 1)
            if all(ended.done for ended in hypotheses) or sequences.shape[1] == settings.max_length:
                break
            logits = model.next(sequences, rows if beams > 1 else None)
    for row, ended in enumerate(hypotheses):
        for beam in range(0 if ended.done else beams):
            ended.add(sequences[row * beams + beam], totals[row, beam])
    missing = settings.max_length - begins - len(tables)
    tables += [torch.zeros_like(tables[0])] * missing if tables else []
    return torch.stack(tables) if tables else torch.zeros(0, device="cpu")


def _advanced(
    hypotheses: list[_Hypotheses], values: Array, origins: Array, tokens: Array, sequences: torch.Tensor,
    settings: Settings, stops_early: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """What each beam goes on with: totals, tokens and rows of `sequences`, each [batch, beams].

    Sequences that have ended join the hypotheses.
    """
    batch, beams, length = len(hypotheses), values.shape[1] // 2, sequences.shape[1]
    next_totals = np.zeros((batch, beams), np.float32)
    next_tokens, next_rows = np.full((batch, beams), settings.pad), np.zeros((batch, beams), np.int64)
    for row, ended in enumerate(hypotheses):
        if ended.done:
            continue
        beam = 0
        for at in range(2 * beams):
            source = row * beams + int(origins[row, at])
            if tokens[row, at] == settings.eos:
                if at < beams:
                    ended.add(sequences[source], values[row, at])
                continue
            next_totals[row, beam], next_tokens[row, beam] = values[row, at], tokens[row, at]
            next_rows[row, beam] = source
            beam += 1
            if beam == beams:
                break
        if len(ended.scores) == beams:
            # onnxruntime counts places of the batch by beams here, where each input has twice as many candidates.
            candidates = values.reshape(-1)[row * beams : (row + 2) * beams]
            ended.done = stops_early or not ended.may_improve(candidates.max(), length)
    return next_totals, next_tokens, next_rows
