"""Single nodes by onnxruntime's kernels, on tensors where they lie: for operators that ATen has no kernel of.

Inputs and outputs are bound by their addresses. A call costs two microseconds: it goes past the Python of
onnxruntime's session, and hands over options for a run, where onnxruntime would make new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.stock_node import refused, run_options

__all__ = ["Check", "StockKernel"]

Check = Callable[[Mapping[str, torch.Tensor]], None]
_BINDINGS = 16
"""Combinations of addresses that stay bound: one for each block of working memory."""


class _Place(NamedTuple):
    """An input or output: its name, numpy's type, and sizes."""

    name: str
    kind: Any
    shape: tuple[int, ...]


class StockKernel:
    """Calls a session of one node on tensors, the inputs first and then the outputs, all of them laid out row by row.

    Several threads may call it, each on memory of its own.

    Args:
        op_type: of the node.
        session: of `ontrain.stock_node.open_node`.
        inputs: sizes and dtypes by the session's names.
        outputs: the same of those outputs that are wanted.
        fixed: further inputs, which never change, and that a call is not given.
        check: is given all inputs by name before each call, and raises an error where the kernel must not see them.
    """

    def __init__(
        self, op_type: str, session: Any, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor],
        fixed: Mapping[str, torch.Tensor] | None = None, check: Check | None = None,
    ) -> None:  # fmt: skip
        self.__name__ = f"onnxruntime_{op_type}"
        self._op_type, self._session = op_type, session
        self._inputs, self._outputs, self._fixed = _places(inputs), _places(outputs), dict(fixed or {})
        self._check = check
        self._calls: dict[tuple[int, ...], Callable[[], object]] = {}
        self._names = [place.name for place in self._outputs]
        self._run = getattr(getattr(session, "_sess", None), "run", session.run)

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Compute the outputs.

        Raises:
            ProviderError: onnxruntime refuses the operands.
        """
        if self._check is not None:
            self._check({**self._fixed, **dict(zip([place.name for place in self._inputs], tensors, strict=False))})
        addresses = tuple([tensor.data_ptr() for tensor in tensors])
        call = self._calls.get(addresses) or self._bound(addresses)
        try:
            call()
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise refused(self._op_type, error) from error

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Return new arrays for the outputs, of arrays for the inputs in order."""
        feeds = {place.name: array for place, array in zip(self._inputs, arrays, strict=True)}
        if self._check is not None:
            self._check({name: torch.as_tensor(array) for name, array in feeds.items()})
        return cast("list[Any]", self._run(self._names, feeds, None))

    @property
    def takes_all(self) -> bool:
        """Whether a call is given all that the session reads."""
        return not self._fixed

    def _bound(self, addresses: tuple[int, ...]) -> Callable[[], object]:
        binding = self._session.io_binding()
        at = len(self._inputs)
        for place, address in zip(self._inputs, addresses[:at], strict=True):
            binding.bind_input(place.name, "cpu", 0, place.kind, place.shape, address)
        for place, address in zip(self._outputs, addresses[at:], strict=True):
            binding.bind_output(place.name, "cpu", 0, place.kind, place.shape, address)
        for place, tensor in zip(_places(self._fixed), self._fixed.values(), strict=True):
            binding.bind_input(place.name, "cpu", 0, place.kind, place.shape, tensor.data_ptr())
        if len(self._calls) >= _BINDINGS:
            self._calls.clear()
        inner, bound = getattr(self._session, "_sess", None), getattr(binding, "_iobinding", None)
        if inner is None or bound is None:  # of another onnxruntime, whose session has no such names
            call = partial(self._session.run_with_iobinding, binding)
        else:
            call = partial(inner.run_with_iobinding, bound, run_options())
        self._calls[addresses] = call
        return call


def _places(tensors: Mapping[str, torch.Tensor]) -> list[_Place]:
    return [_Place(name, from_torch_dtype(t.dtype).numpy(), tuple(t.shape)) for name, t in tensors.items()]
