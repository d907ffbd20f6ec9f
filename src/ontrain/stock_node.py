"""One node run by the installed onnxruntime: for expressions, which Python's `re` may take for ever to match.

onnxruntime matches by RE2, whose syntax the standard means, in a time that is linear in the text. Python's `re` tries
one way after the other, and a file's expression can have more of them than anyone waits for.

Outside of the rooms: constants are folded by it, and providers run by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.errors import ProviderError
from ontrain.stock import stock

__all__ = ["run_stock"]

Array = np.ndarray[Any, Any]
_OPSET = 20
"""The first one that has expressions."""


def run_stock(
    op_type: str, arrays: Sequence[Array], *, domain: str = "", result: int = onnx.TensorProto.STRING, **attributes: Any
) -> Array:
    """Return the one result of an operator on arrays, texts being arrays of objects.

    Args:
        op_type: of an operator that onnxruntime has on the CPU.
        arrays: the operands.
        domain: the operator's.
        result: element type of the result, by onnx's number.
        attributes: by name; None for one that is left out.

    Raises:
        ProviderError: onnxruntime refuses the attributes or the operands.
    """
    present = tuple(sorted((name, value) for name, value in attributes.items() if value is not None))
    texts = [array.astype(object) if array.dtype.kind in "OSU" else array for array in arrays]
    kinds = tuple((_kind(array), array.ndim) for array in texts)
    hashable = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in present)
    try:
        session = _session(op_type, domain, kinds, result, hashable)
        (array,) = session.run(None, {f"i{at}": fed for at, fed in enumerate(texts)})
    except Exception as error:  # onnxruntime's errors share no base but Exception
        raise ProviderError(
            f"{op_type} cannot be run", reason=" ".join(str(error).split()),
            way_out="check its attributes; expressions are written in RE2's syntax",
        ) from error  # fmt: skip
    return np.asarray(array)


def _kind(array: Array) -> int:
    return int(ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype))


@lru_cache(64)
def _session(
    op_type: str, domain: str, kinds: tuple[tuple[int, int], ...], result: int, attributes: tuple[tuple[str, Any], ...]
) -> Any:
    graph = onnx.GraphProto(name=op_type)
    for at, (kind, rank) in enumerate(kinds):
        value = graph.input.add(name=f"i{at}")
        value.type.tensor_type.elem_type = kind
        value.type.tensor_type.shape.SetInParent()
        for axis in range(rank):
            value.type.tensor_type.shape.dim.add().dim_param = f"i{at}_{axis}"
    graph.output.add(name="result").type.tensor_type.elem_type = result
    node = graph.node.add(op_type=op_type, domain=domain, input=[f"i{at}" for at in range(len(kinds))])
    node.output.append("result")
    for name, setting in attributes:
        told = list(setting) if isinstance(setting, tuple) else setting
        node.attribute.append(ir.to_proto(ir.convenience.convert_attribute(name, told)))
    model = onnx.ModelProto(ir_version=10, graph=graph)
    model.opset_import.add(domain="", version=_OPSET)
    if domain:
        model.opset_import.add(domain=domain, version=1)
    options = stock().SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return stock().InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
