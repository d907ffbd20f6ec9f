"""Small nodes in a row as one call of onnxruntime.

A call from Python takes a microsecond or two, and many a node of a small model takes less. So what stands together in a
graph that only serves runs as one call: the nodes become a model of their own, whose session onnxruntime optimises.
Its kernels run on the calling thread. Larger nodes keep the kernels of ATen and oneDNN, which run on all threads.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture import to_array
from ontrain.errors import GraphError, ProviderError
from ontrain.functions import expand, node_flops
from ontrain.graph import Builder, annotate, blamed_on, clone_value, is_random, model_of, name_of, rebuild
from ontrain.operators import DOMAIN, Indexes, Stock, record_of, static_dims
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.stock_calls import emit_session
from ontrain.stock_node import open_model, refused

__all__ = ["ALONE", "BESIDE", "Row", "Small", "bind_fixed", "emit_joined", "rows_of_small"]


@dataclass(frozen=True)
class Small:
    """What a small node has at most, by how many threads there are.

    Attributes:
        flops: operations.
        nbytes: of a value that it reads or writes.
        convolution_flops, convolution_nbytes: those of a convolution, whose call costs five times as much as another.
        weight, weights: bytes of its weight, and of those of all rows of a plan: each session holds its own weights, in
            the order of its kernels.
    """

    flops: float
    nbytes: int
    convolution_flops: float
    convolution_nbytes: int
    weight: int
    weights: int


BESIDE = Small(5e5, 1 << 15, 4e6, 1 << 19, 1 << 19, 4 << 20)
"""What is larger is faster in kernels that run on several threads."""
ALONE = Small(1e8, 8 << 20, 1e8, 8 << 20, 4 << 20, 32 << 20)
"""On one thread onnxruntime's products take as long as oneDNN's, and its convolutions half as long."""
_CALL, _NODE, _LOOK = 5.0, 2.0, 0.2
"""Microseconds: of a call of onnxruntime, saved by a node inside it, and spent on one that only looks at memory."""
_BYTE = (ir.DataType.UINT8, ir.DataType.INT8)
_COMPUTED = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BOOL, *_BYTE})
"""What arithmetic makes in a row. Integers are left out: dividing the least of them by −1 ends the process."""
_SHORT = frozenset({ir.DataType.INT16, ir.DataType.UINT16})
"""What is made of reals, by quantisation; there is no arithmetic of such numbers in a row."""
_MOVED = _COMPUTED | _SHORT | {ir.DataType.INT64, ir.DataType.INT32}
_JOINED = (Stock.KERNEL, Stock.BODY)
_BODIES = 8
"""How deep bodies lie in each other at most."""
_UNFUSED = "session.disable_quant_qdq"
"""Kernels that onnxruntime makes of nodes for quantisation saturate on some processors."""
_sessions: WeakValueDictionary[bytes, Any] = WeakValueDictionary()
"""By what they run, for as long as a plan has them."""


@dataclass(frozen=True)
class Row:
    """Nodes that follow each other.

    Attributes:
        nodes: in the graph's order.
        joined: whether they are worth one call.
    """

    nodes: Iterable[ir.Node]
    joined: bool = False


def bind_fixed(e: Emitter, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Compute, once for all plans of the session, what follows from its weights alone; return the other nodes.

    Weights in another shape or order of axes stay what they are: views.
    """
    row = _fixed_by_weights(e, nodes)
    inputs, results = _inputs_of(row), _results_of(row)
    model = _model(row, inputs, results, {}) if row else None
    if model is None:
        return [*nodes]
    tensors = {value.name or "": e.unchanging(e.value(value)) for value in inputs}

    def computed() -> list[torch.Tensor]:
        feeds = {name: to_array(tensor.contiguous()) for name, tensor in tensors.items() if tensor is not None}
        return [torch.from_numpy(array) for array in _opened(model).run(None, feeds)]

    sources = [tensor for tensor in tensors.values() if tensor is not None]
    form = ir.to_proto(model).SerializeToString()
    try:
        derived = e.weights(e.value(inputs[0])).derived(form, sources, computed)
    except ProviderError:
        return [*nodes]
    for value, tensor in zip(results, derived, strict=True):
        e.bind_unchanging(value, tensor)
    done = set(row)
    return [node for node in nodes if node not in done]


