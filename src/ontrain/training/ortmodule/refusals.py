"""Calls that no graph can answer, refused before anything is captured or run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.autograd import forward_ad

from ontrain.capture import Captured
from ontrain.errors import CaptureError, InputError
from ontrain.graph import updates_of
from ontrain.internals import FakeTensor, of, private

__all__ = ["DeviceError", "TracedError", "common_device", "refuse_transforms", "refuse_views"]


class DeviceError(InputError):
    """A module and its input are not in one place that can compute."""


class TracedError(InputError):
    """A trace of PyTorch's operators goes through an ORTModule; those of the plain module are what it is after."""


def refuse_transforms(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse what runs a forward on stand-ins for tensors, or follows tangents through it.

    Raises:
        InputError: within a function transformed by torch.func, forward-mode differentiation, or torch.compile.
        TracedError: within a trace by torch.jit or torch.export.
    """
    # torch.compiler.is_compiling and proxy modes are also true while another thread captures.
    fake = any(type(t) is FakeTensor for t in tensors)
    if private("torch._C._is_tracing")() or fake and torch.compiler.is_exporting():
        raise TracedError("an ORTModule is called within a trace", way_out="trace the attribute .module")
    if torch.compiler.is_dynamo_compiling() or fake:
        what = "a trace by torch.compile"
    elif private("torch._C._functorch.peek_interpreter_stack")() is not None:
        what = "a function transformed by torch.func"
    elif of("torch.autograd.forward_ad._current_level", forward_ad) >= 0:
        what = "forward-mode differentiation"
    else:
        return
    raise InputError(
        f"an ORTModule is called within {what}", reason="its graph runs on real tensors, and only backward follows it",
        way_out="use the plain module there, which is the attribute .module",
    )  # fmt: skip


def refuse_views(captured: Captured) -> None:
    """Refuse a forward that writes to a buffer and reads a tensor outside of the module's state that shares its memory.

    Raises:
        CaptureError: names the buffer.
    """
    updated = {updates_of(value) for value in captured.model.graph.outputs}
    buffers = {name: buffer for name, buffer in captured.buffers.items() if name in updated and buffer.numel()}
    written = {buffer.untyped_storage().data_ptr(): name for name, buffer in buffers.items()}
    outside = [*captured.constants, *captured.varying.values()] if written else []
    for tensor in (tensor for tensor in outside if tensor.layout is torch.strided and tensor.numel()):
        name = written.get(tensor.untyped_storage().data_ptr())
        # A buffer that no state_dict has is among the constants itself.
        if name is not None and (tensor.data_ptr(), tensor.shape) != (buffers[name].data_ptr(), buffers[name].shape):
            raise CaptureError(
                f"forward writes to buffer {name!r}, and reads a tensor that shares its memory",
                reason="a graph has a value for each of the two, and a write to one is not seen in the other",
                way_out=f"take the tensor out of the buffer in forward, as in self.{name}[0]",
            )


def common_device(module: nn.Module, tensors: Sequence[torch.Tensor]) -> torch.device:
    """Return where a module and its inputs are.

    Raises:
        DeviceError: on more than one device, or on the meta device.
        InputError: a tensor is nested, or sparse and no matrix of numbers.
    """
    for i, tensor in enumerate(tensors):
        if tensor.is_nested:
            raise InputError(
                f"tensor {i} of the call is nested ({tensor.layout})",
                reason="what goes into a graph has one length in each dimension",
                way_out="give a padded tensor and the lengths, torch.nested.to_padded_tensor(tensor, 0.0), and mask by "
                "them; or rows one after the other with their offsets",
            )
        if tensor.layout is not torch.strided:
            raise InputError(
                f"tensor {i} of the call is sparse ({tensor.layout}, {tensor.dim()} dimensions)",
                reason="it wants a gradient, and a graph has the gradients of dense tensors"
                if tensor.requires_grad
                else "a graph has sparse matrices of numbers, and no other sparse tensors",
                way_out="give its indices() and values(), and call torch.sparse_coo_tensor(indices, values, size) in "
                "forward",
            )
    devices: dict[torch.device, str] = {}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        devices.setdefault(value.device, f"parameter or buffer {name!r}")
    for i, tensor in enumerate(tensors):
        devices.setdefault(tensor.device, f"tensor {i} of the call")
    if any(device.type == "meta" for device in devices) and len(devices) == 1:
        raise DeviceError(
            "the module and its input are on the meta device", reason="tensors there have no values",
            way_out="give both memory: model.to_empty(device='cpu') and a real batch",
        )  # fmt: skip
    if len(devices) > 1:
        raise DeviceError(
            "the module and its input are on different devices",
            reason=", ".join(f"{what} is on {device}" for device, what in devices.items()),
            way_out="move the input with .to(device), and the whole module with .to(device)",
        )
    return next(iter(devices), torch.device("cpu"))
