"""What an ORTModule does with a call that its graph cannot answer: raise, or have PyTorch answer it and say so."""

from __future__ import annotations

import enum
import os
import re
import warnings

from ontrain.errors import (
    CaptureError,
    GradientError,
    GraphError,
    InputError,
    OntrainError,
    OptionError,
    ProviderError,
    nearest,
)
from ontrain.training.environment import is_on
from ontrain.training.ortmodule.refusals import DeviceError

__all__ = ["Fallback", "FallbackPolicy", "policy_of"]

POLICY, RETRY = "ORTMODULE_FALLBACK_POLICY", "ORTMODULE_FALLBACK_RETRY"


class FallbackPolicy(enum.IntFlag):
    """For which refusals the wrapped module is run by PyTorch instead; they can be joined with `|`.

    The names are onnxruntime's. There all but FALLBACK_DISABLE were on; here FALLBACK_DISABLE is the default, and wins
    over all others. What is answered by PyTorch is neither faster nor smaller than without ORTModule.
    """

    FALLBACK_DISABLE = 1
    """Every refusal is an error."""
    FALLBACK_FORCE_TORCH_FORWARD = 2
    """Whatever is refused at a call."""
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    """An operator has no gradient; that is found out at the call, before anything runs."""
    FALLBACK_UNSUPPORTED_DEVICE = 8
    """The module and its input are on several devices, or on the meta device."""
    FALLBACK_UNSUPPORTED_DATA = 16
    """An argument that no graph takes: a sparse tensor, or a call within torch.func or torch.compile."""
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    """The module cannot be captured: it branches on data, has a backward hook, or uses an unknown operator."""
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    """The graph cannot be differentiated or run: an operator without a gradient, or one that the provider lacks."""
    FALLBACK_BAD_INITIALIZATION = 128
    """The module cannot be wrapped: there is a DataParallel, ScriptModule or ORTModule in it."""


_ERRORS: dict[FallbackPolicy, tuple[type[OntrainError], ...]] = {
    FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE: (DeviceError,),
    FallbackPolicy.FALLBACK_UNSUPPORTED_DATA: (InputError,),
    FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL: (CaptureError,),
    FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL: (GradientError, GraphError, ProviderError),
    FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD: (GradientError,),
    FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD: (CaptureError, GradientError, GraphError, InputError, ProviderError),
}


def policy_of(wish: FallbackPolicy | str | None) -> FallbackPolicy:
    """Return a policy given as such, as names joined by | or commas, or None for what the environment says.

    Raises:
        OptionError: a name is none of `FallbackPolicy`'s.
    """
    where = "fallback"
    if wish is None:
        where, wish = POLICY, os.environ.get(POLICY) or FallbackPolicy.FALLBACK_DISABLE
    if isinstance(wish, FallbackPolicy):
        return wish
    policy = FallbackPolicy(0)
    for name in filter(None, (part.strip() for part in re.split(r"[|,]", wish))):
        if name not in FallbackPolicy.__members__:
            raise OptionError(
                f"{where} names {name!r}, which is no fallback policy",
                way_out=f"nearest: {nearest(name, FallbackPolicy.__members__)}",
            )
        policy |= FallbackPolicy[name]
    return policy or FallbackPolicy.FALLBACK_DISABLE


class Fallback:
    """Whether and why a module is run by PyTorch.

    Args:
        policy: see `FallbackPolicy`; None is the environment's ORTMODULE_FALLBACK_POLICY.

    Attributes:
        fallen: whether all further calls go to PyTorch.

    Raises:
        OptionError: the policy, or ORTMODULE_FALLBACK_RETRY, is wrong.
    """

    def __init__(self, policy: FallbackPolicy | str | None) -> None:
        self.policy = policy_of(policy)
        self._retry = is_on(RETRY)
        self.fallen = False
        self._said: set[str] = set()

    def takes(self, error: OntrainError) -> FallbackPolicy | None:
        """Return the policy that lets PyTorch answer in place of this error; None to raise it."""
        if FallbackPolicy.FALLBACK_DISABLE in self.policy:
            return None
        # The narrowest that fits gives the reason.
        fits = (flag for flag, kinds in _ERRORS.items() if flag in self.policy and isinstance(error, kinds))
        return next(fits, None)

    def wraps_anyway(self, module: str, error: OptionError) -> bool:
        """Whether a module that cannot be wrapped is left to PyTorch, and say so if it is."""
        policy = FallbackPolicy.FALLBACK_BAD_INITIALIZATION
        if policy not in self.policy or FallbackPolicy.FALLBACK_DISABLE in self.policy:
            return False
        self.fall(module, error, policy)
        self.fallen = True
        return True

    def fall(self, module: str, error: OntrainError, policy: FallbackPolicy) -> None:
        """Say that a module is run by PyTorch and why; for good, unless ORTMODULE_FALLBACK_RETRY is set.

        Warns:
            UserWarning: once for each reason.
        """
        self.fallen = not self._retry
        text = str(error)
        if text in self._said:
            return
        self._said.add(text)
        span = "this call" if self._retry else "this and all further calls"
        warnings.warn(f"PyTorch answers {span} of {module} ({policy.name}): {text}", stacklevel=4)
