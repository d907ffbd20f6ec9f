"""Python objects that a forward can write to beside its module's tensors: dictionaries, lists, helpers, variables.

activations = {}  # a hook's
layer.register_forward_hook(lambda layer, inputs, output: activations.update(hidden=output.detach()))
"""

from __future__ import annotations

import dis
import gc
import operator
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from enum import Enum
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import nn

from ontrain.capture.installed import is_installed
from ontrain.capture.reachable import files_named, held_by
from ontrain.capture.slots import Slots, slots_of
from ontrain.internals import MODULE_HOOKS, MODULE_STATE, global_hooks

__all__ = [
    "ALL", "MISSING", "MORE", "OF_PYTHON", "ORDER", "Items", "Members", "Table", "has_attributes", "tables_of",
    "ways_to",
]  # fmt: skip


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
"""The value of a name that a table does not have."""
ALL, MORE = "all items", "further items"
"""In the place of a name of a list: its whole contents, and what is appended to it."""


class _Order(Enum):
    NAMES = "the order of a dictionary"


ORDER = _Order.NAMES
"""In the place of a name of a dictionary: its names, in order."""
_SHUT = frozenset(
    {"torch", "numpy", "builtins", "collections", "functools", "logging", "ontrain", "threading", "weakref"}
)
"""Modules whose objects are their own affair."""
_LARGEST_ARRAY = 1 << 16  # bytes
_STATE = frozenset({*MODULE_STATE, *MODULE_HOOKS})


class Table:
    """Values by name: the entries of a dictionary.

    Args:
        owner: the object that has them.

    Attributes:
        has_attributes: whether code names the entries as attributes.
    """

    has_attributes = False

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    @property
    def is_root(self) -> bool:
        """Whether code has the object by itself: it is a module, a class, a file or a function's variable."""
        return False

    @property
    def is_full(self) -> bool:
        """Whether it is a list of which new items push the first ones out."""
        return False

    @property
    def key(self) -> int:
        """What a watch knows the table by: the place in memory of the object that has the entries."""
        return id(self.owner)

    def entries(self) -> dict[Any, Any]:
        """Return the values as they are now, by name."""
        kind: Any = OrderedDict if isinstance(self.owner, OrderedDict) else dict  # and not what a class makes of it
        return dict(kind.items(self.owner))

    def value(self, name: Any) -> Any:
        """Return a value as it is now, `MISSING` if there is none; for `ORDER` the names."""
        return tuple(self.entries()) if name is ORDER else dict.get(self.owner, name, MISSING)

    def put(self, name: Any, value: Any) -> None:
        """Set a value, or take the name away where the value is `MISSING`; under `ORDER` put the names in order."""
        if name is ORDER:
            for first in [first for first in value if first in self.owner]:
                self.owner[first] = self.owner.pop(first)
        elif value is MISSING:
            self.owner.pop(name, None)
        else:
            self.owner[name] = value

    def copy_in(self, copies: dict[int, Any]) -> Table:
        """The same table of a copied object; of an object that has no copy this one.

        Args:
            copies: by the place of the original, as `copy.deepcopy` notes them.
        """
        copy = copies.get(id(self.owner), self.owner)
        return self if copy is self.owner else type(self)(copy)

    def described(self, name: Any) -> str:
        """Return what an entry is called in a message."""
        return str(name.value) if name is ORDER else f"the entry {name!r} of a dictionary"


class Attributes(Table):
    """Attributes of an object."""

    has_attributes = True

    @property
    def is_root(self) -> bool:
        return isinstance(self.owner, nn.Module)

    @property
    def key(self) -> int:
        return id(self._held)

    @property
    def _held(self) -> MutableMapping[str, Any]:
        held: dict[str, Any] = vars(self.owner)
        return held

    def entries(self) -> dict[Any, Any]:
        attributes = dict(self._held)
        if not isinstance(self.owner, nn.Module):
            return attributes
        return {name: value for name, value in attributes.items() if name not in _STATE}

    def value(self, name: Any) -> Any:
        return self._held.get(name, MISSING)

    def put(self, name: Any, value: Any) -> None:
        if value is MISSING:
            self._held.pop(name, None)
        else:
            self._held[name] = value

    def described(self, name: Any) -> str:
        named = self.owner if isinstance(self.owner, FunctionType) else type(self.owner)
        return f"the attribute {name!r} of {named.__name__}"


class SlotAttributes(Attributes):
    """Attributes of an object whose class names them in `__slots__`."""

    @property
    def key(self) -> int:
        return id(self.owner)

    @property
    def _held(self) -> MutableMapping[str, Any]:
        return Slots(self.owner)


