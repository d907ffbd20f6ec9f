"""What can be checked: an ONNX file, a module with a sample call, and the name of a function that makes one."""

from __future__ import annotations

import fnmatch
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ontrain.capture import capture, load_onnx
from ontrain.errors import CaptureError, GraphError, OntrainError, OptionError, nearest
from ontrain.places import function_name, missing_module
from ontrain.providers import get_provider
from ontrain.session.check.examine import Subject, examine
from ontrain.session.check.report import CheckReport, Problem

__all__ = ["DEFAULT_PROVIDER", "check_file", "check_module", "load_factory", "load_function"]

DEFAULT_PROVIDER = "TorchExecutionProvider"


def check_file(
    path: str | os.PathLike[str],
    *,
    provider: str = DEFAULT_PROVIDER,
    loss: str | None = None,
    trainable: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    optimizer: str = "AdamW",
) -> CheckReport:
    """Say whether an ONNX file can be trained, operator by operator, and what a step would cost.

    Args:
        path: the `.onnx` file.
        provider: name of the execution provider that is to run it.
        loss: name of an output, or of a loss to add to the first output ("MSE", "SoftmaxCrossEntropy", …); by default
            an output that is a scalar, or else the mean of the first.
        trainable: names or patterns of initializers to train, see `ontrain.capture.load_onnx`.
        frozen: names or patterns of initializers to leave as they are.
        sizes: of dimensions that vary, by name; 1 for those left out.
        optimizer: algorithm whose state counts in the cost.

    Returns:
        The report. What keeps the model from being trained is in its `problems`, not raised.

    Raises:
        InputError: there is no such file.
        OptionError: a provider, loss, pattern, dimension or optimizer that there is not.
    """
    runner, name = get_provider(provider), os.fspath(path)
    try:
        loaded = load_onnx(path, trainable=trainable, frozen=frozen)
    except GraphError as error:
        return CheckReport(name, runner.name, optimizer, problems=(Problem.of("capture", error),))
    subject = Subject(name, loaded.model, loaded.initial, loaded.trainable)
    return examine(subject, runner, loss=loss, sizes=sizes, optimizer=optimizer)


def check_module(
    module: torch.nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    provider: str = DEFAULT_PROVIDER,
    loss: str | None = None,
    trainable: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    optimizer: str = "AdamW",
    name: str | None = None,
) -> CheckReport:
    """Say whether a module can be trained, operator by operator, and what a step on this sample would cost.

    Args:
        module: captured in training mode; it stays as it is.
        args: positional arguments of a sample call of `module`.
        kwargs: its keyword arguments.
        provider: as for `check_file`.
        loss: as for `check_file`.
        trainable: names or patterns ("encoder.*") of parameters to train; by default all that require a gradient.
        frozen: names or patterns of parameters that stay as they are.
        optimizer: as for `check_file`.
        name: what the report calls the module; by default its class.

    Returns:
        The report. What keeps the module from being trained is in its `problems`, not raised.

    Raises:
        InputError: the sample call does not fit the module.
        OptionError: a provider, loss, pattern or optimizer that there is not.
    """
    runner, title = get_provider(provider), name or type(module).__name__
    parameters = dict(module.named_parameters())
    chosen = (
        [n for n, p in parameters.items() if p.requires_grad] if trainable is None else _match(trainable, parameters)
    )
    stay = set(_match(frozen, parameters))
    modes = {submodule: submodule.training for submodule in module.modules()}
    module.train()
    try:
        captured = capture(module, args, kwargs)
    except (CaptureError, GraphError) as error:
        return CheckReport(title, runner.name, optimizer, problems=(Problem.of("capture", error),))
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode
    used = {str(v.name) for v in captured.model.graph.inputs}
    tensors: dict[str, torch.Tensor] = {**captured.parameters, **captured.buffers}
    names = [n for n in chosen if n in used and n not in stay]
    subject = Subject(title, captured.model, tensors, names)
    return examine(subject, runner, loss=loss, optimizer=optimizer)


def _match(patterns: Sequence[str], names: Mapping[str, object]) -> list[str]:
    lines: dict[str, None] = {}
    for pattern in patterns:
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            raise OptionError(f"no parameter is called {pattern!r}", way_out=f"nearest: {nearest(pattern, names)}")
        lines.update(dict.fromkeys(fitting))
    return list(lines)


def load_factory(target: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Import "package.module:function", call it, and return what it makes: a module and a sample call.

    The function takes no argument and returns `(module, args)` or `(module, args, kwargs)`; `args` is a tuple, or a
    single tensor.

    Raises:
        OptionError: the target is malformed or cannot be imported, the function fails, or returns something else.
    """
    return _sample(target, _called(target, load_function(target)))


def load_function(target: str) -> Callable[[], Any]:
    """Import "package.module:function".

    Raises:
        OptionError: the target is malformed, cannot be imported, or is no function.
    """
    place, name = function_name(target)
    module = _imported(place)
    if not hasattr(module, name):
        raise OptionError(f"{place} has no {name!r}", way_out=f"nearest: {nearest(name, vars(module))}")
    function = getattr(module, name)
    if not callable(function):
        raise OptionError(f"{target} is a {type(function).__name__}", way_out="name a function")
    inner: Callable[[], Any] = function
    return inner


def _imported(place: str) -> Any:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(error.name + ".")):
            raise missing_module(place) from error
        raise OptionError(f"{place} cannot be imported", reason=str(error), way_out="install what it needs") from error
    except Exception as error:  # the user's module may raise anything
        raise OptionError(f"{place} cannot be imported", reason=_said(error)) from error


def _called(target: str, factory: Any) -> Any:
    try:
        return factory()
    except OntrainError:
        raise
    except Exception as error:  # the user's function may raise anything
        raise OptionError(
            f"{target}() failed", reason=_said(error), way_out="it is called without arguments, and must work so"
        ) from error


def _said(error: Exception) -> str:
    """An exception in one line, with the last line of the user's code that it passed."""
    trace, last = error.__traceback__, None
    while trace is not None:
        last = trace
        trace = trace.tb_next
    where = f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})" if last is not None else ""
    return f"{type(error).__name__}: {error}{where}"


def _sample(target: str, sample: object) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    wanted = "return (module, args) or (module, args, kwargs)"
    if not isinstance(sample, tuple) or len(sample) not in (2, 3):
        what = f"a tuple of {len(sample)}" if isinstance(sample, tuple) else f"a {type(sample).__name__}"
        raise OptionError(f"{target}() returned {what}", way_out=wanted)
    module, args, kwargs = sample if len(sample) == 3 else (*sample, {})
    if not isinstance(module, torch.nn.Module):
        raise OptionError(f"{target}() returned a {type(module).__name__} for the module", way_out=wanted)
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise OptionError(
            f"{target}() returned a {type(args).__name__} and a {type(kwargs).__name__} for the sample call",
            way_out=wanted + ", args a tuple and kwargs a dictionary",
        )
    return module, tuple(args), dict(kwargs)
