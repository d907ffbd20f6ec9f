"""What a search is asked for, by its attributes and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from ontrain.errors import InputError
from ontrain.graph import describe
from ontrain.inference.stepwise.values import Value

__all__ = ["Settings", "checked_features", "checked_ids", "checked_mask", "number"]

_LONGEST = 16384
"""Tokens that onnxruntime's searches give at most."""


@dataclass(frozen=True)
class Settings:
    """What all searches are asked for.

    Attributes:
        batch: sequences fed.
        max_length: tokens of a result, those fed included.
        min_length: a sequence ends when it has as many tokens, not before.
        eos, pad: the tokens that end a sequence and that fill it up.
        vocab_size: how many tokens there are; 0 for as many as the decoder has logits.
        ngram: tokens in a row that no sequence holds twice; 0 for any.
        repetition_penalty: makes tokens that are there already less likely, above 1.
        temperature: divides the logits.
        vocab_mask: [vocab_size], 0 for tokens that are never chosen; None for none.
        prefix_mask: [batch, vocab_size], the same for the first token.
    """

    batch: int
    max_length: int
    min_length: int
    eos: int
    pad: int
    vocab_size: int
    ngram: int
    repetition_penalty: float
    temperature: float
    vocab_mask: torch.Tensor | None
    prefix_mask: torch.Tensor | None

    @staticmethod
    def of(node: ir.Node, inputs: Sequence[Value], length: int, penalty: int) -> Settings:
        """Read attributes and inputs.

        Args:
            node: the search.
            inputs: of the node, None for one left out.
            length: tokens that are there at the beginning.
            penalty: position of `repetition_penalty`, behind which the masks lie.

        Raises:
            InputError: an input has the wrong shape or value.
        """
        attributes: Any = node.attributes
        batch = int(inputs[0].shape[0])
        vocab_mask, prefix_mask = (_optional(inputs, penalty + i) for i in (1, 2))
        settings = Settings(
            batch=batch,
            max_length=int(number(node, inputs, 1, "max_length", 4096)),
            min_length=int(number(node, inputs, 2, "min_length", 0)),
            eos=attributes.get_int("eos_token_id", -1),
            pad=attributes.get_int("pad_token_id", -1),
            vocab_size=max(attributes.get_int("vocab_size", 0), 0),
            ngram=attributes.get_int("no_repeat_ngram_size", 0),
            repetition_penalty=number(node, inputs, penalty, "repetition_penalty", 1.0),
            temperature=number(node, inputs, 14, "temperature", attributes.get_float("temperature", 1.0) or 0.0)
            if node.op_type == "WhisperBeamSearch"
            else attributes.get_float("temperature", 1.0),
            vocab_mask=checked_mask(node, "vocab_mask", vocab_mask, 1, batch),
            prefix_mask=checked_mask(node, "prefix_vocab_mask", prefix_mask, 2, batch),
        )
        if not length < settings.max_length <= _LONGEST:
            raise _unfit(
                node, f"max_length is {settings.max_length}", f"{length} tokens are there, {_LONGEST} are the most"
            )
        if settings.repetition_penalty <= 0:
            raise _unfit(node, f"repetition_penalty is {settings.repetition_penalty}", "it has to be above zero")
        return settings


def number(node: ir.Node, inputs: Sequence[Value], at: int, name: str, default: float) -> float:
    """Return an input of one element; the default where it is left out."""
    value = _optional(inputs, at)
    if value is None:
        return default
    if value.numel() != 1:
        raise _unfit(node, f"{name} is of shape {list(value.shape)}", "it has to be one number")
    return float(value.reshape(()))


def checked_ids(node: ir.Node, ids: torch.Tensor) -> torch.Tensor:
    """Return `input_ids` [batch, length].

    Raises:
        InputError: they have other dimensions.
    """
    if ids.dim() != 2:
        raise _unfit(node, f"input_ids are of shape {list(ids.shape)}", "it has to be [batch, length]")
    return ids


def checked_features(node: ir.Node, features: torch.Tensor) -> torch.Tensor:
    """Return `input_features` [batch, features, frames].

    Raises:
        InputError: they have other dimensions.
    """
    if features.dim() != 3:
        raise _unfit(
            node, f"input_features are of shape {list(features.shape)}", "it has to be [batch, features, frames]"
        )
    return features


def checked_mask(node: ir.Node, name: str, mask: torch.Tensor | None, rank: int, batch: int) -> torch.Tensor | None:
    """Return a mask of so many dimensions, the first of two the batch.

    Raises:
        InputError: it has others.
    """
    if mask is None:
        return None
    if mask.dim() != rank or (rank == 2 and mask.shape[0] != batch):
        wanted = "[vocab_size]" if rank == 1 else f"[{batch}, …]"
        raise _unfit(node, f"{name} is of shape {list(mask.shape)}", f"it has to be {wanted}")
    return mask


def _optional(inputs: Sequence[Value], at: int) -> Value:
    return inputs[at] if at < len(inputs) else None


def _unfit(node: ir.Node, problem: str, reason: str) -> InputError:
    return InputError(f"{node.op_type}: {problem}", node=describe(node), reason=reason)
