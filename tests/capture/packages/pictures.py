"""Models of images: timm and diffusers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, image, numbers

__all__: list[str] = []


def timm_model(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of timm, with stochastic depth off."""

    def make() -> nn.Module:
        import timm

        return Loss(model=timm.create_model(name, num_classes=5, **settings))

    return make


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
add("convit", "timm", timm_model("convit_tiny", img_size=32, embed_dim=12, depth=3, local_up_to_layer=2), image())
add("vit with registers", "timm", timm_model("vit_tiny_patch16_224", reg_tokens=2, **_VIT), image())
add("beit", "timm", timm_model("beit_base_patch16_224", **_VIT), image())
add("eva02", "timm", timm_model("eva02_tiny_patch14_224", **_VIT), image())
add("cait", "timm", timm_model("cait_xxs24_224", **(_VIT | {"depth": 1})), image())
add("xcit", "timm", timm_model("xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=4), image())
add("mlp-mixer", "timm", timm_model("mixer_s16_224", img_size=32), image())
add("regnet", "timm", timm_model("regnetx_002"), image(size=64))
add("ghostnet", "timm", timm_model("ghostnet_050", drop_rate=0.0), image(size=64))
add("mobileone", "timm", timm_model("mobileone_s0"), image(size=64))


def flux() -> nn.Module:
    """Flux's transformer with rotary embeddings of image and text places."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    return Loss(lambda s, x, text, pooled, time, places, words: s.model(
        hidden_states=x, encoder_hidden_states=text, pooled_projections=pooled, timestep=time, img_ids=places,
        txt_ids=words, return_dict=False), model=model)  # fmt: skip


def flux_batch(n: int) -> Batch:
    """Images of 4n places, texts of 2n words."""
    places = torch.stack([torch.zeros(4 * n), torch.arange(4 * n) // 4, torch.arange(4 * n) % 4], -1)
    time = torch.rand(n, generator=torch.Generator().manual_seed(n))
    return numbers(n, 4 * n, 4), numbers(n, 2 * n, 32), numbers(n, 32), time, places, torch.zeros(2 * n, 3)


def unet() -> nn.Module:
    """A conditional UNet of Stable Diffusion's kind."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8, norm_num_groups=4, attention_head_dim=4,
    )  # fmt: skip
    return Loss(lambda s, x, time, text: s.model(x, time, text, return_dict=False), model=model)


def autoencoder() -> nn.Module:
    """The encoder and decoder of latent diffusion."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(8, 8), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=2,
                          up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4)  # fmt: skip
    return Loss(lambda s, x: s.model.decode(s.model.encode(x).latent_dist.mode(), return_dict=False), model=model)


add("Flux transformer", "diffusers", flux, flux_batch)
add("UNet2DConditionModel", "diffusers", unet, lambda n: (numbers(n, 4, 8, 8), ids(900, n), numbers(n, 3, 8)))
add("AutoencoderKL", "diffusers", autoencoder, image(size=16))
