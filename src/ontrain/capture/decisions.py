"""Branches on values: what forward asked about the values of tensors while it was traced, and the answers it got.

    if choice.numel() == 0:     →  the branch that the batch at hand takes is traced, and a graph has the condition
        return zeros               that it takes it: `count0 != 0`

A run whose values answer otherwise is not what forward would compute; its caller takes or captures another graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx, nn

from ontrain.capture.aliases import mutates
from ontrain.capture.draws import Bounds, bounds
from ontrain.capture.questions import questions_answered
from ontrain.capture.source import current_line
from ontrain.capture.sympy_sizes import certain, names_of, size_of, symbol_of, valued
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.internals import private, wrapped
from ontrain.sizes import Size

__all__ = [
    "WAY_OUT", "Answers", "Decision", "Decisions", "ProgramThread", "RandomBranchError", "TwoDevicesError",
    "ValueBranchError", "equality_by_elements", "standing",
]  # fmt: skip


class ValueBranchError(CaptureError):
    """Forward branches on the values of tensors."""


class TwoDevicesError(CaptureError):
    """Forward computes with tensors of two devices."""


class RandomBranchError(ValueBranchError):
    """Forward branches on numbers that torch's generator draws."""


WAY_OUT = (
    f"{BROKEN}; or choose with torch.where, or move the "
    "decision out of forward; for layers that a library drops, set their rate to zero (config.layerdrop = 0)"
)
"""What a user can do whose model branches on values that no graph can follow."""


@dataclass(frozen=True)
class Decision:
    """A condition on values under which forward takes the traced path.

    Attributes:
        condition: over symbols of numbers and of sizes that follow from values.
        source: the user's line that asks.
    """

    condition: Size
    source: str | None = None


