"""The line of the user's model behind a graph node or an exception."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from types import TracebackType

import torch
from torch import fx

from ontrain.capture.installed import is_installed, path_in_packages

__all__ = [
    "current_line",
    "is_foreign",
    "is_machinery",
    "is_users",
    "line_text",
    "module_of",
    "node_text",
    "source_line",
    "user_frame",
    "written_by_users",
]

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_FORWARD = os.path.join(_OURS, "capture", "export.py")
"""The file that calls a module's forward to trace it."""
_PYTHON = os.path.dirname(os.path.abspath(os.__file__))
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*(?:\n\s*(?P<code>[^\n]+))?')


def is_foreign(file: str) -> bool:
    """Whether a frame is the user's or a model library's, not torch's and not ours."""
    return not file.startswith((_OURS, _TORCH, "<")) and (not file.startswith(_PYTHON) or is_installed(file))


def is_machinery(file: str) -> bool:
    """Whether a frame is torch's or ours."""
    return file.startswith((_OURS, _TORCH))


def is_users(file: str | None) -> bool:
    """Whether a file is the user's own: neither Python's, torch's or ours nor an installed package's."""
    return file is not None and is_foreign(file) and not is_installed(file)


def source_line(node: fx.Node) -> str | None:
    """Return "file.py:12: code" for the innermost frame outside torch that made the node, or None.

    If that is an installed package's, the user's own line by which it was called stands behind it.
    """
    trace = node.meta.get("stack_trace")
    if not trace:
        return None
    return _told([(match["file"], int(match["line"]), match["code"]) for match in _FRAME.finditer(trace)])


def written_by_users(node: fx.Node) -> bool:
    """Whether no package's own line, torch's among them, made the node, as far as is known."""
    files = [match["file"] for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    return not files or not (files[-1].startswith((_OURS, _TORCH)) or is_installed(files[-1]))


def node_text(node: fx.Node) -> str:
    """Return an FX node as one line."""
    text = " ".join((node.format_node() or node.name).split())
    return text if len(text) <= 400 else f"{text[:400]} …"


def user_frame(trace: TracebackType | None) -> str | None:
    """Return "file.py:12: code" for the innermost frame of a traceback that lies outside torch and ontrain.

    Frames below the module's `forward` only: the caller of the capture is no part of the model.
    """
    frames = traceback.extract_tb(trace)
    start = next((i for i, frame in enumerate(frames) if frame.filename.startswith(_OURS)), 0)
    return _told([(frame.filename, frame.lineno or 0, frame.line) for frame in frames[start:]])


def current_line() -> str | None:
    """Return "file.py:12: code" for the innermost frame of this thread that lies outside torch and ontrain."""
    return _told([(frame.filename, frame.lineno or 0, frame.line) for frame in traceback.extract_stack()])


def _told(frames: Sequence[tuple[str, int, str | None]]) -> str | None:
    """Say the innermost line that is not torch's or ours, and the user's own that called a package for it."""
    last = max((at for at, frame in enumerate(frames) if is_foreign(frame[0])), default=None)
    if last is None:
        return None
    told = line_text(*frames[last])
    if not is_installed(frames[last][0]):
        return told
    # What stands before the call of forward is outside of the model.
    begin = max((at for at, frame in enumerate(frames[:last]) if frame[0] == _FORWARD), default=last)
    own = [frame for frame in frames[begin:last] if is_users(frame[0])]
    return f"{told} (called at {line_text(*own[-1])})" if own else told


def line_text(file: str, line: int, code: str | None) -> str:
    """Return "file.py:12: code"."""
    name = path_in_packages(file) or os.path.basename(file)
    return f"{name}:{line}: {code.strip()}" if code else f"{name}:{line}"


def module_of(node: fx.Node, prefixes: Sequence[str]) -> str | None:
    """Return the path of the innermost submodule that made the node, "encoder.layers.0"; None for the root.

    Args:
        prefixes: taken off the path, one after the other; each ends in a dot.
    """
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path = f"{list(stack.values())[-1][0]}."
    for prefix in prefixes:
        path = path.removeprefix(prefix)
    return path.removesuffix(".") or None
