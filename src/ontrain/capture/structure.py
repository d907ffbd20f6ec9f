"""Nested arguments and results taken apart into tensors and put together again."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from ontrain.capture.sparse_state import PARTS, assembled, parts_of
from ontrain.errors import CaptureError, InputError
from ontrain.internals import MODULE_HOOKS, of

__all__ = [
    "CallSpec",
    "Spec",
    "bind",
    "call",
    "check_plain",
    "flatten",
    "has_objects",
    "leaf_paths",
    "plain_leaves",
    "tells_positions",
    "unflatten",
]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type)


@dataclass(frozen=True)
class Spec:
    """The structure of a nested value.

    Its `kind` is "tensor", "plain", "unread", "number" of one that follows from values and is read off its tensor,
    "sparse" of a matrix with the tensors that it consists of, or how `children` are held together. A tensor of a
    result has its `Owner` for a value, if it is none of the result's own.
    """

    kind: str
    children: tuple[Spec, ...] = ()
    keys: tuple[Any, ...] = ()
    type: type | None = None
    value: Any = None

    def tensors(self) -> int:
        """Return the number of tensors in the structure."""
        return 1 if self.kind == "tensor" else sum(child.tensors() for child in self.children)


def flatten(value: Any, within: frozenset[int] = frozenset()) -> tuple[list[torch.Tensor], Spec]:
    """Return the tensors in a nested value, in order, and its structure.

    Args:
        value: of tensors, plain values, and groups of these.
        within: ids of the objects that it is an attribute of; one of them again is a plain value.
    """
    if isinstance(value, torch.Tensor):
        taken_apart = parts_of(value)
        if taken_apart is None:
            return [value], Spec("tensor")
        parts, once = taken_apart
        return parts, Spec("sparse", (Spec("tensor"),) * len(parts), PARTS, value=once)
    if isinstance(value, torch.SymInt | torch.SymFloat) and not value.node.has_hint():
        kind, dtype = (int, torch.int64) if isinstance(value, torch.SymInt) else (float, torch.float64)
        number: Any = value
        tensor = torch.scalar_tensor(number, dtype=dtype, device="cpu")
        return [tensor], Spec("number", (Spec("tensor"),), ("",), kind)
    if isinstance(value, Mapping):
        return _group("mapping", type(value), list(value.keys()), list(value.values()), within)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _group("namedtuple", type(value), list(value._fields), list(value), within)
    if isinstance(value, slice):
        return _group("slice", slice, ["start", "stop", "step"], [value.start, value.stop, value.step], within)
    if isinstance(value, tuple | list):
        return _group("sequence", type(value), list(range(len(value))), list(value), within)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return _group("dataclass", type(value), names, [getattr(value, name) for name in names], within)
    if _is_object(value) and id(value) not in within:
        named = dict(vars(value))
        tensors, spec = _group("object", type(value), list(named), list(named.values()), within | {id(value)})
        if tensors and all(isinstance(leaf, _PLAIN) for leaf in plain_leaves(spec)):
            return tensors, spec
    return [], Spec("plain", type=type(value), value=value)


_VARYING = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NO_OBJECTS = (nn.Module, BaseException, types.ModuleType, *_VARYING)


def _is_object(value: Any) -> bool:
    """Whether a value is nothing but its attributes, so that another with the same attributes is its equal."""
    kind: Any = type(value)
    bare = kind.__new__ is object.__new__ or kind is types.SimpleNamespace
    return bare and hasattr(value, "__dict__") and not isinstance(value, _NO_OBJECTS)


def _group(
    kind: str, container: type, keys: Sequence[Any], values: Sequence[Any], within: frozenset[int]
) -> tuple[list[torch.Tensor], Spec]:
    parts = [flatten(value, within) for value in values]
    tensors = [tensor for leaves, _ in parts for tensor in leaves]
    return tensors, Spec(kind, tuple(spec for _, spec in parts), tuple(keys), container)


class _UnreadError(InputError, AttributeError):
    """An attribute of what was not computed: `hasattr`, which libraries ask of all outputs, answers no."""


class Unread:
    """Stands in a result for a cache that the graph does not compute, and refuses to be read.

    Args:
        name: of the output.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # What copying, pickling and isinstance look for is no look at the cache.
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse()

    def __getitem__(self, key: Any) -> Any:
        self._refuse()

    def __iter__(self) -> Iterator[Any]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def __bool__(self) -> bool:
        return True

    def _refuse(self) -> NoReturn:
        raise _UnreadError(
            f"{self._name} was not computed",
            reason="the call leaves it to the model's configuration, and a graph would compute it in each step",
            way_out="call the model with use_cache=True to read it, or with use_cache=False to have None in its place",
        )


