"""A graph of the artifacts in stock onnxruntime, with its state bound."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ontrain.arguments import checked_kind, checked_path, told
from ontrain.errors import InputError, OptionError, ProviderError
from ontrain.stock import stock
from ontrain.training.api.tensors import as_array, ort_value

onnxruntime = stock()

__all__ = ["Graph", "check_device"]

_DTYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(int16)": np.int16, "tensor(int8)": np.int8,
    "tensor(uint64)": np.uint64, "tensor(uint32)": np.uint32, "tensor(uint16)": np.uint16, "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_, "tensor(string)": np.str_,
}  # fmt: skip


def check_device(device: str) -> None:
    """Raise OptionError for a device that the API does not run on."""
    if not isinstance(device, str) or device != "cpu":
        raise OptionError(
            f"the on-device API does not run on {told(device)}",
            reason="its state lies in host memory",
            way_out="use device='cpu'; on a GPU train with ontrain.training.ORTTrainer",
        )


class Graph:
    """One session.

    Attributes:
        inputs, outputs: names in the graph's order.

    Args:
        path: of a graph that `generate_artifacts` wrote, as .onnx or .ort.
        options: `onnxruntime.SessionOptions`; None for onnxruntime's own, with warnings off.

    Raises:
        OptionError: there is no such file.
        ProviderError: onnxruntime does not take it.
    """

    def __init__(self, path: str | os.PathLike[str], options: Any = None) -> None:
        path = checked_path("the path of the model", path)
        if not Path(path).is_file():
            raise OptionError(f"there is no model {path!r}", way_out="generate_artifacts writes one")
        if options is not None:
            checked_kind(
                "session_options", options, onnxruntime.SessionOptions, "give onnxruntime.SessionOptions, or None"
            )
        else:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise ProviderError(f"onnxruntime cannot load {path!r}", reason=str(error)) from error
        self._types = {value.name: value for value in self._session.get_inputs()}
        self.inputs, self.outputs = list(self._types), [value.name for value in self._session.get_outputs()]

    def shape(self, name: str) -> tuple[tuple[int, ...], Any]:
        """Return shape and dtype of an input whose shape is fixed."""
        kind = self._types[name]
        return tuple(kind.shape), _DTYPES[kind.type]

    def feed(self, name: str, value: object) -> Any:
        """Return what was given for an input as an OrtValue; texts, of which there are none, as an array.

        Raises:
            InputError: another dtype or shape.
        """
        if isinstance(value, onnxruntime.OrtValue):
            return value
        declared, array = self._types[name], as_array(f"input {name!r}", value)
        wanted = np.dtype(_DTYPES[declared.type])
        if wanted.kind == "U" and _is_text(array):
            wanted = array.dtype  # of as many characters as the longest has
        fits = len(array.shape) == len(declared.shape) and all(
            isinstance(want, str) or want is None or want == have
            for want, have in zip(declared.shape, array.shape, strict=True)
        )
        if array.dtype != wanted or not fits:
            kind = "str" if wanted.kind == "U" else wanted.name
            raise InputError(
                f"input {name!r} is {array.dtype.name} {list(array.shape)}, the graph takes {kind} {declared.shape}",
                way_out="convert or reshape it",
            )
        if wanted.kind in "UO":
            return array
        # Not ascontiguousarray, which makes vectors of scalars.
        return ort_value(np.asarray(array, order="C"))

    def run(self, feeds: Mapping[str, object], outputs: Mapping[str, object]) -> dict[str, Any]:
        """Run on OrtValues.

        Args:
            feeds: for each input its value; arrays of texts as they are.
            outputs: for each output where to write it; None lets onnxruntime allocate.

        Raises:
            InputError: onnxruntime failed on this batch.
        """
        asked = [name for name in self.outputs if name in outputs]
        if any(isinstance(value, np.ndarray) for value in feeds.values()):
            return self._run_on_arrays(feeds, outputs, asked)
        binding = self._session.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name in asked:
            if outputs[name] is None:
                binding.bind_output(name)
            else:
                binding.bind_ortvalue_output(name, outputs[name])
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise InputError("onnxruntime failed on this batch", reason=str(error)) from error
        return dict(zip(asked, binding.get_outputs(), strict=True))

    def _run_on_arrays(
        self, feeds: Mapping[str, Any], outputs: Mapping[str, Any], asked: Sequence[str]
    ) -> dict[str, Any]:
        """Run where texts are fed, which onnxruntime binds no memory of; results are copied to their places."""
        arrays = {name: v if isinstance(v, np.ndarray) else v.numpy() for name, v in feeds.items()}
        try:
            results = self._session.run(list(asked), arrays)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise InputError("onnxruntime failed on this batch", reason=str(error)) from error
        written = {}
        for name, array in zip(asked, results, strict=True):
            if outputs[name] is not None:
                outputs[name].update_inplace(np.asarray(array, order="C"))
            written[name] = ort_value(array) if outputs[name] is None else outputs[name]
        return written


def _is_text(array: Any) -> bool:
    return array.dtype.kind == "U" or (array.dtype == object and all(isinstance(text, str) for text in array.flat))
