"""What stock onnxruntime dies of or never returns from, guarded against in the file before it gets it.

These end its process: an integer divided by zero, the least integer divided by minus one, a position in a sequence that
is no number, but none or several, and an operand that is left out of several, or at the end of a LayerNormalization's,
by an empty name. One never ends: a Loop whose count and condition let it run. Empty names at the end are dropped, which
means the same, and other ones refused, as are random numbers of a range or a deviation that there are none of, whose
draw ends it, too. Operators that take the sizes of an operand for granted end it where these are others
(`ontrain.files.demands`). The rest become ordinary errors of a run by nodes that are put into the graph:

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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ontrain.errors import GraphError, ProviderError
from ontrain.files.demands import DEMANDING, Demand, demands_of, stacked
from ontrain.files.element_types import Foreign, Types, given_types, result_types
from ontrain.files.schemas import imports_of, schema_of
from ontrain.files.subgraphs import subgraphs
from ontrain.files.suspicion import TRAPS
from ontrain.rounds import loop_limit, loop_refused

__all__ = ["guard", "sprung"]

_DIVISION, _ROUNDS = "ontrain: integer division", "ontrain: rounds of a loop"
_POSITION = "ontrain: position in a sequence"
_SIZES, _STACKED = "ontrain: sizes of operand", "ontrain: sizes of result"
_KIND = onnx.TensorProto
_FORMS = frozenset(TRAPS) - frozenset(DEMANDING)
"""Operators that are looked at so closely that they must be whole."""
_OLDEST = 7
"""Operators broadcast and add integers from this version on; a division of integers is no valid one before."""
_AXES_FED = 13
"""The operator set from which on axes of an Unsqueeze are an operand."""
_SCANS_AXES = 9
"""The operator set from which on a Scan goes over other axes than the first."""
_SLICES_FED = 10
"""The operator set from which on the ends of a Slice are operands."""
_LARGEST = 2**31 - 1
"""The largest version that onnx's own look-up takes."""
_INTEGERS = frozenset({
    _KIND.INT8, _KIND.INT16, _KIND.INT32, _KIND.INT64, _KIND.UINT8, _KIND.UINT16, _KIND.UINT32, _KIND.UINT64,
})  # fmt: skip
_LEAST: dict[int, int] = {_KIND.INT32: -(2**31), _KIND.INT64: -(2**63)}


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
    if abs(guarding.opset) > _LARGEST:
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
    guarding.graph(proto.graph, {}, {}, guarding.zero(proto.graph) if _loops(proto.graph.node) else None)
    return guarding.guards > 0


def sprung(message: str) -> ProviderError | None:
    """Return the error that a message of onnxruntime's means, if a guard made it."""
    if _ROUNDS in message:
        return loop_refused()
    if _POSITION in message:
        at = _behind(f"{_POSITION} before", message)
        return ProviderError(
            "a position in a sequence is not one number",
            node=at or None,
            reason="onnxruntime reads one from wherever the tensor lies, and its process may end",
            way_out="check what makes the position; the file may be damaged",
        )
    if _SIZES in message:
        operand, _, at = _behind(_SIZES, message).partition(" of ")
        return ProviderError(
            f"operand {operand} has no elements or too few axes, or is zero",
            node=at or None,
            reason="onnxruntime's kernel takes its sizes for granted, and onnxruntime's process would end",
            way_out="feed at least one row and one step, or use TorchExecutionProvider",
        )
    if _STACKED in message:
        result, _, at = _behind(_STACKED, message).partition(" of ")
        return ProviderError(
            f"result {result} of the graph inside has no elements",
            node=at or None,
            reason="onnxruntime cannot stack such results along an inner axis, and onnxruntime's process would end",
            way_out="let the graph stack them along the first axis, or use TorchExecutionProvider",
        )
    if _DIVISION in message:
        at = _behind(f"{_DIVISION} before", message)
        return ProviderError(
            "an integer is divided by zero, or the least one by minus one",
            node=at or None,
            reason="the processor has no answer, and onnxruntime's process would end",
            way_out="check what makes the divisor; the file may be damaged",
        )
    return None


def _behind(name: str, message: str) -> str:
    """What follows in the name of a guard that onnxruntime quotes."""
    return message.partition(f"{name} ")[2].partition("'")[0]


