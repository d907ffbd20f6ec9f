"""A captured module as an ORTModule keeps it, and the ways of writing a call that lead to it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import torch

from ontrain.autodiff import following_outputs
from ontrain.capture import CLONED, Captured
from ontrain.graph import is_sized_by_values, updates_of
from ontrain.passes import Recomputation
from ontrain.providers import get_provider
from ontrain.session import ModuleSession, StagedSession
from ontrain.training.environment import is_on
from ontrain.training.half import warn_of_slow_bfloat16
from ontrain.training.ortmodule.counting import Following
from ontrain.training.ortmodule.debug import DebugOptions
from ontrain.training.ortmodule.deferred import Deferred, State
from ontrain.training.ortmodule.derived import set_derived
from ontrain.training.ortmodule.function import Call, Mode, Session, without_autocast
from ontrain.training.ortmodule.gradients import Differentiated
from ontrain.training.ortmodule.repeating import Repetition
from ontrain.training.ortmodule.results import Results
from ontrain.training.ortmodule.trace import Axes

__all__ = ["Entry", "Site", "as_real"]

_SHAPES = 4096
"""Combinations of shapes that a site remembers to be good."""


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a graph takes it: a complex one as its two parts, in the same memory, followed by autograd."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


class Entry:
    """A captured module, its session, and the user's tensors behind the graph's inputs.

    Where a module in training mode returns a scalar, its loss, the other outputs are computed for those who look at
    them: from the call on that follows the first look, by the plan.

    Args:
        lazy: whether outputs may be left out of plans at all.
        recomputation: activations that backward computes again instead of finding them in memory.
        repeated: what forward writes to Python objects.
        under_no_grad: whether the module was traced without gradients but those of parts of forward.
        next_axes: those that the next graph for such calls leaves open, if they come in other sizes.

    Attributes:
        results: makes the module's results of the graph's outputs.
        places: the graph names of the module's tensors, and then of a call's.
        differentiated: the captured graph, and the graphs of its gradients.
        new_inputs: the outputs that are new values of inputs, by the inputs' numbers.
        derived: set the attributes anew that torch's own hooks compute before each forward.
        carried: buffers through which gradients flow from call to call in eager PyTorch, by their names in the graph.
    """

    def __init__(
        self, captured: Captured, provider: str, device: torch.device, debug: DebugOptions, *, lazy: bool,
        recomputation: Recomputation | None = None, followed: Sequence[Following] = (),
        repeated: Sequence[Repetition] = (), next_axes: Axes = Axes.ALL,
        under_no_grad: bool = False,
    ) -> None:  # fmt: skip
        self.captured, self.followed, self.repeated, self.next_axes = captured, followed, repeated, next_axes
        self.derived, self._under_no_grad = set_derived(captured), under_no_grad
        self.results = Results(captured, repeated)
        self.outputs, self.new_inputs = self.results.names, captured.new_inputs
        self.inspected, self.decisions = captured.inspected, captured.decisions
        state: dict[str, torch.Tensor] = {**captured.parameters, **captured.varying, **captured.buffers}
        self.names, self._own = [*state], [*state.values()]
        self.parameters = [(n, t) for n, t in state.items() if n not in captured.buffers or t.requires_grad]
        self._complex = any(t.is_complex() for t in self._own)
        self.pointers = [t.data_ptr() for t in self._own]
        named = self._named()
        make = _maker(captured, provider, device, debug, recomputation)
        self.session = make(captured.model, named)
        self.differentiated = Differentiated(captured.model, self.session, lambda model: make(model, self._named()))
        self.places = (*self.names, *self.session.inputs)
        updated = {updates_of(v) for v in captured.model.graph.outputs}
        self.buffers = {name: t for name, t in named.items() if name in updated}
        self.read_buffers = self.session.read_buffers()
        self.cloned = frozenset(str(v.name) for v in captured.model.graph.inputs if CLONED in v.metadata_props)
        self.carried = self._carried()
        self._modes: dict[tuple[bool, ...], Mode] = {}
        # An optimizer's step on a complex parameter is not seen by what copies parameters before it.
        self._lazy = lazy and captured.training and not self._complex
        self._read, self._paths = self.results.never_lazy(), self.results.paths()
        self._state = State(named, list(self.buffers), functools.partial(make, captured.model))

    def _carried(self) -> dict[str, torch.Tensor]:
        """The buffers that forward leaves with a gradient, and whose old values its results follow by derivatives."""
        attached = {id(place.buffer) for place in self.captured.attached}
        buffers = [(name, buffer) for name, buffer in self.captured.buffers.items() if id(buffer) in attached]
        return {name: buffer for name, buffer in buffers if self.session.differentiable((name,))}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The module's tensors as the graph has them, in the order of `names`."""
        return [as_real(t) for t in self._own] if self._complex else self._own

    def _named(self) -> dict[str, torch.Tensor]:
        return dict(zip(self.names, map(as_real, self._own), strict=True))

    def moved(self) -> bool:
        """Follow tensors whose memory was replaced; True if one changed its layout, so that nothing here fits."""
        pointers = [t.data_ptr() for t in self._own]
        if pointers != self.pointers:
            before, self.pointers = self.pointers, pointers
            self.differentiated.forget()
            for name, tensor, pointer, was in zip(self.names, self._own, pointers, before, strict=True):
                if pointer != was and (self._complex or not self.session.memory.replace(name, tensor)):
                    return True
        return False

    def masks(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Draw the masks of a call with these inputs, which forward would draw by numpy.

        A draw may depend on the inputs: that much of the graph is run first. Buffers stay as they are.
        """
        masks, device = self.captured.masks, self.session.device
        if not masks:
            return []
        sizes = self.captured.sizes([tensor.shape for tensor in inputs])
        shapes = [mask.sizes(sizes) for mask in masks]
        drawn = [torch.zeros(shape, dtype=torch.bool, device=device) for shape in shapes]
        for index, (mask, shape) in enumerate(zip(masks, shapes, strict=True)):
            attention = None if mask.attention is None else self._computed(mask.attention, [*inputs, *drawn])
            drawn[index] = mask.draw(shape, attention).to(device)
        return drawn

    def _computed(self, name: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return an output of the graph that depends on none of its random numbers."""
        before = {updated: buffer.clone() for updated, buffer in self.buffers.items()}
        with torch.inference_mode(False), torch.no_grad(), without_autocast(self.session.device.type):
            value = self.session.forward(self.session.plan(inputs, outputs=(name,)), inputs, 0)[0][name]
            for buffer, copy in before.items():
                self.buffers[buffer].copy_(copy)
        return value

    def mode(self, inputs: Sequence[torch.Tensor]) -> Mode:
        """What a call is differentiated by: follows requires_grad of parameters and inputs."""
        flags = tuple([p.requires_grad for _, p in self.parameters] + [t.requires_grad for t in inputs])
        mode = self._modes.get(flags)
        if mode is None:
            names = [name for name, _ in self.parameters] + self.session.inputs
            wanted = [name for name, flag in zip(names, flags, strict=True) if flag]
            mode = self._modes[flags] = self._mode_of(wanted)
        return mode

    def records_gradients(self) -> bool:
        """Whether results have gradients though the call is under `torch.no_grad`: those of parts of forward."""
        return self._under_no_grad and not torch.is_inference_mode_enabled()

    def _mode_of(self, wanted: Sequence[str]) -> Mode:
        """What a call is differentiated by where these want gradients."""
        results = self.results
        # Autograd would go on behind an input to which no gradient flows, where eager PyTorch ends at a detach().
        aside = [n for n in wanted if n in self.session.inputs and not self.session.differentiable((n,))]
        wrt = tuple(name for name in wanted if name not in aside)
        reached = self.session.differentiable(wrt) if wrt else []
        active = tuple([name for name in reached if name in self._paths])
        watched = tuple([name for name in reached if name in self.inspected.marks])
        own = (name for name in active if name not in results.beside and name not in results.kept)
        loss = next((name for name in own if name in results.scalars), None)
        # A module that returns a loss is differentiated by it; else by all that it returns.
        return Mode(wrt, watched, active, active if loss is None else (loss,), loss)

    @functools.cached_property
    def following(self) -> Callable[[str], frozenset[str]]:
        """What returns the outputs that follow from one of them within the graph."""
        return functools.cache(functools.partial(following_outputs, self.captured.model))

    def planned(self, mode: Mode, seeds: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the outputs that a plan for these seeds computes; None for all."""
        if not self._lazy or mode.loss is None:
            return None
        marks = self.inspected.marks
        wanted = [name for name in self.outputs if name in self._read or name in seeds or name in marks]
        if len(wanted) == len(self.outputs):
            return None
        hidden = dict.fromkeys((*marks, *self.decisions.outputs.values()))
        return (*wanted, *[name for name in hidden if name not in self._paths])

    def deferred(self, call: Call) -> Deferred:
        """Return what computes the outputs that a call leaves out."""
        return Deferred(call, self._state, self._read.update, self._paths)


def _maker(
    captured: Captured, provider: str, device: torch.device, debug: DebugOptions, recomputation: Recomputation | None
) -> Callable[[ir.Model, Mapping[str, torch.Tensor]], Session]:
    """Return what makes the sessions of a capture: of its graph and those of its gradients, over some tensors."""
    runs = get_provider(provider, str(device), _options(provider))
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16:
        warn_of_slow_bfloat16(runs, stacklevel=8)
    kind = StagedSession if is_sized_by_values(captured.model.graph) else ModuleSession
    journal = functools.partial(debug.journal, captured.training)

    def make(model: ir.Model, tensors: Mapping[str, torch.Tensor]) -> Session:
        return kind(model, runs, tensors, device=device, journal=journal, recomputation=recomputation)

    return make


def _options(provider: str) -> dict[str, bool]:
    """What upstream's variables say of a provider."""
    if provider != "TorchExecutionProvider" or not os.environ.get("ORTMODULE_ENABLE_TUNING"):
        return {}
    return {"tune": is_on("ORTMODULE_ENABLE_TUNING")}


class Site:
    """A way of writing the call: which capture it is of, and the order of its tensors there."""

    def __init__(self, entry: Entry, places: Mapping[str, range]) -> None:
        self.entry = entry
        self.order = [i for name, _ in entry.captured.call.arguments for i in places.get(name, ())]
        self._accepted: set[tuple[torch.Size, ...]] = set()

    def accepts(self, shapes: tuple[torch.Size, ...]) -> bool:
        """Whether the capture holds for tensors of these shapes."""
        if shapes in self._accepted:
            return True
        captured = self.entry.captured
        named = dict(zip(captured.input_names, (shapes[i] for i in self.order), strict=True))
        if captured.guards.violated(named) is not None:
            return False
        if len(self._accepted) >= _SHAPES:
            self._accepted.clear()
        self._accepted.add(shapes)
        return True

    def fixed_sizes(self) -> list[list[int | None]]:
        """The sizes that the capture wants of each of a call's tensors; None for those that it leaves open."""
        shapes = {value.name: value.shape for value in self.entry.captured.model.graph.inputs}
        ordered = dict(zip(self.order, self.entry.captured.input_names, strict=True))
        return [
            [size if isinstance(size, int) else None for size in shapes[ordered[i]] or ()] for i in range(len(ordered))
        ]

    def ordered(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A call's tensors in the order that the capture has."""
        return [tensors[i] for i in self.order]

    def sizes(self, shapes: Sequence[torch.Size]) -> dict[str, int]:
        """The sizes that the capture's symbols stand for, where the call's tensors have these shapes."""
        return self.entry.captured.sizes([shapes[i] for i in self.order])
