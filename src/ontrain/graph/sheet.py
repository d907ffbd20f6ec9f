"""A graph taken apart: its structure, the whole numbers in it, and its constants; and put together with others."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph.fits import same

__all__ = ["Sheet", "UnreadableError", "read", "write"]

Array = np.ndarray[Any, Any]
_INT, _INTS = ir.AttributeType.INT, ir.AttributeType.INTS


class UnreadableError(Exception):
    """A graph that cannot be taken apart: a shape that depends on data, or an outer value read from within."""


@dataclass(frozen=True)
class Sheet:
    """What a graph of concrete shapes consists of.

    Attributes:
        structure: equal for two graphs that differ in whole numbers and constants only.
        numbers: every dimension and every whole number in an attribute, in the order of a walk.
        constants: what each operand that is constant holds, in the order of a walk; a shared one stands several times.
    """

    structure: Hashable
    numbers: tuple[int, ...]
    constants: tuple[ir.TensorProtocol, ...]

    def sharing(self, other: Sheet) -> Sheet:
        """Return the sheet with the constants of another of the same structure where they hold the same."""
        pairs = zip(self.constants, other.constants, strict=True)
        return replace(self, constants=tuple(old if same(new.numpy(), old.numpy()) else new for new, old in pairs))


def read(model: ir.Model) -> Sheet:
    """Take a graph apart.

    Raises:
        UnreadableError: it holds what this cannot say.
    """
    reader = _Reader()
    structure = reader.graph(model.graph, {})
    return Sheet(structure, tuple(reader.numbers), tuple(reader.constants))


class _Reader:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.constants: list[ir.TensorProtocol] = []

    def graph(self, graph: ir.Graph, places: dict[ir.Value, int]) -> Hashable:
        parts: list[Hashable] = []
        for value in graph.inputs:
            parts.append((value.name, self._type(value), tuple(sorted(value.metadata_props.items()))))
            places[value] = len(places)
        for node in graph:
            ins = tuple(self._operand(value, places) for value in node.inputs)
            attributes = tuple(self._attribute(name, attr) for name, attr in node.attributes.items())
            outs = tuple(self._type(value) for value in node.outputs)
            lines = tuple(node.metadata_props.items())
            parts.append((node.domain, node.op_type, ins, attributes, outs, lines))
            for value in node.outputs:
                places[value] = len(places)
        for value in graph.outputs:
            parts.append((value.name, self._operand(value, places), tuple(sorted(value.metadata_props.items()))))
        return tuple(parts)

    def _operand(self, value: ir.Value | None, places: Mapping[ir.Value, int]) -> Hashable:
        if value is None or value in places:
            return None if value is None else places[value]
        if value.const_value is None:
            raise UnreadableError(f"{value.name!r} is read from outside")
        self.constants.append(value.const_value)
        return "constant", value.dtype, len(value.shape or ())

    def _type(self, value: ir.Value) -> Hashable:
        if value.shape is None:
            return str(value.type), None
        for size in value.shape:
            if not isinstance(size, int):
                raise UnreadableError(f"the shape of {value.name!r} depends on data")
            self.numbers.append(size)
        return value.dtype, len(value.shape)

    def _attribute(self, name: str, attr: ir.Attr) -> Hashable:
        value = attr.value
        match attr.type:
            case ir.AttributeType.INT:
                self.numbers.append(value)
                return name
            case ir.AttributeType.INTS:
                self.numbers.extend(value)
                return name, len(value)
            case ir.AttributeType.GRAPH:
                return name, self.graph(value, {})
            case ir.AttributeType.TENSOR:
                array = value.numpy()
                return name, array.dtype.str, array.shape, array.tobytes()
            case ir.AttributeType.FLOAT | ir.AttributeType.STRING:
                return name, value
            case ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
                return name, tuple(value)
        raise UnreadableError(f"the attribute {name!r} holds {attr.type.name}")


def write(model: ir.Model, numbers: Sequence[int], constants: Mapping[int, Array]) -> ir.Model:
    """Return a graph of the same structure with other numbers and constants.

    Args:
        model: the graph whose structure, names, lines and roles are taken; left untouched.
        numbers: as many as its sheet has, in the same order.
        constants: arrays to put in the place of some of its constants, by their place in its sheet.
    """
    writer = _Writer(iter(numbers), constants)
    return ir.Model(writer.graph(model.graph), ir_version=model.ir_version, producer_name=model.producer_name)


class _Writer:
    def __init__(self, numbers: Iterator[int], constants: Mapping[int, Array]) -> None:
        self._numbers, self._arrays, self._place = numbers, constants, 0

    def graph(self, graph: ir.Graph) -> ir.Graph:
        new: dict[ir.Value, ir.Value] = {}
        constants: dict[tuple[int, int], ir.Value] = {}
        taken = set[str | None]()
        inputs = []
        for value in graph.inputs:
            inputs.append(self._like(value, ir.Value(name=value.name)))
            new[value] = inputs[-1]

        def operand(value: ir.Value | None) -> ir.Value | None:
            if value is None or value in new:
                return None if value is None else new[value]
            array = self._arrays.get(self._place)
            self._place += 1
            key = id(value), id(array)
            if key not in constants:
                # One constant may be two at other sizes.
                name = value.name if value.name not in taken else f"{value.name}_at_{self._place}"
                taken.add(name)
                constants[key] = _constant(value, name, array)
            return constants[key]

        nodes = []
        for old in graph:
            ins = [operand(value) for value in old.inputs]
            attributes = [self._attribute(attr) for attr in old.attributes.values()]
            outs = [self._like(value, ir.Value(name=value.name)) for value in old.outputs]
            node = ir.Node(
                old.domain, old.op_type, ins, attributes, outputs=outs, name=old.name,
                metadata_props=dict(old.metadata_props),
            )  # fmt: skip
            nodes.append(node)
            new.update(zip(old.outputs, outs, strict=True))
        outputs = [operand(value) for value in graph.outputs]
        return ir.Graph(
            inputs, [value for value in outputs if value is not None], nodes=nodes, initializers=[*constants.values()],
            opset_imports=dict(graph.opset_imports), name=graph.name,
        )  # fmt: skip

    def _like(self, old: ir.Value, value: ir.Value) -> ir.Value:
        value.type = old.type
        if old.shape is not None:
            sizes = [next(self._numbers) for _ in old.shape]
            value.shape = old.shape if sizes == list(old.shape) else ir.Shape(sizes)
        if old.metadata_props:
            value.metadata_props.update(old.metadata_props)
        return value

    def _attribute(self, attr: ir.Attr) -> ir.Attr:
        if attr.type == _INT:
            value = next(self._numbers)
            return attr if value == attr.value else ir.AttrInt64(attr.name, value)
        if attr.type == _INTS:
            values = [next(self._numbers) for _ in attr.value]
            return attr if values == list(attr.value) else ir.AttrInt64s(attr.name, values)
        if attr.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attr.name, self.graph(attr.value))
        return attr


def _constant(old: ir.Value, name: str | None, array: Array | None) -> ir.Value:
    tensor = old.const_value if array is None else ir.tensor(array, name=name)
    shape = old.shape if array is None else ir.Shape(array.shape)
    return ir.Value(name=name, shape=shape, type=old.type, const_value=tensor)
