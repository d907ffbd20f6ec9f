"""The verdict on a model: steps under `torch.compile(backend="ontrain")` beside eager PyTorch's in double precision.

The criterion is that of benchmarks/dynamo, `torch._dynamo.utils.same`, in a stricter form: in single precision the
compiled model may be a few times as far from double precision as eager PyTorch is. What eager computes exactly may be
off by a rounding or so.
"""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.training.compiled.suite.entry import BATCH_SIZES, Batch, SuiteModel, loss_of

__all__ = ["MULTIPLE", "OF_LARGEST", "ROUNDING", "Verdict", "judge", "rate"]

MULTIPLE = 3.0
"""Of eager's own error in single precision."""
ROUNDING = 1e-4
"""Of the norm of a tensor."""
OF_LARGEST = 1e-6
"""Of the largest norm of its kind, the gradients or the buffers of one name: what is zero but for rounding, such as the
mean of a linear function of normalised values, is no larger than this."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Verdict:
    """What came of a model.

    Attributes:
        result: "right", "wrong", "refused" or "failed".
        graphs: pieces that TorchDynamo handed over, for all three batch sizes together.
        breaks: places where it broke the forward.
        eager_pieces: pieces that ontrain refused, so that PyTorch ran them.
        worst: the largest error relative to what is allowed; above 1 a model is wrong.
        remark: what was refused or failed, and why; or where a wrong model differs.
        seconds: that all of it took.
    """

    result: str
    graphs: int = 0
    breaks: int = 0
    eager_pieces: int = 0
    worst: float = 0.0
    remark: str = ""
    seconds: float = 0.0


def judge(model: SuiteModel, backend: Any = "ontrain") -> Verdict:
    """Return the verdict on a model, trained a step at each of three batch sizes with `dynamic=None`."""
    began = time.monotonic()
    torch._dynamo.reset()
    # Else TorchDynamo draws numpy's numbers from torch's generator, and BigBird attends to other blocks than eager.
    torch._dynamo.config.use_numpy_random_stream = True  # type: ignore[attr-defined]
    counters.clear()
    torch.manual_seed(7)
    module = model.make()
    exact, ours = copy.deepcopy(module).double(), copy.deepcopy(module)
    compiled = torch.compile(ours, backend=backend)
    worst, where, refused = 0.0, "", []
    for size in BATCH_SIZES:
        batch = model.batch(size)
        expected = _exact_step(exact, batch)
        eager = _step(module, module, batch)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                computed = _step(compiled, ours, batch)
            except Exception as error:  # noqa: BLE001 - a piece that fails is a finding, whatever it raises
                return Verdict("failed", remark=_said(error), seconds=time.monotonic() - began)
        refused += [_first_line(each.message) for each in caught if "PyTorch answers" in str(each.message)]
        error, name = rate(computed, eager, expected)
        if error > worst:
            worst, where = error, f"{name}, batch of {size}"
    graphs = counters["stats"]["unique_graphs"]
    return Verdict(
        "wrong" if not worst <= 1 else "refused" if len(refused) >= graphs else "right",
        graphs,
        sum(counters["graph_break"].values()),
        len(refused),
        worst,
        "; ".join(dict.fromkeys(refused)) if worst <= 1 else where,
        time.monotonic() - began,
    )


def rate(computed: Mapping[str, Any], eager: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[float, str]:
    """Return the largest error relative to what is allowed, and the name of its tensor.

    A tensor that is missing, or not finite where the exact result is, is infinitely wrong.
    """
    largest: dict[str, float] = defaultdict(float)
    for name, value in expected.items():
        largest[_kind(name)] = max(largest[_kind(name)], float(value.norm()))
    worst, where = 0.0, ""
    for name in {**expected, **computed}:
        if name not in expected or name not in computed:
            return float("inf"), name
        norm = float(expected[name].norm())
        allowed = MULTIPLE * float((eager[name].double() - expected[name]).norm()) + ROUNDING * norm
        allowed += OF_LARGEST * largest[_kind(name)]
        error = float((computed[name].double() - expected[name]).norm())
        ratio = error / allowed if error else 0.0
        if not ratio <= worst:
            worst, where = ratio if ratio == ratio else float("inf"), name
    return worst, where


def _kind(name: str) -> str:
    return "grad" if name.startswith("grad ") else name.rpartition(".")[2]


def _step(call: Callable[..., Any], module: nn.Module, batch: Batch) -> Tensors:
    """Loss, gradients and buffers of a step of SGD, with the generators in one state."""
    torch.manual_seed(11), np.random.seed(11), random.seed(11)
    module.zero_grad()
    loss = loss_of(call, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {f"grad {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    buffers = {name: buffer.double() for name, buffer in module.named_buffers()}
    torch.optim.SGD(module.parameters(), lr=1e-3).step()
    return {"loss": loss.detach(), **gradients, **buffers}


def _exact_step(module: nn.Module, batch: Batch) -> Tensors:
    """A step in double precision, in which new tensors are of it, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _step(module, module, {name: _doubled(value) for name, value in batch.items()})
    finally:
        torch.set_default_dtype(before)


def _doubled(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _said(error: Exception) -> str:
    inner = getattr(error, "inner_exception", error)
    return f"{type(inner).__name__}: {_first_line(inner)}"


def _first_line(message: object) -> str:
    return (str(message).strip().splitlines() or [""])[0]
