"""`ORTTrainerOptions`: a nested dictionary, checked against one table of keys, types, limits and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from ontrain.arguments import plain_values
from ontrain.errors import OptionError, nearest
from ontrain.passes import BUDGET_ALLOWED, Recomputation, parse_budget
from ontrain.session import check_opset
from ontrain.training.amp.loss_scaler import DynamicLossScaler, LossScaler
from ontrain.training.optim.lr_scheduler import _LRScheduler

__all__ = ["ORTTrainerOptions", "check_late", "leaves"]


@dataclass(frozen=True)
class _Key:
    """One option: its default, a check, and the check in words."""

    default: Any
    check: Callable[[Any], bool]
    allowed: str
    reason: str | None = None
    """Why nothing but the default works here yet; None for an option that works."""
    followed: bool = False
    """Whether it may be set in the options of a trainer, and acts from the next step on."""


def _is_device(value: Any) -> bool:
    try:
        return torch.device(value).type != "meta"
    except (RuntimeError, TypeError):
        return False


def _is_opset(value: object) -> bool:
    try:
        check_opset(value)
    except OptionError:
        return False
    return True


def _is_scaler(value: object) -> bool:
    return isinstance(value, LossScaler) and type(value).update is not LossScaler.update


def _is_scheduler(value: object) -> bool:
    return isinstance(value, _LRScheduler) and type(value).get_lr is not _LRScheduler.get_lr


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)


def _is_int(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_hashable_in(value: object, known: Mapping[object, object]) -> bool:
    return isinstance(value, str | torch.dtype) and value in known


def _is_budget(value: Any) -> bool:
    try:
        return value is None or parse_budget(value) is not None
    except (OptionError, TypeError):
        return False


def _mapping(reason: str | None = None) -> _Key:
    return _Key({}, lambda v: isinstance(v, Mapping), "a dictionary", reason)


def _flag(default: bool, reason: str | None = None) -> _Key:
    return _Key(default, lambda v: isinstance(v, bool), "True or False", reason)


def _count(default: int, at_least: int, reason: str | None = None) -> _Key:
    return _Key(default, lambda v: _is_int(v, at_least), f"a whole number from {at_least}", reason)


def _names(reason: str | None = None) -> _Key:
    return _Key(
        (), lambda v: isinstance(v, list | tuple) and all(isinstance(n, str) for n in v), "a list of names", reason
    )


def _path(reason: str | None = None) -> _Key:
    return _Key("", lambda v: isinstance(v, str), "a path, or '' for none", reason)


_WHOLE = "each process trains a whole model on its part of the batch"
_STAGES = "0 or 1; gradients (stage 2) and parameters (stage 3) stay whole on each process"
_SCHEDULER = "one of ontrain.training.optim.lr_scheduler, or a subclass of its _LRScheduler with get_lr, or None"
_SCALER = "an amp.DynamicLossScaler, or a subclass of amp.LossScaler with update, or None"
_OPSETS = f"an opset from 12 to {onnx.defs.onnx_opset_version()}, or None"
_DTYPES = {"float16": "float16", "bfloat16": "bfloat16", torch.float16: "float16", torch.bfloat16: "bfloat16"}

SCHEMA: dict[str, Any] = {
    "batch": {"gradient_accumulation_steps": _count(1, 1)},
    "device": {
        "id": _Key(None, lambda v: v is None or _is_device(v), "a torch device string such as 'cpu' or 'cuda:0'"),
        "mem_limit": _count(0, 0),
    },
    "distributed": {
        "world_rank": _count(0, 0),
        "world_size": _count(1, 1),
        "local_rank": _count(0, 0),
        "data_parallel_size": _count(1, 1),
        "horizontal_parallel_size": _count(1, 1, _WHOLE),
        "pipeline_parallel_size": _count(1, 1, _WHOLE),
        "num_pipeline_micro_batches": _count(1, 1, _WHOLE),
        "pipeline_cut_info_string": _Key("", lambda v: isinstance(v, str), "a string", _WHOLE),
        "sliced_schema": _mapping(_WHOLE),
        "sliced_axes": _mapping(_WHOLE),
        "sliced_tensor_names": _names(_WHOLE),
        "allreduce_post_accumulation": _flag(False),
        "enable_adasum": _flag(False),
        "deepspeed_zero_optimization": {"stage": _Key(0, lambda v: _is_int(v, 0) and v <= 1, _STAGES)},
        "timeout": _Key(None, lambda v: v is None or _is_positive(v), "a positive number of seconds, or None"),
    },
    "lr_scheduler": _Key(None, lambda v: v is None or _is_scheduler(v), _SCHEDULER, followed=True),
    "mixed_precision": {
        "enabled": _flag(False),
        "dtype": _Key("float16", lambda v: _is_hashable_in(v, _DTYPES), "'float16' or 'bfloat16'"),
        "loss_scaler": _Key(None, lambda v: v is None or _is_scaler(v), _SCALER, followed=True),
    },
    "graph_transformer": {
        "memory_budget": _Key(None, _is_budget, f"None, or {BUDGET_ALLOWED}"),
        "attn_dropout_recompute": _flag(False),
        "gelu_recompute": _flag(False),
        "transformer_layer_recompute": _flag(False),
        "number_recompute_layers": _count(0, 0),
        "disabled_passes": _names(),
    },
    "utils": {
        "frozen_weights": _names(),
        "grad_norm_clip": _Key(True, lambda v: isinstance(v, bool), "True or False", followed=True),
        "max_grad_norm": _Key(
            None, lambda v: v is None or _is_positive(v), "a positive number, or None", followed=True
        ),
        "seed": _Key(None, lambda v: v is None or _is_int(v, 0), "a whole number from 0, or None"),
        "nonfinite_loss": _Key(
            "raise", lambda v: isinstance(v, str) and v in ("raise", "skip"), "'raise' or 'skip'", followed=True
        ),
        "invertible_layer_norm_gradient": _flag(False, "the gradient reads the saved input"),
        "run_symbolic_shape_infer": _flag(False),
    },
    "debug": {
        "check_model_export": _flag(False),
        "deterministic_compute": _flag(False),
        "dump": _path(),
        "graph_save_paths": {
            "model_after_graph_transforms_path": _path(),
            "model_with_gradient_graph_path": _path("gradient and update are made at once, as the training graph"),
            "model_with_training_graph_path": _path(),
            "model_with_training_graph_after_optimization_path": _path(),
        },
        "verbose": _flag(False),
    },
    "provider": _Key(
        "TorchExecutionProvider",
        lambda v: isinstance(v, str) or _is_pair(v),
        "the name of an execution provider, or (name, {'option': value})",
    ),
    "provider_options": _mapping(),
    "session_options": _Key(
        None,
        lambda v: True,
        "None",
        "no onnxruntime session belongs to the trainer; threads and the like are options of a "
        "provider, see provider_options",
    ),
    "_internal_use": {
        "enable_internal_postprocess": _flag(True),
        "extra_postprocess": _Key(
            None, lambda v: v is None or callable(v), "a function of an onnx.ModelProto, or None"
        ),
        "onnx_opset_version": _Key(None, lambda v: v is None or _is_opset(v), _OPSETS),
        "enable_onnx_contrib_ops": _flag(True),
    },
}


class _Section:
    """Options of one section as attributes."""

    __slots__ = ("__dict__", "_path", "_settled")

    def __init__(self, values: Mapping[str, object], path: str) -> None:
        self._path, self._settled = path, False
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _Section.__slots__:
            return object.__setattr__(self, name, value)
        schema = _schema_of(self._path)
        if name not in schema:
            raise _unknown(self._path + name, name, schema)
        key = schema[name]
        if isinstance(key, dict):
            raise OptionError(f"option {self._path + name!r} is a section", way_out="set the options in it")
        value = _checked(self._path + name, key, plain_values({name: value})[name])
        if self._settled and not key.followed and value != self.__dict__[name]:
            raise _late(self._path + name)
        self.__dict__[name] = value
        return None

    def settle(self) -> None:
        """Refuse from now on to set what a trainer with these options would not follow."""
        self._settled = True
        for section in vars(self).values():
            if isinstance(section, _Section):
                section.settle()

    def __repr__(self) -> str:
        return repr(self.__dict__)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no option {name!r}; near: {nearest(name, self.__dict__)}")


class ORTTrainerOptions(_Section):
    """Options of `ORTTrainer`, read as attributes: `options.batch.gradient_accumulation_steps`.

    Args:
        options: nested dictionary; what is left out has its default.

    Keys that work:

    - `batch.gradient_accumulation_steps` (micro-batches of an update; those of a mean loss weigh by their labels, so
      that the gradient is the gradient of the mean over all labels of the update);
    - `device.id` (default: CUDA if there is one, else the CPU), `device.mem_limit` (bytes for state and working memory
      together; a plan that needs more is refused);
    - `distributed.world_rank`, `distributed.world_size`, `distributed.local_rank` (which chooses the device where no
      launcher says it; `ontrain.distributed.find_processes().options()` gives the three),
      `distributed.data_parallel_size` (1 for no matter, or the world size), `distributed.enable_adasum`,
      `distributed.deepspeed_zero_optimization.stage` (0; or 1: each process keeps the moments of its share),
      `distributed.timeout` (seconds that the others are waited for), `distributed.allreduce_post_accumulation` (always
      so: gradients are summed once an update);
    - `lr_scheduler`;
    - `mixed_precision.enabled`, `mixed_precision.dtype` ('float16' or 'bfloat16'), `mixed_precision.loss_scaler` (by
      default an `amp.DynamicLossScaler` for float16, none for bfloat16);
    - `graph_transformer.disabled_passes`;
    - `graph_transformer.memory_budget` (working memory of a step as bytes, a text like '2GiB', or a fraction of what it
      is without: activations are computed again in the backward pass until it fits);
    - `graph_transformer.gelu_recompute`, `graph_transformer.attn_dropout_recompute`,
      `graph_transformer.transformer_layer_recompute`, `graph_transformer.number_recompute_layers` (the first n; 0 is
      all but the last): these parts are computed again in any case;
    - `utils.frozen_weights`, `utils.grad_norm_clip` (on, for Adam and LAMB), `utils.max_grad_norm` (None for
      the optimizer configuration's `max_norm_clip`, 1.0), `utils.seed`
      (of the dropout stream; None for what `ontrain.set_seed` set, at first 0), `utils.nonfinite_loss` ('raise', or
      'skip' the update), `utils.run_symbolic_shape_infer` (always done);
    - `debug.check_model_export`, `debug.deterministic_compute`, `debug.dump` (a folder for the graph after each
      stage), `debug.graph_save_paths` (files for three of the stages), `debug.verbose` (say what the phases before a
      first step take);
    - `provider`, a name or (name, options of that provider), and `provider_options`, more of these;
    - `_internal_use.extra_postprocess` (a function that gets the captured graph as an `onnx.ModelProto` and changes it
      or returns another), `_internal_use.onnx_opset_version` (of files that `save_as_onnx` writes),
      `_internal_use.enable_onnx_contrib_ops` (never used in files), `_internal_use.enable_internal_postprocess` (what
      is captured needs no repair that could be left out).

    The other keys of onnxruntime's trainer are known, and refused with the reason if set.

    Options may be set as attributes before a trainer gets them. Afterwards the trainer follows those that act in each
    step: `lr_scheduler`, `mixed_precision.loss_scaler`, `utils.grad_norm_clip`, `utils.max_grad_norm` and
    `utils.nonfinite_loss`; setting another is an error.

    Raises:
        OptionError: an unknown key (the nearest right one is named), a value out of range, or an option that nothing
            here can honour.
    """

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        if options is not None and not isinstance(options, Mapping):
            raise OptionError(f"the options are a {type(options).__name__}", way_out="give a nested dictionary")
        original = dict(options or {})
        super().__init__({"_original": original, **_parsed(original, SCHEMA, "")}, "")
        self._check_together()

    def settle(self) -> None:
        """Refuse from now on to set what a trainer with these options would not follow.

        Raises:
            OptionError: what was set until now does not fit together.
        """
        self._check_together()
        super().settle()

    def _check_together(self) -> None:
        several = self.distributed
        if several.world_rank >= several.world_size:
            raise OptionError(
                f"option 'distributed.world_rank' is {several.world_rank}, 'distributed.world_size' "
                f"{several.world_size}",
                way_out="ranks count from 0 to one less than the size",
            )
        if several.data_parallel_size not in (1, several.world_size):
            raise OptionError(
                f"option 'distributed.data_parallel_size' is {several.data_parallel_size}, 'distributed.world_size' "
                f"{several.world_size}",
                reason=_WHOLE,
                way_out="leave it out",
            )
        layers = self.graph_transformer
        if layers.number_recompute_layers and not layers.transformer_layer_recompute:
            raise OptionError(
                f"option 'graph_transformer.number_recompute_layers' is {layers.number_recompute_layers}",
                reason="no layers are computed again",
                way_out="set graph_transformer.transformer_layer_recompute, or leave the number out",
            )
        precision = self.mixed_precision
        if precision.loss_scaler is not None and not precision.enabled:
            raise OptionError(
                "option 'mixed_precision.loss_scaler' is set without mixed precision",
                reason="gradients in float32 need no scaling",
                way_out="set mixed_precision.enabled, or leave the scaler out",
            )
        precision.dtype = _DTYPES[precision.dtype]
        if precision.enabled and precision.dtype == "float16" and precision.loss_scaler is None:
            precision.loss_scaler = DynamicLossScaler()

    def recomputation(self) -> Recomputation:
        """Return what the options ask to compute again in the backward pass."""
        asked = self.graph_transformer
        budget = asked.memory_budget
        return Recomputation(
            budget=None if budget is None else parse_budget(budget, "graph_transformer.memory_budget"),
            attention_dropout=asked.attn_dropout_recompute,
            gelu=asked.gelu_recompute,
            layers=asked.transformer_layer_recompute,
            number_of_layers=asked.number_recompute_layers,
        )

    def __repr__(self) -> str:
        return f"ORTTrainerOptions({self._original!r})"


def _parsed(wishes: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(wishes, Mapping):
        raise OptionError(f"option {path.rstrip('.')!r} is {wishes!r}", way_out="give a dictionary")
    for name in wishes:
        if name not in schema:
            raise _unknown(path + str(name), str(name), schema)
    values: dict[str, Any] = {}
    for name, key in schema.items():
        if isinstance(key, dict):
            inner = f"{path}{name}."
            values[name] = _Section(_parsed(wishes.get(name, {}), key, inner), inner)
            continue
        values[name] = _checked(path + name, key, plain_values(wishes).get(name, key.default))
    return values


def _checked(path: str, key: _Key, value: Any) -> Any:
    if not key.check(value):
        raise OptionError(f"option {path!r} is {value!r}", way_out=f"allowed: {key.allowed}")
    if key.reason is not None and not (isinstance(value, type(key.default)) and value == key.default):
        raise OptionError(
            f"option {path!r} cannot be {value!r}", reason=key.reason, way_out=f"leave it at {key.default!r}"
        )
    return list(value) if isinstance(value, tuple) else value


def _schema_of(path: str) -> dict[str, Any]:
    schema = SCHEMA
    for name in path.split(".")[:-1]:
        schema = schema[name]
    return schema


def check_late(before: ORTTrainerOptions, after: ORTTrainerOptions) -> None:
    """Compare the options of a trainer with others that are put in their place.

    Raises:
        OptionError: an option differs that a trainer does not follow.
    """
    now = dict(leaves(after))
    for path, value in leaves(before):
        section, _, name = path.rpartition(".")
        if not _schema_of(f"{section}." if section else "")[name].followed and now[path] != value:
            raise _late(path)


def leaves(section: _Section) -> Iterator[tuple[str, Any]]:
    """Return each option by its path."""
    for name, value in vars(section).items():
        if isinstance(value, _Section):
            yield from leaves(value)
        elif name != "_original":
            yield section._path + name, value


def _unknown(path: str, name: str, schema: Mapping[str, Any]) -> OptionError:
    return OptionError(f"unknown option {path!r}", way_out=f"nearest: {nearest(name, schema)}")


def _late(path: str) -> OptionError:
    return OptionError(
        f"option {path!r} is set after the trainer was made", reason="the trainer was made with the value before",
        way_out="make a new trainer with it, and load this one's state_dict()",
    )  # fmt: skip
