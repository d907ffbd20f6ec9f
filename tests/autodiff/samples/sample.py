"""One case of an operator: its inputs, its attributes, and the same computation in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], np.ndarray]


def normal(*shape: int) -> Draw:
    """Standard normal float64."""
    return lambda rng: rng.standard_normal(shape)


def uniform(low: float, high: float, *shape: int) -> Draw:
    """Uniform float64 in [low, high)."""
    return lambda rng: rng.uniform(low, high, shape)


def spread(*shape: int) -> Draw:
    """Distinct values far from each other, from zero and from the whole numbers, in random order: safe beside kinks."""
    size = int(np.prod(shape))
    values = (np.arange(size) - size // 2) * 0.37 + 0.16
    return lambda rng: rng.permutation(values).reshape(shape)


@dataclass(frozen=True)
class Sample:
    """Inputs are draws, arrays, lists (int64) or None; float ones are differentiated by, the rest are constants.

    Attributes:
        twin: the computation on torch tensors, given all inputs in order; returns the seeded outputs.
        fixed: positions of float inputs that are constants.
        single: positions of float inputs that are in single precision whatever the others are in.
        fed: positions of integer inputs that are graph inputs.
        outputs: number of outputs of the node.
        seeded: the outputs that take an adjoint.
        second: whether to check second derivatives.
        symmetric: the operator is one of symmetric matrices, and its gradient holds along symmetric directions.
        dtype: of the float inputs.
    """

    op_type: str
    inputs: Sequence[Any]
    twin: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    fixed: Sequence[int] = ()
    single: Sequence[int] = ()
    fed: Sequence[int] = ()
    outputs: int = 1
    seeded: Sequence[int] = (0,)
    second: bool = True
    domain: str = ""
    symmetric: bool = False
    dtype: str = "float64"

    def direction(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        """Return a random direction for a derivative by an input of this shape."""
        drawn = rng.standard_normal(tuple(shape))
        return (drawn + drawn.swapaxes(-1, -2)) / 2 if self.symmetric and len(shape) > 1 else drawn

    def draw(self, rng: np.random.Generator) -> list[np.ndarray | None]:
        """Return the input arrays."""
        drawn: list[np.ndarray | None] = []
        for i, operand in enumerate(self.inputs):
            array = operand(rng) if callable(operand) else None if operand is None else np.asarray(operand)
            dtype = "float32" if i in self.single else self.dtype
            drawn.append(array.astype(dtype) if array is not None and array.dtype.kind == "f" else array)
        return drawn


def sample(op_type: str, *inputs: Any, twin: Callable[..., Any], **options: Any) -> Sample:
    """Return a sample; options that are no field of `Sample` are attributes of the operator."""
    fields = {k: options.pop(k) for k in list(options) if k in Sample.__dataclass_fields__}
    return Sample(op_type, inputs, twin, attributes=options, **fields)
