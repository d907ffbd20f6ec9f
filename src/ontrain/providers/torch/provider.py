"""`TorchExecutionProvider`: graphs as planned lists of ATen calls, on CPU and CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from ontrain.errors import OptionError
from ontrain.graph import role_of, updates_of
from ontrain.providers.base import StateSpec
from ontrain.providers.torch.between import Plan, PlanOfHalves
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.executable import TorchExecutable
from ontrain.providers.torch.halves import compile_halves, pass_pins_back, places_of_feeds
from ontrain.providers.torch.heap import keep_freed_pages
from ontrain.providers.torch.lowering.head import pin_units
from ontrain.providers.torch.lowering.nodes import lower_nodes, why_not, with_bodies
from ontrain.providers.torch.lowering.optimizer import UPDATES, group_key
from ontrain.providers.torch.memory import Blocks, Memory, Residents
from ontrain.providers.torch.plan import ALWAYS, HELD_LONG, plan_memory
from ontrain.providers.torch.replay import Recording
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.state import TorchState
from ontrain.providers.torch.sums import add_in_place

__all__ = ["TorchExecutionProvider"]

# Outputs of these may be written over the state they update while reading it.
_ELEMENTWISE_UPDATES = frozenset({*UPDATES, "Add", "Sub", "Mul", "Div", "Where", "Identity", "BatchNormalization"})


class TorchExecutionProvider:
    """Compiles a graph of concrete shapes to ATen calls over one arena.

    Args:
        device: a torch device string, "cpu" or "cuda[:n]".
        logits_bytes: what the scores of a classifier may take at once where its loss is made in chunks of rows; by
            default `ONTRAIN_LOGITS_BYTES`, or 64 MiB.
        tune: measure each large product in single precision once on this machine's CPU and take the fastest way to it,
            which may round otherwise than eager PyTorch; or the name of the formulation that every such product takes.
            By default `ONTRAIN_TUNE`, or so.
        cuda_graphs: on a GPU record each plan's kernels once, and launch them as a whole from then on. By default
            `ONTRAIN_CUDA_GRAPHS`, or so.

    Raises:
        OptionError: there is no such device or formulation, or `logits_bytes` is no positive whole number.
    """

    name = "TorchExecutionProvider"
    plans_memory = True
    """Nodes run in the graph's order, each of them, on memory that is laid out beforehand: recomputation saves some."""

    def __init__(
        self, device: str = "cpu", logits_bytes: int | None = None, tune: bool | str | None = None,
        cuda_graphs: bool | None = None,
    ) -> None:  # fmt: skip
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise OptionError(
                f"device {device!r} is not available", reason="torch sees no CUDA device", way_out="use 'cpu'"
            )
        keep_freed_pages()
        self.settings = Settings.chosen(logits_bytes, tune, cuda_graphs)
        self.recording = Recording.on(self.device, wanted=self.settings.cuda_graphs)
        self._blocks = Blocks(self.device)

    @property
    def attends_sequences(self) -> bool:
        """Whether attention of packed sequences has kernels of its own, so that padding need not be put back for it."""
        return self.device.type == "cuda"

    def supports(self, node: ir.Node) -> str | None:
        """None if a lowering exists for the operator, or it has a body of operators."""
        return why_not(node)

    def create_state(self, specs: Sequence[StateSpec]) -> TorchState:
        """Allocate flat buffers, filled with zeros."""
        return TorchState(specs, self.device)

    def compile(self, model: ir.Model, state: Any) -> Plan:
        """Lower every node, plan memory, and return the executable; see `ExecutionProvider.compile`."""
        graph = with_bodies(model).graph
        return Plan(lambda: self._lower(graph, state), self.settings.tuning)

    def _lower(self, graph: ir.Graph, state: TorchState) -> TorchExecutable:
        e = Emitter(self.device, settings=self.settings)
        feeds = _bind_inputs(e, graph, state)
        late = _pin_updates(e, graph, state)
        _pin_gradients(e, graph, state)
        pass_pins_back(e, graph)
        add_in_place(e, graph, list(e.gradient_places.values()))
        pin_units(e, graph)
        lower_nodes(e, graph)
        for value, target in late:
            e.run(torch.Tensor.copy_, target, e.value(value), writes=[target])
        outputs = {v.name or "": e.there(e.value(v)) for v in graph.outputs if updates_of(v) is None}
        nbytes = plan_memory(e.program, [buf.storage.root() for buf in outputs.values() if buf.storage.planned],
                         held=HELD_LONG if e.device.type == "cpu" else ALWAYS)  # fmt: skip
        return TorchExecutable(e.program, feeds, outputs, nbytes, self._blocks, e.generators, self.recording)

    def create_memory(self, tensors: Mapping[str, torch.Tensor]) -> Memory:
        """Return what the plans of one module share; `tensors` are its parameters and buffers, used where they are."""
        return Memory(Residents(tensors), self.device, self.settings, self.recording)

    def compile_module(self, model: ir.Model, memory: Memory) -> PlanOfHalves:
        """Compile a graph made by `autodiff.build_backward`, or a forward graph alone; see `ModuleExecutable`."""
        graph = with_bodies(model).graph
        return PlanOfHalves(lambda: compile_halves(graph, memory, lower_nodes), self.settings.tuning)


def _bind_inputs(e: Emitter, graph: ir.Graph, state: TorchState) -> dict[str, Buf]:
    for value in graph.inputs:
        if role_of(value).resident:
            e.bind(value, e.constant(state[value.name or ""]))
    # Hyper-parameters are copied to the device too: a step never waits for the host.
    return places_of_feeds(e, [value for value in graph.inputs if not role_of(value).resident])


def _pin_updates(e: Emitter, graph: ir.Graph, state: TorchState) -> list[tuple[ir.Value, Buf]]:
    """Let updates be computed straight into the state where nobody reads the old value later; return the others."""
    position = {node: i for i, node in enumerate(graph)}
    inputs = {v.name: v for v in graph.inputs}
    late: list[tuple[ir.Value, Buf]] = []
    for value in graph.outputs:
        target = updates_of(value)
        if target is None:
            continue
        place = e.constant(state[target])
        producer = value.producer()
        if producer is not None and producer.op_type in UPDATES:
            continue  # the update's own lowering writes in place
        readers = [position[use.node] for use in inputs[target].uses()]
        direct = (
            producer is not None
            and producer.op_type in _ELEMENTWISE_UPDATES
            and all(reader <= position[producer] for reader in readers)
        )
        if direct:
            e.pin(value, place)
        else:
            late.append((value, place))
    for node in graph:
        if node.op_type in UPDATES:
            e.update_groups.setdefault(group_key(node), []).append(node)
    return late


def _pin_gradients(e: Emitter, graph: ir.Graph, state: TorchState) -> None:
    """Lay gradients out like the parameters they belong to, so that optimizer and norm walk one flat buffer."""
    for node in graph:
        if node.op_type not in UPDATES:
            continue
        param, grad = node.inputs[:2]
        assert param is not None and grad is not None
        place = e.constant(state.gradient(param.name or ""))
        e.gradient_places[param] = place
        if grad.producer() is not None and e.pinned(grad) is None:
            e.pin(grad, place)
