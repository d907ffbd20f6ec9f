"""The update of several processes: gradients reduced, each share updated by the graph of an update, parameters shared.

    gradients, as sums over labels   ─ all-reduce ─ ÷ labels ─ update                      (stage 0)
                                     ─ reduce-scatter ─ ÷ labels ─ update ─ all-gather      (stage 1)

The update is a graph for the provider, made by `ontrain.optim.build_update` of the same functions as a whole step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.distributed.adasum import adasum_, check_adasum
from ontrain.distributed.agreement import Agreement, optimizer_facts
from ontrain.distributed.shares import Share, shares
from ontrain.distributed.world import World
from ontrain.errors import OptionError
from ontrain.graph import Role, Slot, StateKind, by_role, slot_of, updates_of, verify, verify_requested
from ontrain.internals import tensor_of
from ontrain.optim import Hyper, Part, build_lamb_directions, build_lamb_moves, build_update
from ontrain.providers import Executable, FlatState, State, StateSpec
from ontrain.session import TrainingSession

__all__ = ["Reduction"]


class Reduction:
    """What a session does together with those of the other processes; see `ontrain.session.Exchange`.

    Args:
        world: the processes.
        stage: of ZeRO. 0: all processes keep all moments and make the same update. 1: each keeps the moments of an
            equal share of the elements, and updates these.
        adasum: combine gradients by adaptive summation instead of adding them up.

    Raises:
        OptionError: adaptive summation over a number of processes that is no power of two.
    """

    def __init__(self, world: World, stage: int = 0, adasum: bool = False) -> None:
        if adasum:
            check_adasum(world.size)
        self.world, self.rank, self.size = world, world.rank, world.size
        self.stage, self.keeps_moments, self._adasum = stage, stage == 0, adasum
        self.agreement = Agreement(world)
        """What this process must have in common with the others."""
        self.shares: list[Share] = []
        """What this process updates, in stage 1."""
        self.state: FlatState
        """The session's, once `create_state` has laid it out."""
        self._update: Callable[[TrainingSession, Mapping[str, float]], None] | None = None

    def create_state(self, session: TrainingSession, specs: Sequence[StateSpec]) -> State:
        """Lay out parameters and gradients alike, and in stage 1 the moments of the own share.

        Raises:
            OptionError: the provider's state is not one that can be reduced, or shared out.
        """
        create = session.provider.capabilities.flat_state
        if create is None:
            raise OptionError(
                f"{session.provider.name} cannot train in several processes",
                reason="its gradients do not lie in flat torch tensors, which are what is reduced",
                way_out="use TorchExecutionProvider",
            )
        self.state = state = create([])
        state.extend(specs, 1 if self.keeps_moments else self.size)
        if not self.keeps_moments:
            self._share_out(session, {spec.name: spec for spec in specs})
        return state

    def start(self, session: TrainingSession) -> None:
        """Give all processes the parameters and buffers of process 0."""
        for (kind, _, _), flat in self.state.flat.items():
            if kind in (StateKind.PARAMETER, StateKind.FIXED):
                self.world.broadcast_(flat)

    def update(self, session: TrainingSession, hyper: Hyper[float], plan: ir.Model) -> dict[str, torch.Tensor]:
        """Make one update of all processes' gradients; see `ontrain.session.Exchange`.

        Raises:
            ProcessError: another process has died, or would make another update.
        """
        trained = {
            slot.owner
            for value in plan.graph.inputs
            if (slot := slot_of(value)) is not None and slot.kind is StateKind.GRADIENT_SUM
        }
        self._reduce(session, hyper)
        parts = self._parts(session, trained)
        norm = self._norm(parts)
        finite = math.isfinite(norm)
        if finite:
            if self._update is None:
                self._update = self._plan(session, parts)
            self._update(session, {**hyper.feeds(), "norm": norm})
            if not self.keeps_moments:
                for (kind, _, _), flat in self.state.flat.items():
                    if kind == StateKind.PARAMETER:
                        self.world.all_gather_(flat)
        self._share_buffers(session, plan)
        told = {"grad_norm": norm / hyper.loss_scale, "all_finite": finite}
        return {name: torch.tensor(value, device="cpu") for name, value in told.items()}

    def follow_optimizer(self, session: TrainingSession) -> None:
        """Make the graph of the update anew at the next one, and see that all processes do."""
        self._update = None
        self.agreement.follow(optimizer_facts(session))

    def _share_out(self, session: TrainingSession, specs: Mapping[str, StateSpec]) -> None:
        """Make the own stretches of parameters and gradients resident under names of their own, with moments."""
        trainable = [specs[name] for name in session.trainable]
        narrow = next((spec for spec in trainable if spec.dtype.itemsize < 4), None)
        if narrow is not None:
            raise OptionError(
                f"ZeRO stage 1 with the parameter {narrow.name!r} in {str(narrow.dtype).lower()}",
                reason="a share is the same stretch of parameters and of gradients, which are kept in float32",
                way_out="keep parameters in float32 and set mixed_precision.enabled, or use stage 0",
            )
        self.shares = shares(self.state, {spec.name: spec.shape for spec in trainable}, self.rank, self.size)
        moments = []
        for share in self.shares:
            spec = specs[share.parameter]
            self.state.part(share.name, share.parameter, share.start, share.stop)
            self.state.part(_sum_of(share.name), _sum_of(share.parameter), share.start, share.stop)
            for kind in session.optimizer.state_kinds(share.parameter):
                shape = (share.stop - share.start,)
                moments.append(StateSpec(Slot(share.name, kind).name, shape, spec.dtype, kind, spec.group))
        self.state.extend(moments)

    def _reduce(self, session: TrainingSession, hyper: Hyper[float]) -> None:
        """Bring the mean gradient over all labels into the accumulators, in stage 1 into the own stretches of them."""
        own = float(session.state[Slot("", StateKind.LABEL_COUNT).name])
        labels = self.agreement.all_labels(
            own,
            {
                "the updates that they have made": session.counters.updates,
                "the micro-batches that they have seen": session.counters.micro_steps,
                "the learning rate": hyper.learning_rate,
                "the loss scale": hyper.loss_scale,
            },
        )
        for key, flat in self.state.flat.items():
            if key[0] != StateKind.GRADIENT:
                continue
            if self._adasum:
                flat.div_(own or 1.0)
                spans = [
                    (start, start + tensor_of(session.state[name]).numel())
                    for name in session.trainable
                    for place, start in [self.state.place[_sum_of(name)]]
                    if place == key
                ]
                adasum_(self.world, flat, spans)
            else:
                part = self.world.sum_(flat) if self.keeps_moments else self.world.reduce_scatter_(flat)
                part.div_(labels or 1.0)  # no label anywhere: the sums are zero, and so shall the gradient be

    def _parts(self, session: TrainingSession, trained: set[str]) -> list[Part]:
        """What this process updates; a parameter on which the loss does not depend is left alone."""
        stretches = [(share.name, share.parameter) for share in self.shares if share.parameter in trained]
        if self.keeps_moments:
            stretches = [(name, name) for name in session.trainable if name in trained]
        parts = []
        for name, parameter in stretches:
            tensor = tensor_of(session.state[name])
            parts.append(Part(name, parameter, tuple(tensor.shape), from_torch_dtype(tensor.dtype)))
        return parts

    def _norm(self, parts: Sequence[Part]) -> float:
        """The norm of the whole gradient, still times the loss scale."""
        norms = [self.state.norm(_sum_of(part.name)).double() for part in parts]
        device = self.world.device
        squares = torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float64, device=device)
        if not self.keeps_moments:
            self.world.sum_(squares)
        return float(squares.sqrt())

    def _plan(self, session: TrainingSession, parts: Sequence[Part]) -> Callable[[TrainingSession, Any], None]:
        """Compile the update of the parts; LAMB's in two halves where parameters lie on several processes."""
        optimizer, max_norm = session.optimizer, session.max_norm

        def compiled(model: ir.Model) -> Executable:
            if verify_requested():
                verify(model, after="building the update")
            return session.provider.compile(model, session.state)

        if self.keeps_moments or optimizer.algorithm != "Lamb":
            whole = compiled(build_update(parts, optimizer, max_norm)) if parts else None

            def update_whole(session: TrainingSession, hyper: Mapping[str, float]) -> None:
                if whole is not None:
                    whole.run(hyper)

            return update_whole
        # A process may have no part at all; it adds nothing to the others' sums.
        first = compiled(build_lamb_directions(parts, optimizer, max_norm)) if parts else None
        second = compiled(build_lamb_moves(parts, optimizer)) if parts else None
        numbers = torch.tensor([session.trainable.index(part.parameter) for part in parts], device=self.world.device)

        def update_halves(session: TrainingSession, hyper: Mapping[str, float]) -> None:
            squares = torch.zeros(2, len(session.trainable), dtype=torch.float64, device=self.world.device)
            if first is not None:
                results = first.run(hyper)
                squares[:, numbers] = torch.stack([results["param_squares"], results["update_squares"]])
            self.world.sum_(squares)
            if second is not None:
                whole = squares[:, numbers]
                second.run({**hyper, "param_squares": whole[0], "update_squares": whole[1]})

        return update_halves

    def _share_buffers(self, session: TrainingSession, plan: ir.Model) -> None:
        """Let running statistics be those of process 0, as under DistributedDataParallel."""
        buffers = {value.name for value in by_role(plan.graph, Role.BUFFER)}
        changed = [name for value in plan.graph.outputs if (name := updates_of(value) or "") in buffers]
        for name in changed:
            self.world.broadcast_(session.state[name])


def _sum_of(parameter: str) -> str:
    """What the accumulated gradient of a parameter, or of a stretch of one, is called."""
    return Slot(parameter, StateKind.GRADIENT_SUM).name
