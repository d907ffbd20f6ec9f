"""`ModuleSession`: a captured module in a user's own loop, its parameters the user's, one plan a signature."""

from __future__ import annotations

import functools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from ontrain.autodiff import ADJOINT, build_backward, differentiable_outputs
from ontrain.errors import InputError, OntrainError
from ontrain.graph import reads, updates_of
from ontrain.passes import Journal
from ontrain.providers import ExecutionProvider, ModuleExecutable
from ontrain.session.feeds import batch_inputs, check_feeds, explain_index_error
from ontrain.session.halves import create_memory
from ontrain.session.plans import make_plan

__all__ = ["ModuleSession"]

_logger = logging.getLogger("ontrain.session.module")
_PLANS = 64
"""Plans kept, the least recently used goes first: a plan costs about a megabyte and some tenths of a second to make."""

Shapes = tuple[torch.Size, ...]
Key = tuple[Shapes, tuple[str, ...], tuple[str, ...]]


class ModuleSession:
    """Runs a captured graph forward and backward on tensors that belong to the user.

    Args:
        model: captured graph, roles on its inputs.
        provider: what compiles and runs the graphs.
        tensors: the user's parameters and buffers that the graph uses, by name; buffers are updated in place.
        device: where all of them are.
        journal: makes what says which passes may run, and writes a plan's stages down.
    """

    def __init__(
        self, model: ir.Model, provider: ExecutionProvider, tensors: Mapping[str, torch.Tensor], device: torch.device,
        journal: Callable[[], Journal],
    ) -> None:  # fmt: skip
        self.model, self.provider, self.device = model, provider, device
        self._journal = journal
        self.memory, self._compile = create_memory(provider, tensors)
        self.inputs = [v.name or "" for v in batch_inputs(model.graph)]
        self._plans: OrderedDict[Key, ModuleExecutable] = OrderedDict()
        self._lock = threading.Lock()

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
        self, inputs: Sequence[torch.Tensor], wrt: tuple[str, ...] = (), seeds: tuple[str, ...] = ()
    ) -> ModuleExecutable:
        """Return the plan for a call, making it when first asked.

        Args:
            inputs: the tensors of the call, in the order of `inputs`.
            wrt: parameters and inputs to differentiate by; none for a forward alone.
            seeds: outputs whose adjoints backward will bring.

        Raises:
            InputError: a tensor's shape, dtype or device does not fit the graph.
            GradientError: an operator between `wrt` and `seeds` has no gradient.
        """
        key = (tuple([t.shape for t in inputs]), wrt, seeds)
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                found = self._plans[key] = self._make(inputs, wrt, seeds)
            self._plans.move_to_end(key)
            if len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
            return found

    def _make(self, inputs: Sequence[torch.Tensor], wrt: tuple[str, ...], seeds: tuple[str, ...]) -> ModuleExecutable:
        signature = check_feeds(self.model.graph, dict(zip(self.inputs, inputs, strict=True)), self.device)
        build = functools.partial(build_backward, outputs=seeds, wrt=wrt) if seeds else None
        # Tensors of a plan outlive an inference_mode that it may be made under.
        with torch.inference_mode(False):
            plan = make_plan(self.model, signature, self._compile, build=build, journal=self._journal())
        _logger.debug("planned %s in %s", [list(t.shape) for t in inputs], plan.seconds)
        return plan.executable

    def forward(
        self, plan: ModuleExecutable, inputs: Sequence[torch.Tensor], seed: int
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
            return plan.forward(feeds, seed)
        except OntrainError:
            raise
        except (IndexError, RuntimeError) as error:
            explained = explain_index_error(self.model.graph, feeds)
            if explained is None:
                raise
            raise explained from error

    def backward(
        self, plan: ModuleExecutable, tape: Any, adjoints: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Run a plan's backward half on a tape, for the adjoints of its seeds by output name."""
        return plan.backward(tape, {f"{name}{ADJOINT}": adjoint for name, adjoint in adjoints.items()})


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
