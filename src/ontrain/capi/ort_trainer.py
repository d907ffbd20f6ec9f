"""The first trainer under onnxruntime.capi.ort_trainer's names: the learning rate is an input of each step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch

from ontrain.arguments import checked_flag, checked_kind, checked_names, checked_whole, told
from ontrain.capi import _pybind_state as process
from ontrain.capi.description import IODescription, ModelDescription, fitted, generate_sample
from ontrain.capi.loss_scaler import LossScaler
from ontrain.capi.optimizer import Attributes, optimizer_config
from ontrain.errors import InputError, OptionError
from ontrain.internals import tensor_of
from ontrain.training import ORTTrainer as Trainer, amp, checkpoint
from ontrain.training.flat_state import flat_state
from ontrain.training.optim.config import _OptimizerConfig

__all__ = [
    "IODescription",
    "LossScaler",
    "ModelDescription",
    "ORTTrainer",
    "generate_sample",
    "load_checkpoint",
    "save_checkpoint",
]

Outputs = torch.Tensor | list[torch.Tensor]

_RATE = "give an IODescription, as IODescription('Learning_Rate', [1], torch.float32)"
_SCALER = "give a LossScaler of ontrain.capi.ort_trainer, or None"


class ORTTrainer:
    """Trains a module or an ONNX model; what `ontrain.training.ORTTrainer` is called in older programs.

    Args:
        model: an `nn.Module`, or an ONNX model as the later trainer takes it.
        loss_fn: function of (output, label), the label being the last input; None if the model returns its loss.
        model_desc: inputs and outputs; the first output is the loss. Where the first batch has other shapes, they are
            taken from there, with a warning.
        training_optimizer_name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        map_optimizer_attributes: from a parameter's name to its attributes ("alpha", "beta", "lambda", "epsilon", …);
            None for the defaults.
        learning_rate_description: its name is that of the learning rate among keyword arguments of `train_step`.
        device: a torch device or its name.
        gradient_accumulation_steps: micro-batches per update.
        world_rank, world_size, allreduce_post_accumulation, deepspeed_zero_stage, enable_adasum: as the later trainer's
            `distributed` options.
        use_mixed_precision: train in float16 with float32 weights.
        global_step: where `get_lr_this_step` starts to count; 0 to go on from the updates of a state that is loaded.
        get_lr_this_step: function of the number of updates made; without it each step is given the learning rate.
        loss_scaler: None: each step is given the loss scale, and tells after an update whether all was finite. Without
            mixed precision there is nothing to scale, and it is not used.
        enable_grad_norm_clip: clip the gradient to norm 1, for Adam and LAMB.
        frozen_weights: names of parameters to leave as they are.
        partition_optimizer: an older name of `deepspeed_zero_stage=1`.
        _enable_internal_postprocess, _extra_postprocess, _use_deterministic_compute, run_symbolic_shape_infer,
            use_invertible_layernorm_grad: as the later trainer's options.
        use_memory_efficient_gradient: either is right: what backward keeps is chosen for its memory in any case.
        optimized_model_filepath: a file for the optimised training graph, written at the first step; "" for none.
        postprocess_model: gets the captured graph as an `onnx.ModelProto` and changes it in place or returns another.
        _opset_version: of the files that `save_as_onnx` writes.

    Raises:
        OptionError: an argument is malformed, does not fit the model, or cannot be honoured.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[..., Any] | None,
        model_desc: ModelDescription,
        training_optimizer_name: str,
        map_optimizer_attributes: Attributes | None,
        learning_rate_description: IODescription,
        device: torch.device | str,
        gradient_accumulation_steps: int = 1,
        world_rank: int = 0,
        world_size: int = 1,
        use_mixed_precision: bool = False,
        allreduce_post_accumulation: bool = False,
        global_step: int = 0,
        get_lr_this_step: Callable[[int], float] | None = None,
        loss_scaler: LossScaler | None = None,
        deepspeed_zero_stage: int = 0,
        enable_grad_norm_clip: bool = True,
        frozen_weights: Sequence[str] = (),
        _opset_version: int = 12,
        _enable_internal_postprocess: bool = True,
        _extra_postprocess: Callable[[onnx.ModelProto], Any] | None = None,
        _use_deterministic_compute: bool = False,
        use_memory_efficient_gradient: bool = False,
        run_symbolic_shape_infer: bool = False,
        enable_adasum: bool = False,
        optimized_model_filepath: str | os.PathLike[str] = "",
        *,
        postprocess_model: Callable[[onnx.ModelProto], Any] | None = None,
        partition_optimizer: bool = False,
        use_invertible_layernorm_grad: bool = False,
    ) -> None:
        checked_kind("model_desc", model_desc, ModelDescription, "give a ModelDescription")
        checked_kind("learning_rate_description", learning_rate_description, IODescription, _RATE)
        checked_kind("loss_scaler", loss_scaler, (LossScaler, type(None)), _SCALER)
        if get_lr_this_step is not None and not callable(get_lr_this_step):
            raise OptionError(
                f"get_lr_this_step is {get_lr_this_step!r}", way_out="give a function of the number of updates, or None"
            )
        postprocess = _chain(postprocess_model=postprocess_model, _extra_postprocess=_extra_postprocess)
        checked_flag("use_memory_efficient_gradient", use_memory_efficient_gradient)
        stage = _stage(deepspeed_zero_stage, checked_flag("partition_optimizer", partition_optimizer))
        global_step = checked_whole("global_step", global_step, 0)
        optimized_model_filepath = checked_kind(
            "optimized_model_filepath", optimized_model_filepath, (str, os.PathLike), "give a path, or '' for none"
        )
        self.is_train = True
        self.current_step, self.global_step_ = 0, global_step
        self._follows, self._updates = global_step == 0, 0
        self.model_desc_, self.device_ = model_desc, _device(device)
        self.gradient_accumulation_steps, self.use_mixed_precision = gradient_accumulation_steps, use_mixed_precision
        self.get_lr_this_step_, self.loss_scaler_ = get_lr_this_step, loss_scaler
        self.loss_scale_input_name = "loss_scale" if loss_scaler is None else loss_scaler.loss_scale_input_name_
        self._learning_rate_name = learning_rate_description.name_
        self._given_scale = _GivenScale() if use_mixed_precision and loss_scaler is None else None
        options = {
            "batch": {"gradient_accumulation_steps": gradient_accumulation_steps},
            "device": {
                "id": str(device), "mem_limit": process.cuda_mem_limit() if self.device_.type == "cuda" else 0,
            },
            "distributed": {
                "world_rank": world_rank, "world_size": world_size,
                "allreduce_post_accumulation": allreduce_post_accumulation, "enable_adasum": enable_adasum,
                "deepspeed_zero_optimization": {"stage": stage},
            },
            "mixed_precision": {
                "enabled": use_mixed_precision,
                "loss_scaler": (loss_scaler or self._given_scale) if use_mixed_precision else None,
            },
            "utils": {
                "frozen_weights": checked_names("frozen_weights", frozen_weights),
                "grad_norm_clip": enable_grad_norm_clip,
                "invertible_layer_norm_gradient": use_invertible_layernorm_grad,
                "run_symbolic_shape_infer": run_symbolic_shape_infer,
            },
            "debug": {
                "deterministic_compute": _use_deterministic_compute,
                "graph_save_paths": {
                    "model_with_training_graph_after_optimization_path": os.fspath(optimized_model_filepath)
                },
            },
            "_internal_use": {
                "enable_internal_postprocess": _enable_internal_postprocess, "extra_postprocess": postprocess,
                "onnx_opset_version": _opset_version,
            },
        }  # fmt: skip

        def make(description: ModelDescription, config: _OptimizerConfig) -> Trainer:
            return Trainer(model, description.as_dict(), config, loss_fn, options)

        self._make, self._ready = make, False
        if isinstance(model, torch.nn.Module):
            names = [name for name, _ in model.named_parameters()]
        else:
            names = list(make(model_desc, optimizer_config(training_optimizer_name, None, ())).parameter_names)
        self._config = optimizer_config(training_optimizer_name, map_optimizer_attributes, names)
        self._trainer = make(model_desc, self._config)

    def train_step(self, *args: Any, **kwargs: Any) -> Outputs:
        """Train on one batch.

        Args:
            *args: the described inputs, then the learning rate and, in mixed precision, the loss scale, the latter two
                unless the trainer has `get_lr_this_step` and `loss_scaler`; or one list of all these.
            **kwargs: any of them by name, and `fetches`, the names of the outputs to return.

        Returns:
            The described outputs, as a list, a single one as itself; after an update in mixed precision without a
            `loss_scaler` also whether the gradient was finite, last.

        Raises:
            InputError: something is missing, or does not fit.
        """
        batch, extra, fetches = self._bound(args, kwargs, self._extra_names())
        self._follow_loaded()
        rate = extra.get(self._learning_rate_name)
        if self.get_lr_this_step_ is not None:
            rate = self.get_lr_this_step_(self.global_step_)
        self._config.lr = _number(self._learning_rate_name, rate)
        if self._given_scale is not None:
            self._given_scale.loss_scale = _number(self.loss_scale_input_name, extra.get(self.loss_scale_input_name))
        trainer = self._fitting(batch)
        outputs = trainer.train_step(**batch, fetches=fetches)
        info = trainer.train_step_info
        self.current_step, updated = info.step, trainer.pending_steps == 0
        self.global_step_ += info.optimization_step - self._updates
        if updated and fetches is None and self._given_scale is not None:
            told = outputs if isinstance(outputs, list) else [outputs]
            return [*told, torch.tensor([info.all_finite], device="cpu")]
        return outputs

    def eval_step(self, *args: Any, **kwargs: Any) -> Outputs:
        """Return the described outputs, or those named in `fetches`, in evaluation mode.

        The label may be left out: the outputs that depend on it are then left out, too.
        """
        batch, _, fetches = self._bound(args, kwargs, [])
        return self._fitting(batch).eval_step(**batch, fetches=fetches)

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """`train_step` or `eval_step`, whichever `train` and `eval` chose last."""
        return self.train_step(*args, **kwargs) if self.is_train else self.eval_step(*args, **kwargs)

    def train(self) -> None:
        """Let a call be `train_step`."""
        self.is_train = True

    def eval(self) -> None:
        """Let a call be `eval_step`."""
        self.is_train = False

    def save_as_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the trained model for inference at the opset `_opset_version`."""
        self._trainer.save_as_onnx(path)

    def state_dict(self, include_optimizer_state: bool = True) -> dict[str, torch.Tensor]:
        """Return copies of parameters by name, and `Moment_1_{name}`, `Moment_2_{name}` and `Step` of the optimizer.

        `Run_State` has the rest of what a run consists of: loss scale, schedule, options.

        Warns:
            UserWarning: the moments are one process's share (ZeRO stage 1).
        """
        return flat_state(self._trainer.state_dict(), include_optimizer_state)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = False) -> None:
        """Take over what `state_dict` returned, at once or at the first step.

        Raises:
            CheckpointError: a shape does not fit, or, with `strict`, a name; nothing was changed.
        """
        checkpoint.experimental_load_state_dict(self._trainer, state_dict, strict)

    @property
    def later_trainer(self) -> Trainer:
        """The trainer of the later API that does the work."""
        return self._trainer

    def _follow_loaded(self) -> None:
        """Count on from the updates of a state that was loaded since the last step."""
        pending = self._trainer.pending_state
        said = pending[0].get("train_step_info", {}) if pending is not None else vars(self._trainer.train_step_info)
        updates = said.get("optimization_step", self._updates)
        if updates != self._updates and self._follows:
            self.global_step_ = updates
        self._updates = updates

    def _extra_names(self) -> list[str]:
        """What a step is given beside the batch, in order."""
        rate = [] if self.get_lr_this_step_ is not None else [self._learning_rate_name]
        return [*rate, self.loss_scale_input_name] if self._given_scale is not None else rate

    def _bound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], extra: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any], Sequence[str] | None]:
        """The batch by name, the extra inputs by name, and what to fetch."""
        if len(args) == 1 and isinstance(args[0], list | tuple):
            args = tuple(args[0])
        rest = dict(kwargs)
        fetches = rest.pop("fetches", None)
        names = [description.name_ for description in self.model_desc_.inputs_]
        # As upstream: what is given by name is not among the positions.
        by_position = [name for name in [*names, *extra] if name not in rest]
        if len(args) > len(by_position):
            raise InputError(
                f"{len(args)} inputs were given by position, {len(by_position)} are left to give",
                way_out=f"the order is {', '.join([*names, *extra])}",
            )
        options = {**dict(zip(by_position, args, strict=False)), **rest}
        return (
            {n: v for n, v in options.items() if n not in extra},
            {n: options[n] for n in extra if n in options},
            fetches,
        )

    def _fitting(self, batch: Mapping[str, Any]) -> Trainer:
        """The trainer, its description corrected by the first batch."""
        if not self._ready:
            description = fitted(self.model_desc_, batch)
            if description.as_dict() != self.model_desc_.as_dict():
                pending = self._trainer.pending_state
                self._trainer = self._make(description, self._config)
                if pending is not None:
                    self._trainer.load_state_dict(*pending)
            self._ready = True
        return self._trainer


def save_checkpoint(
    model: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Write a trainer's state to a folder; see `ontrain.training.checkpoint.experimental_save_checkpoint`."""
    checked_kind("model", model, ORTTrainer, "give the ORTTrainer to save")
    checkpoint.experimental_save_checkpoint(
        model.later_trainer, checkpoint_dir, checkpoint_prefix, checkpoint_state_dict, include_optimizer_state
    )


