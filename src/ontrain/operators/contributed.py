"""Operators that files hold and the standard does not: onnxruntime's."""

from __future__ import annotations

from ontrain.operators.record import Stock, define

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
define("FusedConv", domain=MICROSOFT, convolves=True, single=True, stock=Stock.BODY)
define("FusedGemm", domain=MICROSOFT, in_encoders=True, stock=Stock.BODY)
define("FusedMatMul", domain=MICROSOFT, in_encoders=True, stock=Stock.KERNEL)
define("GatherBlockQuantized", domain=MICROSOFT)
define("GatherND", domain=MICROSOFT)
define("Gelu", domain=MICROSOFT, marks_gelu=True, in_encoders=True, stock=Stock.KERNEL)
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
define("QLinearAdd", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearAveragePool", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearConcat", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearConv", domain=MICROSOFT)
define("QLinearGlobalAveragePool", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearLeakyRelu", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearMul", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearSigmoid", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearSoftmax", domain=MICROSOFT, stock=Stock.KERNEL)
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
