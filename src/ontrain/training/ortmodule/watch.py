"""Notices when a module is no longer what was captured: another parameter, submodule or plain attribute."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ontrain.errors import CaptureError

__all__ = ["Watch", "check_hooks"]

_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()
_UNSEEN = object()
_OWN = frozenset(nn.Module().__dict__)  # "training" is part of the key of a capture, for it changes often
_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
           "_backward_pre_hooks")  # fmt: skip


class Watch:
    """A snapshot of a module's structure and plain attributes, cheap enough to be compared at every call.

    Noticed are: a parameter, buffer, submodule or hook that was replaced, added or removed anywhere; a number, string,
    bool or None among the attributes of a submodule, or of its `config`, that was changed, also within lists, tuples
    and dicts; a `forward` put in the place of a submodule's own; a tensor attribute that is a constant of a graph, if
    it was replaced or written to. Values of parameters are not looked at.

    Args:
        module: what was captured.
        constants: tensors that captures hold as they were.
    """

    def __init__(self, module: nn.Module, constants: Iterable[torch.Tensor] = ()) -> None:
        self.modules = list(module.modules())
        self._constants = frozenset(one.data_ptr() for one in constants)
        self._tables: list[tuple[dict[str, Any], tuple[tuple[str, Any], ...]]] = []
        self._plain: list[tuple[dict[str, Any], tuple[tuple[str, Any], ...]]] = []
        seen: set[int] = set()
        for one in self.modules:
            for table in _TABLES:
                items = one.__dict__[table]
                self._tables.append((items, tuple(items.items())))
            self._plain.append((one.__dict__, self._attributes({"forward": _MISSING, **one.__dict__})))
            config = one.__dict__.get("config")
            if hasattr(config, "__dict__") and id(config) not in seen:
                seen.add(id(config))
                self._plain.append((config.__dict__, self._attributes(config.__dict__)))

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
                if now is not value and self._seen(now, name) != value:
                    return True
        return False

    def modes(self) -> tuple[bool, ...]:
        """Which submodules are in training mode."""
        return tuple([one.training for one in self.modules])

    def _attributes(self, attributes: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        found = ((name, self._seen(value, name)) for name, value in attributes.items() if name not in _OWN)
        return tuple((name, value) for name, value in found if value is not _UNSEEN)

    def _seen(self, value: Any, name: str) -> Any:
        """What of an attribute is compared: something immutable, or _UNSEEN if the attribute is not watched."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, list | tuple):
            return tuple([self._seen(one, "") for one in value])
        if isinstance(value, dict):
            return tuple([(key, self._seen(one, "")) for key, one in value.items()])
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            watched = not value.is_inference() and value.data_ptr() in self._constants
            return (value.data_ptr(), value._version) if watched else _UNSEEN
        if name == "forward":
            return value if value is _MISSING else id(value)
        return _UNSEEN


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
