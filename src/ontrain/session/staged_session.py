"""`StagedSession`: a module's graph whose sizes follow from values, as sessions that alternate with steps."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from ontrain.autodiff import asks_for_derivatives
from ontrain.errors import GradientError, GraphError, InputError
from ontrain.graph import (
    DOMAIN,
    Role,
    Stage,
    blamed_on,
    describe,
    draws_random,
    extract,
    role_of,
    set_role,
    source_of,
    stages,
    step_of_adjoint,
    updates_of,
)
from ontrain.internals import version_of
from ontrain.operators import is_from_start
from ontrain.passes import Journal, Recomputation
from ontrain.providers import ExecutionProvider
from ontrain.session.feeds import batch_inputs
from ontrain.session.module_session import ModulePlan, ModuleSession
from ontrain.session.selection import run_step

__all__ = ["StagedSession"]

_SEEDS = 0x9E3779B97F4A7C15
"""Between the seeds of neighbouring regions."""
_SEED_RANGE = 2**63 - 1


class StagedSession:
    """Runs a captured graph forward and backward in regions, each planned for the sizes that are there when it runs.

    It has the attributes and methods of a `ModuleSession`.

    Args:
        model: captured graph, roles on its inputs.
        provider: what compiles and runs the regions.
        tensors: the user's parameters and buffers that the graph uses, by name; buffers are updated in place.
        device: where all of them are.
        journal: makes what says which passes may run in a region's plan, and writes its stages down.
        recomputation: activations that backward computes again instead of finding them in memory.
    """

    selective = False

    def __init__(
        self, model: ir.Model, provider: ExecutionProvider, tensors: Mapping[str, torch.Tensor], device: torch.device,
        journal: Callable[[], Journal], recomputation: Recomputation | None = None,
    ) -> None:  # fmt: skip
        self.model, self.provider, self.device = model, provider, device
        graph = model.graph
        if asks_for_derivatives(graph):
            raise GradientError(
                "forward asks for gradients itself, and has sizes that follow from values",
                reason="such a graph is planned in parts, and a gradient is computed from the whole",
                way_out='ORTModule(model, breaks="allow"), or mask values instead of selecting them in forward',
            )
        self.inputs = [v.name or "" for v in batch_inputs(graph)]
        self._inputs = {v.name or "": v for v in graph.inputs}
        self._outputs = {v.name or "": v for v in graph.outputs}
        self._updates = {t: v for v in graph.outputs if (t := updates_of(v)) is not None}
        self._tensors = dict(tensors)
        make = functools.partial(
            ModuleSession, provider=provider, device=device, journal=journal, recomputation=recomputation
        )
        self._stages = [
            _Region(model, stage, self._tensors, frozenset(self._updates), make) if stage.step is None else stage
            for stage in stages(graph)
        ]
        self.regions = [stage for stage in self._stages if isinstance(stage, _Region)]
        self._stochastic = draws_random(graph) is not None
        self._sized_by_adjoint = step_of_adjoint(graph)
        self._calls: dict[tuple[tuple[str, ...], tuple[str, ...]], StagedPlan] = {}
        self.memory = self

    def replace(self, name: str, tensor: torch.Tensor) -> bool:
        """Let a parameter or buffer be found in other memory; False if its layout differs."""
        before, self._tensors[name] = self._tensors[name], tensor
        replaced = [r.session.memory.replace(name, tensor) for r in self.regions if name in r.resident]
        return all(replaced) and before.shape == tensor.shape and before.dtype == tensor.dtype

    def differentiable(self, wrt: Sequence[str]) -> list[str]:
        """Return the outputs that depend on one of these inputs or parameters."""
        reached = self._reached(wrt)
        return [name for name, value in self._outputs.items() if value in reached and updates_of(value) is None]

    def read_buffers(self) -> list[str]:
        """Return the updated buffers, whose old values regions read."""
        return list(self._updates)

    def plan(
        self, inputs: Sequence[torch.Tensor], wrt: tuple[str, ...] = (), seeds: tuple[str, ...] = (),
        outputs: tuple[str, ...] | None = None,
    ) -> StagedPlan:  # fmt: skip
        """Return what is differentiated in each region for a call; see `ModuleSession.plan`.

        Plans of regions are made when they run. All outputs are computed.

        Raises:
            GradientError: a size follows from the values of an adjoint, in a backward of the user's own.
        """
        if seeds and self._sized_by_adjoint is not None:
            node = self._sized_by_adjoint
            raise GradientError(
                "the backward of an autograd function has a size that follows from the adjoint's values",
                node=describe(node),
                source=source_of(node),
                reason="sizes are looked up while forward runs, and the adjoint is there when backward does",
                way_out="write that backward with torch.where(mask, x, y) instead of x[mask], or have the mask follow "
                'from what forward saves; or ORTModule(model, breaks="allow")',
            )
        call = wrt, seeds
        plan = self._calls.get(call)
        if plan is None:
            plan = self._calls[call] = StagedPlan(self._modes(wrt, seeds), self._stochastic)
        return plan

    def forward(
        self, plan: StagedPlan, inputs: Sequence[torch.Tensor], seed: int
    ) -> tuple[dict[str, torch.Tensor], _Tape]:
        """Run all stages; return outputs by name and what backward needs.

        Raises:
            InputError: a tensor is on another device, or an index is out of range.
            GraphError: a size that values say is none.
        """
        values = {self._inputs[name]: tensor for name, tensor in zip(self.inputs, inputs, strict=True)}
        values.update((self._inputs[name], self._tensors[name].clone()) for name in self._updates)
        tape = _Tape()
        modes = iter(plan.modes)
        seeds = itertools.count(seed, _SEEDS)
        for stage in self._stages:
            if isinstance(stage, _Region):
                tape.runs.append(stage.run(next(modes), values, next(seeds) % _SEED_RANGE))
            else:
                self._step(stage, values)
        for name, value in self._updates.items():
            with torch.no_grad():
                self._tensors[name].copy_(values[value])
        tape.remember(self._tensors, self.regions)
        return {name: values[v] for name, v in self._outputs.items() if updates_of(v) is None}, tape

    def _step(self, stage: Stage, values: dict[ir.Value, torch.Tensor]) -> None:
        node = stage.step
        assert node is not None
        read = [
            torch.as_tensor(v.const_value.numpy(), device="cpu") if v.const_value is not None
            else values[v] if v in values else self._tensors[v.name or ""]
            for v in node.inputs if v is not None
        ]  # fmt: skip
        with blamed_on(node, f"{node.op_type} cannot run", GraphError), torch.no_grad():
            values.update(zip(node.outputs, run_step(node, [t.detach() for t in read]), strict=False))

    def backward(self, plan: StagedPlan, tape: _Tape, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the regions' backward halves, last one first, for the adjoints of the plan's seeds by output name.

        Raises:
            InputError: a parameter that backward reads was changed since forward.
        """
        tape.check(self._tensors)
        tape.open = False
        sums = {self._outputs[name]: adjoint for name, adjoint in adjoints.items()}
        for region, mode, run in zip(self.regions[::-1], plan.modes[::-1], tape.runs[::-1], strict=True):
            for value, gradient in region.backward(mode, run, sums).items():
                known = sums.get(value)
                sums[value] = gradient if known is None else known + gradient
        tape.runs = []
        return {name: sums[value] for name, value in (self._inputs | self._outputs).items() if value in sums}

    def _reached(self, wrt: Sequence[str]) -> set[ir.Value]:
        """Values on which a gradient flows back to one of these."""
        known = self._inputs | self._outputs
        reached = {known[name] for name in wrt}
        for region in self.regions:
            reached.update(region.reached(reached))
        return reached

    def _modes(self, wrt: tuple[str, ...], seeds: tuple[str, ...]) -> list[_Mode]:
        """What each region is differentiated by, and what of it."""
        reached = self._reached(wrt) if seeds else set()
        wanted = {self._outputs[name] for name in seeds}
        modes = []
        for region in reversed(self.regions):
            mode = region.mode(reached, wanted)
            wanted.update(region.values[name] for name in mode.wrt)
            modes.append(mode)
        return modes[::-1]


