"""Every rule against three oracles that share no code with it: finite differences, torch, onnx-ad or torch's jvp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ad
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ontrain.graph import is_float
from tests.autodiff.evaluator import CORRECTED
from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples import IDS, SAMPLES, Sample

# Where onnx-ad 0.3 cannot judge, torch's forward mode stands in.
_NOT_BY_ONNX_AD = {
    **dict.fromkeys(
        (
            "Cholesky-0",
            "Cholesky-1",
            "CholeskyEx-0",
            *(f"ComplexDet-{i}" for i in range(3)),
            *(f"ComplexSvd-{i}" for i in range(3)),
            *(f"Eig-{i}" for i in range(3)),
            "Eigh-0",
            "GammaP-0",
            "GammaQ-0",
            "MatrixExp-0",
            "MatrixExp-1",
            "Pinv-0",
            "Pinv-1",
            "Pinv-2",
            *(f"Svd-{i}" for i in range(4)),
            "Zeta-0",
        ),
        "loops are constants to it",
    ),
    "LogAbsDet-0": "Det is a constant to it",
    "BatchNormalization-0": "running statistics are constants to it",
    "Pad-4": "the fill value is a constant to it",
    "Pad-5": "the fill value is a constant to it",
    "ReduceProd-3": "it divides by zero elements",
    **dict.fromkeys(
        ("AveragePool-1", "Conv-3", "Conv-8", "LpPool-0", "LpPool-3"),
        "it states an output_shape, for which ConvTranspose chooses its own pads",
    ),
    "OneHot-0": "the two values are constants to it",
    **dict.fromkeys(("Det-0", "Det-1", "Det-2"), "it knows no gradient and says zero"),
    **dict.fromkeys(
        (
            "SimplifiedLayerNormalization-0",
            "SkipSimplifiedLayerNormalization-0",
            "RMSNormalization-0",
            "GroupNormalization-0",
            "MeanVarianceNormalization-0",
        ),
        "it expands to single precision",
    ),
}

# Of the module's scope, so that all tests of a sample run one after another and share its graphs.
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=IDS, scope="module")


@dataclass(frozen=True)
class First:
    """A sample's graph with its gradient: `adjoints` of y, gradients `grads` as values, and the numbers of both."""

    arrays: Sequence[Any]
    graph: SampleGraph
    forward: Callable[..., Any]
    seeds: Sequence[Any]
    adjoints: Sequence[np.ndarray]
    grads: Sequence[Any]
    y: Sequence[Any]
    values: Sequence[Any]
    drawn: Any
    """The state of the random numbers after the adjoints."""


@dataclass(frozen=True)
class Second:
    """The gradient of the gradient by `variables`, as numbers; `weights` are the adjoints of the first gradients."""

    evaluate: Callable[..., Any]
    weights: Sequence[np.ndarray]
    variables: Sequence[Any]
    values: Sequence[Any]
    drawn: Any


@pytest.fixture(scope="module")
def once(sample: Sample, request: pytest.FixtureRequest) -> First:
    rng = np.random.default_rng(request.config.getoption("--seed"))
    arrays = sample.draw(rng)
    graph = SampleGraph(sample, arrays)
    forward = graph.evaluator(graph.y)
    seeds = graph.seeds(graph.y, rng, "dy")
    adjoints = [graph.feeds[s.name] for s in seeds]
    grads = graph.gradient(graph.y, seeds, graph.wrt)
    numbers = graph.evaluator([*graph.y, *grads])()
    y, values = numbers[: len(graph.y)], numbers[len(graph.y) :]
    return First(arrays, graph, forward, seeds, adjoints, grads, y, values, rng.bit_generator.state)


@pytest.fixture(scope="module")
def twice(once: First) -> Second:
    graph, rng = once.graph, going_on(once.drawn)
    first = [g for g in once.grads if g is not None]
    cotangents = graph.seeds(first, rng, "ddx")
    weights = [graph.feeds[c.name] for c in cotangents]
    evaluate = graph.evaluator(first)
    variables = [*graph.wrt, *once.seeds]
    values = graph.evaluator(graph.gradient(first, cotangents, variables))()
    return Second(evaluate, weights, variables, values, rng.bit_generator.state)


