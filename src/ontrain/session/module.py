"""`ModuleSession`: a captured module in a user's own loop, its parameters the user's, one plan a signature."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype

from ontrain.autodiff import ADJOINT, build_backward, differentiable_outputs
from ontrain.capture.phases import tell_phases
from ontrain.errors import InputError, OntrainError
from ontrain.graph import reads, static_dims, updates_of
from ontrain.passes import Journal, Pass
from ontrain.passes.recompute import Recomputation
from ontrain.providers import ExecutionProvider, ModuleExecutable
from ontrain.session.feeds import Signature, batch_inputs, check_feeds, explain_index_error
from ontrain.session.halves import create_memory
from ontrain.session.plans import PLANNING, PLANS, make_plan
from ontrain.session.recent import Recent
from ontrain.session.recompute import check_provider
from ontrain.session.rows import RowCounts, Rows, plan_key

__all__ = ["ModulePlan", "ModuleSession"]

Shapes = tuple[torch.Size, ...]
Key = tuple[Shapes, tuple[str, ...], tuple[str, ...], tuple[str, ...] | None, Signature]


@dataclass
class ModulePlan:
    """What runs a call: forward and backward for its shapes, and the outputs that it leaves out.

    Attributes:
        absent: shape and dtype of each output that is not computed, by name.
        fresh: whether it has not run yet.
    """

    executable: ModuleExecutable
    absent: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    fresh: bool = True


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
    """

    def __init__(
        self, model: ir.Model, provider: ExecutionProvider, tensors: Mapping[str, torch.Tensor], device: torch.device,
        journal: Callable[[], Journal], recomputation: Recomputation | None = None,
    ) -> None:  # fmt: skip
        check_provider(provider, recomputation)
        self._recomputation = recomputation
        self.model, self.provider, self.device = model, provider, device
        self._journal = journal
        self.memory, self._compile = create_memory(provider, tensors)
        self.inputs = [v.name or "" for v in batch_inputs(model.graph)]
        self._plans: Recent[Key, ModulePlan] = Recent(PLANS)
        self._rows = RowCounts(provider, recomputes=recomputation is not None and recomputation.asked)

    def differentiable(self, wrt: Sequence[str]) -> list[str]:
        """Return the outputs that depend on one of these inputs or parameters."""
        return differentiable_outputs(self.model, wrt)

    def read_buffers(self) -> list[str]:
        """Return the updated buffers whose old values some result depends on."""
        graph = self.model.graph
        updated = {updates_of(v) for v in graph.outputs}
        results = {v for v in graph.outputs if updates_of(v) is None}
        return [v.name or "" for v in graph.inputs if v.name in updated and _reaches(graph, v, results)]

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
        found, _ = self._look(inputs, wrt, seeds, outputs)
        if found is None:
            with PLANNING:
                found, rows = self._look(inputs, wrt, seeds, outputs)
                if found is None:
                    found, rows = self._make(inputs, wrt, seeds, outputs, rows)
                    self._plans.put(_key(inputs, wrt, seeds, outputs, rows), found)
        return found

    def _look(
        self, inputs: Sequence[torch.Tensor], wrt: tuple[str, ...], seeds: tuple[str, ...],
        outputs: tuple[str, ...] | None,
    ) -> tuple[ModulePlan | None, Rows | None]:  # fmt: skip
        """The plan for a call, if it is there, and how many rows a plan for it keeps, if that can be counted yet."""
        shapes = tuple([t.shape for t in inputs])
        rows = self._rows.of((shapes, outputs), dict(zip(self.inputs, inputs, strict=True)))
        found = None if rows is None else self._plans.look(_key(inputs, wrt, seeds, outputs, rows))
        return found, rows

    def _make(
        self, inputs: Sequence[torch.Tensor], wrt: tuple[str, ...], seeds: tuple[str, ...],
        outputs: tuple[str, ...] | None, rows: Rows | None,
    ) -> tuple[ModulePlan, Rows]:  # fmt: skip
        feeds = dict(zip(self.inputs, inputs, strict=True))
        signature = check_feeds(self.model.graph, feeds, self.device)
        scope = tuple([t.shape for t in inputs]), outputs

        def count(graph: ir.Model, passes: Sequence[Pass]) -> Rows:
            nonlocal rows
            if rows is None:
                rows = self._rows.learn(scope, feeds, graph, passes)
            return rows

        build = functools.partial(build_backward, outputs=seeds, wrt=wrt) if seeds else None
        # Tensors of a plan outlive an inference_mode that it may be made under.
        with torch.inference_mode(False):
            plan = make_plan(
                self.model, signature, self._compile, build=build, journal=self._journal(), outputs=outputs,
                recomputation=self._recomputation, rows=count,
            )  # fmt: skip
        absent = {name: _shape_and_dtype(value) for name, value in plan.absent.items()}
        return ModulePlan(plan.executable, absent), rows or {}

    def forward(
        self, plan: ModulePlan, inputs: Sequence[torch.Tensor], seed: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Run a plan's forward half; return outputs by name and the tape.

        Raises:
            InputError: a tensor is on another device, or an index is out of range.
        """
        for name, tensor in zip(self.inputs, inputs, strict=True):
            if tensor.device.type != self.device.type:
                raise InputError(
                    f"input {name!r} is on {tensor.device}, the module is on {self.device}",
                    way_out=f"move one of them: .to({str(self.device)!r})",
                )
        feeds = dict(zip(self.inputs, inputs, strict=True))
        try:
            started = time.perf_counter()
            found = plan.executable.forward(feeds, seed)
            if plan.fresh:
                plan.fresh = False
                tell_phases("ran the first forward", {"run": time.perf_counter() - started})
            return found
        except OntrainError:
            raise
        except (IndexError, RuntimeError) as error:
            explained = explain_index_error(self.model.graph, feeds)
            if explained is None:
                raise
            raise explained from error

    def backward(self, plan: ModulePlan, tape: Any, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run a plan's backward half on a tape, for the adjoints of its seeds by output name."""
        return plan.executable.backward(tape, {f"{name}{ADJOINT}": adjoint for name, adjoint in adjoints.items()})


def _key(
    inputs: Sequence[torch.Tensor], wrt: tuple[str, ...], seeds: tuple[str, ...], outputs: tuple[str, ...] | None,
    rows: Rows,
) -> Key:  # fmt: skip
    return tuple([t.shape for t in inputs]), wrt, seeds, outputs, plan_key(rows)


def _shape_and_dtype(value: ir.Value) -> tuple[tuple[int, ...], torch.dtype]:
    assert value.dtype is not None
    return static_dims(value), to_torch_dtype(value.dtype)


def _reaches(graph: ir.Graph, source: ir.Value, targets: set[ir.Value]) -> bool:
    reached = {source}
    for node in graph:
        found = [v for v in reads(node) if v in reached]
        statistics = node.inputs[3:5] if _normalises_by_batch(node) else ()
        if found and all(any(v is s for s in statistics) for v in found):
            reached.update(node.outputs[1:])  # the running statistics; the result is of the batch alone
        elif found:
            reached.update(node.outputs)
    return not reached.isdisjoint(targets)


def _normalises_by_batch(node: ir.Node) -> bool:
    mode = node.attributes.get("training_mode")
    return node.op_type == "BatchNormalization" and mode is not None and mode.as_int() == 1
