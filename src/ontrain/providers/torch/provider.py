"""`TorchExecutionProvider`: graphs as planned lists of ATen calls, on CPU and CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx_ir as ir
import torch

from ontrain.errors import OptionError
from ontrain.graph import WorkingMemory
from ontrain.providers.base import AtOnce, Capabilities, Executable, State, StateSpec, own_state
from ontrain.providers.torch.between import Plan
from ontrain.providers.torch.blocks import Blocks
from ontrain.providers.torch.executable import TorchExecutable
from ontrain.providers.torch.heap import keep_freed_pages
from ontrain.providers.torch.lowering.nodes import why_not, with_bodies
from ontrain.providers.torch.module_memory import TorchModuleMemory
from ontrain.providers.torch.prediction import memory_of
from ontrain.providers.torch.processor import multiplies_bfloat16
from ontrain.providers.torch.program import compile_step, serves_by_rows
from ontrain.providers.torch.replay import Recording
from ontrain.providers.torch.settings import Settings
from ontrain.providers.torch.state import TorchState
from ontrain.providers.torch.vector_functions import settle_vector_functions

__all__ = ["TorchExecutionProvider"]


class TorchExecutionProvider:
    """Compiles a graph of concrete shapes to ATen calls over one arena.

    Args:
        device: a torch device string, "cpu" or "cuda[:n]".
        logits_bytes: what the scores of a classifier may take at once where its loss is made in chunks of rows; by
            default `ONTRAIN_LOGITS_BYTES`, or 64 MiB (512 MiB on a GPU).
        tune: measure each large product in single precision once on this machine's CPU and take the fastest way to it,
            which may round otherwise than eager PyTorch; or the name of the formulation that every such product takes.
            By default `ONTRAIN_TUNE`, or so.
        cuda_graphs: on a GPU record each plan's kernels once, and launch them as a whole from then on. By default
            `ONTRAIN_CUDA_GRAPHS`, or so.
        join: on a CPU run small nodes that follow each other in a graph that serves as one call of onnxruntime. By
            default `ONTRAIN_JOIN`, or so; never with eager PyTorch's products.

    Raises:
        OptionError: there is no such device or formulation, or `logits_bytes` is no positive whole number.
    """

    name = "TorchExecutionProvider"

    def __init__(
        self, device: str = "cpu", logits_bytes: int | None = None, tune: bool | str | None = None,
        cuda_graphs: bool | None = None, join: bool | None = None,
    ) -> None:  # fmt: skip
        self._device = torch.device(device)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise OptionError(
                f"device {device!r} is not available", reason="torch sees no CUDA device", way_out="use 'cpu'"
            )
        keep_freed_pages()
        settle_vector_functions()
        self.settings = Settings.chosen(logits_bytes, tune, cuda_graphs, join, self._device.type)
        self.recording = Recording.on(self._device, wanted=self.settings.cuda_graphs)
        self._blocks = Blocks(self._device)

    @property
    def device(self) -> str:
        """Where it runs, as a torch device string."""
        return str(self._device)

    @property
    def attends_sequences(self) -> bool:
        """Whether attention of packed sequences has kernels of its own, so that padding need not be put back for it."""
        return self._device.type == "cuda"

    @property
    def capabilities(self) -> Capabilities:
        """All that a provider can do; of packed sequences see `attends_sequences`."""
        return Capabilities(
            memory_of=self.memory_of, module_memory=self.module_memory, flat_state=self.create_state,
            attends_sequences=self.attends_sequences,
            serves_sequences=True,
            multiplies_bfloat16=self._device.type != "cpu" or multiplies_bfloat16(), at_once=_at_once,
            joins=self.settings.joins and self.settings.tuning is not None and self._device.type == "cpu",
        )  # fmt: skip

    def supports(self, node: ir.Node) -> str | None:
        """None if a lowering exists for the operator, or it has a body of operators."""
        return why_not(node)

    def create_state(self, specs: Sequence[StateSpec]) -> TorchState:
        """Allocate flat buffers, filled with zeros."""
        return TorchState(specs, self._device)

    def compile(self, model: ir.Model, state: State) -> Plan:
        """Lower every node, plan memory, and return the executable; see `ExecutionProvider.compile`."""
        own = own_state(state, TorchState, self.name)
        graph = with_bodies(model, self._device.type, serves=serves_by_rows(own, self.settings)).graph

        def lower(*, joins: bool = self.settings.joins) -> TorchExecutable:
            settings = replace(self.settings, joins=joins)
            return TorchExecutable(compile_step(graph, own, settings), self._blocks, self.recording)

        return Plan(lower, self.settings.tuning, partial(lower, joins=False))

    def module_memory(self, tensors: Mapping[str, torch.Tensor]) -> TorchModuleMemory:
        """Return what the plans of one module share; `tensors` are its parameters and buffers, used where they are."""
        return TorchModuleMemory(tensors, self._device, self.settings, self.recording)

    def memory_of(self, graph: ir.Graph) -> WorkingMemory:
        """Return where the values of a graph will lie."""
        return memory_of(graph, self.settings.logits_bytes, as_eager=self.settings.tuning is None)


def _at_once(executable: Executable) -> AtOnce | None:
    return executable.current.at_once if isinstance(executable, Plan) else None
