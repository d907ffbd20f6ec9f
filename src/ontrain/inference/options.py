"""`SessionOptions` and `RunOptions` that remember what onnxruntime's own do not tell again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

from ontrain.errors import OptionError
from ontrain.inference.upstream_errors import also
from ontrain.stock import stock

__all__ = [
    "DISABLED",
    "EXTERNAL_FOLDER",
    "EXTERNAL_LEAST",
    "EXTERNAL_NAME",
    "RunOptions",
    "SessionOptions",
    "checked_options",
    "config_entry",
    "copied_options",
    "say_once",
]

DISABLED = "optimization.disable_specified_optimizers"
"""The entry that names optimisers to leave out, separated by semicolons."""
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
"""The entry that says where external data lie of a model that is given as bytes."""
EXTERNAL_NAME = "session.optimized_model_external_initializers_file_name"
"""The entry that names a file for the weights of the optimised model."""
EXTERNAL_LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"
"""The entry that says from how many bytes on a weight goes to that file."""

_said: set[str] = set()
_lock = threading.Lock()


class SessionOptions(stock().SessionOptions):  # type: ignore[misc]
    """onnxruntime's `SessionOptions`, with the same names, defaults and effects on onnxruntime's providers.

    ontrain's providers act on free dimensions, on initializers that are put in, on `enable_profiling`, on
    `graph_optimization_level` and `optimized_model_filepath`, and on the entries
    `session.record_ep_graph_assignment_info`, `session.disable_cpu_ep_fallback`, `session.load_model_format`,
    `session.save_model_format`, `session.strict_shape_type_inference`,
    `session.model_external_initializers_file_folder_path`, `session.optimized_model_external_initializers_file_name`,
    `session.optimized_model_external_initializers_min_size_in_bytes` and `optimization.disable_specified_optimizers`.
    They say once of other settings
    that these mean nothing to them. Libraries of custom operators reach onnxruntime's provider that follows in
    the list; without one, they are refused.

    Attributes:
        free_dimensions: sizes by the name of the dimension.
        denoted_dimensions: sizes by the denotation of the dimension, in lower case.
        initializers: values that stand for the model's initializers, by name.
        external_initializers: which of them `add_external_initializers` put in.
        config_entries: entries of the configuration by key.
        custom_libraries: paths of libraries of custom operators.
        external_files: contents of files with external data, by the names that the model calls them.
        is_load_cancelled: whether sessions that are being made end.
    """

    # As in onnxruntime, a misspelled setting is an AttributeError.
    __slots__ = (
        "config_entries", "custom_libraries", "denoted_dimensions", "external_files", "external_initializers",
        "free_dimensions", "initializers", "is_load_cancelled",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.free_dimensions: dict[str, int] = {}
        self.denoted_dimensions: dict[str, int] = {}
        self.initializers: dict[str, Any] = {}
        self.external_initializers: set[str] = set()
        self.config_entries: dict[str, str] = {}
        self.custom_libraries: list[str] = []
        self.external_files: dict[str, bytes] = {}
        self.is_load_cancelled = False

    def add_free_dimension_override_by_name(self, name: str, size: int, /) -> None:
        """Fix the dimension of this name to a size; of several sizes the first counts."""
        super().add_free_dimension_override_by_name(name, size)
        self.free_dimensions.setdefault(name, int(size))

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int, /) -> None:
        """Fix dimensions of this denotation, in whatever case, to a size; of several sizes the first counts."""
        super().add_free_dimension_override_by_denotation(denotation, size)
        self.denoted_dimensions.setdefault(denotation.lower(), int(size))

    def add_initializer(self, name: str, value: Any, /) -> None:
        """Let a value stand for the initializer of this name; an `OrtValue`, which must outlive the session."""
        super().add_initializer(name, value)
        self.initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any], /) -> None:
        """Let `OrtValue`s stand for initializers whose data lie outside of the model's file.

        Each has the name, type and shape of an initializer of the model.
        """
        super().add_external_initializers(list(names), list(values))
        self.external_initializers.update(names)
        self.initializers.update(zip(names, values, strict=True))

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int], /
    ) -> None:
        """Give the content of files with external data by the names that the model calls them."""
        super().add_external_initializers_from_files_in_memory(names, buffers, lengths)
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            self.external_files[name] = bytes(memoryview(buffer).cast("B")[:length])

    def add_session_config_entry(self, key: str, value: str, /) -> None:
        """Set an entry of the configuration, such as "session.disable_prepacking"."""
        super().add_session_config_entry(key, value)
        self.config_entries[key] = value

    def set_load_cancellation_flag(self, is_cancelled: bool, /) -> None:
        """End the sessions that are being made with these options, in other threads too, or let them be made."""
        super().set_load_cancellation_flag(is_cancelled)
        self.is_load_cancelled = bool(is_cancelled)

    def register_custom_ops_library(self, path: str, /) -> None:
        """Load a shared library of custom operators for onnxruntime's providers, which run these operators."""
        super().register_custom_ops_library(path)
        self.custom_libraries.append(str(path))


