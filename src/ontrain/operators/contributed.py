"""Operators that files hold and the standard does not: onnxruntime's."""

from __future__ import annotations

from ontrain.operators.record import define

__all__: list[str] = []

MICROSOFT = "com.microsoft"
_CHOSEN = "it chooses tokens, which are whole numbers"

define("Attention", domain=MICROSOFT, in_encoders=True, mask=3)
define("BeamSearch", domain=MICROSOFT, searches=(0, 1, 2), no_gradient=_CHOSEN)
define("BiasGelu", domain=MICROSOFT, marks_gelu=True, in_encoders=True)
define("BiasSplitGelu", domain=MICROSOFT)
define("CDist", domain=MICROSOFT)
define("CausalConvWithState", domain=MICROSOFT)
define("CropAndResize", domain=MICROSOFT, settings=(3,))
define("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
define("DequantizeLinear", domain=MICROSOFT)
define("DynamicQuantizeLSTM", domain=MICROSOFT)
define("DynamicQuantizeMatMul", domain=MICROSOFT)
define("EmbedLayerNormalization", domain=MICROSOFT, in_encoders=True)
define("ExpandDims", domain=MICROSOFT, settings=(1,))
define("FastGelu", domain=MICROSOFT, marks_gelu=True, in_encoders=True)
define("FusedConv", domain=MICROSOFT)
define("FusedGemm", domain=MICROSOFT, in_encoders=True)
define("FusedMatMul", domain=MICROSOFT, in_encoders=True)
define("GatherBlockQuantized", domain=MICROSOFT)
define("GatherND", domain=MICROSOFT)
define("Gelu", domain=MICROSOFT, marks_gelu=True, in_encoders=True)
define("GreedySearch", domain=MICROSOFT, searches=(0,), no_gradient=_CHOSEN)
define("GridSample", domain=MICROSOFT)
define("GroupNorm", domain=MICROSOFT)
define("GroupQueryAttention", domain=MICROSOFT, settings=(6,))
define("Inverse", domain=MICROSOFT)
define("LinearAttention", domain=MICROSOFT)
define("MatMulBnb4", domain=MICROSOFT)
define("MatMulIntegerToFloat", domain=MICROSOFT)
define("MatMulNBits", domain=MICROSOFT)
define("MoE", domain=MICROSOFT)
define("MultiHeadAttention", domain=MICROSOFT, in_encoders=True, mask=4)
define("MurmurHash3", domain=MICROSOFT, no_gradient="its results are whole numbers")
define("NhwcMaxPool", domain=MICROSOFT)
define("Pad", domain=MICROSOFT, settings=(1,))
define("QAttention", domain=MICROSOFT)
define("QEmbedLayerNormalization", domain=MICROSOFT)
define("QMoE", domain=MICROSOFT)
define("QGemm", domain=MICROSOFT)
define("QLinearAdd", domain=MICROSOFT)
define("QLinearAveragePool", domain=MICROSOFT)
define("QLinearConcat", domain=MICROSOFT)
define("QLinearConv", domain=MICROSOFT)
define("QLinearGlobalAveragePool", domain=MICROSOFT)
define("QLinearLeakyRelu", domain=MICROSOFT)
define("QLinearMul", domain=MICROSOFT)
define("QLinearSigmoid", domain=MICROSOFT)
define("QLinearSoftmax", domain=MICROSOFT)
define("QLinearWhere", domain=MICROSOFT)
define("QuantizeLinear", domain=MICROSOFT)
define("QuickGelu", domain=MICROSOFT, marks_gelu=True, in_encoders=True)
define("Range", domain=MICROSOFT, settings=(0, 1, 2))
define("RotaryEmbedding", domain=MICROSOFT)
define("Sampling", domain=MICROSOFT, searches=(0,), no_gradient=_CHOSEN)
define("SkipLayerNormalization", domain=MICROSOFT, in_encoders=True)
define("SkipSimplifiedLayerNormalization", domain=MICROSOFT, in_encoders=True)
define("SparseAttention", domain=MICROSOFT, settings=(5, 6, 7))
define("Tokenizer", domain=MICROSOFT, no_gradient="it works on strings")
define("TransposeMatMul", domain=MICROSOFT)
define("Trilu", domain=MICROSOFT, settings=(1,))
define(
    "Unique",
    domain=MICROSOFT,
    no_gradient="its result has as many elements as there are distinct values, which no plan knows",
    sized_by_values=True,
)
define("WhisperBeamSearch", domain=MICROSOFT, searches=(2,), no_gradient=_CHOSEN)