def going_on(drawn: Any) -> np.random.Generator:
    """Random numbers from where a fixture left them."""
    rng = np.random.default_rng()
    rng.bit_generator.state = drawn
    return rng


def close(actual: Any, expected: Any, tolerance: float) -> None:
    """Agreement relative to the largest entry."""
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


def slope(f: Callable[..., float], at: dict[str, np.ndarray], name: str, direction: np.ndarray) -> float:
    """Central difference of f along a direction in one input."""
    h = 1e-5 if at[name].dtype == np.float64 else 1e-2
    ahead, behind = at[name] + h * direction, at[name] - h * direction
    return (f(**{name: ahead.astype(at[name].dtype)}) - f(**{name: behind.astype(at[name].dtype)})) / (2 * h)


def tolerance_of(sample: Sample, in_double: float, in_single: float = 1e-5) -> float:
    return in_double if sample.dtype == "float64" else in_single


@every_sample
@pytest.mark.sampled(4)
def test_gradient_equals_finite_differences(sample: Sample, once: First) -> None:
    graph, rng = once.graph, going_on(once.drawn)
    if graph.y[0].dtype.itemsize < 8 and sample.dtype == "float64":
        pytest.skip("the result is in single precision")

    def loss(**changes: np.ndarray) -> float:
        return sum(float((y * c).sum()) for y, c in zip(once.forward(**changes), once.adjoints, strict=True))

    for x, grad in zip(graph.wrt, once.values, strict=True):
        for _ in range(3):
            direction = sample.direction(rng, graph.feeds[x.name].shape)
            expected = slope(loss, graph.feeds, x.name, direction)
            close(0.0 if grad is None else (grad * direction).sum(), expected, tolerance_of(sample, 1e-6, 5e-3))


def _run_twin(sample: Sample, arrays: Sequence[Any], graph: SampleGraph) -> tuple[list[Any], list[Any], list[Any]]:
    wanted = {v.name for v in graph.wrt}
    tensors = [None if a is None else torch.tensor(a, requires_grad=f"x{i}" in wanted) for i, a in enumerate(arrays)]
    result = sample.twin(*tensors)
    results = list(result) if isinstance(result, tuple | list) else [result]
    return tensors, [t for t in tensors if t is not None and t.requires_grad], results


@every_sample
def test_value_and_gradient_equal_torch(sample: Sample, once: First) -> None:
    _, wrt, results = _run_twin(sample, once.arrays, once.graph)
    for y, expected in zip(once.y, results, strict=True):
        assert y.shape == tuple(expected.shape)
        close(y, expected.detach().numpy(), tolerance_of(sample, 1e-10))
    adjoints = [torch.tensor(adjoint) for adjoint in once.adjoints]
    flowing = [(r, c) for r, c in zip(results, adjoints, strict=True) if r.requires_grad]
    expected = [None] * len(wrt)
    if flowing:
        expected = torch.autograd.grad([r for r, _ in flowing], wrt, [c for _, c in flowing], allow_unused=True)
    for grad, want in zip(once.values, expected, strict=True):
        if grad is None:
            assert want is None or not want.any()
        else:
            close(grad, np.zeros_like(grad) if want is None else want.numpy(), tolerance_of(sample, 1e-10))


