"""Working memory of a session: one block for one thread, also while it grows."""

from __future__ import annotations

import gc

import numpy as np
import onnx_ir as ir
import pytest
import torch

from ontrain.graph import Builder, new_model
from ontrain.providers.torch.blocks import Blocks
from ontrain.providers.torch.provider import TorchExecutionProvider


def _executable(provider, rows):
    x = ir.Value(name="x", shape=ir.Shape([rows, 4]), type=ir.TensorType(ir.DataType.FLOAT))
    op = Builder(new_model([x], "sum").graph)
    op.graph.outputs.append(op.ReduceSum(op.MatMul(op.Exp(x), op.Transpose(op.Sin(x), perm=[1, 0])), keepdims=0))
    return provider.compile(ir.Model(op.graph, ir_version=10), provider.create_state([]))


@pytest.fixture
def _no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_a_block_that_became_too_small_is_let_go_at_once(rng):
    provider = TorchExecutionProvider(join=False)
    small, large = _executable(provider, 3), _executable(provider, 30)
    feeds = {rows: {"x": rng.standard_normal((rows, 4), np.float32)} for rows in (3, 30)}
    before = small.run(feeds[3])
    (block,) = (free.memory.untyped_storage() for free in provider._blocks._free)
    small.profile(feeds[3])
    held = torch._C._storage_Use_Count(block._cdata)
    large.run(feeds[30])
    assert torch._C._storage_Use_Count(block._cdata) == 1 < held, "nobody else refers to it"
    assert [free.memory.untyped_storage().data_ptr() != block.data_ptr() for free in provider._blocks._free] == [True]
    again = small.run(feeds[3])
    assert all(torch.equal(before[name], again[name]) for name in before)


def test_a_module_s_block_is_as_large_as_asked_and_nobody_elses():
    blocks = Blocks(torch.device("cpu"))
    small = blocks.take(64)
    blocks.give(small)
    large = blocks.take(4096)
    assert large is not small and large.memory.numel() >= 4096
    other = blocks.take(64)
    assert other is not large and other.memory.data_ptr() != large.memory.data_ptr()
    blocks.give(large)
    assert blocks.take(64) is large  # what fits is used again
