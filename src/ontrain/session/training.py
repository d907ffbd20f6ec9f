"""`TrainingSession`: resident state, one plan a signature, and the counters that a step advances."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir
import torch

from ontrain.capture import tell_phases
from ontrain.errors import InputError, NonFiniteLossError, OptionError
from ontrain.internals import tensor_of
from ontrain.optim import Hyper, OptimizerSpec, StepKind, build_step
from ontrain.passes import Journal, LowerPrecision, run_passes
from ontrain.providers import Executable, ExecutionProvider, OperatorTime, State, StateSpec
from ontrain.session.description import PlanOptions, TrainingTask
from ontrain.session.failures import explained
from ontrain.session.feeds import Signature, check_feeds
from ontrain.session.planner import Planner, Structure
from ontrain.session.plans import Plan
from ontrain.session.state_layout import state_layout

__all__ = ["Counters", "Exchange", "TrainingSession"]

_EVALUATION = "eval"
"""The key of evaluation's plans, beside those of the kinds of steps."""


@dataclass
class Counters:
    """Where a run stands.

    Attributes:
        updates: optimizer updates done.
        micro_steps: micro-batches seen; also the offset of the random stream.
        pending: micro-batches whose gradients wait in the accumulators.
    """

    updates: int = 0
    micro_steps: int = 0
    pending: int = 0


class Exchange(Protocol):
    """What other processes of the run have to do with an update; see `ontrain.distributed`.

    Attributes:
        rank, size: number of this process, from 0, and of all.
        keeps_moments: whether each process keeps the moments of all parameters, in the session's own layout.
    """

    rank: int
    size: int
    keeps_moments: bool

    def create_state(self, session: TrainingSession, specs: Sequence[StateSpec]) -> State:
        """Lay out the session's state so that gradients can be reduced."""

    def update(self, session: TrainingSession, hyper: Hyper[float], plan: ir.Model) -> dict[str, torch.Tensor]:
        """Make the update of what all processes accumulated; `plan` is the graph of the last micro-batch.

        Returns:
            `grad_norm` and `all_finite`, as a step's graph has them. Nothing is updated where that is false.
        """

    def follow_optimizer(self, session: TrainingSession) -> None:
        """Make plans of updates anew: the session's hyper-parameters have changed."""


