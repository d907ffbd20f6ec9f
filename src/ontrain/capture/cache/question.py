"""What a captured graph depends on, as plain data: the structure and plain values of a module and a call."""

from __future__ import annotations

import enum
import functools
import hashlib
import platform
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from ontrain.capture.names import Names
from ontrain.capture.structure import CallSpec, Spec, tells_positions
from ontrain.internals import function_modes, of

__all__ = ["UncacheableError", "describe", "digest"]

_OWN = frozenset(nn.Module().__dict__)
_HOOKS = tuple(sorted(name for name in _OWN if name.endswith("_hooks") and "state_dict" not in name))
_PLAIN = (bool, int, str, type(None))
_LEAVES = (*_PLAIN, float, complex, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)
_DEEP = 40


class UncacheableError(Exception):
    """Something about a module or a call that cannot be compared with what it was; the text says what."""


def describe(module: nn.Module, call: CallSpec, tensors: Sequence[torch.Tensor], names: Names) -> Any:
    """Return all that the key of a graph is made of, as lists, strings and numbers.

    Values of parameters and buffers are not among it, nor are sizes that may vary, nor code other than that of the
    module's own classes.

    Raises:
        UncacheableError: something in the module has no such form.
    """
    _no_hooks(module)
    walk = _Walk(module)
    return {
        "versions": _versions(module),
        "flags": _flags(),
        "modules": [walk.module(name, submodule) for name, submodule in module.named_modules(remove_duplicate=False)],
        "state": _state(module),
        "arguments": [[name, walk.spec(spec)] for name, spec in call.arguments],
        "positional": call.positional if tells_positions(module) else None,
        "repeated": call.repeated,
        "parameters": call.parameters,
        "tensors": [_tensor(tensor, dims) for tensor, dims in zip(tensors, names.dynamic, strict=True)],
        "names": [list(names.inputs), list(names.outputs), [sorted(axes.items()) for axes in names.dynamic],
                  names.own_prefix, sorted(names.frozen), names.sized_by_values, names.complex_pairs],
    }  # fmt: skip


def digest(value: Any) -> str:
    """Return a hash of lists, strings and numbers."""
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _versions(module: nn.Module) -> list[Any]:
    """Versions of what traces, translates and writes, and of the packages that the module's classes come from."""
    versions = [sys.version, platform.machine(), torch.__version__, torch.version.git_version, np.__version__]
    packages = {
        "onnx",
        "onnx-ir",
        "ontrain",
        *(type(submodule).__module__.split(".")[0] for submodule in module.modules()),
    }
    for name in sorted(packages):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(name)  # a package of the user's: its files are compared
    return [*versions, ir.__version__]


def _flags() -> list[Any]:
    """What of torch's global state a forward may see."""
    device, modes = function_modes()
    if modes:
        raise UncacheableError(f"{modes[-1].__name__} sees what forward calls")
    return [
        device, str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
        [(kind, str(torch.get_autocast_dtype(kind))) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)],
        torch.get_float32_matmul_precision(), torch.backends.mha.get_fastpath_enabled(), torch.cuda.is_available(),
    ]  # fmt: skip


def _no_hooks(module: nn.Module) -> None:
    tables = [
        (f"{type(submodule).__name__}.{name}", submodule.__dict__.get(name))
        for submodule in module.modules()
        for name in _HOOKS
    ]
    everywhere = [(name, table) for name, table in vars(torch_modules).items() if name.startswith("_global_")]
    for name, table in [*tables, *everywhere]:
        if isinstance(table, dict) and table:
            raise UncacheableError(f"there are hooks in {name}")


