"""Language models of transformers: hybrids of attention and recurrence, mixtures of experts, and their relatives."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.packages.entry import add, ids
from tests.capture.packages.unusual import pretrained, text

__all__: list[str] = []


def _loss(m: Any, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = m(input_ids=x, labels=x).loss
    return loss


_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **_IDS}
_DENSE = {**_SMALL, "intermediate_size": 24, "max_position_embeddings": 32}
_GROUPED = {**_DENSE, "num_key_value_heads": 1}
_EXPERTS = {"experts_implementation": "eager"}
_LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
_T5GEMMA = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8,
            "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 4}  # fmt: skip

for _label, _architecture, _settings in (
    ("Qwen3.5", "Qwen3_5ForCausalLM", {
        **_GROUPED, "head_dim": 8, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"]}),
    ("LFM2 with experts", "Lfm2MoeForCausalLM", {
        **_GROUPED, **_EXPERTS, "moe_intermediate_size": 8, "num_dense_layers": 1, "num_experts": 2,
        "num_experts_per_tok": 1, "layer_types": ["conv", "full_attention"]}),
    ("Zamba2", "Zamba2ForCausalLM", {
        **_DENSE, "layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 4, "mamba_ngroups": 1,
        "n_mamba_heads": 4, "num_key_value_heads": 2, "num_mem_blocks": 1, "adapter_rank": 4, "chunk_size": 4}),
    ("DeepSeek-V3.2", "DeepseekV32ForCausalLM", {
        **_DENSE, **_EXPERTS, **_LATENT, "num_key_value_heads": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
        "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
        "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}),
    ("DBRX", "DbrxForCausalLM", {
        "vocab_size": 20, "d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 32, **_EXPERTS,
        "attn_config": {"kv_n_heads": 1, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 16, "hidden_size": 16, "moe_num_experts": 2, "moe_top_k": 1}}),
    ("Nemotron", "NemotronForCausalLM", {**_GROUPED, "head_dim": 8}),
    ("SmolLM3", "SmolLM3ForCausalLM", _GROUPED),
    ("OLMo 2", "Olmo2ForCausalLM", _GROUPED),
    ("GraniteMoE", "GraniteMoeForCausalLM", {**_GROUPED, **_EXPERTS, "num_local_experts": 2, "num_experts_per_tok": 1}),
    ("RemBERT", "RemBertForMaskedLM", {**_DENSE, "input_embedding_size": 8, "output_embedding_size": 8}),
    ("Megatron-BERT", "MegatronBertForMaskedLM", _DENSE),
):  # fmt: skip
    add(_label, "transformers", pretrained(_architecture, _loss, **_settings), text())

add("T5Gemma", "transformers", pretrained(
    "T5GemmaForConditionalGeneration", lambda m, x, y: m(input_ids=x, labels=y).loss, vocab_size=20,
    encoder=dict(_T5GEMMA), decoder={**_T5GEMMA, "cross_attention_hidden_size": 16}, **_IDS),
    lambda n: (ids(20, n, 4 * n), ids(20, n, 3 * n)))  # fmt: skip
