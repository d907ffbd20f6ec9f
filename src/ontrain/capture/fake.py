"""Stand-ins without values for a module's inputs and state, and what makes forward run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn

from ontrain.internals import FakeTensorMode, replaced

__all__ = ["exporting", "stand_ins"]


def stand_ins(
    mode: FakeTensorMode, module: nn.Module, shapes: Sequence[Sequence[int]], like: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return tensors without values for a module's inputs, and for its parameters and buffers by name.

    Args:
        mode: whose tensors they are.
        module: left as it is.
        shapes: of the inputs.
        like: the inputs' dtypes, devices, and whether they want gradients.
    """
    with mode:
        inputs = [
            torch.empty(tuple(shape), dtype=tensor.dtype, device=tensor.device).requires_grad_(tensor.requires_grad)
            for shape, tensor in zip(shapes, like, strict=True)
        ]
        state = {
            name: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            .requires_grad_(tensor.requires_grad)
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
        }  # fmt: skip
    return inputs, state


@contextmanager
def exporting(refuse: Callable[..., NoReturn]) -> Iterator[None]:
    """Say what torch.export says to a forward that asks whether it is exported, and compile nothing.

    Args:
        refuse: raises in place of torch.compile, which torch.cond and its like call. Below a dispatch mode dynamo
            would skip their code, and would go on to skip it in this process, so that eager's torch.cond failed.
    """
    flags: dict[str, Any] = dict.fromkeys(
        ("torch.compiler._is_compiling_flag", "torch.compiler._is_exporting_flag"), True
    )
    with replaced({**flags, "torch.compile": refuse}):
        yield