def _by_onnx_ad(graph: SampleGraph, adjoints: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The gradients by onnx-ad, None if it does not know the operator."""
    proto = graph.proto([v for v in graph.y if is_float(v)])
    try:
        adjoint_model = onnx_ad.reverse(proto, inputs=[v.name for v in graph.wrt], layout="onnx")
    except (onnx_ad.UnsupportedOperator, ValueError, KeyError, AssertionError, IndexError, NotImplementedError):
        return None
    names = [o.name for o in adjoint_model.graph.output]
    seeds = [i.name for i in adjoint_model.graph.input if i.name not in graph.feeds]
    feeds = {**graph.feeds, **{n: a[..., None] for n, a in zip(seeds, adjoints, strict=True)}}
    feeds = {i.name: feeds[i.name] for i in adjoint_model.graph.input}
    results = ReferenceEvaluator(adjoint_model, new_ops=CORRECTED).run(None, feeds)
    return [np.asarray(g)[..., 0] for g in results[len(names) - len(graph.wrt) :]]


@pytest.mark.sampled(2)
@every_sample
def test_gradient_equals_a_third_oracle(sample: Sample, once: First, request: pytest.FixtureRequest) -> None:
    known = request.node.callspec.id not in _NOT_BY_ONNX_AD
    by_peer = _by_onnx_ad(SampleGraph(sample, once.arrays), once.adjoints) if known else None
    print("oracle", sample.op_type, "onnx-ad" if by_peer is not None else "jvp")
    if by_peer is not None:
        for grad, expected in zip(once.values, by_peer, strict=True):
            close(0.0 * expected if grad is None else grad, expected, tolerance_of(sample, 1e-9))
        return
    _transposes_forward_mode(sample, once)


def _transposes_forward_mode(sample: Sample, once: First) -> None:
    """⟨dy, J v⟩ = ⟨Jᵀ dy, v⟩, with J v by forward-mode differentiation."""
    arrays, rng = once.arrays, going_on(once.drawn)
    places = [int(v.name[1:]) for v in once.graph.wrt]
    tangents = [torch.tensor(sample.direction(rng, arrays[i].shape).astype(arrays[i].dtype)) for i in places]

    def function(*xs: torch.Tensor) -> Any:
        tensors = [None if a is None else torch.tensor(a) for a in arrays]
        for i, x in zip(places, xs, strict=True):
            tensors[i] = x
        result = sample.twin(*tensors)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    _, pushed = torch.func.jvp(function, tuple(torch.tensor(arrays[i]) for i in places), tuple(tangents))
    left = sum(float((torch.tensor(c) * p).sum()) for c, p in zip(once.adjoints, pushed, strict=True))
    right = sum(float((g * t.numpy()).sum()) for g, t in zip(once.values, tangents, strict=True) if g is not None)
    close(right, left, tolerance_of(sample, 1e-10))


@pytest.mark.sampled(6)
@every_sample
def test_second_derivative_equals_finite_differences_of_the_first(sample: Sample, once: First, twice: Second) -> None:
    if not sample.second or sample.dtype != "float64":
        pytest.skip("single precision, or a kink everywhere")
    graph, rng = once.graph, going_on(twice.drawn)

    def loss(**changes: np.ndarray) -> float:
        return sum(float((g * w).sum()) for g, w in zip(twice.evaluate(**changes), twice.weights, strict=True))

    for x, grad in zip(twice.variables, twice.values, strict=True):
        shape = graph.feeds[x.name].shape
        direction = sample.direction(rng, shape) if x in graph.wrt else rng.standard_normal(shape)
        close(0.0 if grad is None else (grad * direction).sum(), slope(loss, graph.feeds, x.name, direction), 1e-6)


@pytest.mark.sampled(3)
@every_sample
def test_second_derivative_equals_torch(sample: Sample, once: First, twice: Second) -> None:
    _, wrt, results = _run_twin(sample, once.arrays, once.graph)
    adjoints = [torch.tensor(adjoint, requires_grad=True) for adjoint in once.adjoints]
    grads = torch.autograd.grad(results, wrt, adjoints, create_graph=True, allow_unused=True)
    present = [g for g, have in zip(grads, once.grads, strict=True) if have is not None]
    weights = [torch.tensor(weight) for weight in twice.weights]
    try:
        expected = torch.autograd.grad(present, [*wrt, *adjoints], weights, allow_unused=True)
    except RuntimeError as error:
        pytest.skip(f"torch: {error}")
    for have, want in zip(twice.values, expected, strict=True):
        if have is None or want is None:
            assert (have is None or not have.any()) and (want is None or not want.any())
        else:
            close(have, want.numpy(), tolerance_of(sample, 1e-9, 1e-4))
