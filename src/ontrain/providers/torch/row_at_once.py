"""A plan that is one call of onnxruntime, from arrays to arrays: past the planned memory, and tensors over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx_ir.tensor_adapters import from_torch_dtype

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.stock_kernel import StockKernel

__all__ = ["RowAtOnce"]


class RowAtOnce:
    """The call on arrays; see `ontrain.providers.base.AtOnce`.

    Args:
        kernel: the call.
        inputs: of each of its inputs the name in the graph.
        outputs: of each of its outputs the name in the graph.
        kinds: dtype and sizes of each input of the graph.
    """

    def __init__(
        self, kernel: StockKernel, inputs: Sequence[str], outputs: Sequence[str],
        kinds: Mapping[str, tuple[Any, tuple[int, ...]]],
    ) -> None:  # fmt: skip
        self.kinds, self.names = kinds, outputs
        self._run, self._inputs = kernel.run, inputs

    @classmethod
    def of(
        cls, kernel: StockKernel, bufs: Sequence[object], inputs: Mapping[str, Buf], outputs: Mapping[str, Buf]
    ) -> RowAtOnce | None:
        """Return the call where it reads nothing but what is fed, and makes all that is asked for.

        Args:
            kernel: the only call of a program.
            bufs: what it is called with.
            inputs, outputs: of the program, by name.
        """
        places = [_name_of(buf, {**inputs, **outputs}) for buf in bufs]
        cut = len(bufs) - len(outputs)
        fed, made = places[:cut], places[cut:]
        if not kernel.takes_all or not set(fed) <= inputs.keys() or set(made) != outputs.keys():
            return None
        kinds = {name: (from_torch_dtype(buf.dtype).numpy(), tuple(buf.shape)) for name, buf in inputs.items()}
        return cls(kernel, fed, made, kinds)

    def __call__(self, arrays: Mapping[str, Any]) -> list[Any]:
        """Run once."""
        return self._run([arrays[name] for name in self._inputs])


def _name_of(buf: object, known: Mapping[str, Buf]) -> str:
    """The name of what lies there; "" for what is neither fed nor handed out."""
    return next((name for name, place in known.items() if isinstance(buf, Buf) and place.same_elements(buf)), "")
