"""The node that a call leaves in autograd's graph."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ontrain.capture import Decisions, Inspected, Observer
from ontrain.errors import GradientError, InputError
from ontrain.internals import private, version_of
from ontrain.session import ModulePlan, StagedPlan
from ontrain.training.ortmodule.lazy import LazyOutput
from ontrain.training.ortmodule.paths import on_path
from ontrain.training.ortmodule.reading import Reading

__all__ = ["Call", "Mode", "Run", "Session", "leave_backward_untraced", "without_autocast"]


class Session(Protocol):
    """What runs a captured module; see `ModuleSession`."""

    inputs: list[str]
    device: torch.device
    selective: bool
    memory: Any

    def differentiable(self, wrt: Sequence[str]) -> list[str]:
        """Return the outputs that depend on one of these inputs or parameters."""

    def read_buffers(self) -> list[str]:
        """Return the updated buffers whose old values some result depends on."""

    def plan(
        self, inputs: Sequence[torch.Tensor], wrt: tuple[str, ...] = (), seeds: tuple[str, ...] = (),
        outputs: tuple[str, ...] | None = None,
    ) -> Any:  # fmt: skip
        """Return what is run for a call."""

    def forward(self, plan: Any, inputs: Sequence[torch.Tensor], seed: int) -> tuple[dict[str, torch.Tensor], Any]:
        """Run the forward half; return outputs by name and the tape."""

    def backward(self, plan: Any, tape: Any, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the backward half."""


@dataclass
class Mode:
    """What a call is differentiated by, and what of it.

    Attributes:
        wrt: parameters and inputs that want a gradient, by graph name.
        watched: inspected values that get one.
        active: outputs that depend on them, in order.
        seeds: outputs for which the last backward brought an adjoint; the next call is planned for the same.
        loss: the first scalar among `active`; None if there is none.
    """

    wrt: tuple[str, ...]
    watched: tuple[str, ...]
    active: tuple[str, ...]
    seeds: tuple[str, ...]
    loss: str | None

    @functools.cached_property
    def targets(self) -> tuple[str, ...]:
        """All that a plan differentiates by."""
        return (*self.wrt, *self.watched)


class Later(Protocol):
    """Computes outputs that a plan leaves out."""

    def outputs(self) -> dict[str, LazyOutput]:
        """Return tensors that stand for them."""


