"""`InferenceSession`: an exported model, run by stock onnxruntime or by one of ontrain's own providers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ontrain.errors import InputError, OptionError, nearest
from ontrain.providers import available_providers

__all__ = ["InferenceSession"]

Array = np.ndarray[Any, Any]


class InferenceSession:
    """Loads an ONNX model and runs it, with onnxruntime's own call signatures.

    Args:
        path_or_bytes: an `.onnx` file, or its bytes.
        sess_options: `onnxruntime.SessionOptions`, passed on.
        providers: execution providers in order of preference; default is stock onnxruntime on the CPU.
        provider_options: one dictionary a provider, passed on.

    Raises:
        InputError: the file is missing or is no ONNX model.
        OptionError: a provider is unknown.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        chosen = list(providers or ["CPUExecutionProvider"])
        known = onnxruntime.get_available_providers()
        for name in chosen:
            if name not in known:
                raise OptionError(
                    f"onnxruntime has no execution provider {name!r} here",
                    way_out=f"installed: {nearest(name, [*known, *available_providers()])}",
                )
        source = path_or_bytes
        if not isinstance(source, bytes):
            if not Path(source).is_file():
                raise InputError(f"there is no model file {os.fspath(source)!r}")
            source = os.fspath(source)
        try:
            self._session = onnxruntime.InferenceSession(source, sess_options, chosen, provider_options)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise InputError("onnxruntime cannot load the model", reason=str(error)) from error

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """Run the model.

        Args:
            output_names: outputs wanted; None for all.
            input_feed: arrays (numpy, or anything numpy can view, torch tensors included) by input name.
            run_options: `onnxruntime.RunOptions`, passed on.

        Returns:
            One array per output.

        Raises:
            InputError: an input is missing, unknown, or does not fit.
        """
        known = [i.name for i in self._session.get_inputs()]
        for name in input_feed:
            if name not in known:
                raise InputError(f"the model has no input {name!r}", way_out=f"nearest: {nearest(name, known)}")
        feeds = {name: np.asarray(value) for name, value in input_feed.items()}
        try:
            results: list[Array] = self._session.run(output_names, feeds, run_options)
        except (ValueError, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument) as error:
            wanted = ", ".join(f"{i.name}: {i.type}{i.shape}" for i in self._session.get_inputs())
            raise InputError("the feeds do not fit the model", reason=str(error), way_out=f"feed {wanted}") from error
        return results

    def __getattr__(self, name: str) -> Any:
        """`get_inputs`, `get_outputs`, `get_modelmeta`, `io_binding` and the rest are onnxruntime's own."""
        if name == "_session":
            raise AttributeError(name)
        return getattr(self._session, name)
