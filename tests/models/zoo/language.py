"""Language models of transformers: encoders, decoders, and both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers
from packaging.version import Version

from tests.models.zoo.entry import Batch, Entry
from tests.models.zoo.huggingface import (
    BRANCHES,
    HEADS,
    T5,
    TEXT,
    UNROLLED,
    VOCAB,
    WIDTH,
    causal_text,
    decoder,
    encoder,
    fourier_text,
    masked_text,
    model,
    seq2seq,
    text,
)

__all__ = ["ENTRIES"]

# The default dispatch of a mixture of experts has no kernel in double precision.
DISPATCH = {"experts_implementation": "batched_mm"}

# A tensor says where older versions cut a table.
_IS_OLD = Version(transformers.__version__) < Version("5.20")
DEBERTA: Any = {"refused": "size depends on", "way_out": "out of forward"} if _IS_OLD else {}


def _in_windows(entry: Entry) -> Entry:
    """Sentences that fill windows of four words: eager PyTorch's gradients are no numbers where words are masked."""

    def batch(size: int, length: int) -> Batch:
        whole = entry.batch(size, 4 * length // 3)
        return {**whole, "attention_mask": torch.ones_like(whole["attention_mask"])}

    return replace(entry, batch=batch)


ENTRIES = [
    encoder("bert"),
    encoder("roberta", max_position_embeddings=40),
    encoder("distilbert"),
    encoder("electra", embedding_size=8),
    encoder("albert", embedding_size=8),
    encoder("deberta", **DEBERTA, pos_att_type=["p2c", "c2p"], relative_attention=True),
    encoder("deberta-v2", **DEBERTA, pos_att_type=["p2c", "c2p"], relative_attention=True),
    encoder("xlm-roberta", max_position_embeddings=40),
    encoder("mpnet", max_position_embeddings=40),
    encoder("mobilebert", embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8),
    encoder("squeezebert", embedding_size=WIDTH),
    encoder("convbert", embedding_size=WIDTH, conv_kernel_size=3),
    encoder("roformer", embedding_size=WIDTH),
    encoder("esm", mask_token_id=3, position_embedding_type="rotary"),
    Entry("fnet", "encoder", model("ForMaskedLM", "fnet", **TEXT), lambda n, _: fourier_text(n, 6)),
    encoder("modernbert", pad_token_id=0, cls_token_id=1, sep_token_id=2, local_attention=4),
    Entry(
        "nystromformer",
        "encoder",
        model("ForMaskedLM", "nystromformer", **TEXT, num_landmarks=8, segment_means_seq_len=8),
        lambda n, _: masked_text(n, 8),
    ),
    _in_windows(
        encoder(
            "longformer", refused=BRANCHES, way_out="out of forward", attention_window=4, max_position_embeddings=40
        )
    ),
    encoder("big_bird", attention_type="original_full"),
    encoder("eurobert", num_key_value_heads=1),
    encoder("ernie"),
    decoder("gpt2"),
    decoder("gpt_neo", num_hidden_layers=2, attention_types=[[["global", "local"], 1]], window_size=4),
    decoder("gpt_neox"),
    decoder("gptj", rotary_dim=4),
    decoder("opt", ffn_dim=24, word_embed_proj_dim=WIDTH),
    decoder("bloom"),
    decoder("llama", num_key_value_heads=1),
    decoder("mistral", num_key_value_heads=1, sliding_window=4),
    decoder("qwen2", num_key_value_heads=1),
    decoder("qwen3", num_key_value_heads=1, head_dim=8),
    decoder("gemma", num_key_value_heads=1, head_dim=8),
    decoder("gemma3_text", num_key_value_heads=1, head_dim=8),
    decoder("phi"),
    decoder("falcon"),
    decoder("mpt", max_seq_len=32),
    decoder("olmo", num_key_value_heads=1),
    decoder("cohere", num_key_value_heads=1),
    decoder("arcee", num_key_value_heads=1),
    decoder("glm4", num_key_value_heads=1, head_dim=8),
    decoder("olmo3", num_key_value_heads=1, sliding_window=4),
    decoder("diffllama", num_key_value_heads=2),
    text("xlnet", "ForCausalLM", vocab_size=VOCAB, d_model=WIDTH, n_layer=1, n_head=HEADS, d_inner=24),
    decoder("mixtral", num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, **DISPATCH),
    decoder(
        "qwen2_moe",
        num_key_value_heads=1,
        num_experts=4,
        num_experts_per_tok=2,
        **DISPATCH,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    ),
    decoder("mamba", state_size=4, fixed=UNROLLED),
    decoder("mamba2", state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
    decoder(
        "rwkv", num_hidden_layers=2, fixed=UNROLLED, attention_hidden_size=WIDTH, context_length=32, rescale_every=0
    ),
    decoder("xlstm", fixed=UNROLLED, num_heads=2, num_blocks=1, chunk_size=4),
    text("t5", "ForSeq2SeqLM", **T5),
    text("mt5", "ForSeq2SeqLM", **T5),
    seq2seq("bart"),
    seq2seq("mbart"),
    seq2seq("pegasus"),
    seq2seq("marian", decoder_start_token_id=0),
    seq2seq("blenderbot"),
    seq2seq("m2m_100"),
    _in_windows(
        seq2seq(
            "led",
            refused=BRANCHES,
            way_out="out of forward",
            attention_window=4,
            max_encoder_position_embeddings=32,
            max_decoder_position_embeddings=32,
        )
    ),
    replace(
        seq2seq(
            "fsmt",
            refused=BRANCHES,
            way_out="out of forward",
            dtype=torch.float32,  # it fills a float32 mask with the lowest number of the precision that it has
            src_vocab_size=VOCAB,
            tgt_vocab_size=VOCAB,
            langs=["a", "b"],
        ),
        batch=causal_text,  # its decoder reads as many words as its encoder
    ),
]
