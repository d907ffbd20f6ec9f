"""Networks of convolutions, written out small."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.models.zoo.entry import Batch, Entry

__all__ = ["ENTRIES"]


def labelled_images(batch: int, _: int) -> Batch:
    return {"x": torch.randn(batch, 3, 16, 16), "label": torch.randint(0, 5, (batch,))}


def any_images(batch: int, length: int) -> Batch:
    """Images whose height and width vary too."""
    return {"x": torch.randn(batch, 3, 2 * length, 2 * length), "label": torch.randint(0, 5, (batch,))}


def maps(batch: int, _: int) -> Batch:
    return {"x": torch.randn(batch, 3, 16, 16), "label": torch.randint(0, 4, (batch, 16, 16))}


def norm_act(cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers = [
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(cout),
        *([nn.ReLU(inplace=True)] if act else []),
    ]
    return nn.Sequential(*layers)


class Classifier(nn.Module):
    """Features, their mean over all places, and a linear head under cross entropy."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)), label)


class Bottleneck(nn.Module):
    """ResNet's bottleneck: He et al. 2015."""

    def __init__(self, cin: int, width: int, stride: int = 1) -> None:
        super().__init__()
        out = 4 * width
        self.path = nn.Sequential(
            norm_act(cin, width, 1), norm_act(width, width, 3, stride), norm_act(width, out, 1, act=False)
        )
        self.skip = norm_act(cin, out, 1, stride, act=False) if stride > 1 or cin != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.path(x) + self.skip(x))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class InvertedResidual(nn.Module):
    """MobileNetV3's block: Howard et al. 2019."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        hidden = 3 * cin
        self.add = stride == 1 and cin == cout
        self.path = nn.Sequential(
            nn.Conv2d(cin, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 5, stride, 2, groups=hidden, bias=False), nn.BatchNorm2d(hidden),
            SqueezeExcite(hidden), nn.Hardswish(),
            nn.Conv2d(hidden, cout, 1, bias=False), nn.BatchNorm2d(cout),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.path(x) if self.add else self.path(x)


class FusedMBConv(nn.Module):
    """EfficientNetV2's fused block: Tan and Le 2021."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.SiLU()
        )
        self.excite = SqueezeExcite(2 * width)
        self.project = nn.Sequential(nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.project(self.excite(self.expand(x)))


class DenseBlock(nn.Module):
    """DenseNet's block, each layer on all before it: Huang et al. 2017."""

    def __init__(self, width: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width + i * growth), nn.ReLU(), nn.Conv2d(width + i * growth, growth, 3, padding=1)
            )
            for i in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Inception(nn.Module):
    """Four paths side by side, one of them factorised: Szegedy et al. 2015."""

    def __init__(self, cin: int) -> None:
        super().__init__()
        self.one = norm_act(cin, 4, 1)
        self.three = nn.Sequential(
            norm_act(cin, 4, 1), nn.Conv2d(4, 4, (1, 3), padding=(0, 1)), nn.Conv2d(4, 4, (3, 1), padding=(1, 0))
        )
        self.five = nn.Sequential(norm_act(cin, 4, 1), norm_act(4, 4, 5))
        self.pool = norm_act(cin, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(F.avg_pool2d(x, 3, 1, 1))], 1)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm over channels, layer scale: Liu et al. 2022."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class Shuffle(nn.Module):
    """ShuffleNetV2's unit: split, convolve, concatenate, shuffle: Ma et al. 2018."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.path = nn.Sequential(
            norm_act(half, half, 1), norm_act(half, half, 3, groups=half, act=False), norm_act(half, half, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat([a, self.path(b)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Fire(nn.Module):
    """SqueezeNet's module: Iandola et al. 2016."""

    def __init__(self, cin: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(cin, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.squeeze(x), inplace=True)
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


class UNet(nn.Module):
    """Down, up again by a transposed convolution and by interpolation, with skips: Ronneberger et al. 2015."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.down1, self.down2, self.middle = norm_act(3, 8), norm_act(8, 8), norm_act(8, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(8, 8, 1)
        self.merge2, self.merge1, self.head = norm_act(16, 8), norm_act(16, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        d = self.merge2(torch.cat([self.up2(c), b], 1))
        corners = False if self.mode == "bilinear" else None
        up = F.interpolate(d, scale_factor=2, mode=self.mode, align_corners=corners)
        return F.cross_entropy(self.head(self.merge1(torch.cat([self.up1(up), a], 1))), label)


class FullyConvolutional(nn.Module):
    """Atrous convolutions and a bilinear resize to the input's own size, as in DeepLab: Chen et al. 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = norm_act(3, 8, stride=2)
        self.atrous = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=rate, dilation=rate) for rate in (1, 2, 3))
        self.pool, self.head = nn.Conv2d(8, 4, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        whole = F.interpolate(self.pool(F.adaptive_avg_pool2d(y, 1)), size=y.shape[-2:], mode="nearest")
        y = self.head(torch.cat([*(F.relu(branch(y)) for branch in self.atrous), whole], 1))
        return F.cross_entropy(F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=True), label)


