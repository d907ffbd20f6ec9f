"""Notices when a module is no longer what was captured: another parameter, submodule or plain attribute."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from ontrain.errors import CaptureError

__all__ = ["Watch", "check_hooks"]

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()
_OWN = frozenset({"training"})  # part of the key of a capture, for it changes often
_TABLES = ("_parameters", "_buffers", "_modules")


class Watch:
    """A snapshot of a module's structure and plain attributes, cheap enough to be compared at every call.

    Noticed are: a parameter, buffer or submodule that was replaced, added or removed anywhere; a number, string, bool
    or None among the attributes of a submodule, or of its `config`, that was changed. Values of parameters are not
    looked at.
    """

    def __init__(self, module: nn.Module) -> None:
        self.modules = list(module.modules())
        self._tables: list[tuple[dict[str, Any], tuple[tuple[str, Any], ...]]] = []
        self._plain: list[tuple[dict[str, Any], tuple[tuple[str, Any], ...]]] = []
        seen: set[int] = set()
        for one in self.modules:
            for table in _TABLES:
                items = one.__dict__[table]
                self._tables.append((items, tuple(items.items())))
            self._plain.append((one.__dict__, _plain(one.__dict__)))
            config = one.__dict__.get("config")
            if hasattr(config, "__dict__") and id(config) not in seen:
                seen.add(id(config))
                self._plain.append((config.__dict__, _plain(config.__dict__)))

    def changed(self) -> bool:
        """Whether the module differs from the snapshot."""
        for table, items in self._tables:
            if len(table) != len(items):
                return True
            for name, value in items:
                if table.get(name) is not value:
                    return True
        for attributes, items in self._plain:
            for name, value in items:
                now = attributes.get(name, _MISSING)
                if now is not value and now != value:
                    return True
        return False

    def modes(self) -> tuple[bool, ...]:
        """Which submodules are in training mode."""
        return tuple([one.training for one in self.modules])


def _plain(attributes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((n, v) for n, v in attributes.items() if type(v) in _PLAIN and n not in _OWN)


def check_hooks(module: nn.Module) -> None:
    """Refuse hooks inside a module that a graph cannot call.

    Raises:
        CaptureError: a submodule has a backward hook.

    Warns:
        UserWarning: a submodule has a forward hook.
    """
    for name, one in module.named_modules():
        if one._backward_hooks or one._backward_pre_hooks:
            raise CaptureError(
                f"submodule {name!r} has a backward hook",
                reason="its backward is part of one graph and calls nothing in between",
                way_out="register the hook on its parameters or on the ORTModule, which both call it",
            )
        if one._forward_hooks or one._forward_pre_hooks:
            warnings.warn(
                f"the forward hooks of submodule {name!r} run while the module is captured and never again: what they "
                "do to tensors is part of the graph, what they record is of the capture",
                stacklevel=2,
            )
