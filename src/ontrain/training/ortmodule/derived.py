"""Attributes that hooks of torch's own set before each forward, to what follows from parameters and buffers.

    prune.l1_unstructured(layer, "weight", 0.2)  # layer.weight = layer.weight_orig * layer.weight_mask

The products are part of the graph, which sets no attribute. But whoever prunes a second time ranks the weights by what
the last forward has left in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from ontrain.capture import Captured
from ontrain.internals import of

__all__ = ["deriving_hooks", "is_deriving", "set_derived"]


def is_deriving(hook: object) -> bool:
    """Whether a hook sets an attribute to what follows from parameters and buffers, and does nothing else."""
    return isinstance(hook, BasePruningMethod | WeightNorm)


def deriving_hooks(module: nn.Module) -> list[Any]:
    """Return those hooks of a module, its submodules left out."""
    return [hook for hook in of("torch.nn.Module._forward_pre_hooks", module).values() if is_deriving(hook)]


def set_derived(captured: Captured) -> list[Callable[[], None]]:
    """Return what sets such attributes of a captured module anew."""
    owners = [write.table.owner for write in captured.writes]
    modules = {id(owner): owner for owner in owners if isinstance(owner, nn.Module)}
    return [functools.partial(hook, part, ()) for part in modules.values() for hook in deriving_hooks(part)]
