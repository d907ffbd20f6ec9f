"""The vector functions of MKL, with which torch computes exponentials, sines and powers on x86 processors."""

from __future__ import annotations

import torch

from ontrain.locks import Lock

__all__ = ["settle_vector_functions"]

_LOCK = Lock()
_settled = False


def settle_vector_functions() -> None:
    """Have MKL choose its vector functions on one thread, before several threads ask for one at once.

    The first of `exp`, `log`, `sin`, `tanh`, `erf`, `sqrt` and their like makes the choice. If torch makes it on
    several threads, one thread may compute its share with an accuracy of 1e-4, this once: PyTorch's
    `torch.sin(x)` right after a product, in a fresh process, differs from the second `torch.sin(x)` about one time in
    three. One element takes one thread.
    """
    global _settled
    with _LOCK:
        if not _settled:
            power = torch.exp(torch.zeros(1, device="cpu"))
            _settled = type(power) is torch.Tensor  # not where a provider is made while torch only pretends to compute
