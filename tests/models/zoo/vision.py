"""Image classifiers of transformers."""

from __future__ import annotations

from tests.models.zoo.huggingface import IMAGE, image_model

__all__ = ["ENTRIES"]

ENTRIES = [
    image_model("vit", **IMAGE),
    image_model("deit", **IMAGE, architectures=["DeiTForImageClassification"]),
    image_model("beit", **IMAGE),
    image_model("dinov2", **IMAGE),
    image_model(
        "swin", image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2, num_labels=5
    ),
    image_model("convnext", hidden_sizes=[8, 8], depths=[1, 1], num_stages=2, num_labels=5),
    image_model("resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5),
    image_model(
        "segformer",
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[3, 3],
        strides=[2, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        num_labels=5,
    ),
    image_model(
        "poolformer",
        hidden_sizes=[8, 8],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[3, 3],
        strides=[2, 2],
        padding=[1, 1],
        num_labels=5,
    ),
    image_model(
        "pvt",
        image_size=16,
        num_encoder_blocks=2,
        depths=[1, 1],
        sequence_reduction_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[4, 2],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        num_labels=5,
    ),
    image_model(
        "efficientnet",
        width_coefficient=0.1,
        depth_coefficient=0.2,
        depth_divisor=4,
        hidden_dim=128,
        kernel_sizes=[3, 3],
        in_channels=[8, 8],
        out_channels=[8, 8],
        strides=[1, 2],
        num_block_repeats=[1, 1],
        expand_ratios=[1, 2],
        depthwise_padding=[],
        image_size=16,
        num_labels=5,
    ),
]
