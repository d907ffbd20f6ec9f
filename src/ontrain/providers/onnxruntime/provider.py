"""`OnnxRuntimeExecutionProvider`: the step graph on stock onnxruntime, without a build of onnxruntime for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from ontrain.errors import OptionError
from ontrain.functions import has_body
from ontrain.providers.base import Capabilities, State, StateSpec, own_state
from ontrain.providers.onnxruntime.executable import OrtExecutable
from ontrain.providers.onnxruntime.rewriting import NAME, prepare
from ontrain.providers.onnxruntime.rules import RULES
from ontrain.providers.onnxruntime.state import OrtState
from ontrain.providers.onnxruntime.support import refusal
from ontrain.stock import stock

if TYPE_CHECKING:
    import onnxruntime
else:
    onnxruntime = stock()

__all__ = ["OnnxRuntimeExecutionProvider"]


class OnnxRuntimeExecutionProvider:
    """Runs graphs on onnxruntime's CPU kernels: bodies inlined, one session a plan, state bound to it.

    Args:
        device: "cpu", the only device it runs on.
        session_options: `onnxruntime.SessionOptions` for thread count, optimisation level and the like; the default
            is onnxruntime's own, with warnings off.

    Raises:
        OptionError: another device.
    """

    name = NAME
    device = "cpu"
    capabilities = Capabilities()

    def __init__(self, device: str = "cpu", session_options: onnxruntime.SessionOptions | None = None) -> None:
        if device != "cpu":
            raise OptionError(
                f"{NAME} does not run on {device!r}",
                reason="it uses onnxruntime's CPU kernels",
                way_out="set the device to 'cpu', or use TorchExecutionProvider",
            )
        if session_options is None:
            session_options = onnxruntime.SessionOptions()
            session_options.log_severity_level = 3
        self._options = session_options

    def supports(self, node: ir.Node) -> str | None:
        """None if onnxruntime has a kernel for the operator and its dtypes, or the operator has a body."""
        if has_body(node) is not None or (not node.domain and node.op_type in RULES):
            return None
        return refusal(node)

    def create_state(self, specs: Sequence[StateSpec]) -> OrtState:
        """Allocate one array a tensor; a second one follows for what a plan updates."""
        return OrtState(specs)

    def compile(self, model: ir.Model, state: State) -> OrtExecutable:
        """Inline bodies, write around what onnxruntime gets wrong, and make the session.

        Raises:
            ProviderError: onnxruntime has no kernel for an operator; names the node, its source line and the dtypes.
        """
        return OrtExecutable(prepare(model), own_state(state, OrtState, NAME), self._options)
