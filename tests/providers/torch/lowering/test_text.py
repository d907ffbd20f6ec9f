"""Counts of n-grams against stock onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import ontrain


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 2, 0), (2, 2, 3), (1, 3, 2), (3, 3, 5)])
def test_n_grams_are_counted_and_weighed_as_by_onnxruntime(mode, least, most, skips, rng):
    pool = [1, 2, 3, 0, 1, 2, 3, 1, 1, 0, 1, 2, 2, 2, 0]  # three alone, three pairs, two triples
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode=mode, min_gram_length=least, max_gram_length=most, max_skip_count=skips,
        ngram_counts=[0, 3, 9], ngram_indexes=[3, 0, 8, 1, 2, 7, 4, 5], pool_int64s=pool,
        weights=[float(w) for w in rng.uniform(0.5, 2, 8)],
    )  # fmt: skip
    for shape in ((9,), (4, 9), (2, 1)):
        infos = [
            helper.make_tensor_value_info("x", onnx.TensorProto.INT64, list(shape)),
            helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None),
        ]
        graph = helper.make_graph([node], "g", infos[:1], infos[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        x = rng.integers(0, 4, shape)
        (y,) = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, {"x": x})
        (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(y, expected, rtol=1e-6)
