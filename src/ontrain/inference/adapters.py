"""LoRA adapters: files of values that stand for a model's overridable initializers in single runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ontrain.errors import InputError
from ontrain.inference.options import say_once
from ontrain.stock import stock

__all__ = ["LoraAdapter", "adapted", "say_without_adapters"]


if TYPE_CHECKING:

    class _Adapter:
        def Load(self, path: str, /) -> None: ...  # noqa: N802 (onnxruntime's name)

else:
    _Adapter = stock().LoraAdapter


class LoraAdapter(_Adapter):
    """onnxruntime's `LoraAdapter`: a file of values that stand for a model's overridable initializers.

    Attributes:
        parameters: the values by name, as `OrtValue`s; none before `Load`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parameters: dict[str, Any] = {}
        self._file: Any = None

    def Load(self, path: str, /) -> None:  # noqa: N802 (onnxruntime's name)
        """Read a file that `AdapterFormat.export_adapter` wrote.

        Raises:
            RuntimeError: there is no such file, or it is no adapter; onnxruntime's own error.
        """
        super().Load(path)
        self._file = stock().AdapterFormat.read_adapter(path)  # the values lie in its memory
        self.parameters = self._file.get_parameters()


def adapted(feeds: Any, run_options: Any) -> Any:
    """Return feeds with the values of the adapters that are active in a run.

    As in onnxruntime, of several values for a name that of the first adapter counts, and none that is fed.

    Raises:
        InputError: an adapter is onnxruntime's own, whose values nobody can read.
    """
    adapters = getattr(run_options, "adapters", ())
    if not adapters or not isinstance(feeds, Mapping):
        return feeds
    values = dict(feeds)
    for adapter in reversed(adapters):
        if not isinstance(adapter, LoraAdapter):
            raise InputError(
                f"the adapter is a {type(adapter).__module__}.{type(adapter).__name__}",
                reason="its values cannot be read back", way_out="load the file with ontrain.LoraAdapter",
            )  # fmt: skip
        values.update(adapter.parameters)
    return values


def say_without_adapters(call: str, run_options: Any) -> None:
    """Warn that a call takes no notice of adapters, as onnxruntime does."""
    if getattr(run_options, "adapters", ()):
        say_once(f"{call} takes no notice of active adapters.")