def unflatten(spec: Spec, tensors: Sequence[Any]) -> Any:
    """Return the nested value with these leaves in place of its tensors; plain leaves are those of the capture."""
    return _build(spec, iter(tensors))


def _build(spec: Spec, leaves: Iterator[Any]) -> Any:
    if spec.kind == "tensor":
        return next(leaves)
    if spec.kind == "plain":
        return spec.value
    if spec.kind == "unread":
        return Unread(spec.value)
    kind: Any = spec.type
    values = [_build(child, leaves) for child in spec.children]
    if spec.kind == "sparse":
        return assembled(values, spec.value)
    if spec.kind == "number":
        number = values[0].item()
        return number if isinstance(number, _VARYING) else kind(number)
    if spec.kind in ("namedtuple", "slice"):
        return kind(*values)
    if spec.kind == "sequence":
        return kind(values)
    named = dict(zip(spec.keys, values, strict=True))
    if spec.kind == "dataclass":
        return _dataclass(kind, named)
    if spec.kind == "object":
        result = kind.__new__(kind)
        result.__dict__.update(named)
        return result
    # transformers' ModelOutput is a dict whose constructor takes fields; a defaultdict's takes a factory.
    if hasattr(kind, "__dataclass_fields__"):
        return kind(**named)
    if kind is dict:
        return named
    result = kind()
    result.update(named)
    return result


def _dataclass(kind: Any, named: dict[str, Any]) -> Any:
    initialised = {field.name for field in dataclasses.fields(kind) if field.init}
    result = kind(**{name: value for name, value in named.items() if name in initialised})
    for name in named.keys() - initialised:
        object.__setattr__(result, name, named[name])
    return result


def has_objects(spec: Spec) -> bool:
    """Whether there are objects in a structure that are no containers of Python's."""
    return spec.kind == "object" or any(map(has_objects, spec.children))


def leaf_paths(spec: Spec, name: str = "") -> list[str]:
    """Return for each tensor its path, "batch.0.mask"; a lone tensor's path is `name`."""
    if spec.kind in ("tensor", "number"):
        return [name]
    inner = zip(spec.keys, spec.children, strict=True) if spec.kind != "plain" else ()
    return [path for key, child in inner for path in leaf_paths(child, f"{name}.{key}" if name else str(key))]


def plain_leaves(spec: Spec) -> list[Any]:
    """Return the leaves that are no tensors, in order."""
    if spec.kind == "plain":
        return [spec.value]
    return [leaf for child in spec.children for leaf in plain_leaves(child)]


def check_plain(spec: Spec, name: str = "output") -> None:
    """Refuse an output leaf that is neither tensor nor plain Python value, for it may hide tensors.

    Raises:
        CaptureError: names the leaf and its type.
    """
    if isinstance(spec.value, torch.SymInt | torch.SymFloat):
        raise CaptureError(
            f"the module returns a size that varies at {name}",
            reason="a graph returns tensors, and a number kept from the capture would be wrong for other sizes",
            way_out="leave it out: the caller has the tensor whose size it is",
        )
    if spec.kind == "sparse":
        raise CaptureError(
            f"{name} is a sparse matrix", reason="a graph returns dense tensors",
            way_out="return its to_dense(), or its indices() and values()",
        )  # fmt: skip
    if spec.kind == "plain" and not isinstance(spec.value, _PLAIN):
        cached = "Cache" in type(spec.value).__name__
        raise CaptureError(
            f"the module returns a {type(spec.value).__name__} at {name}, which is no tensor",
            reason="a graph returns tensors; an opaque object may hold some that would go stale",
            way_out="call the model with use_cache=False" if cached else "return tensors, tuples, dicts or dataclasses",
        )
    for key, child in zip(spec.keys, spec.children, strict=False):
        check_plain(child, f"{name}.{key}")


