"""torch's own operator samples through capture: every OpInfo is right, or refused by name.

    python -m tests.capture.op_db [NAME ...] [--samples N] [--write]

runs the samples of all operators, or of those named, prints what is not right, and with --write renews op_db.json,
the table of refused operators that the test holds capture to.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ontrain.autodiff import differentiate
from ontrain.capture import capture
from ontrain.errors import CaptureError, GradientError
from ontrain.graph import Builder, rebuild, specialise
from ontrain.providers import get_provider
from tests.capture.verdicts import compare

TABLE = Path(__file__).with_suffix(".json")
# Their values are whatever the memory held.
UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
RANDOM = frozenset({"Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"})
# Greatest error over greatest value: of a result, of a gradient.
TOLERANCES = {torch.float64: (1e-6, 1e-5), torch.float32: (1e-4, 1e-4)}
_WRONG_IN_TORCH = frozenset({("as_strided_scatter", 0)})
"""Gradients that torch itself has wrong, by operator and input: this one is not zero where all is written over."""
_UP_TO_SIGN = (
    "linalg.eig",
    "linalg.eigh",
)
"""Operators whose results are determined up to signs: compared is what torch's own tests compare."""
_TRIANGULAR = ("cholesky_inverse", "cholesky_solve")
"""Operators that read a triangle. torch gives the other one a gradient, too, so its own tests cut the matrix first."""


def infos() -> list[tuple[str, Any]]:
    """All OpInfos that have samples on a CPU, by the name torch's tests give them."""
    from torch.testing._internal.common_methods_invocations import op_db

    named = [(f"{i.name}.{i.variant_test_name}" if i.variant_test_name else i.name, i) for i in op_db]
    return [(name, info) for name, info in named if _dtype(info) is not None and not name.startswith("jiterator")]


def _dtype(info: Any) -> torch.dtype | None:
    known = (torch.float64, torch.float32, torch.int64, torch.bool)
    return next((dtype for dtype in known if dtype in info.dtypes), None)


def samples(info: Any, count: int) -> Iterator[Any]:
    """The first samples on plain memory, in double precision where the operator takes it."""
    dtype = _dtype(info)
    wants_gradients = info.supports_autograd and dtype.is_floating_point

    def is_plain(sample: Any) -> bool:
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        return all(leaf.layout is torch.strided for leaf in leaves if isinstance(leaf, torch.Tensor))

    inputs = info.sample_inputs("cpu", dtype, requires_grad=wants_gradients)
    return itertools.islice(filter(is_plain, inputs), count)


class Sample(nn.Module):
    """One call of an operator as a function of the tensors in its arguments, to the tensors in its result."""

    def __init__(self, info: Any, sample: Any) -> None:
        super().__init__()
        leaves, self.structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        cut = info.name in _TRIANGULAR
        self.operator = functools.partial(info.gradcheck_wrapper, info.op) if cut else info.op
        self.compared = sample.output_process_fn_grad if info.name in _UP_TO_SIGN else lambda results: results
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = [leaves[i].detach().clone().requires_grad_(leaves[i].requires_grad) for i in self.places]
        self.plain = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = list(self.plain)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        results = [
            leaf
            for leaf in pytree.tree_leaves(self.compared(self.operator(*args, **kwargs)))
            if isinstance(leaf, torch.Tensor)
        ]
        # A graph returns real tensors.
        return tuple(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor for tensor in results)


