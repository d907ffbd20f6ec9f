"""`ORTTrainer`: a module or an ONNX file, its loss and an optimizer trained as one graph."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from ontrain.arguments import checked_flag, checked_kind, checked_names, checked_path, checked_whole, told
from ontrain.capture.phases import show_phases
from ontrain.checkpoint import read_checkpoint, write_checkpoint, write_together
from ontrain.errors import InputError, NonFiniteLossError, OptionError, nearest
from ontrain.graph import OPSET
from ontrain.locks import in_turn
from ontrain.optim import OptimizerSpec
from ontrain.passes import HALF, check_names
from ontrain.providers import get_provider
from ontrain.session import TrainingSession
from ontrain.session.export import EXTERNAL_DATA_THRESHOLD, inference_model, save_model, training_model
from ontrain.session.opsets import check_opset
from ontrain.session.partial import without_inputs
from ontrain.training import process, processes
from ontrain.training.model_desc import ModelDescription
from ontrain.training.optim.config import _OptimizerConfig
from ontrain.training.optim.lr_scheduler import taken_back_if_refused
from ontrain.training.options import ORTTrainerOptions
from ontrain.training.postprocess import postprocessed
from ontrain.training.shared_state import Place
from ontrain.training.source import Form, check_parameter_names
from ontrain.training.sources import source_of
from ontrain.training.state import apply_state_dict, check_state, from_files, make_state_dict, to_files
from ontrain.training.step_info import TrainStepInfo
from ontrain.training.wrapping import bind_batch, labels_of

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"]

_TOLD = ("grad_norm", "all_finite")
"""Outputs that a step with an update has beside those of the model."""


@in_turn(
    "train_step", "eval_step", "parameter", "set_parameter", "save_as_onnx", "inference_model", "state_dict",
    "load_state_dict", "save_checkpoint", "load_checkpoint", "prepare", "profile",
)  # fmt: skip
class ORTTrainer:
    """Trains a module or an ONNX file as one graph: forward, loss, backward, accumulation, clipping and update.

    A module is captured at the first step. From then on its parameters live in the session: the module's own
    parameters become views of them, or copies on a provider whose state is not torch's, so `model.state_dict()` stays
    up to date. A file's parameters are its
    initializers, under their names. Threads that share a trainer take turns: a step changes what all others read.

    Args:
        model: an `nn.Module`, in any mode; captured in training mode for `train_step`, in evaluation mode for
            `eval_step`. Or an ONNX model: a path, an `onnx.ModelProto`, its bytes, or an `onnx_ir.Model`.
        model_desc: `{'inputs': [(name, shape), …], 'outputs': [(name, shape[, is_loss]), …]}`; a dimension given as a
            string may vary. Outputs that are not described are not computed.
        optim_config: `optim.SGDConfig`, `AdamConfig` or `LambConfig`.
        loss_fn: function of (model's first output, label), the label being the last input; None if the model
            returns its loss. For an ONNX model also a name: "CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss" or
            "BCEWithLogitsLoss".
        options: `ORTTrainerOptions`, or a dictionary for it.
        requires_grad: for an ONNX model, names or patterns of the initializers to train, as `ontrain.capture.load_onnx`
            takes them; by default all weights. `utils.frozen_weights` are taken from them.

    Raises:
        OptionError: an argument is malformed, or does not fit the model.
        InputError, GraphError: the ONNX model is missing, damaged, or cannot be trained.
    """

    def __init__(
        self,
        model: torch.nn.Module | str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model,
        model_desc: Mapping[str, Any],
        optim_config: _OptimizerConfig,
        loss_fn: Callable[..., Any] | str | None = None,
        options: ORTTrainerOptions | Mapping[str, Any] | None = None,
        *,
        requires_grad: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(optim_config, _OptimizerConfig):
            raise OptionError(
                f"optim_config is a {type(optim_config).__name__}",
                way_out="give optim.SGDConfig, AdamConfig or LambConfig",
            )
        self.model_desc = ModelDescription.parse(model_desc)
        self.options = options if isinstance(options, ORTTrainerOptions) else ORTTrainerOptions(options)
        if self.options.debug.verbose:
            show_phases()
        self.optim_config, self.loss_fn = optim_config, loss_fn
        self.device = processes.device_of(self.options)
        self._source = source_of(model, self.model_desc, loss_fn, self.options, requires_grad)
        chosen = self.options.provider
        name, settings = (chosen, {}) if isinstance(chosen, str) else chosen
        self._provider = get_provider(name, self.device, {**settings, **self.options.provider_options})
        self._session: TrainingSession | None = None
        self._pending_state: tuple[Mapping[str, Any], bool] | None = None
        self._info = TrainStepInfo(optim_config)
        self._seed = process.seed() if self.options.utils.seed is None else self.options.utils.seed
        self._scale, self._schedule_start = 1.0, 0
        self._partial: dict[tuple[str, ...], ir.Model] = {}
        self._labels, self._lacks_loss = labels_of(self.model_desc, loss_fn), True
        self._hyper = _graph_hyper(optim_config)
        self._samples: dict[str, torch.Tensor] = {}
        self._seconds: dict[str, float] = {}
        self._check_names()
        self._reduction = processes.join(self.options, self.device)

    def train_step(
        self, *args: torch.Tensor, fetches: Sequence[str] | None = None, **kwargs: torch.Tensor
    ) -> torch.Tensor | list[torch.Tensor]:
        """Train on one batch: inputs in the order of model_desc, or by name; tensors or numpy arrays.

        In float16 a step whose gradient overflowed is skipped and the loss scale lowered. Where the scale is one
        already, that is not what the gradient overflows for, and an error as without scaling.

        Args:
            *args: inputs by position.
            fetches: names of the outputs to return instead of `train_step_info.fetches`: described ones, and, with an
                update, "grad_norm" (of the gradient before clipping) and "all_finite".
            **kwargs: inputs by name.

        Returns:
            The described outputs in order, or those of `fetches`, as a list; a single one as itself.

        Raises:
            InputError: the batch does not fit the description.
            CaptureError, GradientError: the model cannot be captured or differentiated; names the user's line.
            NonFiniteLossError: loss or gradient is not finite (unless `utils.nonfinite_loss` is 'skip').
            ProcessError: another process of the run has died, or would train something else.
        """
        batch = bind_batch(self.model_desc, args, kwargs, self.device)
        wanted = self._wanted(fetches)
        for name, tensor in batch.items():
            if tensor.ndim and not tensor.shape[0]:
                raise InputError(
                    f"input {name!r} is empty: {list(tensor.shape)}", reason="there is nothing to learn from it",
                    way_out="leave the batch out",
                )  # fmt: skip
        first = self._lacks_loss
        session = self._ready(batch)
        self._check_fetches(session, wanted)
        self._adopt(session)
        self._follow_config(session)
        with taken_back_if_refused(self.options.lr_scheduler):
            outputs = self._step(session, batch, self._learning_rate())
        if first:
            self._compare_description({**batch, **outputs})
        return self._described(outputs, fetches)

    def eval_step(
        self, *args: torch.Tensor, fetches: Sequence[str] | None = None, **kwargs: torch.Tensor
    ) -> torch.Tensor | list[torch.Tensor]:
        """Return outputs in evaluation mode (no dropout, running statistics, full precision); updates nothing.

        Inputs may be left out, as the label where only the model's outputs are asked for: the outputs that depend on
        them are then not among the results. Before the first whole batch that is the label of a `loss_fn` alone.
        """
        optional = self._labels if self._lacks_loss else tuple(d.name for d in self.model_desc.inputs)
        batch = bind_batch(self.model_desc, args, kwargs, self.device, optional=optional)
        session = self._ready(batch)
        self._adopt(session)
        self._ready_for_evaluation(batch)
        missing = tuple(d.name for d in self.model_desc.inputs if d.name not in batch)
        if not missing:
            return self._described(session.evaluate(batch), fetches)
        outputs = session.evaluate(batch, self._without(session, missing))
        return self._described(outputs, fetches or [d.name for d in self.model_desc.outputs if d.name in outputs])

    def parameter(self, name: str) -> torch.Tensor:
        """Return a copy of a parameter or buffer as it is now, by its name in the module's `state_dict` or the file.

        Raises:
            OptionError: nothing of that name, or no step was made yet.
        """
        session = self._require_session("read a parameter")
        self._check_tensor(session, name)
        return torch.as_tensor(session.state[name]).detach().clone()

    def set_parameter(self, name: str, value: Any) -> None:
        """Give a parameter or buffer another value, between two steps; its moments stay.

        Raises:
            OptionError: nothing of that name, a value of another shape, or no step was made yet.
        """
        session = self._require_session("set a parameter")
        self._check_tensor(session, name)
        present = torch.as_tensor(session.state[name])
        try:
            given = torch.as_tensor(value).detach()
        except (RuntimeError, TypeError, ValueError) as error:
            raise OptionError(
                f"the value for {name!r} is {told(value)}", reason=str(error), way_out="give a tensor or an array"
            ) from error
        if given.shape != present.shape:
            raise OptionError(
                f"{name!r} has shape {list(present.shape)}, the value given {list(given.shape)}",
                way_out="give a value of the parameter's own shape",
            )
        session.state[name] = given.to(present.dtype)
        processes.follow_tensor(self._reduction, name, given)
        self._source.refresh()

    def save_as_onnx(
        self, path: str | os.PathLike[str], opset: int | None = None, *, training: bool = False,
        external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    ) -> None:  # fmt: skip
        """Write the trained model as a file of standard operators, names as described, checked by onnx's checker.

        For inference: parameters inside, no dropout, no loss, dimensions vary as described. With `training` the graph
        of a whole step, see `ontrain.session.export.training_model`.

        Args:
            path: of the file.
            opset: version of the standard, from 12; by default `_internal_use.onnx_opset_version`, else the newest
                that ontrain writes.
            training: write the step instead, for the batch shape that was trained most often.
            external_data_threshold: bytes of parameters from which they go to `{path}.data`; protobuf ends at 2 GiB.

        Raises:
            OptionError: nothing was trained or evaluated yet, no such opset, or the path cannot be written.
            GraphError: an operator cannot be written at the opset.
        """
        checked_whole("external_data_threshold", external_data_threshold, 0)
        if checked_flag("training", training):
            version = self._opset(opset)
            state = _tensors(self._require_session("export"), copies=False)
            model = training_model(self.step_model(), state, version)
        else:
            model = self._inference_model(opset, copies=False)
        save_model(model, path, external_data_threshold)

    def inference_model(self, opset: int | None = None) -> ir.Model:
        """Return what `save_as_onnx` writes, with copies of the parameters."""
        return self._inference_model(opset, copies=True)

    def _inference_model(self, opset: int | None, *, copies: bool) -> ir.Model:
        session = self._require_session("export")
        self._adopt(session)
        self._ready_for_evaluation(self._samples)
        assert session.eval_model is not None
        names = [d.name for d in self.model_desc.outputs if not d.is_loss] or [self.model_desc.loss.name]
        return inference_model(session.eval_model, _tensors(session, copies), names, self._opset(opset))

    def _opset(self, asked: int | None) -> int:
        version = self.options._internal_use.onnx_opset_version or OPSET if asked is None else asked
        check_opset(version)
        return version

    def state_dict(self, pytorch_format: bool = False) -> dict[str, Any]:
        """Return copies of everything a run consists of; with `pytorch_format` only parameters and buffers, flat."""
        if checked_flag("pytorch_format", pytorch_format):
            return self._source.state_dict()
        state = make_state_dict(self._require_session("read the state"), self._parts())
        if self._schedule_start:
            state["train_step_info"]["schedule_start"] = self._schedule_start
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take over a state made by `state_dict`, at once or, before the first step, as soon as there is a session.

        Raises:
            CheckpointError: names or shapes do not fit the model (all are listed); the present state is untouched.
        """
        checked_flag("strict", strict)
        if self._session is None:
            algorithm, steps = self.optim_config.spec().algorithm, self.options.batch.gradient_accumulation_steps
            check_state(state_dict, self._source.tensors(), strict, algorithm, steps)
            self._pending_state = (state_dict, strict)
            return
        self._apply(self._session, state_dict, strict)

    def save_checkpoint(
        self, folder: str | os.PathLike[str], user_dict: Mapping[str, Any] | None = None,
        include_optimizer_states: bool = True, *, keep: int = 1,
    ) -> None:  # fmt: skip
        """Write everything a run consists of, and `user_dict`, to a folder, all or nothing.

        A process that dies in the midst of it leaves the checkpoint that was there before. Of several processes all
        call it, with one folder on a file system that they share: each writes its part, and process 0 commits.

        Args:
            folder: made if it is missing; a checkpoint that it holds is replaced, anything else is not.
            user_dict: plain JSON, such as the position in the data, that `load_checkpoint` returns.
            include_optimizer_states: write moments, counters, loss scale and schedule; without them it is weights only,
                and who loads them starts to count anew.
            keep: checkpoints to leave: with 3 the one before is kept as `{folder}~1`, the one before that as
                `{folder}~2`.

        Raises:
            CheckpointError: the folder cannot be written or holds something else, or `user_dict` is no plain JSON.
            OptionError: nothing was trained yet, or `keep` is below 1.
        """
        checked_flag("include_optimizer_states", include_optimizer_states)
        if user_dict is not None:
            checked_kind("user_dict", user_dict, Mapping, "give a dictionary of plain JSON")
        folder = checked_path("folder", folder)
        tensors, plain = to_files(self.state_dict(), include_optimizer_states)
        plain["user_dict"] = dict(user_dict or {})
        if self._reduction is not None:
            write_together(self._reduction.world, folder, tensors, plain, keep)
        else:
            write_checkpoint(folder, tensors, plain, keep)

    def load_checkpoint(self, folder: str | os.PathLike[str], strict: bool = True) -> dict[str, Any]:
        """Go on from a folder written by `save_checkpoint`, and return its `user_dict`.

        Every file is compared with its hash first. A checkpoint that is torn or was altered is refused, and the one
        before it taken, where one was kept; a warning names the file. It may have been written by any number of
        processes, at any ZeRO stage; of several processes all load it.

        Raises:
            CheckpointError: there is no checkpoint, none is whole, or it is of another model: every name that is
                missing, unexpected or of another shape is listed. The present state is untouched.
        """
        checked_flag("strict", strict)
        tensors, plain = read_checkpoint(checked_path("folder", folder))
        self.load_state_dict(from_files(tensors, plain, self._place()), strict)
        user: dict[str, Any] = plain.get("user_dict", {})
        return user

    def _place(self) -> Place:
        several = self.options.distributed
        return Place(several.world_rank, several.world_size, several.deepspeed_zero_optimization.stage)

    def prepare(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[TrainingSession, dict[str, float]]:
        """Capture the model for a batch without training on it; return the session and the seconds of each phase."""
        session = self._ready(bind_batch(self.model_desc, args, kwargs, self.device))
        return session, dict(self._seconds)

    def profile(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> list[dict[str, Any]]:
        """Return the time that one step on this batch spends per operator, slowest first; the state is unchanged."""
        batch = bind_batch(self.model_desc, args, kwargs, self.device)
        return [vars(entry) for entry in self._ready(batch).profile(batch)]

    def peak_memory(self) -> dict[str, int]:
        """Return bytes of the resident state and of the largest plan's working memory."""
        session = self._require_session("measure memory")
        working = max((plan.executable.planned_bytes for plan in session.plans.values()), default=0)
        return {"state": session.state_bytes(), "working memory": working}

    def step_model(self) -> ir.Model:
        """Return the whole step's graph, for the batch shape that ran most often: forward to update."""
        session = self._require_session("show the graph")
        plans = [plan for (kind, _), plan in session.plans.items() if kind != "eval"]
        if not plans:
            raise OptionError("there is no step graph before the first train_step")
        return max(plans, key=lambda plan: plan.runs).model

    @property
    def parameter_names(self) -> Sequence[str]:
        """Names of all parameters, as groups and `utils.frozen_weights` use them."""
        return self._source.parameters

    @property
    def pending_state(self) -> tuple[Mapping[str, Any], bool] | None:
        """A state_dict that waits for the first step, and whether it is to be taken strictly."""
        return self._pending_state

    @property
    def pending_steps(self) -> int:
        """Micro-batches whose gradients wait for their update; 0 right after one."""
        return 0 if self._session is None else self._session.counters.pending

    @property
    def train_step_info(self) -> TrainStepInfo:
        """Where the run stands."""
        return self._info

    def _learning_rate(self) -> float:
        scheduler = self.options.lr_scheduler
        if scheduler is None:
            return float(self.optim_config.lr)
        info, start = self._info, self._schedule_start
        given = scheduler._step(replace(info, optimization_step=info.optimization_step - start) if start else info)
        rate = given[0] if isinstance(given, list | tuple) and len(given) == 1 else math.nan
        if not isinstance(rate, numbers.Real | torch.Tensor) or not 0 <= float(rate) < math.inf:
            raise OptionError(
                f"{type(scheduler).__name__}.get_lr returned {given!r}", way_out="return a list of one number from 0"
            )
        return float(rate)

    def _compare_description(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Warn where the first batch and its outputs have other dimensions than model_desc says."""
        for one in (*self.model_desc.inputs, *self.model_desc.outputs):
            tensor = tensors.get(one.name)
            if tensor is not None and one.disagrees(tensor.shape):
                warnings.warn(
                    f"model_desc describes {one.name!r} as {list(one.shape)}, in the first batch it is "
                    f"{list(tensor.shape)}: training goes on with the batch's; correct the description",
                    stacklevel=4,
                )

    def _wanted(self, fetches: Sequence[str] | None) -> list[str]:
        """The names of the outputs to return."""
        chosen = self._info.fetches if fetches is None else fetches
        return checked_names("fetches", chosen) or [d.name for d in self.model_desc.outputs]

    def _check_fetches(self, session: TrainingSession, wanted: Sequence[str]) -> None:
        """Raise OptionError, before a step, for a name that its outputs will not have."""
        names = [d.name for d in self.model_desc.outputs]
        updating = session.counters.pending + 1 == session.accumulation_steps
        for name in wanted:
            if name not in (*names, *(_TOLD if updating else ())):
                raise OptionError(
                    f"there is no output {name!r} to fetch",
                    reason="it is known after an update only" if name in _TOLD else None,
                    way_out=f"nearest: {nearest(name, [*names, *_TOLD])}",
                )

    def _step(
        self, session: TrainingSession, batch: Mapping[str, torch.Tensor], rate: float
    ) -> Mapping[str, torch.Tensor]:
        """One step, and what it means for the counters and the loss scale."""
        scaler, info = self.options.mixed_precision.loss_scaler, self._info
        if session.counters.pending == 0:  # one scale for all micro-batches of an update
            self._scale = 1.0 if scaler is None else float(scaler.loss_scale)
        if not 0 < self._scale < math.inf:
            raise OptionError(
                f"the loss scale of {type(scaler).__name__} is {self._scale}",
                way_out="set loss_scale to a positive number",
            )
        try:
            outputs: Mapping[str, torch.Tensor] = session.step(batch, rate, self._scale)
            info.all_finite = True
        except NonFiniteLossError:
            info.all_finite = False
            if self._scale <= 1.0 and self.options.utils.nonfinite_loss == "raise":
                raise
            outputs = session.last_outputs
        self._source.refresh()
        info.optimization_step, info.step = session.counters.updates, session.counters.micro_steps
        if scaler is not None and session.counters.pending == 0:
            scaler.update(info)
        return outputs

    def _described(
        self, outputs: Mapping[str, torch.Tensor], fetches: Sequence[str] | None
    ) -> torch.Tensor | list[torch.Tensor]:
        wanted, names = self._wanted(fetches), [d.name for d in self.model_desc.outputs]
        for name in wanted:
            if name not in outputs:
                raise OptionError(f"there is no output {name!r} to fetch", way_out=f"nearest: {nearest(name, names)}")
        values = [outputs[name] for name in wanted]
        return values[0] if len(values) == 1 else values

    def _check_tensor(self, session: TrainingSession, name: str) -> None:
        if not isinstance(name, str) or name not in session.model_tensors:
            raise OptionError(
                f"the model has no parameter {name!r}", way_out=f"nearest: {nearest(name, session.model_tensors)}"
            )

    def _follow_config(self, session: TrainingSession) -> None:
        """Let hyper-parameters that were set since the last step act from this one on."""
        hyper = _graph_hyper(self.optim_config)
        if hyper != self._hyper:
            session.max_norm = self._max_norm()
            session.set_optimizer(self._spec({v.name for v in session.model.graph.inputs}))
            self._hyper = hyper

    def _ready(self, batch: Mapping[str, torch.Tensor]) -> TrainingSession:
        if self._session is not None:
            self._take_pending(self._session)
            if self._lacks_loss and len(batch) == len(self.model_desc.inputs):
                self._session.model, self._session.eval_model = self._captured(batch).model, None
            return self._session
        form = self._captured(batch)
        used = {v.name for v in form.model.graph.inputs}
        precision = self.options.mixed_precision
        session = TrainingSession(
            form.model,
            loss=self.model_desc.loss.name,
            optimizer=self._spec(used),
            trainable=form.trainable,
            provider=self._provider,
            initial=self._source.tensors(),
            max_norm=self._max_norm(),
            accumulation_steps=self.options.batch.gradient_accumulation_steps,
            seed=self._seed,
            disabled_passes=self.options.graph_transformer.disabled_passes,
            dump=self.options.debug.dump or None,
            save_graphs=vars(self.options.debug.graph_save_paths),
            device=self.device,
            deterministic=self.options.debug.deterministic_compute,
            precision=HALF[precision.dtype] if precision.enabled else None,
            memory_limit=self.options.device.mem_limit,
            recomputation=self.options.recomputation(),
            exchange=self._reduction,
        )
        if self._reduction is not None:
            processes.start_together(self._reduction, session, self.options, self.model_desc, self.optim_config.lr)
        self._source.attach(session)
        self._session = session
        self._take_pending(session)
        if self._reduction is not None:
            self._reduction.start(session)  # weights that were loaded in process 0 alone are everybody's
        return session

    def _captured(self, batch: Mapping[str, torch.Tensor]) -> Form:
        """Capture the model in training mode; of a batch without the label, what the loss is to be added to."""
        form = self._form(batch, training=True)
        self._seconds = dict(form.seconds)
        self._samples = {name: tensor.clone() for name, tensor in batch.items()}
        self._lacks_loss = len(batch) < len(self.model_desc.inputs)
        return form

    def _take_pending(self, session: TrainingSession) -> None:
        """Take over a state that was loaded before there was a session; one that does not fit stays an error."""
        if self._pending_state is not None:
            self._apply(session, *self._pending_state)

    def _adopt(self, session: TrainingSession) -> None:
        """Give the session what the user has changed in the module since the last step."""
        for name in self._source.adopt():
            processes.follow_tensor(self._reduction, name, torch.as_tensor(session.state[name]))

    def _form(self, batch: Mapping[str, torch.Tensor], *, training: bool) -> Form:
        form = self._source.form(batch, training=training)
        function = self.options._internal_use.extra_postprocess
        return form if function is None else replace(form, model=postprocessed(form.model, function))

    def _apply(self, session: TrainingSession, state: Mapping[str, Any], strict: bool) -> None:
        counters = apply_state_dict(session, state, strict, self._parts())
        processes.follow_state(self._reduction, session, state, first=self._pending_state is not None)
        self._pending_state = None
        self._schedule_start = counters.get("schedule_start", 0) if counters else self._schedule_start
        self._source.refresh()
        scaler = self.options.mixed_precision.loss_scaler
        self._scale = 1.0 if scaler is None else float(scaler.loss_scale)  # that of an update that is under way
        self._info.optimization_step, self._info.step = session.counters.updates, session.counters.micro_steps

    def _without(self, session: TrainingSession, missing: tuple[str, ...]) -> ir.Model:
        """The part of the evaluation graph that needs none of these inputs."""
        if missing not in self._partial:
            assert session.eval_model is not None
            self._partial[missing] = without_inputs(session.eval_model, missing)
        return self._partial[missing]

    def _parts(self) -> dict[str, Any]:
        """What has a state of its own beside the session, by its place in the state_dict."""
        parts = {
            "loss_scaler": self.options.mixed_precision.loss_scaler,
            "lr_scheduler": self.options.lr_scheduler,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _ready_for_evaluation(self, batch: Mapping[str, torch.Tensor]) -> None:
        session = self._require_session("evaluate")
        if session.eval_model is None:
            # Where something is left out, the first batch stands in for all of it: its sizes belong together.
            whole = all(d.name in batch for d in self.model_desc.inputs)
            session.eval_model = self._form(batch if whole else self._samples, training=False).model

    def _require_session(self, purpose: str) -> TrainingSession:
        if self._session is None:
            raise OptionError(
                f"there is nothing to {purpose} yet",
                reason="the model is captured at the first train_step or eval_step",
                way_out="run one step first",
            )
        return self._session

    def _max_norm(self) -> float | None:
        """What the gradient's global norm is clipped to; None for no clipping."""
        asked = self.options.utils
        if not asked.grad_norm_clip or self.optim_config.spec().algorithm == "SGD":
            return None
        return float(self.optim_config.max_norm_clip if asked.max_grad_norm is None else asked.max_grad_norm)

    def _spec(self, used: set[str | None]) -> OptimizerSpec:
        """The optimizer's groups without parameters that the graph does not use."""
        spec = self.optim_config.spec()
        groups = [({n for n in names if n in used}, overrides) for names, overrides in spec.groups]
        return OptimizerSpec(spec.algorithm, spec.defaults, groups)

    def _check_names(self) -> None:
        check_names(self.options.graph_transformer.disabled_passes)
        grouped = [name for names, _ in self.optim_config.spec().groups for name in names]
        check_parameter_names(grouped, "a parameter group", self._source.parameters)


def _tensors(session: TrainingSession, copies: bool) -> dict[str, TorchTensor]:
    """The resident tensors as a file's; without copies they are right until the next step."""
    found = {name: torch.as_tensor(session.state[name]).detach() for name in session.state}
    return {name: TorchTensor(one.clone() if copies else one, name=name) for name, one in found.items()}


def _graph_hyper(config: _OptimizerConfig) -> dict[str, Any]:
    """The hyper-parameters that are part of the step's graph: all but the learning rate."""
    return {name: value for name, value in config.defaults.items() if name != "lr"}
