"""Interactions of knowledge graphs in pykeen, and models of crossed fields in torchfm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.capture.packages.entry import Batch, Loss, add, ids, numbers
from tests.capture.packages.extras import imported

__all__: list[str] = []

Shapes = Sequence[tuple[int, ...]]
_FIELDS = (5, 4, 6)
_ONE: Shapes = [(4,)]
_TWO: Shapes = [(4,), (4,)]


def interaction(name: str, heads: int, relations: int, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """An interaction of as many representations of heads, of relations, and of tails; each by a trained scale."""

    def forward(s: Any, *xs: torch.Tensor) -> torch.Tensor:
        scaled = [x * s.scale for x in xs]
        groups = scaled[:heads], scaled[heads : heads + relations], scaled[heads + relations :]
        scores: torch.Tensor = s.model(*(group[0] if len(group) == 1 else tuple(group) for group in groups))
        return scores

    return lambda: Loss(
        forward,
        model=imported(f"pykeen.nn.modules.{name}Interaction")(**settings),
        scale=nn.Parameter(torch.tensor(1.1)),
    )


def represented(shapes: Shapes) -> Callable[[int], Batch]:
    """Representations of these shapes, one batch each."""
    return lambda n: tuple(numbers(n, *shape, seed=place) for place, shape in enumerate(shapes))


def related(name: str, heads: Shapes, relations: Shapes, tails: Shapes, **settings: Any) -> None:
    make = interaction(name, len(heads), len(relations), settings)
    add(f"{name} of pykeen", "pykeen", make, represented([*heads, *relations, *tails]))


related("DistMult", _ONE, _ONE, _ONE)
related("HolE", _ONE, _ONE, _ONE)
related("SimplE", _TWO, _TWO, _TWO)
related("TransE", _ONE, _ONE, _ONE, p=2)
related("TransR", _ONE, [(3,), (4, 3)], _ONE, p=2)
related("TransH", _ONE, _TWO, _ONE, p=2)
related("ConvKB", _ONE, _ONE, _ONE, embedding_dim=4, num_filters=3, hidden_dropout_rate=0.0)
related("RESCAL", _ONE, [(4, 4)], _ONE)
related("BoxE", _TWO, [(4,), (4,), (1,), (4,), (4,), (1,)], _TWO)
related("CrossE", _ONE, _TWO, _ONE, embedding_dim=4)


def crossed(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of torchfm under the loss of clicks."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy(s.model(x), (x[:, 0] % 2).double())

    return lambda: Loss(forward, model=imported(f"torchfm.model.{name}")(_FIELDS, embed_dim=4, **settings))


def clicks(n: int) -> Batch:
    """A value of each field in each row."""
    return (torch.stack([ids(size, n + 2 + place)[: n + 2] for place, size in enumerate(_FIELDS)], 1),)


_NETWORK = {"mlp_dims": (8,), "dropout": 0.0}
add("attentional factorisation machine", "torchfm",
    crossed("afm.AttentionalFactorizationMachineModel", attn_size=4, dropouts=(0.0, 0.0)), clicks)  # fmt: skip
add("adaptive factorisation network", "torchfm",
    crossed("afn.AdaptiveFactorizationNetwork", LNN_dim=6, mlp_dims=(8,), dropouts=(0.0,) * 3), clicks)  # fmt: skip
add("field-aware factorisation machine", "torchfm", crossed("ffm.FieldAwareFactorizationMachineModel"), clicks)
add("product network", "torchfm", crossed("pnn.ProductNeuralNetworkModel", method="outer", **_NETWORK), clicks)