class ClassAttributes(Table):
    """Attributes of a class."""

    has_attributes = True

    @property
    def is_root(self) -> bool:
        return True

    def entries(self) -> dict[Any, Any]:
        return {name: value for name, value in dict(vars(self.owner)).items() if not name.startswith("__")}

    def value(self, name: Any) -> Any:
        return vars(self.owner).get(name, MISSING)

    def put(self, name: Any, value: Any) -> None:
        if value is not MISSING:
            setattr(self.owner, name, value)
        elif name in vars(self.owner):
            delattr(self.owner, name)

    def described(self, name: Any) -> str:
        return f"the attribute {name!r} of class {self.owner.__name__}"


class Variables(Table):
    """The variables of a file that its functions name."""

    @property
    def is_root(self) -> bool:
        return True

    def __init__(self, owner: dict[str, Any], names: Iterable[str]) -> None:
        super().__init__(owner)
        self._names = dict.fromkeys(names)

    def add(self, other: Variables) -> None:
        """Take up what other functions name."""
        self._names |= other._names

    def entries(self) -> dict[Any, Any]:
        return {name: self.owner[name] for name in self._names if name in self.owner}

    def copy_in(self, copies: dict[int, Any]) -> Table:
        return self

    def described(self, name: Any) -> str:
        return f"the global {name!r}"


class Cell(Table):
    """The variable of a function around another one."""

    @property
    def is_root(self) -> bool:
        return True

    _NAME = "cell_contents"

    def entries(self) -> dict[Any, Any]:
        try:
            return {self._NAME: self.owner.cell_contents}
        except ValueError:  # has no value yet
            return {}

    def value(self, name: Any) -> Any:
        return self.entries().get(name, MISSING)

    def put(self, name: Any, value: Any) -> None:
        if value is MISSING:
            del self.owner.cell_contents
        else:
            self.owner.cell_contents = value

    def described(self, name: Any) -> str:
        return "a variable of the function around a hook or forward"


class ContextVariable(Table):
    """The value of a `contextvars.ContextVar`, where it has one."""

    @property
    def is_root(self) -> bool:
        return True

    _NAME = "value"

    def entries(self) -> dict[Any, Any]:
        try:
            return {self._NAME: self.owner.get()}  # its default, where nobody has set it
        except LookupError:
            return {}

    def value(self, name: Any) -> Any:
        return self.entries().get(name, MISSING)

    def put(self, name: Any, value: Any) -> None:
        if value is not MISSING:  # it cannot be without one again
            self.owner.set(value)

    def described(self, name: Any) -> str:
        return f"the context variable {self.owner.name!r}"


class Members(Table):
    """A set, whose members stand for themselves."""

    def entries(self) -> dict[Any, Any]:
        """Return the members, each under itself."""
        return {member: member for member in list(self.owner)}

    def value(self, name: Any) -> Any:
        """Return a member, `MISSING` if it is none."""
        return name if name in self.owner else MISSING

    def put(self, name: Any, value: Any) -> None:
        """Add a member, or take it away where the value is `MISSING`."""
        (self.owner.discard if value is MISSING else self.owner.add)(name)

    def described(self, name: Any) -> str:
        """Return what a member is called in a message."""
        return f"the member {name!r} of a set"


class Items(Table):
    """A list or a deque, whose items stand under their numbers."""

    @property
    def is_full(self) -> bool:
        """Whether new items push the first ones out."""
        return isinstance(self.owner, deque) and len(self.owner) == self.owner.maxlen

    def entries(self) -> dict[Any, Any]:
        """Return the items as they are now, by number."""
        items = list.copy(self.owner) if isinstance(self.owner, list) else list(self.owner)
        return dict(enumerate(items))

    def value(self, name: Any) -> Any:
        """Return the item of a number, `MISSING` if there are not as many."""
        return self.owner[name] if isinstance(name, int) and name < len(self.owner) else MISSING

    def put(self, name: Any, value: Any) -> None:
        """Set the item of a number; append items under `MORE`, and under `ALL` be these items alone."""
        if name is ALL:
            self.owner.clear()
        if name in (ALL, MORE):
            self.owner.extend(value)
        else:
            self.owner[name] = value

    def described(self, name: Any) -> str:
        """Return what an item, or the whole, is called in a message."""
        kind = "list" if isinstance(self.owner, list) else "deque"
        return f"an item of a {kind}" if isinstance(name, int) else f"a {kind}"


class Contents(Table):
    """The numbers of one of numpy's arrays, as bytes under one name."""

    _NAME = "contents"

    def entries(self) -> dict[Any, Any]:
        return {self._NAME: self.owner.tobytes()}

    def value(self, name: Any) -> Any:
        return self.owner.tobytes()

    def put(self, name: Any, value: Any) -> None:
        np.copyto(self.owner, np.frombuffer(value, self.owner.dtype).reshape(self.owner.shape))

    def described(self, name: Any) -> str:
        return f"an array of {self.owner.size} numbers"


