"""Attention of packed sequences: equal to the formula on each of them, however they are put together in tiles."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from ontrain.graph import Builder, new_model
from ontrain.providers import get_provider
from ontrain.providers.torch.lowering import attention_sequences, attention_tiles

H, E, F, SCALE = 3, 4, 5, 0.5
lengths = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)


def _program(rows, count, longest):
    shapes = {"q": (1, H, rows, E), "k": (1, H, rows, E), "v": (1, H, rows, F)}
    inputs = [
        ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.DOUBLE))
        for name, shape in shapes.items()
    ]
    bounds = ir.Value(name="bounds", shape=ir.Shape([count + 1]), type=ir.TensorType(ir.DataType.INT32))
    op = Builder(new_model([*inputs, bounds], "attention").graph)
    results = [op.composite("Attention", *inputs, None, None, bounds, outputs=2, scale=SCALE, longest=longest)[0]]
    # A second layer reads the same bounds.
    q, k, _ = inputs
    results.append(op.composite("Attention", k, q, k, None, None, bounds, outputs=2, scale=SCALE, longest=longest)[0])
    op.graph.outputs.extend(results)
    runner = get_provider("TorchExecutionProvider")
    return runner.compile(ir.Model(op.graph, ir_version=10), runner.create_state([])), [v.name for v in results]


def _formula(q, k, v, ends):
    y = np.full((1, H, q.shape[2], v.shape[3]), np.nan)
    for start, end in zip(ends, ends[1:], strict=False):
        part = (torch.from_numpy(x[:, :, start:end]) for x in (q, k, v))
        y[:, :, start:end] = torch.nn.functional.scaled_dot_product_attention(*part, scale=SCALE)
    return y


@settings(max_examples=40)
@example(sizes=[9], longest=9, together=4, tile=64)
@example(sizes=[2, 2, 9, 1, 0, 1], longest=12, together=4, tile=4096)
@example(sizes=[0, 4, 4, 0], longest=4, together=8, tile=4096)
@given(
    sizes=lengths,
    longest=st.integers(9, 20),
    together=st.sampled_from([1, 4, 10, 64]),
    tile=st.sampled_from([64, 4096]),
)
def test_each_sequence_attends_to_itself(sizes, longest, together, tile):
    ends = np.cumsum([0, *sizes]).astype(np.int32)
    rng = np.random.default_rng(sum(sizes))
    feeds = {name: rng.standard_normal((1, H, int(ends[-1]), width)) for name, width in (("q", E), ("k", E), ("v", F))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_sequences, "_TOGETHER", together)
        patch.setattr(attention_tiles, "_TILE", tile)
        patch.setattr(attention_tiles, "_ROWS", 2)
        executable, names = _program(int(ends[-1]), len(sizes), longest)
        results = executable.run({**feeds, "bounds": ends})
    q, k, v = feeds.values()
    for name, wanted in zip(names, (_formula(q, k, v, ends), _formula(k, q, k, ends)), strict=True):
        np.testing.assert_allclose(results[name], wanted, 1e-12, 1e-12)


def test_a_plan_takes_other_sequences_at_each_run():
    executable, (name, _) = _program(12, 4, 9)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, H, 12, width)) for width in (E, E, F))
    for sizes in ([3, 3, 3, 3], [9, 1, 1, 1], [0, 0, 6, 6]):
        ends = np.cumsum([0, *sizes]).astype(np.int32)
        y = executable.run({"q": q, "k": k, "v": v, "bounds": ends})[name]
        np.testing.assert_allclose(y, _formula(q, k, v, ends), 1e-12, 1e-12)
