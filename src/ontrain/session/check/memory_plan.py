"""How much memory a training step takes at each batch size, and what recomputation would save and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ontrain.capture import Captured, capture, flatten, tensor_dtype
from ontrain.errors import CaptureError, OptionError
from ontrain.functions import resident_bytes
from ontrain.graph import Role, dims
from ontrain.optim import OptimizerSpec, StepKind
from ontrain.passes import Recomputation, Schedule, clusters, parse_budget
from ontrain.providers import get_provider
from ontrain.session.check.examine import with_loss
from ontrain.session.description import PlanOptions, TrainingTask
from ontrain.session.feeds import batch_inputs
from ontrain.session.memory_limit import memory_limit
from ontrain.session.training import TrainingSession
from ontrain.units import byte_text

__all__ = ["ClusterRow", "MemoryPlan", "MemoryRow", "plan_memory"]

SCHEMA_VERSION = 1
_MAX_NORM = 1.0
_BATCH = "batch"


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of a step at one batch size under one budget.

    Attributes:
        batch_size: of the batch.
        budget: as it was asked for; None for no bound.
        parameters: with buffers.
        gradients: that are kept beside the parameters.
        moments: of the optimizer.
        activations: working memory: activations, adjoints and temporaries, as the provider laid them out.
        recomputed_flop: floating-point operations that are done twice to keep to the budget, as a part of the step's.
        recomputed_nodes: how many nodes that are.
        problem: why there is no such plan: the other figures are zero then.
    """

    batch_size: int
    budget: str | None = None
    parameters: int = 0
    gradients: int = 0
    moments: int = 0
    activations: int = 0
    recomputed_flop: float = 0.0
    recomputed_nodes: int = 0
    problem: str | None = None

    @property
    def peak(self) -> int:
        """All of it together."""
        return self.parameters + self.gradients + self.moments + self.activations


@dataclass(frozen=True)
class ClusterRow:
    """Operators of the largest batch that recomputation can choose from.

    Attributes:
        name: the operators that run again, in order; what ORTMODULE_MEMORY_OPT_CONFIG calls them.
        places: how often they occur.
        bytes: memory that each place keeps for the backward pass.
        flop_per_byte: what computing a place again costs for each byte; moving a byte counts ten.
    """

    name: str
    places: int
    bytes: int
    flop_per_byte: float


