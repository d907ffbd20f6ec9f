"""`TrainingSession`: resident state, one plan a signature, and the counters that a step advances."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.capture.phases import tell_phases
from ontrain.errors import InputError, NonFiniteLossError, OptionError
from ontrain.optim import OptimizerSpec, StepKind, build_step
from ontrain.passes import Journal, LowerPrecision, Pass, run_passes
from ontrain.passes.recompute import Recomputation
from ontrain.providers import Executable, ExecutionProvider, OperatorTime, State, StateSpec
from ontrain.session.failures import explained
from ontrain.session.feeds import Signature, check_feeds, check_guards
from ontrain.session.plans import PLANS, Plan, make_plan
from ontrain.session.recent import Recent
from ontrain.session.recompute import check_provider
from ontrain.session.rows import RowCounts, Rows, plan_key

__all__ = ["Counters", "Exchange", "TrainingSession"]


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
        ...

    def update(self, session: TrainingSession, hyper: Mapping[str, float], plan: ir.Model) -> dict[str, torch.Tensor]:
        """Make the update of what all processes accumulated; `plan` is the graph of the last micro-batch.

        Returns:
            `grad_norm` and `all_finite`, as a step's graph has them. Nothing is updated where that is false.
        """
        ...

    def follow_optimizer(self, session: TrainingSession) -> None:
        """Make plans of updates anew: the session's hyper-parameters have changed."""
        ...


