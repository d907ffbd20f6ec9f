"""Random numbers that a forward takes from the operating system: no generator that is held moves by them."""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import tempfile
import threading
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

    A generator that `tempfile` seeds draws names of files and locks.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and _draws_for_others(frame.f_code.co_filename):
        if frame.f_code.co_filename == tempfile.__file__:
            return False
        frame = frame.f_back
    return is_foreign(frame.f_code.co_filename) and "sympy" not in str(frame.f_globals.get("__name__"))


def _draws_for_others(file: str) -> bool:
    return file.startswith(_PASSED[1]) or (file.startswith((_PASSED[0], "<frozen")) and not is_installed(file))