def _state(module: nn.Module) -> list[Any]:
    """Parameters and buffers, each alias with the first name of its tensor."""
    first: dict[int, str] = {}
    buffers = []
    persistent = {name for name, _ in _persistent(module)}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        if type(tensor) not in (nn.Parameter, torch.Tensor):
            raise UncacheableError(f"{name} is a {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise UncacheableError(f"{name} is sparse, and its values are part of the graph")
        buffers.append([
            name, first.setdefault(id(tensor), name), type(tensor).__name__, str(tensor.dtype), tensor.device.type,
            list(tensor.shape), list(tensor.stride()), tensor.requires_grad, name in persistent,
        ])  # fmt: skip
    return buffers


def _persistent(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    for prefix, submodule in module.named_modules():
        for name, buffer in of("torch.nn.Module._buffers", submodule).items():
            if buffer is not None and name not in of("torch.nn.Module._non_persistent_buffers_set", submodule):
                yield f"{prefix}.{name}" if prefix else name, buffer


def _tensor(tensor: torch.Tensor, dims: Mapping[int, str]) -> list[Any]:
    if type(tensor) not in (torch.Tensor, nn.Parameter):
        raise UncacheableError(f"an input is a {type(tensor).__name__}")
    fixed = [None if axis in dims else size for axis, size in enumerate(tensor.shape)]
    return [str(tensor.dtype), tensor.device.type, str(tensor.layout), tensor.requires_grad, fixed]


class _Walk:
    """Makes plain data of the attributes of modules."""

    def __init__(self, module: nn.Module) -> None:
        self._names: dict[int, str] = {id(submodule): name for name, submodule in module.named_modules()}
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        self._classes: set[type] = set()

    def module(self, name: str, module: nn.Module) -> list[Any]:
        if "forward" in module.__dict__:
            raise UncacheableError(f"forward of {name or 'the module'} was replaced")
        attributes = {key: value for key, value in module.__dict__.items() if key not in _OWN}
        held = [
            [key, entry is None]
            for table in (of("torch.nn.Module._parameters", module), of("torch.nn.Module._buffers", module))
            for key, entry in table.items()
        ]
        return [name, self.type(type(module)), module.training, held, self.value(attributes, name or "the module")]

    def spec(self, spec: Spec) -> list[Any]:
        own = None if spec.type is None or spec.kind == "plain" else self.type(spec.type)
        return [spec.kind, own, self.value(spec.value, "an argument"), self.value(list(spec.keys), "an argument"),
                [self.spec(child) for child in spec.children]]  # fmt: skip

    def type(self, kind: type) -> list[Any]:
        """A class by name, and at its first mention the code of its own and inherited functions."""
        if _find(kind.__module__, kind.__qualname__) is not kind:
            raise UncacheableError(f"the class {kind.__qualname__} cannot be found under its name")
        if kind.__module__ != "builtins" and not getattr(sys.modules[kind.__module__], "__file__", None):
            raise UncacheableError(f"the class {kind.__qualname__} is in no file")
        if kind in self._classes:
            return [kind.__module__, kind.__qualname__]
        self._classes.add(kind)
        own = [base for base in kind.__mro__ if base.__module__.split(".")[0] not in ("torch", "builtins")]
        members = [(key, value) for base in own for key, value in sorted(vars(base).items(), key=lambda item: item[0])]
        codes = [(key, code) for key, value in members for code in _codes(value)]
        return [kind.__module__, kind.__qualname__, codes]

    def value(self, value: Any, where: str, depth: int = 0) -> Any:
        """A value that a module or a call holds; `where` says in an error what holds it."""
        if type(value) in _LEAVES or isinstance(value, enum.Enum):
            return _leaf(value)
        if depth > _DEEP:
            raise UncacheableError(f"{where} holds objects in objects, too deep")
        if id(value) in self._seen:
            return ["again", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # so that no other object gets its id
        return self._contents(value, where, depth)

    def _contents(self, value: Any, where: str, depth: int) -> Any:
        inner = functools.partial(self.value, where=where, depth=depth + 1)
        match value:
            case nn.Module():
                return ["module", self._name(value, where)]
            case Mapping():
                items = [[inner(key), inner(item)] for key, item in value.items()]
                return ["mapping", type(value).__qualname__, items, self._attributes(value, where, depth)]
            case set() | frozenset():
                return ["set", sorted((inner(item) for item in value), key=repr)]
            case list() | tuple():
                return ["list", type(value).__qualname__, [inner(item) for item in value]]
            case type():
                return ["class", *self.type(value)]
            case types.FunctionType():
                return ["function", value.__module__, value.__qualname__, _code(value.__code__), inner(_bound(value))]
            case types.MethodType():
                return ["method", inner(value.__self__), inner(value.__func__)]
            case functools.partial():
                return ["partial", inner(value.func), inner(list(value.args)), inner(dict(value.keywords))]
            case types.BuiltinFunctionType() if _find(value.__module__, value.__name__) is value:
                return ["builtin", value.__module__, value.__name__]
        if isinstance(value, torch.Tensor) or not (hasattr(value, "__dict__") or _has_slots_alone(type(value))):
            raise UncacheableError(f"{where} holds a {type(value).__name__}")
        return ["object", self.type(type(value)), self._attributes(value, where, depth)]

    def _name(self, module: nn.Module, where: str) -> str:
        if id(module) not in self._names:
            raise UncacheableError(f"{where} refers to a module outside")
        return self._names[id(module)]

    def _attributes(self, value: Any, where: str, depth: int) -> Any:
        slots = {
            f"{base.__qualname__}.{key}": member.__get__(value)
            for base in type(value).__mro__
            if "__slots__" in vars(base)
            for key, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType) and hasattr(value, key)
        }
        attributes = {**getattr(value, "__dict__", {}), **slots}
        return [[key, self.value(item, where, depth + 1)] for key, item in attributes.items()]


def _leaf(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return ["str", value]
    if kind in _PLAIN:
        return value
    if kind in (float, complex, bytes):
        return [kind.__name__, repr(value)]
    return [kind.__qualname__, str(value)]


def _bound(function: types.FunctionType) -> list[Any]:
    """The values that a function holds: of its defaults and of its closure."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [list(function.__defaults__ or ()), dict(function.__kwdefaults__ or {}), cells]


def _has_slots_alone(kind: type) -> bool:
    """Whether all that an object of a class holds is in the slots that Python's classes name."""
    return all("__slots__" in vars(base) for base in kind.__mro__ if base is not object)


def _find(module: str | None, name: str) -> Any:
    target: Any = sys.modules.get(module or "")
    for part in name.split("."):
        target = getattr(target, part, None)
    return target


def _codes(member: Any) -> list[Any]:
    """The code of a class's member: a function, what it wraps, or the functions of a property."""
    if isinstance(member, property):
        return [code for accessor in (member.fget, member.fset) if accessor is not None for code in _codes(accessor)]
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    names = []
    while isinstance(member, types.FunctionType):
        names.append(_code(member.__code__))
        member = getattr(member, "__wrapped__", None)
    return names


def _code(code: types.CodeType) -> str:
    """A hash of what a function does; where it stands in its file does not matter."""
    constants = [
        _code(constant) if isinstance(constant, types.CodeType) else _constant(constant) for constant in code.co_consts
    ]
    return digest([code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags])


def _constant(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