@dataclass(frozen=True)
class _Mode:
    """Names of what a region is differentiated by, and of its outputs whose adjoints backward brings."""

    wrt: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()


@dataclass
class _Run:
    """One forward of a region: its plan, its tape, and the outputs, whose adjoints may be absent."""

    plan: ModulePlan
    tape: Any
    outputs: Mapping[str, torch.Tensor]


@dataclass
class _Tape:
    """What backward needs of a forward."""

    runs: list[_Run] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    open: bool = True

    def remember(self, tensors: Mapping[str, torch.Tensor], regions: Sequence[_Region]) -> None:
        """Note the state of parameters whose values backward reads."""
        for run in self.runs:
            for name in run.plan.executable.reads:
                if name in tensors and not tensors[name].is_inference():
                    self.versions[name] = version_of(tensors[name])

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Refuse to run on others."""
        for name, version in self.versions.items():
            if version_of(tensors[name]) != version:
                raise InputError(
                    f"parameter {name!r} was changed in place between forward and backward",
                    reason="backward reads its value at forward",
                    way_out="change parameters after backward",
                )


@dataclass
class StagedPlan:
    """What is differentiated in each region. It says of itself what a `Plan` and its executable say."""

    modes: Sequence[_Mode]
    stochastic: bool
    reads: Sequence[str] = ()
    planned_bytes: int = 0
    absent: Mapping[str, Any] = field(default_factory=dict)

    @property
    def executable(self) -> StagedPlan:
        """What runs it."""
        return self


class _Region:
    """Nodes of the graph as a graph with a session of their own."""

    def __init__(
        self, model: ir.Model, stage: Stage, tensors: Mapping[str, torch.Tensor], updated: frozenset[str],
        make: Callable[..., ModuleSession],
    ) -> None:  # fmt: skip
        part = extract(model, stage.reads, stage.outputs)
        self.values: dict[str, ir.Value] = {}
        """The whole graph's values by the names that they have in the region."""
        for outer, inner in zip(stage.reads, part.graph.inputs, strict=True):
            self.values[inner.name or ""] = outer
            role = role_of(outer) if outer.is_graph_input() and outer.name not in updated else Role.INPUT
            set_role(inner, role)
            if is_from_start(outer):
                _mark(part.graph, inner)
        self.outputs = {}
        for outer, inner in zip(stage.outputs, part.graph.outputs, strict=True):
            inner.metadata_props.clear()
            self.outputs[inner.name or ""] = outer
        self.values.update(self.outputs)
        self.resident = {v.name or "" for v in part.graph.inputs if role_of(v).resident}
        self.session = make(part, tensors={name: tensors[name] for name in self.resident})
        self._floats = [v.name or "" for v in part.graph.inputs if v.dtype is not None and v.dtype.is_floating_point()]

    def reached(self, before: set[ir.Value]) -> list[ir.Value]:
        """Return the outputs on which a gradient flows back to one of these values."""
        wrt = [name for name in self._floats if self.values[name] in before]
        return [self.outputs[name] for name in self.session.differentiable(wrt)] if wrt else []

    def mode(self, reached: set[ir.Value], wanted: set[ir.Value]) -> _Mode:
        """Return what to differentiate, of what gradients can flow to and of what they are wanted for."""
        wrt = tuple(name for name in self._floats if self.values[name] in reached)
        flowing = set(self.session.differentiable(wrt)) if wrt else set()
        seeds = tuple(name for name, value in self.outputs.items() if value in wanted and name in flowing)
        return _Mode(wrt, seeds) if seeds else _Mode()

    def run(self, mode: _Mode, values: dict[ir.Value, torch.Tensor], seed: int) -> _Run:
        """Compute the outputs from what is there, into it."""
        inputs = [values[self.values[name]] for name in self.session.inputs]
        plan = self.session.plan(inputs, mode.wrt, mode.seeds)
        outputs, tape = self.session.forward(plan, inputs, seed)
        values.update((outer, outputs[name]) for name, outer in self.outputs.items())
        return _Run(plan, tape, outputs)

    def backward(self, mode: _Mode, run: _Run, sums: Mapping[ir.Value, torch.Tensor]) -> dict[ir.Value, torch.Tensor]:
        """Return the gradients of what the region reads."""
        brought = {name: sums[self.outputs[name]] for name in mode.seeds if self.outputs[name] in sums}
        if not brought:
            return {}
        adjoints = {
            name: brought[name] if name in brought else torch.zeros_like(run.outputs[name]) for name in mode.seeds
        }
        gradients = self.session.backward(run.plan, run.tape, adjoints)
        return {self.values[name]: gradient for name, gradient in gradients.items()}


def _mark(graph: ir.Graph, indices: ir.Value) -> None:
    """Say of a graph input what the graph that it was cut from says: none of its indices counts from the end."""
    uses = list(indices.uses())
    node = ir.Node(DOMAIN, "FromStart", [indices], num_outputs=1)
    marked = node.outputs[0]
    marked.name, marked.type, marked.shape = f"{indices.name}.from_start", indices.type, indices.shape
    graph.insert_before(graph[0], node)
    for use in uses:
        use.node.replace_input_with(use.idx, marked)
