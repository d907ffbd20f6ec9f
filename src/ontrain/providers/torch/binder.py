"""Tensors for buffers: what a program's names mean over one block of working memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Generator

from ontrain.providers.torch.buffers import Buf, Storage
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.instructions import Body

__all__ = ["Binder", "own_generators"]


class Binder:
    """Gives every buffer its tensor, over one block of working memory; views cost nothing from then on.

    Args:
        memory: the block.
        places: memory for storages that have neither a place in the block nor a tensor of their own.
        generators: what is drawn from in the place of each of the program's generators, see `own_generators`.
    """

    def __init__(
        self, memory: torch.Tensor, places: Mapping[Storage, torch.Tensor] | None = None,
        generators: Mapping[torch.Generator, torch.Generator] | None = None,
    ) -> None:  # fmt: skip
        self._untyped, self._device = memory.untyped_storage(), memory.device
        self._generators = generators or {}
        self._made: dict[int, torch.Tensor] = {}
        self._places = places or {}

    def tensors(self, bufs: Mapping[str, Buf]) -> dict[str, torch.Tensor]:
        """Return the tensors of named buffers."""
        return {name: self._tensor(buf) for name, buf in bufs.items()}

    def _tensor(self, buf: Buf) -> torch.Tensor:
        if id(buf) not in self._made:
            root = buf.storage.root()
            owner = self._places.get(root, root.tensor)
            if owner is None:
                tensor = buf.materialise(self._untyped, root.place(), self._device)
            elif root in self._places:
                start = int(owner.storage_offset()) * owner.element_size()
                tensor = buf.materialise(owner.untyped_storage(), start, owner.device)
            else:
                tensor = buf.materialise(owner.untyped_storage(), max(0, root.offset), owner.device)
            self._made[id(buf)] = tensor
        return self._made[id(buf)]

    def resolve(self, tree: object) -> object:
        """Return a tree of arguments with tensors for buffers, and functions that make their calls for bodies."""
        if isinstance(tree, Buf):
            return self._tensor(tree)
        if isinstance(tree, Generator):
            return self._generators[tree]
        if isinstance(tree, Body):
            return functools.partial(codes([tree.program])[0].bind(self.resolve), [])
        if isinstance(tree, list | tuple):
            return type(tree)(self.resolve(item) for item in tree)
        return tree


def own_generators(generators: Sequence[torch.Generator]) -> dict[torch.Generator, torch.Generator]:
    """Return a generator for each of a program's: another thread would seed those between a run's seed and draws."""
    return {generator: torch.Generator(generator.device) for generator in generators}
