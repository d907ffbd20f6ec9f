"""Where a session is to write files: refused before the model is loaded, in words that name the path."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from ontrain.errors import OntrainError, OptionError
from ontrain.inference.upstream_errors import also, upstream

__all__ = ["check_places", "not_written", "warn_of_lost_profile"]

_WAY_OUT = "create the folder, or choose another path"


def check_places(options: Any) -> None:
    """Refuse paths of a session's options at which ontrain's providers cannot write.

    Args:
        options: session options, or None.

    Raises:
        OptionError: the folder of the optimised model or of the profile is missing, or cannot be written to.
    """
    if options is None:
        return
    path = str(options.optimized_model_filepath or "")
    hindrance = _hindrance(path, is_prefix=False) if path else None
    if hindrance is not None:
        is_missing = not Path(path).parent.exists()
        error = _refusal("the optimised model", path, hindrance)
        raise also(error, upstream("InvalidArgument") if is_missing else RuntimeError)  # as onnxruntime has it
    prefix = str(options.profile_file_prefix) if options.enable_profiling else ""
    hindrance = _hindrance(prefix, is_prefix=True)
    if hindrance is not None:
        raise _refusal("a profile", prefix, hindrance)


def warn_of_lost_profile(options: Any) -> None:
    """Say where onnxruntime would end without a profile and without a word."""
    if options is None or not options.enable_profiling:
        return
    hindrance = _hindrance(str(options.profile_file_prefix), is_prefix=True)
    if hindrance is not None:
        warnings.warn(
            f"onnxruntime will write no profile to {options.profile_file_prefix!r}: {hindrance}", stacklevel=5
        )


def not_written(options: Any, error: Exception) -> OntrainError | None:
    """Return what an error of onnxruntime's means if it could not write the optimised model, else None.

    Args:
        options: session options, or None.
        error: what onnxruntime raised; it tells no more than the system's number.
    """
    path = str(options.optimized_model_filepath or "") if options is not None else ""
    words = str(error).split()
    if not path or words[:2] != ["SystemError", ":"]:
        return None
    number = int(words[-1]) if words[-1].isdecimal() else 0
    return _refusal("the optimised model", path, _hindrance(path, is_prefix=False) or os.strerror(number))


def _refusal(what: str, path: str, hindrance: str) -> OptionError:
    return OptionError(f"cannot write {what} to {path!r}", reason=hindrance, way_out=_WAY_OUT)


def _hindrance(path: str, *, is_prefix: bool) -> str | None:
    """Why no file can be written at a path, or at one that begins with it; None if nothing is seen that hinders."""
    if "\0" in path:
        return "it has a null character"
    folder = Path(path).parent if not (is_prefix and path.endswith(os.sep)) else Path(path)
    if not folder.exists():
        return f"there is no folder {os.fspath(folder)!r}"
    if not folder.is_dir():
        return f"{os.fspath(folder)!r} is no folder"
    if not is_prefix and Path(path).is_dir():
        return "it is a folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"the folder {os.fspath(folder)!r} may not be written to"
