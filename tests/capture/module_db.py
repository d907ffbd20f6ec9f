"""torch's own module samples through ORTModule: every ModuleInfo is right, or refused by name.

    python -m tests.capture.module_db [NAME ...] [--samples N] [--write]

runs N samples of each module, or of those named, in training and in evaluation mode, prints what is not right, and
with --write renews module_db.json, the table of refused modules that the test holds ORTModule to. The N samples are
spread over all that torch has of a module; N = 0 means all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ontrain.errors import OntrainError
from ontrain.training.ortmodule import ORTModule
from tests.capture.verdicts import compare

TABLE = Path(__file__).with_suffix(".json")
TOLERANCE = 1e-9
"""Greatest error over greatest value, in double precision."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
Tensors = dict[str, torch.Tensor | None]


def infos() -> list[tuple[str, Any]]:
    """All ModuleInfos by name."""
    from torch.testing._internal.common_modules import module_db

    return [(info.name, info) for info in module_db if torch.float64 in info.dtypes]


def samples(info: Any, training: bool, count: int) -> Iterator[tuple[str, nn.Module, Call]]:
    """Up to `count` samples, or all: description, module in double precision, and arguments of the call."""
    torch.manual_seed(0)
    cases = list(
        info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)
    )
    for i in _spread(len(cases), count):
        case = cases[i]
        if case.forward_input is None:
            continue
        arguments = case.constructor_input
        torch.manual_seed(i)
        module = info.module_cls(*arguments.args, **arguments.kwargs).double().train(training)
        call = (case.forward_input.args, case.forward_input.kwargs)
        if info.is_lazy:
            # The first call makes the parameters.
            with torch.no_grad():
                module(*call[0], **call[1])
        yield case.desc or f"sample {i}", module, call


def _spread(size: int, count: int) -> list[int]:
    """Up to `count` places from the first to the last of `size`, or all."""
    if not 0 < count < size:
        return list(range(size))
    return [round(i * (size - 1) / max(count - 1, 1)) for i in range(count)]


def differences(module: nn.Module, call: Call) -> list[str]:
    """What an ORTModule has otherwise than eager: results, gradients of inputs and parameters, buffers.

    Raises:
        OntrainError: the module is refused.
    """
    wrapped = ORTModule(copy.deepcopy(module))
    expected = _step(module, call)
    values = _step(wrapped, call)
    if list(values) != list(expected):
        return [f"has {', '.join(values)}; torch has {', '.join(expected)}"]
    return [text for name, theirs in expected.items() for text in _compare(name, values[name], theirs)]


def _step(module: nn.Module, call: Call) -> Tensors:
    """Forward and backward under fixed adjoints: all that can be seen of them, by name."""
    leaves, structure = pytree.tree_flatten(call)
    fresh = [
        leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
    ]
    args, kwargs = pytree.tree_unflatten(fresh, structure)
    result = module(*args, **kwargs)
    outputs = {
        f"output{pytree.keystr(path)}": leaf
        for path, leaf in pytree.tree_flatten_with_path(result)[0]
        if isinstance(leaf, torch.Tensor)
    }
    followed = [output for output in outputs.values() if output.requires_grad]
    generator = torch.Generator().manual_seed(3)
    adjoints = [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in followed]
    if followed:
        torch.autograd.backward(followed, adjoints)
    inputs = {f"gradient of input {i}": leaf.grad for i, leaf in enumerate(fresh) if isinstance(leaf, torch.Tensor)}
    parameters = {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    return {**outputs, **inputs, **parameters, **dict(module.named_buffers())}


def _compare(what: str, ours: torch.Tensor | None, theirs: torch.Tensor | None) -> list[str]:
    if ours is None or theirs is None:
        return [] if ours is theirs else [f"{what} is {'absent' if ours is None else 'there'} unlike torch's"]
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return [f"{what} is {ours.dtype}{list(ours.shape)}, torch's {theirs.dtype}{list(theirs.shape)}"]
    if ours.requires_grad != theirs.requires_grad:
        return [f"{what} requires {'a' if ours.requires_grad else 'no'} gradient unlike torch's"]
    a, b = ours.detach().double(), theirs.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = float(torch.where(same, 0.0, (a - b).abs()).max()) if b.numel() else 0.0
    scale = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0
    return [] if error <= TOLERANCE * max(scale, 1e-6) else [f"{what} is off by {error:.3g} of {scale:.3g}"]


def outcome(info: Any, count: int) -> tuple[str, str]:
    """Return ("right", ""), ("wrong", what differs) or ("refused", why) for samples of a module in both modes."""
    refusal = ""
    for training in (True, False):
        for description, module, call in samples(info, training, count):
            where = f"{description} in {'training' if training else 'evaluation'}"
            try:
                wrong = differences(module, call)
            except OntrainError as error:
                refusal = refusal or f"{where}: {error.problem}"
                continue
            if wrong:
                return "wrong", f"{where}: {'; '.join(wrong)}"
    return ("refused", refusal) if refusal else ("right", "")


if __name__ == "__main__":
    compare(__doc__, TABLE, "modules", 0, infos, outcome)
