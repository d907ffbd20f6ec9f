"""Descriptions of a model's inputs and outputs, and what becomes of those that disagree with the data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ontrain.arguments import checked_kind
from ontrain.errors import OptionError
from ontrain.internals import tensor_of

__all__ = ["IODescription", "ModelDescription", "fitted", "generate_sample"]


@dataclass
class IODescription:
    """Name, shape and dtype of an input or output; attributes end in an underscore, as onnxruntime's do.

    Args:
        name: of the input or output.
        shape: ints, and strings for dimensions that vary.
        dtype: a torch dtype; only compared with the data.
        num_classes: for an input of whole numbers, how many there are; `generate_sample` draws below it.
    """

    name_: str
    shape_: Sequence[Any]
    dtype_: torch.dtype | None
    num_classes_: int | None

    def __init__(
        self, name: str, shape: Sequence[Any], dtype: torch.dtype | None = None, num_classes: int | None = None
    ) -> None:
        if not isinstance(name, str) or not name:
            raise OptionError(f"the name of a description is {name!r}", way_out="give a string")
        if not isinstance(shape, Sequence) or isinstance(shape, str):
            raise OptionError(f"the shape of {name!r} is {shape!r}", way_out="give a list")
        self.name_, self.shape_, self.dtype_, self.num_classes_ = name, list(shape), dtype, num_classes


@dataclass
class ModelDescription:
    """Inputs, the label last where there is a loss function, and outputs, the loss first."""

    inputs_: Sequence[IODescription]
    outputs_: Sequence[IODescription]

    def __init__(self, inputs: Sequence[IODescription], outputs: Sequence[IODescription]) -> None:
        for what, described in (("inputs", inputs), ("outputs", outputs)):
            checked_kind(f"the description of {what}", described, (list, tuple), "give a list of IODescriptions")
        for description in (*inputs, *outputs):
            if not isinstance(description, IODescription):
                raise OptionError(f"a description is a {type(description).__name__}", way_out="give IODescriptions")
        if not inputs or not outputs:
            raise OptionError("a model is described without inputs or outputs", way_out="describe at least one of each")
        self.inputs_, self.outputs_ = list(inputs), list(outputs)

    def as_dict(self) -> dict[str, Any]:
        """Return the description in the later trainer's form; the first output is the loss."""
        loss, *others = self.outputs_
        return {
            "inputs": [(description.name_, list(description.shape_)) for description in self.inputs_],
            "outputs": [
                (loss.name_, [], True),
                *((description.name_, list(description.shape_)) for description in others),
            ],
        }


def generate_sample(desc: IODescription, device: Any = None) -> torch.Tensor:
    """Return random data as described, dimensions that vary being 1: classes if their number is known, else normal.

    Raises:
        OptionError: whole numbers are described without the number of classes.
    """
    size = [dim if isinstance(dim, int) else 1 for dim in desc.shape_]
    if desc.num_classes_:
        return torch.randint(0, desc.num_classes_, size, dtype=desc.dtype_, device=device)
    if desc.dtype_ is not None and not desc.dtype_.is_floating_point:
        raise OptionError(
            f"{desc.name_!r} is described as {desc.dtype_} without num_classes",
            reason="no range of whole numbers to draw from follows from that",
            way_out="give the IODescription num_classes",
        )
    return torch.randn(size, dtype=desc.dtype_, device=device)


def fitted(model_desc: ModelDescription, batch: Mapping[str, Any]) -> ModelDescription:
    """Return the description corrected where the first batch disagrees with it, with a warning for each input.

    Shapes that disagree become those of the batch; dtypes were never more than a comment.

    Warns:
        UserWarning: says what was described and what the batch has.
    """
    inputs = [
        _fitted(description, batch[description.name_]) if description.name_ in batch else description
        for description in model_desc.inputs_
    ]
    return ModelDescription(inputs, model_desc.outputs_)


def _fitted(description: IODescription, value: Any) -> IODescription:
    tensor = tensor_of(value)
    shape = list(tensor.shape)
    fits = len(shape) == len(description.shape_) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(description.shape_, shape, strict=True)
    )
    if fits and description.dtype_ in (None, tensor.dtype):
        return description
    warnings.warn(
        f"input {description.name_!r} is described as {description.dtype_} {list(description.shape_)}, the first "
        f"batch has {tensor.dtype} {shape}: training goes on with the batch's; correct the IODescription",
        stacklevel=4,
    )
    return IODescription(
        description.name_, description.shape_ if fits else shape, tensor.dtype, description.num_classes_
    )