class RunOptions(stock().RunOptions):  # type: ignore[misc]
    """onnxruntime's `RunOptions`, with the same names, defaults and effects on onnxruntime's providers.

    ontrain's providers act on `terminate` and on LoRA adapters. They say once of an entry that it means nothing to
    them.

    Attributes:
        adapters: LoRA adapters that are active.
        config_entries: entries of the configuration by key.
    """

    __slots__ = ("adapters", "config_entries")

    def __init__(self) -> None:
        super().__init__()
        self.adapters: list[Any] = []
        self.config_entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str, /) -> None:
        """Set an entry of the configuration, such as "memory.enable_memory_arena_shrinkage"."""
        super().add_run_config_entry(key, value)
        self.config_entries[key] = value

    def add_active_adapter(self, adapter: Any, /) -> None:
        """Let the values of an adapter, an `ontrain.LoraAdapter`, stand for initializers in this run.

        As in onnxruntime, `run` and `run_with_ort_values` act on it, `run_async` and `run_with_iobinding` do not.
        """
        super().add_active_adapter(adapter)
        self.adapters.append(adapter)


def config_entry(options: Any, key: str) -> str:
    """Return an entry of onnxruntime's or ontrain's options, "" where there is none."""
    if options is None:
        return ""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return ""


def say_once(text: str) -> None:
    """Warn, once in a process for each text."""
    with _lock:
        if text in _said:
            return
        _said.add(text)
    warnings.warn(text, stacklevel=3)


def checked_options(options: Any) -> Any:
    """Return the options of a session, None for none.

    Raises:
        OptionError: they are something else.
    """
    if not options or isinstance(options, stock().SessionOptions):
        return options or None
    error = OptionError(f"the session's options are a {type(options).__name__}", way_out="give ontrain.SessionOptions")
    raise also(also(error, TypeError), AttributeError)  # onnxruntime raises either


def copied_options(source: Any, folder: str | None) -> SessionOptions:
    """Return options for another session of the same model: what it is to compute with, not what it is to write."""
    options = SessionOptions()
    if source is not None:
        for name in ("graph_optimization_level", "intra_op_num_threads", "inter_op_num_threads", "execution_mode"):
            setattr(options, name, getattr(source, name))
    if isinstance(source, SessionOptions):
        for name, size in source.free_dimensions.items():
            options.add_free_dimension_override_by_name(name, size)
        for denotation, size in source.denoted_dimensions.items():
            options.add_free_dimension_override_by_denotation(denotation, size)
        for name, value in source.initializers.items():
            options.add_initializer(name, value)
        for path in source.custom_libraries:
            options.register_custom_ops_library(path)
    if folder is not None:
        options.add_session_config_entry(EXTERNAL_FOLDER, folder)
    return options
