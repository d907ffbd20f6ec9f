"""Texts and keys that a forward makes of sizes, and of tensors: `self.tables[str(x.shape[1])]` depends on the size.

    self.tables[f"{n}"]                  →  the number; the graph holds for this size alone
    len(set(lengths.tolist()))           →  the numbers of the batch at hand; the graph holds for these alone
    torch._assert(ok, f"{n} rows")       →  the number of the batch at hand; any size goes on with the graph
    raise ValueError(f"{n} rows")
    self.tables[f"{x.mean()}"]           →  refused: no number is known while a forward is traced

torch's own numbers write down the symbol by which a trace knows a size, and are no keys of sets and dictionaries.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any

import torch

from ontrain.capture.autograd import traced_here
from ontrain.capture.source import current_line, is_foreign, is_machinery, is_users
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.internals import substituted

__all__ = ["texts_of_sizes"]

_KINDS: dict[type, Callable[[Any], Any]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_SHOWS = re.compile(r"(?:^|_)(?:assert|check|warn|warning|log|debug|info|error|exception|critical)(?:_|$)")
"""Words in the names of functions that show a text, or raise it, and compute nothing with it."""
_Span = tuple[tuple[int, int], tuple[int, int]]
"""Where a part of a file begins and ends: line and column."""


@contextmanager
def texts_of_sizes() -> Iterator[None]:
    """Have texts of sizes hold their numbers, and a graph hold for these alone unless the text is a message.

    A number that follows from values may be a key of a set or a dictionary, too.

    Raises:
        CaptureError: from within the forward, where the user's own code makes a text of a tensor and computes with it.
    """
    texts = [(kind, "__repr__", _writing(vars(kind)["__repr__"], plain)) for kind, plain in _KINDS.items()]
    key = _key(vars(torch.SymInt)["__hash__"])
    tensors = [(torch.Tensor, name, _showing(getattr(torch.Tensor, name))) for name in ("__repr__", "__format__")]
    with substituted([*texts, (torch.SymInt, "__hash__", key), *tensors]):
        yield


def _key(own: Callable[[Any], int]) -> Callable[[Any], int]:
    """Let a number that follows from values be a key, as its value, which it is from then on.

    What is a key may outlive the trace, in the table of a cached function. A size is no key: torch refuses, and the
    module is traced anew for this size.
    """

    def key(number: Any) -> int:
        if number.node.constant is not None:
            return hash(number.node.constant)
        if number.node.has_hint() or not is_foreign(sys._getframe(1).f_code.co_filename) or not traced_here():
            return own(number)
        value = int(number)
        number.node = number.node.wrap_int(value)
        return hash(value)

    return key


def _writing(own: Callable[[Any], str], plain: Callable[[Any], Any]) -> Callable[[Any], str]:
    def write(number: Any) -> str:
        frame = sys._getframe(1)
        if not is_foreign(frame.f_code.co_filename) or not traced_here():
            return own(number)
        if not _in_message(frame):
            return repr(plain(number))
        return repr(number.node.hint) if number.node.has_hint() else own(number)

    return write


def _showing(own: Callable[..., str]) -> Callable[..., str]:
    """Refuse a text of the numbers in a tensor without values, unless it is a message, which may say what it likes."""

    def show(tensor: torch.Tensor, *args: Any, **named: Any) -> str:
        frame = sys._getframe(1)
        if is_machinery(frame.f_code.co_filename) and frame.f_back is not None:  # what else stands for the function
            frame = frame.f_back
        computes = is_users(frame.f_code.co_filename) and not _in_message(frame)
        if not computes or type(tensor) is torch.Tensor or not traced_here():
            return own(tensor, *args, **named)
        if args and not tensor.ndim and not tensor.is_floating_point():  # a name of a submodule, as of an expert
            return own(tensor, *args, **named)
        raise CaptureError(
            "forward makes a text of the numbers in a tensor, and computes with it",
            source=current_line(),
            reason="a graph has numbers when it runs, and texts when it is captured",
            way_out=f"compare the number itself, as in `if y.mean() < 0`; or {BROKEN}",
        )

    return show


def _in_message(frame: FrameType) -> bool:
    """Whether what a frame is computing is part of a message."""
    first, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if first is None or last is None or begin is None or end is None:
        return False
    return any(start <= (first, begin) and (last, end) <= stop for start, stop in _messages(frame.f_code.co_filename))


@functools.cache
def _messages(file: str) -> list[_Span]:
    """Return where a file has messages: what it raises, prints, or writes out as an argument of what shows texts."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a file that has changed since it was imported
        return []
    parts: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            parts.append(node.msg)
        elif isinstance(node, ast.Raise):
            parts.append(node.exc)
        elif isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            name = _name(node.func)
            # What print is given becomes a text in the call itself.
            shown = [part for part in arguments if _SHOWS.search(name) and _is_text(part)]
            parts += [node] if name == "print" else shown
    return [_span(part) for part in parts if part is not None]


def _is_text(part: ast.expr) -> bool:
    """Whether an expression writes a text: f"{n}", "%d" % n, "{}".format(n), str(n), or a sum of those."""
    if isinstance(part, ast.BinOp):
        return _is_text(part.left) or (isinstance(part.op, ast.Add) and _is_text(part.right))
    if isinstance(part, ast.Call):
        if isinstance(part.func, ast.Name):
            return part.func.id in ("repr", "str")
        return isinstance(part.func, ast.Attribute) and part.func.attr == "format" and _is_text(part.func.value)
    return isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))


def _name(function: ast.expr) -> str:
    """Return the last name by which a function is called: `warning` of `logger.warning`."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _span(part: ast.expr) -> _Span:
    return (part.lineno, part.col_offset), (part.end_lineno or part.lineno, part.end_col_offset or part.col_offset)
