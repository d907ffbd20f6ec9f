"""Models of transformers, diffusers, open_clip, lightly and pytorch-forecasting that are built unlike most others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, image, numbers, undropped

__all__: list[str] = []


def pretrained(architecture: str, read: Callable[..., Any], **settings: Any) -> Callable[[], nn.Module]:
    """A model of transformers from a small configuration; `read(model, *batch)` is its loss or output."""

    return lambda: Loss(lambda s, *batch: read(s.model, *batch), model=undropped(architecture, **settings))


def text(length: int = 4) -> Callable[[int], Batch]:
    """Texts of a length that grows with the batch."""
    return lambda n: (ids(20, n, length * n),)


_SMALL = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}

add("Perceiver", "transformers", pretrained(
    "PerceiverForMaskedLM", lambda m, x: m(x, labels=x).loss, vocab_size=20, d_model=8, d_latents=8, num_latents=4,
    num_self_attends_per_block=1, num_self_attention_heads=2, num_cross_attention_heads=2, max_position_embeddings=12),
    lambda n: (ids(20, n, 12),))  # fmt: skip
add("Reformer", "transformers", pretrained(
    "ReformerModelWithLMHead", lambda m, x: m(x, labels=x).loss, vocab_size=20, hidden_size=16, attention_head_size=8,
    num_attention_heads=2, feed_forward_size=16, attn_layers=["local", "local"], axial_pos_shape=[4, 4],
    axial_pos_embds_dim=[8, 8], max_position_embeddings=16, local_attn_chunk_length=4, is_decoder=True, hash_seed=1),
    lambda n: (ids(20, n, 16),))  # fmt: skip
add("Informer", "transformers", pretrained(
    "InformerForPrediction", lambda m, past, features, mask, future, ahead: m(
        past_values=past, past_time_features=features, past_observed_mask=mask, future_values=future,
        future_time_features=ahead).loss,
    prediction_length=4, context_length=8, lags_sequence=[1, 2], num_time_features=1, d_model=8, encoder_layers=1,
    decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8,
    attention_type="full", distil=False),
    lambda n: (numbers(n, 10), numbers(n, 10, 1), torch.ones(n, 10), numbers(n, 4), numbers(n, 4, 1)))  # fmt: skip
add("RecurrentGemma", "transformers", pretrained(
    "RecurrentGemmaForCausalLM", lambda m, x: m(x, labels=x).loss, **_SMALL, intermediate_size=24, lru_width=16,
    attention_window_size=8, block_types=["recurrent", "attention"]), text())  # fmt: skip
add("BLIP's text decoder", "transformers", pretrained(
    "BlipTextLMHeadModel", lambda m, x: m(x, labels=x).loss, **_SMALL, intermediate_size=24,
    encoder_hidden_size=16, max_position_embeddings=32, is_decoder=True), text())  # fmt: skip
add("Llama 4", "transformers", pretrained(
    "Llama4ForCausalLM", lambda m, x: m(x, labels=x).loss, **_SMALL, intermediate_size=24, intermediate_size_mlp=24,
    num_key_value_heads=1, head_dim=8, num_local_experts=2, attention_chunk_size=4), text())  # fmt: skip


def diffusion(name: str, read: Callable[..., Any], **settings: Any) -> Callable[[], nn.Module]:
    """A model of diffusers."""

    def make() -> nn.Module:
        import diffusers

        return Loss(lambda s, *batch: read(s.model, *batch), model=getattr(diffusers, name)(**settings))

    return make


add("Stable Diffusion 3's transformer", "diffusers", diffusion(
    "SD3Transformer2DModel", lambda m, x, words, pooled, time: m(x, words, pooled, time).sample, sample_size=8,
    patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16,
    caption_projection_dim=16, pooled_projection_dim=16, out_channels=4, pos_embed_max_size=8),
    lambda n: (numbers(n, 4, 8, 8), numbers(n, 2 * n, 16), numbers(n, 16), torch.arange(n) * 1.0))  # fmt: skip
add("UNet1DModel", "diffusers", diffusion(
    "UNet1DModel", lambda m, x, time: m(x, time).sample, sample_size=16, in_channels=4, out_channels=4,
    block_out_channels=(8, 16), layers_per_block=1, down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
    up_block_types=("UpResnetBlock1D", "UpResnetBlock1D"), mid_block_type="MidResTemporalBlock1D",
    out_block_type="OutConv1DBlock", norm_num_groups=4, act_fn="mish", time_embedding_type="positional",
    use_timestep_embedding=True, extra_in_channels=0),
    lambda n: (numbers(n, 4, 16), torch.arange(n)))  # fmt: skip
add("VQModel", "diffusers", diffusion(
    "VQModel", lambda m, x: m(x).sample, block_out_channels=(8,), norm_num_groups=4, latent_channels=3,
    num_vq_embeddings=8), image(size=16))  # fmt: skip
add("DiT", "diffusers", diffusion(
    "DiTTransformer2DModel", lambda m, x, time, label: m(x, time, label).sample, num_attention_heads=2,
    attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, norm_num_groups=4, sample_size=8,
    num_embeds_ada_norm=10), lambda n: (numbers(n, 4, 8, 8), torch.arange(n), torch.arange(n)))  # fmt: skip


def contrastive_clip() -> nn.Module:
    """open_clip's CLIP under its loss."""
    import open_clip

    model = open_clip.CLIP(
        16, {"layers": 1, "width": 16, "head_width": 8, "patch_size": 8, "image_size": 16},
        {"context_length": 6, "vocab_size": 20, "width": 16, "heads": 2, "layers": 1})  # fmt: skip

    def forward(s: Any, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return s.loss(*s.model(x, words))

    return Loss(forward, model=model, loss=open_clip.ClipLoss())


add(
    "CLIP of open_clip",
    "open_clip_torch",
    contrastive_clip,
    lambda n: (numbers(n, 3, 16, 16), ids(20, n, 6)),
    "open_clip",
)


def two_views(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A loss of lightly between two views of a batch."""

    def make() -> nn.Module:
        from lightly import loss

        def forward(s: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return s.loss(s.model(x), s.model(y))

        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
        return Loss(forward, model=model, loss=getattr(loss, name)(**settings))

    return make


for _name in ("BarlowTwinsLoss", "VICRegLoss", "NegativeCosineSimilarity", "DCLLoss"):
    add(_name, "lightly", two_views(_name), lambda n: (numbers(2 * n, 8), numbers(2 * n, 8, seed=1)))
