"""The 28 names of huggingface_models_list_cpu.txt, from configurations of a few thousand parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import undropped
from tests.training.compiled.suite.entry import Batch, SuiteModel, without_dropout

__all__ = ["MODELS"]

_VOCAB, _WIDTH, _HEADS, _DEEP = 50, 16, 2, 2
_SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
_BERT = dict(vocab_size=_VOCAB, hidden_size=_WIDTH, num_hidden_layers=_DEEP, num_attention_heads=_HEADS,
             intermediate_size=24, max_position_embeddings=80, **_SPECIAL)  # fmt: skip
_BART = dict(vocab_size=_VOCAB, d_model=_WIDTH, encoder_layers=_DEEP, decoder_layers=_DEEP,
             encoder_attention_heads=_HEADS, decoder_attention_heads=_HEADS, encoder_ffn_dim=24, decoder_ffn_dim=24,
             max_position_embeddings=32, decoder_start_token_id=2, **_SPECIAL)  # fmt: skip
_T5 = dict(vocab_size=_VOCAB, d_model=_WIDTH, d_kv=8, d_ff=24, num_layers=_DEEP, num_heads=_HEADS, pad_token_id=0,
           eos_token_id=1, decoder_start_token_id=0)  # fmt: skip
_GPT2 = dict(vocab_size=_VOCAB, n_positions=32, n_embd=_WIDTH, n_layer=_DEEP, n_head=_HEADS, **_SPECIAL)


def _model(architecture: str, **settings: Any) -> Callable[[], nn.Module]:
    """What makes a model of transformers by its class, without dropout and without a cache."""

    def make() -> nn.Module:
        model = undropped(architecture, **settings)
        config: Any = model.config
        if hasattr(config, "use_cache"):
            config.use_cache = False
        return without_dropout(model.train())

    return make


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, _VOCAB, shape, generator=torch.Generator().manual_seed(sum(shape)))


def _text(length: int = 12) -> Callable[[int], Batch]:
    """Texts with a label at each place, of which a model of masked texts could read all."""
    return lambda n: {"input_ids": _tokens(n, length), "labels": _tokens(n + 1, length)[1:]}


def _pairs(n: int) -> Batch:
    """Texts that are input of the encoder and of the decoder, as the suite's own."""
    ids = _tokens(n, 12)
    return {"input_ids": ids, "decoder_input_ids": ids, "labels": _tokens(n + 1, 12)[1:]}


def _classes(n: int) -> Batch:
    """Texts with a class each."""
    return {"input_ids": _tokens(n, 12), "labels": torch.arange(n) % 2}


def _layout(n: int) -> Batch:
    """Texts with a box for each token, as LayoutLM takes when none is given."""
    return {**_text()(n), "bbox": torch.zeros(n, 12, 4, dtype=torch.long)}


_Row = tuple[str, str, dict[str, Any], Callable[[int], Batch]]
_ROWS: tuple[_Row, ...] = (
    ("AlbertForMaskedLM", "AlbertForMaskedLM", _BERT | {"embedding_size": 8}, _text()),
    ("AllenaiLongformerBase", "LongformerForMaskedLM", _BERT | {"attention_window": 4}, _text()),
    ("BartForCausalLM", "BartForCausalLM", _BART, _text()),
    ("BertForMaskedLM", "BertForMaskedLM", _BERT, _text()),
    ("BigBird", "BigBirdForMaskedLM", _BERT | {"block_size": 4, "num_random_blocks": 2}, _text(64)),
    ("BlenderbotForCausalLM", "BlenderbotForCausalLM", _BART, _text()),
    ("DebertaV2ForMaskedLM", "DebertaV2ForMaskedLM", _BERT, _text()),
    ("DistilBertForMaskedLM", "DistilBertForMaskedLM", dict(
        vocab_size=_VOCAB, dim=_WIDTH, n_layers=_DEEP, n_heads=_HEADS, hidden_dim=24, max_position_embeddings=32,
        pad_token_id=0), _text()),
    ("DistillGPT2", "GPT2LMHeadModel", _GPT2, _text()),
    ("ElectraForCausalLM", "ElectraForCausalLM", _BERT | {"embedding_size": 8}, _text()),
    ("GoogleFnet", "FNetForMaskedLM", _BERT, _text()),
    ("GPT2ForSequenceClassification", "GPT2ForSequenceClassification", _GPT2, _classes),
    ("LayoutLMForMaskedLM", "LayoutLMForMaskedLM", _BERT, _layout),
    ("M2M100ForConditionalGeneration", "M2M100ForConditionalGeneration", _BART, _pairs),
    ("MBartForCausalLM", "MBartForCausalLM", _BART, _text()),
    ("MegatronBertForCausalLM", "MegatronBertForCausalLM", _BERT, _text()),
    ("MobileBertForMaskedLM", "MobileBertForMaskedLM", _BERT | {
        "embedding_size": _WIDTH, "intra_bottleneck_size": 8, "num_feedforward_networks": 2}, _text()),
    ("MT5ForConditionalGeneration", "MT5ForConditionalGeneration", _T5, _pairs),
    ("OPTForCausalLM", "OPTForCausalLM", dict(
        vocab_size=_VOCAB, hidden_size=_WIDTH, num_hidden_layers=_DEEP, num_attention_heads=_HEADS, ffn_dim=24,
        max_position_embeddings=32, word_embed_proj_dim=_WIDTH, **_SPECIAL), _text()),
    ("PegasusForCausalLM", "PegasusForCausalLM", _BART, _text()),
    ("PLBartForCausalLM", "PLBartForCausalLM", _BART, _text()),
    ("RobertaForCausalLM", "RobertaForCausalLM", _BERT, _text()),
    ("T5ForConditionalGeneration", "T5ForConditionalGeneration", _T5, _pairs),
    ("T5Small", "T5ForConditionalGeneration", _T5 | {"num_layers": 1, "num_heads": 4, "d_kv": 4}, _pairs),
    ("TrOCRForCausalLM", "TrOCRForCausalLM", _BART, _text()),
    ("XGLMForCausalLM", "XGLMForCausalLM", dict(
        vocab_size=_VOCAB, d_model=_WIDTH, num_layers=_DEEP, attention_heads=_HEADS, ffn_dim=24,
        max_position_embeddings=32, decoder_start_token_id=2, **_SPECIAL), _text()),
    ("XLNetLMHeadModel", "XLNetLMHeadModel", dict(
        vocab_size=_VOCAB, d_model=_WIDTH, n_layer=_DEEP, n_head=_HEADS, d_inner=24, mem_len=None, **_SPECIAL),
        _text()),
    ("YituTechConvBert", "ConvBertForMaskedLM", _BERT | {"embedding_size": 8, "conv_kernel_size": 3}, _text()),
)  # fmt: skip

MODELS = [
    SuiteModel(name, "huggingface", _model(architecture, **settings), batch)
    for name, architecture, settings, batch in _ROWS
]