class TrainingSession:
    """Runs a captured graph as training steps on a provider.

    Args:
        task: what to train.
        initial: all parameters and buffers of the model by name, those that only evaluation uses included.
        provider: what compiles and runs the graphs.
        device: where.
        planning: how plans are made and run.
        exchange: with the other processes of the run; None where this is the only one.

    Raises:
        OptionError: recomputation is asked of a provider that would save nothing by it.
    """

    def __init__(
        self, task: TrainingTask, initial: Mapping[str, torch.Tensor], provider: ExecutionProvider,
        device: str = "cpu", *, planning: PlanOptions | None = None, exchange: Exchange | None = None,
    ) -> None:  # fmt: skip
        self._planning = planning = planning or PlanOptions()
        self.model, self.provider, self.optimizer = task.model, provider, task.optimizer
        self.loss, self.trainable, self.max_norm = task.loss, list(task.trainable), task.max_norm
        self.accumulation_steps, self.seed, self.precision = task.accumulation_steps, task.seed, task.precision
        self.device = torch.device(device)
        self.counters = Counters()
        self.eval_model: ir.Model | None = None
        self.last_outputs: dict[str, torch.Tensor] = {}
        self.exchange = exchange
        self._save_graphs = dict(planning.save_graphs)
        self._structures: dict[StepKind | None, Structure] = {}
        self._fitted: dict[Hashable, tuple[ir.Model | None, Hashable, Signature]] = {}
        self._planner = Planner(
            provider, self._compile, self.device, recomputation=planning.recomputation, accept=self._accept
        )
        self.model_tensors = list(initial)
        reduced = exchange is not None
        layout = state_layout(task, initial, reduced=reduced, keeps_moments=exchange is None or exchange.keeps_moments)
        self.accumulators, specs = layout.accumulators, layout.specs
        self.state: State = exchange.create_state(self, specs) if exchange else provider.create_state(specs)
        for name, tensor in initial.items():
            self.state[name] = tensor.detach()

    def step(
        self, feeds: Mapping[str, torch.Tensor], learning_rate: float, loss_scale: float = 1.0
    ) -> dict[str, torch.Tensor]:
        """Train on one micro-batch; every `accumulation_steps`-th one updates the parameters.

        The gradient is computed of the loss times `loss_scale`, which must be one for all micro-batches of an update,
        and divided by it before it is clipped and used.

        Returns:
            The graph's outputs by name, with `grad_norm` and `all_finite` after an update.

        Raises:
            InputError: the batch does not fit the graph, or an index is out of range.
            NonFiniteLossError: the gradient is NaN or infinite. Parameters and moments are as before the batch, the
                accumulators are empty.

        Warns:
            UserWarning: the loss is not finite but its gradient is, as for a batch without any label: the update was
                made with that gradient, as in eager PyTorch.
        """
        kind = self._next_kind()
        plan = self.plan(kind, feeds)
        number = self.counters.updates + 1
        hyper = Hyper(learning_rate=learning_rate, step=float(number), loss_scale=loss_scale)
        guard = None if kind is StepKind.ACCUMULATE else "all_finite"
        done = True
        try:
            outputs = self._run(plan, {**feeds, **hyper.feeds()}, guard)
        except InputError:
            done = False  # met in the forward: the gradients that wait are whole, and wait for another batch
            raise
        finally:
            # Nothing of an interrupted batch may stay behind.
            if kind is StepKind.ACCUMULATE_UPDATE and done:
                self._clear_accumulators()
        self.counters.micro_steps += 1
        self.last_outputs = outputs
        if kind is StepKind.ACCUMULATE:
            # A gradient that is not finite stays in the accumulators and is met at the update.
            self.counters.pending += 1
            if self.exchange is None or self.counters.pending < self.accumulation_steps:
                return outputs
            try:
                outputs |= self.exchange.update(self, hyper, plan.model)
            finally:
                self._clear_accumulators()
        self.counters.pending = 0
        loss = float(outputs[self.loss])
        if not bool(outputs["all_finite"]):
            raise NonFiniteLossError(
                f"the loss is {loss} at step {number}"
                + ("" if not math.isfinite(loss) else ", its gradient not finite"),
                reason="parameters and moments are as they were before this batch",
                way_out="lower the learning rate, clip the gradient, or look for bad values in the batch",
            )
        self.counters.updates = number
        if not math.isfinite(loss) and self.exchange is None:  # of several processes one may have no label
            warnings.warn(
                f"the loss is {loss} at step {number} and its gradient finite: has the batch a label at all?",
                stacklevel=3,
            )
        return outputs

    def set_optimizer(self, optimizer: OptimizerSpec) -> None:
        """Go on with other hyper-parameters; the plans of steps are made anew.

        Raises:
            OptionError: they need other state than there is, as momentum for an optimizer that had none.
        """
        for name in self.trainable:
            before, after = self.optimizer.state_names(name), optimizer.state_names(name)
            if before != after:
                needed, present = ", ".join(after) or "none", ", ".join(before) or "none"
                raise OptionError(
                    f"{name!r} would need the state {needed}, and has {present}",
                    reason="state is laid out at the first step",
                    way_out="make a new trainer, and load the model's state into it",
                )
        self.optimizer = optimizer
        if self.exchange is not None:
            self.exchange.follow_optimizer(self)
        for kind in StepKind:
            self._planner.forget(kind.value)

    def forget_graphs(self) -> None:
        """Let go of all plans and of the evaluation graph: others of the same parameters take the graphs' places."""
        self.eval_model = None
        self._structures.clear()
        for key in (*[kind.value for kind in StepKind], _EVALUATION):
            self._planner.forget(key)

    def evaluate(self, feeds: Mapping[str, torch.Tensor], model: ir.Model | None = None) -> dict[str, torch.Tensor]:
        """Run the evaluation graph, or a part of it, on a batch with the present parameters; nothing is updated."""
        return self._run(self.plan(None, feeds, model), feeds, None)

    def profile(self, feeds: Mapping[str, torch.Tensor]) -> list[OperatorTime]:
        """Time each operator of one training step; the state is put back afterwards."""
        plan = self.plan(StepKind.ACCUMULATE if self.exchange else StepKind.UPDATE, feeds)
        saved = {name: tensor_of(self.state[name]).clone() for name in self.state}
        hyper = Hyper(learning_rate=0.0, step=1.0, loss_scale=1.0)
        try:
            with explained(plan.model.graph, feeds, self.provider.name):
                return plan.executable.profile({**feeds, **hyper.feeds()}, rng=self._rng())
        finally:
            for name, value in saved.items():
                self.state[name] = value

    def plan(
        self, kind: StepKind | None, feeds: Mapping[str, torch.Tensor], model: ir.Model | None = None
    ) -> Plan[Executable]:
        """Return the plan for a batch's shapes, making it at the first call.

        Args:
            kind: of step; None for evaluation.
            feeds: the batch.
            model: for evaluation a part of `eval_model` that has fewer inputs, and one such part for these inputs.
        """
        if model is None:
            model = self.model if kind is not None else self.eval_model
        assert model is not None, "set eval_model before evaluating"
        structure = self._structure(kind, model)
        return self._planner.plan(structure, self._signature(structure, feeds), feeds)

    def _signature(self, structure: Structure, feeds: Mapping[str, torch.Tensor]) -> Signature:
        """What `check_feeds` says of a batch; known where it has dtypes, devices and shapes of the batch before."""
        kinds = tuple([(name, t.dtype, t.device, t.shape) for name, t in feeds.items()])
        model, before, signature = self._fitted.get(structure.key, (None, None, ()))
        if model is not structure.model or before != kinds:
            signature = check_feeds(structure.model.graph, feeds, self.device)
            self._fitted[structure.key] = structure.model, kinds, signature
        return signature

    @property
    def plans(self) -> Mapping[tuple[Hashable, Signature], Plan[Executable]]:
        """The plans that are kept, by kind and signature."""
        return self._planner.plans

    def state_bytes(self) -> int:
        """Bytes of parameters, buffers, moments and accumulators."""
        return self.state.nbytes()

    def _structure(self, kind: StepKind | None, model: ir.Model) -> Structure:
        """What the plans of a kind of step compute; None is evaluation."""
        structure = self._structures.get(kind)
        if structure is not None and structure.model is model:
            return structure
        key = _EVALUATION if kind is None else kind.value
        structure = self._structures[kind] = Structure(
            key=key,
            forward_key=kind is None,
            model=model,
            build=None if kind is None else functools.partial(self._build, kind),
            journal=functools.partial(self._journal, key, trains=kind is not None),
            precision=None if kind is None else self.precision,
        )
        return structure

    def _journal(self, title: str, *, trains: bool) -> Journal:
        options = self._planning
        save = self._save_graphs if trains else {}
        return Journal(title, disabled=options.disabled_passes, dump=options.dump, save=save)

    def _build(self, kind: StepKind, journal: Journal, forward: ir.Model) -> ir.Model:
        if self.precision is not None:
            lower = LowerPrecision(self.precision)
            forward, _ = run_passes(forward, [lower], stage="precision", journal=journal)
        return build_step(
            forward, self.loss, self.optimizer, trainable=self.trainable, kind=kind, max_norm=self.max_norm,
            narrow=self.precision is not None,
        )  # fmt: skip

    def _accept(self, structure: Structure, plan: Plan[Executable]) -> None:
        """Refuse a plan that needs more memory than is allowed; graphs are saved of the first step alone."""
        limit, needed = self._planning.memory_limit, self.state_bytes() + plan.executable.planned_bytes
        if limit and needed > limit:
            raise OptionError(
                f"a step on this batch needs {needed:,} bytes, device.mem_limit allows {limit:,}",
                reason=f"{self.state_bytes():,} of them are parameters, gradients that are kept, and moments",
                way_out="feed smaller batches and accumulate their gradients, or raise the limit",
            )
        if structure.build is not None:
            self._save_graphs = {}

    def _compile(self, model: ir.Model) -> Executable:
        return self.provider.compile(model, self.state)

    def _rng(self) -> tuple[int, int]:
        """Seed and offset of the random stream: the micro-batches of all processes are numbered through."""
        exchange, number = self.exchange, self.counters.micro_steps
        return self.seed, number if exchange is None else number * exchange.size + exchange.rank

    def _next_kind(self) -> StepKind:
        if self.exchange is not None:
            return StepKind.ACCUMULATE
        if self.accumulation_steps == 1:
            return StepKind.UPDATE
        last = self.counters.pending == self.accumulation_steps - 1
        return StepKind.ACCUMULATE_UPDATE if last else StepKind.ACCUMULATE

    def _run(
        self, plan: Plan[Executable], feeds: Mapping[str, torch.Tensor | float], guard: str | None
    ) -> dict[str, torch.Tensor]:
        with explained(plan.model.graph, feeds, self.provider.name):
            with _deterministic_kernels() if self._planning.deterministic else contextlib.nullcontext():
                started = time.perf_counter()
                outputs = plan.executable.run(feeds, rng=self._rng(), guard=guard)
            if not plan.runs:
                tell_phases("ran the first step", {"run": time.perf_counter() - started})
            plan.runs += 1
        return {name: tensor_of(value) for name, value in outputs.items()}

    def _clear_accumulators(self) -> None:
        self.counters.pending = 0
        for name in self.accumulators:
            self.state[name] = torch.zeros_like(tensor_of(self.state[name]))


@contextlib.contextmanager
def _deterministic_kernels() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()  # which tells warnings from errors
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
