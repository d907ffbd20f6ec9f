"""The contract between sessions and execution providers. What only its types need is not imported with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ontrain.errors import ProviderError

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx_ir as ir

    from ontrain.graph import MemoryOf, StateKind

__all__ = [
    "Array", "AtOnce", "Capabilities", "Executable", "ExecutionProvider", "FlatKey", "FlatState", "ModuleExecutable",
    "ModuleMemory", "NodeTime", "OperatorTime", "State", "StateSpec", "Tape", "Tensor", "as_array", "own_state",
]  # fmt: skip

Array = Any
"""An array of a provider's own type, which `torch.as_tensor` and `numpy.asarray` take."""
Tensor = Any
"""A `torch.Tensor`. Only one provider may import torch, so the contract cannot name it."""
Tape = Any
"""What backward needs of a forward, in the provider's own type."""
FlatKey = tuple[str, int, Any]
"""Kind, optimizer group and torch dtype of the tensors that lie in one flat tensor."""


def as_array(value: Array) -> npt.NDArray[np.generic]:
    """Return the numbers of an array or a tensor; numpy itself refuses a tensor of bfloat16."""
    from onnx_ir.tensor_adapters import TorchTensor

    return np.asarray(TorchTensor(value.detach()).numpy() if hasattr(value, "detach") else value)


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
    kind: StateKind
    group: int = 0


@dataclass(frozen=True)
class OperatorTime:
    """Time that one run spent in an operator."""

    operator: str
    calls: int
    milliseconds: float


@dataclass(frozen=True)
class NodeTime:
    """One call of a run.

    Attributes:
        name: of the file's node that it derives from, "" where that has none.
        operator: what is run, as the plan has it.
        start: nanoseconds since the run began.
        duration: nanoseconds.
        memory: bytes of working memory that hold values while it runs.
        output: bytes that it writes.
        inputs, outputs: dtype, as ONNX names it, and shape of each operand and result.
    """

    name: str
    operator: str
    start: int
    duration: int
    memory: int
    output: int
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()


class State(Protocol):
    """Resident tensors by name, in the provider's own array type. Assignment copies the value in."""

    def __getitem__(self, name: str) -> Array: ...
    def __setitem__(self, name: str, value: Array) -> None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object) -> bool: ...
    def nbytes(self) -> int:
        """Bytes that all tensors take together."""
        ...


class FlatState(State, Protocol):
    """A state whose tensors are views of flat torch tensors: what several processes can reduce and share out in place.

    Attributes:
        flat: the flat tensors, by kind, group and dtype. Tensors of one kind lie in the order of their specs, so that
            a parameter and its gradient are found at the same place of theirs.
        place: by name the key of the flat tensor, and the first element in it.
    """

    flat: dict[FlatKey, Tensor]
    place: dict[str, tuple[FlatKey, int]]

    def extend(self, specs: Sequence[StateSpec], parts: int = 1) -> None:
        """Add resident tensors of new kinds, zero at first, in flat tensors that divide into so many equal parts."""
        ...

    def part(self, name: str, of: str, start: int, stop: int) -> None:
        """Let `name` be elements [start, stop) of the flattened tensor `of`, in the same memory.

        It is found by its name, and is not among the tensors that iteration gives.
        """
        ...

    def norm(self, name: str) -> Tensor:
        """Return the Euclidean norm of a tensor, 0-d, of its dtype, right to the last digits however long it is."""
        ...


