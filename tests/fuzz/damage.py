"""Damage to ONNX files: indices, sizes and counts beyond all bounds, functions, subgraphs, links, and flipped bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.capture.onnx_file.mutations import EXTREME, FIELDS, mutate

__all__ = ["damaged", "hostile_feeds"]

Rng = np.random.Generator
Proto = onnx.ModelProto
# Its data may lie outside, by a change before.
_UNREADABLE = (ValueError, TypeError, AttributeError, onnx.checker.ValidationError)


def damaged(proto: Proto, rng: Rng) -> bytes:
    """The file after one to three changes; bytes flipped in some."""
    mutant = Proto()
    mutant.CopyFrom(proto)
    for _ in range(int(rng.integers(1, 4))):
        changes = OWN if rng.random() < 0.5 else FIELDS
        changes[int(rng.integers(len(changes)))](mutant, rng)
    return mutate(mutant, rng) if rng.random() < 0.15 else mutant.SerializeToString()


def hostile_feeds(feeds: dict[str, np.ndarray], rng: Rng) -> dict[str, np.ndarray]:
    """The batch with numbers in it that no index, count or divisor should be."""
    arrays = {}
    for name, array in feeds.items():
        array = array.copy()
        if array.size and rng.random() < 0.4:
            limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
            numbers = [-1, 0, 7, limits.min, limits.max] if limits else [0.0, -1.0, np.inf, np.nan, 1e30, -1e9]
            if array.dtype.kind in "iuf":
                array.reshape(-1)[int(rng.integers(array.size))] = numbers[int(rng.integers(len(numbers)))]
        arrays[name] = array
    return arrays


def _integers(proto: Proto) -> list[onnx.TensorProto]:
    return [t for t in proto.graph.initializer if t.data_type in (TensorProto.INT64, TensorProto.INT32)]


def _pick(rng: Rng, among: Any) -> Any:
    return among[int(rng.integers(len(among)))] if len(among) else None


def index(proto: Proto, rng: Rng) -> None:
    """An integer of an initializer is another."""
    tensor = _pick(rng, _integers(proto))
    if tensor is None:
        return
    try:
        array = numpy_helper.to_array(tensor).copy()
    except _UNREADABLE:
        return
    if array.size:
        limits = np.iinfo(array.dtype)
        numbers = [n for n in (*EXTREME, -2, 4, 5, 6, 8, 100) if limits.min <= n <= limits.max]
        array.reshape(-1)[int(rng.integers(array.size))] = _pick(rng, numbers)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def grown(proto: Proto, rng: Rng) -> None:
    """An initializer has another shape, and the values for it."""
    tensor = _pick(rng, proto.graph.initializer)
    if (
        tensor is None
        or not tensor.raw_data
        or any(d < 0 for d in tensor.dims)
        or np.prod(tensor.dims, dtype=float) > 1e6
    ):
        return
    dims = list(tensor.dims)
    if dims and rng.random() < 0.8:
        dims[int(rng.integers(len(dims)))] = int(_pick(rng, [0, 1, 2, 3, 5, 7]))
    else:
        dims.insert(int(rng.integers(len(dims) + 1)), int(_pick(rng, [1, 2])))
    try:
        array = np.resize(numpy_helper.to_array(tensor), dims)
    except _UNREADABLE:
        return
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def other_type(proto: Proto, rng: Rng) -> None:
    """An initializer or an input has another type, and values of it."""
    tensor = _pick(rng, proto.graph.initializer)
    if tensor is None:
        return
    try:
        array = numpy_helper.to_array(tensor)
        cast = array.astype(
            _pick(rng, [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_])
        )
    except _UNREADABLE:
        return
    tensor.CopyFrom(numpy_helper.from_array(cast, tensor.name))


def fed(proto: Proto, rng: Rng) -> None:
    """What was an initializer is an input: an index, an axis, a size that nobody knows before."""
    tensor = _pick(rng, proto.graph.initializer)
    if tensor is None:
        return
    proto.graph.input.append(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, [max(d, 0) for d in tensor.dims])
    )
    proto.graph.initializer.remove(tensor)


def computed(proto: Proto, rng: Rng) -> None:
    """What was stored is computed from it, so that nothing is known of it beforehand, or all by folding."""
    names = [t.name for t in proto.graph.initializer]
    name = _pick(rng, names)
    readers = [(n, i) for n in proto.graph.node for i, used in enumerate(n.input) if used == name]
    reader = _pick(rng, readers)
    if reader is None:
        return
    at = list(proto.graph.node).index(reader[0])
    fresh = f"computed{rng.integers(1 << 30)}"
    kind = int(rng.integers(4))
    new_nodes = [
        helper.make_node(("Add", "Mul", "Sub", "Identity")[kind], [name, name][: 1 if kind == 3 else 2], [fresh])
    ]
    reader[0].input[reader[1]] = fresh
    nodes = [*proto.graph.node[:at], *new_nodes, *proto.graph.node[at:]]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def size(proto: Proto, rng: Rng) -> None:
    """A dimension of an input is stated to be another."""
    info = _pick(rng, proto.graph.input)
    if info is not None and len(info.type.tensor_type.shape.dim):
        dim = _pick(rng, info.type.tensor_type.shape.dim)
        dim.dim_value = int(_pick(rng, [0, 1, 2, 3, 1000, 2**20, 2**31, 2**40, 2**62, 2**63 - 1]))


def asks_for_much(proto: Proto, rng: Rng) -> None:
    """A node that makes very much of very little, in front of the rest."""
    many = int(_pick(rng, [10_000, 100_000, 2**20, 2**24, 2**31, 2**40, 2**62]))
    nodes, out = [], f"much{rng.integers(1 << 30)}"
    kind = int(rng.integers(6))

    def const(name: str, content: Any, dtype: Any = np.int64) -> str:
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(content, dtype), f"{out}_{name}"))
        return f"{out}_{name}"

    if kind == 0:
        nodes = [("ConstantOfShape", [const("s", [many])], {})]
    elif kind == 1:
        nodes = [("Range", [const("a", 0), const("b", many), const("c", 1)], {})]
    elif kind == 2:
        x = const("x", np.ones((1, 1, 4, 4)), np.float32)
        nodes = [
            (
                "Resize",
                [x, "", "", const("s", [1, 1, min(many, 2**31), 4])],
                {"mode": _pick(rng, ["linear", "cubic", "nearest"])},
            )
        ]
    elif kind == 3:
        x = const("x", np.ones((1, 8, 1)), np.float32)
        nodes = [("DFT", [x, const("n", min(many, 2**40)), const("axis", 1)], {})]
    elif kind == 4:
        nodes = [("Expand", [const("x", [1.0], np.float32), const("s", [many])], {})]
    else:
        nodes = [("OneHot", [const("i", [0, 1]), const("d", many), const("v", [0, 1], np.float32)], {})]
    ((op_type, inputs, attributes),) = nodes
    new_nodes = [
        helper.make_node(op_type, inputs, [out], **attributes),
        helper.make_node("Cast", [out], [f"{out}_f"], to=1),
        helper.make_node("ReduceMean", [f"{out}_f"], [f"{out}_y"], keepdims=0),
    ]
    if rng.random() < 0.5:
        new_nodes = new_nodes[::1]
    rest = list(proto.graph.node)
    # It counts where the last node reads it.
    if rest and len(rest[-1].input):
        new_nodes.append(helper.make_node("Mul", [rest[-1].input[0], f"{out}_y"], [f"{out}_used"]))
        rest[-1].input[0] = f"{out}_used"
    del proto.graph.node[:]
    proto.graph.node.extend([*rest[:-1], *new_nodes, *rest[-1:]])


def looped(proto: Proto, rng: Rng) -> None:
    """A Loop of any count around nothing much, perhaps in a Loop."""
    out = f"loop{rng.integers(1 << 30)}"
    count = int(_pick(rng, [-1, 0, 3, 1000, 10**6, 2**31, 2**62, 2**63 - 1]))
    body = _body(out, depth=int(rng.integers(0, 3)), count=count)
    stored = [
        numpy_helper.from_array(np.array(count), f"{out}_m"),
        numpy_helper.from_array(np.array(True), f"{out}_c"),
        numpy_helper.from_array(np.array([0.5], np.float32), f"{out}_s"),
    ]
    new_nodes = []
    m = f"{out}_m"
    if rng.random() < 0.5 and len(proto.graph.input):
        # Computed from an input, so that no check of the file knows it.
        new_nodes = [
            helper.make_node("Shape", [proto.graph.input[0].name], [f"{out}_shape"]),
            helper.make_node("ReduceSum", [f"{out}_shape"], [f"{out}_sum"], keepdims=0),
            helper.make_node("Mul", [f"{out}_sum", f"{out}_sum"], [f"{out}_sq"]),
            helper.make_node("Max", [f"{out}_sq", m], [f"{out}_m2"]),
        ]
        m = f"{out}_m2"
    new_nodes.append(helper.make_node("Loop", [m, f"{out}_c", f"{out}_s"], [f"{out}_y"], body=body))
    rest = list(proto.graph.node)
    if rest and len(rest[-1].input):
        new_nodes.append(helper.make_node("Mul", [rest[-1].input[0], f"{out}_y"], [f"{out}_used"]))
        rest[-1].input[0] = f"{out}_used"
    proto.graph.initializer.extend(stored)
    del proto.graph.node[:]
    proto.graph.node.extend([*rest[:-1], *new_nodes, *rest[-1:]])


def _body(out: str, depth: int, count: int) -> onnx.GraphProto:
    n = f"{out}_{depth}"
    nodes = [
        helper.make_node("Tanh", [f"{n}_in"], [f"{n}_t"]),
        helper.make_node("Identity", [f"{n}_go"], [f"{n}_again"]),
    ]
    if depth:
        nodes.append(
            helper.make_node("Loop", [f"{out}_m", f"{n}_go", f"{n}_t"], [f"{n}_out"], body=_body(out, depth - 1, count))
        )
    else:
        nodes.append(helper.make_node("Identity", [f"{n}_t"], [f"{n}_out"]))
    info = helper.make_tensor_value_info
    return helper.make_graph(
        nodes, "body",
        [info(f"{n}_i", TensorProto.INT64, []), info(f"{n}_go", TensorProto.BOOL, []), info(f"{n}_in", 1, [1])],
        [info(f"{n}_again", TensorProto.BOOL, []), info(f"{n}_out", 1, [1])],
    )  # fmt: skip


def divided(proto: Proto, rng: Rng) -> None:
    """Integers divided by what they cannot be divided by, where it is known and where it is not."""
    out = f"div{rng.integers(1 << 30)}"
    dtype = _pick(rng, [np.int64, np.int32, np.int8, np.uint8])
    low = int(np.iinfo(dtype).min)
    a, b = _pick(rng, [(low, -1 if low else 0), (7, 0), (low, 0), (9, 2)])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([a], dtype), f"{out}_a"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([b], dtype), f"{out}_b"))
    op_type = _pick(rng, ["Div", "Mod"])
    extra = {"fmod": 1} if op_type == "Mod" and rng.random() < 0.3 else {}
    divisor, new_nodes = f"{out}_b", []
    if rng.random() < 0.5 and len(proto.graph.input):
        name = proto.graph.input[0].name
        new_nodes = [
            helper.make_node("Size", [name], [f"{out}_n"]),
            helper.make_node("Sub", [f"{out}_n", f"{out}_n"], [f"{out}_0"]),
            helper.make_node("Cast", [f"{out}_0"], [f"{out}_z"], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
            helper.make_node("Add", [f"{out}_b", f"{out}_z"], [f"{out}_b2"]),
        ]
        divisor = f"{out}_b2"
    new_nodes += [
        helper.make_node(op_type, [f"{out}_a", divisor], [f"{out}_q"], **extra),
        helper.make_node("Cast", [f"{out}_q"], [f"{out}_f"], to=1),
    ]
    rest = list(proto.graph.node)
    if rest and len(rest[-1].input):
        new_nodes.append(helper.make_node("Mul", [rest[-1].input[0], f"{out}_f"], [f"{out}_used"]))
        rest[-1].input[0] = f"{out}_used"
    del proto.graph.node[:]
    proto.graph.node.extend([*rest[:-1], *new_nodes, *rest[-1:]])


def chained(proto: Proto, rng: Rng) -> None:
    """Functions that call one another in a long row, or widely."""
    length, wide = int(_pick(rng, [3, 50, 600, 3000])), rng.random() < 0.2
    imports = [
        helper.make_opsetid("", proto.opset_import[0].version if len(proto.opset_import) else 17),
        helper.make_opsetid("chain", 1),
    ]
    functions = [helper.make_function("chain", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)]
    for i in range(1, min(length, 40) if wide else length):
        call = [helper.make_node(f"f{i - 1}", ["a"], ["m" if wide else "b"], domain="chain")]
        if wide:
            call.append(helper.make_node(f"f{i - 1}", ["m"], ["b"], domain="chain"))
        functions.append(helper.make_function("chain", f"f{i}", ["a"], ["b"], call, imports))
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("chain", 1))
    last = proto.graph.node[-1] if len(proto.graph.node) else None
    if last is not None and len(last.input):
        caller = helper.make_node(functions[-1].name, [last.input[0]], ["chained"], domain="chain")
        rest = list(proto.graph.node)
        rest[-1].input[0] = "chained"
        del proto.graph.node[:]
        proto.graph.node.extend([*rest[:-1], caller, rest[-1]])


def in_branch(proto: Proto, rng: Rng) -> None:
    """A node goes into both branches of an If whose condition is computed, or constant."""
    nodes = list(proto.graph.node)
    at = int(rng.integers(len(nodes))) if nodes else 0
    if not nodes or len(nodes[at].output) != 1 or any(a.HasField("g") for a in nodes[at].attribute):
        return
    node, name = nodes[at], nodes[at].output[0]
    graphs = []
    for branch in ("then_branch", "else_branch"):
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.output[0] = f"{name}_{branch}"
        result = onnx.ValueInfoProto(name=inner.output[0])
        result.type.tensor_type.elem_type = 1
        graphs.append(helper.make_graph([inner], branch, [], [result]))
    cond = f"cond{rng.integers(1 << 30)}"
    new_nodes = []
    if rng.random() < 0.5 and len(proto.graph.input):
        source = proto.graph.input[0].name
        new_nodes = [
            helper.make_node("Size", [source], [f"{cond}_n"]),
            helper.make_node("Cast", [f"{cond}_n"], [cond], to=9),
        ]
    else:
        proto.graph.initializer.append(numpy_helper.from_array(np.array(rng.random() < 0.5), cond))
    new_nodes.append(helper.make_node("If", [cond], [name], then_branch=graphs[0], else_branch=graphs[1]))
    nodes[at : at + 1] = new_nodes
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def outside(proto: Proto, rng: Rng) -> None:
    """An initializer lies somewhere else."""
    tensor = _pick(rng, proto.graph.initializer)
    if tensor is None:
        return
    place = _pick(
        rng, ["/etc/passwd", "../secret", "zero", "fifo", "folder", "outside", "data.bin", "/dev/zero", "short.bin"]
    )
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    if rng.random() < 0.5:
        tensor.external_data.add(key="length", value=str(_pick(rng, [0, 4, 16, 2**40])))
        tensor.external_data.add(key="offset", value=str(_pick(rng, [0, 1, 2**63, -5])))


OWN: tuple[Callable[[Proto, Rng], None], ...] = (
    index, index, index, grown, grown, grown, other_type, fed, fed, computed, computed, size, asks_for_much,
    asks_for_much, looped, divided, divided, chained, in_branch, in_branch, outside,
)  # fmt: skip
