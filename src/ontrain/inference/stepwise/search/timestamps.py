"""Where the transcription of speech may hold timestamps: Whisper's rules, in onnxruntime's form."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.errors import InputError
from ontrain.graph import describe

__all__ = ["Timestamps"]

_LATEST_FIRST = 50
"""The first timestamp is at most so many steps after the beginning; a step is a 50th of a second."""


@dataclass(frozen=True)
class Timestamps:
    """The tokens that rules on timestamps are about, under the names of `WhisperBeamSearch`'s attributes.

    Attributes:
        eos: the token that ends a sequence; tokens of text are smaller.
        start: the token that a transcription begins with.
        translate, transcribe, start_of_lm, no_timestamps: tokens that say what is wanted.
        beginning: the timestamp of the beginning; the tokens from here on are timestamps.
    """

    eos: int
    start: int
    translate: int
    transcribe: int
    start_of_lm: int
    no_timestamps: int
    beginning: int

    @staticmethod
    def of(node: ir.Node, vocab_size: int) -> Timestamps:
        """Read the attributes.

        Raises:
            InputError: one is missing, or names no token.
        """
        names = {
            "eos": "eos", "start": "decoder_start", "translate": "translate", "transcribe": "transcribe",
            "start_of_lm": "start_of_lm", "no_timestamps": "no_timestamps", "beginning": "beginning_timestamp",
        }  # fmt: skip
        tokens = {field: node.attributes.get_int(f"{name}_token_id", -1) for field, name in names.items()}
        for field, token in tokens.items():
            if token is None or not 0 <= token < vocab_size:
                raise InputError(
                    f"{node.op_type}: {names[field]}_token_id is {token}", node=describe(node),
                    reason=f"logits_processor 1 places timestamps, for which it has to be below {vocab_size}",
                )  # fmt: skip
        return Timestamps(**tokens)

    def applied(self, scores: torch.Tensor, sequences: torch.Tensor, never: float) -> torch.Tensor:
        """Return the scores under the rules.

        Timestamps come in pairs, except for the first one, and do not decrease. Where all timestamps together are
        likelier than any other token, the next one is a timestamp.

        Args:
            scores: logarithms of probabilities of each row's next token, [rows, vocab_size].
            sequences: tokens so far, [rows, length].
            never: the score of a token that is not to be chosen.
        """
        scores, length = scores.clone(), sequences.shape[1]
        scores[:, [self.no_timestamps, self.start_of_lm]] = never
        for row, (score, sequence) in enumerate(zip(scores, sequences.tolist(), strict=True)):
            stamps = [token for token in sequence if token >= self.beginning]
            begins = next((at + 1 for at, token in enumerate(sequence) if token >= self.beginning), length)
            if length > begins:
                score[[self.start, self.translate, self.transcribe]] = never
            last = sequence[-1] >= self.beginning
            before = length <= begins or sequence[-2] >= self.beginning
            if last and before:
                score[self.beginning :] = never
            elif last:
                score[: self.eos] = never
            if stamps:
                score[self.beginning : stamps[-1] + (0 if last and not before else 1)] = never
            if length == begins:
                score[self.beginning + _LATEST_FIRST + 1 :] = never
            if torch.logsumexp(score[self.beginning :], 0) > score[: self.beginning].max():
                score[: self.beginning] = never
            scores[row] = score
        return scores
