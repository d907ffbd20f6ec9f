"""Reductions over axes, orders and statistics."""

from __future__ import annotations

import torch

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw


def _over_axes(axes: tuple[int, ...], keep: bool) -> dict:
    """Reductions by name."""
    axis = axes[0]
    return {
        "sum": lambda x: x.sum(axes, keepdim=keep),
        "mean": lambda x: x.mean(axes, keepdim=keep),
        "std": lambda x: x.std(axes, keepdim=keep, correction=0),
        "var": lambda x: x.var(axes, keepdim=keep, correction=0),
        "amax": lambda x: x.amax(axes, keep),
        "logsumexp": lambda x: x.logsumexp(axes, keep),
        "norm": lambda x: x.norm(dim=axes, keepdim=keep),
        "nansum": lambda x: x.nansum(axes, keep),
        "nanmean": lambda x: x.nanmean(axes, keep),
        "all": lambda x: x * (x > 0).all(axis).double().sum(),
        "count_nonzero": lambda x: x * torch.count_nonzero(x > 0, axes).sum(),
        "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, axes, keep),
        "median": lambda x: x.median(axis, keep)[0],
        "argmax": lambda x: x * x.argmax(axis).double().sum(),
        "any": lambda x: x * (x > 1).any(axis, keep).double().sum(),
        "prod": lambda x: x.prod(axis, keep),
        "of all": lambda x: x.mean() + x.max() * x.min(),
        "spread of all": lambda x: x.var(correction=0) + x.std(correction=0),
    }


@call.share(2)
def reduction(draw: Draw) -> Call:
    """Over some axes of two to four, sizes of 1 among them; the number of axes stays, the sizes do not."""
    rank = draw.integer(2, 4)
    axes, keep = draw.axes(rank, draw.integer(1, rank)), draw.flag()
    functions = _over_axes(axes, keep)
    name = draw.choice(list(functions))
    shape = draw.sizes(rank, 1, 4)
    return Call(f"{name} {axes} {keep}", functions[name], lambda: draw.tensor(*shape))


def _matrix(draw: Draw):
    return lambda: draw.tensor(draw.integer(3, 5), draw.integer(3, 6))


def _ranked(x: torch.Tensor, axis: int, descending: bool) -> torch.Tensor:
    """Sorted numbers, each times its place."""
    places = torch.arange(x.shape[axis] * 1.0).reshape([-1, 1] if axis == 0 else [1, -1])
    return torch.sort(x, dim=axis, descending=descending)[0] * places


def _orders(axis: int, keep: bool, large: bool) -> dict:
    """Functions that put numbers in order, by name."""
    return {
        "sort": lambda x: _ranked(x, axis, large),
        "topk": lambda x: torch.topk(x, 2, dim=axis, largest=large)[0],
        "kthvalue": lambda x: torch.kthvalue(x, 2, dim=axis, keepdim=keep)[0],
        "median": lambda x: torch.median(x, dim=axis, keepdim=keep)[0] + torch.median(x),
        "ties": lambda x: torch.aminmax(x.round(), dim=axis, keepdim=keep)[0] + torch.amax(x.round(), axis, keep),
        "unique": lambda x: x.sum() * torch.unique(x.detach().round()).sum(),
        "histc": lambda x: x * torch.histc(x.detach(), 5).sum(),
        "bincount": lambda x: x * torch.bincount(x.detach().abs().long().flatten()).sum(),
    }


@call
def order(draw: Draw) -> Call:
    """Sorted numbers and counts of numbers."""
    settings = (draw.choice([0, 1, -1]), draw.flag(), draw.flag())
    functions = _orders(*settings)
    name = draw.choice(list(functions))
    return Call(f"{name} {settings}", functions[name], _matrix(draw))


def _statistics(axis: int, keep: bool, correction: int) -> dict:
    """Statistics by name."""
    return {
        "var": lambda x: torch.var(x, dim=axis, correction=correction, keepdim=keep),
        "std": lambda x: torch.std(x, dim=axis, correction=correction, keepdim=keep),
        "var_mean": lambda x: sum(torch.var_mean(x, dim=(0, 1), correction=0)),
        "logsumexp": lambda x: torch.logsumexp(x, (0, 1), keepdim=keep),
        "prod": lambda x: torch.prod(x, axis, keepdim=keep) + x.prod(),
    }


@call
def statistic(draw: Draw) -> Call:
    """Variances with a correction, and others."""
    settings = (draw.choice([0, 1, -1]), draw.flag(), draw.choice([0, 1, 2]))
    functions = _statistics(*settings)
    name = draw.choice(list(functions))
    return Call(f"{name} {settings}", functions[name], _matrix(draw))


@call
def quantile(draw: Draw) -> Call:
    """One or several, between neighbours in each way."""
    settings = dict(
        q=draw.choice([0.3, torch.tensor([0.1, 0.9])]), dim=draw.choice([0, 1, -1]), keepdim=draw.flag(),
        interpolation=draw.choice(["linear", "lower", "higher", "nearest", "midpoint"]),
    )  # fmt: skip
    return Call(f"quantile {settings}", lambda x: torch.quantile(x, **settings), _matrix(draw))


@call
def norm(draw: Draw) -> Call:
    """torch.norm of each power."""
    settings = dict(
        p=draw.choice([0, 1, 2, 3, 0.5, float("inf"), -float("inf"), -1, "fro"]), dim=draw.choice([0, 1, -1]),
        keepdim=draw.flag(),
    )  # fmt: skip
    return Call(f"norm {settings}", lambda x: torch.norm(x, **settings), _matrix(draw))


@call
def running(draw: Draw) -> Call:
    """Sums, products and maxima so far."""
    functions = {
        "cumsum": torch.cumsum,
        "cumprod": torch.cumprod,
        "logcumsumexp": torch.logcumsumexp,
        "cummax": lambda x, axis: torch.cummax(x, axis)[0],
    }
    name, axis = draw.choice(list(functions)), draw.choice([0, 1, -1])
    return Call(f"{name} {axis}", lambda x: functions[name](x, axis), _matrix(draw))