def _loops(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(node.op_type == "Loop" or any(_loops(inner.node) for inner in subgraphs(node)) for node in nodes)


def _check_form(node: onnx.NodeProto, opset: int) -> None:
    """Refuse a node that lacks what guarding it looks at; onnxruntime would refuse it later."""
    schema = schema_of(node.op_type, "", opset) if node.domain in ("", "ai.onnx") else None
    if schema is None:
        return
    inner, graph = [*subgraphs(node)], onnx.defs.OpSchema.AttrType.GRAPH
    graphs = sum(attribute.required and attribute.type == graph for attribute in schema.attributes.values())
    short = len(node.input) < schema.min_input or len(node.output) < schema.min_output
    if len(inner) != graphs or (short and not graphs):
        said = f"{len(node.input)} inputs, {len(node.output)} outputs and {len(inner)} graphs inside"
        raise GraphError(f"{node.op_type} {node.name!r} is damaged", reason=f"it has {said}")
    if node.op_type == "Loop" and not inner[0].output:
        raise GraphError(f"{node.op_type} {node.name!r} is damaged", reason="its body says not whether to go on")


class _Guard:
    def __init__(self, opset: int, foreign: Foreign) -> None:
        self.opset, self.guards, self._count = opset, 0, 0
        self._foreign, self._has_custom = foreign, False
        self._results: list[int | None] = []
        """Element types of what the graph gives that was guarded last."""
        self._shapes: dict[str, Sequence[int]] = {}
        """Shapes that are certain."""

    def learn(self, graph: onnx.GraphProto, shapes_hold: bool) -> None:
        """Note certain shapes: those of weights, and of inputs, which onnxruntime compares with what is fed."""
        for value in (*graph.input, *(graph.value_info if shapes_hold else ())):
            dims = value.type.tensor_type.shape.dim
            if value.type.tensor_type.HasField("shape") and all(dim.dim_value > 0 for dim in dims):
                self._shapes[value.name] = [dim.dim_value for dim in dims]
        for tensor in graph.initializer:
            self._shapes.setdefault(tensor.name, tensor.dims)

    def graph(self, graph: onnx.GraphProto, types: Types, known: Mapping[str, Any], spent: str | None) -> str | None:
        """Guard a graph; return the name of the number of rounds after it."""
        types, known = dict(types), dict(known)
        inputs = {value.name for value in graph.input}
        for value in (*graph.value_info, *graph.output, *graph.input):
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
                types[value.name] = value.type.tensor_type.elem_type
        for tensor in graph.initializer:
            types[tensor.name] = tensor.data_type
            if tensor.name not in inputs and tensor.data_type in _INTEGERS:
                known[tensor.name] = tensor
        before = list(graph.node)
        del graph.node[:]
        guarded_nodes: list[onnx.NodeProto] = []
        for node in before:
            self._nodes = guarded_nodes
            if not isinstance(node.op_type, str) or not isinstance(node.domain, str):
                raise GraphError(
                    f"the operator {node.op_type!r} of the domain {node.domain!r} is none",
                    reason="its name is no UTF-8", way_out="export the model again; the file may be damaged",
                )  # fmt: skip
            if node.op_type == "Constant" or node.op_type.encode() in _FORMS or any(subgraphs(node)):
                _check_form(node, self.opset)
            self._empty_names(node)
            _check_range(node)
            self._sizes_asked(node)
            if node.op_type == "Constant" and not node.domain:
                held = next((a.t for a in node.attribute if a.name == "value"), None)
                if held is not None:
                    types[node.output[0]], known[node.output[0]] = held.data_type, held
            outputs, arguments = list(node.output), given_types(node, types)
            within = {**types, **arguments} if arguments else types
            if node.op_type in ("Div", "Mod") and node.domain in ("", "ai.onnx"):
                self._division(node, types, known)
            elif node.op_type.startswith("Sequence") and node.domain in ("", "ai.onnx"):
                self._position(node, known)
                for inner in subgraphs(node):
                    self.graph(inner, within, known, None)
            elif spent is not None and _loops([node]):
                spent = self._nested(node, within, known, spent, guarded_nodes)
            else:
                for inner in subgraphs(node):
                    self.graph(inner, within, known, None)
            guarded_nodes.append(node)
            results = result_types(node, types, self.opset, self._foreign, self._results)
            self._has_custom |= results is None
            for name, kind in zip(outputs, results or (), strict=False):
                if kind is not None:
                    types.setdefault(name, kind)
        graph.node.extend(guarded_nodes)
        self._results = [types.get(value.name) for value in graph.output]
        return spent

    # Divisions

    def _division(self, node: onnx.NodeProto, types: Types, known: Mapping[str, Any]) -> None:
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
        if kind not in _INTEGERS or self.opset < _OLDEST or _harmless(known.get(b)):
            return
        self.guards += 1
        text = node.name or node.output[0]
        # onnxruntime compares few types; of the wide ones all.
        wide = b if kind in _LEAST else self._emit("Cast", [b], to=_KIND.INT64)
        compared = kind if kind in _LEAST else _KIND.INT64
        bad = self._emit("Equal", [wide, self._constant(np.array(0), compared)])
        if kind in _LEAST:
            negated = self._emit("Equal", [b, self._constant(np.array(-1), kind)])
            if node.op_type == "Div":
                least = self._emit("Equal", [a, self._constant(np.array(_LEAST[kind]), kind)])
                bad = self._emit("Or", [bad, self._emit("And", [negated, least])])
            else:
                # Nothing is left over by one as by minus one.
                b = self._emit("Where", [negated, self._constant(np.array(1), kind), b])
        wrong = self._emit("Cast", [self._flat(bad)], to=_KIND.INT32)
        # There may be no division at all, and nothing is the greatest of nothing.
        wrong = self._emit("Concat", [wrong, self._constant(np.zeros(1), _KIND.INT32)], axis=0)
        index = self._emit("Cast", [self._emit("ReduceMax", [wrong], keepdims=0)], to=_KIND.INT64)
        node.input[1] = self._emit("Gather", [self._row(b), index], called=f"{_DIVISION} before {node.op_type} {text}")

    # Empty names

    def _empty_names(self, node: onnx.NodeProto) -> None:
        if node.domain not in ("", "ai.onnx"):
            return
        if node.op_type == "LayerNormalization" and node.input and not node.input[-1]:
            while node.input and not node.input[-1]:
                node.input.pop()
            self.guards += 1
        elif "" in node.input and _takes_any_number(node, self.opset):
            raise GraphError(
                f"an operand of {node.op_type} {node.name!r} is left out",
                reason="all of its operands are needed, and onnxruntime's process would end",
                way_out="export the model again; the file may be damaged",
            )

    # Sequences

    def _position(self, node: onnx.NodeProto, known: Mapping[str, Any]) -> None:
        schema = schema_of(node.op_type, "", self.opset)
        names = [] if schema is None else [operand.name for operand in schema.inputs]
        at = names.index("position") if "position" in names else len(node.input)
        position = node.input[at] if at < len(node.input) else ""
        stored = known.get(position)
        if not position or (stored is not None and math.prod(stored.dims) == 1):
            return
        self.guards += 1
        called = f"{_POSITION} before {node.op_type} {node.name or node.output[0]}"
        node.input[at] = self._emit("Reshape", [position, self._sizes()], called=called)

    # Sizes

    def _sizes_asked(self, node: onnx.NodeProto) -> None:
        if self.opset < _OLDEST or node.op_type.encode() not in DEMANDING:
            return
        checks = []
        for demand in demands_of(node, {name: len(shape) for name, shape in self._shapes.items()}):
            operand = node.input[demand.operand]
            known = self._shapes.get(operand)
            if known is not None and demand.holds(known):
                continue
            called = f"{_SIZES} {demand.operand} of {node.op_type} {node.name or node.output[0]}"
            if node.op_type == "Scan":
                checks.append((demand, operand, called))
                continue
            self.guards += 1
            shape = self._emit("Shape", [operand])
            if demand.is_number:
                met = self._emit("Cast", [operand], to=_KIND.BOOL)
            elif demand.rank is None:
                met = self._emit("Cast", [self._asked(shape, demand)], to=_KIND.BOOL)
            else:
                rank = self._emit("Cast", [self._emit("Size", [shape])], to=_KIND.DOUBLE)
                met = self._emit("Less", [self._constant(np.array([demand.rank - 1]), _KIND.DOUBLE), rank])
            # Not a copy: onnxruntime gives a reshaped value the memory that it had.
            node.input[demand.operand] = self._emit("Reshape", [operand, self._unless(shape, met, called)])
        if node.op_type == "Scan" and node.domain in ("", "ai.onnx") and self.opset >= _SCANS_AXES:
            self._scan(node, checks)

    def _scan(self, node: onnx.NodeProto, checks: Sequence[tuple[Demand, str, str]]) -> None:
        """Let a Scan carry one value more, whose making fails: its operands keep the ranks that are known of them."""
        body, results = next(iter(subgraphs(node)), None), [*stacked(node)]
        if body is None or not (checks or results):
            return
        self.guards += 1
        called = f"of Scan {node.name or node.output[0]}"
        carried = self._constant(np.array(0), _KIND.INT64)
        for demand, operand, text in checks:
            sizes = self._asked(self._emit("Shape", [operand]), demand)
            carried = self._unless(carried, self._emit("Cast", [sizes], to=_KIND.BOOL), text)
        outside, self._nodes, within = self._nodes, [], self._name()
        after = within
        for at, axis in results:
            if at < len(body.output):
                sizes = self._stacked_sizes(body.output[at].name, axis)
                after = self._unless(after, self._emit("Cast", [sizes], to=_KIND.BOOL), f"{_STACKED} {at} {called}")
        after = self._emit("Identity", [after])
        body.node.extend(self._nodes)
        body.input.insert(0, _scalar(within, _KIND.INT64))
        body.output.insert(0, _scalar(after, _KIND.INT64))
        self._nodes = outside
        node.input.insert(0, carried)
        node.output.insert(0, self._name())

    def _stacked_sizes(self, result: str, axis: int) -> str:
        """The sizes of a result behind its axis once it is stacked; all of them where that becomes the second axis.

        There, the first and the second axis change places, and onnxruntime moves either. Nothing is moved to the first.
        """
        sizes = self._emit("Shape", [result])
        padded = self._emit("Concat", [sizes, self._sizes(1)], axis=0)
        if axis > 0:
            return self._since(padded, axis if axis > 1 else 0)
        if self.opset < _SLICES_FED:
            return padded
        rank = self._flat(self._emit("Size", [sizes]))
        place = self._emit("Add", [rank, self._sizes(axis + 1)])
        is_first = self._emit("Cast", [self._emit("Equal", [place, self._sizes(0)])], to=_KIND.INT64)
        place = self._emit("Add", [place, self._emit("Mul", [is_first, rank])])
        is_second = self._emit("Cast", [self._emit("Equal", [place, self._sizes(1)])], to=_KIND.INT64)
        place = self._emit("Sub", [place, is_second])
        return self._emit("Slice", [padded, place, self._sizes(_LARGEST)])

    def _unless(self, value: str, met: str, called: str) -> str:
        """The same value, behind a node of this name that fails where one of these is not true."""
        wrong = self._flat(self._emit("Cast", [self._emit("Not", [met])], to=_KIND.INT32))
        index = self._emit("Cast", [self._emit("ReduceMax", [wrong], keepdims=0)], to=_KIND.INT64)
        return self._emit("Gather", [self._row(value), index], called=called)

    def _asked(self, shape: str, demand: Demand) -> str:
        """The sizes that a demand is about, of which an operand may lack some."""
        axes = demand.axes
        if axes is None:
            sizes = self._emit("Concat", [shape, self._sizes(1)], axis=0)
            return self._since(sizes, demand.since) if demand.since else sizes
        if axes[0] >= 0:
            shape = self._emit("Concat", [shape, self._sizes(*[1] * (axes[-1] + 1))], axis=0)
        return self._emit("Gather", [shape, self._sizes(*axes)])

    def _since(self, sizes: str, axis: int) -> str:
        """The sizes from an axis on."""
        if self.opset >= _SLICES_FED:
            return self._emit("Slice", [sizes, self._sizes(axis), self._sizes(_LARGEST)])
        behind = self._emit("Slice", [sizes])
        for name, number in (("starts", axis), ("ends", _LARGEST)):
            self._nodes[-1].attribute.add(name=name, type=onnx.AttributeProto.INTS, ints=[number])
        return behind

    # Loops

    def zero(self, graph: onnx.GraphProto) -> str:
        """The name of a zero, put into a graph."""
        name = self._name()
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), name))
        return name

    def _nested(
        self, node: onnx.NodeProto, types: Types, known: Mapping[str, Any], spent: str, emitted: list[onnx.NodeProto]
    ) -> str:
        """Hand the number of rounds into a node that has loops inside, and out of it."""
        after, inner = self._name(), [*subgraphs(node)]
        if node.op_type == "Loop":
            (body,) = inner
            while len(node.input) < 2:
                node.input.append("")
            node.input.insert(2, spent)
            within = self._name()
            body.input.insert(2, _scalar(within, _KIND.INT64))
            self._body_of_loop(node, body, types, known, within)
            node.output.insert(0, after)
            self.guards += 1
        elif node.op_type == "If":
            for branch in inner:
                rounds = self.graph(branch, types, known, spent)
                self._nodes = []
                counter = self._emit("Identity", [str(rounds)])
                branch.node.extend(self._nodes)
                branch.output.append(_scalar(counter, _KIND.INT64))
            node.output.append(after)
        elif node.op_type == "Scan" and self.opset >= 9:
            (body,) = inner
            node.input.insert(0, spent)
            within = self._name()
            body.input.insert(0, _scalar(within, _KIND.INT64))
            rounds = self.graph(body, types, known, within)
            self._nodes = []
            counter = self._emit("Identity", [str(rounds)])
            body.node.extend(self._nodes)
            body.output.insert(0, _scalar(counter, _KIND.INT64))
            node.output.insert(0, after)
        else:
            raise GraphError(
                f"{node.op_type} {node.name!r} has loops inside", reason="how often they run cannot be bounded"
            )
        self._nodes = emitted
        return after

    def _body_of_loop(
        self, node: onnx.NodeProto, body: onnx.GraphProto, types: Types, known: Mapping[str, Any], within: str
    ) -> None:
        rounds = self.graph(body, types, known, within)
        self._nodes = []
        more = self._emit("Add", [str(rounds), self._constant(np.array(1), _KIND.INT64)])
        kind, compared = (
            (_KIND.INT64, more) if self.opset >= 9 else (_KIND.DOUBLE, self._emit("Cast", [more], to=_KIND.DOUBLE))
        )
        beyond = self._emit("Greater", [compared, self._constant(np.array(loop_limit()), kind)])
        index = self._emit("Cast", [beyond], to=_KIND.INT64)
        go = self._flat(body.output[0].name)
        go = self._emit("Gather", [go, index], called=f"{_ROUNDS} {node.name or node.output[0] if node.output else ''}")
        body.node.extend(self._nodes)
        body.output[0].CopyFrom(_scalar(go, _KIND.BOOL))
        body.output.insert(1, _scalar(more, _KIND.INT64))

    # Nodes

    def _name(self) -> str:
        self._count += 1
        return f"ontrain/guard/{self._count}"

    def _emit(self, op_type: str, inputs: list[str], called: str = "", **attributes: int) -> str:
        name = self._name()
        node = onnx.NodeProto(op_type=op_type, name=called or name, input=inputs, output=[name])
        for key, value in attributes.items():
            node.attribute.add(name=key, type=onnx.AttributeProto.INT, i=value)
        self._nodes.append(node)
        return name

    def _constant(self, array: np.ndarray[Any, Any], kind: int) -> str:
        name = self._name()
        dtype = numpy_helper.to_array(onnx.TensorProto(data_type=kind, dims=[0])).dtype
        node = onnx.NodeProto(op_type="Constant", name=name, output=[name])
        held = node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
        held.t.CopyFrom(numpy_helper.from_array(array.astype(dtype), name))
        self._nodes.append(node)
        return name

    def _sizes(self, *sizes: int) -> str:
        return self._constant(np.array(sizes), _KIND.INT64)

    def _row(self, value: str) -> str:
        """The value as the one entry along a new first axis. To a Reshape, a size of 0 would mean another size."""
        if self.opset >= _AXES_FED:
            return self._emit("Unsqueeze", [value, self._sizes(0)])
        row = self._emit("Unsqueeze", [value])
        self._nodes[-1].attribute.add(name="axes", type=onnx.AttributeProto.INTS, ints=[0])
        return row

    def _flat(self, value: str) -> str:
        return self._emit("Reshape", [value, self._sizes(-1)])