@dataclass(frozen=True)
class Decisions:
    """The path of a graph: its conditions in the order in which forward asks, and where their symbols' values are.

    Attributes:
        conditions: all of them hold on the path.
        outputs: the graph output, a vector of one element, by symbol.
    """

    conditions: Sequence[Decision] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)

    def numbers(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return the values of the symbols in a run."""
        return {symbol: outputs[name].item() for symbol, name in self.outputs.items()}

    def violated(self, numbers: Mapping[str, Any]) -> Decision | None:
        """Return the first condition that does not hold for these numbers, None if forward takes this path.

        A condition whose symbols are not all there counts as one that holds.
        """
        for decision in self.conditions:
            condition = decision.condition
            if condition.symbols() <= numbers.keys() and not condition.value(numbers):
                return decision
        return None


class Answers:
    """Answers a trace's questions about values from the batch at hand.

    What the program has so far is run on the batch, up to where the number is made that is asked for.

    Args:
        module: the traced one; its state is copied.
        batch: the tensors of the call, in the order of its inputs.

    Attributes:
        decisions: what was asked, and holds.
    """

    def __init__(self, module: nn.Module, batch: Sequence[torch.Tensor]) -> None:
        self.decisions: list[Decision] = []
        # In the order of a program's placeholders.
        named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        self._tensors = [tensor for _, tensor in named] + list(batch)
        self._run: _Run | None = None
        self._silent = False

    def begun(self, run: Callable[[Callable[[], Any]], Any]) -> Callable[[Callable[[], Any]], Any]:
        """Return what calls forward by `run`, and follows the trace that is made of it, if one is."""

        def follow(forward: Callable[[], Any]) -> Any:
            mode = private("torch.fx.experimental.proxy_tensor.get_proxy_mode")()
            if mode is not None:
                self.decisions.clear()
                self._run = _Run(mode.tracer, self._tensors)
            return run(forward)

        return follow

    @contextmanager
    def given(self) -> Iterator[None]:
        """Have torch's sizes ask here what they cannot know."""
        patch = private("torch._dynamo.config.patch")
        with patch(fake_tensor_cache_enabled=False), questions_answered(self._value):
            try:
                yield
            finally:
                self._run = None

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Leave questions unanswered."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def _value(self, expr: Any) -> Any:
        """Return what an expression is for the batch, None if that is not known; note it as a decision.

        What it is whatever is drawn at random is none.
        """
        if self._silent or self._run is None:
            return None
        numbers = self._run.numbers()
        if self._run.follows_from_adjoint(expr):
            raise ValueBranchError(
                "the backward of an autograd function branches on the values of its adjoint",
                source=current_line(),
                reason="adjoints are known only when a graph is differentiated",
                way_out=f"choose with torch.where in that backward; or {BROKEN}",
            )
        sure = certain(expr, self._run.bounds())
        if sure is not None:
            return sure
        number = valued(expr, numbers)
        if number is None:
            return None
        value, condition = number
        self._run.keep(condition.symbols())
        if all(condition != decision.condition for decision in self.decisions):
            self.decisions.append(Decision(condition, current_line()))
        return value


@contextmanager
def standing(decisions: Sequence[Decision]) -> Iterator[None]:
    """Answer as the trace was answered where torch asks the same again, while it writes the traced program anew."""
    held = {decision.condition for decision in decisions}

    def again(expr: Any) -> bool | None:
        asked = size_of(expr)
        return asked in held if asked in held or Size.call("not", asked) in held else None

    with questions_answered(again) if held else nullcontext():
        yield


class ProgramThread(threading.Thread):
    """Runs a program on values while it is traced, and is no part of the trace: nothing exports what it calls."""


_UNKNOWN = object()


def _apart(compute: Callable[[], None]) -> None:
    """Compute in a thread of its own, which has none of the modes that the trace is running under."""
    thread = ProgramThread(target=compute)
    thread.start()
    thread.join()


class _Run:
    """The program of a trace, run on values as far as it goes.

    Args:
        tracer: torch's, which makes the program.
        tensors: for its placeholders, in order.
    """

    def __init__(self, tracer: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._tracer, self._tensors = tracer, iter(tensors)
        self._values: dict[fx.Node, Any] = {}
        self._numbers: dict[str, int | float] = {}
        self._places: dict[str, tuple[fx.Node, int]] = {}
        self._of_adjoints: set[fx.Node] = set()
        self._unsure: set[str] = set()

    def numbers(self) -> dict[str, int | float]:
        """Return the numbers that stand behind the trace's symbols so far."""
        _apart(self._advance)
        return self._numbers

    def bounds(self) -> dict[str, Bounds]:
        """Return those of the numbers that follow from random draws alone."""
        places = {symbol: node for symbol, (node, axis) in self._places.items() if axis < 0}
        known: dict[str, Bounds | None] = {}
        _apart(lambda: known.update((symbol, bounds(node, self._values)) for symbol, node in places.items()))
        return {symbol: own for symbol, own in known.items() if own is not None}

    def follows_from_adjoint(self, expr: Any) -> bool:
        """Whether an expression has a number that the adjoint of an autograd function decides, which is yet to come."""
        return not self._unsure.isdisjoint(names_of(expr))

    def keep(self, symbols: Iterable[str]) -> None:
        """Have the program say where the numbers for some symbols are, each once."""
        calls = reversed(self._tracer.graph.nodes)  # of which a placeholder has no module
        last: dict[str, Any] = next((node.meta for node in calls if "nn_module_stack" in node.meta), {})
        for symbol in sorted(symbols & self._places.keys()):
            node, axis = self._places.pop(symbol)
            call = self._tracer.graph.call_function(torch.ops.ontrain.decide.default, (node, symbol, axis))
            call.meta = {**last, **node.meta}

    def _advance(self) -> None:
        nodes = [node for node in self._tracer.graph.nodes if node not in self._values]
        with torch.no_grad():
            for node in nodes:
                self._values[node] = _UNKNOWN
                if _reads_adjoint(node, self._of_adjoints):
                    self._of_adjoints.add(node)
                    if mutates(node):
                        self._of_adjoints.add(node.all_input_nodes[0])
                if any(self._values[read] is _UNKNOWN for read in node.all_input_nodes):
                    self._forget_written(node)
                    continue
                # Operators of any library run here; where one fails, numbers behind it stay unknown.
                with suppress(Exception):
                    self._values[node] = self._computed(node)
                    self._learn(node, node.meta.get("val"), self._values[node])

    def _forget_written(self, node: fx.Node) -> None:
        """What an operator writes to that could not be run is unknown as well."""
        if mutates(node):
            self._values[node.all_input_nodes[0]] = _UNKNOWN

    def _computed(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return next(self._tensors).detach().clone()  # which the program may write to
        if node.op == "get_attr":
            return functools.reduce(getattr, str(node.target).split("."), self._tracer.root)
        target: Any = node.target
        args: Any = fx.map_arg(node.args, self._values.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, self._values.__getitem__)
        return target(*args, **kwargs)

    def _learn(self, node: fx.Node, seen: Any, value: Any) -> None:
        """Note the numbers for symbols in what torch knows of a result."""
        if isinstance(seen, torch.Tensor) and isinstance(value, torch.Tensor):
            for axis, (size, number) in enumerate(zip(seen.shape, value.shape, strict=True)):
                self._note(size, number, node, axis)
        elif isinstance(seen, torch.SymInt | torch.SymFloat | torch.SymBool):
            self._note(seen, value, node.args[0] if node.args else None, -1)

    def _sized_by_adjoint(self, node: fx.Node) -> bool:
        """Whether sizes of a value may follow from an adjoint: a mask, or another operand, says how many it selects."""
        others = {read for read in node.all_input_nodes if read is not node.args[0]}
        return not others or not others.isdisjoint(self._of_adjoints)

    def _note(self, seen: Any, number: Any, node: Any, axis: int) -> None:
        symbol = symbol_of(seen) if isinstance(seen, torch.SymInt | torch.SymFloat | torch.SymBool) else None
        if symbol is None or symbol in self._numbers:
            return
        self._numbers[symbol] = int(number) if isinstance(number, bool) else number
        if node in self._of_adjoints and (axis < 0 or self._sized_by_adjoint(node)):
            self._unsure.add(symbol)
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor):
            self._places[symbol] = node, axis


def _reads_adjoint(node: fx.Node, of_adjoints: Set[fx.Node]) -> bool:
    """Whether a value follows from the adjoint of an autograd function, for which ones stand while it is traced."""
    if node.target is torch.ops.ontrain.adjoint.default:
        return True
    if node.target is torch.ops.ontrain.through.default:  # which returns its first values
        return not of_adjoints.isdisjoint(cast("Iterable[fx.Node]", node.args[0]))
    return not of_adjoints.isdisjoint(node.all_input_nodes)


@torch.library.custom_op("ontrain::decide", mutates_args=())
def _decide(x: torch.Tensor, symbol: str, axis: int) -> torch.Tensor:
    return x.clone()


@_decide.register_fake
def _(x: torch.Tensor, symbol: str, axis: int) -> torch.Tensor:
    return torch.empty_like(x)


# A number that nothing else reads is still to be known.
torch.fx.node.has_side_effect(torch.ops.ontrain.decide.default)


@contextmanager
def equality_by_elements() -> Iterator[None]:
    """Compare whole tensors by their elements, as operators that a trace has."""

    def equal(_: Callable[..., bool]) -> Callable[..., bool]:
        return lambda input, other: input.shape == other.shape and bool((input == other).all())

    def close(_: Callable[..., bool]) -> Callable[..., bool]:
        return lambda input, other, *bounds, **named: bool(torch.isclose(input, other, *bounds, **named).all())

    names = {"equal": equal, "allclose": close}
    with wrapped({f"{owner}.{name}": by for owner in ("torch", "torch.Tensor") for name, by in names.items()}):
        yield