@dataclass(frozen=True)
class MemoryPlan:
    """What `ontrain plan` prints.

    Attributes:
        subject, provider, optimizer, loss: what was planned.
        available: bytes that this machine has.
        rows: by batch size, then by budget.
        clusters: what can be computed again at the largest batch size, the cheapest per byte first.
    """

    subject: str
    provider: str
    optimizer: str
    loss: str
    available: int
    rows: tuple[MemoryRow, ...]
    clusters: tuple[ClusterRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values, with "schema" and each row's "peak" beside the attributes."""
        rows = [{**asdict(row), "peak": row.peak} for row in self.rows]
        return {"schema": SCHEMA_VERSION, **asdict(self), "rows": rows, "clusters": [asdict(c) for c in self.clusters]}


def plan_memory(
    module: torch.nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    budgets: Sequence[int | float | str] = (),
    provider: str = "TorchExecutionProvider",
    loss: str | None = None,
    optimizer: str = "AdamW",
    name: str | None = None,
) -> MemoryPlan:
    """Plan a training step at several batch sizes, without running one, and say what memory it takes.

    Args:
        module: captured in training mode; it stays as it is. Parameters that require a gradient are trained.
        args: positional arguments of a sample call. The batch is axis 0 of the call's first tensor, and of every
            other tensor whose axis 0 is as long.
        kwargs: its keyword arguments.
        batch_sizes: to plan.
        budgets: memory budgets to plan each of them with, beside none; see `ontrain.passes.recompute.parse_budget`.
        provider: name of the execution provider.
        loss: as for `check_module`.
        optimizer: as for `check_module`.
        name: as for `check_module`.

    Raises:
        OptionError: a batch size, budget, loss, provider or optimizer that there is not, or a provider that does not
            plan memory.
        CaptureError, GradientError, GraphError: the module cannot be captured or trained.
    """
    for size in batch_sizes:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise OptionError(f"batch size {size!r}", way_out="give whole numbers from 1")
    asked = [(None, None), *((str(budget), Recomputation(parse_budget(budget))) for budget in budgets)]
    planner = _Planner(module, args, dict(kwargs or {}), provider, loss, OptimizerSpec(optimizer))
    rows = [planner.row(size, text, request) for size in sorted(set(batch_sizes)) for text, request in asked]
    return MemoryPlan(
        name or type(module).__name__, planner.provider.name, optimizer, planner.loss, memory_limit(), tuple(rows),
        planner.clusters,
    )  # fmt: skip


class _Planner:
    """Captures once where the batch may vary, and keeps a session for each budget."""

    def __init__(
        self, module: torch.nn.Module, args: Sequence[object], kwargs: dict[str, Any], provider: str, loss: str | None,
        spec: OptimizerSpec,
    ) -> None:  # fmt: skip
        self._module, self._args, self._kwargs, self._wanted, self._spec = module, args, kwargs, loss, spec
        self.provider = get_provider(provider)
        memory_of = self.provider.capabilities.memory_of
        if memory_of is None:
            raise OptionError(
                f"{self.provider.name} does not plan memory", reason="its runtime allocates as it goes",
                way_out="plan for TorchExecutionProvider",
            )  # fmt: skip
        self._memory_of = memory_of
        tensors = [tensor for value in (*args, *kwargs.values()) for tensor in flatten(value)[0]]
        if not tensors or not tensors[0].ndim:
            raise OptionError("the sample call has no batch", way_out="let its first tensor have the batch on axis 0")
        self._batch = int(tensors[0].shape[0])
        self._sessions: dict[tuple[int, str | None], TrainingSession] = {}
        self._captured: dict[int, Captured] = {}
        self._varies = True
        self.loss, self.clusters = "", tuple[ClusterRow, ...]()

    def row(self, size: int, budget: str | None, request: Recomputation | None) -> MemoryRow:
        """Plan one batch size under one budget; a budget that cannot be kept to is a row that says so."""
        session = self._session(size, budget, request)
        try:
            plan = session.plan(StepKind.UPDATE, self._feeds(session, size))
        except OptionError as error:
            if request is None:
                raise
            return MemoryRow(size, budget, problem=error.problem)
        parameters = resident_bytes(plan.model, Role.PARAMETER, Role.BUFFER)
        moments = resident_bytes(plan.model, Role.STATE)
        gradients = max(session.state_bytes() - parameters - moments, 0)
        if request is None:
            names = clusters(Schedule(plan.model.graph, self._memory_of(plan.model.graph)))
            self.clusters = tuple(ClusterRow(c.name, len(c.roots), c.bytes, c.cost / max(c.bytes, 1)) for c in names)
        again = plan.recomputed
        return MemoryRow(
            size, budget, parameters, gradients, moments, plan.executable.planned_bytes,
            again.share if again is not None else 0.0, again.nodes if again is not None else 0,
        )  # fmt: skip

    def _session(self, size: int, budget: str | None, request: Recomputation | None) -> TrainingSession:
        captured = self._capture(size)
        key = (0 if self._varies else size, budget)
        if key not in self._sessions:
            model, self.loss, _ = with_loss(captured.model, self._wanted)
            tensors = {**captured.parameters, **captured.buffers}
            used = {v.name for v in model.graph.inputs}
            trainable = [n for n, p in self._module.named_parameters() if p.requires_grad and n in used]
            task = TrainingTask(model, loss=self.loss, optimizer=self._spec, trainable=trainable, max_norm=_MAX_NORM)
            planning = PlanOptions(recomputation=request)
            self._sessions[key] = TrainingSession(task, tensors, self.provider, planning=planning)
        return self._sessions[key]

    def _capture(self, size: int) -> Captured:
        """Capture with a batch that varies; a module that forbids it is captured at each size."""
        if self._varies and not self._captured:
            try:
                # A size of one would be captured as one to be broadcast.
                self._captured[0] = self._at(max(self._batch, 2), _BATCH)
            except CaptureError:
                self._varies = False
        if self._varies and not self._holds(self._captured[0], size):
            self._varies = False
            self._sessions.clear()
        if not self._varies and size not in self._captured:
            self._captured = {size: self._at(size, None)}
            self._sessions.clear()
        return self._captured[0 if self._varies else size]

    def _holds(self, captured: Captured, size: int) -> bool:
        """Whether a capture is one for this batch size, too: forward may fix the size, or branch on it."""
        shapes = {str(v.name): torch.Size(_sizes(dims(v), size)) for v in batch_inputs(captured.model.graph)}
        varies = any(not isinstance(d, int) for v in batch_inputs(captured.model.graph) for d in dims(v))
        return varies and captured.guards.violated(shapes, ones=False) is None

    def _feeds(self, session: TrainingSession, size: int) -> dict[str, torch.Tensor]:
        """The sample at a batch size: which rows have labels or are padding is the sample's. Added labels are zero."""
        args, kwargs = [self._resized(argument, size) for argument in self._args], self._resized(self._kwargs, size)
        tensors = [tensor for value in (*args, *kwargs.values()) for tensor in flatten(value)[0]]
        sample = dict(zip(self._capture(size).input_names, tensors, strict=True))
        for value in batch_inputs(session.model.graph):
            if value.name not in sample and value.dtype is not None:
                sample[str(value.name)] = torch.zeros(
                    _sizes(dims(value), size), dtype=tensor_dtype(value.dtype), device="cpu"
                )
        wanted = {value.name for value in batch_inputs(session.model.graph)}
        return {name: tensor for name, tensor in sample.items() if name in wanted}

    def _at(self, size: int, name: str | None) -> Captured:
        args, kwargs = [self._resized(argument, size) for argument in self._args], self._resized(self._kwargs, size)
        tensors = [tensor for value in (*args, *kwargs.values()) for tensor in flatten(value)[0]]
        dynamic = [{0: name} if name is not None and t.ndim and t.shape[0] == size else {} for t in tensors]
        modes = {module: module.training for module in self._module.modules()}
        self._module.train()
        try:
            return capture(self._module, args, kwargs, dynamic=dynamic)
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _resized(self, value: object, size: int) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.ndim or value.shape[0] != self._batch or size == self._batch:
                return value
            needed = (value[0].nbytes + torch.int64.itemsize) * size
            if needed > memory_limit():
                raise OptionError(
                    f"a batch of {size} needs {byte_text(needed)} for one of its tensors, there are "
                    f"{byte_text(memory_limit())}",
                    way_out="plan for smaller batches",
                )
            return value[torch.arange(size, device=value.device) % self._batch]
        if isinstance(value, Mapping):
            return {key: self._resized(item, size) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._resized(item, size) for item in value)
        return value


def _sizes(shape: Iterable[object], size: int) -> list[int]:
    return [length if isinstance(length, int) else size for length in shape]
