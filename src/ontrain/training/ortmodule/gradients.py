"""The gradients of a call as a graph of their own, which autograd can follow: gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import onnx_ir as ir
import torch

from ontrain.autodiff import gradient_model
from ontrain.capture import Decisions, Inspected
from ontrain.errors import GradientError, InputError
from ontrain.training.ortmodule.function import Call, Mode, Session, without_autocast

__all__ = ["Differentiated"]

_PLAIN = "compute that term with the plain module, which is the attribute .module"


@dataclass
class Differentiated:
    """A graph, what runs it, and the graphs of its gradients, made when first asked for.

    Attributes:
        make: returns what runs a graph on the module's tensors.
    """

    model: ir.Model
    session: Session
    make: Callable[[ir.Model], Session]
    _gradients: dict[tuple[tuple[str, ...], tuple[str, ...]], Differentiated] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop the graphs of gradients: the module's tensors lie elsewhere now."""
        self._gradients.clear()

    def gradients(
        self, call: Call, wrt: Sequence[torch.Tensor], adjoints: Mapping[str, torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Return a call's gradients, which have gradients. Its forward is run again for them.

        Args:
            call: of this graph.
            wrt: the tensors that it is differentiated by.
            adjoints: of outputs, by name.

        Raises:
            GradientError: the call drew random numbers, or read a buffer that it updated.
            InputError: a parameter or input was changed since.
        """
        _check(call)
        names = call.mode.wrt
        seeds = tuple([name for name in call.outputs if name in adjoints])
        reached = tuple([name for name in names if not set(seeds).isdisjoint(self.session.differentiable((name,)))])
        if not reached:
            return [None] * len(names)
        graph = self._of(seeds, reached)
        named = call.named | dict(zip(names, wrt, strict=True))
        inputs = [*call.inputs, *(adjoints[name].contiguous() for name in seeds)]
        named |= dict(zip(graph.session.inputs, inputs, strict=True))
        by_name = dict(zip(reached, graph.run(call, inputs, named), strict=True))
        return [by_name.get(name) for name in names]

    def _of(self, seeds: tuple[str, ...], wrt: tuple[str, ...]) -> Differentiated:
        graph = self._gradients.get((seeds, wrt))
        if graph is None:
            model = gradient_model(self.model, seeds, wrt)
            graph = self._gradients[seeds, wrt] = Differentiated(model, self.make(model), self.make)
        return graph

    def run(self, call: Call, inputs: list[torch.Tensor], named: dict[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the outputs of a graph of gradients, in order, as a call that autograd records.

        Args:
            call: whose gradients they are.
            inputs: those of the graph.
            named: these and the module's tensors, by graph name.
        """
        session = self.session
        outputs = tuple([value.name or "" for value in self.model.graph.outputs])
        wrt = tuple([name for name, tensor in named.items() if tensor.requires_grad])
        reached = session.differentiable(wrt) if wrt else []
        active = tuple([name for name in outputs if name in reached])
        mode = Mode(wrt, (), active, active, None)
        plan = session.plan(inputs, wrt if active else (), active)
        again = Call(
            session, mode, active, outputs, inputs, plan, lambda _: None, _nothing_left_out, {}, (), Inspected(),
            Decisions(), call.seed, named, self.gradients,
        )  # fmt: skip
        with without_autocast(session.device.type):
            if active:
                return again.run()
            values, _ = again.forward()
        return [values[name] for name in outputs]


def _nothing_left_out(call: Call) -> NoReturn:
    raise AssertionError("a graph of gradients computes all of its outputs")


def _check(call: Call) -> None:
    """Refuse a call whose forward, run again, would be another."""
    problem = "a gradient of the gradient was asked for (create_graph=True)"
    if call.plan.executable.stochastic:
        raise GradientError(
            problem, reason="the call drew random numbers, and the graph of its gradients draws others",
            way_out=f"turn dropout off, or {_PLAIN}",
        )  # fmt: skip
    if call.read_buffers:
        raise GradientError(
            problem, reason=f"the module's result depends on buffer {call.read_buffers[0]!r}, which the call updated",
            way_out=_PLAIN,
        )  # fmt: skip
    if call.mode.watched:
        raise GradientError(
            problem, reason="subscribers inspect gradients of the call, and would not see these",
            way_out=f"take the subscribers off, or {_PLAIN}",
        )  # fmt: skip
    if call.changed():
        raise InputError(
            "a parameter or an input was changed in place between forward and a backward with create_graph=True",
            reason="the graph of the gradients runs the forward again",
            way_out="call backward before the optimizer's step, or change a copy",
        )