@dataclass(frozen=True)
class CallSpec:
    """How a module was called: for each argument of `forward`, by name, the structure of its value.

    The first `positional` arguments were given by position: hooks and decorators of `forward` see the difference.
    `repeated` says of each tensor where it comes first, if some are one and the same, and forward is to find them so.
    `parameters` are the numbers of those that are an `nn.Parameter`.
    """

    signature: inspect.Signature
    arguments: tuple[tuple[str, Spec], ...]
    positional: int
    repeated: tuple[int, ...] | None = None
    parameters: tuple[int, ...] = ()

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """Return the tensors of a later call in the order of the captured one.

        Raises:
            InputError: the call has other arguments, another structure, or another plain value than the captured one.
        """
        arguments = bind(self.signature, args, kwargs or {})
        tensors: list[torch.Tensor] = []
        for name, spec in self.arguments:
            leaves, now = flatten(arguments.pop(name) if name in arguments else self._default(name))
            _compare(name, spec, now)
            tensors += leaves
        for name, value in arguments.items():
            parameter = self.signature.parameters.get(name)
            if parameter is None or not _same(parameter.default, value):
                raise InputError(
                    f"argument {name!r} was not given when the module was captured",
                    reason="the graph was made for the arguments of the first call",
                    way_out=f"leave {name!r} out, or capture the module again with it",
                )
        return tensors

    def _default(self, name: str) -> Any:
        parameter = self.signature.parameters.get(name)
        if parameter is None or parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"argument {name!r} is missing",
                reason="the graph was made for a call that has it",
                way_out=f"give {name!r}, or capture the module again without it",
            )
        return parameter.default


def bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by parameter name, in the order they are written in the call.

    Raises:
        InputError: the arguments do not fit the signature.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"the arguments do not fit forward{signature}: {error}", way_out="mend the call") from error
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    written = [name for name in kwargs if name in named]
    return {name: named[name] for name in (*(n for n in named if n not in kwargs), *written)}


def call(function: Callable[..., Any], spec: CallSpec, values: Mapping[str, Any]) -> Any:
    """Call `function` as `spec` was called, with these values for its arguments."""
    args: list[Any] = []
    for name, _ in spec.arguments[: spec.positional]:
        several = spec.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        args += values[name] if several else [values[name]]
    return function(*args, **{name: values[name] for name, _ in spec.arguments[spec.positional :]})


def tells_positions(module: nn.Module) -> bool:
    """Whether arguments given by position may be other arguments to a module than the same given by name.

    To `forward` itself they are the same. A hook of the module and a decorator of `forward` get them apart.
    """
    hooks = any(of(f"torch.nn.Module.{table}", module) for table in MODULE_HOOKS)
    return hooks or hasattr(module.forward, "__wrapped__")


def _compare(name: str, then: Spec, now: Spec) -> None:
    if then.kind != now.kind or then.keys != now.keys:
        raise InputError(
            f"argument {name!r} is {_word(now)} where the captured call has {_word(then)}",
            reason="the graph was made for the structure of the first call",
            way_out="give the same structure, or capture the module again",
        )
    if then.kind in ("plain", "sparse") and not _same(then.value, now.value):
        raise InputError(
            f"argument {name!r} is {now.value!r} where the captured call has {then.value!r}",
            reason="values that are no tensors are baked into the graph",
            way_out="give the same value, or capture the module again",
        )
    for key, a, b in zip(then.keys, then.children, now.children, strict=True):
        _compare(f"{name}.{key}", a, b)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b))


def _word(spec: Spec) -> str:
    if spec.kind in ("tensor", "sparse"):
        return "a tensor" if spec.kind == "tensor" else "a sparse matrix"
    return repr(spec.value) if spec.kind == "plain" else f"a {getattr(spec.type, '__name__', '')} of {list(spec.keys)}"
