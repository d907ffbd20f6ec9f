"""The one way nodes are made: typed at once, folded at once, with the source line of what they derive from."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, cast, overload

import numpy as np
import onnx_ir as ir

from ontrain.graph.arithmetic import arithmetic_by
from ontrain.graph.empty_reshape import empty_target
from ontrain.graph.fold import KEEPS_FILLS, evaluate, foldable
from ontrain.graph.infer import infer_node
from ontrain.graph.subgraphs import subgraphs
from ontrain.operators import (
    DOMAIN,
    Attribute,
    Constant,
    Emit,
    Operand,
    Several,
    Value,
    is_float,
    schema_of,
    static_dims,
)

__all__ = ["Builder", "content_of", "new_attribute"]

Results = Value | tuple[Value, ...]
"""The output of a node, or a tuple of several."""
_CONTENT = "ontrain.content"
"""Among what is noted of a constant: its tensor, and what equal constants have in common."""


class Builder:
    """Appends nodes to a graph: `op.MatMul(a, b)`, `op.Split(x, outputs=3)`, `op.composite("GeluGrad", dy, x)`.

    `parent` is the builder of the graph around this one, whose names are not used again. Python numbers among the
    operands become constants of the dtype that the operator's schema asks for. A node whose
    inputs are all constant is evaluated on the spot; `Shape` of a static shape is a constant. Inside
    `with op.arithmetic():` values also take `+ - * /` and unary minus. `discarded` counts nodes taken out again.
    """

    def __init__(self, graph: ir.Graph, *, fold: bool = True, parent: Builder | None = None) -> None:
        self.graph = graph
        self.nodes: list[ir.Node] = []
        self._fold = fold
        self._keeps_fills: bool = parent._keeps_fills if parent is not None else graph.meta.get(KEEPS_FILLS, False)
        self._constants: dict[Hashable, Value] = {}
        self._count = 0
        self.discarded = 0
        self._numbers: dict[str, int] = parent._numbers if parent is not None else {}
        self._taken: set[str] = parent._taken if parent is not None else _names(graph)

    def __getattr__(self, op_type: str) -> Emit:
        if op_type.startswith("_") or not op_type[0].isupper():
            raise AttributeError(op_type)

        def emit(*operands: Operand, outputs: int = 1, **attributes: Attribute) -> Any:
            return self.call("", op_type, operands, attributes, outputs)

        return emit

    @overload
    def composite(
        self, op_type: str, *operands: Operand, outputs: Literal[1] = 1, **attributes: Attribute
    ) -> Value: ...
    @overload
    def composite(
        self, op_type: str, *operands: Operand, outputs: Several, **attributes: Attribute
    ) -> tuple[Value, ...]: ...
    @overload
    def composite(self, op_type: str, *operands: Operand, outputs: int, **attributes: Attribute) -> Results: ...

    def composite(self, op_type: str, *operands: Operand, outputs: int = 1, **attributes: Attribute) -> Results:
        """Append a composite operator of the ontrain domain."""
        return self.call(DOMAIN, op_type, operands, attributes, outputs)

    @overload
    def call(
        self, domain: str, op_type: str, operands: Sequence[Operand], attributes: Mapping[str, Attribute],
        outputs: Literal[1] = 1,
    ) -> Value: ...  # fmt: skip
    @overload
    def call(
        self, domain: str, op_type: str, operands: Sequence[Operand], attributes: Mapping[str, Attribute],
        outputs: Several,
    ) -> tuple[Value, ...]: ...  # fmt: skip
    @overload
    def call(
        self, domain: str, op_type: str, operands: Sequence[Operand], attributes: Mapping[str, Attribute], outputs: int
    ) -> Results: ...

    def call(
        self, domain: str, op_type: str, operands: Sequence[Operand], attributes: Mapping[str, Attribute],
        outputs: int = 1,
    ) -> Results:  # fmt: skip
        """Append one node and return its output, or a tuple of them when `outputs` is above one."""
        inputs = self._inputs(domain, op_type, operands)
        attrs = [new_attribute(name, value) for name, value in attributes.items() if value is not None]
        node = ir.Node(domain, op_type, inputs, attrs, num_outputs=outputs)
        return self.add(node)

    def add(self, node: ir.Node, names: Sequence[str | None] = ()) -> Results:
        """Append a ready node: infer its outputs, fold it if it is constant, name the outputs."""
        target = empty_target(node)
        if target is not None:
            node.replace_input_with(1, self.const(target))
            node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)
        if self._fold:
            known = self._known(node)
            if known is not None:
                return known
        for value, inferred in zip(node.outputs, infer_node(node), strict=False):
            if inferred is not None:
                value.dtype, value.shape = inferred
        if self._fold and foldable(node, keeps_fills=self._keeps_fills):
            constants = tuple(self.const(array) for array in evaluate(node))
            return constants[0] if len(constants) == 1 else constants
        return self._append(node, names)

    def again(self, node: ir.Node, like: Sequence[ir.Value], names: Sequence[str | None] = ()) -> Results:
        """Append a ready node whose outputs are typed as those of another graph, of the same node on the same types."""
        for value, old in zip(node.outputs, like, strict=True):
            value.type, value.shape = old.type, old.shape
        return self._append(node, names)

    def identity(self, value: ir.Value) -> Value:
        """Append an Identity that is not folded: a value of this graph's own for a constant, an input or another's."""
        node = ir.Node("", "Identity", [value], num_outputs=1)
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        return cast(Value, self._append(node))

    def discard(self, start: int) -> None:
        """Take the nodes from position `start` of `nodes` on out of the graph again."""
        self.discarded += len(self.nodes) - start
        self.graph.remove(self.nodes[start:], safe=True)
        del self.nodes[start:]

    def _append(self, node: ir.Node, names: Sequence[str | None] = ()) -> Results:
        for i, value in enumerate(node.outputs):
            wish = names[i] if i < len(names) else None
            value.name = self.fresh(wish or f"{node.op_type.lower()}_{self._count}")
        node.name = node.outputs[0].name
        self._count += 1
        self.graph.append(node)
        self.nodes.append(node)
        outputs = cast(tuple[Value, ...], node.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def const(self, value: Constant, dtype: ir.DataType | None = None) -> Value:
        """Return a constant (an initializer with a value); equal constants are made once."""
        array = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype.numpy())
        if dtype is None and not isinstance(value, np.ndarray | np.generic):
            array = array.astype(np.float32 if array.dtype.kind == "f" else array.dtype)
        return self._kept(array, content_of(array))

    def constant_like(self, value: ir.Value) -> Value:
        """Return a constant of another graph as one of this graph's."""
        assert value.const_value is not None
        tensor, content = value.meta.get(_CONTENT, (None, None))
        array = np.asarray(value.const_value.numpy())
        return self._kept(array, content if tensor is value.const_value else content_of(array))

    def _kept(self, array: np.ndarray[Any, Any], key: Hashable) -> Value:
        if key not in self._constants:
            # Not ir.tensor: it asks protocol after protocol what it was given.
            tensor = ir.Tensor(array, name=self.fresh(f"const_{len(self._constants)}"))
            constant = ir.Value(
                name=tensor.name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            constant.meta[_CONTENT] = tensor, key  # graphs made of this one need not read a large constant again
            self.graph.register_initializer(constant)
            self._constants[key] = cast(Value, constant)
        return self._constants[key]

    def fresh(self, wish: str) -> str:
        """Return `wish`, or `wish` with a number behind it if the name is taken."""
        name = wish
        while name in self._taken:
            # Counted on, for thousands may wish for one name.
            self._numbers[wish] = n = self._numbers.get(wish, 0) + 1
            name = f"{wish}_{n}"
        self._taken.add(name)
        return name

    def shape_of(self, value: ir.Value) -> Value:
        """Return the shape as an int64 vector: a constant where it is static, else a Shape node."""
        if value.shape is not None and value.shape.is_static():
            return self.const(np.array(static_dims(value), np.int64))
        return self.Shape(value)

    def arithmetic(self) -> AbstractContextManager[None]:
        """Let values be combined by `+ - * /` and unary minus, each making a node here, in this thread alone."""
        return arithmetic_by(self)

    def _known(self, node: ir.Node) -> Value | None:
        """Shape, Size and same-dtype Cast of a typed value need no node."""
        if node.domain or not node.inputs or node.inputs[0] is None:
            return None
        x = node.inputs[0]
        if node.op_type == "Cast" and x.dtype is not None and node.attributes["to"].value == x.dtype.value:
            return cast(Value, x)
        if node.op_type not in ("Shape", "Size") or x.shape is None:
            return None
        rank = len(x.shape)
        attributes = {name: attr.value for name, attr in node.attributes.items()}
        start, end = attributes.get("start", 0), attributes.get("end", rank)
        wanted = list(x.shape)[start:end] if node.op_type == "Shape" else list(x.shape)
        if not all(isinstance(d, int) for d in wanted):
            return None
        array = np.array(wanted, np.int64)
        return self.const(array if node.op_type == "Shape" else np.array(array.prod(), np.int64))

    def _inputs(self, domain: str, op_type: str, operands: Sequence[Operand]) -> list[ir.Value | None]:
        values: list[ir.Value | None] = []
        for i, operand in enumerate(operands):
            if operand is None or isinstance(operand, ir.Value):
                values.append(operand)
            elif isinstance(operand, np.ndarray):
                values.append(self.const(operand))
            else:
                values.append(self.const(operand, self._wanted_dtype(domain, op_type, i, operands)))
        while values and values[-1] is None:
            values.pop()
        return values

    def _wanted_dtype(self, domain: str, op_type: str, index: int, operands: Sequence[Operand]) -> ir.DataType | None:
        """The dtype for a Python number: that of another operand of its type variable, or the schema's only one."""
        values = [v for v in operands if isinstance(v, ir.Value)]
        schema = schema_of(op_type, domain)
        if schema is None:
            return next((v.dtype for v in values if is_float(v)), None)
        formal = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(operands))]
        wanted = formal[index].type_str
        for other, operand in zip(formal, operands, strict=True):
            if other.type_str == wanted and isinstance(operand, ir.Value):
                return operand.dtype
        if wanted.startswith("tensor("):
            return ir.DataType[wanted[7:-1].upper()] if wanted != "tensor(bool)" else ir.DataType.BOOL
        if isinstance(operands[index], float):
            return None
        return ir.DataType.BOOL if isinstance(operands[index], bool) else ir.DataType.INT64


def content_of(array: np.ndarray[Any, Any]) -> Hashable:
    """Return what arrays of the same dtype, shape and numbers have in common, and no others."""
    held = array.tobytes() if array.size <= 64 else hashlib.blake2b(array.tobytes()).digest()
    return array.dtype, array.shape, held  # the name of a dtype of `ml_dtypes` is its size alone


def _names(graph: ir.Graph) -> set[str]:
    """The names of all values of a graph and of the graphs inside it."""
    names = {v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name}
    for node in graph:
        names.update(v.name for v in node.outputs if v.name)
        for inner in subgraphs(node):
            names |= _names(inner)
    return names


def new_attribute(name: str, value: Attribute) -> ir.Attr:
    """Return an attribute; the usual kinds directly, for onnx-ir's own conversion tries a dozen protocols on each."""
    if type(value) is int:
        return ir.AttrInt64(name, value)
    if type(value) is float:
        return ir.AttrFloat32(name, value)
    if type(value) is str:
        return ir.AttrString(name, value)
    if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
        return ir.AttrInt64s(name, value)
    return ir.convenience.convert_attribute(name, value)
