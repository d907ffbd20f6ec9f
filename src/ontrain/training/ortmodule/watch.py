"""Notices when a module is no longer what was captured: another parameter, submodule or plain attribute."""

from __future__ import annotations

import functools
import operator
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ontrain.capture import OF_PYTHON, InstalledHook, Table, Write, sparse_tensors
from ontrain.errors import CaptureError
from ontrain.internals import MODULE_HOOKS, MODULE_STATE, dispatch_modes, global_hooks, of, version_of
from ontrain.training.inspection import inspects
from ontrain.training.ortmodule.derived import is_deriving
from ontrain.training.ortmodule.key import Same
from ontrain.training.ortmodule.left import Before
from ontrain.training.ortmodule.namespaces import (
    ATOMS,
    PLAIN,
    Outside,
    Unread,
    array_contents,
    has_memory,
    helpers,
    is_helper,
    place_of,
)
from ontrain.training.ortmodule.scope import Scope
from ontrain.training.ortmodule.surroundings import questions

__all__ = ["Watch", "check_hooks", "hooks_made", "hooks_within", "put_back", "warn_of_hooks"]

Hooks = list[tuple[MutableMapping[int, Any], dict[int, Any]]]
_MISSING = object()
_UNSEEN = object()
_OWN = frozenset(nn.Module().__dict__)  # "training" is part of the key of a capture, for it changes often


