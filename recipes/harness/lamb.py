"""LAMB in eager PyTorch, to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """u = m̂ / (√v̂ + ε) + λp, p ← p − lr · ‖p‖/‖u‖ · u, in calls that each take all tensors of a group.

    Source: You et al. 2020, "Large batch optimization for deep learning", algorithm 2, with φ(z) = z.
    """

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(group, params, [p.grad for p in params])

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Any]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {"step": torch.zeros(()), "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
        states = [self.state[p] for p in params]
        for state in states:
            state["step"] += 1
        step, (alpha, beta) = int(states[0]["step"]), group["betas"]
        m, v = [state["m"] for state in states], [state["v"] for state in states]
        torch._foreach_lerp_(m, grads, 1 - alpha)
        torch._foreach_mul_(v, beta)
        torch._foreach_addcmul_(v, grads, grads, 1 - beta)
        root = torch._foreach_sqrt(v)
        torch._foreach_div_(root, (1 - beta**step) ** 0.5)
        torch._foreach_add_(root, group["eps"])
        update = torch._foreach_div(m, 1 - alpha**step)
        torch._foreach_div_(update, root)
        if group["weight_decay"]:
            torch._foreach_add_(update, params, alpha=group["weight_decay"])
        of_param, of_update = (torch.stack(torch._foreach_norm(tensors)) for tensors in (params, update))
        # A tensor of zeros, or one without a direction, moves by the learning rate alone.
        ratio = torch.where((of_param > 0) & (of_update > 0), of_param / of_update, 1.0)
        torch._foreach_mul_(update, list(ratio.unbind()))
        torch._foreach_add_(params, update, alpha=-group["lr"])
