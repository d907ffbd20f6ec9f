"""A call of a module, as long as the capture that answers it is looked for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from ontrain.training.ortmodule.entry import Entry, Site
from ontrain.training.ortmodule.paths import OtherPathError, PathDraws
from ontrain.training.ortmodule.running import leads

__all__ = ["Request"]


@dataclass
class Request:
    """A call and what was tried for it.

    Attributes:
        args, kwargs: as the caller has written them.
        tensors: those among them, in order.
        shapes: theirs.
        key: what of the call, of the module and around both a capture depends on.
        tried: captures that do not hold for the call, and why.
        draws: what forward draws from Python's and numpy's generators.
    """

    args: tuple[object, ...]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]
    shapes: tuple[torch.Size, ...]
    key: tuple[Hashable, ...]
    tried: dict[Entry, OtherPathError] = field(default_factory=dict)
    draws: PathDraws = field(default_factory=PathDraws)

    def fits(self, site: Site) -> bool:
        """Whether a capture takes the call's shapes, and was not tried."""
        return site.entry not in self.tried and site.accepts(self.shapes)

    def leads_to(self, site: Site) -> bool:
        """Whether forward would take the path of a capture as far as it branches on what it draws."""
        return leads(site, self.tensors, self.draws)

    def refuse(self, site: Site, error: OtherPathError) -> None:
        """Pass a capture by from now on: the values of the call lead to another path."""
        self.tried[site.entry] = error
        self.draws.undo()
