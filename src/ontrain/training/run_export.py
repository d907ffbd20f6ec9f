"""The graphs of a trainer's run as models: for inference, and of a whole step."""

from __future__ import annotations

import contextlib

import onnx
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor

from ontrain.errors import GraphError, OptionError
from ontrain.graph import OPSET
from ontrain.internals import tensor_of
from ontrain.session import OLDEST, TrainingSession, check_opset, inference_model, training_model
from ontrain.training.run import Run

__all__ = ["RunExport"]


class RunExport:
    """Makes models of what a run has trained; `ORTTrainer` describes each method."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def inference_model(self, opset: int | None, *, copies: bool, optimize: bool | None) -> ir.Model:
        """Return the model for inference; without `copies` its parameters are right until the next step."""
        optimize = self._run.setup.source.opset is None if optimize is None else optimize
        run, description = self._run, self._run.setup.description
        session = run.require_session("export")
        run.adopt(session, training=False)
        model = run.evaluation_model(session, run.forms.samples)
        described = [d for d in description.outputs if not d.is_loss] or [description.loss]
        state, axes = _tensors(session, copies), {d.name: d.shape for d in described}
        version, filed = self._opset(opset), self._kept_opset(opset)
        if filed is not None:
            with contextlib.suppress(GraphError):  # an operator that only newer ones have
                return inference_model(model, state, [*axes], filed, axes=axes, optimize=optimize)
        return inference_model(model, state, [*axes], version, axes=axes, optimize=optimize)

    def training_model(self, opset: int | None) -> ir.Model:
        """Return the model of a whole step; its state is right until the next step."""
        version = self._opset(opset)
        state = _tensors(self._run.require_session("export"), copies=False)
        return training_model(self.step_model(), state, version)

    def step_model(self) -> ir.Model:
        """Return the graph of a whole step for the batch shape that ran most often."""
        session = self._run.require_session("show the graph")
        plans = [plan for (kind, _), plan in session.plans.items() if kind != "eval"]
        if not plans:
            raise OptionError("there is no step graph before the first train_step")
        return max(plans, key=lambda plan: plan.runs).model

    def _kept_opset(self, asked: int | None) -> int | None:
        """The opset of the file that is trained, where nobody asks for another."""
        source, stated = self._run.setup.source.opset, self._run.setup.options._internal_use.onnx_opset_version
        if source is None or asked is not None or stated is not None:
            return None
        return min(max(source, OLDEST), onnx.defs.onnx_opset_version())

    def _opset(self, asked: int | None) -> int:
        version = self._run.setup.options._internal_use.onnx_opset_version or OPSET if asked is None else asked
        check_opset(version)
        return int(version)


def _tensors(session: TrainingSession, copies: bool) -> dict[str, TorchTensor]:
    """The resident tensors as a file's."""
    resident = {name: tensor_of(session.state[name]).detach() for name in session.state}
    return {name: TorchTensor(t.clone() if copies else t, name=name) for name, t in resident.items()}
