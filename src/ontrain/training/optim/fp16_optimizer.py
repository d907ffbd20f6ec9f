"""`FP16_Optimizer`: a torch optimizer over half-precision parameters that works on float32 copies of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ontrain.capture import HALF_DTYPES
from ontrain.errors import OptionError
from ontrain.internals import private

__all__ = ["FP16_Optimizer", "MasterWeightOptimizer"]

_ELSEWHERE = ("deepspeed", "apex", "megatron")
_SCALER = {"init_scale": 2.0**32, "scale_factor": 2.0, "scale_window": 1000, "min_scale": 1.0, "delayed_shift": 1}


def FP16_Optimizer(optimizer: object, **kwargs: Any) -> Any:  # noqa: N802  upstream's name
    """Give an optimizer float32 master weights and loss scaling.

    Args:
        optimizer: of torch, its parameters partly or all in float16 or bfloat16. One of DeepSpeed, Apex or Megatron has
            both already and is returned as it is, with a warning: upstream only exchanged kernels in it.
        **kwargs: see `MasterWeightOptimizer`; upstream's `get_tensor_model_parallel_rank` and
            `get_tensor_model_parallel_group` belong to Megatron's optimizer.

    Raises:
        OptionError: it is no optimizer, or an argument is unknown.
    """
    if type(optimizer).__module__.partition(".")[0] in _ELSEWHERE or hasattr(optimizer, "_amp_stash"):
        warnings.warn(f"{type(optimizer).__name__} keeps its own kernels: it is returned as it is", stacklevel=2)
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(
            f"{type(optimizer).__name__} is no optimizer", way_out="give an instance of torch.optim.Optimizer"
        )
    try:
        return MasterWeightOptimizer(optimizer, **kwargs)
    except TypeError as error:
        raise OptionError(
            f"FP16_Optimizer: {error}",
            way_out="give static_loss_scale, dynamic_loss_scale, dynamic_loss_args, verbose",
        ) from error


class MasterWeightOptimizer:
    """Updates float32 copies and writes them back to the half-precision parameters; NVIDIA Apex's FP16_Optimizer.

    Use `optimizer.backward(loss)` in place of `loss.backward()`, then `optimizer.step()`.

    Args:
        init_optimizer: what updates; its groups refer to the float32 copies from now on.
        static_loss_scale: what the loss is multiplied by before backward.
        dynamic_loss_scale: let the scale follow overflows instead, as `dynamic_loss_args` say.
        dynamic_loss_args: init_scale, scale_factor, scale_window (steps without overflow before it grows), min_scale,
            delayed_shift (overflows in a row before it shrinks).
        verbose: print each step that is left out.

    Attributes:
        loss_scale: the present scale.
        overflow: whether the last step was left out for a gradient that is not finite.
    """

    def __init__(
        self, init_optimizer: torch.optim.Optimizer, static_loss_scale: float = 1.0, dynamic_loss_scale: bool = False,
        dynamic_loss_args: Mapping[str, float] | None = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        unknown = sorted(set(dynamic_loss_args or {}) - set(_SCALER))
        if unknown:
            raise OptionError(f"dynamic_loss_args has {unknown[0]!r}", way_out=f"known: {', '.join(_SCALER)}")
        self.optimizer = init_optimizer
        self._dynamic = {**_SCALER, **(dynamic_loss_args or {})} if dynamic_loss_scale else None
        self.loss_scale = float(self._dynamic["init_scale"] if self._dynamic else static_loss_scale)
        if not self.loss_scale > 0:
            raise OptionError(f"the loss scale is {self.loss_scale}", way_out="give a positive number")
        self.overflow = False
        self._unscaled = False
        self._verbose = verbose
        self._good, self._bad = 0, 0
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for group in init_optimizer.param_groups:
            group["params"] = [self._master(p) for p in group["params"]]

    def _master(self, p: torch.Tensor) -> torch.Tensor:
        if p.dtype not in HALF_DTYPES:
            self._pairs.append((p, p))
            return p
        master = p.detach().float().requires_grad_()
        if p in self.optimizer.state:
            self.optimizer.state[master] = self.optimizer.state.pop(p)
        self._pairs.append((p, master))
        return master

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the optimizer inside: learning rates are read and set here."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        """Moments by float32 parameter."""
        return self.optimizer.state

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        """Differentiate the scaled loss."""
        torch.autograd.backward(loss.float() * self.loss_scale, retain_graph=retain_graph)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop or zero the gradients of the model's parameters."""
        for p, _ in self._pairs:
            if p.grad is not None:
                p.grad = None if set_to_none else p.grad.zero_()

    @torch.no_grad()
    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Clip the gradients, unscaled, to a norm; return the norm, -1 after an overflow.

        The step that follows uses them as they are.
        """
        self._unscale()
        if self.overflow:
            return -1.0
        return float(torch.nn.utils.clip_grad_norm_([m for _, m in self._pairs], max_norm, norm_type))

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> None:
        """Update, unless a gradient is infinite or NaN; then only the loss scale changes.

        Raises:
            OptionError: a closure was given: it would differentiate without the scale.
        """
        if closure is not None:
            raise OptionError("FP16_Optimizer takes no closure", way_out="call backward and step")
        if not self._unscaled:
            self._unscale()
        self._unscaled = False
        self._adapt()
        if self.overflow:
            if self._verbose:
                print(f"gradients overflowed, step left out, loss scale {self.loss_scale}")  # noqa: T201
            return
        self.optimizer.step()
        for p, master in self._pairs:
            if p is not master:
                p.copy_(master)

    def _unscale(self) -> None:
        for p, master in self._pairs:
            if p is not master:
                master.grad = None if p.grad is None else p.grad.float()
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for _, master in self._pairs:
            if master.grad is not None:
                by_device.setdefault(master.device, []).append(master.grad)
        self.overflow = False
        for device, grads in by_device.items():
            overflow = torch.zeros(1, device=device)
            inverse = torch.full((1,), 1 / self.loss_scale, device=device)
            private("torch._amp_foreach_non_finite_check_and_unscale_")(grads, overflow, inverse)
            self.overflow = self.overflow or bool(overflow)
        self._unscaled = True

    def _adapt(self) -> None:
        if self._dynamic is None:
            return
        if not self.overflow:
            self._good, self._bad = self._good + 1, 0
            if self._good % self._dynamic["scale_window"] == 0:
                self.loss_scale *= self._dynamic["scale_factor"]
            return
        self._good, self._bad = 0, self._bad + 1
        if self._bad >= self._dynamic["delayed_shift"]:
            self.loss_scale = max(self.loss_scale / self._dynamic["scale_factor"], self._dynamic["min_scale"])

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, the float32 weights, and where the loss scale stands."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "masters": [master.detach() for _, master in self._pairs],
            "loss_scale": self.loss_scale, "good": self._good, "bad": self._bad,
        }  # fmt: skip

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned; the model's parameters follow the float32 weights."""
        self.optimizer.load_state_dict(dict(state_dict["optimizer"]))
        for (p, master), saved in zip(self._pairs, state_dict["masters"], strict=True):
            master.copy_(saved)
            p.copy_(master)
        self.loss_scale, self._good, self._bad = (state_dict[key] for key in ("loss_scale", "good", "bad"))
