"""A matrix that is transposed strip by strip is the same matrix, and each strip is worth two threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from ontrain.providers.torch.binder import Binder
from ontrain.providers.torch.code import codes
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.plan import plan_memory
from ontrain.providers.torch.strips import strips

SIZES = st.integers(1, 300)


@given(SIZES, st.integers(1, 100_000), st.sampled_from([1, 2, 4, 8]))
def test_strips_cover_each_row_once(rows, columns, itemsize):
    cuts = strips(rows, columns, itemsize)
    assert [i for start, size in cuts for i in range(start, start + size)] == list(range(rows))
    assert all(size * columns >= 1 << 15 and size * itemsize % 64 == 0 for _, size in cuts[:-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@given(SIZES, SIZES, st.integers(0, 3))
def test_a_transposed_matrix_is_copied_as_torch_copies_it(dtype, rows, columns, gaps):
    wide = torch.randint(0, 2, (rows, columns + gaps)).to(dtype) * torch.arange(columns + gaps).to(dtype)
    e = Emitter(torch.device("cpu"))
    buf = e.contiguous(e.constant(wide[:, :columns].t()))
    memory = torch.empty(max(1, plan_memory(e.program, [buf.storage])), dtype=torch.uint8)
    resolve = Binder(memory).resolve
    (code,) = codes([e.program])
    code.bind(resolve)([])
    copied = resolve(buf)
    assert copied.is_contiguous()
    assert torch.equal(copied, wide[:, :columns].t())