@dataclass
class Call:
    """One call of a module.

    Attributes:
        inputs: its tensors, in the session's order.
        seeds: outputs that the plan differentiates.
        outputs: all that the module returns, also those that the plan leaves out.
        planned: the outputs that a plan for given seeds computes; None for all.
        deferred: what computes the others, once this call has run.
        buffers: the module's buffers that the graph updates.
        read_buffers: those of them whose old values the results depend on.
        inspected: values that observers see.
        decisions: the path of forward that the graph holds.
        seed: of its random numbers, so that they can be drawn again.
        named: the inputs and the module's tensors, by graph name.
        gradients: returns its gradients as values that autograd follows; see `Differentiated.gradients`.
        differentiated: whether a backward has been here.
        reading: buffers that backward reads.
        following: returns the outputs that follow from one of them within the graph.
        cloned: buffers that forward copies before it reads them.
        returned: the outputs as the caller has them, as far as somebody does.
    """

    session: Session
    mode: Mode
    seeds: tuple[str, ...]
    outputs: Sequence[str]
    inputs: list[torch.Tensor]
    plan: ModulePlan | StagedPlan
    planned: Callable[[tuple[str, ...]], tuple[str, ...] | None]
    deferred: Callable[[Call], Later]
    buffers: Mapping[str, torch.Tensor]
    read_buffers: Sequence[str]
    inspected: Inspected
    decisions: Decisions
    seed: int
    named: dict[str, torch.Tensor]
    gradients: Callable[[Call, Sequence[torch.Tensor], Mapping[str, torch.Tensor]], list[torch.Tensor | None]]
    steps: list[tuple[Observer, int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    differentiated: bool = False
    reading: Reading | None = None
    following: Callable[[str], frozenset[str]] = lambda _: frozenset()
    cloned: Collection[str] = ()
    returned: tuple[weakref.ref[torch.Tensor], ...] = ()

    def run(self) -> tuple[torch.Tensor, ...]:
        """Run the forward half as a node of autograd's graph; return all outputs in order."""
        reads = tuple([self.named[name] for name in self.plan.executable.reads if self._is_parameter(name)])
        outputs: tuple[torch.Tensor, ...] = Run.apply(self, reads, *[self.named[n] for n in self.mode.wrt])  # type: ignore[no-untyped-call]
        self.returned = tuple(map(weakref.ref, outputs)) if len(outputs) > 1 else ()
        return outputs

    def refuse_retained(self, adjoints: Mapping[str, torch.Tensor]) -> None:
        """Refuse the gradient of an output that is to keep it, where another follows from it within the graph.

        Raises:
            GradientError: in eager PyTorch the gradient passes through the output, here it does not.
        """
        for name, reference in zip(self.outputs, self.returned, strict=False):
            output = reference()
            if isinstance(output, LazyOutput):
                output = output.seen()
            if output is None or not output.retains_grad:
                continue
            following = self.following(name) & adjoints.keys()
            if following:
                raise GradientError(
                    f"output {name!r} is to retain its gradient, and {min(following)!r} follows from it in forward",
                    reason="a graph's gradients go from its outputs to its inputs, and pass through no output",
                    way_out="compute what follows from it outside of the module, or call model.module there",
                )

    def forward(self) -> tuple[dict[str, torch.Tensor], Any]:
        """Run the forward half.

        Raises:
            OtherPathError: forward would branch otherwise for these values.
        """
        self.before = {name: self.buffers[name].clone() for name in self.read_buffers}
        self.versions = list(map(version_of, self.inputs))
        outputs, tape = on_path(self.decisions, self.buffers, self.session, self.plan, self.inputs, self.seed)
        self.states = self._states()
        read = {name: self.named[name] for name in self.plan.executable.reads if not self._is_parameter(name)}
        self.reading = Reading(read, self.cloned) if read else None
        self.steps = self.inspected.hand_out(outputs)
        return outputs, tape

    def _is_parameter(self, name: str) -> bool:
        tensor = self.named[name]
        return name not in self.buffers and (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter))

    def inputs_changed(self) -> bool:
        """Whether an input was changed in place since forward."""
        return self.versions != list(map(version_of, self.inputs))

    def changed(self) -> bool:
        """Whether an input or one of the module's tensors that no call updates was changed since forward."""
        return self.states != self._states()

    def _states(self) -> list[tuple[int, int]]:
        return [
            (version_of(tensor), tensor.data_ptr())
            for name, tensor in self.named.items()
            if name not in self.buffers and not tensor.is_inference()
        ]

    def values(self, other: Session | None = None) -> dict[str, torch.Tensor]:
        """Run the forward again and return all outputs; in another session, whose buffers may be written, if given."""
        with torch.inference_mode(False), torch.no_grad(), without_autocast(self.session.device.type):
            if other is not None:
                return other.forward(other.plan(self.inputs), self.inputs, self.seed)[0]
            return self._forward_again(self.session.plan(self.inputs))[0]

    def backward(self, tape: Any, adjoints: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the backward half, on this call's activations or, where those are gone or do not fit, on new ones.

        They are gone after a first backward with retain_graph=True; they do not fit when adjoints came for other
        outputs than the plan was made for.
        """
        seeds = tuple(name for name in self.mode.active if name in adjoints)
        self.mode.seeds = seeds
        if seeds == self.seeds and tape.open:
            return self.session.backward(self.plan, tape, adjoints)
        return self._again(seeds, adjoints)

    def as_read(self) -> AbstractContextManager[None]:
        """Return a context in which the buffers that backward reads are what they were in forward."""
        return nullcontext() if self.reading is None else self.reading.as_they_were()

    def _again(self, seeds: tuple[str, ...], adjoints: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.inputs_changed():
            raise InputError(
                "an input was changed in place between forward and backward",
                reason="this backward runs the forward again: it is the second on one graph, or is for other outputs",
                way_out="give the model a copy of the tensor",
            )
        plan = self.session.plan(self.inputs, self.mode.targets, seeds, self.planned(seeds))
        _, tape = self._forward_again(plan)
        return self.session.backward(plan, tape, adjoints)

    def _forward_again(self, plan: ModulePlan | StagedPlan) -> tuple[dict[str, torch.Tensor], Any]:
        """Run a plan's forward half on what the buffers were, and leave them as they are."""
        before = {name: buffer.clone() for name, buffer in self.buffers.items()}
        for name, value in self.before.items():
            self.buffers[name].copy_(value)
        outputs = self.session.forward(plan, self.inputs, self.seed)
        for name, buffer in self.buffers.items():
            buffer.copy_(before[name])
        return outputs


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context in which kernels take their arguments as they are: a graph has its casts in it."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


class Run(torch.autograd.Function):
    """A call as one node: its inputs are the parameters and inputs that want gradients."""

    @staticmethod
    def forward(ctx: Any, call: Call, reads: tuple[torch.Tensor, ...], *wrt: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the forward half; `reads` are the parameters whose values backward reads."""
        outputs, tape = call.forward()
        ctx.call, ctx.tape, ctx.wrt = call, tape, wrt
        # autograd then says so when one was changed in place before backward.
        ctx.save_for_backward(*reads)
        ctx.set_materialize_grads(False)
        if call.plan.absent:
            outputs.update(call.deferred(call).outputs())
        values = tuple([outputs[name] for name in call.outputs])
        active = set(call.mode.active)
        ctx.mark_non_differentiable(*[v for n, v in zip(call.outputs, values, strict=True) if n not in active])
        return values

    @staticmethod
    def backward(ctx: Any, *adjoints: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Run the backward half."""
        _ = ctx.saved_tensors
        call: Call = ctx.call
        call.differentiated = True
        seeds = {name: a for name, a in zip(call.outputs, adjoints, strict=True) if a is not None}
        if not seeds:
            return (None,) * (2 + len(call.mode.wrt))
        call.refuse_retained(seeds)
        if True in map(private("torch._C._functorch.is_legacy_batchedtensor"), seeds.values()):
            raise GradientError(
                "many gradients were asked for at once (is_grads_batched or vectorize=True)",
                reason="a plan's backward is for one set of adjoints",
                way_out="ask for one after the other: vectorize=False",
            )
        if torch.is_grad_enabled():  # create_graph=True
            with call.as_read():
                return None, None, *call.gradients(call, ctx.wrt, seeds)
        with without_autocast(call.session.device.type), call.as_read():
            gradients = call.backward(ctx.tape, seeds)
            call.inspected.hand_back(call.steps, gradients)
        return (None, None, *[gradients.get(name) for name in call.mode.wrt])


def leave_backward_untraced() -> None:
    """Have TorchDynamo run backward as it stands where a function that it traces asks for gradients."""
    type.__setattr__(Run, "backward", staticmethod(torch.compiler.disable(Run.backward)))
