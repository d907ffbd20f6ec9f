"""The graphs of a trainer's run as models: for inference, and of a whole step."""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from ontrain.errors import OptionError
from ontrain.graph import OPSET
from ontrain.session import TrainingSession
from ontrain.session.export import inference_model, training_model
from ontrain.session.opsets import check_opset
from ontrain.training.run import Run

__all__ = ["RunExport"]


class RunExport:
    """Makes models of what a run has trained; `ORTTrainer` describes each method."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def inference_model(self, opset: int | None, *, copies: bool) -> ir.Model:
        """Return the model for inference; without `copies` its parameters are right until the next step."""
        run, description = self._run, self._run.setup.description
        session = run.require_session("export")
        run.adopt(session)
        model = run.evaluation_model(session, run.forms.samples)
        names = [d.name for d in description.outputs if not d.is_loss] or [description.loss.name]
        return inference_model(model, _tensors(session, copies), names, self._opset(opset))

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

    def _opset(self, asked: int | None) -> int:
        version = self._run.setup.options._internal_use.onnx_opset_version or OPSET if asked is None else asked
        check_opset(version)
        return int(version)


def _tensors(session: TrainingSession, copies: bool) -> dict[str, TorchTensor]:
    """The resident tensors as a file's."""
    resident = {name: torch.as_tensor(session.state[name]).detach() for name in session.state}
    return {name: TorchTensor(t.clone() if copies else t, name=name) for name, t in resident.items()}
