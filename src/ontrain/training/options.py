"""`ORTTrainerOptions`: a nested dictionary, checked against one table of keys, types, limits and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ontrain.errors import OptionError, nearest
from ontrain.training.optim.lr_scheduler import _LRScheduler

__all__ = ["ORTTrainerOptions"]


@dataclass(frozen=True)
class _Key:
    """One option: its default, a check, and the check in words."""

    default: Any
    check: Callable[[Any], bool]
    allowed: str
    reason: str | None = None
    """Why nothing but the default works here yet; None for an option that works."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping)


def _is_int(value: Any, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


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


_SINGLE = "training runs in one process so far"
_FP32 = "training runs in the model's own precision so far"
_RECOMPUTE = "recomputation is not built yet"

SCHEMA: dict[str, Any] = {
    "batch": {"gradient_accumulation_steps": _count(1, 1)},
    "device": {
        "id": _Key(None, lambda v: v is None or isinstance(v, str), "a torch device string such as 'cpu' or 'cuda:0'"),
        "mem_limit": _count(0, 0, "no provider bounds its memory yet"),
    },
    "distributed": {
        "world_rank": _count(0, 0, _SINGLE),
        "world_size": _count(1, 1, _SINGLE),
        "local_rank": _count(0, 0, _SINGLE),
        "data_parallel_size": _count(1, 1, _SINGLE),
        "horizontal_parallel_size": _count(1, 1, _SINGLE),
        "pipeline_parallel_size": _count(1, 1, _SINGLE),
        "num_pipeline_micro_batches": _count(1, 1, _SINGLE),
        "allreduce_post_accumulation": _flag(False, _SINGLE),
        "enable_adasum": _flag(False, _SINGLE),
        "deepspeed_zero_optimization": {"stage": _count(0, 0, _SINGLE)},
    },
    "lr_scheduler": _Key(None, lambda v: v is None or isinstance(v, _LRScheduler), "an lr_scheduler, or None"),
    "mixed_precision": {
        "enabled": _flag(False, _FP32),
        "loss_scaler": _Key(None, lambda v: v is None, "None", _FP32),
    },
    "graph_transformer": {
        "attn_dropout_recompute": _flag(False, _RECOMPUTE),
        "gelu_recompute": _flag(False, _RECOMPUTE),
        "transformer_layer_recompute": _flag(False, _RECOMPUTE),
        "number_recompute_layers": _count(0, 0, _RECOMPUTE),
        "disabled_passes": _names(),
    },
    "utils": {
        "frozen_weights": _names(),
        "grad_norm_clip": _flag(True),
        "max_grad_norm": _Key(
            1.0, lambda v: isinstance(v, int | float) and not isinstance(v, bool) and v > 0, "a positive number"
        ),
        "seed": _count(0, 0),
        "nonfinite_loss": _Key("raise", lambda v: v in ("raise", "skip"), "'raise' or 'skip'"),
        "invertible_layer_norm_gradient": _flag(False, "the gradient reads the saved input"),
        "run_symbolic_shape_infer": _flag(False, "shapes are always inferred; there is nothing to switch"),
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
    },
    "provider": _Key(
        "TorchExecutionProvider",
        lambda v: isinstance(v, str) or _is_pair(v),
        "the name of an execution provider, or (name, {'option': value})",
    ),
}


class _Section:
    """Options of one section as attributes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return repr(self.__dict__)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no option {name!r}; near: {nearest(name, self.__dict__)}")


class ORTTrainerOptions(_Section):
    """Options of `ORTTrainer`, read as attributes: `options.batch.gradient_accumulation_steps`.

    Args:
        options: nested dictionary; what is left out has its default.

    Keys that work: `batch.gradient_accumulation_steps`; `device.id` (default: CUDA if there is one, else the CPU);
    `lr_scheduler`; `utils.frozen_weights`, `utils.grad_norm_clip` (on, for Adam and LAMB),
    `utils.max_grad_norm` (1.0), `utils.seed` (of the dropout stream), `utils.nonfinite_loss` ('raise', or 'skip' the
    update); `debug.check_model_export`, `debug.deterministic_compute`, `debug.dump` (a folder for the graph after each
    stage), `debug.graph_save_paths` (files for three of the stages); `graph_transformer.disabled_passes`;
    `provider`, a name or (name, options of that provider). The other keys of onnxruntime's trainer are known, and
    refused with the reason if set.

    Raises:
        OptionError: an unknown key (the nearest right one is named), a value out of range, or an option that nothing
            here can honour.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._original = dict(options or {})
        super().__init__(_parsed(self._original, SCHEMA, ""))

    def __repr__(self) -> str:
        return f"ORTTrainerOptions({self._original!r})"


def _parsed(given: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise OptionError(f"option {path.rstrip('.')!r} is {given!r}", way_out="give a dictionary")
    for name in given:
        if name not in schema:
            raise OptionError(f"unknown option {path + str(name)!r}", way_out=f"nearest: {nearest(str(name), schema)}")
    values: dict[str, Any] = {}
    for name, key in schema.items():
        if isinstance(key, dict):
            values[name] = _Section(_parsed(given.get(name, {}), key, f"{path}{name}."))
            continue
        value = given.get(name, key.default)
        if not key.check(value):
            raise OptionError(f"option {path + name!r} is {value!r}", way_out=f"allowed: {key.allowed}")
        if key.reason is not None and value != key.default:
            raise OptionError(
                f"option {path + name!r} cannot be {value!r}", reason=key.reason, way_out=f"leave it at {key.default!r}"
            )
        values[name] = list(value) if isinstance(value, tuple) else value
    return values
