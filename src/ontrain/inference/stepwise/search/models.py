"""The models that searches run: a decoder like GPT-2's, and an encoder with a decoder like T5's or Whisper's.

Their inputs and outputs lie in the order that onnxruntime's script convert_generation gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype

from ontrain.inference.stepwise.search.settings import Settings
from ontrain.inference.stepwise.step import Environment
from ontrain.inference.stepwise.values import Value

__all__ = ["DecoderOnly", "EncoderDecoder", "Model", "Transcriber"]


class Model(Protocol):
    """Gives logits of next tokens, in float32 [rows, vocab_size]: a row for each beam of each sequence."""

    def first(self) -> torch.Tensor:
        """Return those behind what is fed."""
        ...

    def next(self, sequences: torch.Tensor, origins: torch.Tensor | None) -> torch.Tensor:
        """Return those behind sequences [rows, length], each one token longer.

        Args:
            sequences: whole.
            origins: [rows], which row of the last call each one goes on; None if each its own.
        """
        ...


class DecoderOnly:
    """A decoder that reads ids, positions, a mask and pasts [2, rows, heads, length, width], and gives presents.

    Args:
        programs: for the graphs `decoder`, and `init_decoder` where there is one for the first call.
        outer: values that the graphs read.
        ids: [batch, length].
        mask: which of them count, as the caller says; None leaves out padding.
        beams: rows for each sequence.
        settings: of the search.
    """

    def __init__(
        self, programs: Mapping[str, Any], outer: Environment, ids: torch.Tensor, mask: torch.Tensor | None,
        beams: int, settings: Settings,
    ) -> None:  # fmt: skip
        self._programs, self._outer, self._settings = programs, outer, settings
        real = ids != settings.pad
        places = torch.where(real, real.cumsum(1) - 1, 0)
        mask = real if mask is None else mask
        self._ids, self._mask, self._places = (x.repeat_interleave(beams, 0) for x in (ids, mask, places))
        self._next_places = real.sum(1, keepdim=True).repeat_interleave(beams, 0)
        pasts: list[ir.Value] = programs["decoder"].inputs[3:]
        shape: Any = pasts[0].shape
        empty = torch.zeros([2, len(self._ids), shape[2], 0, shape[4]], dtype=_dtype(pasts[0]), device=ids.device)
        self._pasts: list[torch.Tensor] = [empty] * len(pasts)

    def first(self) -> torch.Tensor:
        """Return the logits behind the ids."""
        name = "init_decoder" if "init_decoder" in self._programs else "decoder"
        return self._run(name, self._ids, self._places)

    def next(self, sequences: torch.Tensor, origins: torch.Tensor | None) -> torch.Tensor:
        """Return the logits behind the last token of each sequence; see `Model.next`."""
        if origins is not None:
            self._pasts = [past.index_select(1, origins) for past in self._pasts]
        self._mask = torch.nn.functional.pad(self._mask.to(torch.int32), (0, 1), value=1)
        places, self._next_places = self._next_places, self._next_places + 1
        return self._run("decoder", sequences[:, -1:], places)

    def _run(self, name: str, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        program, fed = self._programs[name], (ids, places, self._mask)
        typed = [x.to(_dtype(v)) for x, v in zip(fed, program.inputs, strict=False)]
        logits, *self._pasts = _run(program, self._outer, [*typed, *self._pasts])
        return _last(logits, len(ids), self._settings.vocab_size)


class EncoderDecoder:
    """An encoder that runs once, and a decoder that reads its keys and values beside its own pasts.

    The encoder may run the decoder's first token itself: then it reads the token that sequences begin with.

    Args:
        programs: for the graphs `encoder` and `decoder`.
        outer: values that the graphs read.
        ids: [batch, length], for the encoder.
        mask: which of them count, as the caller says; None leaves out padding on the left.
        beams: rows for each sequence.
        settings: of the search.
        start: tokens [batch, 1] that sequences begin with.
    """

    def __init__(
        self, programs: Mapping[str, Any], outer: Environment, ids: torch.Tensor, mask: torch.Tensor | None,
        beams: int, settings: Settings, start: torch.Tensor,
    ) -> None:  # fmt: skip
        self._programs, self._outer, self._settings, self._beams = programs, outer, settings, beams
        self._ids, self._start = ids.to(torch.int32), start.to(torch.int32)
        if mask is None:
            mask = ((ids != settings.pad).cumsum(1) > 0).to(torch.int32)
        self._mask = mask.to(torch.int32)
        self._inputs: list[ir.Value] = programs["decoder"].inputs
        self._whole = not _reads_one(self._inputs[0])
        self._hidden: torch.Tensor | None = None
        self._pasts: list[torch.Tensor] = []
        self._cross: list[torch.Tensor] = []

    def first(self) -> torch.Tensor:
        """Return the logits behind the tokens that sequences begin with."""
        encoder = self._programs["encoder"]
        starts = [self._start] if len(encoder.inputs) == 3 else []
        results = [self._expanded(x) for x in _run(encoder, self._outer, [self._ids, self._mask, *starts])]
        if starts:
            logits, self._hidden, *states = results
            self._pasts, self._cross = states[: len(states) // 2], states[len(states) // 2 :]
            return _last(logits, len(logits), self._settings.vocab_size)
        self._cross = results
        self._pasts = [state[:, :, :0] for state in results]
        return self._decoded(self._expanded(self._start))

    def next(self, sequences: torch.Tensor, origins: torch.Tensor | None) -> torch.Tensor:
        """Return the logits behind the last token of each sequence; see `Model.next`."""
        if origins is not None:
            self._pasts = [past.index_select(0, origins) for past in self._pasts]
        return self._decoded((sequences if self._whole else sequences[:, -1:]).to(torch.int32))

    def _decoded(self, ids: torch.Tensor) -> torch.Tensor:
        fed = [ids]
        names = [value.name or "" for value in self._inputs]
        if names[1].startswith("encoder_input_ids"):
            fed.append(self._expanded(self._ids))
        fed.append(self._expanded(self._mask))
        if names[len(fed)].startswith("encoder_hidden_states") and self._hidden is not None:
            fed.append(self._hidden)
        logits, *self._pasts = _run(self._programs["decoder"], self._outer, [*fed, *self._pasts, *self._cross])
        return _last(logits, len(ids), self._settings.vocab_size)

    def _expanded(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(self._beams, 0)


class Transcriber:
    """An encoder of sound that runs the decoder's first tokens, too, and a decoder that goes on.

    Args:
        programs: for the graphs `encoder` and `decoder`.
        outer: values that the graphs read.
        features: [batch, features, frames], for the encoder.
        beams: rows for each sequence.
        settings: of the search.
        start: tokens [batch, length] that sequences begin with.
    """

    def __init__(
        self, programs: Mapping[str, Any], outer: Environment, features: torch.Tensor, beams: int, settings: Settings,
        start: torch.Tensor,
    ) -> None:  # fmt: skip
        self._programs, self._outer, self._settings, self._beams = programs, outer, settings, beams
        self._features, self._start = features, start.to(torch.int32)
        inputs: list[ir.Value] = programs["decoder"].inputs
        self._whole, self._reads_hidden = not _reads_one(inputs[0]), len(inputs) % 4 == 2
        self._constant: list[torch.Tensor] = []
        self._pasts: list[torch.Tensor] = []
        self._cross: list[torch.Tensor] = []

    def first(self) -> torch.Tensor:
        """Return the logits behind the tokens that sequences begin with."""
        results = _run(self._programs["encoder"], self._outer, [self._features, self._start])
        logits, hidden, *states = (x.repeat_interleave(self._beams, 0) for x in results)
        self._constant = [hidden] if self._reads_hidden else []
        self._pasts, self._cross = states[: len(states) // 2], states[len(states) // 2 :]
        return _last(logits, len(logits), self._settings.vocab_size)

    def next(self, sequences: torch.Tensor, origins: torch.Tensor | None) -> torch.Tensor:
        """Return the logits behind the last token of each sequence; see `Model.next`."""
        if origins is not None:
            self._pasts = [past.index_select(0, origins) for past in self._pasts]
        ids = (sequences if self._whole else sequences[:, -1:]).to(torch.int32)
        fed = [ids, *self._constant, *self._pasts, *self._cross]
        logits, *self._pasts = _run(self._programs["decoder"], self._outer, fed)
        return _last(logits, len(ids), self._settings.vocab_size)


def _run(program: Any, outer: Environment, fed: Sequence[torch.Tensor]) -> list[Value]:
    results: list[Value] = program.run({**outer, **dict(zip(program.inputs, fed, strict=True))})
    return results


def _last(logits: torch.Tensor, rows: int, vocab_size: int) -> torch.Tensor:
    """The logits of the last token [rows, vocab_size], of [rows or fewer, length, vocab_size or more]."""
    last = logits[:, -1, : vocab_size or None].float()
    return last.repeat_interleave(rows // len(last), 0) if len(last) else last


def _reads_one(ids: ir.Value) -> bool:
    """Whether a decoder states that it reads one token at a time."""
    return ids.shape is not None and len(ids.shape) == 2 and ids.shape[1] == 1


def _dtype(value: ir.Value) -> torch.dtype:
    return torch.float32 if value.dtype is None else to_torch_dtype(value.dtype)
