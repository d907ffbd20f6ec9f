"""The tensor inputs of a capture: their names, the dimensions that vary, and samples of them for the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ontrain.capture.structure import CallSpec, leaf_paths
from ontrain.errors import OptionError

__all__ = ["enlarged", "name_inputs", "varying_dimensions"]


def name_inputs(spec: CallSpec, wanted: Sequence[str] | None, taken: Mapping[str, str]) -> list[str]:
    """Return a name for each tensor input.

    Args:
        spec: the arguments of the call.
        wanted: the caller's names; None for those of forward's parameters.
        taken: names of parameters and buffers.

    Raises:
        OptionError: there are more or fewer, or two things would have one name.
    """
    own = [path for name, spec_of in spec.arguments for path in leaf_paths(spec_of, name)]
    if wanted is not None and len(wanted) != len(own):
        raise OptionError(
            f"{len(wanted)} input names for {len(own)} tensor inputs ({', '.join(own)})", way_out="name each of them"
        )
    names = list(wanted if wanted is not None else (f"{name}.input" if name in taken else name for name in own))
    if len({*names, *taken.values()}) != len(names) + len(set(taken.values())):
        raise OptionError(
            f"the input names {names} are not unique, or one is that of a parameter", way_out="rename the input"
        )
    return names


def varying_dimensions(
    dynamic: Sequence[Mapping[int, str]] | None, tensors: Sequence[torch.Tensor]
) -> list[dict[int, str]]:
    """Return for each tensor the dimensions that may vary, {axis: name}.

    Raises:
        OptionError: `dynamic` describes other tensors.
    """
    if dynamic is None:
        return [{} for _ in tensors]
    if len(dynamic) != len(tensors):
        raise OptionError(
            f"dynamic describes {len(dynamic)} inputs, the call has {len(tensors)} tensors",
            way_out="give {} for an input that does not vary",
        )
    axes = [dict(wish or {}) for wish in dynamic]
    for i, (wish, tensor) in enumerate(zip(axes, tensors, strict=True)):
        for axis in wish:
            if not 0 <= axis < tensor.ndim:
                raise OptionError(f"dynamic names dimension {axis} of input {i}, which has {tensor.ndim} dimensions")
    return axes


def enlarged(tensors: Sequence[torch.Tensor], dynamic: Sequence[Mapping[int, str]]) -> list[torch.Tensor]:
    """Return samples whose varying dimensions are two at least: torch takes 0 and 1 for constants."""
    named = [(name, t.shape[axis]) for t, dims in zip(tensors, dynamic, strict=True) for axis, name in dims.items()]
    small = {name for name, size in named if size < 2}
    grown = []
    for tensor, dims in zip(tensors, dynamic, strict=True):
        # A tensor made in inference mode can be in no trace that records gradients; its copy can.
        sample = tensor.clone() if tensor.is_inference() else tensor.detach()
        for axis, name in dims.items():
            if name in small:
                shape = [*sample.shape]
                shape[axis] = 2
                first = sample.narrow(axis, 0, 1) if sample.shape[axis] else sample.new_zeros(1)
                sample = first.expand(shape).contiguous()
        grown.append(sample.requires_grad_(tensor.requires_grad))
    return grown
