"""A model that a backend has prepared, under onnx's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx.backend import base

from ontrain.backend.settings import set_allowed
from ontrain.errors import InputError
from ontrain.inference import RunOptions, also

__all__ = ["BackendRep", "OnnxRuntimeBackendRep"]

_SETTINGS = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches")
"""Options of a run that a caller of the backend may set."""


class BackendRep(base.BackendRep):
    """A session behind onnx's `BackendRep`.

    Args:
        session: an `InferenceSession`, of ontrain's or onnxruntime's.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Run the model.

        Args:
            inputs: a list or tuple of values in the order of the model's inputs, a dictionary by their names, or the
                value of the one input, which may be a dictionary itself.
            kwargs: settings of `RunOptions` that concern logging, and `only_execute_path_to_fetches`.

        Returns:
            All outputs in the model's order.

        Raises:
            InputError: there are too few or too many values, or one does not fit.
            OptionError: a setting may not be set here.
        """
        options = RunOptions()
        set_allowed(options, _SETTINGS, kwargs)
        return self._session.run(None, _feeds(inputs, self._session.get_inputs()), options)


OnnxRuntimeBackendRep = BackendRep
"""The name in onnxruntime."""


def _feeds(inputs: Any, wanted: list[Any]) -> Mapping[str, Any]:
    names = [value.name for value in wanted]
    if isinstance(inputs, Mapping) and not _is_value(inputs, wanted):
        return inputs
    values = inputs if isinstance(inputs, list | tuple) else [inputs]
    if len(values) != len(names):
        error = InputError(
            f"the model has {len(names)} inputs, {len(values)} are given",
            way_out=f"give a list with values for {', '.join(names) or 'none'}",
        )
        raise also(error, IndexError if values is inputs else RuntimeError)
    return dict(zip(names, values, strict=True))


def _is_value(mapping: Mapping[Any, Any], wanted: list[Any]) -> bool:
    """Whether a dictionary is the value of the one input, which is a map, and not values by the inputs' names."""
    if len(wanted) != 1 or not wanted[0].type.startswith("map("):
        return False
    return not isinstance(mapping.get(wanted[0].name), Mapping)
