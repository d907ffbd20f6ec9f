"""Attention with dropout on the probabilities, and rotary positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.operators.agreement import shape_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.matmul import transposed
from ontrain.operators.record import DOMAIN, SWITCH, Chance, Precision, Smallest, Stock, define

__all__: list[str] = []


def _attention_flops(node: ir.Node) -> int:
    q, k, v = (shape_of(node, i) for i in range(3))
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _attention_grad_flops(node: ir.Node) -> int:
    q, k, v = (shape_of(node, i) for i in (1, 2, 3))
    return 4 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def _other_heads(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> str:
    """Whether operands that are cut into heads have as many as the node states."""
    for name, at in (("q_num_heads", 0), ("kv_num_heads", 1)):
        stated = node.attributes.get(name)
        if stated is not None and len(shapes[at]) == 4 and shapes[at][1] != stated.value:
            return f"its {name} is {stated.value}, and input {at} has {shapes[at][1]} heads"
    return ""


def _other_angles(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> str:
    """Whether there are cosines for half of the dimensions that turn."""
    if len(shapes[0]) == 3 and not node.attributes.get_int("num_heads", 0):
        return "attribute 'num_heads' is 0 or left out; it must be positive where the input is not cut into heads"
    stated = node.attributes.get_int("rotary_embedding_dim", 0)
    if not stated or 2 * shapes[1][-1] == stated:
        return ""
    return f"its rotary_embedding_dim is {stated}, and cos_cache has {shapes[1][-1]} columns"


define(
    "Attention",
    misfit=_other_heads,
    stock=Stock.COMPARED,
    choices={"softmax_precision": (1, 10, 11, 16), "qk_matmul_output_mode": (0, 1, 2, 3)},
    least={"softcap": 0},
)
define("LinearAttention", smallest=Smallest({"q_num_heads": 1, "kv_num_heads": 1}))
define("AttentionGrad", domain=DOMAIN, flops=_attention_grad_flops)


define(
    "Attention",
    domain=DOMAIN,
    chance=Chance.BY_ATTRIBUTE,
    precision=Precision.HALF,
    flops=_attention_flops,
    stock=Stock.BODY,
)


@gradient("Attention", domain=DOMAIN)
def attention(
    op: Op, dy: Value | None, q: Value, k: Value, v: Value, bias: Value | None = None,
    mask: Value | None = None, bounds: Value | None = None, *, scale: float = 1.0, dropout: float = 0.0,
    longest: int = 0,
) -> Adjoints:  # fmt: skip
    """The composite AttentionGrad from the saved probabilities and mask; scores' adjoint only for a wanted bias."""
    dbias = len(op.wanted) > 3 and op.wanted[3]
    probs, mask, dprobs = op.saved(1), op.saved(2) if mask is None else mask, op.dys[1] if len(op.dys) > 1 else None
    grads: list[Any] = [None] * 6
    if dy is not None:
        parts = op.composite(
            "AttentionGrad", dy, q, k, v, probs, mask, outputs=4 if dbias else 3, scale=scale, dropout=dropout
        )
        grads[: len(parts)] = parts
    if dprobs is not None:
        # The probabilities are an output too: a second derivative, or a loss on them, flows back through it.
        ds = op.composite("SoftmaxGrad", dprobs, probs, axis=-1)
        more = [op.MatMul(ds, k) * scale, op.MatMul(transposed(op, ds), q) * scale, None, ds, None, None]
        grads = [b if a is None else a if b is None else a + b for a, b in zip(grads, more, strict=True)]
    return grads[: len(op.inputs)]


define(
    "RotaryEmbedding",
    misfit=_other_angles,
    choices={"interleaved": SWITCH},
    least={"rotary_embedding_dim": 0},
    stock=Stock.COMPARED,
)


@gradient("RotaryEmbedding")
def rotary_embedding(
    op: Op, dy: Value, x: Value, cos: Value, sin: Value, positions: Value | None = None,
    **attributes: Any,
) -> Any:  # fmt: skip
    """A rotation's transpose is the rotation by the opposite angle; for trained tables the operator's body."""
    if op.wanted[1] or op.wanted[2]:
        return NotImplemented
    return op.RotaryEmbedding(dy, cos, op.Neg(sin), positions, **attributes), None, None, None
