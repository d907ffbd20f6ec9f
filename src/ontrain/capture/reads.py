"""Which attributes of its modules a forward reads while it is traced: its graph depends on no others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ontrain.capture.source import is_machinery
from ontrain.internals import replaced

__all__ = ["Reads"]

_WHOLE = frozenset({"__copy__", "__deepcopy__", "__dict__", "__getstate__", "__reduce__", "__reduce_ex__"})
"""What leads to all attributes of an object."""
_GET = "__getattribute__"


class Reads:
    """The names of the attributes that code looks up, whether they are there or not.

    Args:
        module: of this module and its submodules.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._names: dict[int, set[str]] = {id(part): set() for part in self._modules}
        self._whole: set[int] = set()
        self._kinds: list[type] = []

    def by_attributes(self) -> dict[int, frozenset[str]]:
        """Return the names by the place in memory of the dictionary that has a module's attributes.

        There is none of a module whose attributes were looked at by other ways.
        """
        parts = [part for part in self._modules if id(part) not in self._whole]
        return {id(vars(part)): frozenset(self._names[id(part)]) for part in parts}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is read from now on: the modules' classes have another `__getattribute__` meanwhile."""
        noting = self._noting()
        kinds = [kind for kind in dict.fromkeys(map(type, self._modules)) if _reads_plainly(kind)]
        self._whole.update(id(part) for part in self._modules if type(part) not in kinds)
        for kind in kinds:
            setattr(kind, _GET, noting)
            self._kinds.append(kind)
        try:
            with replaced({"torch.compile": self._unseen(torch.compile)}):
                yield
        finally:
            self._leave()

    def _leave(self) -> None:
        """Give the classes what they had: all have Python's own."""
        while self._kinds:
            delattr(self._kinds.pop(), _GET)

    def _unseen(self, compile: Callable[..., Any]) -> Callable[..., Any]:
        """TorchDynamo reads attributes by ways of its own, and takes no class that has another way."""

        def compile_unseen(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            self._whole.update(self._names)
            return compile(*args, **kwargs)

        return compile_unseen

    def _noting(self) -> Callable[[Any, str], Any]:
        get = object.__getattribute__

        def __getattribute__(part: Any, name: str) -> Any:  # noqa: N807 - stands in its place
            names = self._names.get(id(part))
            if names is not None:
                names.add(name)
                if name in _WHOLE and not is_machinery(sys._getframe(1).f_code.co_filename):
                    self._whole.add(id(part))
            return get(part, name)

        return __getattribute__


def _reads_plainly(kind: type) -> bool:
    """Whether a class has no way of its own to read attributes."""
    return bool(getattr(kind, _GET) is object.__getattribute__)
