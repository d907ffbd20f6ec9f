"""Deterministic damage to ONNX files: to their bytes, and to the fields of the message they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

Rng = np.random.Generator
EXTREME = (-(2**63), -(2**31), -7, -1, 0, 1, 2, 3, 7, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
SCHEMAS = sorted((s for s in onnx.defs.get_all_schemas() if not s.domain), key=lambda s: s.name)
OPERATORS = [s.name for s in SCHEMAS]


def mutate(proto: onnx.ModelProto, rng: Rng) -> bytes:
    """Return the file with a mutation of its fields, sometimes two, or of its bytes in one of six."""
    if rng.random() < 1 / 6:
        return _bytes(proto.SerializeToString(), rng)
    mutant = onnx.ModelProto()
    mutant.CopyFrom(proto)
    for _ in range(int(_pick(rng, (1, 1, 1, 2)))):
        _pick(rng, FIELDS)(mutant, rng)
    return mutant.SerializeToString()


def _pick(rng: Rng, among: Any) -> Any:
    """One of several; where an earlier mutation has left none, a message of no consequence."""
    if not len(among):
        return onnx.NodeProto()
    return among[int(rng.integers(len(among)))]


def _bytes(content: bytes, rng: Rng) -> bytes:
    data = bytearray(content)
    kind = rng.integers(4)
    at, to = (int(i) for i in rng.integers(len(data), size=2))
    if kind == 0:
        for i in rng.integers(len(data), size=int(rng.integers(1, 9))):
            data[int(i)] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        piece = data[at : at + int(rng.integers(1, 64))]
        data[to : to + (len(piece) if rng.random() < 0.5 else 0)] = piece
    else:
        data[at : at + int(rng.integers(1, 9))] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(data)


def _nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    collected: list[onnx.NodeProto] = []

    def walk(nodes: Any) -> None:
        for node in nodes:
            collected.append(node)
            for attribute in node.attribute:
                walk(attribute.g.node)

    walk(proto.graph.node)
    for function in proto.functions:
        walk(function.node)
    return collected


def _names(proto: onnx.ModelProto) -> list[str]:
    names = [v.name for v in proto.graph.input] + [t.name for t in proto.graph.initializer]
    return [*names, *(o for node in _nodes(proto) for o in node.output), "", "nowhere", "x" * 300]


def _tensor(proto: onnx.ModelProto, rng: Rng) -> onnx.TensorProto:
    return _pick(rng, proto.graph.initializer) if proto.graph.initializer else onnx.TensorProto()


def _attribute(proto: onnx.ModelProto, rng: Rng) -> onnx.AttributeProto:
    attributes = [a for node in _nodes(proto) for a in node.attribute]
    return _pick(rng, attributes) if attributes else onnx.AttributeProto()


def op_type(proto: onnx.ModelProto, rng: Rng) -> None:
    _pick(rng, _nodes(proto)).op_type = _pick(rng, OPERATORS)


def same_type(proto: onnx.ModelProto, rng: Rng) -> None:
    """Another operator with as many inputs and outputs, without the attributes that it does not know."""
    node = _pick(rng, _nodes(proto))
    fits = [s for s in SCHEMAS if s.min_input <= len(node.input) <= s.max_input and s.min_output <= len(node.output)]
    schema = _pick(rng, fits)
    node.op_type = schema.name
    attributes = [a for a in node.attribute if a.name in schema.attributes]
    del node.attribute[:]
    node.attribute.extend(attributes)


def node_input(proto: onnx.ModelProto, rng: Rng) -> None:
    node = _pick(rng, _nodes(proto))
    if len(node.input) and rng.random() < 0.8:
        node.input[int(rng.integers(len(node.input)))] = _pick(rng, _names(proto))
    else:
        node.input.append(_pick(rng, _names(proto)))


def fewer_inputs(proto: onnx.ModelProto, rng: Rng) -> None:
    node = _pick(rng, _nodes(proto))
    if len(node.input):
        del node.input[int(rng.integers(len(node.input)))]


def node_output(proto: onnx.ModelProto, rng: Rng) -> None:
    node = _pick(rng, _nodes(proto))
    if len(node.output):
        node.output[int(rng.integers(len(node.output)))] = _pick(rng, _names(proto))


def more_outputs(proto: onnx.ModelProto, rng: Rng) -> None:
    _pick(rng, _nodes(proto)).output.append(f"spare{rng.integers(9)}")


def domain(proto: onnx.ModelProto, rng: Rng) -> None:
    _pick(rng, _nodes(proto)).domain = _pick(rng, ["ai.onnx", "ai.onnx.ml", "com.microsoft", "local", "ontrain", "é"])


def drop_node(proto: onnx.ModelProto, rng: Rng) -> None:
    del proto.graph.node[int(rng.integers(len(proto.graph.node)))]


def repeat_node(proto: onnx.ModelProto, rng: Rng) -> None:
    proto.graph.node.append(_pick(rng, _nodes(proto)))


def swap_nodes(proto: onnx.ModelProto, rng: Rng) -> None:
    nodes = list(proto.graph.node)
    a, b = (int(i) for i in rng.integers(len(nodes), size=2))
    nodes[a], nodes[b] = nodes[b], nodes[a]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def attribute_value(proto: onnx.ModelProto, rng: Rng) -> None:
    attribute = _attribute(proto, rng)
    kind = onnx.AttributeProto
    if attribute.type == kind.INT:
        attribute.i = _pick(rng, EXTREME)
    elif attribute.type == kind.INTS and len(attribute.ints):
        attribute.ints[int(rng.integers(len(attribute.ints)))] = _pick(rng, EXTREME)
    elif attribute.type == kind.FLOAT:
        attribute.f = _pick(rng, [float("nan"), float("inf"), -1e38, -1.0, 0.0, 1e-40, 0.5, 2.0])
    elif attribute.type == kind.STRING:
        attribute.s = _pick(rng, [b"", b"\xff\xfe", b"linear", b"cubic", b"reflect", b"NOTSET", b"x" * 999])


def attribute_length(proto: onnx.ModelProto, rng: Rng) -> None:
    attribute = _attribute(proto, rng)
    if rng.random() < 0.5 and len(attribute.ints):
        del attribute.ints[-1]
    else:
        attribute.ints.append(_pick(rng, EXTREME))


def attribute_type(proto: onnx.ModelProto, rng: Rng) -> None:
    _attribute(proto, rng).type = _pick(rng, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13])


def attribute_name(proto: onnx.ModelProto, rng: Rng) -> None:
    _attribute(proto, rng).name = _pick(rng, ["axis", "axes", "alpha", "", "perm", "to", "group", "mode"])


def new_attribute(proto: onnx.ModelProto, rng: Rng) -> None:
    node = _pick(rng, _nodes(proto))
    schemas = [s for s in onnx.defs.get_all_schemas() if s.name == node.op_type and s.attributes]
    if schemas:
        name, spec = _pick(rng, list(schemas[0].attributes.items()))
        attribute = node.attribute.add()
        attribute.name, attribute.type = name, int(spec.type.value)
        attribute.i = _pick(rng, EXTREME) if attribute.type == onnx.AttributeProto.INT else 0
        if attribute.type == onnx.AttributeProto.INTS:
            attribute.ints.extend(_pick(rng, EXTREME) for _ in range(int(rng.integers(5))))


def tensor_dims(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(proto, rng)
    if len(tensor.dims) and rng.random() < 0.6:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = _pick(rng, EXTREME)
    elif rng.random() < 0.5:
        tensor.dims.append(_pick(rng, [1, 1, *EXTREME]))
    elif len(tensor.dims):
        dims = [int(d) for d in rng.permutation(list(tensor.dims))]
        del tensor.dims[:]
        tensor.dims.extend(dims)


def tensor_values(proto: onnx.ModelProto, rng: Rng) -> None:
    """Shapes, axes and scales with other numbers in them."""
    kinds = {onnx.TensorProto.INT64: np.int64, onnx.TensorProto.FLOAT: np.float32}
    small = [t for t in proto.graph.initializer if t.data_type in kinds and 4 <= len(t.raw_data) <= 64]
    if not small:
        return
    tensor = _pick(rng, small)
    dtype = np.dtype(kinds[tensor.data_type])
    array = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // dtype.itemsize * dtype.itemsize], dtype).copy()
    if array.size:
        numbers = EXTREME if dtype.kind == "i" else (np.nan, np.inf, -1.0, 0.0, 1e-30, 1e30, 3.0, 1e4)
        array[int(rng.integers(array.size))] = _pick(rng, numbers)
        tensor.raw_data = array.tobytes()


def tensor_type(proto: onnx.ModelProto, rng: Rng) -> None:
    _tensor(proto, rng).data_type = int(rng.integers(0, 30))


def tensor_data(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(proto, rng)
    kind = rng.integers(4)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data) + 1))]
    elif kind == 1:
        tensor.raw_data += b"\0" * int(rng.integers(1, 9))
    elif kind == 2:
        tensor.float_data.append(1.0)
    else:
        tensor.ClearField("raw_data")


def tensor_name(proto: onnx.ModelProto, rng: Rng) -> None:
    _tensor(proto, rng).name = _pick(rng, _names(proto))


def external(proto: onnx.ModelProto, rng: Rng) -> None:
    tensor = _tensor(proto, rng)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    place = _pick(rng, ["/etc/passwd", "../../secret", "weights.bin", "", "a\0b", ".", "missing.bin"])
    tensor.external_data.add(key="location", value=place)
    tensor.external_data.add(key=_pick(rng, ["offset", "length"]), value=_pick(rng, ["-1", "x", str(2**70), "0"]))


def input_type(proto: onnx.ModelProto, rng: Rng) -> None:
    info = _pick(rng, [*proto.graph.input, *proto.graph.output])
    kind = rng.integers(5)
    if kind == 0:
        info.type.tensor_type.elem_type = int(rng.integers(0, 25))
    elif kind == 1:
        info.type.tensor_type.ClearField("shape")
    elif kind == 2 and len(info.type.tensor_type.shape.dim):
        _pick(rng, info.type.tensor_type.shape.dim).dim_value = _pick(rng, EXTREME)
    elif kind == 3:
        info.type.sequence_type.elem_type.tensor_type.elem_type = 1
    else:
        info.type.tensor_type.shape.dim.add().dim_param = _pick(rng, ["N", "", "batch", "2*N", "\n"])


def graph_name(proto: onnx.ModelProto, rng: Rng) -> None:
    info = _pick(rng, [*proto.graph.input, *proto.graph.output])
    info.name = _pick(rng, [*_names(proto), "loss", "step", "learning_rate"])


def opset(proto: onnx.ModelProto, rng: Rng) -> None:
    version = _pick(rng, [*range(1, onnx.defs.onnx_opset_version() + 2), -1, 0, 2**40])
    if proto.opset_import:
        _pick(rng, proto.opset_import).version = version


def no_import(proto: onnx.ModelProto, rng: Rng) -> None:
    if len(proto.opset_import):
        del proto.opset_import[int(rng.integers(len(proto.opset_import)))]
    proto.ir_version = _pick(rng, [1, 2, 3, 8, 10, 99, -1])


def metadata(proto: onnx.ModelProto, rng: Rng) -> None:
    """Words that ontrain itself uses."""
    info = _pick(rng, [*proto.graph.input, *proto.graph.output])
    key, text = _pick(rng, [("ontrain.role", "parameter"), ("ontrain.updates", "x"), ("ontrain.role", "nonsense")])
    info.metadata_props.add(key=key, value=text)


def circle(proto: onnx.ModelProto, rng: Rng) -> None:
    """A function that calls itself."""
    function = proto.functions.add(name="Round", domain="local")
    function.input.append("a")
    function.output.append("b")
    function.node.append(onnx.NodeProto(op_type="Round", domain="local", input=["a"], output=["b"]))
    node = _pick(rng, proto.graph.node)
    node.op_type, node.domain = "Round", "local"
    if rng.random() < 0.7:
        proto.opset_import.add(domain="local", version=1)


def nest(proto: onnx.ModelProto, rng: Rng) -> None:
    """Branches in branches."""
    depth = int(_pick(rng, [3, 20, 31, 33, 60]))
    inner = onnx.GraphProto(name="deep")
    for _ in range(depth):
        outer = onnx.GraphProto(name="deep")
        node = outer.node.add(op_type="If", input=[_pick(rng, _names(proto))], output=["branch"])
        for name in ("then_branch", "else_branch")[: int(rng.integers(1, 3))]:
            attribute = node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            attribute.g.CopyFrom(inner)
        inner = outer
        if inner.ByteSize() > 50_000:
            break
    proto.graph.node.extend(inner.node)


# What reaches deepest comes most often.
FIELDS: tuple[Callable[[onnx.ModelProto, Rng], None], ...] = (
    *(same_type,) * 6, *(attribute_value,) * 6, *(tensor_values,) * 6, *(node_input,) * 4, *(new_attribute,) * 4,
    *(tensor_dims,) * 2, *(opset,) * 2, *(input_type,) * 2, op_type, fewer_inputs, node_output, more_outputs, domain,
    drop_node, repeat_node, swap_nodes, attribute_length, attribute_type, attribute_name, tensor_type, tensor_data,
    tensor_name, external, graph_name, no_import, metadata, circle, nest,
)  # fmt: skip
