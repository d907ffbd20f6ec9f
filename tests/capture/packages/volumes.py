"""monai's further networks, and its losses of segmentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Loss, add, ids, image, numbers

__all__: list[str] = []


def network(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A network of monai by its name; the first of its results counts."""

    def make() -> nn.Module:
        import monai

        return Loss(model=getattr(monai.networks.nets, name)(**settings))

    return make


_2D: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
_LAYERS: dict[str, Any] = {"hidden_size": 24, "mlp_dim": 16, "num_layers": 2, "num_heads": 2}
_VIT: dict[str, Any] = {"in_channels": 1, "img_size": 16, "patch_size": 4, "spatial_dims": 2, **_LAYERS}
_SHAPED: dict[str, Any] = {"in_shape": (1, 16, 16), "channels": (4, 8), "strides": (2, 2)}
_MEDNEXT: dict[str, Any] = {"blocks_down": (1, 1), "blocks_bottleneck": 1, "blocks_up": (1, 1)}
_STRIDES: dict[str, Any] = {"strides": [1, 2, 2], "upsample_kernel_size": [2, 2]}
for _name, _settings, _size in (
    ("BasicUNet", {"features": (4, 4, 4, 8, 8, 4), **_2D}, 32),
    ("DynUNet", {"kernel_size": [3] * 3, "filters": [4, 4, 8], **_STRIDES, **_2D}, 16),
    ("SegResNetDS", {"init_filters": 4, "blocks_down": (1, 1), "dsdepth": 1, **_2D}, 16),
    ("MedNeXt", {"init_filters": 4, **_MEDNEXT, **_2D}, 16),
    ("ViTAutoEnc", {"out_channels": 1, **_VIT}, 16), ("ViT", {"classification": True, "num_classes": 3, **_VIT}, 16),
    ("AutoEncoder", {"channels": (4, 8), "strides": (2, 2), **_2D}, 16), ("Regressor", {"out_shape": 2, **_SHAPED}, 16),
    ("Critic", _SHAPED, 16), ("PatchDiscriminator", {"channels": 4, "num_layers_d": 2, **_2D}, 32),
    ("LocalNet", {"num_channel_initial": 4, "extract_levels": (0, 1), **_2D}, 16),
    ("RegUNet", {"num_channel_initial": 4, "depth": 2, **{k: v for k, v in _2D.items() if k != "out_channels"}}, 16),
):  # fmt: skip
    add(f"{_name} of monai", "monai", network(_name, **_settings), image(1, _size))
add(
    "DecoderOnlyTransformer",
    "monai",
    network("DecoderOnlyTransformer", num_tokens=20, max_seq_len=16, attn_layers_dim=8, attn_layers_depth=1,
            attn_layers_heads=2),
    lambda n: (ids(20, n, 5 + n),),
)  # fmt: skip


def segmented(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A convolution under a loss of monai."""

    def make() -> nn.Module:
        import monai

        def forward(s: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return s.loss(s.model(x), target)  # type: ignore[no-any-return]

        return Loss(forward, model=nn.Conv2d(3, 3, 1), loss=getattr(monai.losses, name)(**settings))

    return make


for _name, _settings in (
    ("DiceFocalLoss", {"softmax": True}), ("GeneralizedDiceLoss", {"softmax": True}),
    ("FocalLoss", {"use_softmax": True}),
):  # fmt: skip
    add(
        f"{_name} of monai",
        "monai",
        segmented(_name, to_onehot_y=True, **_settings),
        lambda n: (numbers(n, 3, 8, 8), ids(3, n, 1, 8, 8)),
    )
