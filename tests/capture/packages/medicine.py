"""monai's networks and losses of volumes, and torchvision's of pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, image, numbers

__all__: list[str] = []


def volume_network(name: str, loss: str = "DiceCELoss", **settings: Any) -> Callable[[], nn.Module]:
    """A network of monai over volumes, under one of its losses."""

    def make() -> nn.Module:
        import monai

        def forward(s: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return s.loss(s.model(x), target)

        return Loss(forward, model=getattr(monai.networks.nets, name)(**settings),
                    loss=getattr(monai.losses, loss)(to_onehot_y=True, softmax=True))  # fmt: skip

    return make


def volumes(size: int) -> Callable[[int], Batch]:
    """Volumes, and a class for each voxel."""
    return lambda n: (numbers(n, 1, size, size, size), ids(2, n, 1, size, size, size))


_3D = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
add(
    "UNet of volumes",
    "monai",
    volume_network("UNet", channels=(4, 8), strides=(2,), num_res_units=1, **_3D),
    volumes(8),
)
add("SegResNet", "monai", volume_network("SegResNet", "DiceFocalLoss", init_filters=8, blocks_down=(1, 1),
    blocks_up=(1,), **_3D), volumes(8))  # fmt: skip
add("VNet", "monai", volume_network("VNet", "GeneralizedDiceLoss", dropout_prob_down=0.0, dropout_prob_up=(0.0, 0.0),
    **_3D), volumes(16))  # fmt: skip
add(
    "AttentionUnet",
    "monai",
    volume_network("AttentionUnet", "TverskyLoss", channels=(4, 8), strides=(2,), **_3D),
    volumes(8),
)
add("UNETR", "monai", volume_network("UNETR", in_channels=1, out_channels=2, img_size=16, feature_size=4,
    hidden_size=24, mlp_dim=24, num_heads=2), volumes(16))  # fmt: skip


def vision_network(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A network of torchvision."""

    def make() -> nn.Module:
        from torchvision import models

        def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
            y = s.model(x)
            return y["out"] if isinstance(y, dict) else y

        return Loss(forward, model=models.get_model(name, weights=None, **settings))

    return make


def detector(name: str) -> Callable[[], nn.Module]:
    """A detector of torchvision, with the sum of its losses for a box in each image."""

    def make() -> nn.Module:
        from torchvision.models import detection

        def forward(s: Any, images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
            targets = [{"boxes": box[None], "labels": torch.ones(1, dtype=torch.int64)} for box in boxes.unbind()]
            return sum(s.model(list(images.unbind()), targets).values())

        return Loss(forward, model=getattr(detection, name)(
            weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64))  # fmt: skip

    return make


def boxed(n: int) -> Batch:
    """Images with a box each."""
    return numbers(n, 3, 64, 64).sigmoid(), torch.tensor([[8.0, 8.0, 40.0, 48.0]]).repeat(n, 1)


add(
    "DeepLabV3",
    "torchvision",
    vision_network("deeplabv3_mobilenet_v3_large", weights_backbone=None, num_classes=3),
    image(size=64),
)
add(
    "LR-ASPP",
    "torchvision",
    vision_network("lraspp_mobilenet_v3_large", weights_backbone=None, num_classes=3),
    image(size=64),
)
add("R(2+1)D", "torchvision", vision_network("r2plus1d_18", num_classes=3), lambda n: (numbers(n, 3, 4, 16, 16),))
add("RetinaNet", "torchvision", detector("retinanet_resnet50_fpn"), boxed)
add("FCOS", "torchvision", detector("fcos_resnet50_fpn"), boxed)
add("Faster R-CNN", "torchvision", detector("fasterrcnn_mobilenet_v3_large_fpn"), boxed)
