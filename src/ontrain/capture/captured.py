"""`Captured`: a module as a graph, and what a caller of the graph has to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from ontrain.capture.attached import AttachedBuffer
from ontrain.capture.chances import Course
from ontrain.capture.counts import Count
from ontrain.capture.decisions import Decisions
from ontrain.capture.guards import Guards
from ontrain.capture.hooks import InstalledHook
from ontrain.capture.inspection import Inspected
from ontrain.capture.masks import DrawnMask
from ontrain.capture.names import COMPLEX
from ontrain.capture.structure import CallSpec, Spec, unflatten
from ontrain.capture.writes import Write

__all__ = ["Captured"]


@dataclass
class Captured:
    """A module as a graph.

    Attributes:
        model: inputs are the user's, then parameters, then buffers; outputs are the user's, then the buffers' next
            values. A frozen parameter has the metadata "ontrain.requires_grad" = "0".
        input_names: names of the tensor inputs, in order.
        call: the arguments of the captured call; its `flatten` takes the tensors out of a later call.
        output_spec: the structure of the module's result.
        parameters: the module's own parameters that the graph uses, by their first name in the module.
        buffers: the same for buffers, including those that `state_dict` leaves out, and for frozen parameters that
            forward writes to.
        names: the graph's name of a parameter or buffer, by any of its names in the module.
        unused: parameters that the result does not depend on.
        training: whether the module was in training mode.
        guards: what forward assumed of sizes.
        specialised: a message for each dimension asked to vary that the model fixes.
        constants: tensors of the module, neither parameters nor buffers, whose values the graph holds.
        varying: such tensors that are parameters of the graph.
        inspected: values inside the module that somebody wants to see; they are further outputs of the model.
        decisions: conditions on values under which the graph is the module's forward.
        counts: numbers among the module's attributes that forward changes; the graph has those from before.
        attached: the buffers that forward leaves with a gradient.
        writes: what forward writes to Python objects, for the next call or for whoever reads them.
        course: random numbers that forward branches on, and the branches of the graph.
        masks: those that forward draws by numpy, in order; they are further inputs of the model, and whoever runs it
            draws them.
        rewritten: the numbers of the inputs that forward writes to.
        hooks: those that forward registers on parts of the module; they were taken back.
        followed: the numbers of the inputs that forward requires a gradient of.
        changed_arguments: those whose dictionaries and lists forward changes.
        returns_writes: whether the tensors in what it writes, and these inputs, are outputs of the graph.
        reads: the names of the attributes that forward looks up, by the place in memory of the dictionary that has a
            submodule's attributes. Nothing is known of a submodule that is not there.
        seconds: what each phase took.
    """

    model: ir.Model
    input_names: list[str]
    call: CallSpec
    output_spec: Spec
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, torch.Tensor]
    names: dict[str, str]
    unused: list[str]
    training: bool
    guards: Guards
    specialised: list[str] = field(default_factory=list)
    constants: list[torch.Tensor] = field(default_factory=list)
    varying: dict[str, torch.Tensor] = field(default_factory=dict)
    inspected: Inspected = field(default_factory=Inspected)
    decisions: Decisions = field(default_factory=Decisions)
    counts: Sequence[Count] = ()
    attached: Sequence[AttachedBuffer] = ()
    writes: Sequence[Write] = ()
    course: Course = field(default_factory=Course)
    masks: Sequence[DrawnMask] = ()
    rewritten: Sequence[int] = ()
    returns_writes: bool = False
    reads: Mapping[int, frozenset[str]] = field(default_factory=dict)
    hooks: Sequence[InstalledHook] = ()
    followed: Sequence[int] = ()
    changed_arguments: Sequence[str] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of tied parameters and buffers, to the one that the graph has."""
        first: set[str] = set()
        registered = {}
        for name, own in self.names.items():
            if own in first:
                registered[name] = own
            first.add(own)
        return registered

    @property
    def output_names(self) -> list[str]:
        """Names of the tensors in the module's result, in order."""
        return [str(value.name) for value in self.model.graph.outputs[: self.output_spec.tensors()]]

    @property
    def written(self) -> list[tuple[Write, list[str]]]:
        """What forward writes to Python objects, and the names of the outputs that the values consist of."""
        if not self.returns_writes:
            return []
        names = iter([str(value.name) for value in self.model.graph.outputs[self.output_spec.tensors() :]])
        return [(write, [next(names) for _ in range(write.outputs)]) for write in self.writes]

    @property
    def new_inputs(self) -> dict[int, str]:
        """The outputs that are new values of inputs, by the inputs' numbers."""
        if not self.returns_writes:
            return {}
        start = self.output_spec.tensors() + sum(write.outputs for write in self.writes)
        outputs = self.model.graph.outputs[start : start + len(self.rewritten)]
        return {number: str(value.name) for number, value in zip(self.rewritten, outputs, strict=True)}

    @property
    def complex_outputs(self) -> list[str]:
        """Those of `output_names` that are complex: in the graph they are pairs of real numbers."""
        count = self.output_spec.tensors()
        return [str(value.name) for value in self.model.graph.outputs[:count] if COMPLEX in value.metadata_props]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of `input_names`.

        Raises:
            InputError: the call differs from the captured one in more than its tensors.
        """
        return self.call.flatten(args, kwargs)

    def sizes(self, shapes: Sequence[torch.Size]) -> dict[str, int]:
        """Return the sizes that the graph's symbols stand for, where its inputs have these shapes."""
        return self.guards.sizes(dict(zip(self.input_names, shapes, strict=True)))

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Return the module's result with these values for its tensors, in the order of `output_names`."""
        return unflatten(self.output_spec, outputs)
