"""Networks by the paths of their classes: torchaudio, rtdl, segmentation-models-pytorch and vit-pytorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Loss, add, ids, image, numbers, unevenly

__all__: list[str] = []


def uneven(path: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A network by the path of its class or maker, its first result weighted unevenly."""

    def make() -> nn.Module:
        module, _, name = path.rpartition(".")

        def forward(s: Any, *batch: torch.Tensor) -> torch.Tensor:
            y = s.model(*batch)
            return unevenly(y[0] if isinstance(y, tuple | list) else y)

        return Loss(forward, model=getattr(importlib.import_module(module), name)(*arguments, **settings))

    return make


add("Wav2Letter", "torchaudio", uneven("torchaudio.models.Wav2Letter", num_classes=5, input_type="mfcc",
    num_features=8), lambda n: (numbers(n, 8, 64 * n),))  # fmt: skip
add("DeepSpeech", "torchaudio", uneven("torchaudio.models.DeepSpeech", 8, n_hidden=8, n_class=5, dropout=0.0),
    lambda n: (numbers(n, 1, 4 * n, 8),))  # fmt: skip
add("WaveRNN", "torchaudio", uneven(
    "torchaudio.models.WaveRNN", upsample_scales=[2, 3], n_classes=5, hop_length=6, n_res_block=1, n_rnn=8, n_fc=8,
    kernel_size=5, n_freq=8, n_hidden=8, n_output=8),
    lambda n: (numbers(n, 1, (2 * n - 1) * 6), numbers(n, 1, 8, 2 * n + 3)))  # fmt: skip
add("RNN-T of Emformers", "torchaudio", uneven(
    "torchaudio.models.emformer_rnnt_model", input_dim=8, encoding_dim=16, num_symbols=10, segment_length=16,
    right_context_length=4, time_reduction_input_dim=8, time_reduction_stride=4, transformer_num_heads=2,
    transformer_ffn_dim=16, transformer_num_layers=1, transformer_dropout=0.0, transformer_activation="gelu",
    transformer_left_context_length=4, transformer_max_memory_size=0, symbol_embedding_dim=8, num_lstm_layers=1,
    transformer_weight_init_scale_strategy="depthwise", transformer_tanh_on_mem=True, lstm_layer_norm=True,
    lstm_layer_norm_epsilon=1e-3, lstm_dropout=0.0),
    lambda n: (numbers(n, 8 * n + 4, 8), torch.full((n,), 8 * n + 4, dtype=torch.int32), ids(9, n, 3 * n).int(),
               torch.full((n,), 3 * n, dtype=torch.int32)))  # fmt: skip
add("HDemucs", "torchaudio", uneven(
    "torchaudio.models.HDemucs", sources=["voice", "rest"], audio_channels=1, channels=4, depth=2, nfft=64,
    norm_starts=9, dconv_attn=9, dconv_lstm=9, freq_emb=0.2), lambda n: (numbers(n, 1, 1024 * n),))  # fmt: skip

add("ResNet of rtdl", "rtdl-revisiting-models", uneven(
    "rtdl_revisiting_models.ResNet", d_in=4, d_out=2, n_blocks=1, d_block=8, d_hidden=8, d_hidden_multiplier=None,
    dropout1=0.0, dropout2=0.0), lambda n: (numbers(3 * n, 4),))  # fmt: skip
add("FT-Transformer of rtdl", "rtdl-revisiting-models", uneven(
    "rtdl_revisiting_models.FTTransformer", n_cont_features=4, cat_cardinalities=[3, 5], d_out=2, n_blocks=1,
    d_block=16, attention_n_heads=2, attention_dropout=0.0, ffn_d_hidden=16, ffn_d_hidden_multiplier=None,
    ffn_dropout=0.0, residual_dropout=0.0),
    lambda n: (numbers(n, 4), torch.stack([ids(3, n), ids(5, n)], 1)))  # fmt: skip
