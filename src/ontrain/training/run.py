"""A trainer's run: the session from the first batch on, its steps, and what they mean for schedule and loss scale."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
import torch

from ontrain.errors import NonFiniteLossError, OptionError
from ontrain.internals import tensor_of
from ontrain.session import TrainingSession
from ontrain.training import processes
from ontrain.training.forms import Batch, Forms
from ontrain.training.optim.lr_scheduler import taken_back_if_refused
from ontrain.training.setup import Setup
from ontrain.training.state import Stateful, apply_state_dict
from ontrain.training.step_info import TrainStepInfo

__all__ = ["Run"]


class Run:
    """Trains and evaluates on a session that is made at the first batch.

    Attributes:
        setup: what the trainer was made with.
        forms: the model's graphs.
        session: None before the first batch.
        info: where the run stands.
        pending_state: a state_dict that waits for the session, and whether it is to be taken strictly.
        schedule_start: the update at which the present learning-rate schedule begins.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.forms = setup, Forms(setup)
        self.session: TrainingSession | None = None
        self.info = TrainStepInfo(setup.optimizer)
        self.pending_state: tuple[Mapping[str, object], bool] | None = None
        self.schedule_start = 0
        self._loss_scale = 1.0
        self._hyper_parameters = setup.hyper_parameters()
        self._is_outdated = False

    def ready(self, batch: Batch) -> TrainingSession:
        """Return the session, made of the first batch; a label that comes later brings the loss with it."""
        if self.session is not None:
            self._take_pending(self.session)
            if self.forms.lacks_loss and not self.forms.missing_inputs(batch):
                self.session.model, self.session.eval_model = self.forms.for_training(batch).model, None
                processes.follow_model(self.setup.reduction, self.session, self.setup.description)
            return self.session
        session = self.setup.session(self.forms.for_training(batch))
        self.setup.source.attach(session)
        self.session = session
        self._take_pending(session)
        if self.setup.reduction is not None:
            self.setup.reduction.start(session)  # weights that were loaded in process 0 alone are everybody's
        return session

    def require_session(self, purpose: str) -> TrainingSession:
        """Return the session.

        Raises:
            OptionError: there is none yet.
        """
        if self.session is None:
            raise OptionError(
                f"there is nothing to {purpose} yet",
                reason="the model is captured at the first train_step or eval_step",
                way_out="run one step first",
            )
        return self.session

    def step(self, session: TrainingSession, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Train on one micro-batch, with what the user has changed in module and configuration since the last one."""
        self.setup.source.check_trained()
        self.adopt(session, training=True)
        self._follow_model(session, batch)
        self._follow_configuration(session)
        with taken_back_if_refused(self.setup.options.lr_scheduler):
            return self._step(session, batch, self._learning_rate())

    def evaluate(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Return the outputs in evaluation mode that can be computed of a batch."""
        session = self.ready(batch)
        self.adopt(session, training=False)
        model = self.evaluation_model(session, batch)
        missing = self.forms.missing_inputs(batch)
        return session.evaluate(batch, self.forms.without(model, missing) if missing else None)

    def evaluation_model(self, session: TrainingSession, batch: Batch) -> ir.Model:
        """Return the session's graph in evaluation mode, captured when first asked for."""
        if session.eval_model is None:
            session.eval_model = self.forms.for_evaluation(batch)
        return session.eval_model

    def adopt(self, session: TrainingSession, *, training: bool) -> None:
        """Give the session what the user has changed in the module since the last step.

        Args:
            session: whose state it is.
            training: whether the call is for training.
        """
        for name in self.setup.source.adopt():
            processes.follow_tensor(self.setup.reduction, name, tensor_of(session.state[name]))
        if self.setup.source.changed(training=training):
            self._is_outdated = True
            session.forget_graphs()
            self.forms.forget_parts()

    def take_over(self, session: TrainingSession, state: Mapping[str, object], strict: bool) -> None:
        """Go on from a state_dict; one that does not fit is an error and changes nothing."""
        counters = apply_state_dict(session, state, strict, self.stateful_parts())
        processes.follow_state(self.setup.reduction, session, state, first=self.pending_state is not None)
        self.pending_state = None
        self.schedule_start = counters.get("schedule_start", 0) if counters else self.schedule_start
        self.setup.source.refresh()
        self._loss_scale = self._present_loss_scale()  # that of an update that is under way
        self._count(session)

    def stateful_parts(self) -> dict[str, Stateful]:
        """Return what has a state of its own beside the session, by its place in the state_dict."""
        options = self.setup.options
        parts = {"loss_scaler": options.mixed_precision.loss_scaler, "lr_scheduler": options.lr_scheduler}
        return {name: part for name, part in parts.items() if part is not None}

    def _take_pending(self, session: TrainingSession) -> None:
        """Take over a state that was loaded before there was a session; one that does not fit stays an error."""
        if self.pending_state is not None:
            self.take_over(session, *self.pending_state)

    def _follow_model(self, session: TrainingSession, batch: Batch) -> None:
        """Capture anew what the user has changed since the last step."""
        if not self._is_outdated:
            return
        form = self.forms.for_training(batch)
        if list(form.trainable) != session.trainable:
            names = sorted({*form.trainable} ^ {*session.trainable})
            raise OptionError(
                f"the changed module trains other parameters than at the first step: {', '.join(names)}",
                reason="the session holds moments for those",
                way_out="make a new trainer for the changed module",
            )
        if ir.to_proto(form.model) == ir.to_proto(session.model):
            self.setup.source.changed_nothing()
        session.model, self._is_outdated = form.model, False
        processes.follow_model(self.setup.reduction, session, self.setup.description)

    def _follow_configuration(self, session: TrainingSession) -> None:
        """Let hyper-parameters that were set since the last step act from this one on."""
        hyper_parameters = self.setup.hyper_parameters()
        if hyper_parameters != self._hyper_parameters:
            session.max_norm = self.setup.max_norm()
            session.set_optimizer(self.setup.optimizer_spec(session.model))
            self._hyper_parameters = hyper_parameters

    def _learning_rate(self) -> float:
        scheduler = self.setup.options.lr_scheduler
        if scheduler is None:
            return float(self.setup.optimizer.lr)
        info, start = self.info, self.schedule_start
        answer = scheduler._step(replace(info, optimization_step=info.optimization_step - start) if start else info)
        rate = answer[0] if isinstance(answer, list | tuple) and len(answer) == 1 else math.nan
        if not isinstance(rate, numbers.Real | torch.Tensor) or not 0 <= float(rate) < math.inf:
            raise OptionError(
                f"{type(scheduler).__name__}.get_lr returned {answer!r}", way_out="return a list of one number from 0"
            )
        return float(rate)

    def _present_loss_scale(self) -> float:
        scaler = self.setup.options.mixed_precision.loss_scaler
        return 1.0 if scaler is None else float(scaler.loss_scale)

    def _step(self, session: TrainingSession, batch: Batch, learning_rate: float) -> Mapping[str, torch.Tensor]:
        """One step, and what it means for the counters and the loss scale."""
        options, scaler = self.setup.options, self.setup.options.mixed_precision.loss_scaler
        if session.counters.pending == 0:  # one scale for all micro-batches of an update
            self._loss_scale = self._present_loss_scale()
        if not 0 < self._loss_scale < math.inf:
            raise OptionError(
                f"the loss scale of {type(scaler).__name__} is {self._loss_scale}",
                way_out="set loss_scale to a positive number",
            )
        try:
            outputs: Mapping[str, torch.Tensor] = session.step(batch, learning_rate, self._loss_scale)
            self.info.all_finite = True
        except NonFiniteLossError:
            self.info.all_finite = False
            if self._loss_scale <= 1.0 and options.utils.nonfinite_loss == "raise":
                raise
            outputs = session.last_outputs
        self.setup.source.refresh()
        self._count(session)
        if scaler is not None and session.counters.pending == 0:
            scaler.update(self.info)
        return outputs

    def _count(self, session: TrainingSession) -> None:
        self.info.optimization_step, self.info.step = session.counters.updates, session.counters.micro_steps