class TrainingSession:
    """Runs a captured graph as training steps on a provider.

    Args:
        model: captured graph in training mode, roles on its inputs.
        loss: name of the scalar output to minimise.
        optimizer: algorithm, hyper-parameters and groups.
        trainable: names of the parameters to update; the others stay.
        provider: what compiles and runs the graphs.
        initial: all parameters and buffers of the model by name, those that only evaluation uses included.
        max_norm: clip the gradient's global norm to this; None leaves it.
        accumulation_steps: micro-batches per update.
        seed: of the dropout stream.
        disabled_passes: graph passes to leave out, by name.
        dump: folder to write the graph to after each stage of each plan, see `ontrain.passes.Journal`.
        save_graphs: files for single stages of the first training plan, by onnxruntime's names.
        deterministic: run on kernels that repeat to the bit only; torch raises where a device has none.
        precision: FLOAT16 or BFLOAT16 for steps in mixed precision, see `ontrain.passes.LowerPrecision`; parameters
            and moments stay as they are, and evaluation runs in their precision.
        memory_limit: bytes that state and working memory may take together; 0 for no limit.
        recomputation: activations that backward computes again instead of finding them in memory.
        exchange: with the other processes of the run; None where this is the only one.

    Raises:
        OptionError: recomputation is asked of a provider that would save nothing by it.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        loss: str,
        optimizer: OptimizerSpec,
        trainable: Sequence[str],
        provider: ExecutionProvider,
        initial: Mapping[str, torch.Tensor],
        max_norm: float | None = None,
        accumulation_steps: int = 1,
        seed: int = 0,
        disabled_passes: Sequence[str] = (),
        dump: str | None = None,
        save_graphs: Mapping[str, str] | None = None,
        device: str = "cpu",
        deterministic: bool = False,
        precision: ir.DataType | None = None,
        memory_limit: int = 0,
        recomputation: Recomputation | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        check_provider(provider, recomputation)
        self.model, self.provider, self.optimizer = model, provider, optimizer
        self.loss, self.trainable, self.max_norm = loss, list(trainable), max_norm
        self.accumulation_steps, self.seed = accumulation_steps, seed
        self.device = torch.device(device)
        self.counters = Counters()
        self.eval_model: ir.Model | None = None
        self.last_outputs: dict[str, torch.Tensor] = {}
        self.precision, self._memory_limit = precision, memory_limit
        self._recomputation, self.exchange = recomputation, exchange
        self._disabled, self._deterministic = disabled_passes, deterministic
        self._dump, self._save_graphs = dump, dict(save_graphs or {})
        self._plans: Recent[tuple[str, Signature], Plan[Executable]] = Recent(PLANS)
        self._rows = RowCounts(provider, recomputes=recomputation is not None and recomputation.asked)
        self.model_tensors = list(initial)
        specs = self._specs(initial)
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
        hyper = {
            "learning_rate": learning_rate,
            "step": float(number),
            "loss_scale": loss_scale,
            "loss_denominator": 0.0,
        }
        guard = None if kind is StepKind.ACCUMULATE else "all_finite"
        done = True
        try:
            outputs = self._run(plan, {**feeds, **hyper}, guard)
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
        for key in [key for key in self._plans if key[0] != "eval"]:
            del self._plans[key]

    def evaluate(self, feeds: Mapping[str, torch.Tensor], model: ir.Model | None = None) -> dict[str, torch.Tensor]:
        """Run the evaluation graph, or a part of it, on a batch with the present parameters; nothing is updated."""
        return self._run(self.plan(None, feeds, model), feeds, None)

    def profile(self, feeds: Mapping[str, torch.Tensor]) -> list[OperatorTime]:
        """Time each operator of one training step; the state is put back afterwards."""
        plan = self.plan(StepKind.ACCUMULATE if self.exchange else StepKind.UPDATE, feeds)
        saved = {name: torch.as_tensor(self.state[name]).clone() for name in self.state}
        hyper = {"learning_rate": 0.0, "step": 1.0, "loss_scale": 1.0, "loss_denominator": 0.0}
        try:
            with explained(plan.model.graph, feeds, self.provider.name):
                return plan.executable.profile({**feeds, **hyper}, rng=self._rng())
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
        signature = check_feeds(model.graph, feeds, self.device)
        name = kind.value if kind is not None else "eval"
        scope = (kind is None, signature)
        rows = self._rows.of(scope, feeds)
        key = (name, signature + plan_key(rows or {}))
        found = self._plans.look(key) if rows is not None else None
        if found is None:
            check_guards(model, signature)

            def count(graph: ir.Model, passes: Sequence[Pass]) -> Rows:
                nonlocal rows
                if rows is None:
                    rows = self._rows.learn(scope, feeds, graph, passes)
                return rows

            save = {} if kind is None else self._save_graphs
            journal = Journal(name, disabled=self._disabled, dump=self._dump, save=save)
            build = functools.partial(self._build, kind=kind, journal=journal) if kind is not None else None
            found = make_plan(
                model, signature, self._compile, build=build, journal=journal, recomputation=self._recomputation,
                rows=count,
            )  # fmt: skip
            key = (name, signature + plan_key(rows or {}))
            self._check_memory(found)
            self._plans.put(key, found)
            if kind is not None:
                self._save_graphs = {}
        return found

    @property
    def plans(self) -> Mapping[tuple[str, Signature], Plan[Executable]]:
        """The plans that are kept, by kind and signature."""
        return self._plans

    def state_bytes(self) -> int:
        """Bytes of parameters, buffers, moments and accumulators."""
        return self.state.nbytes()

    def _build(self, forward: ir.Model, kind: StepKind, journal: Journal) -> ir.Model:
        if self.precision is not None:
            lower = LowerPrecision(self.precision)
            forward, _ = run_passes(forward, [lower], stage="precision", journal=journal)
        return build_step(
            forward, self.loss, self.optimizer, trainable=self.trainable, kind=kind, max_norm=self.max_norm,
            narrow=self.precision is not None,
        )  # fmt: skip

    def _check_memory(self, plan: Plan[Executable]) -> None:
        needed = self.state_bytes() + plan.executable.planned_bytes
        if self._memory_limit and needed > self._memory_limit:
            raise OptionError(
                f"a step on this batch needs {needed:,} bytes, device.mem_limit allows {self._memory_limit:,}",
                reason=f"{self.state_bytes():,} of them are parameters, gradients that are kept, and moments",
                way_out="feed smaller batches and accumulate their gradients, or raise the limit",
            )

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

    def _run(self, plan: Plan[Executable], feeds: Mapping[str, Any], guard: str | None) -> dict[str, torch.Tensor]:
        with explained(plan.model.graph, feeds, self.provider.name):
            with _deterministic_kernels() if self._deterministic else contextlib.nullcontext():
                started = time.perf_counter()
                outputs = plan.executable.run(feeds, rng=self._rng(), guard=guard)
            if not plan.runs:
                tell_phases("ran the first step", {"run": time.perf_counter() - started})
            plan.runs += 1
        return {name: torch.as_tensor(value) for name, value in outputs.items()}

    def _clear_accumulators(self) -> None:
        self.counters.pending = 0
        for name in self._accumulators:
            self.state[name] = torch.zeros_like(torch.as_tensor(self.state[name]))

    def _specs(self, initial: Mapping[str, torch.Tensor]) -> list[StateSpec]:
        """Resident tensors in an order that lets parameters, gradients and moments of a group lie side by side."""
        specs: list[StateSpec] = []
        self._accumulators: list[str] = []
        trainable = set(self.trainable)
        groups: dict[tuple[Any, ...], int] = {}
        accumulates = self.accumulation_steps > 1 or self.exchange is not None
        # An update on its own finds its gradients in the accumulators; else there is a place for them beside.
        sums = "grad_acc" if self.exchange is None else "gradient"
        for name, tensor in initial.items():
            shape, dtype = tuple(tensor.shape), from_torch_dtype(tensor.dtype)
            if name not in trainable:
                specs.append(StateSpec(name, shape, dtype, "fixed"))
                continue
            attributes = tuple(sorted(self.optimizer.attributes_for(name).items()))
            group = groups.setdefault(attributes, len(groups))
            specs.append(StateSpec(name, shape, dtype, "parameter", group))
            moment_dtype = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
            if self.exchange is None or self.exchange.keeps_moments:
                for moment in self.optimizer.state_names(name):
                    specs.append(StateSpec(moment, shape, moment_dtype, moment.rpartition(".")[2], group))
            if accumulates:
                self._accumulators.append(f"{name}.grad_acc")
                specs.append(StateSpec(f"{name}.grad_acc", shape, moment_dtype, sums, group))
        if accumulates:
            self._accumulators.append("loss_weight_acc")
            specs.append(StateSpec("loss_weight_acc", (), ir.DataType.FLOAT, "loss_weight_acc"))
        return specs


@contextlib.contextmanager
def _deterministic_kernels() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
