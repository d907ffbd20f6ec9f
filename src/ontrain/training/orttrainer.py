"""`ORTTrainer`: a module or an ONNX file, its loss and an optimizer trained as one graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import onnx
import onnx_ir as ir
import torch

from ontrain.arguments import checked_flag, checked_kind, checked_path, checked_whole
from ontrain.capture import show_phases
from ontrain.errors import OptionError
from ontrain.locks import in_turn
from ontrain.passes import check_names
from ontrain.providers import ExecutionProvider, get_provider
from ontrain.session import EXTERNAL_DATA_THRESHOLD, TrainingSession, save_model
from ontrain.training import process, processes
from ontrain.training.fetches import check_fetches, chosen_names, compare_description, fetched, refuse_empty
from ontrain.training.model_desc import ModelDescription
from ontrain.training.optim.config import _OptimizerConfig
from ontrain.training.options import ORTTrainerOptions, check_late
from ontrain.training.run import Run
from ontrain.training.run_export import RunExport
from ontrain.training.run_state import RunState
from ontrain.training.setup import Setup
from ontrain.training.source import ModelSource, check_parameter_names
from ontrain.training.sources import source_of
from ontrain.training.step_info import TrainStepInfo
from ontrain.training.wrapping import bind_batch, labels_of, move_to

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"]


@in_turn(
    "train_step", "eval_step", "parameter", "set_parameter", "save_as_onnx", "inference_model", "state_dict",
    "load_state_dict", "save_checkpoint", "load_checkpoint", "prepare", "profile", "peak_memory", "step_model",
)  # fmt: skip
class ORTTrainer:
    """Trains a module or an ONNX file as one graph: forward, loss, backward, accumulation, clipping and update.

    A module is captured at the first step. From then on its parameters live in the session: the module's own
    parameters become views of them, or copies on a provider whose state is not torch's, so `model.state_dict()` stays
    up to date. A file's parameters are its
    initializers, under their names. Threads that share a trainer take turns: a step changes what all others read.
    What is changed in the module between two steps, such as a parameter put in the place of another or an attribute
    that forward reads, acts from the next step on: the module is captured again where it must be.
    A module that lies on another device than the trainer's is moved there, and so is each batch.

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
        model_desc: Mapping[str, object],
        optim_config: _OptimizerConfig,
        loss_fn: Callable[..., Any] | str | None = None,
        options: ORTTrainerOptions | Mapping[str, object] | None = None,
        *,
        requires_grad: Sequence[str] | None = None,
    ) -> None:
        self.model_desc, self.loss_fn = ModelDescription.parse(model_desc), loss_fn
        options = options if isinstance(options, ORTTrainerOptions) else ORTTrainerOptions(options)
        options.settle()
        if options.debug.verbose:
            show_phases()
        provider = _provider(options)
        self.device = provider.device
        source = source_of(model, self.model_desc, loss_fn, options, requires_grad)
        check_names(options.graph_transformer.disabled_passes)
        move_to(self.device, model, loss_fn)
        setup = Setup(
            source=source,
            description=self.model_desc,
            labels=labels_of(self.model_desc, loss_fn),
            optimizer=_checked_optimizer(optim_config, source),
            options=options,
            provider=provider,
            device=self.device,
            seed=process.seed() if options.utils.seed is None else options.utils.seed,
            reduction=processes.join(options, self.device),
        )
        self._run = Run(setup)
        self._state, self._export = RunState(self._run), RunExport(self._run)

    def train_step(
        self, *args: torch.Tensor, fetches: Sequence[str] | None = None, **kwargs: torch.Tensor
    ) -> torch.Tensor | list[torch.Tensor]:
        """Train on one batch: inputs in the order of model_desc, or by name; tensors or numpy arrays.

        In float16 a step whose gradient overflowed is skipped, and the loss scale is lowered. An overflow at a loss
        scale of 1 has another cause and is an error, as without scaling.

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
        run = self._run
        batch = bind_batch(self.model_desc, args, kwargs, self.device)
        names = chosen_names(self.model_desc, run.info.fetches if fetches is None else fetches)
        refuse_empty(batch)
        is_first = run.forms.lacks_loss
        session = run.ready(batch)
        check_fetches(session, self.model_desc, names)
        outputs = run.step(session, batch)
        if is_first:
            compare_description(self.model_desc, {**batch, **outputs})
        return fetched(self.model_desc, outputs, names)

    def eval_step(
        self, *args: torch.Tensor, fetches: Sequence[str] | None = None, **kwargs: torch.Tensor
    ) -> torch.Tensor | list[torch.Tensor]:
        """Return outputs in evaluation mode (no dropout, running statistics, full precision); updates nothing.

        Inputs may be left out, as the label where only the model's outputs are asked for: the outputs that depend on
        them are then not among the results. Before the first whole batch that is the label of a `loss_fn` alone.
        """
        batch = bind_batch(self.model_desc, args, kwargs, self.device, optional=self._run.forms.optional_inputs())
        outputs = self._run.evaluate(batch)
        if self._run.forms.missing_inputs(batch):
            fetches = fetches or [d.name for d in self.model_desc.outputs if d.name in outputs]
        names = chosen_names(self.model_desc, self._run.info.fetches if fetches is None else fetches)
        return fetched(self.model_desc, outputs, names)

    def parameter(self, name: str) -> torch.Tensor:
        """Return a copy of a parameter or buffer as it is now, by its name in the module's `state_dict` or the file.

        Raises:
            OptionError: nothing of that name, or no step was made yet.
        """
        return self._state.parameter(name)

    def set_parameter(self, name: str, value: object) -> None:
        """Give a parameter or buffer another value, between two steps; its moments stay.

        Raises:
            OptionError: nothing of that name, a value of another shape, or no step was made yet.
        """
        self._state.set_parameter(name, value)

    def save_as_onnx(
        self, path: str | os.PathLike[str], opset: int | None = None, *, training: bool = False,
        optimize: bool | None = None, external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    ) -> None:  # fmt: skip
        """Write the trained model as a file of standard operators, names as described, checked by onnx's checker.

        For inference: parameters inside, no dropout, no loss, dimensions vary as described; see
        `ontrain.session.export.inference_model`. With `training` the graph of a whole step, see
        `ontrain.session.export.training_model`.

        Args:
            path: of the file.
            opset: version of the standard, from 12; by default `_internal_use.onnx_opset_version`, else that of the
                file that is trained, else the newest that ontrain writes.
            training: write the step instead, for the batch shape that was trained most often.
            optimize: fold batch normalisations, and lay weights as they are multiplied by. Without it the file for
                inference holds every parameter as it was trained, to be trained on. By default a module is optimised,
                and a file keeps its weights.
            external_data_threshold: bytes of parameters from which they go to `{path}.data`; protobuf ends at 2 GiB.

        Raises:
            OptionError: nothing was trained or evaluated yet, no such opset, or the path cannot be written.
            GraphError: an operator cannot be written at the opset.
        """
        checked_whole("external_data_threshold", external_data_threshold, 0)
        if checked_flag("training", training):
            model = self._export.training_model(opset)
        else:
            model = self._export.inference_model(opset, copies=False, optimize=_checked_choice(optimize))
        save_model(model, path, external_data_threshold)

    def inference_model(self, opset: int | None = None, *, optimize: bool | None = None) -> ir.Model:
        """Return what `save_as_onnx` writes, with copies of the parameters."""
        return self._export.inference_model(opset, copies=True, optimize=_checked_choice(optimize))

    def state_dict(self, pytorch_format: bool = False) -> dict[str, Any]:
        """Return copies of everything a run consists of; with `pytorch_format` only parameters and buffers, flat."""
        if checked_flag("pytorch_format", pytorch_format):
            return self._run.setup.source.state_dict()
        return self._state.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, object], strict: bool = True) -> None:
        """Take over a state made by `state_dict`, at once or, before the first step, as soon as there is a session.

        Raises:
            CheckpointError: names or shapes do not fit the model (all are listed); the present state is untouched.
        """
        checked_flag("strict", strict)
        self._state.load_state_dict(state_dict, strict)

    def save_checkpoint(
        self, folder: str | os.PathLike[str], user_dict: Mapping[str, object] | None = None,
        include_optimizer_states: bool = True, *, keep: int = 1,
    ) -> None:  # fmt: skip
        """Write everything a run consists of, and `user_dict`, to a folder, all or nothing.

        If a process dies in the middle, the old checkpoint is still there. If several processes train, all of them
        call this, with one folder on a file system that they share. Each writes its part, and process 0 commits.

        Args:
            folder: made if it is missing; a checkpoint that it holds is replaced, anything else is not.
            user_dict: plain JSON, such as the position in the data, that `load_checkpoint` returns.
            include_optimizer_states: write moments, counters, loss scale and schedule. Without them the checkpoint
                holds only weights, and a trainer that loads it starts to count anew.
            keep: how many checkpoints to leave. With 3 the two checkpoints before stay as `{folder}~1` and
                `{folder}~2`.

        Raises:
            CheckpointError: the folder cannot be written or holds something else, or `user_dict` is no plain JSON.
            OptionError: nothing was trained yet, or `keep` is below 1.
        """
        checked_flag("include_optimizer_states", include_optimizer_states)
        if user_dict is not None:
            checked_kind("user_dict", user_dict, Mapping, "give a dictionary of plain JSON")
        self._state.save(folder, user_dict or {}, include_optimizer_states, keep)

    def load_checkpoint(self, *paths: str | os.PathLike[str], strict: bool = True) -> dict[str, Any]:
        """Go on from a folder written by `save_checkpoint`, and return its `user_dict`.

        In the place of the folder stand onnxruntime's own checkpoint files, HDF5 or `.ort.pt`: the one file of a run,
        or those of all processes of a ZeRO run in the order of ranks.

        Every file is first compared with its hash. If a checkpoint is torn or altered, a warning names the file, and
        the checkpoint before it is loaded if one was kept. Any number of processes, at any ZeRO stage, may have
        written the checkpoint. If several processes train, all of them load it.

        Args:
            paths: a folder, or files.
            strict: whether the checkpoint must have all names of the model, and no others.

        Raises:
            CheckpointError: there is no checkpoint, none is whole, or it is of another model: every name that is
                missing, unexpected or of another shape is listed. The present state is untouched.
            OptionError: no path, or several folders: a folder holds the parts of all processes.
        """
        checked_flag("strict", strict)
        return self._state.load([checked_path("path", path) for path in paths], strict)

    def prepare(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[TrainingSession, dict[str, float]]:
        """Capture the model for a batch without training on it; return the session and the seconds of each phase."""
        session = self._run.ready(bind_batch(self.model_desc, args, kwargs, self.device))
        return session, dict(self._run.forms.seconds)

    def profile(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> list[dict[str, Any]]:
        """Return the time that one step on this batch spends per operator, slowest first; the state is unchanged."""
        batch = bind_batch(self.model_desc, args, kwargs, self.device)
        return [vars(entry) for entry in self._run.ready(batch).profile(batch)]

    def peak_memory(self) -> dict[str, int]:
        """Return bytes of the resident state and of the largest plan's working memory."""
        session = self._run.require_session("measure memory")
        working = max((plan.executable.planned_bytes for plan in session.plans.values()), default=0)
        return {"state": session.state_bytes(), "working memory": working}

    def step_model(self) -> ir.Model:
        """Return the whole step's graph, for the batch shape that ran most often: forward to update."""
        return self._export.step_model()

    def __reduce__(self) -> NoReturn:
        raise OptionError(
            "an ORTTrainer cannot be copied or pickled",
            reason="its parameters and plans live in the memory of this process",
            way_out="take state_dict(), or save_checkpoint(folder); make a trainer where the copy is to be, and "
            "load_state_dict or load_checkpoint. For inference there is save_as_onnx(path)",
        )

    @property
    def parameter_names(self) -> Sequence[str]:
        """Names of all parameters, as groups and `utils.frozen_weights` use them."""
        return self._run.setup.source.parameters

    @property
    def pending_state(self) -> tuple[Mapping[str, Any], bool] | None:
        """A state_dict that waits for the first step, and whether it is to be taken strictly."""
        return self._run.pending_state

    @property
    def pending_steps(self) -> int:
        """Micro-batches whose gradients wait for their update; 0 right after one."""
        session = self._run.session
        return 0 if session is None else session.counters.pending

    @property
    def train_step_info(self) -> TrainStepInfo:
        """Where the run stands."""
        return self._run.info

    @property
    def options(self) -> ORTTrainerOptions:
        """The options."""
        return self._run.setup.options

    @options.setter
    def options(self, options: ORTTrainerOptions) -> None:
        checked_kind("options", options, ORTTrainerOptions, "give an ORTTrainerOptions")
        options.settle()
        check_late(self._run.setup.options, options)
        self._run.setup.options = options

    @property
    def optim_config(self) -> _OptimizerConfig:
        """The optimizer's configuration; what is set in it acts from the next step on."""
        return self._run.setup.optimizer

    @optim_config.setter
    def optim_config(self, optim_config: _OptimizerConfig) -> None:
        self._run.setup.optimizer = _checked_optimizer(optim_config, self._run.setup.source)


def _provider(options: ORTTrainerOptions) -> ExecutionProvider:
    """The provider on the device that was asked for; where none was, on a GPU if there is one and it runs there."""
    chosen = options.provider
    name, settings = (chosen, {}) if isinstance(chosen, str) else chosen
    settings, device = {**settings, **options.provider_options}, processes.device_of(options)
    try:
        return get_provider(name, device, settings)
    except OptionError:
        if options.device.id is not None or device == "cpu":
            raise
        return get_provider(name, "cpu", settings)


def _checked_optimizer(optim_config: object, source: ModelSource) -> _OptimizerConfig:
    if not isinstance(optim_config, _OptimizerConfig):
        raise OptionError(
            f"optim_config is a {type(optim_config).__name__}",
            way_out="give optim.SGDConfig, AdamConfig or LambConfig",
        )
    grouped = [name for names, _ in optim_config.spec().groups for name in names]
    check_parameter_names(grouped, "a parameter group", source.parameters)
    return optim_config


def _checked_choice(optimize: bool | None) -> bool | None:
    return None if optimize is None else checked_flag("optimize", optimize)