class Bytes(Contents):
    """A bytearray, or an array of Python's, as bytes under one name."""

    def entries(self) -> dict[Any, Any]:
        return {self._NAME: bytes(self.owner)}

    def value(self, name: Any) -> Any:
        return bytes(self.owner)

    def put(self, name: Any, value: Any) -> None:
        self.owner[:] = type(self.owner)(self.owner.typecode, value) if isinstance(self.owner, array) else value

    def described(self, name: Any) -> str:
        return f"a {type(self.owner).__name__}"


def ways_to(table: Table, tables: Iterable[Table]) -> list[tuple[Table, Any, Any]]:
    """Return the entries, and their values, by which code comes to a table from a module, a class or a variable.

    Args:
        table: that some object has.
        tables: all that there are.
    """
    holders = {id(value): (holder, name, value) for holder in tables for name, value in holder.entries().items()}
    ways: list[tuple[Table, Any, Any]] = []
    while not table.is_root and (way := holders.get(id(table.owner))) is not None and way not in ways:
        ways.append(way)
        table = way[0]
    return ways


OF_PYTHON = frozenset({"__builtins__", "__warningregistry__"})
"""What Python keeps in the globals of code: its own names, and of what the code has warned."""


def tables_of(module: nn.Module) -> list[Table]:
    """Return the tables that a module's forward can come to: by what it and hooks hold, and what functions name.

    Those of torch's objects and of installed packages' files are left out, as are the tables of a module's tensors,
    submodules and hooks, and what Python keeps in globals.
    """
    parts = held_by([module, *global_hooks()[0]])
    tables = _whole([table for part in parts for table in _of(part)])
    attributes = {id(vars(part)) for part in parts if _has_dictionary(type(part)) or isinstance(part, threading.local)}
    # Behind a class comes its own dictionary.
    attributes.update(id(held) for part in parts if isinstance(part, type) for held in gc.get_referents(vars(part)))
    state = {id(vars(part).get(name)) for part in parts if isinstance(part, nn.Module) for name in _STATE}
    pythons = {id(part.get(name)) for part in parts if type(part) is dict for name in OF_PYTHON}
    left_out = attributes | state | pythons
    return [table for table in tables if type(table) is not Table or id(table.owner) not in left_out]


def _whole(tables: Iterable[Table]) -> list[Table]:
    """The tables with one for the variables of a file, whichever functions name them."""
    whole: dict[int, Variables] = {}
    others: list[Table] = []
    for table in tables:
        if not isinstance(table, Variables):
            others.append(table)
        elif table.key in whole:
            whole[table.key].add(table)
        else:
            whole[table.key] = table
    return [*whole.values(), *others]


def _of(part: Any) -> Iterator[Table]:
    kind = type(part)
    if issubclass(kind, dict):
        yield Table(part)
    elif issubclass(kind, list | deque):
        yield Items(part)
    elif issubclass(kind, set):
        yield Members(part)
    elif kind is CellType:
        yield Cell(part)
    elif kind is ContextVar:
        yield ContextVariable(part)
    elif kind is FunctionType:
        if not is_installed(part.__code__.co_filename):
            yield Variables(part.__globals__, _globals(part.__code__))
            yield from (Variables(vars(file), names) for file, names in files_named(part))
            yield Attributes(part)
    elif issubclass(kind, type):
        yield ClassAttributes(part)
    elif kind is np.ndarray:
        if part.nbytes <= _LARGEST_ARRAY and not part.dtype.hasobject and part.flags.writeable:
            yield Contents(part)
    elif issubclass(kind, bytearray | array):
        if len(memoryview(part).cast("B")) <= _LARGEST_ARRAY:
            yield Bytes(part)
    elif has_attributes(kind):
        yield (SlotAttributes if slots_of(kind) else Attributes)(part)


def has_attributes(kind: type) -> bool:
    """Whether objects of a class have attributes that count as entries: torch's own and others' have not."""
    own = issubclass(kind, nn.Module) or str(kind.__module__).partition(".")[0] not in _SHUT
    return own and (_has_dictionary(kind) or bool(slots_of(kind)) or issubclass(kind, threading.local))


def _has_dictionary(kind: type) -> bool:
    return _dictionary_offset(kind) != 0 and not issubclass(kind, ModuleType | type)


_dictionary_offset = operator.attrgetter("__dictoffset__")


def _globals(code: CodeType) -> set[str]:
    """The globals that a function, and what is defined in it, reads or sets."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    return names.union(*map(_globals, inner))
