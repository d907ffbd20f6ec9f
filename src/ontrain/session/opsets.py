"""A graph written with the operators of another version of the standard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.errors import GraphError, OptionError
from ontrain.functions import expand, inline_all
from ontrain.graph import OPSET, Builder, all_nodes, describe, rebuild, source_of, static_dims
from ontrain.operators import form_of

__all__ = ["OLDEST", "check_opset", "import_opset", "with_operators_of"]

OLDEST = 12
"""The oldest opset that files are written at: the first with the losses, and what onnxruntime.training exported at."""

_FORMATS = {12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9}
"""The version of the file format that came with each opset; files stay readable for runtimes of that time."""


_Rewrite = Callable[[Builder, ir.Node, list[ir.Value | None]], list[ir.Value | None] | None]
_MEANT_ELSE: dict[str, tuple[int, _Rewrite]] = {}
"""Operators that need more than their attributes rearranged, and the opset from which they do not."""


def _meant_else(before: int, *op_types: str) -> Callable[[_Rewrite], _Rewrite]:
    def register(rewrite: _Rewrite) -> _Rewrite:
        _MEANT_ELSE.update(dict.fromkeys(op_types, (before, rewrite)))
        return rewrite

    return register


def check_opset(version: object) -> None:
    """Raise OptionError unless files can be written at this opset."""
    newest = onnx.defs.onnx_opset_version()
    if isinstance(version, bool) or not isinstance(version, int) or not OLDEST <= version <= newest:
        raise OptionError(f"opset {version!r} is asked for", way_out=f"choose one from {OLDEST} to {newest}")


def with_operators_of(model: ir.Model, version: int) -> ir.Model:
    """Return a model of standard operators in which each exists at `version`: newer ones are replaced by their bodies.

    Args:
        model: at ontrain's own opset, composites inlined, parameters still inputs; left untouched.
        version: what `check_opset` accepts.

    Raises:
        GraphError: an operator has no body; names the node.
    """
    changed = version < OPSET
    while changed:
        model, changed = _without_newer(model, version)
        model = inline_all(model) if changed else model  # a body may be written in composites
    return model


def import_opset(model: ir.Model, version: int) -> None:
    """Let a model whose operators all exist at `version` import that opset, in place.

    Operands that were attributes then become such again.

    Raises:
        GraphError: a form or dtype of an operator cannot be written at that opset; names the node.
    """
    for node in all_nodes(model.graph):
        form = form_of(node) if not node.domain else None
        if form is not None and form.since_version > max(version, OPSET):
            raise _refused(node, f"this form of it came with opset {form.since_version}")
    if version == OPSET:
        return
    for node in all_nodes(model.graph):
        _in_form_of(node, version)
    model.graph.opset_imports[""] = version
    model.ir_version = _FORMATS.get(version, 10)


def _without_newer(model: ir.Model, version: int) -> tuple[ir.Model, bool]:
    """Replace operators that `version` does not have, or has with another meaning."""
    changed = False

    def rewrite(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
        nonlocal changed
        if node.domain:
            raise _refused(node, f"it is of the domain {node.domain!r}, not of the standard")
        special = _MEANT_ELSE.get(node.op_type)
        if special is not None and version < special[0]:
            replaced = special[1](op, node, inputs)
            if replaced is not None:
                changed = True
                return replaced
        if _schema(node.op_type, version) is not None:
            return None
        outputs = expand(op, node, inputs)
        if outputs is None:
            raise _refused(node, f"the operator came with opset {_since(node.op_type)} and has no body")
        changed = True
        return outputs

    return rebuild(model, rewrite), changed


def _schema(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """The operator's schema at an opset; None if it came later."""
    try:
        return onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return None


def _since(op_type: str) -> int:
    """The opset that the operator came with."""
    return next((version for version in range(1, OPSET + 1) if _schema(op_type, version) is not None), OPSET)


def _in_form_of(node: ir.Node, version: int) -> None:
    """Change a node in place so that it fits the operator's schema at `version`."""
    now, then = form_of(node), _schema(node.op_type, version)
    assert now is not None and then is not None
    if now.since_version == then.since_version:
        return
    if node.op_type == "Pad" and len(node.inputs) > 3 and len(then.inputs) < 4:
        _all_axes(node)
    if node.op_type == "Split" and "num_outputs" not in then.attributes:
        _sizes(node)
    for index, formal in enumerate(now.inputs):
        if formal.name in then.attributes and formal.name not in now.attributes:
            _as_attribute(node, index, formal.name)
    if len(node.inputs) > then.max_input:
        raise _refused(node, f"at opset {version} it takes {then.max_input} inputs")
    for name, attribute in list(node.attributes.items()):
        if name in then.attributes:
            continue
        if not _is_default(now, name, attribute):
            raise _refused(node, f"at opset {version} it has no attribute {name!r}")
        del node.attributes[name]
    _check_types(node, then, version)


def _as_attribute(node: ir.Node, index: int, name: str) -> None:
    """Make a constant operand the attribute of the same name."""
    value = node.inputs[index] if index < len(node.inputs) else None
    noop = node.attributes.pop("noop_with_empty_axes", None)
    numbers: list[int] = []
    if value is not None:
        if value.const_value is None:
            raise _refused(node, f"its operand {name!r} is computed, and was an attribute then")
        numbers = [int(number) for number in value.const_value.numpy().reshape(-1)]
    if numbers:
        node.attributes[name] = ir.AttrInt64s(name, numbers)
    elif noop is not None and noop.as_int():
        raise _refused(node, "without axes it does nothing, and reduced all of them then")
    node.resize_inputs(min(index, len(node.inputs)))


