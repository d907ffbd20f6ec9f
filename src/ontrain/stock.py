"""The installed onnxruntime, and the names under which programs reach it through ontrain.

A program that comes from onnxruntime may say `import ontrain as onnxruntime`, or let every import find ontrain by
`sys.modules["onnxruntime"] = ontrain`. In the second case `import onnxruntime` gives ontrain to ontrain itself, too. So
whoever needs the installed onnxruntime asks `stock()`.

Two finders serve the modules below, neither of them with copies:

- `import ontrain.quantization`, and whatever else only onnxruntime has, gives onnxruntime's own module;
- `import onnxruntime.training`, in a program that calls ontrain onnxruntime, gives `ontrain.training`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

__all__ = ["serve_submodules", "stock", "stock_module"]

_OURS, _THEIRS = "ontrain", "onnxruntime"
_lock = threading.RLock()
_modules: dict[str, ModuleType] = {}
"""The installed onnxruntime's modules by name, for the time when imports find others under these names."""


def stock() -> Any:
    """Return the installed onnxruntime, also where `sys.modules["onnxruntime"]` is ontrain.

    Raises:
        ImportError: it is not installed.
    """
    return stock_module(_THEIRS)


def stock_module(name: str) -> Any:
    """Return a module of the installed onnxruntime by its full name; it is imported if it has not been.

    Raises:
        ImportError: onnxruntime has no such module.
    """
    if not _aliased():
        module = importlib.import_module(name)
        _modules[name] = module
        return module
    if name in _modules:
        return _modules[name]
    with _stock_in_place():
        return importlib.import_module(name)


def serve_submodules() -> None:
    """Let imports find onnxruntime's modules below ontrain's name, and ontrain's below onnxruntime's."""
    if _THEIRS in sys.modules:
        _modules[_THEIRS] = sys.modules[_THEIRS]
    sys.meta_path.insert(0, _Submodules())


def _aliased() -> bool:
    ours = sys.modules.get(_OURS)
    return ours is not None and sys.modules.get(_THEIRS) is ours


def _named(theirs: str) -> dict[str, ModuleType]:
    return {name: module for name, module in list(sys.modules.items()) if (name + ".").startswith(theirs + ".")}


@contextlib.contextmanager
def _stock_in_place() -> Iterator[None]:
    """Let imports find the installed onnxruntime; afterwards the program's names are as they were before."""
    with _lock:
        before = _named(_THEIRS)
        _modules.update({name: m for name, m in before.items() if (m.__name__ + ".").startswith(_THEIRS + ".")})
        _replace(before, _modules)
        try:
            yield
        finally:
            _modules.update(_named(_THEIRS))
            for name, module in _modules.items():  # a package that is executed once more knows them not
                parent, _, last = name.rpartition(".")
                if parent in _modules and not hasattr(_modules[parent], last):
                    setattr(_modules[parent], last, module)
            _replace(_modules, before)


def _replace(gone: dict[str, ModuleType], new: dict[str, ModuleType]) -> None:
    for name in gone:
        sys.modules.pop(name, None)
    sys.modules.update(new)


class _Elsewhere:
    """A loader that puts a module that has another name into the place of the one that is imported.

    `importlib.abc.Loader` would be its base, and takes milliseconds to import.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        del sys.modules[module.__name__]
        sys.modules[module.__name__] = self._found()

    def get_code(self, fullname: str) -> CodeType | None:
        """Return what `python -m` runs."""
        spec = self._found().__spec__
        code: CodeType | None = spec.loader.get_code(spec.name)
        return code

    def _found(self) -> Any:
        theirs = (self._name + ".").startswith(_THEIRS + ".")
        return (stock_module if theirs else importlib.import_module)(self._name)


def _elsewhere(name: str) -> Any:
    """A loader, which `ModuleSpec` knows by its methods and not by its class."""
    return _Elsewhere(name)


class _Submodules:
    """Finds `ontrain.X` that ontrain lacks, and `onnxruntime.X` where the program calls ontrain onnxruntime."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if not rest or package not in (_OURS, _THEIRS) or (package == _THEIRS and not _aliased()):
            return None
        ours, theirs = f"{_OURS}.{rest}", f"{_THEIRS}.{rest}"
        if _ontrain_has(ours):
            # What is ontrain's under its own name is imported like everything else.
            return None if fullname == ours else ModuleSpec(fullname, _elsewhere(ours))
        spec = _stock_spec(theirs)
        return None if spec is None else ModuleSpec(fullname, _elsewhere(theirs), origin=spec.origin)


def _ontrain_has(name: str) -> bool:
    parent, _, _ = name.rpartition(".")
    module = importlib.import_module(parent)
    path = getattr(module, "__path__", None)
    return path is not None and module.__name__ == parent and PathFinder.find_spec(name, path) is not None


def _stock_spec(name: str) -> ModuleSpec | None:
    parent, _, _ = name.rpartition(".")
    try:
        path = getattr(stock_module(parent), "__path__", None)
    except ImportError:
        return None
    return None if path is None else PathFinder.find_spec(name, path)