def differences(info: Any, sample: Any) -> list[str]:
    """What a captured sample has otherwise than eager: results, and gradients under random adjoints.

    Raises:
        CaptureError, GradientError: the sample is refused.
    """
    module = Sample(info, sample)
    tensors = tuple(module.tensors)
    if info.name in ("resize_", "resize_as_"):
        tensors = tuple(tensor.detach() for tensor in tensors)
    expected = module(*tensors)
    captured = capture(module, tensors)
    shapes = {name: tuple(tensor.shape) for name, tensor in zip(captured.input_names, tensors, strict=True)}
    model = specialise(captured.model, shapes)
    random = any(_draws(node) for node in model.graph)
    wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad and (info.name, i) not in _WRONG_IN_TORCH]
    followed = [i for i, tensor in enumerate(expected) if tensor.requires_grad]
    generator = torch.Generator().manual_seed(3)
    adjoints = [torch.randn(expected[i].shape, generator=generator, dtype=torch.float64) for i in followed]
    adjoints = [tensor.to(expected[i].dtype) for tensor, i in zip(adjoints, followed, strict=True)]
    gradients: list[str | None] = []
    if wanted and followed and info.supports_autograd:
        gradients = _append_gradients(model, captured.input_names, wanted, followed, adjoints)
    results = _run(rebuild(model), dict(zip(captured.input_names, tensors, strict=True)))
    tolerance, gradient_tolerance = TOLERANCES.get(_dtype(info), TOLERANCES[torch.float64])  # type: ignore[arg-type]
    free = random or info.name in UNDEFINED
    wrong = []
    for name, tensor in zip(captured.output_names, expected, strict=True):
        wrong += _compare(name, results[name], tensor.detach(), tolerance, free)
    if gradients:
        inputs = [tensors[i] for i in wanted]
        theirs = torch.autograd.grad([expected[i] for i in followed], inputs, adjoints, allow_unused=True)
        for i, name, grad in zip(wanted, gradients, theirs, strict=True):
            zero = torch.zeros_like(tensors[i])
            ours = results[name] if name is not None else zero
            wrong += _compare(f"gradient {i}", ours, grad if grad is not None else zero, gradient_tolerance, free)
    return wrong


def _draws(node: ir.Node) -> bool:
    dropout = node.attributes.get("dropout")
    return node.op_type in RANDOM or (node.op_type == "Attention" and dropout is not None and dropout.value > 0)


def _append_gradients(
    model: ir.Model, names: Sequence[str], wanted: Sequence[int], followed: Sequence[int], adjoints: Sequence[Any]
) -> list[str | None]:
    """Add gradients of some outputs by some inputs to the graph's outputs; return their names, None where absent."""
    graph = model.graph
    op = Builder(graph)
    inputs = {value.name: value for value in graph.inputs}
    seeds = [(graph.outputs[i], _constant(op, adjoint)) for i, adjoint in zip(followed, adjoints, strict=True)]
    gradients: list[str | None] = []
    for i, grad in enumerate(differentiate(op, seeds, [inputs[names[i]] for i in wanted])):
        gradients.append(None if grad is None else f"gradient.{i}")
        if grad is not None:
            node = ir.Node("", "Identity", [grad], num_outputs=1)
            node.outputs[0].type, node.outputs[0].shape, node.outputs[0].name = grad.type, grad.shape, f"gradient.{i}"
            graph.append(node)
            graph.outputs.append(node.outputs[0])
    return gradients


def _constant(op: Builder, tensor: torch.Tensor) -> ir.Value:
    if tensor.dtype is torch.bfloat16:
        return op.const(tensor.float().numpy(), ir.DataType.BFLOAT16)
    return op.const(tensor.numpy())


def _run(model: ir.Model, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    provider = get_provider("TorchExecutionProvider")
    executable = provider.compile(model, provider.create_state([]))
    taken = {value.name for value in model.graph.inputs}
    return executable.run({name: tensor.detach() for name, tensor in feeds.items() if name in taken})


def _compare(what: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float, free: bool) -> list[str]:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return [f"{what} is {ours.dtype}{list(ours.shape)}, torch's {theirs.dtype}{list(theirs.shape)}"]
    if free or not theirs.numel():
        return []
    a, b = ours.double(), theirs.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = float(torch.where(same, 0.0, (a - b).abs()).max())
    scale = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0
    if theirs.dtype in (torch.float16, torch.bfloat16):
        tolerance = 1e-2
    # Below the smallest normal number of the graph's constants nothing is meant.
    return [] if error <= tolerance * max(scale, 1e-6) else [f"{what} is off by {error:.3g} of {scale:.3g}"]


def outcome(info: Any, count: int) -> tuple[str, str]:
    """Return ("right", ""), ("wrong", what differs) or ("refused", why) for the first samples of an operator."""
    np.random.seed(0)
    torch.manual_seed(0)
    refusal = ""
    for i, sample in enumerate(samples(info, count)):
        try:
            wrong = differences(info, sample)
        except (CaptureError, GradientError) as error:
            refusal = refusal or error.problem
            continue
        if wrong:
            return "wrong", f"sample {i}: {'; '.join(wrong)}"
    return ("refused", refusal) if refusal else ("right", "")


if __name__ == "__main__":
    compare(__doc__, TABLE, "operators", 1, infos, outcome)