def _all_axes(node: ir.Node) -> None:
    """Write the padding of some axes as that of all."""
    x, pads, axes = node.inputs[0], node.inputs[1], node.inputs[3]
    if axes is None or x is None or pads is None:
        return
    if axes.const_value is None or pads.const_value is None or x.shape is None:
        raise _refused(node, "its axes are computed, and all were padded then")
    rank, amounts = len(x.shape), pads.const_value.numpy().reshape(2, -1)
    full = np.zeros((2, rank), np.int64)
    for column, axis in enumerate(axes.const_value.numpy().reshape(-1)):
        full[:, int(axis)] = amounts[:, column]
    assert node.graph is not None
    copy = ir.Value(
        name=f"{node.name}.pads", shape=ir.Shape([2 * rank]), type=ir.TensorType(ir.DataType.INT64),
        const_value=ir.tensor(full.reshape(-1), name=f"{node.name}.pads"),
    )  # fmt: skip
    node.graph.register_initializer(copy)
    node.replace_input_with(1, copy)
    node.resize_inputs(3)


def _sizes(node: ir.Node) -> None:
    """Write a number of parts as their sizes; equal parts need none."""
    count = node.attributes.pop("num_outputs", None)
    if count is None:
        return
    sizes = [static_dims(value)[_axis(node, 0)] for value in node.outputs]
    if len(set(sizes)) > 1:
        raise _refused(node, "its parts are of unequal size, and their number was no attribute then")


def _is_default(schema: onnx.defs.OpSchema, name: str, attribute: ir.Attr) -> bool:
    default = schema.attributes[name].default_value
    if default.type:
        return bool(ir.serde.deserialize_attribute(default).value == attribute.value)
    neutral: Any = attribute.value
    if name == "dilations":
        return all(neutral_number == 1 for neutral_number in neutral)
    return False


def _check_types(node: ir.Node, then: onnx.defs.OpSchema, version: int) -> None:
    allowed = {constraint.type_param_str: set(constraint.allowed_type_strs) for constraint in then.type_constraints}
    for index, value in enumerate(node.inputs):
        formal = then.inputs[min(index, len(then.inputs) - 1)]
        if value is None or value.dtype is None or formal.type_str not in allowed:
            continue
        name = value.dtype.name.lower()
        if f"tensor({name})" not in allowed[formal.type_str]:
            raise _refused(node, f"at opset {version} it does not take {name}")


def _axis(node: ir.Node, default: int) -> int:
    axis = node.attributes.get("axis")
    return default if axis is None else axis.as_int()


@_meant_else(15, "Shape")
def _shape(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """Shape(x)[start:end] as Slice(Shape(x))."""
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    if start is None and end is None:
        return None
    first, last = (0 if start is None else start.as_int()), (1 << 62 if end is None else end.as_int())
    return [op.Slice(op.Shape(inputs[0]), op.const(np.array([first])), op.const(np.array([last])))]


@_meant_else(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """Before opset 13 the axes from `axis` on were one: the axis is made the last for as long as it takes."""
    (x,) = inputs
    assert x is not None
    if x.shape is None:
        raise _refused(node, "the rank of its input is unknown")
    rank, axis = len(x.shape), _axis(node, -1)
    axis += rank if axis < 0 else 0
    if axis == rank - 1:
        # The default was 1 then: the axis is always written down.
        if "axis" in node.attributes and node.attributes["axis"].as_int() == axis:
            return None
        return [op.call("", node.op_type, [x], {"axis": axis})]
    order = [*(i for i in range(rank) if i != axis), axis]
    back = [order.index(i) for i in range(rank)]
    return [op.Transpose(op.call("", node.op_type, [op.Transpose(x, perm=order)], {"axis": rank - 1}), perm=back)]


@_meant_else(21, "GroupNormalization")
def _group_normalization(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
    """Before opset 21 scale and bias had a value for each group, not for each channel."""
    return expand(op, node, inputs)


@_meant_else(14, "Trilu")
def _trilu(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None]:
    """The upper or lower triangle: zero where the column is on the other side of row + k."""
    x, k = inputs[0], inputs[1] if len(inputs) > 1 else None
    assert x is not None
    shape = op.shape_of(x)
    zero, one = op.const(np.array(0)), op.const(np.array(1))
    rows = op.Unsqueeze(op.Range(zero, op.Gather(shape, op.const(np.array(-2))), one), op.const(np.array([1])))
    columns = op.Range(zero, op.Gather(shape, op.const(np.array(-1))), one)
    diagonal = rows if k is None else op.Add(rows, op.Reshape(k, op.const(np.zeros(0, np.int64))))
    upper = node.attributes.get("upper")
    is_upper = upper is None or upper.as_int() == 1
    inside = op.GreaterOrEqual(columns, diagonal) if is_upper else op.LessOrEqual(columns, diagonal)
    return [op.Where(inside, x, op.const(0, x.dtype))]


def _refused(node: ir.Node, reason: str) -> GraphError:
    return GraphError(
        f"{node.op_type} cannot be written at the opset asked for", node=describe(node), source=source_of(node),
        reason=reason, way_out="choose a newer opset",
    )  # fmt: skip
