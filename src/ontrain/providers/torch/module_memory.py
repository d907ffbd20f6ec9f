"""What the plans of one module share: the user's tensors, blocks of working memory, memory of gradients."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
import torch

from ontrain.providers.torch.between import PlanOfHalves
from ontrain.providers.torch.blocks import Blocks
from ontrain.providers.torch.lowering.nodes import with_bodies
from ontrain.providers.torch.module_executable import TorchModuleExecutable
from ontrain.providers.torch.program import compile_module
from ontrain.providers.torch.replay import Recording
from ontrain.providers.torch.residents import Gradients, Residents
from ontrain.providers.torch.settings import Settings

__all__ = ["TorchModuleMemory"]


class TorchModuleMemory:
    """See `ontrain.providers.ModuleMemory`.

    Args:
        tensors: parameters and buffers by graph input name, used where they are.
        device: where they are, and where plans run.
        settings, recording: the provider's.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], device: torch.device, settings: Settings, recording: Recording
    ) -> None:
        self._residents, self._device, self._settings, self._recording = Residents(tensors), device, settings, recording
        self._blocks, self._gradients = Blocks(device), Gradients(device)

    def compile(self, model: ir.Model) -> PlanOfHalves:
        """Compile a graph made by `autodiff.build_backward`, or a forward graph alone."""
        graph = with_bodies(model, self._device.type).graph

        def lower() -> TorchModuleExecutable:
            program = compile_module(graph, self._residents, self._device, self._settings)
            return TorchModuleExecutable(program, self._residents, self._blocks, self._gradients, self._recording)

        return PlanOfHalves(lower, self._settings.tuning)

    def replace(self, name: str, tensor: torch.Tensor) -> bool:
        """Let a parameter or buffer be found in other memory; False if plans must be made anew."""
        return self._residents.replace(name, tensor)
