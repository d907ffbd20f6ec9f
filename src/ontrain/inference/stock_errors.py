"""What onnxruntime's errors mean, as errors of ontrain's: of a model that it does not load, and of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ontrain.errors import InputError, OntrainError, OptionError, ProviderError, nearest
from ontrain.inference.upstream_errors import upstream

__all__ = ["not_loaded", "not_run"]

_NO_KERNEL = (
    "onnxruntime has no kernel for this dtype: use providers=['TorchExecutionProvider'], or a dtype that it has"
)
_UNREGISTERED = "is not a registered function/op"
_NO_OPERATOR = (
    "load its library with SessionOptions.register_custom_ops_library; one of @ontrain.op runs on "
    "TorchExecutionProvider, which may stand before others in the list"
)


def not_loaded(error: Exception) -> OntrainError:
    """Return what kept onnxruntime from loading a model."""
    if isinstance(error, ValueError | RuntimeError) and "rovider" in str(error):
        return OptionError("onnxruntime refuses the providers", reason=str(error))
    return _sprung(error) or InputError(
        "onnxruntime cannot load the model",
        reason=str(error),
        way_out=_NO_KERNEL
        if isinstance(error, upstream("NotImplemented"))
        else _NO_OPERATOR
        if _UNREGISTERED in str(error)
        else None,
    )


def not_run(session: Any, error: Exception, output_names: Any, feeds: Any) -> OntrainError:
    """Return what kept onnxruntime from running a model.

    Args:
        session: one of onnxruntime's.
        error: that it raised.
        output_names: outputs asked for; None for all.
        feeds: what was fed, by name; None where that is not known.
    """
    trap = _sprung(error)
    if trap is not None:
        return trap
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if isinstance(error, ValueError | TypeError | upstream("InvalidArgument")):
        names = [*inputs, *session.get_overridable_initializers()]
        for what, asked, known in (("input", feeds, names), ("output", output_names, outputs)):
            for name in asked or ():
                if name not in [value.name for value in known]:
                    return _unknown(what, name, [value.name for value in known], str(error))
        shapes = ", ".join(f"{value.name}: {value.type}{value.shape}" for value in inputs)
        return InputError("the feeds do not fit the model", reason=str(error), way_out=f"feed {shapes}")
    return ProviderError("onnxruntime could not run the model", reason=str(error))


def _sprung(error: Exception) -> OntrainError | None:
    """The error that onnxruntime's means where a guard raised it."""
    from ontrain.files import sprung

    return sprung(str(error))


def _unknown(what: str, name: str, known: Collection[str], reason: str) -> InputError:
    return InputError(f"the model has no {what} {name!r}", reason=reason, way_out=f"nearest: {nearest(name, known)}")
