"""What is kept of a module in one state: its captures, and the ways of writing a call that lead to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from torch import nn

from ontrain.training.ortmodule.entry import Entry, Site
from ontrain.training.ortmodule.watch import Watch

__all__ = ["BRANCHES", "CallCache"]

_SITES = 64
"""Ways of writing a call that are kept; the least recently used goes first."""
BRANCHES = 32
"""Captures kept of one structure, for sizes that forward branches on or loops over; the oldest goes first."""


class CallCache:
    """Captures of a module, which hold for as long as its attributes have the values that they had.

    Args:
        module: whose calls these are.

    Attributes:
        watch: says whether the module is still in that state.
    """

    def __init__(self, module: nn.Module) -> None:
        self.watch = Watch(module)
        self._sites: OrderedDict[Hashable, list[Site]] = OrderedDict()
        self._entries: dict[Hashable, list[Entry]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no structure of arguments came up."""
        return not self._entries

    @property
    def entries(self) -> list[Entry]:
        """All captures."""
        return [entry for entries in self._entries.values() for entry in entries]

    def sites(self, key: Hashable) -> list[Site]:
        """Return what calls of this key have led to; what held last is last."""
        sites = self._sites.get(key, [])
        if sites:
            self._sites.move_to_end(key)
        return sites

    def alike(self, structure: Hashable) -> list[Entry]:
        """Return the captures of a structure, for captures of it to be appended."""
        return self._entries.setdefault(structure, [])

    def add(self, key: Hashable, site: Site) -> None:
        """Let calls of this key lead to a capture."""
        sites = self._sites.setdefault(key, [])
        sites.append(site)
        del sites[:-BRANCHES]
        if len(self._sites) > _SITES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._sites.popitem(last=False)
        alive = {id(site.entry) for sites in self._sites.values() for site in sites}
        living = {key: [e for e in entries if id(e) in alive] for key, entries in self._entries.items()}
        self._entries = {key: entries for key, entries in living.items() if entries}
