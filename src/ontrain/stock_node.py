"""One node, or a few in a row, in a session of the installed onnxruntime.

Expressions are matched by it: onnxruntime matches by RE2, whose syntax the standard means, in a time that is linear in
the text. Python's `re` tries one way after the other, and a file's expression can have more of them than anyone waits
for. Recurrent layers run by it where ATen has no kernel.

A session runs on the calling thread alone, so that no pool of threads stands beside torch's, and a child process may go
on using it.

Outside of the rooms: constants are folded by it, and providers run by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.errors import ProviderError
from ontrain.stock import stock

__all__ = ["Step", "open_model", "open_node", "open_nodes", "refused", "run_options", "run_stock"]

Array = np.ndarray[Any, Any]
_OPSET = 20
"""The first one that has expressions."""


class Step(NamedTuple):
    """A node of a session: its operator, what it reads and makes by name, its attributes, and its domain."""

    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    domain: str = ""


def open_node(
    op_type: str, inputs: Sequence[ir.DataType | Array | None], outputs: int, attributes: Mapping[str, Any],
    domain: str = "", hint: str = "",
) -> Any:  # fmt: skip
    """Return a session for one node, whatever the sizes of its inputs.

    Args:
        op_type: of an operator that onnxruntime has on the CPU.
        inputs: of each, `i0`, `i1`, …, its type; the array for one that never changes, None for one that is left out.
        outputs: how many there are: `o0`, `o1`, …
        attributes: by name; None for one that is left out.
        domain: the operator's.
        hint: see `refused`.

    Raises:
        ProviderError: onnxruntime refuses the node.
    """
    names = ["" if kind is None else f"i{at}" for at, kind in enumerate(inputs)]
    results = [f"o{at}" for at in range(outputs)]
    kinds = {name: kind for name, kind in zip(names, inputs, strict=True) if kind is not None}
    return open_nodes([Step(op_type, names, results, attributes, domain)], kinds, results, hint)


def open_nodes(
    steps: Sequence[Step], inputs: Mapping[str, ir.DataType | Array], outputs: Sequence[str], hint: str = ""
) -> Any:
    """Return a session for nodes in a row.

    Args:
        steps: the nodes in order.
        inputs: by name the type of what is fed, or the array of what never changes.
        outputs: names of the results.
        hint: see `refused`.

    Raises:
        ProviderError: onnxruntime refuses the nodes.
    """
    graph = onnx.GraphProto(name=steps[0].op_type)
    for name, kind in inputs.items():
        if isinstance(kind, np.ndarray):
            graph.initializer.append(onnx.numpy_helper.from_array(kind, name))
        else:
            graph.input.add(name=name).type.tensor_type.elem_type = int(kind)
    for name in outputs:
        graph.output.add(name=name)
    for step in steps:
        node = graph.node.add(op_type=step.op_type, domain=step.domain, input=step.inputs, output=step.outputs)
        for name, setting in step.attributes.items():
            if setting is not None:
                told = list(setting) if isinstance(setting, tuple) else setting
                node.attribute.append(ir.to_proto(ir.convenience.convert_attribute(name, told)))
    model = onnx.ModelProto(ir_version=10, graph=graph)
    model.opset_import.add(domain="", version=_OPSET)
    for domain in {step.domain for step in steps if step.domain}:
        model.opset_import.add(domain=domain, version=1)
    return open_model(model.SerializeToString(), steps[0].op_type, hint)


def open_model(
    model: bytes, operators: str, hint: str = "", settings: Mapping[str, str] | None = None,
    lent: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Return a session for a model, which runs on the calling thread.

    Args:
        model: the serialised message.
        operators: what it consists of, in words.
        hint: see `refused`.
        settings: entries of the session's configuration.
        lent: by name what external initializers are, with `__dlpack__`; it is read where it lies.

    Raises:
        ProviderError: onnxruntime refuses the model.
    """
    options = stock().SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    for name, setting in (settings or {}).items():
        options.add_session_config_entry(name, setting)
    try:
        if lent:
            values = [stock().OrtValue.from_dlpack(tensor) for tensor in lent.values()]
            options.add_external_initializers(list(lent), values)
        return stock().InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise refused(operators, error, hint) from error


@lru_cache(1)
def run_options() -> Any:
    """Return options for all runs of nodes, which say nothing."""
    return stock().RunOptions()


def refused(op_type: str, error: Exception, hint: str = "") -> ProviderError:
    """Return the error for a node that onnxruntime refuses, or that fails when it runs; a hint adds to the way out."""
    return ProviderError(
        f"onnxruntime's kernel of {op_type} refuses", reason=" ".join(str(error).split()),
        way_out=f"check the node's attributes and what it is fed{hint}",
    )  # fmt: skip


def run_stock(
    op_type: str, arrays: Sequence[Array | None], *, domain: str = "", hint: str = "", **attributes: Any
) -> Array:  # fmt: skip
    """Return the one result of an operator on arrays, texts being arrays of objects.

    Args:
        op_type: of an operator that onnxruntime has on the CPU.
        arrays: the operands; None for one that is left out.
        domain: the operator's.
        hint: see `refused`.
        attributes: by name; None for one that is left out.

    Raises:
        ProviderError: onnxruntime refuses the attributes or the operands.
    """
    operands = [array.astype(object) if array is not None and array.dtype.kind in "OSU" else array for array in arrays]
    settings = tuple((n, tuple(told) if isinstance(told, list) else told) for n, told in sorted(attributes.items()))
    session = _session(op_type, domain, tuple(map(_kind, operands)), settings, hint)
    try:
        (array,) = session.run(None, {f"i{at}": fed for at, fed in enumerate(operands) if fed is not None})
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise refused(op_type, error, hint) from error
    return np.asarray(array)


def _kind(array: Array | None) -> ir.DataType | None:
    if array is None:
        return None
    return ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype)


@lru_cache(64)
def _session(
    op_type: str, domain: str, kinds: tuple[ir.DataType | None, ...], attributes: tuple[tuple[str, Any], ...], hint: str
) -> Any:
    return open_node(op_type, kinds, 1, dict(attributes), domain, hint)
