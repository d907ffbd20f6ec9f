"""Recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from ontrain.operators.agreement import shape_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Op, gradient
from ontrain.operators.record import DIRECTION, DOMAIN, Evaluator, Operator, Smallest, Stock, attribute_of, define

__all__ = ["directions_backwards", "has_stock_kernel", "is_plain_layer"]

_USUAL = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Tanh"]}
"""The activations that layers have by default, of each direction."""
_STOCK = frozenset({"HardSigmoid", "Relu", "Sigmoid", "Softsign", "Tanh"})
"""Activations that onnxruntime's kernels of layers compute as the standard says, where no numbers are stated."""


def directions_backwards(direction: str) -> tuple[bool, ...]:
    """Return of each direction of a recurrent layer whether it begins at the end."""
    return (False, True) if direction == "bidirectional" else (direction == "reverse",)


def is_plain_layer(node: ir.Node) -> bool:
    """Return whether a recurrent layer has nothing but gates and states, and a length where it has one sequence.

    Such a layer has its operator's own activations, no peepholes and no bounds.
    """
    texts, usual = _activations(node), _USUAL[node.op_type]
    lengths, peepholes = (node.inputs[i] if len(node.inputs) > i else None for i in (4, 7))
    x = shape_of(node, 0)
    return (
        peepholes is None and not {"clip", "input_forget"}.intersection(node.attributes)
        and _has_time_first(node)
        and (lengths is None or (len(x) == 3 and x[1] == 1))
        and texts == usual * (len(texts) // len(usual))
    )  # fmt: skip


def has_stock_kernel(node: ir.Node) -> bool:
    """Return whether onnxruntime's kernel computes a layer as the standard says.

    It knows peepholes, bounds and lengths, and of other activations those without numbers of their own, such as Relu.
    """
    numbers = {"activation_alpha", "activation_beta"}.intersection(node.attributes)
    return _has_time_first(node) and not numbers and _STOCK.issuperset(_activations(node))


def _activations(node: ir.Node) -> list[str]:
    return [*node.attributes["activations"].as_strings()] if "activations" in node.attributes else []


def _has_time_first(node: ir.Node) -> bool:
    return node.attributes.get_int("layout", 0) == 0


def _recurrent(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """x [L, N, D], weights [directions, gates · H, D] and […, H], bias, lengths [N], states [directions, N, H]."""
    x, w = shapes[:2]
    if len(x) == len(w) == 3:
        yield x[2], w[2]
        if len(shapes) > 4 and shapes[4]:
            yield x[1], shapes[4][0]
        for state in shapes[5:7]:
            if len(state) == 3:
                yield from ((x[1], state[1]), (shapes[2][-1], state[2]))


def _layer_flops(node: ir.Node) -> int:
    """x [L, N, I] and the hidden states, each times a matrix for each direction."""
    x, w, r = (shape_of(node, i) for i in range(3))
    return 2 * math.prod(x[:2]) * math.prod(w[:2]) * (w[2] + r[2])


def _functions(node: ir.Node) -> str:
    """What is wrong with the activations of a layer, and with its bound. Below zero an RNN's bound is none."""
    stated, usual = node.attributes.get("activations"), _USUAL[node.op_type]
    directions = len(directions_backwards(attribute_of(node, "direction")))
    names, wanted = list(stated.value) if stated is not None else [], directions * len(usual)
    count = len(names)
    if count and (count < wanted or (count > wanted and len(usual) > 1)):
        return f"its activations are {names}; {node.op_type} takes {len(usual)} for each direction"
    clip = attribute_of(node, "clip")
    if clip is not None and (clip == 0 or (clip < 0 and len(usual) > 1)):
        return f"its clip is {clip}; a bound is greater than 0"
    return ""


_LAYER = Operator(
    "",
    choices=DIRECTION,
    fault=_functions,
    recurrent=True,
    evaluator=Evaluator.IN_PART,
    agreeing=_recurrent,
    smallest=Smallest({"hidden_size": 1}),
    flops=_layer_flops,
    stock=Stock.KERNEL,
)
define("GRU", _LAYER)
define("LSTM", _LAYER)
define("RNN", _LAYER)
define("LstmLayer", domain=DOMAIN, flops=_layer_flops)
define("LstmLayerGrad", domain=DOMAIN, flops=lambda node: 2 * _layer_flops(node))


@gradient("LstmLayer", domain=DOMAIN)
def lstm_layer(
    op: Op, dy: Value | None, x: Value, w: Value, r: Value, bias: Value | None = None, h: Value | None = None,
    c: Value | None = None, *, direction: str = "forward", order: str = "iofc",
) -> Any:  # fmt: skip
    """The composite LstmLayerGrad from the gates and cells of all steps; where these have adjoints, the body's."""
    if any(adjoint is not None for adjoint in op.dys[3:]):
        return NotImplemented
    dh, dc = (op.dys[i] if len(op.dys) > i else None for i in (1, 2))
    of_layer: tuple[Any, ...] = (op.saved(0), op.saved(3), op.saved(4))
    ways = {"direction": direction, "order": order}
    parts = op.composite("LstmLayerGrad", x, w, r, h, c, *of_layer, dy, dh, dc, outputs=6, **ways)
    return list(parts)[: len(op.inputs)]
