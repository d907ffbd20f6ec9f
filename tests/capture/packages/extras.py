"""Losses, layers and small networks of packages that do one thing each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, image, numbers

__all__: list[str] = []


def imported(path: str) -> Any:
    """The class at the end of a path, "package.module.Class"."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def applied(path: str, **settings: Any) -> Callable[[], nn.Module]:
    """A module of a package on one tensor."""
    return lambda: Loss(model=imported(path)(**settings))


def between(path: str, layer: Callable[[], nn.Module], **settings: Any) -> Callable[[], nn.Module]:
    """A loss of a package between what a layer makes of the first tensor and the second tensor."""
    return lambda: Loss(lambda s, x, y: s.loss(s.layer(x), y), layer=layer(), loss=imported(path)(**settings))


def pairs(*shape: int) -> Callable[[int], Batch]:
    """Two tensors of one shape, whose first size grows with the batch."""
    return lambda n: (numbers(4 * n, *shape), numbers(4 * n, *shape, seed=1))


def pictures(n: int) -> Batch:
    """Two batches of images with values between zero and one."""
    return numbers(n, 3, 48, 48).sigmoid(), numbers(n, 3, 48, 48, seed=1).sigmoid()


def bright() -> nn.Module:
    """A convolution whose images have values between zero and one."""
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Sigmoid())


def coupled() -> nn.Module:
    """A layer that computes its input again in its backward."""
    memcnn = import_module("memcnn")
    inside = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    return Loss(model=memcnn.InvertibleModuleWrapper(memcnn.AdditiveCoupling(inside), keep_input=True))


def reversed_gradient() -> nn.Module:
    layer = imported("pytorch_revgrad.RevGrad")(alpha=0.5)
    return Loss(model=nn.Sequential(nn.Linear(6, 4), layer, nn.Linear(4, 2)))


def sorted_by_a_network() -> nn.Module:
    network = imported("diffsort.DiffSortNet")("bitonic", 8, steepness=5)
    return Loss(lambda s, x: s.network(s.layer(x))[0], layer=nn.Linear(8, 8), network=network)


def tempered() -> nn.Module:
    loss = imported("pytorch_toolbelt.losses.BiTemperedLogisticLoss")(0.8, 1.2)
    return Loss(lambda s, x, y: s.loss(s.layer(x), y.softmax(-1)), layer=nn.Linear(6, 6), loss=loss)


def voiced() -> nn.Module:
    backbone, head = imported("vocos.models.VocosBackbone")(8, 8, 16, 1), imported("vocos.heads.ISTFTHead")(8, 32, 8)
    return Loss(lambda s, x: s.head(s.backbone(x)), backbone=backbone, head=head)


def transported() -> nn.Module:
    ot = import_module("ot")
    directions = numbers(3, 8).double()
    return Loss(
        lambda s, x, y: ot.sliced_wasserstein_distance(s.layer(x), y, projections=directions), layer=nn.Linear(3, 3)
    )


add("AdditiveCoupling", "memcnn", coupled, image(8, 6))
add("TabM", "tabm", lambda: Loss(model=imported("tabm.TabM").make(
    n_num_features=6, d_out=2, k=4, n_blocks=2, d_block=8)), lambda n: (numbers(4 * n, 6),))  # fmt: skip
add("InfoNCE", "info-nce-pytorch", between("info_nce.InfoNCE", lambda: nn.Linear(6, 6)), pairs(6), "info_nce")
add("RevGrad", "pytorch-revgrad", reversed_gradient, lambda n: (numbers(4 * n, 6),))
add("DiffSortNet", "diffsort", sorted_by_a_network, lambda n: (numbers(n, 8),))
add("BiTemperedLogisticLoss", "pytorch-toolbelt", tempered, pairs(6))
add("SISDRLoss", "auraloss", between("auraloss.time.SISDRLoss", lambda: nn.Conv1d(1, 1, 3, padding=1)),
    lambda n: (numbers(n, 1, 80 * n), numbers(n, 1, 80 * n, seed=3)))  # fmt: skip
add("Vocos", "vocos", voiced, lambda n: (numbers(n, 8, 10 * n),))
add("sliced Wasserstein distance", "POT", transported, pairs(3), "ot")
add("SSIM of pytorch-msssim", "pytorch-msssim", between("pytorch_msssim.SSIM", bright, data_range=1.0, win_size=5),
    pictures)  # fmt: skip
add("HaarPSILoss", "piq", between("piq.HaarPSILoss", bright), pictures)
add("MDSILoss", "piq", between("piq.MDSILoss", bright), pictures)
add("LambdaLayer", "lambda-networks", applied(
    "lambda_networks.LambdaLayer", dim=8, dim_out=8, r=5, dim_k=4, heads=2, dim_u=2), image(8, 8))  # fmt: skip
add("SoftMoE", "soft-moe-pytorch", applied("soft_moe_pytorch.DynamicSlotsSoftMoE", dim=8, num_experts=4),
    lambda n: (numbers(n, 8 * n, 8),))  # fmt: skip
add("PEER", "PEER-pytorch", applied("PEER_pytorch.PEER", dim=8, heads=2, num_experts=16, num_experts_per_head=4,
    dim_key=4), lambda n: (numbers(n, 4 * n, 8),), "PEER_pytorch")  # fmt: skip


def spiking() -> nn.Module:
    """A layer of snntorch's leaky neurons, whose surrogate gradient changes sign where a mask says."""
    import snntorch

    neurons = snntorch.Leaky(beta=0.8, spike_grad=snntorch.surrogate.triangular())

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        potential = s.neurons.reset_mem()
        steps = []
        for step in s.layer(x).unbind(1):
            spikes, potential = s.neurons(step, potential)
            steps.append(potential + 2 * spikes)
        return torch.stack(steps, 1)

    return Loss(forward, layer=nn.Linear(8, 6), neurons=neurons)


add("Leaky of snntorch", "snntorch", spiking, lambda n: (3 * numbers(n, 4, 8),))
