"""What a part of a program is fed: copied to places in its working memory, or lent where the caller has it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ontrain.errors import InputError
from ontrain.internals import tensor_of, version_of
from ontrain.providers.base import Array
from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.buffers import Buf, Storage
from ontrain.providers.torch.code import Held, as_planned

__all__ = ["Intake", "Lent", "lent_storages"]


def lent_storages(places: Mapping[str, Buf]) -> list[Storage]:
    """Return what the caller lends, in the order in which `Intake.take` hands it over."""
    return [buf.storage for buf in places.values() if buf.storage.lent]


class Lent:
    """What backward reads where the caller has it.

    Args:
        name: of the input.
        tensor: as forward read it.
    """

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self._name, self._tensor = name, tensor
        self._version = version_of(tensor)

    def check(self) -> None:
        """Refuse what was written to since; eager PyTorch refuses it in the same place.

        Raises:
            InputError: the values that forward read are gone.
        """
        if version_of(self._tensor) != self._version:
            raise InputError(
                f"input {self._name!r} was changed in place between forward and backward",
                reason="backward reads its value at forward",
                way_out="change it after backward, or give the model a copy: .clone()",
            )


class Intake:
    """Takes the feeds of a run.

    Args:
        places: of all that is fed, by name.
        binder: gives those in the working memory their tensors.
    """

    def __init__(self, places: Mapping[str, Buf], binder: Binder) -> None:
        self._copied = binder.tensors({name: buf for name, buf in places.items() if not buf.storage.lent})
        self._lent = [(name, buf.meta) for name, buf in places.items() if buf.storage.lent]

    def take(self, feeds: Mapping[str, Array]) -> Held:
        """Copy what has a place, and return what is lent: row after row, or a copy that is."""
        for name, target in self._copied.items():
            value = feeds[name]
            if isinstance(value, torch.Tensor):
                target.copy_(value)
            elif isinstance(value, int | float):
                target.fill_(value)
            else:
                target.copy_(tensor_of(value))
        return [_lent(feeds[name], meta) for name, meta in self._lent]


def _lent(value: Array, meta: torch.Tensor) -> torch.Tensor:
    tensor = (value if isinstance(value, torch.Tensor) else tensor_of(value)).to(meta.dtype)
    if tensor.stride() == meta.stride() and not tensor.storage_offset() and not tensor.is_neg():
        return tensor
    return as_planned(tensor, meta.stride())