class Watch:
    """A snapshot of a module's structure and plain attributes, cheap enough to be compared at every call.

    Noticed are: a parameter, buffer, submodule or hook that was replaced, added or removed anywhere; a number, string,
    bool, None, member of an enumeration, type, dtype or function among the attributes of a submodule, or of its
    `config`, that was changed, also within lists, tuples, dicts, sets and partials; an array, a helper object, or
    another object that forward names, that was replaced (a container of a class of the user's only if forward names
    it, for loops write their notes into such); a new attribute that forward names; a `forward` put in the
    place of a submodule's own; a tensor attribute that is a constant of a graph, if it was replaced or written to; a
    sparse matrix likewise; attributes of `helpers`; class attributes, globals and closures as `Scope` says. Values of
    parameters are not looked at.

    Args:
        module: what was captured.
        constants: tensors that captures hold as they were.
        counted: entries of objects that no graph depends on, by the identity of their table and their name.
        varying: tensors outside of the module's state that graphs read.
        read: entries of objects that graphs depend on, and that forward changes.
        ways: entries, and their values, by which forward comes to objects that it writes to.
        carried: entries with tensors that forward reads, and writes in each call.
        names: the attributes of submodules that forward has read, by the place of the dictionary that has them, as far
            as that is known: nothing else of these submodules matters.

    Attributes:
        questions: what answers as torch answers forward, see `questions`.
    """

    def __init__(
        self, module: nn.Module, constants: Iterable[torch.Tensor] = (), counted: Iterable[tuple[int, Any]] = (),
        varying: Iterable[torch.Tensor] = (), read: Iterable[Write] = (),
        ways: Iterable[tuple[Table, Any, Any]] = (), carried: Iterable[Write] = (),
        names: Mapping[int, frozenset[str]] | None = None,
    ) -> None:  # fmt: skip
        self.modules, self._counted, self._used = list(module.modules()), Unread(counted), names or {}
        self._read = [(write.table, write.name, write.table.value(write.name)) for write in read]
        self._carried = [Before(write) for write in carried]
        self._ways = list({(table.key, name): (table, name, value) for table, name, value in ways}.values())
        constants = tuple(constants)
        self._outside = Outside(constants, varying)
        self._held = [constant for constant in constants if has_memory(constant)]
        self._versions = list(map(version_of, self._held))
        tables = [submodule.__dict__[name] for submodule in self.modules for name in MODULE_STATE]
        hooks = [submodule.__dict__[name] for submodule in self.modules for name in MODULE_HOOKS]
        self._tables = [table for table in (*tables, *hooks) if table]
        self._names, self._values = _entries(self._tables)
        self._empty = [table for table in tables if not table]
        self._hookless = [table for table in hooks if not table]
        self._hooks = hooks_made()
        self._sparse = [tensor for _, _, _, tensor in sparse_tensors(module)]
        self._sparse_versions = list(map(version_of, self._sparse))
        self._numbers: list[tuple[Callable[[Any], Any], Mapping[str, Any]]] = []
        self._before: list[Any] = []
        self._named: list[list[str]] = []
        self._others: list[tuple[Mapping[str, Any], str, Any, Any]] = []
        self._without_forward: list[Mapping[str, Any]] = []
        self._scope = Scope(self.modules, self._outside, self._counted)
        self.questions = questions(self._scope.read)
        held = [
            attributes
            for submodule in self.modules
            for attributes in (submodule.__dict__, _config(submodule), *self._helpers(submodule))
        ]
        kinds = {id(submodule.__dict__): type(submodule) for submodule in self.modules}
        for attributes in _unique(held):
            self._look_at(attributes, kinds.get(id(attributes)))
        self._known = [frozenset(attributes) for attributes in self._without_forward]
        self._sizes = list(map(len, self._without_forward))

    def _helpers(self, module: nn.Module) -> Iterator[Mapping[str, Any]]:
        """The attributes of helper objects that forward may come to; a trainer may note its steps in others."""
        return helpers(module, self._used.get(id(module.__dict__)))

    def _look_at(self, attributes: Mapping[str, Any], kind: type | None) -> None:
        """Take up attributes: of a submodule of a class, or of a configuration or a helper."""
        used = self._used.get(id(attributes), attributes)
        own = (name for name in attributes if name not in _OWN and name in used)
        names = [name for name in own if not self._counted.has(attributes, name)]
        numbers = [name for name in names if type(attributes[name]) in PLAIN]
        if numbers:
            get = operator.itemgetter(*numbers)
            self._numbers.append((get, attributes))
            self._before.append(get(attributes))
            self._named.append(numbers)
        if "forward" not in attributes:
            self._without_forward.append(attributes)
        for name in set(names) - set(numbers):
            value = attributes[name]
            if kind is not None and isinstance(value, list | dict | set | deque) and self._scope.unread(kind, name):
                continue  # notes that a loop takes, such as a list of losses
            seen = self._seen(value, name)
            if seen is not _UNSEEN:
                fixed = isinstance(seen, Same) or seen is value
                fixed = fixed or (isinstance(value, tuple) and all(type(item) in PLAIN for item in value))
                self._others.append((attributes, name, value if fixed else _UNSEEN, seen))

    def changed(self) -> bool:
        """Whether the module differs from the snapshot."""
        if self._restructured():
            return True
        if self._held and list(map(version_of, self._held)) != self._versions:
            return True
        if self._sparse and list(map(version_of, self._sparse)) != self._sparse_versions:
            return True
        if any(table.value(name) != value for table, name, value in self._read):
            return True
        if any(carried.changed() for carried in self._carried):
            return True
        if any(table.value(name) is not value for table, name, value in self._ways):
            return True
        if self._hooks != hooks_made():
            self._hooks = hooks_made()
            if any(self._hookless):
                return True
        try:
            if [get(attributes) for get, attributes in self._numbers] != self._before:
                return True
            if self._scope.changed():
                return True
        except (KeyError, ValueError, RuntimeError):
            return True  # one is gone, or is now an array, whose comparison is no bool
        if self._sizes != list(map(len, self._without_forward)) and self._grown():
            return True
        return any(True for _ in self._others_changed())

    def _others_changed(self) -> Iterator[str]:
        for attributes, name, fixed, seen in self._others:
            value = attributes.get(name, _MISSING)
            # What cannot change in place is the same: nothing to look for.
            if value is not fixed and self._seen(value, name) != seen:
                yield name

    def differences(self) -> list[str]:
        """Return in words what differs from the snapshot; for a warning, as it takes a while."""
        entries = [(table, name) for table, name, value in self._read if table.value(name) != value]
        entries += [(table, name) for table, name, value in self._ways if table.value(name) is not value]
        names = [
            name
            for (_, attributes), named, before in zip(self._numbers, self._named, self._before, strict=True)
            for name, value in zip(named, before if len(named) > 1 else (before,), strict=True)
            if attributes.get(name, _MISSING) != value
        ]
        names += self._others_changed()
        differences = [table.described(name) for table, name in entries] + [f"the attribute {name!r}" for name in names]
        differences += ["a parameter, buffer, submodule or hook"] if self._restructured() else []
        return differences + (["a global or a class attribute"] if self._scope.changed() else [])

    def written(self) -> list[torch.Tensor]:
        """Return the constants that were written to."""
        return [t for t, before in zip(self._held, self._versions, strict=True) if version_of(t) != before]

    def has_state(self) -> bool:
        """Whether the module has the parameters, buffers, submodules and hooks of the snapshot."""
        return not self._restructured() and not any(self._hookless)

    def _restructured(self) -> bool:
        names, values = _entries(self._tables)
        return names != self._names or not all(map(operator.is_, values, self._values)) or any(self._empty)

    @property
    def functions(self) -> list[types.FunctionType]:
        """All that forward may run of the user's, and all of the modules' classes."""
        return self._scope.functions

    @property
    def read(self) -> set[str]:
        """The names that forward, and the functions of the user's that it calls, look up."""
        return self._scope.read

    def _grown(self) -> bool:
        """Whether there are new attributes that forward reads, or a forward in the place of a submodule's own."""
        for attributes, known in zip(self._without_forward, self._known, strict=True):
            read = self._used.get(id(attributes), self._scope.read)
            new = {name for name in attributes.keys() - known if not self._counted.has(attributes, name)}
            if not new.isdisjoint({"forward", *read}):
                return True
        self._known = [frozenset(attributes) for attributes in self._without_forward]
        self._sizes = list(map(len, self._without_forward))
        return False

    def modes(self) -> tuple[bool, ...]:
        """Which submodules are in training mode."""
        return tuple([submodule.training for submodule in self.modules])

    def _seen(self, value: object, name: str, *outer: object) -> Any:
        """What of an attribute is compared: something immutable, or _UNSEEN if the attribute is not watched.

        Args:
            value: of the attribute, or an item of the containers `outer`.
            name: of the attribute; empty for an item.
            outer: which containers the item is in, the innermost first.
        """
        if name == "forward":
            return id(value)
        if isinstance(value, ATOMS):
            return value
        if isinstance(value, set | frozenset):
            return frozenset([item for item in value if isinstance(item, ATOMS)])
        if isinstance(value, list | tuple | dict | deque) and any(value is container for container in outer):
            return _UNSEEN
        value = self._counted.rest(value)
        if isinstance(value, list | tuple | deque):
            return tuple([self._seen(item, "", value, *outer) for item in value])
        if isinstance(value, dict):
            items = ((key, item) for key, item in value.items() if key not in OF_PYTHON)
            return tuple([(key, self._seen(item, "", value, *outer)) for key, item in items])
        if isinstance(value, nn.Parameter):
            return self._outside.seen(value) or id(value)
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            return Same(value)
        if isinstance(value, torch.Tensor):
            return self._outside.seen(value) or _UNSEEN
        if isinstance(value, functools.partial):
            return (value.func, self._seen(value.args, "", *outer), self._seen(value.keywords, "", *outer))
        if isinstance(value, np.ndarray):
            return array_contents(value) if not name or name in self._scope.read else _UNSEEN
        if isinstance(value, nn.Module) or name in self._scope.read or is_helper(value, ""):
            return Same(value)
        return _UNSEEN


