"""Operators that files hold and the standard does not: onnxruntime's."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.operators.pooling import wide_pads
from ontrain.operators.record import AUTO_PAD, DIRECTION, SWITCH, Outrun, Stock, define

__all__: list[str] = []

MICROSOFT = "com.microsoft"
_CHOSEN = "it chooses tokens, which are whole numbers"

_QUANTISED = ("NONE", "PER_TENSOR", "PER_CHANNEL", "none", "per_tensor", "per_channel")
_HEADS = {"num_heads": 1}
_EXPERTS = {"normalize_routing_weights": SWITCH, "swiglu_fusion": (0, 1, 2)}

_BITS = {f"fc{layer}_expert_weight_bits": (2, 4, 8) for layer in (1, 2, 3)}


def _odd_blocks(node: ir.Node) -> str:
    """Blocks of quantised numbers are as long as a power of two."""
    size = node.attributes.get_int("block_size", 0)
    return f"its block_size is {size}, and no power of 2" if size & (size - 1) else ""


def _unknown_heads(node: ir.Node) -> str:
    """Where a part of each head turns, the file says how many heads there are."""
    part, heads = (node.attributes.get_int(name, 0) for name in ("rotary_embedding_dim", "num_heads"))
    if not part or heads:
        return ""
    return f"its rotary_embedding_dim is {part}, and num_heads is 0 or left out"


def _empty_window(node: ir.Node) -> str:
    """A window of no tokens hides all of them; -1 stands for none."""
    return "its local_window_size is 0" if node.attributes.get_int("local_window_size", -1) == 0 else ""


define(
    "Attention",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    in_encoders=True,
    mask=3,
    choices={"unidirectional": SWITCH},
    least=_HEADS,
)
define("BeamSearch", domain=MICROSOFT, searches=(0, 1, 2), no_gradient=_CHOSEN)
define("BiasGelu", domain=MICROSOFT, stock=Stock.COMPARED, marks_gelu=True, in_encoders=True)
define("BiasSplitGelu", domain=MICROSOFT)
define("CDist", domain=MICROSOFT)
define("CausalConvWithState", domain=MICROSOFT, stock=Stock.COMPARED)
define("CropAndResize", domain=MICROSOFT, settings=(3,), choices={"mode": ("bilinear", "nearest")})
define("DecoderMaskedMultiHeadAttention", domain=MICROSOFT, stock=Stock.COMPARED, least=_HEADS)
define("DequantizeLinear", domain=MICROSOFT, stock=Stock.COMPARED)
define("DynamicQuantizeLSTM", domain=MICROSOFT, stock=Stock.COMPARED, outrun=Outrun.BUT_TIES, choices=DIRECTION)
define("DynamicQuantizeMatMul", domain=MICROSOFT, stock=Stock.COMPARED, outrun=Outrun.BUT_TIES)
define("EmbedLayerNormalization", domain=MICROSOFT, stock=Stock.COMPARED, in_encoders=True, least={"epsilon": 0})
define("ExpandDims", domain=MICROSOFT, settings=(1,))
define("FastGelu", domain=MICROSOFT, stock=Stock.COMPARED, marks_gelu=True, in_encoders=True)
define("FusedConv", domain=MICROSOFT, convolves=True, stock=Stock.BODY, choices=AUTO_PAD)
define("FusedGemm", domain=MICROSOFT, in_encoders=True, stock=Stock.BODY)
define("FusedMatMul", domain=MICROSOFT, in_encoders=True, stock=Stock.KERNEL)
define("GatherBlockQuantized", domain=MICROSOFT, stock=Stock.COMPARED, choices={"bits": (2, 4, 8)}, fault=_odd_blocks)
define("GatherND", domain=MICROSOFT)
define("Gelu", domain=MICROSOFT, marks_gelu=True, in_encoders=True, stock=Stock.KERNEL)
define("GreedySearch", domain=MICROSOFT, searches=(0,), no_gradient=_CHOSEN)
define(
    "GridSample",
    domain=MICROSOFT,
    choices={"mode": ("bilinear", "nearest", "bicubic"), "padding_mode": ("zeros", "border", "reflection")},
)
define("GroupNorm", domain=MICROSOFT)
define(
    "GroupQueryAttention",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    outrun=Outrun.ALIKE,
    settings=(6,),
    choices={
        "do_rotary": SWITCH,
        "rotary_interleaved": SWITCH,
        "smooth_softmax": SWITCH,
        "causal": SWITCH,
        "k_quant_type": _QUANTISED,
        "v_quant_type": _QUANTISED,
        "kv_cache_bit_width": (0, 4, 8),
    },
    least={**_HEADS, "softcap": 0, "local_window_size": -1},
    fault=_empty_window,
)
define("Inverse", domain=MICROSOFT, singular=True)
define("LinearAttention", domain=MICROSOFT, stock=Stock.COMPARED)
define(
    "MatMulBnb4",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    outrun=Outrun.ALIKE,
    choices={"quant_type": (0, 1)},
    least={"N": 1, "block_size": 16},
    fault=_odd_blocks,
)
define("MatMulIntegerToFloat", domain=MICROSOFT, stock=Stock.COMPARED, outrun=Outrun.ALIKE)
define(
    "MatMulNBits",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    outrun=Outrun.ALIKE,
    choices={"bits": (2, 4, 8)},
    least={"N": 1, "K": 1},
)
define("MoE", domain=MICROSOFT, stock=Stock.COMPARED, choices=_EXPERTS, least={"k": 1})
define(
    "MultiHeadAttention",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    in_encoders=True,
    mask=4,
    choices={"unidirectional": SWITCH},
    least=_HEADS,
)
define("MurmurHash3", domain=MICROSOFT, no_gradient="its results are whole numbers")
define("NhwcMaxPool", domain=MICROSOFT, choices=AUTO_PAD, fault=wide_pads)
define("Pad", domain=MICROSOFT, settings=(1,))
define(
    "QAttention",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    outrun=Outrun.BUT_TIES,
    choices={"unidirectional": SWITCH},
    least=_HEADS,
)
define("QEmbedLayerNormalization", domain=MICROSOFT, stock=Stock.COMPARED, outrun=Outrun.BUT_TIES, least={"epsilon": 0})
define(
    "QMoE",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    outrun=Outrun.ALIKE,
    choices={**_EXPERTS, **_BITS},
    least={"k": 1, "block_size": 0},
    fault=_odd_blocks,
)
define("QGemm", domain=MICROSOFT, stock=Stock.COMPARED, outrun=Outrun.BUT_TIES)
define("QLinearAdd", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearAveragePool", domain=MICROSOFT, stock=Stock.KERNEL, choices=AUTO_PAD, fault=wide_pads)
define("QLinearConcat", domain=MICROSOFT, stock=Stock.KERNEL)
define(
    "QLinearConv",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    outrun=Outrun.BUT_TIES,
    choices={**AUTO_PAD, "channels_last": SWITCH},
)
define("QLinearGlobalAveragePool", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearLeakyRelu", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearMul", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearSigmoid", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearSoftmax", domain=MICROSOFT, stock=Stock.KERNEL)
define("QLinearWhere", domain=MICROSOFT, stock=Stock.COMPARED)
define("QuantizeLinear", domain=MICROSOFT, stock=Stock.COMPARED, outrun=Outrun.BUT_TIES)
define("QuickGelu", domain=MICROSOFT, stock=Stock.COMPARED, marks_gelu=True, in_encoders=True)
define("Range", domain=MICROSOFT, settings=(0, 1, 2))
define(
    "RotaryEmbedding",
    domain=MICROSOFT,
    stock=Stock.COMPARED,
    choices={"interleaved": SWITCH},
    least={"rotary_embedding_dim": 0},
    fault=_unknown_heads,
)
define("Sampling", domain=MICROSOFT, searches=(0,), no_gradient=_CHOSEN)
define("SkipLayerNormalization", domain=MICROSOFT, stock=Stock.COMPARED, in_encoders=True, least={"epsilon": 0})
define(
    "SkipSimplifiedLayerNormalization", domain=MICROSOFT, stock=Stock.COMPARED, in_encoders=True, least={"epsilon": 0}
)
define("SparseAttention", domain=MICROSOFT, settings=(5, 6, 7), least=_HEADS)
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