class Superresolution(nn.Module):
    """Sub-pixel convolution with PReLU and GroupNorm: Shi et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.PReLU(8), nn.Conv2d(8, 12, 3, padding=1)
        )

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.l1_loss(F.pixel_shuffle(self.body(x), 2), target)


class StyleTransfer(nn.Module):
    """Reflection padding and InstanceNorm: Johnson et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="nearest"), nn.ReplicationPad2d(1), nn.Conv2d(8, 3, 3, stride=2), nn.Tanh()
        )  # fmt: skip

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        gram = torch.einsum("nchw,ndhw->ncd", y, y) / y[0].numel()
        return F.mse_loss(y, target) + gram.square().mean()


class Video(nn.Module):
    """Convolutions in three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(3, 4, 3, padding=1),
            nn.BatchNorm3d(4),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(4, 8, (1, 3, 3)),
            nn.ELU(),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(x).mean((2, 3, 4))), label)


class TemporalConvolution(nn.Module):
    """Causal dilated convolutions with weight normalisation and a residual path: Bai et al. 2018."""

    def __init__(self) -> None:
        super().__init__()
        weight_norm = nn.utils.parametrizations.weight_norm
        self.inp = nn.Conv1d(4, 8, 1)
        self.layers = nn.ModuleList(weight_norm(nn.Conv1d(8, 8, 3, dilation=2**i)) for i in range(3))
        self.head = nn.Conv1d(8, 4, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = self.inp(x.transpose(1, 2))
        for i, layer in enumerate(self.layers):
            y = y + F.relu(layer(F.pad(y, (2 ** (i + 1), 0))))
        return F.smooth_l1_loss(self.head(y).transpose(1, 2), target)


class WaveNet(nn.Module):
    """Gated dilated convolutions with skips: van den Oord et al. 2016."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(3))
        self.skips, self.head = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3)), nn.Conv1d(8, 20, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids[:, :-1]).transpose(1, 2)
        skipped = torch.zeros_like(x)
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            skipped = skipped + skip(y)
            x = x + y
        return F.cross_entropy(self.head(F.relu(skipped)), ids[:, 1:])


def _entry(name: str, make, batch=labelled_images, family: str = "convolutional", **more) -> Entry:
    return Entry(name, family, make, batch, **more)


def _pairs(batch: int, _: int) -> Batch:
    return {"x": torch.randn(batch, 3, 8, 8), "target": torch.randn(batch, 3, 8, 8)}


ENTRIES = [
    _entry(
        "ResNet",
        lambda: Classifier(
            nn.Sequential(norm_act(3, 8), nn.MaxPool2d(3, 2, 1), Bottleneck(8, 4), Bottleneck(16, 4, 2)), 16
        ),
    ),
    _entry(
        "ResNet, sizes vary",
        lambda: Classifier(nn.Sequential(norm_act(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), Bottleneck(8, 4)), 16),
        any_images,
    ),
    _entry(
        "ResNeXt",
        lambda: Classifier(
            nn.Sequential(norm_act(3, 8), norm_act(8, 8, groups=4), norm_act(8, 16, stride=2, groups=2)), 16
        ),
    ),
    _entry(
        "VGG",
        lambda: Classifier(
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1),
                nn.ReLU(True),
                nn.Conv2d(8, 8, 3, padding=1),
                nn.ReLU(True),
                nn.MaxPool2d(2),
            ),
            8,
        ),
    ),
    _entry(
        "AlexNet",
        lambda: Classifier(
            nn.Sequential(
                nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 2), nn.Conv2d(8, 8, 3)
            ),
            8,
        ),
    ),
    _entry(
        "MobileNetV3",
        lambda: Classifier(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), InvertedResidual(8, 8, 1), InvertedResidual(8, 12, 2)), 12
        ),
    ),
    _entry("EfficientNetV2", lambda: Classifier(nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), FusedMBConv(8)), 8)),
    _entry(
        "DenseNet",
        lambda: Classifier(
            nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), DenseBlock(8, 4, 3), nn.Conv2d(20, 8, 1), nn.AvgPool2d(2)), 8
        ),
    ),
    _entry("Inception", lambda: Classifier(nn.Sequential(norm_act(3, 8, stride=2), Inception(8), Inception(16)), 16)),
    _entry("ConvNeXt", lambda: Classifier(nn.Sequential(nn.Conv2d(3, 8, 4, 4), ConvNeXtBlock(8), ConvNeXtBlock(8)), 8)),
    _entry("ShuffleNet", lambda: Classifier(nn.Sequential(norm_act(3, 8, stride=2), Shuffle(8), Shuffle(8)), 8)),
    _entry(
        "SqueezeNet",
        lambda: Classifier(
            nn.Sequential(
                nn.Conv2d(3, 8, 3, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(8, 4, 6), Fire(12, 4, 6)
            ),
            12,
        ),
    ),
    _entry("U-Net", lambda: UNet("bilinear"), maps),
    _entry("U-Net, nearest", lambda: UNet("nearest"), maps),
    _entry("DeepLab", FullyConvolutional, maps),
    _entry("ESPCN", Superresolution, lambda n, _: {"x": torch.randn(n, 3, 6, 6), "target": torch.randn(n, 3, 12, 12)}),
    _entry("style transfer", StyleTransfer, _pairs),
    _entry("C3D", Video, lambda n, _: {"x": torch.randn(n, 3, 4, 8, 8), "label": torch.randint(0, 5, (n,))}),
    _entry("TCN", TemporalConvolution, lambda n, t: {"x": torch.randn(n, t, 4), "target": torch.randn(n, t, 4)}),
    _entry("WaveNet", WaveNet, lambda n, t: {"ids": torch.randint(0, 20, (n, t))}),
]
