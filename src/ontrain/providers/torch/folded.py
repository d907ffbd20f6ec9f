"""Constants of a graph, computed by the kernels that compute them in eager PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx_ir as ir

from ontrain.capture import to_array, to_tensor
from ontrain.graph import new_model
from ontrain.operators import record_of
from ontrain.providers.base import Array
from ontrain.providers.torch.provider import TorchExecutionProvider

__all__ = ["constants_of"]


def constants_of(node: ir.Node, operands: Sequence[Array | None]) -> list[Array] | None:
    """Return the results of a node, or None if the torch provider does not compute it.

    In single precision libraries differ in the last digit of `exp` or `cos`. A model that multiplies such a frequency
    by a large number, as a sinusoidal embedding does, shows the difference in its fifth digit.
    """
    provider = _provider()
    static = all(value.shape is not None and value.shape.is_static() for value in node.outputs)
    if not static or provider.supports(node) is not None:
        return None
    feeds: dict[str, Array] = {}
    copies = [_copy(node, i, operand, feeds) for i, operand in enumerate(operands)]
    model = new_model([value for value in copies if value is not None and value.name in feeds], "constant")
    results = [ir.Value(name=f"result_{i}", type=v.type, shape=v.shape) for i, v in enumerate(node.outputs)]
    model.graph.append(ir.Node(node.domain, node.op_type, copies, node.attributes.values(), outputs=results))
    model.graph.outputs.extend(results)
    values = provider.compile(model, provider.create_state([])).run(
        {name: to_tensor(array) for name, array in feeds.items()}
    )
    return [to_array(values[str(result.name)], result.dtype).copy() for result in results]


@cache
def _provider() -> TorchExecutionProvider:
    return TorchExecutionProvider(tune=False)


def _copy(node: ir.Node, position: int, operand: Array | None, feeds: dict[str, Array]) -> ir.Value | None:
    """An operand of the copied node: fed, or a constant where the kernel takes a number or a setting."""
    value = node.inputs[position]
    if value is None or operand is None:
        return None
    name = f"operand_{position}"
    is_number = operand.ndim == 0 and position > 0
    if is_number or position in record_of(node).settings:
        return ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    feeds[name] = operand
    return ir.Value(name=name, type=value.type, shape=ir.Shape(operand.shape))
