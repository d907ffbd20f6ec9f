"""Programs in float32 whose products are multiplied in bfloat16: faster on processors that have units for it."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.passes.lower_precision import LowerPrecision

__all__ = ["BFloat16Products"]


class BFloat16Products(LowerPrecision):
    """Multiply in bfloat16, and do all else in float32; a program asks for it without a change to itself.

        MatMul(x, W) → Gelu   →   Cast(MatMul(Cast(x), Cast(W))) → Gelu

    Register it, and every plan made from then on is rewritten, for training and evaluation:

        register_pass(BFloat16Products(), stage="forward", after="FuseHead")

    Matrix products, convolutions and attention to which a parameter contributes read operands with eight bits of
    mantissa, add up in float32 and give bfloat16; products of the gradient likewise. Weights, their gradients, moments,
    norms, softmax outside of attention and losses stay in float32. PyTorch's `fp32_precision = "bf16"` is the same
    idea.

    Left out of plans, with a warning, where the provider has no units for bfloat16: products would be slower then.
    """

    multiplies_bfloat16 = True

    def __init__(self) -> None:
        super().__init__(ir.DataType.BFLOAT16, products_only=True)
