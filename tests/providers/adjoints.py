"""What several ways to differentiate a convolution have in common: adjoints of images, filters and bias, as asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

MASKS = ([True, True, True], [False, True, False], [True, False, False])
"""Which of the three are asked for."""


def compare(
    differentiate: Callable[[list[bool]], Sequence[torch.Tensor | None]], adjoints: Sequence[torch.Tensor], *,
    rtol: float, atol: float,
) -> None:  # fmt: skip
    """Check that each mask gives what it asks for, equal to the adjoints, and nothing else."""
    for mask in MASKS:
        for asked, result, adjoint in zip(mask, differentiate(mask), adjoints, strict=True):
            assert (result is not None) == asked
            if result is not None:
                torch.testing.assert_close(result.to(adjoint.dtype), adjoint, rtol=rtol, atol=atol)
