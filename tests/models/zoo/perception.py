"""Models of transformers that hear, see and read at once, segment, or forecast."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.models.zoo.entry import Batch, Entry
from tests.models.zoo.huggingface import (
    BRANCHES,
    HEADS,
    SEQ2SEQ,
    TEXT,
    VOCAB,
    WIDTH,
    mask,
    model,
    tokens,
    without_dropout,
)

__all__ = ["ENTRIES"]

WAVE = dict(
    vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=24,
    conv_dim=(8, 8), conv_stride=(4, 2), conv_kernel=(4, 2), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2, num_labels=3, classifier_proj_size=8, pad_token_id=0,
)  # fmt: skip


def waves(batch: int, length: int) -> Batch:
    return {"input_values": torch.randn(batch, 16 * length), "labels": torch.randint(0, 3, (batch,))}


def spoken(batch: int, length: int) -> Batch:
    return {"input_values": torch.randn(batch, 16 * length), "labels": torch.randint(1, VOCAB, (batch, length // 3))}


def mels(batch: int, length: int) -> Batch:
    return {"input_features": torch.randn(batch, 8, 16), "labels": tokens(batch, length)}


def frames(batch: int, length: int) -> Batch:
    return {"input_features": torch.randn(batch, 4 * length, 8), "labels": tokens(batch, length)}


def segments(batch: int, _: int) -> Batch:
    return {"pixel_values": torch.randn(batch, 3, 16, 16), "labels": torch.randint(0, 5, (batch, 16, 16))}


def captioned(batch: int, length: int) -> Batch:
    ids = tokens(batch, length)
    ids[:, -1] = 2
    return {"input_ids": ids, "attention_mask": mask(ids), "pixel_values": torch.randn(batch, 3, 16, 16)}


def series(batch: int, _: int) -> Batch:
    return {"past_values": torch.randn(batch, 16, 2), "future_values": torch.randn(batch, 4, 2)}


class Contrastive(nn.Module):
    """A two-tower model with the loss that its forward computes when asked."""

    def __init__(self, towers: nn.Module) -> None:
        super().__init__()
        self.towers = towers

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.towers(**batch, return_loss=True).loss
        return loss


_TOWER = dict(hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=24)


def towers(model_type: str) -> Any:
    def make() -> nn.Module:
        text = dict(
            **_TOWER, vocab_size=VOCAB, max_position_embeddings=32, eos_token_id=2, bos_token_id=1, pad_token_id=0
        )
        config = dict(text_config=text, vision_config=dict(**_TOWER, image_size=16, patch_size=4), projection_dim=8)
        return Contrastive(model("", model_type, **config)())

    return make


def class_(name: str, config: str, **options: Any) -> Any:
    """Return what makes a model that no auto class leads to."""

    def make() -> nn.Module:
        import transformers

        configuration = getattr(transformers, config)(**options)
        without_dropout(configuration)
        return getattr(transformers, name)(configuration)

    return make


ENTRIES = [
    Entry(
        "whisper",
        "speech",
        model(
            "ForSpeechSeq2Seq",
            "whisper",
            **{**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 32, "pad_token_id": 0},
        ),
        mels,
    ),
    Entry(
        "speech_to_text",
        "speech",
        model(
            "ForSpeechSeq2Seq",
            "speech_to_text",
            **{
                **SEQ2SEQ,
                "input_feat_per_channel": 8,
                "conv_channels": 8,
                "max_source_positions": 64,
                "max_target_positions": 32,
            },
        ),
        frames,
    ),
    Entry(
        "moonshine",
        "speech",
        model(
            "ForSpeechSeq2Seq",
            "moonshine",
            **{
                **TEXT,
                "encoder_num_hidden_layers": 1,
                "decoder_num_hidden_layers": 1,
                "encoder_num_attention_heads": 2,
                "decoder_num_attention_heads": 2,
                "decoder_start_token_id": 1,
            },
        ),
        lambda n, t: {"input_values": torch.randn(n, 1024), "labels": tokens(n, t)},
    ),
    Entry("wav2vec2", "speech", model("ForAudioClassification", "wav2vec2", **WAVE), waves),
    Entry("hubert", "speech", model("ForAudioClassification", "hubert", **WAVE), waves),
    Entry("wavlm", "speech", model("ForAudioClassification", "wavlm", **WAVE), waves),
    Entry(
        "wav2vec2 under CTC",
        "speech",
        model("ForCTC", "wav2vec2", **WAVE),
        spoken,
        refused="as many places as a mask",
        way_out="a loop of your own with ORTModule",
    ),
    Entry(
        "audio-spectrogram-transformer",
        "speech",
        model(
            "ForAudioClassification",
            "audio-spectrogram-transformer",
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            intermediate_size=24,
            patch_size=4,
            frequency_stride=4,
            time_stride=4,
            max_length=16,
            num_mel_bins=8,
            num_labels=3,
        ),
        lambda n, _: {"input_values": torch.randn(n, 16, 8), "labels": torch.randint(0, 3, (n,))},
    ),
    Entry("clip", "vision and text", towers("clip"), captioned),
    Entry("siglip", "vision and text", towers("siglip"), captioned),
    Entry(
        "vilt",
        "vision and text",
        class_(
            "ViltForImagesAndTextClassification",
            "ViltConfig",
            **TEXT,
            image_size=16,
            patch_size=4,
            num_images=1,
            num_labels=3,
            modality_type_vocab_size=2,
        ),
        lambda n, t: {**captioned(n, t), "labels": torch.randint(0, 3, (n,))},
        refused=BRANCHES,
        way_out="out of forward",
    ),
    Entry(
        "segformer, segmentation",
        "segmentation",
        model(
            "ForSemanticSegmentation",
            "segformer",
            depths=[1] * 4,
            sr_ratios=[2, 2, 1, 1],
            hidden_sizes=[8] * 4,
            strides=[2, 2, 2, 1],
            num_attention_heads=[2] * 4,
            mlp_ratios=[2] * 4,
            decoder_hidden_size=8,
            num_labels=5,
        ),
        segments,
    ),
    Entry(
        "dpt",
        "segmentation",
        model(
            "ForSemanticSegmentation",
            "dpt",
            image_size=16,
            patch_size=4,
            hidden_size=WIDTH,
            num_hidden_layers=4,
            num_attention_heads=2,
            intermediate_size=24,
            is_hybrid=False,
            num_labels=5,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 8, 8],
            fusion_hidden_size=8,
            reassemble_factors=[4, 2, 1, 0.5],
            use_auxiliary_head=True,
        ),
        segments,
    ),
    Entry(
        "vit_mae",
        "vision",
        class_(
            "ViTMAEForPreTraining",
            "ViTMAEConfig",
            **_TOWER,
            image_size=16,
            patch_size=4,
            decoder_hidden_size=8,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=2,
            decoder_intermediate_size=16,
        ),
        lambda n, _: {"pixel_values": torch.randn(n, 3, 16, 16), "noise": torch.rand(n, 16)},
    ),
    Entry(
        "patchtst",
        "time series",
        class_(
            "PatchTSTForPrediction",
            "PatchTSTConfig",
            num_input_channels=2,
            context_length=16,
            patch_length=4,
            patch_stride=4,
            d_model=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=16,
            prediction_length=4,
            loss="mse",
        ),
        series,
    ),
    Entry(
        "patchtsmixer",
        "time series",
        class_(
            "PatchTSMixerForPrediction",
            "PatchTSMixerConfig",
            num_input_channels=2,
            context_length=16,
            patch_length=4,
            patch_stride=4,
            d_model=8,
            num_layers=1,
            prediction_length=4,
        ),
        series,
    ),
    Entry(
        "videomae",
        "video",
        class_(
            "VideoMAEForVideoClassification",
            "VideoMAEConfig",
            **_TOWER,
            image_size=16,
            num_frames=4,
            tubelet_size=2,
            patch_size=8,
            num_labels=5,
        ),
        lambda n, _: {"pixel_values": torch.randn(n, 4, 3, 16, 16), "labels": torch.randint(0, 5, (n,))},
    ),
]
