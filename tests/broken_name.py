"""A program that trains modules with a torch whose operator is gone or does something else, and says what came of it.

    python -m tests.broken_name aten.convolution_backward gone

prints "refused", "equal" or what went wrong, for a module that needs the operator and for one that does not. torch
resolves the names of `torch.ops` when they are first asked for: so the resolution itself is broken.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._decomp.decompositions
import torch._dynamo
import torch.export
import torch.fx.experimental.symbolic_shapes
import torch.utils.flop_counter
from torch import nn
from torch.nn import functional as F

__all__ = ["CASES", "TRACED"]

Case = Callable[[], tuple[nn.Module, torch.Tensor]]


class Calling(nn.Module):
    """A layer, and what is done with it and the batch."""

    def __init__(self, forward: Callable[..., torch.Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.layer, self._forward = layer, forward

    def forward(self, x):
        return self._forward(self.layer, x)


def _case(forward: Callable[..., torch.Tensor], layer: Callable[[], nn.Module], *shape: int) -> Case:
    return lambda: (Calling(forward, layer()), torch.randn(*shape))


def _normed(norm: Callable[[], nn.Module], *shape: int) -> Case:
    return _case(lambda norm, x: norm(torch.tanh(x)).pow(2), norm, *shape)


_attention = _case(
    lambda layer, x: F.scaled_dot_product_attention(layer(x), x, x), lambda: nn.Linear(8, 8), 2, 2, 40, 8
)
_lstm = _case(lambda layer, x: layer(x)[0], lambda: nn.LSTM(4, 5), 6, 3, 4)
_linear = _case(lambda layer, x: F.gelu(layer(x)), lambda: nn.Linear(256, 256), 128, 256)


def _spelled(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(2, dtype=torch.long)
    return F.ctc_loss(layer(x).log_softmax(-1), ones[:, None], ones * 5, ones)


def _ringed() -> nn.Module:
    layer = nn.Linear(6, 8)
    layer.register_buffer("ring", torch.eye(4).roll(1, 0).to_sparse())
    return layer


_plain = _case(lambda layer, x: torch.tanh(layer(x)), lambda: nn.Linear(6, 8), 4, 6)
_FOR_CPU = "aten._scaled_dot_product_flash_attention_for_cpu"

CASES: dict[str, tuple[Case, str]] = {
    "aten._softmax_backward_data": (
        _case(lambda layer, x: layer(x).softmax(-1) * torch.arange(8.0), lambda: nn.Linear(6, 8), 4, 6), "refused",
    ),
    "aten._log_softmax_backward_data": (
        _case(lambda layer, x: F.cross_entropy(layer(x), torch.arange(4)), lambda: nn.Linear(6, 8), 4, 6), "refused",
    ),
    "aten.native_layer_norm_backward": (_normed(lambda: nn.LayerNorm(6), 4, 6), "refused"),
    "aten.native_batch_norm_backward": (_normed(lambda: nn.BatchNorm1d(6), 4, 6), "refused"),
    "aten.native_group_norm_backward": (_normed(lambda: nn.GroupNorm(2, 4), 2, 4, 6), "refused"),
    "aten._adaptive_avg_pool2d_backward": (
        _case(lambda layer, x: F.adaptive_avg_pool2d(layer(x), 3), lambda: nn.Conv2d(2, 3, 1), 2, 2, 7, 5), "refused",
    ),
    "aten._embedding_bag_dense_backward": (
        _case(lambda bag, x: bag(x.long().abs()), lambda: nn.EmbeddingBag(10, 4, mode="mean"), 2, 3), "refused",
    ),
    "aten.convolution_backward": (
        _case(lambda layer, x: layer(x).pow(2), lambda: nn.Conv2d(2, 3, 3), 2, 2, 7, 5), "refused",
    ),
    **dict.fromkeys(("aten._ctc_loss", "aten._ctc_loss_backward"), (
        _case(_spelled, lambda: nn.Linear(6, 8), 5, 2, 6), "refused",
    )),
    "aten._sparse_coo_tensor_with_dims_and_tensors": (
        _case(lambda layer, x: layer(torch.sparse.mm(layer.ring, x)), _ringed, 4, 6), "refused",
    ),
    "aten._local_scalar_dense": (
        _case(lambda layer, x: layer(x) * x.sum().item(), lambda: nn.Linear(6, 8), 4, 6), "refused",
    ),
    "aten._has_compatible_shallow_copy_type": (_plain, "equal"),
    "aten.mkldnn_rnn_layer": (_lstm, "equal"),
    "aten.mkldnn_rnn_layer_backward": (_lstm, "equal"),
    _FOR_CPU: (_attention, "refused"),
    f"{_FOR_CPU}_backward": (_attention, "refused"),
    "mkldnn._convolution_pointwise": (
        _case(lambda layer, x: F.relu(layer(x)), lambda: nn.Conv2d(16, 16, 3), 2, 16, 16, 16), "equal",
    ),
    **{
        f"mkldnn.{name}": (_linear, "equal")
        for name in ("_linear_pointwise", "_reorder_linear_weight", "_reorder_convolution_weight", "data_ptr",
                     "_nbytes", "_convolution_pointwise_")
    },
}  # fmt: skip
"""By the name of an operator, a module that needs it, and what is to come of it."""


TRACED = frozenset({_FOR_CPU})
"""Operators that torch's own tracer calls, so that none that does something else can stand in their place."""


class _Other:
    """Does nothing, under every name."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return self


def _break(name: str, how: str) -> None:
    space, _, operator = name.partition(".")
    namespace = getattr(torch.ops, space)
    resolve = type(namespace).__getattr__

    def resolved(self: Any, attribute: str) -> Any:
        if self is namespace and attribute == operator:
            raise AttributeError(f"{space} has no {operator}")
        return resolve(self, attribute)

    type(namespace).__getattr__ = resolved
    namespace.__dict__.pop(operator, None)
    if how == "changed":
        namespace.__dict__[operator] = _Other()
        torch.__version__ = "99.0.0"  # a release that nobody has seen is tried


def _trained(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = module(x)
    y.sum().backward()
    return [y.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def main(name: str, how: str) -> None:
    """Print what comes of a module that needs the operator, and of one that does not."""
    if name.startswith(_FOR_CPU):
        os.environ["ONTRAIN_TUNE"] = "0"  # which takes eager's kernels
    torch.manual_seed(0)
    samples = [case() for case in (CASES[name][0], _plain)]
    expected = [_trained(copy.deepcopy(module), x) for module, x in samples]
    _break(name, how)
    from ontrain.errors import OntrainError
    from ontrain.training.ortmodule import ORTModule

    for (module, x), theirs in zip(samples, expected, strict=True):
        try:
            ours = _trained(ORTModule(module), x)
        except OntrainError as error:
            # torch's own tracer asks for some, and has no other name for them.
            named = f"torch.ops.{name}," in error.problem or error.problem.endswith(f"has no {name.partition('.')[2]}")
            print("refused" if named else f"refused for something else: {error}")
            continue
        alike = all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(ours, theirs, strict=True))
        print("equal" if alike else "wrong")


if __name__ == "__main__":
    main(*sys.argv[1:])
