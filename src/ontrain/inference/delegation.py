"""Methods of onnxruntime's sessions, which go to onnxruntime or to one of ontrain's providers."""

from __future__ import annotations

import functools
from typing import Any

from ontrain.errors import OptionError
from ontrain.inference.stock_errors import not_run
from ontrain.inference.upstream_errors import told_by_onnxruntime

__all__ = ["delegating"]

_DELEGATED = (
    "create_ortvalue_from_shape_and_type", "end_profiling", "get_input_memory_infos", "get_inputs", "get_modelmeta",
    "get_output_memory_infos", "get_outputs", "get_overridable_initializers", "get_profiling_start_time_ns",
    "get_provider_graph_assignment_info", "get_provider_options", "get_providers", "get_session_options",
    "get_tuning_results", "run_async", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector",
    "set_tuning_results",
)  # fmt: skip
"""Methods that onnxruntime's sessions have, and sessions of ontrain's providers under the same names."""
_STOCK_ONLY = ("get_input_epdevices", "release_captured_graph", "set_ep_dynamic_options")
"""Methods that only onnxruntime's sessions have."""


def delegating(session: type) -> dict[str, Any]:
    """Return methods for a subclass of onnxruntime's session; some are younger than the oldest that ontrain takes.

    An instance of the subclass has `_own`, its session on one of ontrain's providers or None, and `_candidate`.
    """
    methods = {name: getattr(session, name, None) for name in (*_DELEGATED, *_STOCK_ONLY)}
    return {name: _delegating(name, method) for name, method in methods.items() if method is not None}


def _delegating(name: str, theirs: Any) -> Any:
    @functools.wraps(theirs)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._own is not None:
            method = getattr(self._own, name, None)
            if method is None:
                raise OptionError(
                    f"{self._candidate.own} has no {name!r}", reason="it is a matter of onnxruntime's own providers",
                    way_out="use them, such as CPUExecutionProvider, or leave the call out",
                )  # fmt: skip
            return method(*args, **kwargs)
        with told_by_onnxruntime(lambda error: not_run(self, error, None, None)):
            return theirs(self, *args, **kwargs)

    return call