class Executable(Protocol):
    """A compiled graph for one signature.

    Several threads may run it, and others of its provider, at the same time unless it updates the state.
    """

    def run(
        self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Array]:
        """Run once.

        Args:
            feeds: the inputs that are not resident, by name.
            rng: seed and offset of the random stream; equal pairs give equal dropout masks.
            guard: name of a bool output; where it comes out false, no parameter or moment is updated.

        Returns:
            The outputs that update no state, by name; updates have been written to the state.
        """
        ...

    def profile(self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once, timing each operator; the slowest comes first."""
        ...

    def trace(
        self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0)
    ) -> tuple[dict[str, Array], list[NodeTime]]:
        """Run once; return the outputs, and each call in order, or no call if the provider cannot look inside a run."""
        ...

    @property
    def planned_bytes(self) -> int:
        """Bytes of working memory beside the state."""
        ...


class AtOnce(Protocol):
    """A compiled graph that takes arrays of numpy as they are, and gives others.

    Attributes:
        kinds: by the name of each input the dtype and the sizes that it takes; no other array may be passed.
        names: of the outputs, in order.
    """

    kinds: Mapping[str, tuple[Any, tuple[int, ...]]]
    names: Sequence[str]

    def __call__(self, arrays: Mapping[str, Any]) -> list[Any]:
        """Run once. Several threads may call it at the same time."""
        ...


class ModuleExecutable(Protocol):
    """A compiled graph in two halves, for one signature of a module in a user's own loop.

    Several threads may run it at the same time.
    """

    @property
    def stochastic(self) -> bool:
        """Whether forward draws random numbers."""
        ...

    @property
    def reads(self) -> list[str]:
        """Names of resident inputs whose values backward reads; they must not change between the halves."""
        ...

    @property
    def planned_bytes(self) -> int:
        """Bytes of working memory for each forward whose backward has not come yet."""
        ...

    def forward(self, feeds: Mapping[str, Tensor], seed: int = 0) -> tuple[dict[str, Tensor], Tape]:
        """Run the forward half.

        Returns:
            The outputs by name, and a tape: the activations, for `backward`. A tape that is dropped frees its memory.
        """
        ...

    def backward(self, tape: Tape, adjoints: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the backward half, once, on the tape of a forward; `adjoints` by the names of the graph's inputs.

        Returns:
            The gradients by the names of the inputs that they belong to. They are the caller's to keep.
        """
        ...


class ModuleMemory(Protocol):
    """What the plans of one module share: its parameters and buffers, and memory to run in."""

    def compile(self, model: ir.Model) -> ModuleExecutable:
        """Compile a graph made by `ontrain.autodiff.build_backward`, or a forward graph alone.

        Raises:
            ProviderError: a node is not supported.
        """
        ...

    def replace(self, name: str, tensor: Tensor) -> bool:
        """Let a resident input be found in other memory; False if its layout differs and plans must be made anew."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What a provider can do beyond running a graph. Each part is None, or False, where it cannot.

    Attributes:
        memory_of: says beforehand where the values of a graph will lie. A provider that runs every node in the graph's
            order, in memory laid out by lifetimes, has it: recomputed activations save memory only there, and others
            are refused a memory budget.
        module_memory: makes the memory of a module in a user's own loop, from its parameters and buffers by name, which
            are used where they are. Without it the halves of such a module are compiled as two graphs.
        flat_state: like `create_state`, in flat torch tensors: what several processes train with.
        attends_sequences: attention takes packed sequences, for which padding need not be put back.
        serves_sequences: the same, where nothing is differentiated.
        multiplies_bfloat16: products of bfloat16 are faster than those of float32, on units made for them.
        joins: small nodes, and small models that serve, may run by onnxruntime's kernels together.
        at_once: gives an executable's way from arrays to arrays; None for one that has no shorter way than `run`.
    """

    memory_of: MemoryOf | None = None
    module_memory: Callable[[Mapping[str, Tensor]], ModuleMemory] | None = None
    flat_state: Callable[[Sequence[StateSpec]], FlatState] | None = None
    attends_sequences: bool = False
    serves_sequences: bool = False
    multiplies_bfloat16: bool = False
    joins: bool = False
    at_once: Callable[[Executable], AtOnce | None] | None = None


class ExecutionProvider(Protocol):
    """Something that runs graphs."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    @property
    def device(self) -> str:
        """Where it runs, as a torch device string."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond running a graph; `Capabilities()` for nothing."""
        ...

    def supports(self, node: ir.Node) -> str | None:
        """Return None if the provider can run the node, else the reason why not."""
        ...

    def create_state(self, specs: Sequence[StateSpec]) -> State:
        """Allocate resident tensors, filled with zeros."""
        ...

    def compile(self, model: ir.Model, state: State) -> Executable:
        """Compile a graph whose shapes are all concrete.

        Args:
            model: the graph.
            state: made by this provider's `create_state`; resident inputs are found in it by name.

        Raises:
            ProviderError: a node is not supported; names the node, its source line and the reason.
        """
        ...


OwnState = TypeVar("OwnState", bound=State)


def own_state(state: State, kind: type[OwnState], provider: str) -> OwnState:
    """Return a state that must be one of a provider's own.

    Raises:
        ProviderError: another provider made it.
    """
    if not isinstance(state, kind):
        raise ProviderError(
            f"{provider} cannot use a {type(state).__name__}", way_out="make the state by the provider's create_state"
        )
    return state
