"""Attributes that hooks of torch's own set before each forward, to what follows from parameters and buffers.

    prune.l1_unstructured(layer, "weight", 0.2)  # layer.weight = layer.weight_orig * layer.weight_mask

The products are part of the graph, which sets no attribute. But whoever prunes a second time ranks the weights by what
the last forward has left in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from ontrain.capture import Captured, Kept
from ontrain.internals import of

__all__ = ["deriving_hooks", "is_deriving", "left_attributes", "set_derived"]


def is_deriving(hook: object) -> bool:
    """Whether a hook sets an attribute to what follows from parameters and buffers, and does nothing else."""
    return isinstance(hook, BasePruningMethod | WeightNorm)


def deriving_hooks(module: nn.Module) -> list[Any]:
    """Return those hooks of a module, its submodules left out."""
    return [hook for hook in of("torch.nn.Module._forward_pre_hooks", module).values() if is_deriving(hook)]


def left_attributes(captured: Captured, carried: Collection[Kept]) -> list[tuple[Kept, list[str]]]:
    """Return the attributes that a call sets, and the outputs of its graph that their values consist of.

    Args:
        captured: the module.
        carried: attributes that the next call reads.
    """
    left = captured.attributes
    return [(place, names) for place, names in left if place not in carried and not deriving_hooks(place.module)]


def set_derived(captured: Captured) -> list[Callable[[], None]]:
    """Return what sets such attributes of a captured module anew."""
    modules = {id(attribute.module): attribute.module for attribute in captured.retained}
    return [functools.partial(hook, part, ()) for part in modules.values() for hook in deriving_hooks(part)]
