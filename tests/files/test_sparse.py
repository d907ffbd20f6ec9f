"""Sparse initializers and constants of a file come as dense ones, as onnxruntime has them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ontrain
from ontrain.files import read_proto
from tests.training.conftest import PROVIDERS

VALUES, PLACES = np.array([2.0, 3.0, 5.0], np.float32), np.array([1, 2, 5])
DENSE = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0]], np.float32)
PAIRS = np.stack(np.unravel_index(PLACES, DENSE.shape), 1)


def sparse(values=VALUES, indices=PLACES, dims=(2, 3)):
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(indices, "places"), dims
    )


def model(tensor, where="initializer"):
    """y = x + w in the main graph, in a branch, or in a function."""
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[2, 3] x, bool c) => (float[2, 3] y) { }
        <domain: "own", opset_import: ["" : 20]> added (x) => (y) { y = Identity(x) }
    """)
    constant = helper.make_node("Constant", [], ["w"], sparse_value=tensor)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    if where == "initializer":
        proto.graph.sparse_initializer.append(tensor)
        proto.graph.node.append(add)
    elif where == "constant":
        proto.graph.node.extend([constant, add])
    elif where == "branch":
        out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 3])
        then = helper.make_graph([helper.make_node("Add", ["x", "w"], ["z"])], "then", [], [out])
        then.sparse_initializer.append(tensor)
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "other", [], [out])
        proto.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other))
    else:
        del proto.functions[0].node[:]
        proto.functions[0].node.extend([constant, add])
        proto.graph.node.append(helper.make_node("added", ["x"], ["y"], domain="own"))
    return proto


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("indices", [PLACES, PAIRS], ids=["places", "coordinates"])
@pytest.mark.parametrize("where", ["initializer", "constant", "branch", "function"])
def test_sparse_tensors_are_computed_with_as_in_onnxruntime(where, indices, provider):
    content = model(sparse(indices=indices), where).SerializeToString()
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.array(True)}
    (ours,) = ontrain.InferenceSession(content, providers=[provider]).run(None, feeds)
    np.testing.assert_array_equal(ours, feeds["x"] + DENSE)
    # onnxruntime takes initializers of branches for dense, and may crash over sparse constants of functions.
    if where not in ("branch", "function"):
        (theirs,) = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.int8, np.bool_, ml_dtypes.bfloat16])
def test_sparse_tensors_keep_their_dtype(dtype):
    proto, _ = read_proto(model(sparse(VALUES.astype(dtype))))
    (w,) = proto.graph.initializer
    array = numpy_helper.to_array(w)
    assert w.name == "w" and array.dtype == dtype and not proto.graph.sparse_initializer
    np.testing.assert_array_equal(array, DENSE.astype(dtype))


def test_the_message_stays_as_it_was():
    proto = model(sparse())
    before = proto.SerializeToString()
    assert len(read_proto(proto)[0].graph.initializer) == 1
    assert proto.SerializeToString() == before


def test_a_sparse_initializer_is_trained_as_a_dense_one():
    from ontrain.capture import load_onnx

    torch_values = load_onnx(model(sparse())).initial["w"]
    np.testing.assert_array_equal(torch_values.numpy(), DENSE)


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (sparse(dims=(2**20, 2**20)), "dense tensor may have"),
        (sparse(dims=(-2, 3)), "dense tensor may have"),
        (sparse(indices=np.array([1, 2, 6])), "damaged"),
        (sparse(indices=np.array([1, -2, 5])), "damaged"),
        (sparse(indices=np.array([[0, 1], [0, 2], [1, 3]])), "damaged"),
        (sparse(indices=np.array([[0, 1], [0, 2], [-1, 2]])), "damaged"),
        (sparse(indices=np.array([[0], [0], [1]])), "damaged"),
        (sparse(indices=PLACES[:2]), "damaged"),
        (sparse(VALUES[:, None]), "damaged"),
        (sparse(indices=PLACES.astype(np.int32)), "damaged"),
        (sparse(np.array(["a", "b", "c"], object)), "damaged"),
    ],
)
def test_damaged_sparse_tensors_are_refused(tensor, says):
    with pytest.raises(ontrain.GraphError, match=says):
        read_proto(model(tensor))


def test_many_values_may_fill_a_larger_tensor():
    count = 2**15
    tensor = sparse(np.ones(count, np.int8), np.arange(count), (2**24 + 1,))
    assert numpy_helper.to_array(read_proto(model(tensor))[0].graph.initializer[0]).sum() == count
