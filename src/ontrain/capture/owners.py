"""Results that are no new tensors: an input, a parameter or buffer of the module, or the same tensor once more.

def forward(self, x): return self.layer(x), x, self.codebook
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ontrain.capture.structure import Spec
from ontrain.internals import version_of

__all__ = ["Owner", "Owners", "owners_of"]


@dataclass(frozen=True)
class Owner:
    """Whose tensor a result has at a place.

    Attributes:
        kind: "input", "state" for parameters and buffers, or "output" for an earlier place of the result.
        name: of the parameter or buffer in the module, or the number of the input or output.
    """

    kind: str
    name: str


class Owners:
    """The tensors that are there before forward runs.

    Args:
        module: whose forward it is.
        inputs: of the call, in order.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        self._owners: dict[int, Owner] = {}
        state = (*module.named_parameters(), *module.named_buffers())
        self._tensors = [*inputs, *(tensor for _, tensor in state)]
        for index, tensor in enumerate(inputs):
            self._owners.setdefault(id(tensor), Owner("input", str(index)))
        for name, tensor in state:
            self._owners.setdefault(id(tensor), Owner("state", name))
        self._versions = {id(tensor): version_of(tensor) for tensor in self._tensors}

    def told(self, spec: Spec, leaves: Sequence[torch.Tensor]) -> Spec:
        """Return the structure of a result with the owners of its tensors.

        What forward writes to an input stays in the graph, so such a result is a tensor of its own. What it writes to a
        buffer is in the buffer after the call; but a gradient ends there.

        Args:
            spec: of the result.
            leaves: its tensors, in order.
        """
        owners: dict[int, Owner | None] = {}
        values: list[Owner | None] = []
        for index, leaf in enumerate(leaves):
            if id(leaf) not in owners:
                values.append(self._owner(leaf))
                owners[id(leaf)] = values[-1] or Owner("output", str(index))
            else:
                values.append(owners[id(leaf)])
        return _with_values(spec, iter(values))

    def _owner(self, leaf: torch.Tensor) -> Owner | None:
        owner = self._owners.get(id(leaf))
        written = owner is not None and self._versions[id(leaf)] != version_of(leaf)
        if owner is None or (written and (owner.kind == "input" or leaf.requires_grad)):
            return None
        return owner


def _with_values(spec: Spec, values: Iterator[Owner | None]) -> Spec:
    if spec.kind == "tensor":
        return dataclasses.replace(spec, value=next(values))
    if not spec.children:
        return spec
    return dataclasses.replace(spec, children=tuple(_with_values(child, values) for child in spec.children))


def owners_of(spec: Spec, first: Mapping[str, str]) -> list[Owner | None]:
    """Return the owner of each tensor in a result, None where it is a tensor of the call's own.

    Args:
        spec: of the result.
        first: for each name of a parameter or buffer that in the graph.
    """
    if spec.kind == "tensor":
        owner: Owner | None = spec.value
        named = owner is not None and owner.kind == "state"
        return [dataclasses.replace(owner, name=first[owner.name]) if owner is not None and named else owner]
    return [owner for child in spec.children for owner in owners_of(child, first)]
