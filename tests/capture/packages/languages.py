"""Models of transformers for texts: attention by hashes and by blocks, state spaces, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import add, ids, numbers, unevenly
from tests.capture.packages.unusual import pretrained, text

__all__: list[str] = []

_SMALL = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip
_ONE = {**_SMALL, "num_hidden_layers": 1, "max_position_embeddings": 32}
_EAGER = {**_SMALL, "experts_implementation": "eager"}  # torch's grouped product has no double precision
_EXPERTS = {**_SMALL, "moe_intermediate_size": 8, "num_key_value_heads": 2, "n_routed_experts": 4,
            "n_shared_experts": 1, "num_experts_per_tok": 2, "q_lora_rank": 8, "kv_lora_rank": 8,
            "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1,
            "topk_group": 1}  # fmt: skip


def _loss(model: Any, words: torch.Tensor) -> Any:
    return model(words, labels=words).loss


def _translation(model: Any, words: torch.Tensor, labels: torch.Tensor) -> Any:
    return model(input_ids=words, labels=labels).loss


def routed_in_double(architecture: str, **settings: Any) -> Callable[[], nn.Module]:
    """A mixture of experts whose routers, which their configuration gives a dtype, have the comparison's."""

    def make() -> nn.Module:
        model = pretrained(architecture, _translation, **settings)()
        for part in model.modules():
            if type(part).__name__.endswith("Router"):
                part.dtype = torch.float64
        return model

    return make


for _label, _architecture, _settings in (
    ("LUKE", "LukeForMaskedLM", {**_ONE, "entity_vocab_size": 10, "entity_emb_size": 8}),
    ("YOSO", "YosoForMaskedLM", _ONE),
    ("Bamba", "BambaForCausalLM", {**_SMALL, "num_key_value_heads": 1, "attn_layer_indices": [1], "mamba_n_heads": 4,
                                   "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_chunk_size": 4}),
    ("OLMoE", "OlmoeForCausalLM", {**_EAGER, "num_key_value_heads": 1, "num_experts": 2, "num_experts_per_tok": 1}),
    ("gpt-oss", "GptOssForCausalLM", {**_EAGER, "num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 2,
                                      "num_experts_per_tok": 1, "sliding_window": 4}),
    ("DeepSeek-V2", "DeepseekV2ForCausalLM", {**_EAGER, **_EXPERTS, "n_group": 1}),
    ("DeepSeek-V3", "DeepseekV3ForCausalLM", {**_EAGER, **_EXPERTS, "n_group": 2}),
    ("Apertus", "ApertusForCausalLM", {**_SMALL, "num_key_value_heads": 1}),
    ("BioGPT", "BioGptForCausalLM", _SMALL),
    ("JetMoE", "JetMoeForCausalLM", {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "kv_channels": 8,
                                     "num_key_value_heads": 1, "intermediate_size": 24, "num_local_experts": 2,
                                     "num_experts_per_tok": 1}),
):  # fmt: skip
    add(_label, "transformers", pretrained(_architecture, _loss, **_settings), text())

add("Funnel", "transformers", pretrained("FunnelForMaskedLM", _loss, vocab_size=20, d_model=16, n_head=2, d_head=8,
    d_inner=24, block_sizes=[1, 1], num_decoder_layers=1), lambda n: (ids(20, n, 8 * n),))  # fmt: skip
add("ProphetNet", "transformers", pretrained(
    "ProphetNetForConditionalGeneration", _translation, vocab_size=20, hidden_size=16, num_encoder_layers=1,
    num_decoder_layers=1, num_encoder_attention_heads=2, num_decoder_attention_heads=2, encoder_ffn_dim=24,
    decoder_ffn_dim=24, max_position_embeddings=32), lambda n: (ids(20, n, 4 * n), ids(20, n, 3 * n)))  # fmt: skip
add("LongT5", "transformers", pretrained(
    "LongT5ForConditionalGeneration", _translation, vocab_size=20, d_model=16, d_kv=8, d_ff=24, num_layers=1,
    num_heads=2, local_radius=4, decoder_start_token_id=0, encoder_attention_type="transient-global",
    global_block_size=4), lambda n: (ids(20, n, 8 * n), ids(20, n, 3 * n)))  # fmt: skip
add("SwitchTransformers", "transformers", routed_in_double(
    "SwitchTransformersForConditionalGeneration", vocab_size=20, d_model=16, d_kv=8, d_ff=24,
    num_layers=2, num_sparse_encoder_layers=1, num_decoder_layers=2, num_sparse_decoder_layers=1, num_heads=2,
    num_experts=2, router_jitter_noise=0.0, decoder_start_token_id=0),
    lambda n: (ids(20, n, 4 * n), ids(20, n, 3 * n)))  # fmt: skip
add("NLLB-MoE", "transformers", routed_in_double(
    "NllbMoeForConditionalGeneration", vocab_size=20, d_model=16, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
    encoder_sparse_step=2, decoder_sparse_step=2, num_experts=2, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    max_position_embeddings=32, moe_token_dropout=0.0),
    lambda n: (ids(20, n, 4 * n), ids(20, n, 3 * n)))  # fmt: skip
add("Decision Transformer", "transformers", pretrained(
    "DecisionTransformerModel", lambda m, states, actions, rewards, steps: unevenly(m(
        states=states, actions=actions, rewards=rewards, returns_to_go=rewards, timesteps=steps,
        attention_mask=torch.ones(steps.shape)).action_preds),
    state_dim=5, act_dim=2, hidden_size=16, n_layer=1, n_head=2, max_ep_len=20),
    lambda n: (numbers(n, 3 * n, 5), numbers(n, 3 * n, 2), numbers(n, 3 * n, 1), torch.arange(3 * n).repeat(n, 1))
    )  # fmt: skip

# No word is an audio token, so the layers' norm of such tokens gets no rows.
add("Higgs Audio V2", "transformers", pretrained(
    "HiggsAudioV2ForConditionalGeneration", lambda m, x: unevenly(m(x).logits), **{
        **_SMALL, "vocab_size": 21, "num_key_value_heads": 1, "head_dim": 8, "num_codebooks": 2, "codebook_size": 8,
        "audio_token_id": 20, "audio_bos_token_id": 1, "audio_delay_token_id": 2, "audio_stream_bos_id": 3,
        "audio_stream_eos_id": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}), text())  # fmt: skip
