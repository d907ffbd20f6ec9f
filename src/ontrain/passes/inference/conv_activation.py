"""What follows a convolution at each place of its result, computed where the result is made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import MICROSOFT, OPERATORS, attribute_of, each, is_hardsigmoid
from ontrain.passes.fusion import Fusion, Match, Pattern, fail

__all__ = ["FuseConvActivations"]

_CONV = Pattern("Conv", ("x", "w", "b?"), name="conv")


class FuseConvActivations(Fusion):
    """Let a convolution add what is added to its result, and apply the activation that follows.

        Relu(Conv(x, W, b) + z)   →   FusedConv(x, W, b, z, activation="Relu")

    Equal by the definition of onnxruntime's FusedConv. Also Sigmoid, Tanh, LeakyRelu, HardSwish, HardSigmoid, Silu and
    Clip, of a convolution without a sum. Left alone: a sum that broadcasts, bounds that are computed, a HardSigmoid
    of other numbers than PyTorch's, and results that others read.
    """

    serves, level = True, 2
    patterns = (
        Pattern("Relu", (Pattern("Add", (_CONV, "z"), name="sum", commutes=True),)),
        *(
            Pattern(kind, (_CONV, *(("low?", "high?") if kind == "Clip" else ())), domain=domain)
            for (domain, kind), record in OPERATORS.items()
            if "Conv" in record.epilogue_of
        ),
        Pattern("Add", (_CONV, "z"), commutes=True),
    )

    def check(self, match: Match) -> None:
        """Look for a sum of equal shapes, and for bounds that are numbers."""
        conv, z = match.nodes["conv"].outputs[0], match.values.get("z")
        if z is not None and (z.shape != conv.shape or z.dtype != conv.dtype):
            fail("what is added to the convolution has another shape")
        for name in ("low", "high"):
            bound = match.values.get(name)
            if bound is not None and bound.const_value is None:
                fail("a bound of the activation is computed")
        if match.node.op_type == "HardSigmoid" and not is_hardsigmoid(*_slope(match.node)):
            fail("no kernel of convolutions applies a HardSigmoid of these numbers")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the fused convolution."""
        inputs = [operands.get(name) for name in ("x", "w", "b", "z")]
        while inputs[-1] is None:
            inputs.pop()
        attributes = [*match.nodes["conv"].attributes.values(), *_activation(match)]
        fused = ir.Node(MICROSOFT, "FusedConv", inputs, attributes, num_outputs=1)
        return [*each(op.add(fused, [match.node.outputs[0].name]))]


def _activation(match: Match) -> list[ir.Attr]:
    node = match.node
    if node.op_type == "Add":
        return []
    name = "Swish" if node.op_type == "Silu" else node.op_type
    numbers: Sequence[float] = ()
    if name == "Clip":
        numbers = _bounds(match)
    elif name == "LeakyRelu":
        numbers = [float(attribute_of(node, "alpha"))]
    elif name == "HardSigmoid":
        numbers = _slope(node)
    return [ir.AttrString("activation", name), *([ir.AttrFloat32s("activation_params", numbers)] if numbers else [])]


def _slope(node: ir.Node) -> Sequence[float]:
    return [float(attribute_of(node, name)) for name in ("alpha", "beta")]


def _bounds(match: Match) -> Sequence[float]:
    constants = (match.values.get(name) for name in ("low", "high"))
    numbers = [None if bound is None else bound.const_value for bound in constants]
    default = -math.inf, math.inf
    return [d if n is None else float(n.numpy().reshape(())) for n, d in zip(numbers, default, strict=True)]
