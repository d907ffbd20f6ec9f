"""What a training session keeps from step to step, in the order in which it lies in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.graph import Slot, StateKind
from ontrain.providers import StateSpec
from ontrain.session.description import TrainingTask

__all__ = ["StateLayout", "state_layout"]


@dataclass
class StateLayout:
    """Resident tensors in an order that lets parameters, gradients and moments of a group lie side by side.

    Attributes:
        specs: of all resident tensors.
        accumulators: names of those that an update leaves at zero.
    """

    specs: list[StateSpec] = field(default_factory=list)
    accumulators: list[str] = field(default_factory=list)


def state_layout(
    task: TrainingTask, initial: Mapping[str, torch.Tensor], *, reduced: bool = False, keeps_moments: bool = True
) -> StateLayout:
    """Return what a session keeps for a task.

    Args:
        task: what is trained.
        initial: parameters and buffers by name.
        reduced: whether gradients are reduced over processes before an update, which then stands by itself.
        keeps_moments: whether the moments of all parameters are among what is kept.
    """
    layout, trainable = StateLayout(), set(task.trainable)
    groups: dict[tuple[tuple[str, int | float], ...], int] = {}
    accumulates = task.accumulation_steps > 1 or reduced
    # An update on its own finds its gradients in the accumulators; else there is a place for them beside.
    sums = StateKind.GRADIENT if reduced else StateKind.GRADIENT_SUM
    for name, tensor in initial.items():
        shape, dtype = tuple(tensor.shape), from_torch_dtype(tensor.dtype)
        if name not in trainable:
            layout.specs.append(StateSpec(name, shape, dtype, StateKind.FIXED))
            continue
        attributes = tuple(sorted(task.optimizer.attributes_for(name).items()))
        group = groups.setdefault(attributes, len(groups))
        layout.specs.append(StateSpec(name, shape, dtype, StateKind.PARAMETER, group))
        moment_dtype = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        if keeps_moments:
            for slot in task.optimizer.slots(name):
                layout.specs.append(StateSpec(slot.name, shape, moment_dtype, slot.kind, group))
        if accumulates:
            layout.accumulators.append(Slot(name, StateKind.GRADIENT_SUM).name)
            layout.specs.append(StateSpec(layout.accumulators[-1], shape, moment_dtype, sums, group))
    if accumulates:
        count = Slot("", StateKind.LABEL_COUNT)
        layout.accumulators.append(count.name)
        layout.specs.append(StateSpec(count.name, (), ir.DataType.FLOAT, count.kind))
    return layout
