"""Indices, views and writes in place."""

from __future__ import annotations

import torch

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw


def _accumulated(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.index_put_((rows,), x[:1].expand(3, *x.shape[1:]), accumulate=True)
    return y


def _overwritten(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[1:3, columns] = x[:2, :3] * 2
    return y


def _indices() -> dict:
    """Reads and writes by indices, by name; the tensor has at least four rows and columns, and three layers."""
    a, b = torch.tensor([2, 0, -1]), torch.tensor([[1], [0]])
    return {
        "apart": lambda x: x[a, :, b.view(-1)[:1]],
        "with a new axis": lambda x: x[..., a, None] * 2,
        "twice": lambda x: x[:, a][:, b],
        "broadcast": lambda x: x[b, a],
        "where": lambda x: x[x[:, 0, 0] > 0],
        "with slices": lambda x: x[1:-1, ::2, [0, 2]],
        "accumulated": lambda x: _accumulated(x, a),
        "overwritten": lambda x: _overwritten(x, a),
    }


@call
def index(draw: Draw) -> Call:
    """Indices of several axes, masks and slices, read and written."""
    functions = _indices()
    name = draw.choice(list(functions))
    return Call(name, functions[name], lambda: draw.tensor(draw.integer(4, 5), draw.integer(4, 6), 3))


def _views(offset: int, axis: int, step: int) -> dict:
    """Views and copies by name, of three axes, the middle one of four."""
    return {
        "unfold": lambda x: x.unfold(1, 2, step) * 2,
        "diagonal": lambda x: x.diagonal(offset, 0, 2).contiguous() * x.sum(),
        "movedim": lambda x: x.movedim((0, 1), (2, 0)),
        "transpose": lambda x: x.transpose(0, 2).reshape(-1),
        "diag_embed": lambda x: torch.diag_embed(x[:, :, 0], offset, 0, -1),
        "unflatten": lambda x: x.flatten(1).unflatten(1, (-1, x.shape[2])),
        "expand": lambda x: x.expand(2, *x.shape) * 2,
        "repeat": lambda x: x.repeat(1, 2, 1) + 0,
        "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
        "roll": lambda x: x.roll((1, -1), (0, 2)),
        "flip": lambda x: x.flip((0, 2)),
        "stack": lambda x: torch.stack(x.unbind(1), axis),
        "split": lambda x: torch.cat(x.split(2, 1)[::-1], 1),
        "chunk": lambda x: torch.cat([part.sum(2) for part in x.chunk(3, 2)], 1),
        "triangles": lambda x: x.tril(offset) + x.triu(offset),
        "stacks": lambda x: torch.hstack([x, x * 2]) + 0 * torch.dstack([x, x]).sum(),
    }


@call
def view(draw: Draw) -> Call:
    """Views, and what puts elements elsewhere."""
    settings = (draw.integer(-1, 1), draw.integer(-3, 2), draw.integer(1, 2))
    functions = _views(*settings)
    name = draw.choice(list(functions))
    return Call(f"{name} {settings}", functions[name], lambda: draw.tensor(draw.integer(3, 4), 4, draw.integer(3, 5)))


def _writes(number: float) -> dict:
    """Writes into a matrix of 3 by 4, by name; each returns what the write does."""
    return {
        "mul_": lambda y: y.mul_(number).add_(1),
        "a row": lambda y: y[0].mul_(number),
        "columns": lambda y: y[:, 1:3].fill_(number),
        "masked_fill_": lambda y: y.masked_fill_(y > 0, number),
        "clamp_": lambda y: y.clamp_(-number, number),
        "index_fill_": lambda y: y.index_fill_(1, torch.tensor([0, 2]), number),
        "transposed": lambda y: y.t().mul_(number),
        "strided": lambda y: y.view(-1)[::2].add_(number),
        "scatter_": lambda y: y.scatter_(1, torch.tensor([[0, 1], [2, 0], [1, 3]]), number),
        "index_add_": lambda y: y.index_add_(0, torch.tensor([0, 2]), y.detach()[:2]),
        "copy_": lambda y: y.copy_(y.flip(0)),
        "diagonal": lambda y: y.diagonal().zero_(),
        "exp_": lambda y: y.exp_().sub_(number),
        "squeeze_": lambda y: (y.unsqueeze_(0), y.squeeze_(0))[1],
    }


@call
def write(draw: Draw) -> Call:
    """Writes in place, into a tensor or a view of it: both are read afterwards."""
    number = draw.choice([0.5, 2.0])
    functions = _writes(number)
    name = draw.choice(list(functions))

    def function(x):
        y = x * 2
        written = functions[name](y)
        return (y * y).sum() + (written * 1.5).sum()

    return Call(f"{name} {number}", function, lambda: draw.tensor(3, 4))
