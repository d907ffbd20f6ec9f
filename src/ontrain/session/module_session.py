"""`ModuleSession`: a captured module in a user's own loop, its parameters the user's, one plan a signature."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import or_
from typing import Any

import onnx_ir as ir
import torch

from ontrain.autodiff import build_backward, differentiable_outputs
from ontrain.capture import tell_phases
from ontrain.errors import InputError
from ontrain.graph import reads, updates_of
from ontrain.passes import Journal, Recomputation
from ontrain.providers import ExecutionProvider, ModuleExecutable
from ontrain.session.failures import explained
from ontrain.session.feeds import Signature, batch_inputs, normalises_by_batch
from ontrain.session.planner import Planner, Structure
from ontrain.session.plans import Plan
from ontrain.session.two_graphs import create_memory

__all__ = ["ModulePlan", "ModuleSession"]

ModulePlan = Plan[ModuleExecutable]
"""What runs a call: forward and backward for its shapes, and the outputs that it leaves out."""
_Call = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...] | None]
"""What is differentiated by, from what, and what is computed; see `ModuleSession.plan`."""


class ModuleSession:
    """Runs a captured graph forward and backward on tensors that belong to the user.

    Args:
        model: captured graph, roles on its inputs.
        provider: what compiles and runs the graphs.
        tensors: the user's parameters and buffers that the graph uses, by name; buffers are updated in place.
        device: where all of them are.
        journal: makes what says which passes may run, and writes a plan's stages down.
        recomputation: activations that backward computes again instead of finding them in memory.

    Raises:
        OptionError: recomputation is asked of a provider that would save nothing by it.

    Attributes:
        selective: whether a plan computes only what it is asked for.
    """

    selective = True

    def __init__(
        self, model: ir.Model, provider: ExecutionProvider, tensors: Mapping[str, torch.Tensor], device: torch.device,
        journal: Callable[[], Journal], recomputation: Recomputation | None = None,
    ) -> None:  # fmt: skip
        self.model, self.provider, self.device = model, provider, device
        self._journal = journal
        self.memory = create_memory(provider, tensors)
        self.inputs = [v.name or "" for v in batch_inputs(model.graph)]
        self._planner = Planner(provider, self.memory.compile, device, recomputation=recomputation)
        self._structures: dict[_Call, Structure] = {}

    def differentiable(self, wrt: Sequence[str]) -> list[str]:
        """Return the outputs that depend on one of these inputs or parameters."""
        return differentiable_outputs(self.model, wrt)

    def read_buffers(self) -> list[str]:
        """Return the updated buffers whose old values some result depends on."""
        graph = self.model.graph
        updated = {updates_of(v) for v in graph.outputs}
        buffers = [v for v in graph.inputs if v.name in updated]
        sources = _sources(graph, buffers)
        bits = functools.reduce(or_, (sources.get(v, 0) for v in graph.outputs if updates_of(v) is None), 0)
        return [v.name or "" for place, v in enumerate(buffers) if bits >> place & 1]

    def plan(
        self, inputs: Sequence[torch.Tensor], wrt: tuple[str, ...] = (), seeds: tuple[str, ...] = (),
        outputs: tuple[str, ...] | None = None,
    ) -> ModulePlan:  # fmt: skip
        """Return the plan for a call, making it when first asked.

        Args:
            inputs: the tensors of the call, in the order of `inputs`.
            wrt: parameters, inputs and inner values to differentiate by; none for a forward alone.
            seeds: outputs whose adjoints backward will bring.
            outputs: those to compute, the seeds among them; None for all.

        Raises:
            InputError: a tensor's shape, dtype or device does not fit the graph.
            GradientError: an operator between `wrt` and `seeds` has no gradient.
        """
        call = wrt, seeds, outputs
        structure = self._structures.get(call)
        if structure is None:
            structure = self._structures[call] = Structure(
                key=call,
                forward_key=outputs,
                model=self.model,
                build=functools.partial(_with_backward, seeds, wrt) if seeds else None,
                outputs=outputs,
                journal=self._journal,
            )
        feeds = dict(zip(self.inputs, inputs, strict=True))
        signature = tuple([(name, tensor.shape) for name, tensor in feeds.items()])
        return self._planner.plan(structure, signature, feeds)

    @property
    def plans(self) -> Mapping[tuple[Hashable, Signature], ModulePlan]:
        """The plans that are kept, by what is differentiated and computed, and the signature."""
        return self._planner.plans

    def forward(
        self, plan: ModulePlan, inputs: Sequence[torch.Tensor], seed: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Run a plan's forward half; return outputs by name and the tape.

        Raises:
            InputError: a tensor is on another device, or an index is out of range.
            ProviderError: a kernel refused its operands.
        """
        for name, tensor in zip(self.inputs, inputs, strict=True):
            if tensor.device.type != self.device.type:
                raise InputError(
                    f"input {name!r} is on {tensor.device}, the module is on {self.device}",
                    way_out=f"move one of them: .to({str(self.device)!r})",
                )
        feeds = dict(zip(self.inputs, inputs, strict=True))
        started = time.perf_counter()
        with explained(plan.model.graph, feeds, self.provider.name, "a forward"):
            result = plan.executable.forward(feeds, seed)
        if not plan.runs:
            tell_phases("ran the first forward", {"run": time.perf_counter() - started})
        plan.runs += 1
        return result

    def backward(self, plan: ModulePlan, tape: object, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run a plan's backward half on a tape, for the adjoints of its seeds by output name."""
        return plan.executable.backward(tape, {plan.adjoints[name]: adjoint for name, adjoint in adjoints.items()})


def _with_backward(seeds: tuple[str, ...], wrt: tuple[str, ...], journal: Journal, forward: ir.Model) -> ir.Model:
    return build_backward(forward, outputs=seeds, wrt=wrt)


def _sources(graph: ir.Graph, inputs: Sequence[ir.Value]) -> dict[ir.Value, int]:
    """What each value depends on of some inputs: a number with bit i set for inputs[i]."""
    sources = {value: 1 << place for place, value in enumerate(inputs)}
    for node in graph:
        statistics = node.inputs[3:5] if normalises_by_batch(node) else ()
        result = running = 0
        for value in reads(node):
            bits = sources.get(value, 0)
            running |= bits
            result |= 0 if any(value is statistic for statistic in statistics) else bits
        for place, output in enumerate(node.outputs if running else ()):
            sources[output] = running if place else result  # a batch is normalised by itself alone
    return sources
