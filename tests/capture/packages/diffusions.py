"""Models of diffusers: transformers and controls of images and of videos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.capture.packages.entry import Batch, add, numbers
from tests.capture.packages.unusual import diffusion

__all__: list[str] = []


def _denoised(*shape: int, cap: int = 8) -> Callable[[int], Batch]:
    """Noisy values, times and captions of three words."""
    return lambda n: (numbers(n, *shape), torch.arange(n) * 1.0, numbers(n, 3, cap))


_HEADS = {"num_attention_heads": 2, "attention_head_dim": 8}
_IMAGES = {**_HEADS, "in_channels": 2, "sample_size": 8}

add("PixArt", "diffusers", diffusion(
    "PixArtTransformer2DModel", lambda m, x, time, words: m(x, encoder_hidden_states=words, timestep=time).sample,
    **_IMAGES, out_channels=4, num_layers=1, cross_attention_dim=16, patch_size=2, caption_channels=8,
    use_additional_conditions=False), _denoised(2, 8, 8))  # fmt: skip
add("Sana", "diffusers", diffusion(
    "SanaTransformer2DModel", lambda m, x, time, words: m(x, words, time).sample, **_IMAGES, out_channels=2,
    num_layers=1, num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=8,
    patch_size=1), _denoised(2, 8, 8))  # fmt: skip
add("Lumina 2", "diffusers", diffusion(
    "Lumina2Transformer2DModel",
    lambda m, x, time, words: m(x, time, words, torch.ones(words.shape[:2], dtype=torch.bool)).sample,
    sample_size=8, patch_size=2, in_channels=2, hidden_size=16, num_layers=1, num_refiner_layers=1,
    num_attention_heads=2, num_kv_heads=1, multiple_of=8, axes_dim_rope=(4, 2, 2), axes_lens=(16, 16, 16),
    cap_feat_dim=8), _denoised(2, 8, 8))  # fmt: skip
add("CogVideoX", "diffusers", diffusion(
    "CogVideoXTransformer3DModel", lambda m, x, time, words: m(x, words, time).sample, **_HEADS, in_channels=2,
    out_channels=2, time_embed_dim=4, text_embed_dim=8, num_layers=1, sample_width=8, sample_height=8,
    sample_frames=5, patch_size=2, max_text_seq_length=3), _denoised(2, 2, 8, 8))  # fmt: skip
add("LTX-Video", "diffusers", diffusion(
    "LTXVideoTransformer3DModel", lambda m, x, time, words: m(
        x, words, time, torch.ones(words.shape[:2]), num_frames=2, height=3, width=2).sample,
    **_HEADS, in_channels=4, out_channels=4, cross_attention_dim=16, num_layers=1, caption_channels=8),
    _denoised(12, 4))  # fmt: skip
add("Wan", "diffusers", diffusion(
    "WanTransformer3DModel", lambda m, x, time, words: m(x, time, words).sample, patch_size=(1, 2, 2),
    num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=8, freq_dim=8, ffn_dim=16,
    num_layers=1), _denoised(4, 2, 4, 4))  # fmt: skip
add("Latte", "diffusers", diffusion(
    "LatteTransformer3DModel", lambda m, x, time, words: m(x, time, words).sample, **_IMAGES, out_channels=2,
    num_layers=1, cross_attention_dim=16, patch_size=2, caption_channels=8, activation_fn="gelu-approximate",
    norm_type="ada_norm_single", norm_elementwise_affine=False, video_length=2), _denoised(2, 2, 8, 8))  # fmt: skip


def _controls(m: Any, x: torch.Tensor, time: torch.Tensor, words: torch.Tensor, control: torch.Tensor) -> Any:
    """The residuals of all resolutions, squared and averaged together."""
    down, middle = m(x, time, words, control, return_dict=False)
    return torch.cat([part.flatten() for part in (*down, middle)])


add("ControlNet", "diffusers", diffusion(
    "ControlNetModel", _controls, in_channels=1, block_out_channels=(8, 8), layers_per_block=1,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), norm_num_groups=4, attention_head_dim=4,
    cross_attention_dim=8, conditioning_embedding_out_channels=(4, 4)),
    lambda n: (*_denoised(1, 8, 8)(n), numbers(n, 3, 16, 16)))  # fmt: skip
add("Prior transformer", "diffusers", diffusion(
    "PriorTransformer", lambda m, x, time, words, pooled: m(x, time, pooled, words).predicted_image_embedding,
    num_attention_heads=2, attention_head_dim=4, num_layers=1, embedding_dim=8, num_embeddings=3,
    additional_embeddings=4), lambda n: (*_denoised(8)(n), numbers(n, 8)))  # fmt: skip
