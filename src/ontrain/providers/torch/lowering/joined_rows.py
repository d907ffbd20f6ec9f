"""Rows of small nodes as calls of onnxruntime: the nodes become a model of their own, whose session it optimises.

What follows from a session's weights alone is such a model, too, which runs once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ontrain.capture import to_array
from ontrain.errors import GraphError, ProviderError
from ontrain.functions import expand
from ontrain.graph import Builder, annotate, blamed_on, clone_value, model_of, name_of, rebuild
from ontrain.operators import DOMAIN, Stock, record_of, static_dims
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.small_nodes import is_alike
from ontrain.providers.torch.lowering.stock_calls import emit_session
from ontrain.providers.torch.lowering.stock_forms import stock_form
from ontrain.stock_node import open_model, refused

__all__ = ["bind_fixed", "emit_joined"]

_BODIES = 8
"""How deep bodies lie in each other at most."""
_UNFUSED = "session.disable_quant_qdq"
"""Kernels that onnxruntime makes of nodes for quantisation saturate on some processors."""
_LARGE = 1 << 12
"""Bytes from which on a constant is lent to onnxruntime."""
_COPIED = 1 << 12
"""Bytes whose copy into another order takes as long as a node's call."""
_SHARED = (torch.float32, torch.float64, torch.int64, torch.int32)
_sessions: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
"""By what they run, for as long as a plan has them."""


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
        if operands and is_alike(node) and all(v in fixed or _is_weight(e, v) for v in operands):
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


def emit_joined(e: Emitter, nodes: Iterable[ir.Node]) -> bool:
    """Emit nodes as one call; return False, and emit nothing, where they have to be lowered one by one."""
    row = [*nodes]
    inputs = _inputs_of(row)
    if not all(map(e.computed, inputs)):
        return False  # whoever makes one of them leaves it to a lowering of its reader
    operands = {value: e.value(value) for value in inputs}
    fixed = {value: tensor for value, buf in operands.items() if (tensor := e.unchanging(buf)) is not None}
    apart = [buf.meta.nbytes for value, buf in operands.items() if value not in fixed and not buf.meta.is_contiguous()]
    if sum(apart) > _COPIED * len(row):
        return False  # what lies in another order, as images with channels last do, is copied
    results, lent = _results_of(row), _lent(fixed)
    model = _model(row, inputs, results, {v: tensor for v, tensor in fixed.items() if v.name not in lent})
    if model is None:
        return False
    try:
        session = _opened(model, lent)
    except ProviderError:
        return False
    e.session_weights.note_holder(session, sum(tensor.nbytes for tensor in lent.values()))
    e.node, e.joined = _stand_in(row, inputs), True
    names = [value.name or "" for value in model.graph.outputs]
    fed = {value.name or "": buf for value, buf in operands.items() if value not in fixed}
    emit_session(e, e.node.op_type, session, fed, dict(zip(names, results, strict=True)))
    return True


def _lent(fixed: Mapping[ir.Value, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By name, what onnxruntime reads where it lies: a message that holds it is written, read and copied."""
    return {
        value.name or "": tensor for value, tensor in fixed.items()
        if tensor.nbytes >= _LARGE and tensor.dtype in _SHARED and tensor.is_contiguous()
    }  # fmt: skip


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
                if all(record_of(node).stock_of(node) is Stock.KERNEL for node in model.graph):
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
    if record_of(node).stock_of(node) is Stock.KERNEL:
        return None
    form = stock_form(node)
    return expand(op, node, inputs) if form is None else form(op, node, inputs)


def _opened(model: ir.Model, lent: Mapping[str, torch.Tensor] | None = None) -> Any:
    """A session that may be another plan's, too; it ran once, for onnxruntime refuses some nodes only then.

    Args:
        model: of the row.
        lent: by name the inputs that never change; the session keeps them alive.

    Raises:
        ProviderError: onnxruntime refuses the model.
    """
    lent = lent or {}
    model.graph.opset_imports.pop(DOMAIN, None)
    for domain in {node.domain for node in model.graph if node.domain}:
        model.graph.opset_imports[domain] = 1
    proto = ir.to_proto(model)
    _lend(proto.graph, lent)
    content = proto.SerializeToString()
    key = hashlib.blake2b(content).digest(), *(tensor.data_ptr() for tensor in lent.values())
    session = _sessions.get(key)
    if session is None:
        session = open_model(content, "small nodes", settings={_UNFUSED: "1"}, lent=lent)
        fed = [v for v in model.graph.inputs if v.dtype is not None and v.name not in lent]
        zeros = {v.name: np.zeros(static_dims(v), v.dtype.numpy()) for v in fed if v.dtype is not None}
        try:
            session.run(None, zeros)
        except Exception as error:  # onnxruntime's errors share no base but Exception
            raise refused("small nodes", error) from error
        _sessions[key] = session
    return session


def _lend(graph: onnx.GraphProto, lent: Mapping[str, torch.Tensor]) -> None:
    """Make initializers of inputs, whose numbers are elsewhere."""
    inputs = {value.name: value for value in graph.input}
    for name in lent:
        value = inputs[name]
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        tensor = graph.initializer.add(name=name, data_type=value.type.tensor_type.elem_type, dims=dims)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="lent")
        graph.input.remove(value)


def _stand_in(row: Sequence[ir.Node], inputs: Sequence[ir.Value]) -> ir.Node:
    """A node that tells of the row where calls are listed; it is in no graph."""
    counts = Counter(node.op_type for node in row)
    told = [op_type if count == 1 else f"{count} {op_type}" for op_type, count in counts.items()]
    node = ir.Node("", " + ".join(told), [clone_value(value) for value in inputs], num_outputs=0)
    annotate(node, None, None, ", ".join(dict.fromkeys(filter(None, map(name_of, row)))))
    return node
