"""GreedySearch and Sampling: one token more for each sequence, the likeliest or one that is drawn."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ontrain.inference.stepwise.search.draws import Generator, draw, nucleus
from ontrain.inference.stepwise.search.models import DecoderOnly
from ontrain.inference.stepwise.search.scores import Rules, best
from ontrain.inference.stepwise.search.search import Search
from ontrain.inference.stepwise.search.settings import Settings, checked_ids, checked_mask, number
from ontrain.inference.stepwise.step import Environment
from ontrain.inference.stepwise.values import Value
from ontrain.rounds import counted_rounds

__all__ = ["GreedySearch", "Sampling"]

_Chooses = Callable[[torch.Tensor], torch.Tensor]


class GreedySearch(Search):
    """The likeliest token, again and again.

    Behind the end of a sequence lies `pad_token_id`, where onnxruntime leaves what was in its memory once all
    sequences have ended.
    """

    operator = "GreedySearch"

    def _results(self, inputs: list[Value], outer: Environment) -> list[Value]:
        node = self.node
        ids = checked_ids(node, inputs[0])
        settings = Settings.of(node, inputs, ids.shape[1], 3)
        mask = checked_mask(node, "attention_mask", [*inputs, *[None] * 7][6], 2, settings.batch)
        model = DecoderOnly(self.programs, outer, ids, mask, 1, settings)
        rules, chooses = self._choice(inputs, settings)
        sequences = ids.long()
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        logits = model.first()
        with counted_rounds() as another:
            for step in range(1, settings.max_length - ids.shape[1] + 1):
                another()
                tokens = chooses(rules.applied(logits, sequences, step))
                ended = ended | (tokens == settings.eos)
                tokens = torch.where(ended, settings.pad, tokens)
                sequences = torch.cat([sequences, tokens[:, None]], 1)
                if bool(ended.all()) or sequences.shape[1] == settings.max_length:
                    break
                logits = model.next(sequences, None)
        whole = torch.nn.functional.pad(sequences, (0, settings.max_length - sequences.shape[1]), value=settings.pad)
        return [whole.to(torch.int32)]

    def _choice(self, inputs: list[Value], settings: Settings) -> tuple[Rules, _Chooses]:
        """The rules that scores are under, and how tokens are chosen by the scores."""
        return Rules(settings), lambda scores: best(scores, 1)[1][:, 0]


class Sampling(GreedySearch):
    """A token drawn among the likeliest ones. A seed stands for the tokens that onnxruntime draws on Linux."""

    operator = "Sampling"

    def _check_form(self) -> None:
        super()._check_form()
        if any(value.name for value in self.outputs[1:]):
            raise self._unfit("it is asked for filtered_logits, which onnxruntime's builds do not give either")

    def _choice(self, inputs: list[Value], settings: Settings) -> tuple[Rules, _Chooses]:
        attributes = self.node.attributes
        mask = checked_mask(self.node, "presence_mask", [*inputs, *[None] * 8][7], 2, settings.batch)
        penalty = attributes.get_float("presence_penalty", 0.0) or 0.0
        top_p, filled = attributes.get_float("top_p", 0.0) or 0.0, attributes.get_float("filter_value", -torch.inf)
        least, custom = attributes.get_int("min_tokens_to_keep", 0) or 0, bool(attributes.get_int("custom", 0))
        generator = Generator(int(number(self.node, inputs, 8, "seed", 0)))

        def chooses(scores: torch.Tensor) -> torch.Tensor:
            filtered = nucleus(scores, top_p, -torch.inf if filled is None else filled, least, custom=custom)
            return torch.tensor(draw(filtered, generator), device=scores.device)

        return Rules(settings, None if mask is None or not penalty else mask * penalty), chooses
