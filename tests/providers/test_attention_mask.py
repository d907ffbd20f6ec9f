"""Attention that is given the mask of an earlier run: what recomputation in the backward pass rests on."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider

SHAPE = (2, 3, 5, 4)
DROPOUT = 0.4


def _input(name: str, shape: tuple[int, ...], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def _run(provider: str, wanted: list[int], feeds: dict[str, np.ndarray], offset: int = 0) -> list[np.ndarray]:
    runner = get_provider(provider)
    mask = _input("mask", (2, 3, 5, 5), ir.DataType.BOOL) if "mask" in feeds else None
    inputs = [_input(name, SHAPE) for name in "qkv"] + ([mask] if mask is not None else [])
    op = Builder(new_model(inputs, "graph").graph)
    operands = [*inputs[:3], *([None, mask] if mask is not None else [])]
    values = op.composite("Attention", *operands, outputs=3 if mask is None else 2, scale=0.5, dropout=DROPOUT)
    op.graph.outputs.extend([values[i] for i in wanted])
    results = runner.compile(ir.Model(op.graph, ir_version=10), runner.create_state([])).run(feeds, rng=(1, offset))
    return [np.asarray(results[values[i].name]) for i in wanted]


@pytest.fixture
def operands(rng) -> dict[str, np.ndarray]:
    return {name: rng.standard_normal(SHAPE, np.float32) for name in "qkv"}


def test_the_same_mask_gives_the_same_result_to_the_bit_whatever_the_stream(operands):
    y, probs, mask = _run("TorchExecutionProvider", [0, 1, 2], operands)
    again, probs_again = _run("TorchExecutionProvider", [0, 1], {**operands, "mask": mask}, offset=7)
    # A mask that is fed was drawn elsewhere, with the probability itself; ours is a multiple of 2⁻¹⁶.
    np.testing.assert_allclose(again, y, rtol=1e-4)
    assert np.array_equal(probs, probs_again) and 0 < mask.mean() < 1


def test_kernel_and_body_agree_on_a_given_mask(operands, rng):
    feeds = {**operands, "mask": rng.random((2, 3, 5, 5)) > DROPOUT}
    ours, body = (_run(name, [0, 1], feeds) for name in ("TorchExecutionProvider", "ReferenceExecutionProvider"))
    for actual, other in zip(ours, body, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-5, atol=1e-6)


def test_probabilities_alone_need_no_mask(operands):
    (alone,) = _run("TorchExecutionProvider", [1], {**operands, "mask": np.zeros((2, 3, 5, 5), np.bool_)})
    y, probs, _ = _run("TorchExecutionProvider", [0, 1, 2], operands)
    assert np.array_equal(alone, probs) and y.shape == SHAPE
