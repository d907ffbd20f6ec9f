"""The model description: names and shapes of inputs and outputs, and which output is the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ontrain.errors import OptionError, nearest

__all__ = ["ModelDescription", "TensorDescription"]

Dims = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """Name and shape of an input or output; a dimension given as a string may vary from batch to batch."""

    name: str
    shape: Dims
    is_loss: bool = False

    def disagrees(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape has other dimensions than described, the varying ones left aside."""
        return len(shape) != len(self.shape) or any(
            isinstance(dim, int) and dim != size for dim, size in zip(self.shape, shape, strict=True)
        )

    def dynamic(self) -> dict[int, str]:
        """Return the dimensions that may vary: index to name."""
        return {i: d for i, d in enumerate(self.shape) if isinstance(d, str)}


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A checked model_desc.

    The dictionary is `{'inputs': [(name, shape), …], 'outputs': [(name, shape[, is_loss]), …]}` with exactly one
    output marked as loss, and dimensions that are positive ints or strings.
    """

    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]

    @classmethod
    def parse(cls, desc: Mapping[str, Any]) -> ModelDescription:
        """Check a dictionary.

        Raises:
            OptionError: an unknown or missing key, a malformed entry, a repeated name, or not exactly one loss.
        """
        if not isinstance(desc, Mapping):
            raise OptionError(f"invalid model_desc: {type(desc).__name__}", way_out="give a dictionary")
        for key in desc:
            if key not in ("inputs", "outputs"):
                raise OptionError(
                    f"invalid model_desc: unknown key {key!r}", way_out=nearest(str(key), ("inputs", "outputs"))
                )
        for key in ("inputs", "outputs"):
            if not isinstance(desc.get(key), list | tuple) or not desc[key]:
                raise OptionError(f"invalid model_desc: {key!r} must be a list with at least one entry")
        inputs = tuple(_entry(e, "inputs", loss_allowed=False) for e in desc["inputs"])
        outputs = tuple(_entry(e, "outputs", loss_allowed=True) for e in desc["outputs"])
        names = [d.name for d in (*inputs, *outputs)]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(f"invalid model_desc: the name {name!r} is given twice")
        losses = [d.name for d in outputs if d.is_loss]
        if len(losses) != 1:
            raise OptionError(
                f"invalid model_desc: {len(losses)} outputs are marked as loss ({', '.join(losses) or 'none'})",
                way_out="mark exactly one: ('loss', [], True)",
            )
        return cls(inputs, outputs)

    @property
    def loss(self) -> TensorDescription:
        """The output that is minimised."""
        return next(d for d in self.outputs if d.is_loss)


def _entry(entry: object, where: str, *, loss_allowed: bool) -> TensorDescription:
    form = "(name, shape)" if not loss_allowed else "(name, shape) or (name, shape, is_loss)"
    if not isinstance(entry, list | tuple) or len(entry) not in ((2, 3) if loss_allowed else (2,)):
        raise OptionError(f"invalid model_desc: {where} holds {entry!r}", way_out=f"write {form}")
    name, shape = entry[:2]
    is_loss = entry[2] if len(entry) == 3 else False
    if not isinstance(name, str) or not name:
        raise OptionError(f"invalid model_desc: {name!r} is no name", way_out=f"write {form}")
    if not isinstance(is_loss, bool):
        raise OptionError(f"invalid model_desc: is_loss of {name!r} is {is_loss!r}", way_out="write True or False")
    return TensorDescription(name, _shape(name, shape), is_loss)


def _shape(name: str, shape: object) -> Dims:
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise OptionError(f"invalid model_desc: the shape of {name!r} is {shape!r}", way_out="give a list")
    for dim in shape:
        good = isinstance(dim, str) and bool(dim) or isinstance(dim, int) and not isinstance(dim, bool) and dim > 0
        if not good:
            raise OptionError(
                f"invalid model_desc: {name!r} has the dimension {dim!r}",
                way_out="a dimension is a positive int, or a string if it may vary",
            )
    return tuple(shape)
