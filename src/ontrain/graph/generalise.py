"""One graph for all sizes, read off from the graphs of a few: so that gradient rules need to know numbers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError, OntrainError
from ontrain.graph.builder import Builder
from ontrain.graph.origins import Origins
from ontrain.graph.source import describe, source_of
from ontrain.graph.subgraphs import live_nodes, subgraphs
from ontrain.graph.varying_constants import DiffersError, VaryingConstants, dimension
from ontrain.operators import OPSET, static_dims
from ontrain.sizes import Sizes, evaluated, fit, sample_sizes

__all__ = ["all_sizes", "generalise", "points_of", "shapes_at", "symbols_of", "taken_sizes", "tried_sizes"]

_WAY_OUT = "give this dimension a fixed size in the model, or export with another formulation"
_SMALL = 8
"""Up to how many whole numbers in a constant are taken for dimensions, axes and the like."""


def generalise(model: ir.Model, make: Callable[[Sizes], ir.Model]) -> ir.Model:
    """Return a graph with the symbolic dimensions of `model` that computes what `make` does at any sizes.

        make(batch=7):   Reshape(x, [7, 64])   Div(sum, 7.0)
        make(batch=11):  Reshape(x, [11, 64])  Div(sum, 11.0)
    →   Reshape(x, [-1, 64])   Div(sum, Cast(Shape(images)[0]))

    `make` is called at two sizes of each symbol, in all combinations, and at two more to check the result by.
    The graphs must consist of the same nodes. Numbers in constants that differ are polynomials in the sizes or their
    reciprocals; a constant of varying shape repeats along an axis, counts along it, or is computed by `model` from
    shapes.

    Args:
        model: graph whose inputs have symbolic dimensions; left untouched.
        make: given the size of each symbol, a model of concrete shapes in plain operators; inputs by the same names
            in front. A dimension "64*batch" is 64 times the dimension "batch", and comes with its own size.

    Raises:
        GraphError: the graphs differ in more than that; names the node and the line of the user's model.
    """
    points = points_of(model)
    graphs = [_made(model, make, point) for point in points[:-1]]
    try:
        graphs.append(_made(model, make, points[-1]))
    except OntrainError:
        if len(points) == 1:
            raise
        # More positions, say, than the model has. What fails at all sizes has failed before.
        points = points[:-1]
    return _Walk(graphs, points, Origins(model, points)).write()


def _made(model: ir.Model, make: Callable[[Sizes], ir.Model], point: Sizes) -> ir.Graph:
    with tried_sizes(point):
        return make(all_sizes(model, point)).graph


@contextmanager
def tried_sizes(point: Sizes) -> Iterator[None]:
    """Let an error about shapes say at which sizes of the open dimensions it was met, and how to close one."""
    try:
        yield
    except GraphError as error:
        if not point or error.way_out is not None:
            raise
        tried = ", ".join(f"{name} = {size}" for name, size in point.items())
        raise GraphError(
            error.problem, node=error.node, source=error.source,
            reason=f"{error.reason + '; ' if error.reason else ''}the file leaves sizes open, and this is {tried}",
            way_out="close a dimension that does not vary: model.graph.input[0].type.tensor_type.shape.dim[2].dim_value"
            " = 28, say",
        ) from error  # fmt: skip


def points_of(model: ir.Model) -> list[dict[str, int]]:
    """Return sizes of the symbolic dimensions of a model's inputs to look at, see `sample_sizes`."""
    return sample_sizes(symbols_of(model), taken_sizes(model.graph))


def symbols_of(model: ir.Model) -> list[str]:
    """Return the symbols of a model's inputs, in their order; "64*batch" is none, being made of another."""
    names = _dimensions(model)
    plain = {name: 1 for name in names if name.isidentifier()}
    return [n for n in names if n in plain or evaluated(n, plain) is None]


def all_sizes(model: ir.Model, point: Sizes) -> dict[str, int]:
    """Return the sizes of a point, and those of dimensions that are stated in terms of others ("64*batch")."""
    sizes = {name: evaluated(name, point) for name in _dimensions(model)}
    return {name: size for name, size in sizes.items() if size is not None}


def shapes_at(model: ir.Model, sizes: Sizes) -> dict[str, list[int]]:
    """Return the shapes of the inputs where dimensions have these sizes."""
    inputs = model.graph.inputs
    return {v.name or "": [d if isinstance(d, int) else sizes[str(d.value)] for d in v.shape or ()] for v in inputs}


def _dimensions(model: ir.Model) -> list[str]:
    dims = (dim for value in model.graph.inputs for dim in value.shape or () if not isinstance(dim, int))
    return list(dict.fromkeys(str(dim.value) for dim in dims))


def taken_sizes(graph: ir.Graph) -> set[int]:
    """Return the numbers that mean something in the graph, so that no size is confused with them."""
    numbers = {d for v in graph.inputs for d in v.shape or () if isinstance(d, int)}
    for node in graph:
        numbers.update(d for v in node.outputs for d in v.shape or () if isinstance(d, int))
    for value in graph.initializers.values():
        if value.const_value is not None and value.const_value.size <= _SMALL and value.dtype == ir.DataType.INT64:
            numbers.update(int(n) for n in value.const_value.numpy().flat)
    return numbers


