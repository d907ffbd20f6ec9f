"""A piece of a program, as TorchDynamo hands it over, as a module with parameters and buffers of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from ontrain.internals import is_number, is_resident

__all__ = ["Piece"]

Take = Callable[[Sequence[Any]], Any]
"""Takes a value from those of a call, or from a piece's parameters and buffers followed by a call's arguments."""


class Piece(nn.Module):
    """Runs a graph of TorchDynamo's, whose parameters and buffers are this module's instead of its inputs.

    They are the program's own objects, so gradients arrive where the program looks for them. Sizes that are inputs of
    the graph are read off its tensors. Numbers stay arguments.

    Attributes:
        arguments: for each argument of `forward`, what takes it from the graph's inputs.
        residents: for each parameter and buffer, its place among the graph's inputs.

    Args:
        graph_module: what TorchDynamo traced; its graph is changed.
        examples: the values of the graph's inputs at the call that was traced.
    """

    _run: Callable[..., Any]

    def __init__(self, graph_module: fx.GraphModule, examples: Sequence[Any]) -> None:
        super().__init__()
        self.arguments: list[Take] = []
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        self.residents = [at for at, node in enumerate(placeholders) if is_resident(node)]
        self._names = [placeholders[at].name for at in self.residents]
        places, inputs = _places(placeholders), dict[int, Take]()
        sized: dict[int, tuple[int, int]] = {}
        for at, (node, example) in enumerate(zip(placeholders, examples, strict=True)):
            symbol = str(node.meta.get("example_value"))
            if is_resident(node):
                inputs[at] = operator.itemgetter(self.residents.index(at))
            elif isinstance(example, int | torch.SymInt) and symbol in places:
                sized[at] = places[symbol]
            else:
                inputs[at] = operator.itemgetter(len(self.residents) + len(self.arguments))
                take: Take = operator.itemgetter(at)
                if is_number(node) and all(user.target == "item" for user in node.users):
                    take = _number(take)
                    _leave_unread(node)
                self.arguments.append(take)
        for at, (tensor, axis) in sized.items():
            inputs[at] = _size(inputs[tensor], axis)
        self._inputs = [inputs[at] for at in range(len(placeholders))]
        graph_module.recompile()
        # No submodule: what the graph holds is this module's own already.
        object.__setattr__(self, "_run", graph_module.forward)
        self._register(examples)

    def with_residents_of(self, values: Sequence[Any]) -> Piece:
        """Return the same piece for another module of the program, given the graph's inputs at a call of it.

        TorchDynamo runs one graph for all modules whose calls look alike, such as the layers of a network.
        """
        other = Piece.__new__(Piece)
        nn.Module.__init__(other)
        other.arguments, other.residents, other._names = self.arguments, self.residents, self._names
        other._inputs = self._inputs
        object.__setattr__(other, "_run", self._run)
        other._register(values)
        return other

    def forward(self, *arguments: Any) -> Any:
        """Return what the graph returns."""
        values = [getattr(self, name) for name in self._names]
        values += arguments
        return self._run(*[take(values) for take in self._inputs])

    def _register(self, values: Sequence[Any]) -> None:
        for name, at in zip(self._names, self.residents, strict=True):
            if isinstance(values[at], nn.Parameter):
                self.register_parameter(name, values[at])
            else:
                self.register_buffer(name, values[at])


def _places(placeholders: Sequence[fx.Node]) -> dict[str, tuple[int, int]]:
    """By the symbol of a size the first input that has it, and the axis."""
    places: dict[str, tuple[int, int]] = {}
    for at, node in enumerate(placeholders):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    places.setdefault(str(size), (at, axis))
    return places


def _size(take: Take, axis: int) -> Take:
    return lambda arguments: take(arguments).shape[axis]


def _number(take: Take) -> Take:
    return lambda values: take(values).item()


def _leave_unread(node: fx.Node) -> None:
    """Let the graph take a number where it took a tensor to read it."""
    for read in list(node.users):
        read.replace_all_uses_with(node)
        node.graph.erase_node(read)