def _fixed_by_weights(e: Emitter, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    fixed = dict[ir.Value, ir.Node]()
    wanted = set[ir.Value]()
    for node in nodes:
        operands = [value for value in node.inputs if value is not None and value.const_value is None]
        if operands and _is_alike(node) and all(v in fixed or _is_weight(e, v) for v in operands):
            fixed.update(dict.fromkeys(node.outputs, node))
            if not record_of(node).is_view:
                wanted.update(node.outputs)
    row = list[ir.Node]()
    for node in reversed(dict.fromkeys(fixed.values())):
        if any(value in wanted for value in node.outputs):
            wanted.update(value for value in node.inputs if value is not None)
            row.append(node)
    return row[::-1]


def _is_weight(e: Emitter, value: ir.Value) -> bool:
    return value.is_graph_input() and e.is_weight(e.raw(value))


def rows_of_small(e: Emitter, nodes: Sequence[ir.Node]) -> Iterator[Row]:
    """Yield nodes in their order, small ones together."""
    most = ALONE if torch.get_num_threads() == 1 else BESIDE
    weights, row = 0, list[ir.Node]()
    for node in nodes:
        more = _weight_bytes(e, node)
        if weights + more <= most.weights and _is_small(e, node, most):
            weights += more
            row.append(node)
            continue
        yield from _trimmed(row)
        row = []
        yield Row([node])
    if len(row) == len(nodes) and _saves(row):
        yield Row(row, joined=True)  # a plan of one call is run from arrays to arrays
    else:
        yield from _trimmed(row)


def _trimmed(row: Sequence[ir.Node]) -> Iterator[Row]:
    """A row without the views at its ends, which cost nothing outside."""
    looks = [*map(_looks, row)]
    if False not in looks:
        yield Row(row)
        return
    first, last = looks.index(False), len(row) - looks[::-1].index(False)
    yield Row(row[:first])
    yield Row(row[first:last], joined=_saves(row[first:last]))
    yield Row(row[last:])


def _saves(row: Sequence[ir.Node]) -> bool:
    """Whether one call takes less time than the nodes by themselves."""
    looks, layers = sum(map(_looks, row)), sum(record_of(node).recurrent for node in row)
    # A recurrent layer by itself is a call of onnxruntime, too.
    return (len(row) - looks - layers) * _NODE + layers * _CALL > _CALL + looks * _LOOK


def _looks(node: ir.Node) -> bool:
    """Whether a node only shows memory in another way, or one place of it."""
    record = record_of(node)
    if record.indexes is not Indexes.ALONG_AXIS or record.computes:
        return record.is_view
    places = node.inputs[1]
    return places is not None and places.const_value is not None and not places.const_value.numpy().ndim


def _is_small(e: Emitter, node: ir.Node, most: Small) -> bool:
    record = record_of(node)
    if node in e.placement.skipped or not _is_alike(node):
        return False
    flops, size = most.flops, most.nbytes
    if record.convolves:
        flops, size = most.convolution_flops, most.convolution_nbytes
    for value in node.inputs:
        if value is not None and not _fits(value, most.weight if _never_changes(e, value) else size):
            return False
    if not all(_fits(value, size) and value not in e.placement.pins for value in node.outputs if e.reads(value)):
        return False
    return node_flops(node).total <= flops


def _is_alike(node: ir.Node) -> bool:
    """Whether onnxruntime computes a node as ontrain does, without an end of the process for any number."""
    record = record_of(node)
    if is_random(node) or record.stock not in _JOINED or _pads_by_size(node):
        return False
    x = node.inputs[0] if node.inputs else None
    of_reals = x is not None and x.dtype is not None and x.dtype.is_floating_point()
    results = _MOVED if not record.computes else _COMPUTED | _SHORT if of_reals else _COMPUTED
    return all(value is None or value.dtype in _MOVED for value in node.inputs) and all(
        value.dtype in results for value in node.outputs if value.uses() or value.is_graph_output()
    )


def _pads_by_size(node: ir.Node) -> bool:
    """Whether pads follow from sizes, and windows have gaps: onnxruntime resolves them as if there were none."""
    by_size = str(node.attributes.get_string("auto_pad", "NOTSET")).startswith("SAME")
    return by_size and any(gap > 1 for gap in node.attributes.get_ints("dilations", ()) or ())


def _fits(value: ir.Value, size: int) -> bool:
    return value.shape is not None and value.shape.is_static() and 0 < _nbytes(value) <= size


def _nbytes(value: ir.Value) -> int:
    assert value.dtype is not None
    return int(math.prod(static_dims(value)) * value.dtype.itemsize)


def _never_changes(e: Emitter, value: ir.Value) -> bool:
    return value.const_value is not None or (e.computed(value) and e.unchanging(e.raw(value)) is not None)


def _weight_bytes(e: Emitter, node: ir.Node) -> int:
    return sum(
        _nbytes(value) for value in node.inputs
        if value is not None and value.dtype is not None and value.shape is not None and value.shape.is_static()
        and _never_changes(e, value)
    )  # fmt: skip


def emit_joined(e: Emitter, nodes: Iterable[ir.Node]) -> bool:
    """Emit nodes as one call; return False, and emit nothing, where they have to be lowered one by one."""
    row = [*nodes]
    inputs = _inputs_of(row)
    if not all(map(e.computed, inputs)):
        return False  # whoever makes one of them leaves it to a lowering of its reader
    operands = {value: e.value(value) for value in inputs}
    fixed = {value: tensor for value, buf in operands.items() if (tensor := e.unchanging(buf)) is not None}
    if not all(buf.meta.is_contiguous() for value, buf in operands.items() if value not in fixed):
        return False  # what lies in another order, as images with channels last do, would be copied
    results = _results_of(row)
    model = _model(row, inputs, results, fixed)
    if model is None:
        return False
    try:
        session = _opened(model)
    except ProviderError:
        return False
    e.node, e.joined = _stand_in(row, inputs), True
    names = [value.name or "" for value in model.graph.outputs]
    fed = {value.name or "": buf for value, buf in operands.items() if value not in fixed}
    emit_session(e, e.node.op_type, session, fed, dict(zip(names, results, strict=True)))
    return True


def _inputs_of(row: Sequence[ir.Node]) -> list[ir.Value]:
    inside = {value for node in row for value in node.outputs}
    outside = (v for node in row for v in node.inputs if v is not None and v not in inside and v.const_value is None)
    return [*dict.fromkeys(outside)]


def _results_of(row: Sequence[ir.Node]) -> list[ir.Value]:
    """What others read of a row."""
    members = set(row)
    return [
        value for node in row for value in node.outputs
        if value.is_graph_output() or any(use.node not in members for use in value.uses())
    ]  # fmt: skip


def _model(
    row: Sequence[ir.Node], inputs: Sequence[ir.Value], results: Sequence[ir.Value],
    fixed: Mapping[ir.Value, torch.Tensor],
) -> ir.Model | None:  # fmt: skip
    """A row in onnxruntime's operators, with what never changes as constants; None where they do not suffice."""
    arrays = {value: to_array(tensor.contiguous()) for value, tensor in fixed.items()}
    fed = [value for value in inputs if value not in fixed]
    try:
        with blamed_on(row[0], "small nodes cannot run together", ProviderError):
            model = model_of(row, fed, results, "small", rewrite=_body, values=arrays, typed=True)
            for _ in range(_BODIES):
                if all(record_of(node).stock is Stock.KERNEL for node in model.graph):
                    for node in model.graph:
                        _drop_absent(node)
                    return model
                model = rebuild(model, _body, typed=True)
    except (GraphError, ProviderError):
        pass
    return None


def _drop_absent(node: ir.Node) -> None:
    """Drop operands that are left out at the end: an empty name there ends the process in LayerNormalization."""
    while node.inputs and node.inputs[-1] is None:
        node.resize_inputs(len(node.inputs) - 1)


def _body(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None] | None:
    return expand(op, node, inputs) if record_of(node).stock is not Stock.KERNEL else None


def _opened(model: ir.Model) -> Any:
    """A session that may be another plan's, too; it ran once, for onnxruntime refuses some nodes only then.

    Raises:
        ProviderError: onnxruntime refuses the model.
    """
    model.graph.opset_imports.pop(DOMAIN, None)
    for domain in {node.domain for node in model.graph if node.domain}:
        model.graph.opset_imports[domain] = 1
    content = ir.to_proto(model).SerializeToString()
    key = hashlib.blake2b(content).digest()
    session = _sessions.get(key)
    if session is None:
        session = open_model(content, "small nodes", settings={_UNFUSED: "1"})
        zeros = {v.name: np.zeros(static_dims(v), v.dtype.numpy()) for v in model.graph.inputs if v.dtype is not None}
        try:
            session.run(None, zeros)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise refused("small nodes", error) from error
        _sessions[key] = session
    return session


def _stand_in(row: Sequence[ir.Node], inputs: Sequence[ir.Value]) -> ir.Node:
    """A node that tells of the row where calls are listed; it is in no graph."""
    counts = Counter(node.op_type for node in row)
    told = [op_type if count == 1 else f"{count} {op_type}" for op_type, count in counts.items()]
    node = ir.Node("", " + ".join(told), [clone_value(value) for value in inputs], num_outputs=0)
    annotate(node, None, None, ", ".join(dict.fromkeys(filter(None, map(name_of, row)))))
    return node