def _check_range(node: onnx.NodeProto) -> None:
    """Refuse draws from a range or of a deviation that there are none of: onnxruntime asserts that there are."""
    if node.domain not in ("", "ai.onnx") or not node.op_type.startswith("Random"):
        return
    told = {"low": 0.0, "high": 1.0, "scale": 1.0} | {a.name: a.f for a in node.attribute}
    is_normal = node.op_type.startswith("RandomNormal")
    if told["scale"] > 0 if is_normal else told["low"] <= told["high"]:
        return
    said = f"a deviation of {told['scale']}" if is_normal else f"numbers from {told['low']} to {told['high']}"
    raise GraphError(
        f"{node.op_type} {node.name!r} draws {said}",
        reason="there are none, and onnxruntime's process would end",
        way_out="export the model again; the file may be damaged",
    )


def _takes_any_number(node: onnx.NodeProto, opset: int) -> bool:
    schema = schema_of(node.op_type, "", opset)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return schema is not None and bool(schema.inputs) and schema.inputs[0].option == variadic


def _harmless(tensor: onnx.TensorProto | None) -> bool:
    """Whether a constant divisor has neither zero nor minus one in it."""
    if tensor is None or tensor.data_location == _KIND.EXTERNAL:
        return False
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return False
    return bool(np.all(array != 0) and np.all(array != -1))


def _scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = kind
    info.type.tensor_type.shape.SetInParent()
    return info
