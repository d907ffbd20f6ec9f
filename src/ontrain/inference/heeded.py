"""Which settings of a session mean something on ontrain's providers."""

from __future__ import annotations

import os
from typing import Any

from ontrain.errors import OptionError
from ontrain.inference.options import (
    DISABLED,
    EXTERNAL_FOLDER,
    EXTERNAL_LEAST,
    EXTERNAL_NAME,
    SessionOptions,
    say_once,
)  # fmt: skip
from ontrain.inference.stated_shapes import STRICT
from ontrain.inference.stepwise import Following
from ontrain.inference.upstream_errors import also, upstream
from ontrain.stock import stock

__all__ = ["RECORDS", "check_wanted", "heed"]

_MEANINGLESS = (
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "inter_op_num_threads", "intra_op_num_threads", "use_deterministic_compute", "use_per_session_threads",
)  # fmt: skip
"""Settings of a session that only onnxruntime's providers follow."""
RECORDS = "session.record_ep_graph_assignment_info"
"""The entry by which a session notes which provider runs which nodes."""
_HEEDED = (
    RECORDS, "session.disable_cpu_ep_fallback", "session.load_model_format", "session.save_model_format",
    DISABLED, EXTERNAL_FOLDER, EXTERNAL_LEAST, EXTERNAL_NAME, STRICT,
)  # fmt: skip


def heed(options: Any, provider: str, following: Following | None) -> None:
    """Say of settings that they mean nothing here; refuse what cannot be left out.

    Libraries of custom operators are for the provider that follows, which runs their operators.
    """
    if options is None:
        return
    plain = stock().SessionOptions()
    for name in _MEANINGLESS:
        if hasattr(plain, name) and getattr(options, name) != getattr(plain, name):
            say_once(f"The session option {name} means nothing to {provider}.")
    if not isinstance(options, SessionOptions):
        return
    for key in options.config_entries:
        if key not in _HEEDED:
            say_once(f"The session's entry {key} means nothing to {provider}.")
    if options.custom_libraries and following is None:
        raise OptionError(
            f"{provider} cannot load {os.path.basename(options.custom_libraries[0])!r}",
            reason="a library of custom operators has kernels for onnxruntime",
            way_out="let CPUExecutionProvider follow in the list of providers, or write the operators with @ontrain.op",
        )


def check_wanted(options: Any) -> None:
    """End the loading of a model that nobody wants any more."""
    if isinstance(options, SessionOptions) and options.is_load_cancelled:
        error = OptionError("the model is not loaded", reason="its options' set_load_cancellation_flag was called")
        raise also(error, upstream("ModelLoadCanceled"))
