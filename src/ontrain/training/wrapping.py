"""The user's module and loss function as one module whose outputs are those of the model description."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ontrain.arguments import told
from ontrain.capture import Captured, capture, refuse_as_eager, validate
from ontrain.errors import CaptureError, InputError, OptionError, nearest
from ontrain.training.model_desc import ModelDescription

__all__ = ["DescribedModule", "bind_batch", "capture_described", "labels_of", "move_to", "named_tensors"]

_SMALL, _TIMES = 4, 3
"""Sizes from which a forward may leave one, and how often such a batch is repeated for another capture."""
_PREFIX = "model."


class DescribedModule(torch.nn.Module):
    """Calls the user's module with the described inputs and returns the described outputs, in order.

    With a loss function the last input is the label: outputs are (loss, *outputs of the model). Without one, the
    model's own outputs are taken by name where it returns a dictionary (Hugging Face's ModelOutput is one), else by
    position. Inputs are passed by keyword where `forward` takes all their names and has some of them in other places or
    by keyword only, else by position, as an ordinary call does: hooks of the module see which.
    """

    def __init__(self, model: torch.nn.Module, desc: ModelDescription, loss_fn: Callable[..., Any] | None) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.desc = desc
        if isinstance(loss_fn, torch.nn.Module):
            self.loss_fn = loss_fn
        else:
            object.__setattr__(self, "loss_fn", loss_fn)
        if loss_fn is not None and not callable(loss_fn):
            raise OptionError(f"loss_fn is {loss_fn!r}", way_out="give a function of (output, label)")
        self._check_loss_position()
        self._check_loss_arguments()

    def _check_loss_position(self) -> None:
        if self.loss_fn is not None and not self.desc.outputs[0].is_loss:
            raise OptionError(
                "with a loss_fn the first output of model_desc must be the loss",
                way_out="write 'outputs': [('loss', [], True), …]",
            )
        if self.loss_fn is not None and len(self.desc.inputs) < 2:
            raise OptionError("with a loss_fn model_desc needs an input and a label", way_out="add the label last")

    def _check_loss_arguments(self) -> None:
        if self.loss_fn is None:
            return
        try:
            signature = inspect.signature(getattr(self.loss_fn, "forward", self.loss_fn))
        except (TypeError, ValueError):
            return  # a function written in C may have none
        try:
            signature.bind("output", "label")
        except TypeError as error:
            raise OptionError(
                "loss_fn cannot be called with the model's first output and the label",
                reason=f"{error}; it takes {signature}",
                way_out="give a function of (output, label); bind what else it needs with functools.partial",
            ) from error

    def check_arguments(self) -> None:
        """Raise OptionError unless forward takes the described inputs."""
        described = self.desc.inputs if self.loss_fn is None else self.desc.inputs[:-1]
        names = [d.name for d in described]
        signature = inspect.signature(self.model.forward)
        try:
            signature.bind(**dict.fromkeys(names)) if self._by_keyword(names) else signature.bind(*names)
        except TypeError as error:
            label = "" if self.loss_fn is None else ", besides the label"
            raise OptionError(
                f"forward of {type(self.model).__name__} cannot be called with the inputs of model_desc{label}: "
                f"{', '.join(names)}",
                reason=f"{error}; it takes {signature}",
                way_out="describe its inputs; without a loss_fn the label is one of them",
            ) from error

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the described outputs for the described inputs."""
        fed = inputs if self.loss_fn is None else inputs[:-1]
        names = [d.name for d in self.desc.inputs][: len(fed)]
        result = self.model(**dict(zip(names, fed, strict=True))) if self._by_keyword(names) else self.model(*fed)
        if self.loss_fn is None:
            return self._pick(result, [d.name for d in self.desc.outputs])
        outputs = self._pick(result, [d.name for d in self.desc.outputs[1:]] or ["output"])
        loss = self.loss_fn(outputs[0], inputs[-1])
        if not isinstance(loss, torch.Tensor):
            raise OptionError(
                f"loss_fn returned {told(loss)}", reason="its result is what is minimised",
                way_out="return the loss alone, as a tensor of one element; other results are outputs of the model",
            )  # fmt: skip
        return (loss, *outputs[: len(self.desc.outputs) - 1])

    def _by_keyword(self, names: Sequence[str]) -> bool:
        parameters = inspect.signature(self.model.forward).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        known = [parameters[name].kind for name in names if name in parameters]
        takes_any = inspect.Parameter.VAR_KEYWORD in kinds
        if (len(known) < len(names) and not takes_any) or inspect.Parameter.POSITIONAL_ONLY in known:
            return False
        places = {name: place for place, name in enumerate(parameters)}
        elsewhere = any(places.get(name, place) != place for place, name in enumerate(names))
        return elsewhere or inspect.Parameter.KEYWORD_ONLY in known

    def _pick(self, result: object, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
        if isinstance(result, Mapping):
            for name in names:
                if name not in result:
                    raise OptionError(
                        f"the model returns no output {name!r}", way_out=f"it returns: {nearest(name, result)}"
                    )
            return tuple(result[name] for name in names)
        values = tuple(result) if isinstance(result, tuple | list) else (result,)
        if len(values) < len(names):
            raise OptionError(
                f"model_desc describes {len(names)} outputs of the model ({', '.join(names)}), it returns {len(values)}"
            )
        return values[: len(names)]


def labels_of(desc: ModelDescription, loss_fn: Callable[..., Any] | str | None) -> tuple[str, ...]:
    """Return the inputs, one or none, without which the model can be captured but not its outside loss.

    None where no other output is described, or where the loss has parameters that are trained.
    """
    trained = isinstance(loss_fn, torch.nn.Module) and any(p.requires_grad for p in loss_fn.parameters())
    return () if loss_fn is None or len(desc.outputs) == 1 or trained else (desc.inputs[-1].name,)


def capture_described(
    module: DescribedModule, batch: Mapping[str, torch.Tensor], *, training: bool, check: bool = False
) -> Captured:
    """Capture the module in one mode, with parameters under the names of the user's own state_dict.

    With `check` the graph is validated: every operator's mode, and its outputs against eager with dropout off.

    Raises:
        InputError: an input has fewer dimensions than are said to vary.
        CaptureError: the module cannot be captured.
    """
    module.check_arguments()
    for said in module.desc.inputs:
        if max(said.dynamic(), default=-1) >= batch[said.name].ndim:
            raise InputError(
                f"input {said.name!r} has shape {list(batch[said.name].shape)}, model_desc says {list(said.shape)}",
                way_out="feed that shape, or correct model_desc",
            )
    modes = {submodule: submodule.training for submodule in module.modules()}
    if not training:
        module.eval()
    elif not module.model.training:
        module.train()
    try:
        captured = _captured(module, batch)
        if _fixes_sizes(module, captured):
            captured = _of_larger(module, batch) or captured
        if check:
            validate(captured, module, tuple(batch.values()))
    except CaptureError as error:
        refuse_as_eager(module, tuple(batch.values()), {}, error, _PREFIX)
        raise
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode
    for count in captured.counts:
        warnings.warn(
            f"{count}; a graph keeps the value that it had during capture, and the attribute stays as it is: count in "
            "a buffer",
            stacklevel=2,
        )
    return captured


def _captured(module: DescribedModule, batch: Mapping[str, torch.Tensor]) -> Captured:
    return capture(
        module,
        tuple(batch.values()),
        input_names=[d.name for d in module.desc.inputs],
        dynamic=[d.dynamic() for d in module.desc.inputs],
        output_names=[d.name for d in module.desc.outputs],
        prefix=_PREFIX,
    )


def _of_larger(module: DescribedModule, batch: Mapping[str, torch.Tensor]) -> Captured | None:
    """The module captured with a larger batch, None unless that holds for this one and lets all sizes vary.

    Of two tokens `x[:, :-1]` leaves one, and a trace takes a size of one for a constant.
    """
    larger = dict(batch)
    for said in module.desc.inputs:
        for axis in said.dynamic():
            tensor = larger[said.name]
            if 1 < tensor.shape[axis] <= _SMALL:
                larger[said.name] = torch.cat([tensor] * _TIMES, axis)
    if all(larger[name] is tensor for name, tensor in batch.items()):
        return None
    try:
        captured = _captured(module, larger)
    except CaptureError:  # of sizes that do not belong together
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
    holds = not _fixes_sizes(module, captured) and captured.guards.violated(shapes, ones=False) is None
    return captured if holds else None


def _fixes_sizes(module: DescribedModule, captured: Captured) -> bool:
    """Whether a size that is said to vary is a number in the graph."""
    shapes = {value.name: value.shape for value in captured.model.graph.inputs}
    sizes = (shape[axis] for d in module.desc.inputs if (shape := shapes.get(d.name)) for axis in d.dynamic())
    return any(isinstance(size, int) for size in sizes)


def named_tensors(module: DescribedModule) -> dict[str, torch.Tensor]:
    """Return all parameters and buffers, tied ones once, under the names of the user's own state_dict."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name.removeprefix(_PREFIX): tensor for name, tensor in tensors}


def move_to(device: str, *modules: object) -> None:
    """Move what is a module to a device, unless it is there; tensors without values stay."""
    for module in modules:
        if isinstance(module, torch.nn.Module):
            tensors = (*module.parameters(), *module.buffers())
            places = {tensor.device.type for tensor in tensors}
            if places - {torch.device(device).type} and "meta" not in places:
                module.to(device)


def _moved(name: str, tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A tensor of the batch on the device; on its way from the host to a GPU nobody waits for it."""
    if tensor.is_meta:
        raise InputError(
            f"input {name!r} is on the device meta", reason="tensors there have no values",
            way_out="feed a tensor that has values",
        )  # fmt: skip
    target = torch.device(device).type
    if tensor.device.type == target:
        return tensor
    if tensor.is_cpu and target == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _way_out(value: object) -> str:
    if isinstance(value, Mapping):
        return "hand the batch over by names: **batch"
    if isinstance(value, list | tuple) and any(isinstance(part, torch.Tensor) for part in value):
        return "hand the batch over as several arguments: *batch"
    return "convert it with torch.as_tensor"


def bind_batch(
    desc: ModelDescription, args: Sequence[object], kwargs: Mapping[str, object], device: str = "cpu", *,
    optional: Collection[str] = (),
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Return the batch by input name from positional and keyword arguments, as tensors on `device`.

    Numpy arrays become tensors. Those named in `optional` may be missing.

    Raises:
        InputError: too many or too few inputs, an unknown name, one given twice, or something that is no tensor.
    """
    names = [d.name for d in desc.inputs]
    if len(args) > len(names):
        raise InputError(f"{len(args)} inputs were given, model_desc has {len(names)}: {', '.join(names)}")
    batch: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise InputError(f"the model has no input {name!r}", way_out=f"nearest: {nearest(name, names)}")
        if name in batch:
            raise InputError(f"input {name!r} is given by position and by name")
        batch[name] = value
    for name in [name for name in names if name in batch or name not in optional]:
        if name not in batch:
            raise InputError(f"input {name!r} is missing", way_out=f"the inputs are {', '.join(names)}, in this order")
        if isinstance(batch[name], np.ndarray | np.generic) and batch[name].dtype.kind in "biuf":
            batch[name] = torch.from_numpy(np.asarray(batch[name]))
        if not isinstance(batch[name], torch.Tensor):
            kind = type(batch[name]).__name__
            raise InputError(f"input {name!r} is of type {kind}", way_out=_way_out(batch[name]))
        if batch[name].layout is not torch.strided:
            layout = batch[name].layout
            raise InputError(f"input {name!r} has the layout {layout}", way_out="convert it with .to_dense()")
        batch[name] = _moved(name, batch[name], device)
    return {name: batch[name] for name in names if name in batch}
