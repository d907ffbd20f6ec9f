"""Products of groups of rows in bodies whose number of rows is known when they run: stock onnxruntime beside numpy."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from ontrain.functions import inline_all
from ontrain.graph import Builder, new_model

ENDS = [[2, 5, 9], [0, 0, 9], [9, 9, 9], [0, 0, 0], [1, 4, 6], [-4, 5, 99]]


def computed(operator, *operands):
    values = [
        ir.Value(
            name=f"operand_{place}", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype))
        )
        for place, (array, shape) in enumerate(operands)
    ]
    op = Builder(new_model(values, "grouped").graph)
    result = op.composite(operator, *values)
    result.shape = None
    op.graph.outputs.append(result)
    model = ir.to_proto(inline_all(ir.Model(op.graph, ir_version=10))).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: array for value, (array, _) in zip(values, operands, strict=True)})[0]


def groups(ends, count):
    edges = [min(max(end, 0), count) for end in (0, *ends)]
    return [slice(*pair) for pair in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_rows_are_multiplied_with_their_groups_matrix(ends, rng):
    x, w = rng.standard_normal((9, 4)), rng.standard_normal((3, 4, 5))
    expected = np.zeros((9, 5))
    for rows, matrix in zip(groups(ends, 9), w, strict=True):
        expected[rows] = x[rows] @ matrix
    result = computed("GroupedMatMul", (x, ["rows", 4]), (w, [3, 4, 5]), (np.array(ends), [3]))
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_products_of_columns_are_summed_by_group(ends, rng):
    x, y = rng.standard_normal((9, 4)), rng.standard_normal((9, 5))
    expected = np.stack([x[rows].T @ y[rows] for rows in groups(ends, 9)])
    result = computed("GroupedOuter", (x, ["rows", 4]), (y, ["rows", 5]), (np.array(ends), [3]))
    np.testing.assert_allclose(result, expected, rtol=1e-12)
