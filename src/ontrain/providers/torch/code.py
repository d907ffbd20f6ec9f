"""A program as straight-line Python: each instruction a line, each tensor a name, each held result a local variable.

The text depends on the plan's structure alone: sizes are names in it, too, so plans of one model for many sizes share
one compiled text. Binding gives the names their tensors and sizes, over as many blocks of memory as there are. A line
costs what its call costs: no loop, no unpacking of arguments, and a result that is held in a variable needs no copy.
Names and numbers in the text are made here, never taken from a model.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from types import CodeType
from typing import cast

import torch

from ontrain.graph import describe
from ontrain.internals import OpOverload, of
from ontrain.providers.torch.buffers import Buf, Layout, Storage
from ontrain.providers.torch.instructions import Instruction
from ontrain.providers.torch.stock_kernel import StockKernel

__all__ = ["Code", "Held", "Resolve", "as_planned", "codes"]

Held = list[torch.Tensor]
"""Results that live on from one part of a program to the next."""
Resolve = Callable[[object], object]
"""Gives a tree of arguments its tensors."""

_FILE = "<plan>"
_FEW = 10
"""Whole numbers below it are written as they are: axes and the like, which a size does not change."""
_TEXTS = 32
"""Compiled texts that are kept."""


@functools.lru_cache(_TEXTS)
def _compiled(text: str) -> CodeType:
    return compile(text, _FILE, "exec")


def codes(
    parts: Sequence[Sequence[Instruction]], lent: Sequence[Sequence[Storage]] = (), *, timed: bool = False
) -> list[Code]:
    """Return the code of the consecutive parts of one program; each takes the results that the one before it held.

    Args:
        parts: their instructions.
        lent: what the caller lends to each part, which takes it after those results; by default nothing.
        timed: see `Code`.
    """
    touched = [_held(storage for instruction in part for storage in _storages(instruction)) for part in parts]
    viewed = {
        id(root) for part in parts for instruction in part for buf in (*instruction.reads, *instruction.writes)
        if (root := buf.storage.root()).held
        and (isinstance(instruction.fn, StockKernel) or buf.storage.exact or buf.layout() != root.layout)
    }  # fmt: skip
    written, handed_on = [], list[Storage]()
    for at, part in enumerate(parts):
        later = {id(storage) for stores in touched[at + 1 :] for storage in stores}
        taken = [*handed_on, *(lent[at] if at < len(lent) else ())]
        handed_on = [storage for storage in _held([*taken, *touched[at]]) if id(storage) in later]
        written.append(Code(part, viewed, taken, handed_on, timed=timed))
    return written


def _storages(instruction: Instruction) -> Iterable[Storage]:
    return (buf.storage.root() for buf in (*instruction.reads, *instruction.writes))


def _held(storages: Iterable[Storage]) -> list[Storage]:
    return list({id(storage): storage for storage in storages if storage.held}.values())


class Code:
    """The text of one part of a program, compiled.

    Args:
        program: the instructions, planned.
        viewed: ids of held storages of which views are taken or that a kernel reads by its address, here or later, so
            that their layout must be the planned.
        taken: held storages that come from the part before.
        storages: held storages that the part after needs.
        timed: call `tick(number)` after each instruction; `tick` is given to `bind`.
    """

    def __init__(
        self, program: Sequence[Instruction], viewed: Collection[int], taken: Sequence[Storage],
        storages: Sequence[Storage], *, timed: bool,
    ) -> None:  # fmt: skip
        self.program, self.taken, self.given = program, taken, storages
        self._viewed = viewed
        self._timed = timed
        self._constants: dict[str, object] = {"put": _put, "as_planned": as_planned, "torch": torch}
        self._names: dict[int, str] = {}
        self._local: dict[tuple[int, Layout | None], str] = {}
        self._of: dict[int, list[str]] = defaultdict(list)
        self._nodes: list[Instruction | None] = []
        self._text: list[str] = []
        self._write()
        self.text = "\n".join(self._text) + "\n"
        """The source that is run."""

    def bind(self, resolve: Resolve, **extra: object) -> Callable[[Held], Held]:
        """Return the function that makes the calls on tensors; it empties the list that it is given."""
        names = {**{name: _direct(resolve(tree)) for name, tree in self._constants.items()}, **extra}
        exec(_compiled(self.text), names)
        # Out of its own globals: in a circle with them it would hold the tensors until the collector comes.
        run = cast("Callable[[Held], Held]", names.pop("run"))

        def call(held: Held) -> Held:
            try:
                return run(held)
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                self._blame(error)
                raise

        return call

    def _blame(self, error: Exception) -> None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
            trace = trace.tb_next
        instruction = self._nodes[trace.tb_lineno - 1] if trace is not None else None
        if instruction is not None and instruction.node is not None:
            error.add_note(describe(instruction.node))

    # Text

    def _write(self) -> None:
        self._line(None, "def run(held):", indent="")
        for storage in self.taken:
            self._own(storage)
        if self.taken:
            self._line(None, f"[{', '.join(self._local[id(s), None] for s in self.taken)}] = held")
        self._line(None, "held.clear()")
        dies = {
            id(storage): instruction
            for instruction in self.program
            for storage in _storages(instruction)
            if storage.held
        }
        staying = {id(storage) for storage in self.given}
        for number, instruction in enumerate(self.program):
            self._instruction(instruction)
            if self._timed:
                self._line(instruction, f"tick({number})")
            gone = [s for s in _held(_storages(instruction)) if dies[id(s)] is instruction and id(s) not in staying]
            if names := [name for storage in gone for name in self._of.pop(id(storage), [])]:
                self._line(instruction, f"del {', '.join(names)}")
        self._line(None, f"return [{', '.join(self._local[id(s), None] for s in self.given)}]")

    def _line(self, instruction: Instruction | None, text: str, indent: str = "    ") -> None:
        self._text.append(indent + text)
        self._nodes.append(instruction)

    def _instruction(self, instruction: Instruction) -> None:
        arguments = [self._expression(instruction, a) for a in instruction.args]
        arguments += [f"{key}={self._expression(instruction, value)}" for key, value in instruction.kwargs.items()]
        call = f"{self._constant(instruction.fn)}({', '.join(arguments)})"
        if instruction.results is None:
            self._line(instruction, call)
            return
        names, copied, after = list[str](), list[str](), list[str]()
        for number, buf in enumerate(instruction.results):
            if buf is not None and buf.storage.held:
                names.append(self._own(buf.storage))
                if id(buf.storage) in self._viewed:
                    h, strides = names[-1], self._number(buf.layout()[1])
                    then = f"{h} = as_planned({h}, {strides})"
                    after.append(f"if {h}.stride() != {strides} or {h}.storage_offset(): {then}")
                continue
            names.append(f"r{number}")
            copied.append(names[-1])
            if buf is not None:
                after.append(f"put({self._expression(instruction, buf)}, {names[-1]})")
        self._line(instruction, f"{', '.join(names)} = {call}")
        for text in after:
            self._line(instruction, text)
        if copied:
            self._line(instruction, f"del {', '.join(copied)}")

    def _own(self, storage: Storage) -> str:
        name = f"h{len(self._local)}"
        self._local[id(storage), None] = name
        self._of[id(storage)].append(name)
        return name

    def _expression(self, instruction: Instruction, tree: object) -> str:
        if isinstance(tree, Buf) and tree.storage.root().held:
            return self._view(instruction, tree)
        if isinstance(tree, list | tuple) and any(_reads_held(x) for x in tree):
            inner = "".join(f"{self._expression(instruction, x)}, " for x in tree)
            return f"[{inner}]" if isinstance(tree, list) else f"({inner})"
        if type(tree) is int and not -_FEW < tree < _FEW:
            return self._number(tree)
        if tree is None or type(tree) in (bool, int) or (type(tree) is float and math.isfinite(tree)):
            return repr(tree)
        return self._constant(tree)

    def _number(self, value: int | tuple[int, ...]) -> str:
        """A name of its own for a size, or for several: which of them are equal says nothing of other plans."""
        name = f"n_{len(self._constants)}"
        self._constants[name] = value
        return name

    def _constant(self, tree: object) -> str:
        """The name of a tensor, function or other object that does not change from call to call."""
        if id(tree) not in self._names:
            said = getattr(tree, "__name__", "c").replace(".", "_")
            prefix = "t" if isinstance(tree, Buf) else said if said.isidentifier() else "c"
            name = self._names[id(tree)] = f"{prefix}_{len(self._names)}"
            self._constants[name] = tree  # which also keeps its id from being another's
        return self._names[id(tree)]

    def _view(self, instruction: Instruction, buf: Buf) -> str:
        """The variable of a held result, or of a view of it, made where it is first needed."""
        root = buf.storage.root()
        whole = self._local[id(root), None]
        assert root.layout is not None
        layout = buf.layout()
        if layout == root.layout:
            return whole
        key = id(root), layout
        if key not in self._local:
            name = self._local[key] = f"h{len(self._local)}"
            self._of[id(root)].append(name)
            self._line(instruction, f"{name} = {whole}.{self._view_call(layout, root.layout)}")
        return self._local[key]

    def _view_call(self, layout: Layout, root: Layout) -> str:
        """The call that makes a view of a tensor of the layout `root`: the cheaper one, where either will do.

        `view` tells the elements of the whole in another shape; a part of them, however dense, has to be `as_strided`.
        """
        shape, stride, offset, dtype = layout
        whole = math.prod(shape) == math.prod(root[0])
        if whole and dtype == root[3] and offset == root[2] == 0 and _dense(shape, stride) and _dense(*root[:2]):
            return f"view({self._number(shape)})"
        strided = f"as_strided({self._number(shape)}, {self._number(stride)}, {self._number(offset)})"
        if dtype == root[3]:
            return strided
        # Bits in another dtype: counted in elements of that dtype, over all that the result holds.
        return f"as_strided({self._number((math.prod(root[0]),))}, (1,), 0).view({dtype}).{strided}"


def _reads_held(tree: object) -> bool:
    if isinstance(tree, list | tuple):
        return any(_reads_held(item) for item in tree)
    return isinstance(tree, Buf) and tree.storage.root().held


def _dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements follow one another, and there is an axis to count them along."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if step != expected:
            return False
        expected *= size
    return bool(shape) and expected > 0


def _direct(value: object) -> object:
    """What a call of an operator ends up in: its own `__call__` takes a microsecond in Python first."""
    return of("torch._ops.OpOverload._op", value) if isinstance(value, OpOverload) else value


def _put(target: torch.Tensor, result: torch.Tensor) -> None:
    target.copy_(result if result.shape == target.shape else result.reshape(target.shape))


def as_planned(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a copy of what came in another layout than the one that the plan's views and addresses count on."""
    laid = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return laid.copy_(result)
