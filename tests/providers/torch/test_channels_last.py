"""Images whose channels lie last from a convolution on: numbers as eager's, results as their users expect them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

pytestmark = pytest.mark.sampled(4)


class Residual(nn.Module):
    """Convolutions of all strides and groups, normalised, activated, added to what they began from."""

    def __init__(self, activation=nn.ReLU) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.deep, self.point = nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.Conv2d(8, 8, 1)
        self.dilated, self.act = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2), activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.stem(x)))
        return self.dilated(self.act(self.point(self.deep(x)))) + x


class Squeezed(nn.Module):
    """Channels weighed by what they hold on average, as in MobileNetV3 and EfficientNet; features as a result."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.down, self.up = Residual(nn.Hardswish), nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        weights = functional.hardsigmoid(self.up(functional.relu(self.down(x.mean((2, 3), keepdim=True)))))
        x = x * weights
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1)), x


class Unet(nn.Module):
    """Down by pools, up by neighbours, beside it what went down."""

    def __init__(self, mode: str = "bilinear") -> None:
        super().__init__()
        self.mode = mode
        self.first, self.second, self.last = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 6), (6, 6), (12, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        low = self.second(functional.max_pool2d(x, 3, stride=2, padding=1))
        return self.last(torch.cat([functional.interpolate(low, size=x.shape[2:], mode=self.mode), x], 1))


class Mixed(nn.Module):
    """What has rows of its own between convolutions: a normalisation and a product over channels, a flattening."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.LayerNorm(6)
        self.wide, self.narrow = nn.Linear(6, 12), nn.Linear(12, 6)
        self.stripes, self.head = nn.Conv2d(6, 4, 2, stride=2), nn.Linear(4 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.deep(x)
        y = self.narrow(functional.gelu(self.wide(self.norm(x.permute(0, 2, 3, 1)))))
        return self.head(functional.avg_pool2d(self.stripes(x + y.permute(0, 3, 1, 2)), 2).flatten(1))


class Shared(nn.Module):
    """The images themselves are used beside their convolution, cut, padded on one side, normalised and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(1, 3), nn.Conv2d(3, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(functional.pad(self.norm(x), (2, 0, 1, 1)))
        return torch.softmax(y[:, 1:].transpose(2, 3), 1) + x[:, :2].transpose(2, 3)


class Padded(nn.Module):
    """Images padded unevenly before each convolution and pool, as TensorFlow does, and cropped on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.SiLU()
        self.deep, self.point = nn.Conv2d(8, 8, 3, stride=2, groups=8), nn.Conv2d(8, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.stem(functional.pad(x, (0, 1, 0, 1)))))
        x = functional.avg_pool2d(functional.pad(x, (0, 1, 0, 1)), 2, stride=1)
        return self.point(self.deep(functional.pad(x, (1, 1, 1, 0))))


NETWORKS = [
    Residual,
    lambda: Residual(nn.SiLU),
    lambda: Residual(nn.ReLU6),
    Squeezed,
    Unet,
    lambda: Unet("nearest"),
    Mixed,
    Shared,
    Padded,
]
SINGLE = dict(rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
def test_training_equals_eagers(network, last):
    ours, eager = pair(network())
    if last:
        ours.to(memory_format=torch.channels_last)
        eager.to(memory_format=torch.channels_last)
    for size in (16, 16, 24) if network is not Mixed else (16, 16, 16):
        x = torch.randn(4, 3, size, size)
        x = x.to(memory_format=torch.channels_last) if last else x
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        outputs, wanted = ours(mine), eager(theirs)
        torch.testing.assert_close(outputs, wanted, **SINGLE)
        for results in (outputs, wanted):
            sum(output.square().mean() for output in (results if isinstance(results, tuple) else (results,))).backward()
        assert_same_gradients(ours, eager, **SINGLE)
        torch.testing.assert_close(mine.grad, theirs.grad, **SINGLE)
        ours.zero_grad()
        eager.zero_grad()
    for (name, mine), theirs in zip(ours.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name, **SINGLE)


def test_results_and_gradients_of_inputs_can_be_viewed():
    ours = ORTModule(Squeezed())
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    _, features = ours(x)
    features.view(-1).sum().backward()
    assert features.is_contiguous() and x.grad is not None and x.grad.is_contiguous()


def test_in_evaluation_too():
    ours, eager = pair(Squeezed())
    ours.eval()
    eager.eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), eager(x), **SINGLE)


@pytest.fixture
def rearranged(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the images that are copied into another order."""
    copies, copy = [], Emitter.copy

    def counting(e: Emitter, source: Buf, place: Buf) -> None:
        if source.meta.dim() == 4 and order_of(source.meta) is not order_of(place.meta):
            copies.append(tuple(source.shape))
        copy(e, source, place)

    monkeypatch.setattr(Emitter, "copy", counting)
    return copies


def test_between_convolutions_no_images_are_rearranged(rearranged):
    """A pad lies as the images in it do, and so does the part that is cut out of its adjoint."""
    ORTModule(Padded())(torch.randn(2, 3, 16, 16)).sum().backward()
    assert rearranged == [
        (2, 3, 17, 17),
        (2, 6, 4, 4),
        (2, 6, 4, 4),
    ]  # what is fed, the result, and the result's adjoint


class Deep(nn.Sequential):
    """Windows of many channels over images that become small, so that there are more weights than pixels."""

    def __init__(self) -> None:
        layers = [(32, 64, 3, 1), (64, 256, 3, 4), (256, 256, 3, 1), (256, 64, 1, 1)]
        super().__init__(
            *(
                layer
                for a, b, size, stride in layers
                for layer in (nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            )
        )


def test_a_network_of_more_weights_than_images_has_eagers_numbers_to_the_bit(rearranged):
    ours, eager = pair(Deep())
    x = torch.randn(4, 32, 16, 16)
    for network in (ours, eager):
        network(x).square().sum().backward()
    assert rearranged == []
    for name, parameter in eager.named_parameters():
        assert torch.equal(ours.module.get_parameter(name).grad, parameter.grad), name


class Dropped(nn.Module):
    """Dropout between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.dropout(self.first(x), 0.25))


def test_dropout_leaves_images_as_they_lie(rearranged):
    ORTModule(Dropped())(torch.randn(2, 3, 8, 8)).sum().backward()
    assert rearranged == [(2, 3, 8, 8), (2, 5, 4, 4), (2, 5, 4, 4)]  # what is fed, the result, and its adjoint


@pytest.mark.parametrize("size", [4, 40])  # drawn in two ways
def test_the_gradient_drops_the_same_places_of_images_whose_channels_lie_last(size):
    conv = nn.Conv2d(32, 32, 1, bias=False)
    nn.init.dirac_(conv.weight)
    ours = ORTModule(nn.Sequential(conv, nn.Dropout(0.25)))
    x = torch.ones(2, 32, size, size, requires_grad=True)
    y = ours(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    shares = (y.detach() == 0).double().mean((0, 2, 3))
    assert ((shares - 0.25).abs() < 5 * (0.25 * 0.75 / (2 * size * size)) ** 0.5).all()


def test_a_part_of_images_lies_as_they_do():
    images = torch.empty(2, 5, 8, 6, memory_format=torch.channels_last)
    for part in (images[:, :, 1:, :4], images[1:, :, ::2], images[:, 1:4], images[:, :, 2:3]):
        assert order_of(part) is torch.channels_last
    rows = images.contiguous()
    for part in (
        rows[:, :, 1:, :4],
        rows[:, 1:4],
        rows[:, :1],
        rows.transpose(2, 3),
        images.expand(3, 2, 5, 8, 6)[:, 0],
    ):
        assert order_of(part) is torch.contiguous_format
    assert order_of(images[:, :1, :1, :1].expand(2, 5, 8, 6)) is torch.contiguous_format