add("periodic embeddings", "rtdl-num-embeddings", uneven("rtdl_num_embeddings.PeriodicEmbeddings", 4, 6, lite=False),
    lambda n: (numbers(3 * n, 4),))  # fmt: skip
add("piecewise linear embeddings", "rtdl-num-embeddings", uneven(
    "rtdl_num_embeddings.PiecewiseLinearEmbeddings", [torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([-2.0, 0.5, 2.0])],
    6, activation=False, version="B"), lambda n: (numbers(3 * n, 2),))  # fmt: skip

for _name, _settings in (
    ("UnetPlusPlus", {"encoder_depth": 3, "decoder_channels": (8, 8, 8)}),
    ("MAnet", {"encoder_depth": 3, "decoder_channels": (8, 8, 8)}),
    ("PSPNet", {"psp_out_channels": 8, "psp_dropout": 0.0}),
    ("Segformer", {"decoder_segmentation_channels": 8}),
    ("UPerNet", {"decoder_channels": 8}),
):
    add(
        _name,
        "segmentation-models-pytorch",
        uneven(f"segmentation_models_pytorch.{_name}", "resnet18", encoder_weights=None, classes=2, **_settings),
        image(size=64),
    )


def segmentation_loss(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A loss of segmentation-models-pytorch behind a convolution."""

    def make() -> nn.Module:
        from segmentation_models_pytorch import losses

        return Loss(lambda s, x, y: s.loss(s.model(x), y), model=nn.Conv2d(3, 2, 3, padding=1),
                    loss=getattr(losses, name)(**settings))  # fmt: skip

    return make


for _name, _settings in (
    ("DiceLoss", {"mode": "multiclass"}), ("FocalLoss", {"mode": "multiclass"}),
    ("TverskyLoss", {"mode": "multiclass"}),
    ("SoftCrossEntropyLoss", {"smooth_factor": 0.1}),
):  # fmt: skip
    add(
        f"{_name} of segmentation",
        "segmentation-models-pytorch",
        segmentation_loss(_name, **_settings),
        lambda n: (numbers(n, 3, 8, 8), ids(2, n, 8, 8)),
    )

_VIT = {"image_size": 32, "num_classes": 3, "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 16, "dim_head": 8}
_SIDES = {f"{side}_{name}": size for side in ("sm", "lg") for name, size in (
    ("dim", 16), ("enc_depth", 1), ("enc_heads", 2), ("enc_mlp_dim", 16), ("enc_dim_head", 8))}  # fmt: skip
for _label, _path, _settings in (
    ("CrossViT", "cross_vit.CrossViT", {**_SIDES, "image_size": 32, "num_classes": 3, "sm_patch_size": 8, "depth": 1,
                                        "lg_patch_size": 16, "cross_attn_depth": 1, "cross_attn_heads": 2,
                                        "cross_attn_dim_head": 8}),
    ("T2T-ViT", "t2t.T2TViT", {**_VIT, "t2t_layers": ((7, 4), (3, 2))}),
    ("XCiT of vit-pytorch", "xcit.XCiT", {**_VIT, "patch_size": 8, "cls_depth": 1, "layer_dropout": 0.0,
                                          "local_patch_kernel_size": 3}),
):  # fmt: skip
    add(_label, "vit-pytorch", uneven(f"vit_pytorch.{_path}", **_settings), image())


def images_of_any_size() -> nn.Module:
    """NaViT, which packs images of several sizes into sequences."""
    from vit_pytorch.na_vit import NaViT

    def forward(s: Any, wide: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
        return s.model([*wide.unbind(), *small.unbind()], group_images=True, group_max_seq_len=16)

    return Loss(forward, model=NaViT(**{**_VIT, "image_size": 16}, patch_size=4, token_dropout_prob=None))


add("NaViT", "vit-pytorch", images_of_any_size, lambda n: (numbers(n, 3, 16, 8), numbers(n, 3, 8, 8)))
