"""`LazyOutput`: an output that a call did not compute, and that gets its values when somebody looks at them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

from ontrain.internals import private

__all__ = ["LazyOutput", "Source"]

_UNTOUCHED = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in (
            "shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad_fn", "is_leaf", "output_nr",
            "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn",
            "is_xpu", "is_mps", "itemsize", "nbytes", "_version",
        ) if hasattr(torch.Tensor, name)),
        *(getattr(torch.Tensor, name) for name in (
            "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size",
            "is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "get_device", "__len__",
        )),
        torch.is_floating_point, torch.is_complex, torch.is_signed, torch.is_inference, torch.numel,
    ]
)  # fmt: skip
"""What can be asked of a tensor without its values."""


class Source(Protocol):
    """What computes outputs when they are asked for."""

    def touch(self, name: str) -> None:
        """Fill the lazy outputs that are still referred to, because somebody looked at this one."""
        ...


class LazyOutput(torch.Tensor):
    """An output of an ORTModule that is computed when its values are first asked for.

    Shape, dtype, device and the place in autograd's graph are known from the start. Everything else is done to a plain
    tensor, which takes the lazy one's place in all of torch's functions from the first look on.

    Args:
        source: computes it.
        name: its name there.
    """

    _source: Source | None
    _name: str
    _value: torch.Tensor | None
    _plain: torch.Tensor | None

    @staticmethod
    def __new__(
        cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, source: Source, name: str
    ) -> LazyOutput:
        """Make one without values."""
        output: LazyOutput = private("torch.Tensor._make_wrapper_subclass")(cls, shape, dtype=dtype, device=device)
        output._source, output._name, output._value, output._plain = source, name, None, None
        return output

    def fill(self, value: torch.Tensor) -> None:
        """Take the values: a tensor of its own memory."""
        self._value, self._source = value.contiguous(), None

    def plain(self) -> torch.Tensor:
        """Return the plain tensor, the same at each call."""
        if self._plain is None:
            # As autograd would have it, though this look may come without gradients: the next may come with them.
            with torch.inference_mode(False), torch.enable_grad(), private("torch._C.DisableTorchFunctionSubclass")():
                value = self.values()
                if self._plain is None:
                    self._plain = _Look.apply(self) if self.requires_grad else value  # type: ignore[no-untyped-call]
        assert self._plain is not None
        return self._plain

    def seen(self) -> torch.Tensor | None:
        """Return the plain tensor, if somebody has looked."""
        return self._plain

    def values(self) -> torch.Tensor:
        """Return the values alone."""
        if self._source is not None:
            self._source.touch(self._name)
        assert self._value is not None
        return self._value

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[object, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Do to the plain tensor what is done to the lazy one, unless it needs no values."""
        tensor = args[0] if args else (kwargs or {}).get("input")
        if func is torch.Tensor.__hash__:
            return id(tensor)
        if func in _UNTOUCHED and isinstance(tensor, LazyOutput) and tensor._plain is None:
            with private("torch._C.DisableTorchFunctionSubclass")():
                return func(*args, **(kwargs or {}))
        told = {**(kwargs or {}), **_untold(func, args, kwargs)}
        return func(*_replace(args, LazyOutput.plain), **_replace(told, LazyOutput.plain))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[object, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """The same below autograd, for callers that go around torch's functions."""
        return func(*_replace(args, LazyOutput.values), **_replace(dict(kwargs or {}), LazyOutput.values))


class _Look(torch.autograd.Function):
    """From a lazy output to its plain tensor."""

    @staticmethod
    def forward(ctx: object, lazy: LazyOutput) -> torch.Tensor:
        return lazy.values()

    @staticmethod
    def backward(ctx: object, adjoint: torch.Tensor) -> torch.Tensor:
        return adjoint


def _untold(func: object, args: tuple[object, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The weights of l1_loss, which torch leaves out where it asks a tensor of a class of its own: its caller has them.

    Without them the loss would have none.
    """
    if func is not torch.nn.functional.l1_loss or len(args) != 2 or "weight" in (kwargs or {}):
        return {}
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not torch.nn.functional.l1_loss.__code__:
        frame = frame.f_back
    weight = frame.f_locals.get("weight") if frame.f_code is torch.nn.functional.l1_loss.__code__ else None
    return {} if weight is None else {"weight": weight}


def _replace(value: Any, by: Callable[[LazyOutput], torch.Tensor]) -> Any:
    """Put plain tensors in the place of lazy ones among a function's arguments."""
    if isinstance(value, LazyOutput):
        return by(value)
    if type(value) in (tuple, list):
        return type(value)([_replace(item, by) for item in value])
    if type(value) is dict:
        return {name: _replace(item, by) for name, item in value.items()}
    if type(value) is slice:
        return slice(*[_replace(bound, by) for bound in (value.start, value.stop, value.step)])
    return value
