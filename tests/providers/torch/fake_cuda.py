"""Plans for a CUDA device on a machine without one: torch's fake tensors run every call, and know where each lies.

A call on tensors of two devices fails there as it does on a GPU. What fake tensors let pass is looked at here: a number
in a tensor on the CPU is taken by kernels of elementwise operators only, and nothing may wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ontrain.providers.torch import TorchExecutionProvider, between
from ontrain.providers.torch.lowering import attention, attention_cuda

__all__ = ["FakeDevice", "Strict", "fake_device"]

# These kernels take a number from the CPU as a scalar; others refuse it, or copy it over and wait, as `where` does.
_TAKE_NUMBERS = frozenset({
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and",
    "bitwise_left_shift", "bitwise_right_shift",
})  # fmt: skip
# torch's own stand-in for this one does not know all of its arguments.
_UNKNOWN = frozenset({"_efficient_attention_backward"})
_WAIT = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique"})


class Strict(TorchDispatchMode):
    """Refuses what a kernel for CUDA would refuse or wait for; keeps the names of the operators called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.called.append(name)
        tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
        elsewhere = [tensor for tensor in tensors if tensor.device.type == "cpu"]
        if any(tensor.device.type == "cuda" for tensor in tensors):
            assert name not in _WAIT, f"{name} waits for the device"
            assert not elsewhere or (name in _TAKE_NUMBERS and not any(tensor.dim() for tensor in elsewhere)), (
                f"{name} is given {[(list(tensor.shape), tensor.device) for tensor in tensors]}"
            )
            if func._schema.is_mutable and name != "set_":
                # Fakes hold no numbers: of a call that writes, its arguments are all there is to look at.
                return _written(func._schema, args, kwargs or {})
            if name in _UNKNOWN:
                return *(torch.empty_like(tensor) for tensor in args[1:4]), None
        return func(*args, **(kwargs or {}))


def _written(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a call returns that writes into its arguments."""
    values = {**dict(zip((argument.name for argument in schema.arguments), args, strict=False)), **kwargs}
    written = [
        values[argument.name]
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not schema.returns:
        return None
    return written[0] if len(schema.returns) == 1 else tuple(written[-len(schema.returns) :])


class _Bindings(TorchFunctionMode):
    """Indexing and copies as calls of operators: Python's bindings ask a build of torch without CUDA for the device."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            return torch.ops.aten.copy_(*args, **(kwargs or {}))
        if func is torch.tensor and torch.device((kwargs or {}).get("device", "cpu")).type == "cuda":
            tensor = func(*args, **{**kwargs, "device": "cpu"})
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        if func is torch.Tensor.view:
            try:
                return func(*args, **(kwargs or {}))
            except ValueError as error:  # what is a RuntimeError elsewhere
                raise RuntimeError(*error.args) from error
        if func is not torch.Tensor.__getitem__ or args[0].device.type != "cuda":
            return func(*args, **(kwargs or {}))
        x, index = args
        axis, tensors = 0, list[Any]()
        index = index if isinstance(index, tuple) else (index,)
        for place, part in enumerate(index):
            if part is Ellipsis:
                axis = x.dim() - (len(index) - place - 1)
                continue
            if isinstance(part, int):
                x = x.select(axis, part)
                continue
            if part is None:
                x = x.unsqueeze(axis)
            elif isinstance(part, slice):
                start, stop, step = part.indices(x.shape[axis])
                x = torch.ops.aten.slice(x, axis, start, stop, step)
            else:
                assert axis == len(tensors), "indices after a slice"
                tensors.append(part)
            axis += 1
        return torch.ops.aten.index(x, tensors) if tensors else x


class _Generator:
    """What makes a generator for the CPU in place of one for the device."""

    def __new__(cls, device: Any) -> Any:
        return torch._C.Generator("cpu")


@contextmanager
def _below_autograd() -> Iterator[None]:
    """Skip what autograd's own kernels of views and copies do: they too ask for a device that is not there."""
    views = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(views):
        yield


class FakeDevice:
    """A provider for a device that is not there, and what runs under its tensors."""

    def __init__(self, provider: TorchExecutionProvider, mode: FakeTensorMode) -> None:
        self.provider, self._mode = provider, mode

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a stand-in for a tensor on the device."""
        with self._mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Tensors made inside are fakes."""
        with self._mode, _below_autograd(), _Bindings():
            yield

    @contextmanager
    def running(self) -> Iterator[Strict]:
        """Calls made inside are watched."""
        with self._mode, Strict() as strict, _below_autograd(), _Bindings():
            yield strict


@contextmanager
def fake_device(**options: Any) -> Iterator[FakeDevice]:
    """A `TorchExecutionProvider` for CUDA over fake tensors.

    Args:
        options: of the provider.
    """
    with pytest.MonkeyPatch.context() as patch:
        # A build of torch without CUDA has no generator for it either, and no streams.
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(attention_cuda, "drawing_from", nullcontext)
        patch.setattr(attention, "runs_flash", lambda device: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(between, "without_function_modes", nullcontext)  # `_Bindings` is such a mode
        with FakeTensorMode() as mode, pytest.MonkeyPatch.context() as here:
            here.setattr(torch.cuda, "is_available", lambda: True)
            provider = TorchExecutionProvider("cuda", **options)
        yield FakeDevice(provider, mode)
