"""What stock onnxruntime dies of or never returns from, guarded against in the file before it gets it.

These end its process: an integer divided by zero, the least integer divided by minus one, a position in a sequence that
is no number, but none or several, and an operand that is left out of several, or at the end of a LayerNormalization's,
by an empty name. One never ends: a Loop whose count and condition let it run. Empty names at the end are dropped, which
means the same, and other ones refused, as are random numbers of a range or a deviation that there are none of, whose
draw ends it, too, and a choice of bytes (QLinearWhere) with some constant scales. Operators that take the sizes of an
operand for granted end it where these are others (`ontrain.files.demands`). The rest become ordinary errors of a run by
nodes that are put into the graph:

    Div(a, b)          →   Div(a, b′),   b′ = the b of Gather([b], whether a / b has no answer)
    SequenceAt(s, i)   →   SequenceAt(s, Reshape(i, [])), and so SequenceInsert and SequenceErase
    GRU(x, …)          →   GRU(Reshape(x, s), …),   s = the s of Gather([Shape(x)], whether x has no elements)
    Scan               →   the same with one carried value more, which comes of such a Gather before and inside
    Loop               →   the same with one carried value more, the rounds so far; its condition comes of a Gather too

A Gather whose index is 1 where there is one entry is refused by onnxruntime, with the name that the node has here.
Divisors that are constant and neither zero nor minus one stay as they are, and so do numbers that are no integers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ontrain.errors import GraphError
from ontrain.files.demands import DEMANDING
from ontrain.files.division_guards import INTEGERS, guard_division
from ontrain.files.element_types import Foreign, Types, given_types, result_types
from ontrain.files.guard_errors import POSITION, ROUNDS
from ontrain.files.guard_nodes import KIND, LARGEST, GuardNodes, scalar
from ontrain.files.harmless import is_harmless
from ontrain.files.inner_graphs import allowed_subgraphs, subgraphs
from ontrain.files.refused_nodes import (
    check_form,
    check_labels,
    check_range,
    check_scales,
    check_text,
    without_empty_names,
)
from ontrain.files.schemas import imports_of, schema_of
from ontrain.files.size_guards import guard_sizes
from ontrain.files.suspicion import TRAPS
from ontrain.rounds import loop_limit

__all__ = ["guard"]

_FORMS = {name.decode() for name in TRAPS if name not in DEMANDING} | {"Constant"}
"""Operators that are looked at so closely that they must be whole."""
_OLDEST = 7
"""Operators broadcast and add integers from this version on; a division of integers is no valid one before."""
_SCANS_CARRY = 9
"""The operator set from which on what a Scan carries is fed without the lengths of sequences."""


def guard(
    proto: onnx.ModelProto, foreign: Foreign = lambda domain, op_type: None, *, shapes_hold: bool = False
) -> bool:
    """Put guards into a model, in place; return whether it needed any. Functions must be inlined before.

    Args:
        proto: with each node of the main graph behind those that it reads.
        foreign: knows operators that are not of the standard.
        shapes_hold: whether values have the shapes that the model states. Those of inputs and weights hold in any case.

    Raises:
        GraphError: whether a division is one of integers cannot be told, or the operator set is no number of one.
    """
    guarding = _Guard(imports_of(proto.opset_import).get("", 1), foreign)
    if abs(guarding.opset) > LARGEST:
        raise GraphError(
            f"the model asks for opset {guarding.opset}",
            reason=f"the installed onnx knows 1 to {onnx.defs.onnx_opset_version()}",
            way_out="export the model again, or copy the whole file: the number may be damaged",
        )
    if guarding.opset < _OLDEST and _loops(proto.graph.node):
        raise GraphError(
            f"a Loop of operator set {guarding.opset} cannot be bounded",
            reason="arithmetic knew no integers then",
            way_out=f"export the model at operator set {_OLDEST} or newer, or use one of ontrain's providers",
        )
    guarding.learn(proto.graph, shapes_hold)
    if is_harmless(proto.graph, guarding.shapes, guarding.opset):
        return False
    guarding.graph(proto.graph, {}, {}, guarding.zero(proto.graph) if _loops(proto.graph.node) else None)
    return guarding.count > 0


def _loops(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(node.op_type == "Loop" or any(_loops(inner.node) for inner in allowed_subgraphs(node)) for node in nodes)


class _Guard:
    """Walks through the graphs of a model and puts guards before the nodes that need them.

    Attributes:
        opset: the version of the standard's operators.
        count: how many guards were needed.
        shapes: those that are certain, by the names of values.
    """

    def __init__(self, opset: int, foreign: Foreign) -> None:
        self.opset, self.count = opset, 0
        self._start = GuardNodes(opset)
        self._foreign, self._has_custom = foreign, False
        self._results: list[int | None] = []
        """Element types of what the graph gives that was guarded last."""
        self.shapes: dict[str, Sequence[int]] = {}
        self._fixed: set[str] = set()
        """Names of values that are the same at each run."""

    def learn(self, graph: onnx.GraphProto, shapes_hold: bool) -> None:
        """Note certain shapes: those of weights, and of inputs, which onnxruntime compares with what is fed."""
        for value in (*graph.input, *(graph.value_info if shapes_hold else ())):
            dims = value.type.tensor_type.shape.dim
            if value.type.tensor_type.HasField("shape") and all(dim.dim_value > 0 for dim in dims):
                self.shapes[value.name] = [dim.dim_value for dim in dims]
        for tensor in graph.initializer:
            self.shapes.setdefault(tensor.name, tensor.dims)

    def graph(self, graph: onnx.GraphProto, types: Types, known: Mapping[str, Any], spent: str | None) -> str | None:
        """Guard a graph; return the name of the number of rounds after it."""
        types, known = dict(types), dict(known)
        inputs = {value.name for value in graph.input}
        for value in (*graph.value_info, *graph.output, *graph.input):
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
                types[value.name] = value.type.tensor_type.elem_type
        for tensor in graph.initializer:
            types[tensor.name] = tensor.data_type
            if tensor.name not in inputs:
                self._fixed.add(tensor.name)
                if tensor.data_type in INTEGERS:
                    known[tensor.name] = tensor
        before, count, guards = list(graph.node), self.count, self._start.of_another_graph()
        for node in before:
            inner = [*subgraphs(node)]
            check_text(node)
            check_scales(node, self._fixed)
            check_labels(node)
            if not inner and _follows(node, self._fixed):
                self._fixed.update(node.output)
            self._look_at(node, inner, types, known, guards)
            outputs, arguments = list(node.output), given_types(node, inner, types) if inner else {}
            within = {**types, **arguments} if arguments else types
            if inner and spent is not None and _loops([node]) and not _of_sequences(node):
                spent = self._nested(node, within, known, spent, guards)
            else:
                for body in inner:
                    self.graph(body, within, known, None)
            guards.nodes.append(node)
            held = self._results if inner else None
            results = result_types(node, types, self.opset, self._foreign, held)
            self._has_custom |= results is None
            for name, kind in zip(outputs, results or (), strict=False):
                if kind is not None:
                    types.setdefault(name, kind)
        if self.count > count:
            del graph.node[:]
            graph.node.extend(guards.nodes)
        self._results = [types.get(value.name) for value in graph.output]
        return spent

    def _look_at(
        self, node: onnx.NodeProto, inner: Sequence[onnx.GraphProto], types: Types, known: dict[str, Any],
        guards: GuardNodes,
    ) -> None:  # fmt: skip
        """Refuse a node, or guard it, for all but the graphs in it; note a constant's type and value."""
        if inner or node.op_type in _FORMS:
            check_form(node, inner, self.opset)
        self.count += without_empty_names(node, self.opset)
        check_range(node)
        if self.opset >= _OLDEST and node.op_type.encode() in DEMANDING:
            self.count += guard_sizes(node, self.shapes, guards)
        if node.op_type == "Constant" and not node.domain:
            held = next((a.t for a in node.attribute if a.name == "value"), None)
            if held is not None:
                types[node.output[0]], known[node.output[0]] = held.data_type, held
        if node.op_type in ("Div", "Mod") and node.domain in ("", "ai.onnx"):
            self._division(node, types, known, guards)
        elif _of_sequences(node):
            self._position(node, known, guards)

    def _division(self, node: onnx.NodeProto, types: Types, known: Mapping[str, Any], guards: GuardNodes) -> None:
        a, b = node.input[0], node.input[1]
        kind = types.get(b, types.get(a))
        if kind is None and self._has_custom:
            return  # numbers of a user's own library, whose code the user trusts
        if kind is None:
            raise GraphError(
                f"{node.op_type} {node.name!r} may divide integers: the type of its operands is not known",
                reason="onnxruntime's process ends where an integer is divided by zero, so ontrain guards the division",
                way_out="write the types into the file with onnx.shape_inference, or use one of ontrain's providers",
            )
        self.count += self.opset >= _OLDEST and guard_division(node, kind, known.get(b), guards)

    def _position(self, node: onnx.NodeProto, known: Mapping[str, Any], guards: GuardNodes) -> None:
        """Have onnxruntime refuse a position in a sequence that is not one number."""
        schema = schema_of(node.op_type, "", self.opset)
        names = [] if schema is None else [operand.name for operand in schema.inputs]
        at = names.index("position") if "position" in names else len(node.input)
        position = node.input[at] if at < len(node.input) else ""
        stored = known.get(position)
        if not position or (stored is not None and math.prod(stored.dims) == 1):
            return
        self.count += 1
        called = f"{POSITION} before {node.op_type} {node.name or node.output[0]}"
        node.input[at] = guards.emit("Reshape", [position, guards.sizes()], called=called)

    # Loops

    def zero(self, graph: onnx.GraphProto) -> str:
        """The name of a zero, put into a graph."""
        name = self._start.name()
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), name))
        return name

    def _nested(
        self, node: onnx.NodeProto, types: Types, known: Mapping[str, Any], spent: str, guards: GuardNodes
    ) -> str:
        """Hand the number of rounds into a node that has loops inside, and out of it."""
        after, inner = guards.name(), [*subgraphs(node)]
        if node.op_type == "Loop":
            (body,) = inner
            while len(node.input) < 2:
                node.input.append("")
            node.input.insert(2, spent)
            within = guards.name()
            body.input.insert(2, scalar(within, KIND.INT64))
            self._body_of_loop(node, body, types, known, within)
            node.output.insert(0, after)
            self.count += 1
        elif node.op_type == "If":
            for branch in inner:
                branch.output.append(self._handed_out(branch, types, known, spent))
            node.output.append(after)
        elif node.op_type == "Scan" and self.opset >= _SCANS_CARRY:
            (body,) = inner
            node.input.insert(0, spent)
            within = guards.name()
            body.input.insert(0, scalar(within, KIND.INT64))
            body.output.insert(0, self._handed_out(body, types, known, within))
            node.output.insert(0, after)
        else:
            raise GraphError(
                f"{node.op_type} {node.name!r} has loops inside", reason="how often they run cannot be bounded"
            )
        return after

    def _handed_out(
        self, graph: onnx.GraphProto, types: Types, known: Mapping[str, Any], spent: str
    ) -> onnx.ValueInfoProto:
        """Guard a graph inside; return a result of it that is the number of rounds after it."""
        rounds, guards = self.graph(graph, types, known, spent), self._start.of_another_graph()
        counter = guards.emit("Identity", [str(rounds)])
        graph.node.extend(guards.nodes)
        return scalar(counter, KIND.INT64)

    def _body_of_loop(
        self, node: onnx.NodeProto, body: onnx.GraphProto, types: Types, known: Mapping[str, Any], within: str
    ) -> None:
        rounds, guards = self.graph(body, types, known, within), self._start.of_another_graph()
        more = guards.emit("Add", [str(rounds), guards.constant(np.array(1), KIND.INT64)])
        kind, compared = (
            (KIND.INT64, more) if self.opset >= 9 else (KIND.DOUBLE, guards.emit("Cast", [more], to=KIND.DOUBLE))
        )
        beyond = guards.emit("Greater", [compared, guards.constant(np.array(loop_limit()), kind)])
        index = guards.emit("Cast", [beyond], to=KIND.INT64)
        go = guards.flat(body.output[0].name)
        called = f"{ROUNDS} {node.name or node.output[0] if node.output else ''}"
        go = guards.emit("Gather", [go, index], called=called)
        body.node.extend(guards.nodes)
        body.output[0].CopyFrom(scalar(go, KIND.BOOL))
        body.output.insert(1, scalar(more, KIND.INT64))


def _follows(node: onnx.NodeProto, fixed: Collection[str]) -> bool:
    """Whether the results of a node without graphs inside follow from values that are the same at each run."""
    return all(name in fixed for name in node.input if name) and not node.op_type.startswith("Random")


def _of_sequences(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith("Sequence") and node.domain in ("", "ai.onnx")
