"""`CaptureCache`: asks a folder for the graph of a module and a call, and gives it new ones."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

import torch
from torch import nn

from ontrain.capture.cache.codec import Content, decode, encode
from ontrain.capture.cache.folder import Folder
from ontrain.capture.cache.question import UncacheableError, describe, digest
from ontrain.capture.cache.trace import executed_files, trace
from ontrain.capture.export import Flat
from ontrain.capture.generators import DrawnNumberError, Run, without_draws
from ontrain.capture.installed import is_installed
from ontrain.capture.names import Names
from ontrain.capture.structure import CallSpec
from ontrain.errors import OptionError

__all__ = ["CaptureCache", "open_cache"]

_logger = logging.getLogger("ontrain.capture.cache")
_LIMIT = 1 << 30
"""Bytes that a cache takes at most: a graph takes some hundred thousand."""
_LOADED = time.time()
"""Files that were written later may not be what this process has loaded."""
_PACKAGE = Path(__file__).parents[2]
_MAKERS = ("capture", "functions", "graph", "internals", "operators", "sizes")
"""The rooms whose code makes a captured graph."""


def open_cache() -> Folder | None:
    """Return the folder that the environment names for captured graphs; None for no cache.

    ONTRAIN_CACHE_DIR, or upstream's ORTMODULE_CACHE_DIR, is the folder. ONTRAIN_CACHE=1 is a cache in the user's own,
    $XDG_CACHE_HOME/ontrain or ~/.cache/ontrain; ONTRAIN_CACHE=0 is none.

    Raises:
        OptionError: ONTRAIN_CACHE is neither 0 nor 1.
    """
    wish = os.environ.get("ONTRAIN_CACHE", "")
    if wish not in ("", "0", "1"):
        raise OptionError(f"ONTRAIN_CACHE is {wish!r}", way_out="0 is no cache, 1 is one in the user's cache folder")
    named = os.environ.get("ONTRAIN_CACHE_DIR") or os.environ.get("ORTMODULE_CACHE_DIR")
    if wish == "0" or not (named or wish):
        return None
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Folder(Path(named) / "captures" if named else home / "ontrain" / "captures", _LIMIT)


class CaptureCache:
    """The cache's answer for one module and call.

    Args:
        folder: where entries are.
        module: in the mode in which it is captured.
        call: how it is called.
        tensors: the call's tensors, varying dimensions of two at least.
        names: what things are called in the graph.
    """

    def __init__(
        self, folder: Folder, module: nn.Module, call: CallSpec, tensors: Sequence[torch.Tensor], names: Names
    ) -> None:
        self._folder, self._module, self._call, self._tensors, self._names = folder, module, call, tensors, names
        self.reason: str | None = None
        self._is_comparable = True

    @cached_property
    def _key(self) -> str:
        question = describe(self._module, self._call, self._tensors, self._names)
        return digest([question, _makers()])

    def load(self) -> Content | None:
        """Return the graph if the folder has one that is right; `reason` says why it has none."""
        try:
            candidates = list(self._folder.entries(self._key))
            self.reason = "there is no entry for such a module and call"
            for file, data in candidates:
                content = self._right(data)
                if content is not None:
                    self._folder.used(file)
                    self.reason = None
                    return content
        except UncacheableError as error:
            # Also where the capture takes the obstacle away, as a hook does that removes itself.
            self._is_comparable = False
            self.reason = str(error)
        _logger.debug("not from the cache: %s", self.reason)
        return None

    def store(self, content: Callable[[list[list[int]], str, dict[str, str]], Content]) -> None:
        """Write an entry, unless `load` could not compare the module.

        Args:
            content: given the shapes, hash and files of a trace, what to write.
        """
        if not self._is_comparable:
            return
        try:
            shapes = [list(tensor.shape) for tensor in self._tensors]
            files: set[str] = set()
            with executed_files(files):
                traced = self._trace(shapes)
            self._folder.write(self._key, traced[:16], encode(content(shapes, traced, _files(files))))
        except (UncacheableError, TypeError, OSError) as error:
            _logger.debug("not kept in the cache: %s", error)

    def _right(self, data: bytes) -> Content | None:
        try:
            content = decode(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.reason = f"an entry cannot be read: {error}"
            return None
        shapes = dict(zip(self._names.inputs, [tensor.shape for tensor in self._tensors], strict=True))
        violated = content.guards.violated(shapes)
        if violated is not None:
            self.reason = f"an entry holds for {violated} only"
        elif (changed := _changed(content.files)) is not None:
            self.reason = f"{changed} is not the file that it was"
        elif self._trace(content.shapes) != content.trace:
            self.reason = "forward now calls other operators"
        else:
            return content
        return None

    def _trace(self, shapes: Sequence[Sequence[int]]) -> str:
        def traced(run: Run) -> str:
            flat = Flat(self._module, self._call, lambda _: None, run)
            return trace(flat, self._module, shapes, self._tensors)

        try:
            return without_draws(traced)
        except DrawnNumberError as error:
            raise UncacheableError(error.problem) from error


@cache
def _makers() -> str:
    """A hash of the code that makes captured graphs; of when it was loaded, whatever becomes of its files."""
    return digest(_hashes(str(file) for room in _MAKERS for file in (_PACKAGE / room).rglob("*.py")))


def _files(executed: Iterable[str]) -> dict[str, str]:
    """Return the hashes of the files that may decide what forward does.

    Those are the files that were run through and, where such a file is the user's own, all of its package or folder
    that is loaded.

    Raises:
        UncacheableError: some code is in no file.
    """
    files = set()
    for file in executed:
        # A dataclass's methods, for one, are made of text: "<string>". What made them is in a file that was loaded.
        if (
            file in ("<stdin>", "<console>")
            or file.startswith("<ipython")
            or not (file.startswith("<") or os.path.isfile(file))
        ):
            raise UncacheableError(f"forward runs code that is in no file: {file}")
        if not file.startswith("<"):
            files.add(os.path.abspath(file))
    others = (os.path.dirname(os.__file__), str(_PACKAGE))
    own = {os.path.dirname(file) for file in files if not (file.startswith(others) or is_installed(file))}
    for module in list(sys.modules.values()):
        scope = getattr(module, "__dict__", {})  # a lazy module imports a package when it is asked for anything else
        path = scope.get("__file__")
        if path and path.endswith(".py") and os.path.dirname(path) in own and scope.get("__name__") != "__main__":
            files.add(path)
    late = next((file for file in files if os.stat(file).st_mtime > _LOADED), None)
    if late is not None:
        raise UncacheableError(f"{late} was written after it was loaded")
    return _hashes(files)


def _hashes(files: Iterable[str]) -> dict[str, str]:
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in sorted(files)}


def _changed(files: Mapping[str, str]) -> str | None:
    for file, before in files.items():
        try:
            if os.stat(file).st_mtime > _LOADED or _hashes([file])[file] != before:
                return file
        except OSError:
            return file
    return None
