"""Single nodes by onnxruntime's kernels, on tensors where they lie: for operators that ATen has no kernel of.

Inputs and outputs are bound by their addresses: a call costs three microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.stock_node import refused

__all__ = ["StockKernel"]

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
    """

    def __init__(
        self, op_type: str, session: Any, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
    ) -> None:
        self.__name__ = f"onnxruntime_{op_type}"
        self._op_type, self._session = op_type, session
        self._inputs, self._outputs = map(_places, (inputs, outputs))
        self._bindings: dict[tuple[int, ...], Any] = {}

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Compute the outputs.

        Raises:
            ProviderError: onnxruntime refuses the operands.
        """
        addresses = tuple([tensor.data_ptr() for tensor in tensors])
        binding = self._bindings.get(addresses) or self._bound(addresses)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise refused(self._op_type, error) from error

    def _bound(self, addresses: tuple[int, ...]) -> Any:
        binding = self._session.io_binding()
        at = len(self._inputs)
        for place, address in zip(self._inputs, addresses[:at], strict=True):
            binding.bind_input(place.name, "cpu", 0, place.kind, place.shape, address)
        for place, address in zip(self._outputs, addresses[at:], strict=True):
            binding.bind_output(place.name, "cpu", 0, place.kind, place.shape, address)
        if len(self._bindings) >= _BINDINGS:
            self._bindings.clear()
        self._bindings[addresses] = binding
        return binding


def _places(tensors: Mapping[str, torch.Tensor]) -> list[_Place]:
    return [_Place(name, from_torch_dtype(t.dtype).numpy(), tuple(t.shape)) for name, t in tensors.items()]
