"""The graphs of a trainer's model: captured for training, and for evaluation whole or in part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
import torch

from ontrain.session import without_inputs
from ontrain.training.postprocess import postprocessed
from ontrain.training.setup import Setup
from ontrain.training.source import Form

__all__ = ["Forms"]

Batch = Mapping[str, torch.Tensor]


class Forms:
    """Captures a trainer's model in its two modes, each when first asked for.

    Attributes:
        lacks_loss: whether no batch has come yet that brings the label of an outside loss.
        seconds: what each phase of the last capture in training mode took.
        samples: the first batch, copied.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.lacks_loss = True
        self.seconds: dict[str, float] = {}
        self.samples: dict[str, torch.Tensor] = {}
        self._partial: dict[tuple[str, ...], ir.Model] = {}

    def optional_inputs(self) -> tuple[str, ...]:
        """Return the inputs that an evaluation may leave out."""
        return self._setup.labels if self.lacks_loss else tuple(d.name for d in self._setup.description.inputs)

    def missing_inputs(self, batch: Batch) -> tuple[str, ...]:
        """Return the described inputs that a batch lacks."""
        return tuple(d.name for d in self._setup.description.inputs if d.name not in batch)

    def for_training(self, batch: Batch) -> Form:
        """Capture the model in training mode; of a batch without the label, what the loss is to be added to."""
        form = self._form(batch, training=True)
        self.seconds = dict(form.seconds)
        self.samples = {name: tensor.clone() for name, tensor in batch.items()}
        self.lacks_loss = bool(self.missing_inputs(batch))
        return form

    def for_evaluation(self, batch: Batch) -> ir.Model:
        """Capture the model in evaluation mode.

        Where the batch lacks an input, the first batch stands in for all of it: its sizes belong together.
        """
        return self._form(self.samples if self.missing_inputs(batch) else batch, training=False).model

    def forget_parts(self) -> None:
        """Let go of parts of an evaluation graph that is captured anew."""
        self._partial.clear()

    def without(self, model: ir.Model, missing: tuple[str, ...]) -> ir.Model:
        """Return the part of the evaluation graph that needs none of these inputs, made once."""
        if missing not in self._partial:
            self._partial[missing] = without_inputs(model, missing)
        return self._partial[missing]

    def _form(self, batch: Batch, *, training: bool) -> Form:
        form = self._setup.source.form(batch, training=training)
        function = self._setup.options._internal_use.extra_postprocess
        return form if function is None else replace(form, model=postprocessed(form.model, function))
