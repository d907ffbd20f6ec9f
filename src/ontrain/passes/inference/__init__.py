"""Passes over a graph that is made for inference: its sizes are open, and the values of its weights known."""

from ontrain.passes.inference.conv_activation import FuseConvActivations
from ontrain.passes.inference.convolution import FoldBatchNormalization, FoldChannelArithmetic
from ontrain.passes.inference.folding import FoldWeights
from ontrain.passes.inference.hard_swish import FuseHardActivations
from ontrain.passes.inference.identities import RemoveIdentities
from ontrain.passes.inference.integer_products import FuseIntegerProducts
from ontrain.passes.inference.layer_norm import FuseLayerNormalization
from ontrain.passes.inference.linear import FuseMatMulAdd, TransposeWeights
from ontrain.passes.inference.linear_activation import FuseLinearActivations
from ontrain.passes.inference.numbers import SettleNumbers
from ontrain.passes.inference.rms_norm import FuseRMSNormalization
from ontrain.passes.inference.weights import Weights, forget_weights, weights_of, with_weights

__all__ = [
    "FoldBatchNormalization",
    "FoldChannelArithmetic",
    "FoldWeights",
    "FuseConvActivations",
    "FuseHardActivations",
    "FuseIntegerProducts",
    "FuseLayerNormalization",
    "FuseLinearActivations",
    "FuseMatMulAdd",
    "FuseRMSNormalization",
    "RemoveIdentities",
    "SettleNumbers",
    "TransposeWeights",
    "Weights",
    "weights_of",
    "forget_weights",
    "with_weights",
]
