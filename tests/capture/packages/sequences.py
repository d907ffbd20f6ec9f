"""Transformers and other models of sequences: x-transformers, transformers, peft, mambapy, vector quantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, numbers

__all__: list[str] = []


def x_transformer(**settings: Any) -> Callable[[], nn.Module]:
    """A language model of x-transformers."""

    def make() -> nn.Module:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **settings)
        return Loss(model=TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=layers))

    return make


def words(n: int) -> Batch:
    """Sentences of 2n words."""
    return (ids(20, n, 2 * n),)


add("decoder with ALiBi", "x-transformers", x_transformer(alibi_pos_bias=True), words)
add("decoder with flash", "x-transformers", x_transformer(attn_flash=True), words)
add("decoder with rotary embeddings", "x-transformers", x_transformer(rotary_pos_emb=True), words)
add("decoder with T5's bias", "x-transformers", x_transformer(rel_pos_bias=True), words)
add("decoder with gated feed-forwards", "x-transformers", x_transformer(ff_glu=True, use_rmsnorm=True), words)


def small_llama() -> nn.Module:
    """A Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=1))  # fmt: skip


def cached() -> nn.Module:
    """A decoder whose loss reads the cache that it returns, too."""

    def forward(s: Any, words: torch.Tensor) -> torch.Tensor:
        result = s.model(input_ids=words, labels=words, use_cache=True)
        return result.loss + result.past_key_values.layers[0].keys.pow(2).mean()

    return Loss(forward, model=small_llama())


def adapted(config: str, **settings: Any) -> Callable[[], nn.Module]:
    """A Llama with the adapters of peft."""

    def make() -> nn.Module:
        import peft

        chosen = getattr(peft, config)(task_type="CAUSAL_LM", **settings)
        model = peft.get_peft_model(small_llama(), chosen)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return Loss(lambda s, words: s.model(input_ids=words, labels=words).loss, model=model)

    return make


add("Llama with use_cache=True", "transformers", cached, words, "transformers")
add("LoRA", "peft", adapted("LoraConfig", r=2, target_modules=["q_proj", "v_proj"]), words)
add("DoRA", "peft", adapted("LoraConfig", r=2, use_dora=True, target_modules=["q_proj"]), words)
add("IA3", "peft", adapted("IA3Config"), words)
add("OFT", "peft", adapted("OFTConfig", oft_block_size=4, target_modules=["q_proj"]), words)
add("VeRA", "peft", adapted("VeraConfig", r=2, vera_dropout=0.0, target_modules=["q_proj", "v_proj"]), words)
add("LoHa", "peft", adapted("LoHaConfig", r=2, alpha=2, target_modules=["q_proj", "v_proj"]), words)
add("LoKr", "peft", adapted("LoKrConfig", r=2, alpha=4, target_modules=["q_proj", "v_proj"]), words)
add(
    "BOFT",
    "peft",
    adapted("BOFTConfig", boft_block_size=4, boft_n_butterfly_factor=2, target_modules=["q_proj"]),
    words,
)
add("AdaLoRA", "peft", adapted("AdaLoraConfig", init_r=4, target_r=2, total_step=9, target_modules=["q_proj"]), words)
add("SHiRA", "peft", adapted("ShiraConfig", r=2, target_modules=["q_proj", "v_proj"]), words)
add("prefix tuning", "peft", adapted("PrefixTuningConfig", num_virtual_tokens=3), words)
add("prompt tuning", "peft", adapted("PromptTuningConfig", num_virtual_tokens=3), words)


def mamba(**settings: Any) -> Callable[[], nn.Module]:
    """A Mamba of mambapy, whose scan is a function with a backward of its own."""

    def make() -> nn.Module:
        from mambapy.mamba import Mamba, MambaConfig

        return Loss(model=Mamba(MambaConfig(d_model=8, n_layers=1, d_state=4, **settings)))

    return make


add("Mamba with pscan", "mambapy", mamba(pscan=True), lambda n: (numbers(n, 4 * n, 8),))
add("Mamba step by step", "mambapy", mamba(pscan=False), lambda n: (numbers(n, 2 * n, 8),))


def quantizer(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A quantiser: its loss is that of what it returns and its own."""

    def make() -> nn.Module:
        import vector_quantize_pytorch

        def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
            y, _, *losses = s.model(s.before(x))
            return y.pow(2).mean() + sum(loss.sum() for loss in losses[:1])

        return Loss(forward, before=nn.Linear(8, 8), model=getattr(vector_quantize_pytorch, name)(dim=8, **settings))

    return make


def rows(n: int) -> Batch:
    """Sequences of 3n vectors."""
    return (numbers(n, 3 * n, 8),)


add("VectorQuantize", "vector-quantize-pytorch", quantizer("VectorQuantize", codebook_size=12), rows)
add("VectorQuantize by cosine", "vector-quantize-pytorch",
    quantizer("VectorQuantize", codebook_size=12, use_cosine_sim=True), rows)  # fmt: skip
add("ResidualVQ", "vector-quantize-pytorch", quantizer("ResidualVQ", codebook_size=8, num_quantizers=2), rows)
add("FSQ", "vector-quantize-pytorch", quantizer("FSQ", levels=[5, 4, 3]), rows)
