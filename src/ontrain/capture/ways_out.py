"""What refusals of a capture advise, where more than one says it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ontrain.errors import CaptureError

__all__ = ["BROKEN", "draws_from_a_generator", "refuse_lazy", "refuse_scripted"]

BROKEN = 'ORTModule(model, breaks="allow") runs what lies between such lines'
"""What trains a module in whose forward some lines can be in no graph."""


def draws_from_a_generator(source: str | None) -> CaptureError:
    """The refusal of a `torch.Generator` that is none of the graph's."""
    return CaptureError(
        "forward draws from a torch.Generator",
        source=source,
        reason="a graph draws from a generator of its own, which torch.manual_seed sets",
        way_out=f"leave generator= out, or draw before the call and pass the numbers as an input; or {BROKEN}",
    )


def refuse_scripted(module: nn.Module, prefix: str = "") -> None:
    """Refuse a module that is compiled by torch.jit, or has a part that is.

    Args:
        module: which.
        prefix: of the names of parts, where the module wraps the user's.

    Raises:
        CaptureError: it is.
    """
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            name = f"{name}.".removeprefix(prefix).removesuffix(".")
            raise CaptureError(
                f"the submodule {name!r} is a ScriptModule" if name else "the module is a ScriptModule",
                reason="its forward is no Python that can be traced",
                way_out="put the module there that it was made of",
            )


def refuse_lazy(module: nn.Module, prefix: str = "") -> None:
    """Refuse a module with parameters that get their shapes from its first batch.

    Args:
        module: which.
        prefix: of the names of parts, where the module wraps the user's.

    Raises:
        CaptureError: names such a parameter or buffer.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise CaptureError(
                f"{name.removeprefix(prefix)!r} has no shape yet", reason="the first batch gives it to a lazy module",
                way_out="call the module once with a batch before it is trained, and make the optimizer then",
            )  # fmt: skip