def _config(module: nn.Module) -> dict[str, Any]:
    config = module.__dict__.get("config")
    return config.__dict__ if hasattr(config, "__dict__") else {}


def _unique(tables: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list({place_of(table): table for table in tables}.values())


def hooks_made() -> int:
    """How many hooks were ever registered in this process, on anything: none new, none to look for."""
    return int(RemovableHandle.next_id)


def _entries(tables: Sequence[dict[str, Any]]) -> tuple[list[str], list[Any]]:
    """All keys and all values, one table after the other; in C, for it is asked at every call."""
    return list(chain.from_iterable(tables)), list(chain.from_iterable(map(dict.values, tables)))


def check_hooks(module: nn.Module) -> None:
    """Refuse hooks inside a module that a graph cannot call.

    Raises:
        CaptureError: a submodule has a backward hook, or all modules have one; or a mode that is not torch's own sees
            operators.

    Warns:
        UserWarning: all modules have a forward hook.
    """
    _check_everywhere()
    for name, submodule in module.named_modules():
        if any(_hooks_of(submodule)[2:]):
            raise CaptureError(
                f"submodule {name!r} has a backward hook",
                reason="its backward is part of one graph and calls nothing in between",
                way_out="register the hook on its parameters or on the ORTModule, which both call it",
            )


def warn_of_hooks(module: nn.Module, own: Iterable[InstalledHook] = ()) -> None:
    """Warn of the hooks inside a module that no later call runs; asked after a capture, which some take for their own.

    Lightning's summary, for example, registers hooks that note sizes and remove themselves.

    Args:
        module: that was captured.
        own: the hooks that its forward registers, which are a part of it.

    Warns:
        UserWarning: a submodule has a forward hook.
    """
    known = {id(installed.hook) for installed in own}
    for name, submodule in module.named_modules():
        forward, forward_pre, *_ = _hooks_of(submodule)
        hooks = (*forward.values(), *forward_pre.values())
        if not all(inspects(hook) or is_deriving(hook) or id(hook) in known for hook in hooks):
            warnings.warn(
                f"the forward hooks of submodule {name!r} run while the module is captured, and their code never "
                "again: what they do to tensors is part of the graph, what they print is of the capture",
                stacklevel=2,
            )


def hooks_within(module: nn.Module) -> Hooks:
    """Return the tables of hooks inside a module that are not empty, each with a copy."""
    return [(table, dict(table)) for part in module.modules() for table in _hooks_of(part) if table]


@contextmanager
def put_back(hooks: Hooks) -> Iterator[None]:
    """Have the hooks that were removed since back for a while.

    A hook that removes itself in its first call is in the graph of that call, and in no other.
    """
    removed = [(table, {n: hook for n, hook in before.items() if n not in table}) for table, before in hooks]
    for table, former in removed:
        table.update(former)
    try:
        yield
    finally:
        for table, former in removed:
            for number in former:
                del table[number]


def _hooks_of(module: nn.Module) -> list[MutableMapping[int, Any]]:
    """The hooks of a module itself: forward, before forward, backward, before backward."""
    return [of(f"torch.nn.Module.{hooks}", module) for hooks in MODULE_HOOKS]


def _check_everywhere() -> None:
    if modes := dispatch_modes():
        raise CaptureError(
            f"the mode {modes[-1].__qualname__} is to see each operator of the call",
            reason="they run within one graph, out of its sight, and what it changed would be lost",
            way_out="leave the mode before the call, or call the plain module there, which is the attribute .module",
        )
    forward, backward = global_hooks()
    if backward:
        raise CaptureError(
            f"{_named(backward[0])} is a backward hook of all modules",
            reason="the backward of what is inside the module is part of one graph and calls nothing in between",
            way_out="register the hook on the ORTModule or on parameters, which both call it",
        )
    if forward:
        warnings.warn(
            f"{_named(forward[0])} is a forward hook of all modules: it runs for those inside while the module is "
            "captured, and its code never again; what it does to tensors is part of the graph, what it prints is of "
            "the capture",
            stacklevel=3,
        )


def _named(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))
