"""Operators that were experiments below opset 10 compute what onnxruntime computes, and are refused where it does."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ontrain
from ontrain.capture import load_onnx
from ontrain.errors import OntrainError

X = np.random.default_rng(3).standard_normal((2, 3, 4, 5)).astype(np.float32)
BOTH = {"alpha": 2.5, "beta": 0.5}
CASES = [
    ("Affine", BOTH), ("Affine", {}), ("ParametricSoftplus", BOTH), ("ScaledTanh", BOTH), ("Scale", {"scale": 3.0}),
    ("Scale", {}), ("ThresholdedRelu", {"alpha": 0.3}), ("ThresholdedRelu", {}),
    ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}), ("ImageScaler", {"bias": [1.0, 2.0, 3.0]}),
    ("Crop", {"border": [1, 0, 2, 1]}), ("Crop", {"border": [1, 1, 1, 1], "scale": [2, 3]}),
    ("MeanVarianceNormalization", {}), ("MeanVarianceNormalization", {"across_channels": 1}),
    ("MeanVarianceNormalization", {"across_channels": 1, "normalize_variance": 0}),
    ("MeanVarianceNormalization", {"normalize_variance": 0}),
]  # fmt: skip


def model(op_type, attributes, opset, shape, **places):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, [None]) for name in places]
    nodes = [helper.make_node(op_type, ["x", *places], ["y"], **attributes)]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4).SerializeToString()


def sessions(*args, **kwargs):
    proto, options = model(*args, **kwargs), onnxruntime.SessionOptions()
    options.log_severity_level = 4
    yield onnxruntime.InferenceSession(proto, options)
    yield ontrain.InferenceSession(proto, providers=["TorchExecutionProvider"])


@pytest.mark.parametrize("shape", [["n", 3, "h", "w"], [None] * 4], ids=["images", "four axes"])
@pytest.mark.parametrize("opset", [1, 6, 8])
@pytest.mark.parametrize(("op_type", "attributes"), CASES, ids=str)
def test_an_experiment_computes_what_onnxruntime_computes(op_type, attributes, opset, shape):
    expected, result = (session.run(None, {"x": X})[0] for session in sessions(op_type, attributes, opset, shape))
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [2, 3])
def test_statistics_of_fewer_axes_than_images_have_are_onnxruntimes(axes):
    x = X[..., 0, 0] if axes == 2 else X[..., 0]
    theirs, ours = sessions("MeanVarianceNormalization", {}, 8, [None] * axes)
    np.testing.assert_allclose(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_a_channel_of_one_number_has_no_deviation_to_divide_by():
    theirs, ours = sessions("MeanVarianceNormalization", {}, 8, [None] * 4)
    ones = {"x": np.ones((2, 1, 2, 2), np.float32)}
    assert np.isnan(theirs.run(None, ones)[0]).all() and np.isnan(ours.run(None, ones)[0]).all()


@pytest.mark.parametrize("opset", [1, 9])
@pytest.mark.parametrize("axes", [{}, {"axes": [2, -1]}], ids=["first", "named"])
def test_a_slice_by_fed_places_is_onnxruntimes(opset, axes):
    places = {name: np.array(values) for name, values in {"starts": [0, -2], "ends": [1, 100], **axes}.items()}
    theirs, ours = sessions("DynamicSlice", {}, opset, [None] * 4, **places)
    feeds = {"x": X, **places}
    np.testing.assert_array_equal(ours.run(None, feeds)[0], theirs.run(None, feeds)[0])


MISFITS = [
    ("Crop", {"border": [3, 3, 3, 3]}), ("Crop", {"border": [1, 1]}), ("Crop", {"border": [-1, 0, 0, 0]}),
    ("Crop", {"border": [1, 1, 1, 1], "scale": [2]}), ("Crop", {"border": [1, 1, 1, 1], "scale": [4, 4]}),
    ("Crop", {"scale": [2, 2]}), ("ImageScaler", {"bias": [1.0, 2.0]}), ("ScaledTanh", {}),
    ("ParametricSoftplus", {"alpha": 1.0}), ("ImageScaler", {}),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "attributes"), MISFITS, ids=str)
def test_what_does_not_fit_is_refused_as_onnxruntime_refuses_it(op_type, attributes):
    raised = 0
    for module, provider in ((onnxruntime, "CPUExecutionProvider"), (ontrain, "TorchExecutionProvider")):
        options = module.SessionOptions()
        options.log_severity_level = 4
        try:
            proto = model(op_type, attributes, 7, [None] * 4)
            module.InferenceSession(proto, options, providers=[provider]).run(None, {"x": X})
        except OntrainError:
            raised += 1
        except Exception:  # noqa: BLE001 (onnxruntime's errors share no base)
            raised += 1
    assert raised == 2


@pytest.mark.parametrize("op_type", ["Affine", "MeanVarianceNormalization", "ThresholdedRelu"])
def test_from_its_last_opset_on_it_is_no_such_operator(op_type):
    last = {"MeanVarianceNormalization": {"across_channels": 1}, "ThresholdedRelu": {"beta": 1.0}}
    with pytest.raises(ontrain.GraphError, match=op_type):
        load_onnx(model(op_type, last.get(op_type, {}), 10, [2, 3, 4, 5]))


def test_a_file_with_experiments_can_be_trained():
    loaded = load_onnx(model("ImageScaler", {"bias": [1.0, 2.0, 3.0]}, 7, [2, 3, 4, 5]))
    assert [tuple(value.shape) for value in loaded.model.graph.outputs] == [(2, 3, 4, 5)]
