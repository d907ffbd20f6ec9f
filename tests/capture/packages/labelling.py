"""Models of small packages: labelling, points in space, experts, sparse choices."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import rnn

from tests.capture.packages.entry import Batch, Loss, add, ids, numbers

__all__: list[str] = []


def _crf() -> nn.Module:
    from torchcrf import CRF

    crf: nn.Module = CRF(4, batch_first=True)
    return crf


class Labeller(nn.Module):
    """A recurrent layer over packed rows under a conditional random field."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.crf = nn.Embedding(20, 6), nn.Linear(10, 4), _crf()
        self.recurrent = nn.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, words: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = rnn.pack_padded_sequence(self.embed(words), mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        y, _ = rnn.pad_packed_sequence(self.recurrent(rows)[0], batch_first=True, total_length=words.shape[1])
        loss: torch.Tensor = -self.crf(self.head(y), labels, mask=mask.bool())
        return loss


def _labelled(n: int) -> Batch:
    lengths = torch.tensor([3, 5, 2])[:n]
    return ids(20, n, 5), ids(4, n, 5), (torch.arange(5) < lengths[:, None]).long()


add("CRF", "pytorch-crf", lambda: Loss(lambda s, x, t: -s.model(x, t), model=_crf()),
    lambda n: (numbers(n, 5, 4), ids(4, n, 5)), "torchcrf")  # fmt: skip
add("BiLSTM-CRF on packed rows", "pytorch-crf", Labeller, _labelled, "torchcrf")


def _egnn(name: str, read: Any, **settings: Any) -> Any:
    def make() -> nn.Module:
        import egnn_pytorch

        return Loss(read, model=getattr(egnn_pytorch, name)(**settings))

    return make


add("EGNN", "egnn-pytorch", _egnn("EGNN", lambda s, x, at: sum(y.pow(2).sum() for y in s.model(x, at)), dim=8, m_dim=4),
    lambda n: (numbers(n, 6, 8), numbers(n, 6, 3, seed=1)))  # fmt: skip
add("EGNN of the nearest", "egnn-pytorch",
    _egnn("EGNN", lambda s, x, at: s.model(x, at), dim=8, m_dim=4, num_nearest_neighbors=3, norm_coors=True),
    lambda n: (numbers(n, 6, 8), numbers(n, 6, 3, seed=1)))  # fmt: skip


def _experts(n: int) -> Batch:
    return (numbers(n, 8, 16),)


def _mixture(name: str, **settings: Any) -> Any:
    def make() -> nn.Module:
        import mixture_of_experts

        model = getattr(mixture_of_experts, name)(dim=16, second_policy_train="all", **settings)
        return Loss(lambda s, x: s.model(x)[0].pow(2).mean() + s.model(x)[1], model=model)

    return make


add("MoE", "mixture-of-experts", _mixture("MoE", num_experts=4), _experts)
add("HeirarchicalMoE", "mixture-of-experts", _mixture("HeirarchicalMoE", num_experts=(2, 2)), _experts)


def _chosen(name: str, **settings: Any) -> Any:
    def make() -> nn.Module:
        import entmax

        function = getattr(entmax, name)
        return Loss(lambda s, x: function(s.model(x), **settings) * torch.arange(1, 7), model=nn.Linear(5, 6))

    return make


add("sparsemax", "entmax", _chosen("sparsemax", dim=-1), lambda n: (numbers(n, 5),))
add("entmax15", "entmax", _chosen("entmax15", dim=-1), lambda n: (numbers(n, 5),))
add("normmax by bisection", "entmax", _chosen("normmax_bisect", alpha=2), lambda n: (numbers(n, 5),))
