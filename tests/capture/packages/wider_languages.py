"""Further models of languages and of pictures from transformers, by their classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Loss, add, ids, image, undropped, unevenly

__all__: list[str] = []

_SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_FIRST = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
            "first_k_dense_replace": 0}  # fmt: skip
_OLDEST = {"emb_dim": 16, "n_layers": 1, "n_heads": 2, "n_words": 50}


def decoder(architecture: str, **settings: Any) -> Callable[[], nn.Module]:
    """A decoder with its own loss over next tokens."""

    def forward(s: Any, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = s.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return loss

    return lambda: Loss(forward, model=undropped(architecture, **{**_SIZES, **settings}))


def encoder(architecture: str, **settings: Any) -> Callable[[], nn.Module]:
    """An encoder of tokens."""
    return lambda: Loss(lambda s, tokens: unevenly(s.model(input_ids=tokens)[0]),
                        model=undropped(architecture, **{**_SIZES, **settings}))  # fmt: skip


def seeing(architecture: str, **settings: Any) -> Callable[[], nn.Module]:
    """A network of images."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
             "image_size": 32, "patch_size": 8}  # fmt: skip
    return lambda: Loss(lambda s, pixels: unevenly(s.model(pixel_values=pixels)[0]),
                        model=undropped(architecture, **{**sizes, **settings}))  # fmt: skip


for _name, _settings in (
    ("GPTBigCode", _FIRST), ("Starcoder2", {}), ("StableLm", {}), ("Persimmon", {}), ("Phi3", {}), ("Granite", {}),
    ("Helium", {"head_dim": 8}), ("Ernie4_5", {}), ("Exaone4", {}), ("SeedOss", {"head_dim": 8}),
    ("HunYuanDenseV1", {"head_dim": 8}), ("BitNet", {}), ("Gemma2", {"head_dim": 8}), ("Cohere2", {}),
    ("Glm", {"head_dim": 8}), ("NanoChat", {}), ("Ministral", {"head_dim": 8}), ("HrmText", {}),
    ("Lfm2", {"layer_types": ["conv"]}),
    ("FalconH1", {"mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1,
                  "mamba_chunk_size": 4, "head_dim": 8}),
    ("FalconMamba", {"state_size": 4, "expand": 2, "conv_kernel": 4}), ("Dots1", _EXPERTS),
    ("FlexOlmo", {"num_experts": 4, "num_experts_per_tok": 2}), ("Phimoe", {"num_local_experts": 4}),
    ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8}),
    ("MiniMax", {"num_local_experts": 4, "block_size": 4, "head_dim": 8}), ("Glm4Moe", {**_EXPERTS, "head_dim": 8}),
):  # fmt: skip
    add(_name, "transformers", decoder(f"{_name}ForCausalLM", experts_implementation="eager", **_settings),
        lambda n: (ids(50, n, 4 * n),))  # fmt: skip
for _name, _settings in (("CTRL", {**_FIRST, "dff": 24}), ("OpenAIGPT", _FIRST)):
    add(_name, "transformers", decoder(f"{_name}LMHeadModel", **_settings), lambda n: (ids(50, n, 4 * n),))
for _name, _settings in (
    ("Camembert", {}), ("Flaubert", _OLDEST), ("XLM", _OLDEST), ("Splinter", {}), ("Data2VecText", {}),
    ("RoCBert", {"pronunciation_vocab_size": 10, "shape_vocab_size": 10, "pronunciation_embed_dim": 4,
                 "shape_embed_dim": 4}),
    ("Xmod", {"languages": ["en_XX"], "default_language": "en_XX"}), ("NomicBert", {}), ("XLMRobertaXL", {}),
    ("RobertaPreLayerNorm", {}),
):  # fmt: skip
    add(_name, "transformers", encoder(f"{_name}Model", **_settings), lambda n: (ids(47, n, 8 * n) + 3,))
for _name, _settings in (
    ("Dinov2WithRegisters", {}), ("DINOv3ViT", {"num_register_tokens": 2, "pos_embed_rescale": None}), ("IJepa", {}),
    ("ViTMSN", {}), ("MobileNetV1", {"depth_multiplier": 0.25}),
    ("PvtV2", {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4}),
    ("FocalNet", {"embed_dim": 8, "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3]}),
    ("SwiftFormer", {"depths": [1] * 4, "embed_dims": [8] * 4}),
    ("Yolos", {"num_detection_tokens": 2, "image_size": [32, 32]}),
):  # fmt: skip
    add(_name, "transformers", seeing(f"{_name}Model", **_settings), image())
