"""A piece of a program, as TorchDynamo hands it over, as a module with parameters and buffers of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ontrain.errors import CaptureError
from ontrain.internals import is_number, is_resident, is_written, private
from ontrain.training.compiled.rewriting import rewrite

__all__ = ["Inputs", "Piece", "inputs_of"]

Take = Callable[[Sequence[Any]], Any]
"""Takes an argument from the inputs of a graph at a call."""


@dataclass(frozen=True)
class Inputs:
    """Where the inputs of a graph come from, by their places.

    Attributes:
        arguments: those of a call: what takes each from the graph's inputs.
        residents: parameters and buffers of a module in the program, by name.
        sizes: sizes of a tensor, by its place and the axis.
    """

    arguments: Mapping[int, Take]
    residents: Mapping[int, str]
    sizes: Mapping[int, tuple[int, int]]

    def with_arguments(self, places: Collection[int]) -> Inputs:
        """Return the same with arguments in place of residents."""
        added: dict[int, Take] = {at: operator.itemgetter(at) for at in places}
        arguments = {**self.arguments, **added}
        residents = {at: name for at, name in self.residents.items() if at not in places}
        return Inputs(arguments, residents, self.sizes)


def inputs_of(graph_module: fx.GraphModule, examples: Sequence[Any]) -> Inputs:
    """Return where a graph's inputs come from; numbers that it reads off tensors become inputs.

    Args:
        graph_module: what TorchDynamo traced; its graph is changed.
        examples: the values of the graph's inputs at the call that was traced.

    Raises:
        CaptureError: the graph writes to a tensor that is no parameter or buffer, which the program may read behind it;
            it updates parameters as an optimizer does; it turns gradients on where the program has them off; or it
            differentiates by torch.func.
    """
    _check_transforms(graph_module)
    _check_gradients(graph_module)
    _check_update(graph_module)
    rewrite(graph_module)
    placeholders = graph_module.graph.find_nodes(op="placeholder")
    places, arguments = _places(placeholders), dict[int, Take]()
    residents, sizes = dict[int, str](), dict[int, tuple[int, int]]()
    for at, (node, example) in enumerate(zip(placeholders, examples, strict=True)):
        symbol = str(node.meta.get("example_value"))
        # What a module has in place of a parameter, as in torch.func.functional_call, is another tensor at each call.
        if is_resident(node) and (isinstance(example, nn.Parameter) or not example.requires_grad):
            residents[at] = node.name
        elif isinstance(example, int | torch.SymInt) and symbol in places:
            sizes[at] = places[symbol]
        elif is_number(node) and all(user.target == "item" for user in node.users):
            arguments[at] = _number(at)
            _leave_unread(node)
        elif is_written(node):
            raise CaptureError(
                "a piece writes to one of its inputs in place", node=node.name, source=_line(node),
                reason="a graph changes no input, and the program or a later piece may read it",
                way_out="make a new tensor there: h = h + 1 in place of h += 1",
            )  # fmt: skip
        else:
            arguments[at] = operator.itemgetter(at)
    graph_module.recompile()
    return Inputs(arguments, residents, sizes)


def _check_transforms(graph_module: fx.GraphModule) -> None:
    """Refuse a graph that holds a derivative of torch.func as a sequence of calls, each for what is between."""
    for node in graph_module.graph.nodes:
        if getattr(node.target, "__name__", "") in ("_grad_increment_nesting", "_jvp_increment_nesting"):
            raise CaptureError(
                "a piece differentiates by torch.func", node=node.name, source=_told(node),
                reason="TorchDynamo has taken the derivative apart",
                way_out="wrap the module in ORTModule, whose forward may call torch.func",
            )  # fmt: skip


def _check_gradients(graph_module: fx.GraphModule) -> None:
    """Refuse a graph that turns gradients on where they are off: a call without gradients gives results without."""
    if torch.is_grad_enabled():
        return
    for node in graph_module.graph.nodes:
        if node.target is private("torch._C._set_grad_enabled") and node.args == (True,):
            raise CaptureError(
                "a piece turns gradients on, and is called without", node=node.name, source=_told(node),
                reason="the program may differentiate what the piece returns",
            )  # fmt: skip


def _check_update(graph_module: fx.GraphModule) -> None:
    """Refuse an optimizer's step: it writes to parameters and moments, which are constants of TorchDynamo's graph."""
    for node in graph_module.graph.nodes:
        held = node.op == "get_attr" or (node.op == "placeholder" and is_resident(node))
        if held and is_written(node) and (node.op == "get_attr" or not torch.is_grad_enabled() and _is_trained(node)):
            raise CaptureError(
                "a piece updates parameters, as an optimizer's step does", node=node.name, source=_line(node),
                reason="a graph here is of what is differentiated",
                way_out="compile the model and its loss, and call optimizer.step() outside of what is compiled",
            )  # fmt: skip


def _is_trained(node: fx.Node) -> bool:
    return bool(node.meta["example_value"].requires_grad)


class Piece(nn.Module):
    """Runs a graph of TorchDynamo's, whose parameters and buffers are this module's instead of its inputs.

    They are the program's own objects, so gradients arrive where the program looks for them. Sizes that are inputs of
    the graph are read off its tensors. Numbers stay arguments.

    Args:
        run: the graph.
        inputs: where its inputs come from; `forward` takes `inputs.arguments`, in order.
        values: the graph's inputs at a call, of which the module's own are kept.
    """

    _run: Callable[..., Any]

    def __init__(self, run: Callable[..., Any], inputs: Inputs, values: Sequence[Any]) -> None:
        super().__init__()
        # No submodule: what the graph holds is this module's own already.
        object.__setattr__(self, "_run", run)
        self._inputs, self._count = inputs, len(values)
        for at, name in inputs.residents.items():
            if isinstance(values[at], nn.Parameter):
                self.register_parameter(name, values[at])
            else:
                self.register_buffer(name, values[at])

    def forward(self, *arguments: Any) -> Any:
        """Return what the graph returns."""
        values: list[Any] = [None] * self._count
        for at, argument in zip(self._inputs.arguments, arguments, strict=True):
            values[at] = argument
        for at, name in self._inputs.residents.items():
            values[at] = getattr(self, name)
        for at, (tensor, axis) in self._inputs.sizes.items():
            values[at] = values[tensor].shape[axis]
        return self._run(*values)


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


def _line(node: fx.Node) -> str | None:
    """The line of the first operator that takes an input."""
    return _told(next(iter(node.users), None))


def _told(node: fx.Node | None) -> str | None:
    trace = None if node is None else node.meta.get("stack_trace")
    frames = [line.strip() for line in (trace or "").splitlines() if line.strip()]
    return " ".join(frames[-2:]) or None


def _number(at: int) -> Take:
    return lambda values: values[at].item()


def _leave_unread(node: fx.Node) -> None:
    """Let the graph take a number where it took a tensor to read it."""
    for read in list(node.users):
        read.replace_all_uses_with(node)
        node.graph.erase_node(read)
