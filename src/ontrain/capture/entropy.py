"""Random numbers that a forward takes from the operating system: no generator that is held moves by them."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import random
import sys
import sysconfig
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ontrain.capture.installed import is_installed
from ontrain.capture.source import current_line, is_foreign
from ontrain.errors import CaptureError
from ontrain.internals import substituted

__all__ = ["entropy_refused"]

_PASSED = tuple(
    os.path.join(folder, "") for folder in (sysconfig.get_path("stdlib"), os.path.dirname(os.path.abspath(np.__file__)))
)
"""Files that draw for their caller: of Python's own library, and of numpy's."""


@contextmanager
def entropy_refused(way_out: str) -> Iterator[None]:
    """Refuse, in this thread, what a forward draws by os.urandom, secrets, uuid4 or a generator without a seed.

    What torch draws for itself meanwhile, as for the name of a file, is no number of the model.

    Args:
        way_out: of the error.

    Raises:
        CaptureError: from within the forward, at the call; names the line.
    """
    thread = threading.get_ident()

    def checked(draw: Callable[..., Any], source: str, draws: Callable[..., bool]) -> Callable[..., Any]:
        def drawn(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread and draws(*args, **kwargs) and _is_for_forward():
                raise CaptureError(
                    f"forward draws random numbers from {source}",
                    source=current_line(),
                    reason="the graph would keep the numbers of its capture in all steps",
                    way_out=way_out,
                )
            return draw(*args, **kwargs)

        return drawn

    system = checked(os.urandom, "the operating system", lambda count: True)
    seed = checked(random.Random.seed, "a generator without a seed", lambda generator, a=None, version=2: a is None)
    with substituted([(os, "urandom", system), (random, "_urandom", system), (random.Random, "seed", seed)]):
        yield


def _is_for_forward() -> bool:
    """Whether the innermost caller outside of Python's and numpy's own files is the model's code.

    A generator that `tempfile` seeds draws names of files and locks. A UUID that becomes text where it is made is a
    name, too, as of an axis of einx: `f"unnamed.{uuid.uuid4().int}"`.
    """
    frame, makes_uuid = sys._getframe(2), False
    while frame.f_back is not None and _draws_for_others(frame.f_code.co_filename):
        if frame.f_code.co_filename == tempfile.__file__:
            return False
        makes_uuid = frame.f_code.co_filename == uuid.__file__
        frame = frame.f_back
    if makes_uuid and frame.f_lineno in _lines_of_names(frame.f_code.co_filename):
        return False
    return is_foreign(frame.f_code.co_filename) and "sympy" not in str(frame.f_globals.get("__name__"))


@functools.cache
def _lines_of_names(file: str) -> frozenset[int]:
    """The lines of a file in which a call of uuid4 stands within a text: an f-string, `str(…)` or `….hex`."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a file that has changed since it was imported
        return frozenset()
    texts = [node for node in ast.walk(tree) if _is_text(node)]
    calls = [node for text in texts for node in ast.walk(text) if isinstance(node, ast.Call)]
    return frozenset(call.lineno for call in calls if ast.unparse(call.func).rpartition(".")[2] == uuid.uuid4.__name__)


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == str.__name__
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Attribute) and node.attr == "hex")


def _draws_for_others(file: str) -> bool:
    return file.startswith(_PASSED[1]) or (file.startswith((_PASSED[0], "<frozen")) and not is_installed(file))
