"""Covariances, spelled out: torch's own ask a tensor whether there are enough observations."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["correlation", "covariance"]


def covariance(input: torch.Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> torch.Tensor:
    """Return `torch.cov` of observations [variables, count], or of one variable [count].

    Args:
        input: the observations.
        correction: of the number of observations.
        fweights: how often each observation occurs, [count].
        aweights: how much each counts, [count].
    """
    if input.dim() > 2:
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    if fweights is None and aweights is None:
        count = rows.shape[1]
        apart = rows - rows.sum(1, keepdim=True) / count
        joint: torch.Tensor = apart.mm(apart.t().conj()) / torch.sym_max(count - correction, 0)
        return joint.squeeze()
    weights = aweights if fweights is None else fweights if aweights is None else fweights * aweights
    total = weights.sum()
    apart = rows - (rows * weights).sum(1, keepdim=True) / total
    freedom = total - correction * (1 if aweights is None else (weights * aweights).sum() / total)
    joint = apart.mm((apart * weights).t().conj()) / freedom.clamp(min=0)
    return joint.squeeze()


def correlation(input: torch.Tensor) -> torch.Tensor:
    """Return `torch.corrcoef` of observations [variables, count], or of one variable [count]."""
    if input.dim() > 2:
        return torch.corrcoef(input)
    joint = covariance(input)
    if joint.dim() == 0:
        return joint / joint
    own = joint.diagonal()
    deviation = (own.real if own.is_complex() else own).sqrt()
    joint = joint / deviation[:, None] / deviation
    if not joint.is_complex():
        return joint.clip(-1, 1)
    return torch.complex(joint.real.clip(-1, 1), joint.imag.clip(-1, 1))
