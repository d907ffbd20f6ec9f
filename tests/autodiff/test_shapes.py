"""Random shapes, broadcasting, axes and indices: the gradient is torch's whatever the shapes are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

from tests.autodiff.graphs import SampleGraph
from tests.autodiff.samples.sample import Sample, normal, sample, uniform

few = settings(max_examples=30)
_shapes = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
_filled = array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


def agrees_with_torch(case: Sample, seed: int) -> None:
    """Value and gradients equal torch's, in every entry."""
    rng = np.random.default_rng(seed)
    arrays = case.draw(rng)
    graph = SampleGraph(case, arrays)
    seeds = graph.seeds(graph.y, rng, "dy")
    y, *grads = graph.evaluator([*graph.y, *graph.gradient(graph.y, seeds, graph.wrt)])()
    tensors = [None if a is None else torch.tensor(a) for a in arrays]
    wrt = [tensors[int(v.name[1:])].requires_grad_() for v in graph.wrt]
    result = case.twin(*tensors)
    np.testing.assert_allclose(y, result.detach().numpy(), rtol=1e-10, atol=1e-12)
    expected = torch.autograd.grad(result, wrt, torch.tensor(graph.feeds["dy0"]))
    for got, want in zip(grads, expected, strict=True):
        assert got.shape == tuple(want.shape)
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-9, atol=1e-10)


_seeds = st.integers(0, 2**32 - 1)
_BINARY: dict[str, Callable[..., Any]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow,
    "Max": torch.maximum, "Min": torch.minimum,
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", _BINARY)
@few
@given(shapes=mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), seed=_seeds)
def test_binary_operators_sum_over_what_was_broadcast(op_type: str, shapes: Any, seed: int) -> None:
    a, b = shapes.input_shapes
    agrees_with_torch(sample(op_type, uniform(0.5, 2, *a), uniform(0.5, 2, *b), twin=_BINARY[op_type]), seed)


@few
@given(shapes=mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=4), seed=_seeds)
def test_where_broadcasts_all_three(shapes: Any, seed: int) -> None:
    c, a, b = shapes.input_shapes
    condition = np.random.default_rng(seed).random(c) < 0.5
    agrees_with_torch(sample("Where", condition, normal(*a), normal(*b), twin=torch.where), seed)


@few
@given(shapes=mutually_broadcastable_shapes(num_shapes=2, min_dims=0, max_dims=4, max_side=4), seed=_seeds)
def test_expand_sums_back(shapes: Any, seed: int) -> None:
    x, target = shapes.input_shapes
    full = np.broadcast_shapes(x, target)
    twin = lambda x, shape: x.expand(full)  # noqa: E731
    agrees_with_torch(sample("Expand", normal(*x), np.array(target, np.int64), twin=twin), seed)


@settings(max_examples=80)
@given(shapes=mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=2, max_side=4), seed=_seeds)
def test_matmul_with_any_ranks_and_batches(shapes: Any, seed: int) -> None:
    a, b = shapes.input_shapes
    agrees_with_torch(sample("MatMul", normal(*a), normal(*b), twin=torch.matmul), seed)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": torch.sum, "ReduceMean": torch.mean, "ReduceMax": torch.amax, "ReduceMin": torch.amin,
    "ReduceL2": lambda x, a, k: (x * x).sum(a, k).sqrt(), "ReduceLogSumExp": torch.logsumexp,
    "ReduceSumSquare": lambda x, a, k: (x * x).sum(a, k),
}  # fmt: skip


@pytest.mark.parametrize("op_type", _REDUCTIONS)
@few
@given(data=st.data(), shape=_filled, keepdims=st.booleans(), seed=_seeds)
def test_reductions_over_any_axes(op_type: str, data: st.DataObject, shape: Any, keepdims: bool, seed: int) -> None:
    rank = len(shape)
    axes = data.draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    signed = [a - rank if data.draw(st.booleans()) else a for a in axes]
    twin = lambda x, _: _REDUCTIONS[op_type](x, axes, keepdims)  # noqa: E731
    agrees_with_torch(sample(op_type, normal(*shape), signed, twin=twin, keepdims=int(keepdims)), seed)


@settings(max_examples=100)
@given(data=st.data(), shape=_filled, seed=_seeds)
def test_slice_with_any_bounds_and_steps(data: st.DataObject, shape: Any, seed: int) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    steps = [data.draw(st.sampled_from([1, 2, 3, -1, -2])) for _ in axes]
    # Going backward from before the first element, onnx's evaluator follows numpy instead of the specification.
    starts = [data.draw(st.integers(-shape[a] if s < 0 else -6, 6)) for a, s in zip(axes, steps, strict=True)]
    ends = [data.draw(st.integers(-6, 6)) for _ in axes]
    index: list[Any] = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # ONNX clamps into [0, d] going forward and into [0, d − 1], [−1, d − 1] going backward, after adding d once.
        d = shape[axis]
        first, last = start + d * (start < 0), end + d * (end < 0)
        reach = range(np.clip(first, 0, d), np.clip(last, 0, d), step)
        if step < 0:
            reach = range(np.clip(first, 0, d - 1), np.clip(last, -1, d - 1), step)
        index[axis] = list(reach)

    def twin(x: torch.Tensor, *_: Any) -> torch.Tensor:
        for axis, places in enumerate(index):
            x = x if isinstance(places, slice) else x.index_select(axis, torch.tensor(places, dtype=torch.long))
        return x

    agrees_with_torch(sample("Slice", normal(*shape), starts, ends, axes, steps, twin=twin), seed)


@few
@given(data=st.data(), shape=_filled, ids_shape=array_shapes(min_dims=0, max_dims=2, max_side=3), seed=_seeds)
def test_gather_along_any_axis(data: st.DataObject, shape: Any, ids_shape: Any, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    ids = np.random.default_rng(seed).integers(-shape[axis], shape[axis], ids_shape)
    place = axis % len(shape)

    def twin(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rows = x.index_select(place, (ids % shape[axis]).reshape(-1))
        return rows.reshape([*shape[:place], *ids_shape, *shape[place + 1 :]])

    fed = [1] if data.draw(st.booleans()) else []
    agrees_with_torch(sample("Gather", normal(*shape), ids, twin=twin, axis=axis, fed=fed), seed)


@few
@given(data=st.data(), shape=_filled, count=st.integers(1, 3), seed=_seeds)
def test_concat_along_any_axis(data: st.DataObject, shape: Any, count: int, seed: int) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = [data.draw(st.integers(0, 3)) for _ in range(count)]
    parts = [normal(*shape[:axis], s, *shape[axis + 1 :]) for s in sizes]
    agrees_with_torch(sample("Concat", *parts, twin=lambda *x: torch.cat(x, axis), axis=axis), seed)


@few
@given(shape=_shapes, seed=_seeds)
def test_elementwise_operators_take_scalars_and_empty_tensors(shape: Any, seed: int) -> None:
    agrees_with_torch(sample("Tanh", normal(*shape), twin=torch.tanh), seed)
