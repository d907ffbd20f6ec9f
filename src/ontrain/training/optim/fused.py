"""Optimizers for a user's own loop around an ORTModule: one kernel, or a few, for all parameters of a group.

`FusedAdam` and `AdamWMode` have onnxruntime.training.optim's names and arguments, `FusedLamb` those of NVIDIA Apex's
FusedLAMB, which upstream's recipes use. They run wherever torch does, on the CPU too.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ontrain.errors import OptionError
from ontrain.internals import available, private
from ontrain.providers.torch.norms import norm, norms

__all__ = ["AdamWMode", "FusedAdam", "FusedLamb"]

Tensors = list[torch.Tensor]


class AdamWMode(enum.IntEnum):
    """Where weight decay goes, and where epsilon."""

    ADAM_L2_REGULARIZATION = 0
    """Added to the gradient, as in torch.optim.Adam."""
    ADAMW_TRANSFORMERS = 1
    """Taken off the updated weight; epsilon is added before the bias correction, as transformers' AdamW did."""
    ADAMW_TORCH = 2
    """Taken off the weight before the update, as in torch.optim.AdamW."""


class _Fused(torch.optim.Optimizer):
    """What both share: checks, moments, one step count a group, lists by dtype and device."""

    def __init__(self, params: Any, defaults: dict[str, Any], set_grad_none: bool) -> None:
        super().__init__(params, defaults)
        for group in self.param_groups:
            _check(group)
        self._set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients; zero them only if both `set_grad_none` and `set_to_none` are off."""
        super().zero_grad(set_to_none=self._set_grad_none or set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Update all parameters that have a gradient.

        Args:
            closure: evaluates the model anew and returns the loss.

        Raises:
            OptionError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._prepare()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            self._update(group)
        return loss

    def _prepare(self) -> None:
        """Look at all groups before the first is updated."""

    def _update(self, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _lists(self, group: dict[str, Any]) -> Iterable[tuple[Tensors, Tensors, Tensors, Tensors]]:
        """Parameters, gradients and both moments; each list of one dtype on one device."""
        alike: dict[Any, tuple[Tensors, Tensors, Tensors, Tensors]] = defaultdict(lambda: ([], [], [], []))
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise OptionError("a gradient is sparse", way_out="use torch.optim.SparseAdam for that parameter")
            state = self.state[p]
            if not state:
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            lists = alike[p.device, p.dtype]
            for tensors, tensor in zip(lists, (p, p.grad, state["exp_avg"], state["exp_avg_sq"]), strict=True):
                tensors.append(tensor)
        return alike.values()


class FusedAdam(_Fused):
    """Adam by torch's fused kernel, in any of three conventions for weight decay.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        bias_correction: divide the moments by 1 − βᵗ.
        betas: decay rates of the moments.
        eps: added to the denominator.
        adam_w_mode: the convention.
        weight_decay: its coefficient.
        set_grad_none: let `zero_grad` drop gradients.

    Raises:
        OptionError: a hyper-parameter is out of range.

    Source: Kingma and Ba 2015, arXiv:1412.6980; Loshchilov and Hutter 2019, arXiv:1711.05101.
    """

    def __init__(
        self, params: object, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6, adam_w_mode: AdamWMode | int = AdamWMode.ADAMW_TRANSFORMERS, weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:  # fmt: skip
        try:
            self._mode = AdamWMode(adam_w_mode)
        except ValueError:
            names = ", ".join(f"AdamWMode.{mode.name}" for mode in AdamWMode)
            raise OptionError(f"adam_w_mode is {adam_w_mode!r}", way_out=f"give one of {names}") from None
        hyper = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, hyper, set_grad_none)

    def _update(self, group: dict[str, Any]) -> None:
        (beta1, beta2), step = group["betas"], group["step"]
        lr, eps, decay = float(group["lr"]), group["eps"], group["weight_decay"]
        first, second = 1 - beta1**step, math.sqrt(1 - beta2**step)
        transformers = self._mode is AdamWMode.ADAMW_TRANSFORMERS
        # The kernel takes lr / first · m / (√v / second + eps); what is wanted differs in its constants only.
        rate = lr if group["bias_correction"] else lr * first / second
        added = eps / second if transformers or not group["bias_correction"] else eps
        decoupled = self._mode is AdamWMode.ADAMW_TORCH
        kernel = private("torch._fused_adamw_") if decoupled else private("torch._fused_adam_")
        for params, grads, m, v in self._lists(group):
            # With another rate in the kernel, its decay has to give lr · decay all the same.
            inside = decay * lr / rate if decoupled and rate else decay
            kernel(
                params, grads, m, v, [], [torch.tensor(float(step), device=params[0].device)] * len(params),
                lr=rate, beta1=beta1, beta2=beta2, weight_decay=0.0 if transformers else inside, eps=added,
                amsgrad=False, maximize=False,
            )  # fmt: skip
            if transformers and decay:
                _multiply(params, 1 - lr * decay)


class FusedLamb(_Fused):
    """LAMB in multi-tensor kernels: Adam's direction, scaled by ‖w‖ / ‖update‖ for each parameter.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        bias_correction: divide the moments by 1 − βᵗ.
        betas: decay rates of the moments.
        eps: added to the denominator.
        weight_decay: its coefficient, part of the update that the ratio scales.
        grad_averaging: take 1 − β₁ of the gradient into the first moment; all of it otherwise.
        set_grad_none: let `zero_grad` drop gradients.
        max_grad_norm: clip the gradients of all groups to this norm; 0 leaves them.
        use_nvlamb: scale parameters without weight decay by the ratio, too.

    Raises:
        OptionError: a hyper-parameter is out of range.

    Source: You et al. 2020, arXiv:1904.00962; names and defaults of NVIDIA Apex's FusedLAMB.
    """

    def __init__(
        self, params: object, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6, weight_decay: float = 0.01, grad_averaging: bool = True, set_grad_none: bool = True,
        max_grad_norm: float = 1.0, use_nvlamb: bool = False,
    ) -> None:  # fmt: skip
        if max_grad_norm < 0:
            raise OptionError(f"max_grad_norm is {max_grad_norm}", way_out="give a norm, or 0 to leave gradients alone")
        self._max_norm, self._nvlamb = max_grad_norm, use_nvlamb
        self._clip: torch.Tensor | None = None
        hyper = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**hyper, "grad_averaging": grad_averaging}, set_grad_none)

    def _prepare(self) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self._clip = None
        if self._max_norm and grads:
            total = torch.linalg.vector_norm(torch.stack([norm(g.float()) for g in grads]))
            self._clip = (total / self._max_norm).clamp(min=1.0)

    def _update(self, group: dict[str, Any]) -> None:
        (beta1, beta2), step, decay = group["betas"], group["step"], group["weight_decay"]
        corrected = group["bias_correction"]
        first, second = (1 - beta1**step, math.sqrt(1 - beta2**step)) if corrected else (1.0, 1.0)
        taken = 1 - beta1 if group["grad_averaging"] else 1.0
        for params, grads, m, v in self._lists(group):
            if self._clip is not None:
                clip = self._clip.to(grads[0])
                grads = [grad / clip for grad in grads]
            private("torch._foreach_mul_")(m, beta1)
            private("torch._foreach_add_")(m, grads, alpha=taken)
            private("torch._foreach_mul_")(v, beta2)
            private("torch._foreach_addcmul_")(v, grads, grads, 1 - beta2)
            denominator = private("torch._foreach_sqrt")(v)
            private("torch._foreach_div_")(denominator, second)
            private("torch._foreach_add_")(denominator, group["eps"])
            update = private("torch._foreach_div")(m, first)
            private("torch._foreach_div_")(update, denominator)
            if decay:
                private("torch._foreach_add_")(update, params, alpha=decay)
            if decay or self._nvlamb:
                weights, lengths = norms(params), norms(update)
                ratios = [_ratio(w, u) for w, u in zip(weights, lengths, strict=True)]
                private("torch._foreach_mul_")(update, ratios)
            private("torch._foreach_add_")(params, update, alpha=-float(group["lr"]))


def _ratio(weight: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    return torch.where((weight > 0) & (update > 0), weight / update, torch.ones_like(weight))


def _check(group: dict[str, Any]) -> None:
    """Refuse hyper-parameters out of range."""
    for name in ("lr", "eps", "weight_decay"):
        if not 0 <= float(group[name]) < math.inf:
            raise OptionError(f"{name} is {group[name]}", way_out="give a number from 0")
    if len(group["betas"]) != 2 or not all(0 <= beta < 1 for beta in group["betas"]):
        raise OptionError(f"betas are {group['betas']}", way_out="give two numbers in [0, 1)")


def _multiply(tensors: Tensors, factor: float) -> None:
    multiply = available("torch._foreach_mul_")
    if multiply is not None:
        multiply(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)
