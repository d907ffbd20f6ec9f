"""What things are called in a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["CLONED", "COMPLEX", "FIXED", "REQUIRES_GRAD", "Names", "State"]

REQUIRES_GRAD = "ontrain.requires_grad"
"""Metadata key of a parameter input that is frozen; its value is then "0"."""
CLONED = "ontrain.cloned"
"""Metadata key of a buffer that forward copies before it reads it, so that it may be written to before backward."""
COMPLEX = "ontrain.complex"
"""Metadata key of a graph's input or output that holds a complex tensor as `torch.view_as_real` shows it."""

FIXED = "ontrain.fixed"
"""Metadata key of an input: the dimensions that were to vary and that forward fixes, as in "0:batch,1:length"."""


@dataclass(frozen=True)
class Names:
    """What the caller wants things to be called, and the module's own names for its state.

    Attributes:
        inputs: a name for each tensor input, in order.
        outputs: names of the first tensor outputs.
        dynamic: for each tensor input its varying dimensions, {axis: name}.
        prefix: what the program puts before the module's own names.
        own_prefix: what the module itself puts before the names that the user knows.
        first: the first name of each parameter and buffer, by any of its names.
        order: all first names, in the module's order.
        frozen: parameters that want no gradient.
        sized_by_values: whether sizes may depend on the values of tensors, as that of `x[mask]` does.
        complex_pairs: whether the caller feeds, reads and trains complex tensors as pairs of real numbers.
        varies: says which tensors outside of the module are parameters of the graph; it holds the values of the others.
        writes_parameters: whether forward may write to parameters. Frozen ones are then buffers of the graph.
        writes: whether the tensors in what forward writes to Python objects are outputs.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    dynamic: Sequence[Mapping[int, str]]
    prefix: str
    own_prefix: str
    first: Mapping[str, str]
    order: Sequence[str]
    frozen: frozenset[str]
    sized_by_values: bool = False
    complex_pairs: bool = False
    varies: Callable[[torch.Tensor], bool] = lambda _: False
    writes_parameters: bool = False
    writes: bool = False


class State:
    """A module's parameters and buffers by the names they have in the graph, and that name by any of the module's.

    Args:
        module: as the caller has it.
        prefix: left out of the names that begin with it.

    Attributes:
        kind: the class of the user's own module.
        first: the first name of each parameter and buffer, by any of its names.
        parameters, buffers: by their first names.
    """

    def __init__(self, module: nn.Module, prefix: str) -> None:
        self.kind = type(module.get_submodule(prefix.removesuffix("."))).__name__
        parameters = list(module.named_parameters(remove_duplicate=False))
        buffers = list(module.named_buffers(remove_duplicate=False))
        taken: dict[int, str] = {}
        self.first: dict[str, str] = {}
        for name, tensor in (*parameters, *buffers):
            self.first[name] = taken.setdefault(id(tensor), name.removeprefix(prefix))
        self.parameters: dict[str, nn.Parameter] = {self.first[name]: parameter for name, parameter in parameters}
        self.buffers: dict[str, torch.Tensor] = {self.first[name]: buffer for name, buffer in buffers}