def load_checkpoint(
    model: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> dict[str, Any]:
    """Take over what `save_checkpoint` wrote, at once or at the first step; return its `checkpoint_state_dict`."""
    checked_kind("model", model, ORTTrainer, "give the ORTTrainer that takes the state over")
    return checkpoint.experimental_load_checkpoint(model.later_trainer, checkpoint_dir, checkpoint_prefix, strict)


class _GivenScale(amp.LossScaler):
    """The scale that came with the step."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def update(self, train_step_info: Any) -> float:
        """Nothing: who gives the scale adapts it."""
        return self.loss_scale


def _device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device is {device!r}", way_out="give a torch device, such as 'cpu' or 'cuda:0'") from error


def _number(name: str, value: Any) -> float:
    if value is None:
        raise InputError(f"the step was given no {name!r}", way_out="give it behind the inputs, or by name")
    try:
        tensor = tensor_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name!r} is {value!r}", way_out="give one number") from error
    if tensor.numel() != 1:
        raise InputError(f"{name!r} has shape {list(tensor.shape)}", way_out="give one number")
    return float(tensor.item())


def _stage(stage: Any, partition_optimizer: bool) -> Any:
    """The stage of ZeRO; a script of the first API hands in a flag, of which the options know nothing."""
    if stage is None or isinstance(stage, bool):
        stage = int(bool(stage))
    return stage or 1 if partition_optimizer else stage


def _chain(**functions: Callable[[onnx.ModelProto], Any] | None) -> Callable[[onnx.ModelProto], Any] | None:
    """One function that applies those that there are, in order; the names are those of the arguments."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise OptionError(f"{name} is {told(function)}", way_out="give a function of an onnx.ModelProto, or None")
    present = [function for function in functions.values() if function is not None]
    if not present:
        return None

    def all_of_them(model: onnx.ModelProto) -> onnx.ModelProto:
        for function in present:
            result = function(model)
            model = model if result is None else result
        return model

    return all_of_them
