"""Which values share memory: judged by torch's own rule for views."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch
from hypothesis import given, strategies as st

from ontrain.graph import Builder, Role, new_model, set_role, set_updates
from ontrain.providers.torch.prediction import contiguous, memory_of, reshaped


def _splits(size: int) -> st.SearchStrategy[list[int]]:
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return st.sampled_from(divisors).flatmap(
        lambda first: st.just([first]) if first == size else _splits(size // first).map(lambda rest: [first, *rest])
    )


@given(
    st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4).flatmap(
        lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))), _splits(math.prod(shape)))
    )
)
def test_strides_of_a_reshaped_permutation_are_torchs(case):
    shape, axes, wanted = case
    tensor = torch.empty(shape).permute(*axes)
    strides = reshaped(list(tensor.shape), tensor.stride(), wanted)
    try:
        view = tensor.view(wanted)
    except RuntimeError:
        assert strides is None
        return
    assert strides is not None
    # The stride of an axis of one element means nothing.
    assert [(n, s) for n, s in zip(wanted, strides, strict=True) if n > 1] == [
        (n, s) for n, s in zip(view.shape, view.stride(), strict=True) if n > 1
    ]


@given(st.lists(st.integers(1, 5), max_size=4))
def test_row_major_strides_are_torchs(shape):
    assert contiguous(shape) == torch.empty(shape).stride()


def _graph() -> tuple[Builder, ir.Value]:
    x = ir.Value(name="x", shape=ir.Shape([4, 6]), type=ir.TensorType(ir.DataType.FLOAT))
    return Builder(new_model([x], "graph").graph), x


def test_a_transposed_value_that_is_flattened_needs_memory_of_its_own():
    op, x = _graph()
    y = op.Exp(x)
    seen, flat, moved = (
        op.Reshape(y, [24]),
        op.Reshape(op.Transpose(y, perm=[1, 0]), [24]),
        op.Transpose(y, perm=[1, 0]),
    )
    layout = memory_of(op.graph, logits_bytes=1 << 20, as_eager=False)
    assert layout.root[seen] is y and layout.root[moved] is y
    assert layout.root[flat] is flat and layout.size[flat] == 128  # 96 bytes in lines of 64


def test_what_is_computed_into_a_parameter_takes_no_working_memory():
    op, x = _graph()
    set_role(x, Role.PARAMETER)
    y = op.Exp(x)
    product = op.Mul(y, 2.0)
    op.graph.outputs.extend([set_updates(product, "x"), y])
    layout = memory_of(op.graph, logits_bytes=1 << 20, as_eager=False)
    assert product not in layout.size and layout.lasting == {y}
