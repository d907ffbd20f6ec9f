"""What a gradient rule works with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GradientError
from ontrain.graph import Builder, describe, infer_node, source_of

__all__ = ["Op"]


class Op:
    """What a rule works with: a `Builder` that also knows the node being differentiated.

    Attributes:
        node: the forward node.
        outputs: its output values, saved from the forward pass.
        dys: the adjoint of each output, None where nothing flows back.
        wanted: for each input, whether its adjoint will be used.
    """

    def __init__(self, builder: Builder, node: ir.Node, inputs: Sequence[ir.Value | None],
                 dys: Sequence[ir.Value | None], wanted: Sequence[bool]) -> None:  # fmt: skip
        self.builder, self.node, self.inputs = builder, node, inputs
        self.outputs, self.dys, self.wanted = node.outputs, dys, wanted

    def saved(self, index: int) -> ir.Value:
        """Return an output of the forward node; the node is given the output if it left it out."""
        first = len(self.node.outputs)
        if first <= index:
            self.node.resize_outputs(index + 1)
            for value, inferred in list(zip(self.node.outputs, infer_node(self.node), strict=True))[first:]:
                if inferred is None:
                    raise ValueError(f"{self.node.op_type} does not say what its optional outputs are")
                value.dtype, value.shape = inferred
                value.name = self.builder.fresh(f"{self.node.outputs[0].name}_saved")
            self.outputs = self.node.outputs
        return self.node.outputs[index]

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Return the value of a constant input, None if the node leaves the input out; a computed input is refused."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            return None
        if value.const_value is None:
            raise self.refused(f"its input {value.name!r} is computed by the graph, and the gradient needs its value")
        return np.asarray(value.const_value.numpy())

    def reshaped(self, value: ir.Value, shape: Sequence[int]) -> Any:
        """Return `value` in another shape, as it is if it has that shape."""
        if value.shape is not None and tuple(value.shape) == tuple(shape):
            return value
        return self.builder.Reshape(value, list(shape), allowzero=1 if 0 in shape else None)

    def refused(self, reason: str, way_out: str = "detach its input, or write the model without it") -> GradientError:
        """Return the error for a form of the operator that has no gradient."""
        return GradientError(
            f"this use of {self.node.op_type} has no gradient, and the loss depends on a parameter through it",
            node=describe(self.node), source=source_of(self.node), reason=reason, way_out=way_out,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)
