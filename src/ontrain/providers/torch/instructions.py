"""What a program consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ontrain.providers.torch.buffers import Buf

__all__ = ["Body", "Function", "Instruction", "outside"]

Function = Callable[..., object]
"""What a call calls: of torch, or one of ours on tensors."""


@dataclass(eq=False)
class Instruction:
    """One call: a function, its arguments with `Buf`s where tensors will be, and what memory it touches."""

    fn: Function
    args: tuple[object, ...]
    kwargs: dict[str, object]
    reads: list[Buf]
    writes: list[Buf]
    node: ir.Node | None
    reuses: list[Buf] = field(default_factory=list)
    """Inputs whose memory the (single) output may take over if they die here."""
    results: list[Buf | None] | None = None
    """What the function returns, for one that does not write into its arguments; None for what nobody wants."""
    fresh: bool = False
    """Whether what it returns is memory of its own, so that it may be held and need not be copied."""
    factors: tuple[Buf, Buf, Buf] | None = None
    """Both factors and the result, where it is a matrix product that the function does not tell."""


@dataclass(frozen=True, eq=False)
class Body:
    """The instructions of a branch or of an iteration, as an argument of the instruction that makes their calls.

    What that instruction is given in its place at run time is a function of no arguments.
    """

    program: Sequence[Instruction]


def outside(*_: object) -> None:
    """Stands in a program where buffers are filled or read from outside of it, so that they have a place till then."""
