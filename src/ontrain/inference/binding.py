"""`IOBinding`: inputs and outputs that stay bound from run to run, on onnxruntime's providers and on ontrain's."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from ontrain.errors import InputError, OptionError
from ontrain.inference.upstream_errors import also, told_by_onnxruntime, upstream
from ontrain.stock import stock
from ontrain.stock_values import array_of, items_of

__all__ = ["IOBinding", "OwnBinding"]


class IOBinding(stock().IOBinding):  # type: ignore[misc]
    """onnxruntime's `IOBinding`; a session of ontrain's providers has one of the same methods.

    Args:
        session: an `ontrain.InferenceSession`.
    """

    def __new__(cls, session: Any) -> Any:
        """Make what fits the session's provider."""
        return super().__new__(cls if getattr(session, "_own", None) is None else OwnBinding)

    def __init__(self, session: Any) -> None:
        with told_by_onnxruntime(lambda error: InputError("nothing can be bound", reason=str(error))):
            super().__init__(session)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays.

        Raises:
            InputError: there was no run, where onnxruntime's own would end the process.
        """
        values = self.get_outputs()
        if not all(value.has_value() for value in values):
            raise InputError("the bound outputs have no values", way_out="call session.run_with_iobinding first")
        if any("tensor(string)" in value.data_type() for value in values):
            return [_copied(value) for value in values]  # onnxruntime's own would end the process
        arrays: list[Any] = super().copy_outputs_to_cpu()
        return arrays


class OwnBinding(IOBinding):
    """Inputs and outputs of a session that runs on one of ontrain's providers.

    Attributes:
        inputs: values by name, tensors of torch where they are numbers.
        outputs: by name the memory that the result is to be written to; None for memory of its own.
        results: what the last run gave, in the order in which outputs were bound.
    """

    def __init__(self, session: Any) -> None:
        self._calls = session._own
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.results: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array, which is read at each run."""
        fed = self._calls.tensor if arr_on_cpu is None else self._calls.value  # None is no array, whatever the input
        self.inputs[name] = fed(self._known(name), arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory by its address."""
        self.inputs[self._known(name)] = _at(device_type, device_id, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an `OrtValue`, which is read at each run."""
        self.inputs[name] = self._calls.value(self._known(name), ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in memory of its own or at an address."""
        with told_by_onnxruntime(lambda error: OptionError("there is no such device", reason=str(error))):
            stock().OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self.outputs[self._result(name)] = None
            return
        if element_type is None or shape is None:
            raise InputError(
                f"output {name!r} is bound to an address without its type",
                way_out="give `element_type` and `shape`, too",
            )
        self.outputs[self._result(name)] = _at(device_type, device_id, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Let an output be written into an `OrtValue`."""
        from ontrain.inference.shared_values import memory_of

        self.outputs[self._result(name)] = memory_of(ortvalue)

    def take(self, results: Sequence[Any]) -> None:
        """Keep the results of a run, and write those whose outputs have memory there.

        Raises:
            InputError: a result does not fit the memory.
        """
        taken: list[Any] = []
        for (name, memory), value in zip(self.outputs.items(), results, strict=True):
            if memory is None:
                taken.append(value)
                continue
            result = self._calls.as_tensor(value)
            if memory.shape != result.shape or memory.dtype != result.dtype:
                raise also(
                    InputError(
                        f"output {name!r} is {result.dtype} {list(result.shape)}",
                        reason=f"it is bound to memory of {memory.dtype} {list(memory.shape)}",
                    ),
                    upstream("InvalidArgument"),
                )
            memory.copy_(result)
            taken.append(memory)
        self.results = taken

    def synchronize_inputs(self) -> None:
        """Wait until the device has what is bound."""
        self._calls.synchronize()

    def synchronize_outputs(self) -> None:
        """Wait until the device has written the outputs."""
        self._calls.synchronize()

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run as `OrtValue`s; those of numbers share its memory."""
        return list(self._calls.ort_values(self.outputs, self.results)) if self.results else []

    def get_outputs_as_ortvaluevector(self) -> Any:
        """Return the outputs of the last run as onnxruntime's vector of values that share its memory."""
        vector = stock().capi.onnxruntime_pybind11_state.OrtValueVector()
        for value in self.get_outputs():
            vector.push_back(value._ortvalue)
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays."""
        return [self._calls.array(result) for result in self.results]

    def clear_binding_inputs(self) -> None:
        """Let go of the inputs."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Let go of the outputs."""
        self.outputs.clear()
        self.results = []

    def _known(self, name: str) -> str:
        known = [value.name for value in (*self._calls.get_inputs(), *self._calls.get_overridable_initializers())]
        return self._among(name, known, "input")

    def _result(self, name: str) -> str:
        return self._among(name, [value.name for value in self._calls.get_outputs()], "output")

    def _among(self, name: str, known: Sequence[str], what: str) -> str:
        if name in known:
            return name
        raise also(InputError(f"the model has no {what} {name!r}", way_out=f"it has {', '.join(known)}"), RuntimeError)


def _copied(value: Any) -> Any:
    """A value on the CPU as an array, or a list of arrays."""
    return items_of(value) if value.is_tensor_sequence() else array_of(value)


def _at(device_type: str, device_id: int, element_type: Any, shape: Sequence[int], address: int) -> Any:
    """A tensor over memory at an address, which its owner must keep."""
    import numpy as np
    import onnx_ir as ir
    import torch

    with told_by_onnxruntime(lambda error: InputError(f"{element_type!r} is no element type", reason=str(error))):
        is_number = isinstance(element_type, int)
        kind = ir.DataType(element_type) if is_number else ir.DataType.from_numpy(np.dtype(element_type))
        dtype = ir.tensor_adapters.to_torch_dtype(kind)
    count = math.prod(map(int, shape))
    if device_type == "cpu":
        if not count:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype, count=count).reshape(tuple(shape))
    if device_type != "cuda":
        raise OptionError(f"ontrain's providers have no memory on {device_type!r}", way_out="use 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        error = OptionError("memory of a GPU is bound", reason="PyTorch finds no GPU here", way_out="bind it on 'cpu'")
        raise also(error, RuntimeError)
    memory_of = _OnDevice(address, count * dtype.itemsize)
    return torch.as_tensor(memory_of, device=f"cuda:{device_id}").view(dtype).reshape(tuple(shape))


class _OnDevice:
    """Bytes on a GPU, as torch takes them."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3, "strides": None,
        }  # fmt: skip
