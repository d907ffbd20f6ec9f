"""Models of transformers for pictures and waves."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.packages.entry import add, ids, image, numbers, unevenly
from tests.capture.packages.unusual import pretrained

__all__: list[str] = []


def _logits(model: Any, x: torch.Tensor) -> torch.Tensor:
    return unevenly(model(x).logits)


_RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
           "layer_type": "basic", "out_features": ["stage2"]}  # fmt: skip

add("LayoutLMv3", "transformers", pretrained(
    "LayoutLMv3ForTokenClassification", lambda m, x, boxes, pixels: unevenly(m(
        input_ids=x, bbox=boxes, pixel_values=pixels).logits),
    vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=32, coordinate_size=2, shape_size=4, max_2d_position_embeddings=16, input_size=16,
    patch_size=8),
    lambda n: (ids(20, n, 4 * n), torch.tensor([1, 2, 9, 8]).repeat(n, 4 * n, 1), numbers(n, 3, 16, 16)))  # fmt: skip
add("DETR", "transformers", pretrained(
    "DetrForObjectDetection", lambda m, x: m(x).logits.pow(2).mean() + m(x).pred_boxes.mean(), d_model=16,
    encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
    decoder_ffn_dim=16, num_queries=4, num_labels=3, use_timm_backbone=False, use_pretrained_backbone=False,
    backbone=None, backbone_config=_RESNET), image())  # fmt: skip
add("Swinv2", "transformers", pretrained(
    "Swinv2ForImageClassification", _logits, image_size=32, patch_size=4, embed_dim=8, depths=[1, 1],
    num_heads=[2, 2], window_size=4, num_labels=3, drop_path_rate=0.0), image())  # fmt: skip
add("Hiera", "transformers", pretrained(
    "HieraForImageClassification", _logits, image_size=[64, 64], embed_dim=8, depths=[1, 1], num_heads=[1, 2],
    num_query_pool=1, num_labels=3, drop_path_rate=0.0), image(size=64))  # fmt: skip
for _label, _architecture in (("SAM's vision encoder", "SamVisionModel"), ("SAM 3's vision encoder", "Sam3ViTModel")):
    add(_label, "transformers", pretrained(
        _architecture, lambda m, x: m(x).last_hidden_state.pow(2).mean(), image_size=32, patch_size=8, hidden_size=16,
        pretrain_image_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, mlp_dim=24,
        output_channels=8, window_size=14, global_attn_indexes=[1]), image(size=32))  # fmt: skip
add("ConvNeXt V2", "transformers", pretrained(
    "ConvNextV2ForImageClassification", _logits, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=3,
    drop_path_rate=0.0), image(size=32))  # fmt: skip
add("LeViT", "transformers", pretrained(
    "LevitForImageClassification", _logits, image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 2, 2],
    depths=[1, 1, 1], key_dim=[8, 8, 8], drop_path_rate=0, num_labels=3), image(size=64))  # fmt: skip
add("MobileViT", "transformers", pretrained(
    "MobileViTForImageClassification", _logits, image_size=64, hidden_sizes=[16, 16, 16],
    neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16], num_attention_heads=2, num_labels=3), image(size=64))  # fmt: skip
add("TimeSformer", "transformers", pretrained(
    "TimesformerForVideoClassification", _logits, image_size=16, patch_size=8, num_frames=2, hidden_size=16,
    num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, num_labels=3),
    lambda n: (numbers(n, 2, 3, 16, 16),))  # fmt: skip
add("DAC", "transformers", pretrained(
    "DacModel", lambda m, x: m(x).audio_values, encoder_hidden_size=8, decoder_hidden_size=32,
    downsampling_ratios=[2, 4], n_codebooks=2, codebook_size=16, codebook_dim=4, quantizer_dropout=0,
    sampling_rate=1600), lambda n: (numbers(n, 1, 64 * n),))  # fmt: skip
add("Mimi", "transformers", pretrained(
    "MimiModel", lambda m, x: m(x).audio_values, num_filters=4, hidden_size=16, upsampling_ratios=[4, 2],
    codebook_size=16, codebook_dim=8, vector_quantization_hidden_dimension=8, num_quantizers=2,
    num_semantic_quantizers=1, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
    intermediate_size=24, sampling_rate=1600, frame_rate=100, upsample_groups=16, use_cache=False),
    lambda n: (numbers(n, 1, 128 * n),))  # fmt: skip
add("SEW-D", "transformers", pretrained(
    "SEWDModel", lambda m, x: unevenly(m(x).last_hidden_state), vocab_size=20, hidden_size=16, num_hidden_layers=1,
    num_attention_heads=2, intermediate_size=24, squeeze_factor=2, conv_dim=(8, 8), conv_stride=(5, 2),
    conv_kernel=(10, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, apply_spec_augment=False,
    max_position_embeddings=64, position_buckets=16), lambda n: (numbers(n, 200 * n),))  # fmt: skip
add("CLAP's audio encoder", "transformers", pretrained(
    "ClapAudioModelWithProjection", lambda m, x: unevenly(m(x).audio_embeds), spec_size=32, num_mel_bins=16,
    patch_size=4, patch_stride=[4, 4], window_size=4, hidden_size=32, depths=[1, 1], num_attention_heads=[2, 2],
    patch_embeds_hidden_size=16, num_classes=5, projection_dim=8, enable_fusion=False, drop_path_rate=0.0),
    lambda n: (numbers(n, 1, 64, 16),))  # fmt: skip
