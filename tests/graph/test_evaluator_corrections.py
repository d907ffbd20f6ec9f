"""Operators that onnx's evaluator gets wrong, as ours corrects them: against torch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ontrain.graph.evaluator_corrections import CORRECTIONS


def evaluated(node: onnx.NodeProto, **arrays: np.ndarray) -> np.ndarray:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    graph = helper.make_graph([node], "corrected", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    return ReferenceEvaluator(model, new_ops=CORRECTIONS).run(["y"], arrays)[0]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_gathered_from_the_end_by_negative_indices(rng, axis):
    x = rng.standard_normal((4, 5, 6))
    size = x.shape[axis]
    ids = rng.integers(-size, size, x.shape)  # more than 64 of them
    assert ids.min() == -size and ids.max() == size - 1
    gathered = evaluated(helper.make_node("GatherElements", ["x", "ids"], ["y"], axis=axis), x=x, ids=ids)
    # torch counts from the front only.
    wanted = torch.gather(torch.from_numpy(x), axis, torch.from_numpy(np.where(ids < 0, ids + size, ids)))
    np.testing.assert_array_equal(gathered, wanted.numpy())


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_beyond_the_axis_is_an_error(index):
    ids = np.full((1, 1), index)
    with pytest.raises(IndexError):
        evaluated(helper.make_node("GatherElements", ["x", "ids"], ["y"], axis=1), x=np.ones((1, 5)), ids=ids)


@pytest.mark.parametrize("pads", [[1, 2, -1, 0], [-2, 0, 1, -3], [0, -1, 0, -1]])
def test_negative_pads_cut_off(rng, pads):
    x = rng.standard_normal((5, 6))
    padded = evaluated(helper.make_node("Pad", ["x", "pads"], ["y"]), x=x, pads=np.array(pads))
    top, left, bottom, right = pads
    wanted = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom))
    np.testing.assert_array_equal(padded, wanted.numpy())


def test_pads_of_one_axis_repeat_the_edge(rng):
    x = rng.standard_normal((2, 3))
    node = helper.make_node("Pad", ["x", "pads", "", "axes"], ["y"], mode="edge")
    padded = evaluated(node, x=x, pads=np.array([2, -1]), axes=np.array([-1]))
    np.testing.assert_array_equal(padded, x[:, [0, 0, 0, 1]])


@pytest.mark.parametrize("told", [{}, {"reverse": 1}, {"exclusive": 1}])
def test_an_axis_may_be_a_vector_of_one_number(rng, told):
    x = rng.standard_normal((3, 4))
    summed = evaluated(helper.make_node("CumSum", ["x", "axis"], ["y"], **told), x=x, axis=np.array([1]))
    turned = x[:, ::-1] if told.get("reverse") else x
    wanted = np.cumsum(turned, 1) - (turned if told.get("exclusive") else 0)
    np.testing.assert_allclose(summed, wanted[:, ::-1] if told.get("reverse") else wanted)
