"""The contract between sessions and execution providers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import onnx_ir as ir

__all__ = [
    "Executable", "ExecutionProvider", "FlatState", "ModuleExecutable", "ModuleMemory", "OperatorTime", "State",
    "StateSpec",
]  # fmt: skip


@dataclass(frozen=True)
class StateSpec:
    """A tensor that stays with the session: a parameter, buffer, moment or gradient accumulator.

    Attributes:
        name: name of the graph input it is bound to.
        shape, dtype: of the tensor.
        kind: tensors of one kind, group and dtype may share a flat buffer, in the order given.
        group: index of the optimizer group.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ir.DataType
    kind: str
    group: int = 0


@dataclass(frozen=True)
class OperatorTime:
    """Time that one run spent in an operator."""

    operator: str
    calls: int
    milliseconds: float


@runtime_checkable
class State(Protocol):
    """Resident tensors by name, in the provider's own array type. Assignment copies the value in."""

    def __getitem__(self, name: str) -> Any: ...
    def __setitem__(self, name: str, value: Any) -> None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object) -> bool: ...
    def nbytes(self) -> int:
        """Bytes that all tensors take together."""
        ...


@runtime_checkable
class FlatState(State, Protocol):
    """A state whose tensors are views of flat torch tensors: what several processes can reduce and share out in place.

    Attributes:
        flat: the flat tensors, by kind, group and dtype. Tensors of one kind lie in the order of their specs, so that
            a parameter and its gradient are found at the same place of theirs.
        place: by name the key of the flat tensor, and the first element in it.
    """

    flat: dict[tuple[str, int, Any], Any]
    place: dict[str, tuple[tuple[str, int, Any], int]]

    def extend(self, specs: Sequence[StateSpec], parts: int = 1) -> None:
        """Add resident tensors of new kinds, zero at first, in flat tensors that divide into so many equal parts."""
        ...

    def part(self, name: str, of: str, start: int, stop: int) -> None:
        """Let `name` be elements [start, stop) of the flattened tensor `of`, in the same memory.

        It is found by its name, and is not among the tensors that iteration gives.
        """
        ...


class Executable(Protocol):
    """A compiled graph for one signature.

    Several threads may run it, and others of its provider, at the same time unless it updates the state.
    """

    def run(
        self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Any]:
        """Run once.

        Args:
            feeds: the inputs that are not resident, by name.
            rng: seed and offset of the random stream; equal pairs give equal dropout masks.
            guard: name of a bool output; where it comes out false, no parameter or moment is updated.

        Returns:
            The outputs that update no state, by name; updates have been written to the state.
        """
        ...

    def profile(self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once, timing each operator; the slowest comes first."""
        ...

    @property
    def planned_bytes(self) -> int:
        """Bytes of working memory beside the state."""
        ...


class ModuleExecutable(Protocol):
    """A compiled graph in two halves, for one signature of a module in a user's own loop.

    Several threads may run it at the same time.

    Attributes:
        stochastic: whether forward draws random numbers.
        reads: names of resident inputs whose values backward reads; they must not change between the halves.
        planned_bytes: bytes of working memory for each forward whose backward has not come yet.
    """

    stochastic: bool
    reads: list[str]
    planned_bytes: int

    def forward(self, feeds: Mapping[str, Any], seed: int = 0) -> tuple[dict[str, Any], Any]:
        """Run the forward half.

        Returns:
            The outputs by name, and a tape: the activations, for `backward`. A tape that is dropped frees its memory.
        """
        ...

    def backward(self, tape: Any, adjoints: Mapping[str, Any]) -> dict[str, Any]:
        """Run the backward half, once, on the tape of a forward; `adjoints` by the names of the graph's inputs.

        Returns:
            The gradients by the names of the inputs that they belong to. They are the caller's to keep.
        """
        ...


class ModuleMemory(Protocol):
    """What the plans of one module share."""

    def replace(self, name: str, tensor: Any) -> bool:
        """Let a resident input be found in other memory; False if its layout differs and plans must be made anew."""
        ...


class ExecutionProvider(Protocol):
    """Something that runs graphs.

    One that runs every node in the graph's order, in memory laid out by lifetimes, may say so by an attribute
    `plans_memory = True`: recomputed activations save memory only there, and others are refused a memory budget. One
    whose attention takes packed sequences, for which padding need not be put back, says `attends_sequences = True`.
    """

    name: str

    def supports(self, node: ir.Node) -> str | None:
        """Return None if the provider can run the node, else the reason why not."""
        ...

    def create_state(self, specs: Sequence[StateSpec]) -> State:
        """Allocate resident tensors, filled with zeros."""
        ...

    def compile(self, model: ir.Model, state: State) -> Executable:
        """Compile a graph whose shapes are all concrete; resident inputs are found in `state` by name.

        Raises:
            ProviderError: a node is not supported; names the node, its source line and the reason.
        """
        ...