class _Walk:
    """Walks the graphs side by side and writes the general one.

    Args:
        graphs: of concrete shapes, one for each of the points.
        points: see `sample_sizes`.
        origins: knows what constants were made of.
    """

    def __init__(self, graphs: Sequence[ir.Graph], points: Sequence[Sizes], origins: Origins) -> None:
        self._graphs, self._points = graphs, points
        inputs = [self._input(*values) for values in zip(*(g.inputs for g in graphs), strict=True)]
        self._graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name=graphs[0].name or "graph")
        self._op = Builder(self._graph)
        self._constants = VaryingConstants(self._op, points, origins)
        self._new = dict(zip(graphs[0].inputs, inputs, strict=True))
        self._first = [dict(zip(g.inputs, graphs[0].inputs, strict=True)) for g in graphs]
        """For each graph, which value of the first graph a value of it is."""

    def write(self) -> ir.Model:
        """Return the general model; names, roles and updates are those of the first graph."""
        lists = [live_nodes(graph) for graph in self._graphs]
        if len({len(nodes) for nodes in lists}) > 1:
            raise GraphError(
                "the graph depends on its sizes in more than numbers",
                reason=f"at different sizes it has {' and '.join(str(len(nodes)) for nodes in lists)} nodes",
                way_out=_WAY_OUT,
            )
        for nodes in zip(*lists, strict=True):
            try:
                self._node(nodes)
            except DiffersError as difference:
                raise GraphError(
                    f"{nodes[0].op_type} cannot be written for all sizes", node=describe(nodes[0]),
                    source=source_of(nodes[0]), reason=str(difference), way_out=_WAY_OUT,
                ) from difference  # fmt: skip
        for old in self._graphs[0].outputs:
            value = self._new[old]
            if value.is_graph_input() or any(value is output for output in self._graph.outputs):
                value = self._op.identity(value)
            value.metadata_props.update(old.metadata_props)
            self._graph.outputs.append(value)
        for old, value in zip(self._graphs[0].outputs, self._graph.outputs, strict=True):
            value.name = old.name
        return ir.Model(self._graph, ir_version=10, producer_name="ontrain")

    def _input(self, *values: ir.Value) -> ir.Value:
        general = ir.Value(name=values[0].name, shape=self._shape(values), type=values[0].type)
        general.metadata_props.update(values[0].metadata_props)
        return general

    def _shape(self, values: Sequence[ir.Value]) -> ir.Shape:
        dims = zip(*(static_dims(v) for v in values), strict=True)
        return ir.Shape([dimension(fit(sizes, self._points)) for sizes in dims])

    def _node(self, nodes: Sequence[ir.Node]) -> None:
        first = nodes[0]
        for other in nodes[1:]:
            if _kind(other) != _kind(first):
                raise DiffersError(f"at another size {other.op_type} stands in its place")
            if subgraphs(other) or _attributes(other) != _attributes(first):
                raise DiffersError("its attributes depend on the size, or it holds a branch or loop")
        inputs = [self._operand(nodes, i) for i in range(len(first.inputs))]
        node = ir.Node(first.domain, first.op_type, inputs, first.attributes.values(), num_outputs=len(first.outputs))
        node.metadata_props.update(first.metadata_props)
        for new, *olds in zip(node.outputs, *(node_at_size.outputs for node_at_size in nodes), strict=True):
            new.type, new.shape = olds[0].type, self._shape(olds)
            new.name = self._op.fresh(olds[0].name or first.op_type.lower())
            self._new[olds[0]] = new
            for same, old in zip(self._first, olds, strict=True):
                same[old] = olds[0]
        node.name = node.outputs[0].name
        self._graph.append(node)

    def _operand(self, nodes: Sequence[ir.Node], index: int) -> ir.Value | None:
        operands = [v for v in (node.inputs[index] for node in nodes) if v is not None]
        if len(operands) != len(nodes):
            return None
        known = [v.const_value.numpy() for v in operands if v.const_value is not None]
        if not known:
            if any(same.get(v) is not operands[0] for same, v in zip(self._first, operands, strict=True)):
                raise DiffersError(f"operand {index} comes from another node at another size")
            return self._new[operands[0]]
        if len(known) != len(operands):
            raise DiffersError(f"operand {index} is constant at some sizes only")
        if all(a.shape == known[0].shape and np.array_equal(a, known[0], equal_nan=a.dtype.kind == "f") for a in known):
            return self._op.const(known[0])
        target = self._target(nodes) if nodes[0].op_type == "Reshape" and index == 1 else None
        return target if target is not None else self._constants.write(known)

    def _target(self, nodes: Sequence[ir.Node]) -> ir.Value | None:
        """The target of a Reshape without arithmetic: 0 where a dimension is kept, -1 for the one that is left."""
        x, shapes = nodes[0].inputs[0], [static_dims(node.outputs[0]) for node in nodes]
        if "allowzero" in nodes[0].attributes or any(0 in shape for shape in shapes):
            return None
        have = list(self._new[x].shape or ()) if x in self._new else []
        target: list[int] = []
        for i, sizes in enumerate(zip(*shapes, strict=True)):
            dim = dimension(fit(sizes, self._points))
            stays = i < len(have) and dim is not None and have[i] == dim
            target.append(dim if isinstance(dim, int) else 0 if stays else -1)
        return self._op.const(np.array(target, np.int64)) if target.count(-1) <= 1 else None


def _kind(node: ir.Node) -> tuple[str, str, int, int]:
    return node.domain, node.op_type, len(node.inputs), len(node.outputs)


def _attributes(node: ir.Node) -> dict[str, Any]:
    values = {}
    for name, attr in node.attributes.items():
        value = attr.value.numpy().tolist() if attr.type == ir.AttributeType.TENSOR else attr.value
        values[name] = list(value) if isinstance(value, tuple | list) else value
    return values
