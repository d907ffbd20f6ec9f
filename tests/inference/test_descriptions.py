"""What a session tells of a model: sizes of outputs under the file's names, and the version that the file states."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import ontrain
from tests.training.conftest import PROVIDERS

GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[rows, 3] x, float[n, 3] more) => (float[places, 3] y, float[total, wide] both, float[b, c] again) {
    y = Relu(x)
    both = Concat<axis=0>(x, more)
    sizes = Shape(x)
    again = Reshape(x, sizes)
}"""
"""The file names what inference cannot (`total`), and gives new names to what it can (`places`, `wide`)."""


def sessions(model, provider, **dimensions):
    for module, name in ((onnxruntime, "CPUExecutionProvider"), (ontrain, provider)):
        options = module.SessionOptions()
        for dimension, size in dimensions.items():
            options.add_free_dimension_override_by_name(dimension, size)
        yield module.InferenceSession(model.SerializeToString(), options, providers=[name])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("dimensions", [{}, {"rows": 4}], ids=["open", "overridden"])
def test_outputs_keep_the_names_that_the_file_gives_their_sizes(provider, dimensions):
    theirs, ours = sessions(onnx.parser.parse_model(GRAPH), provider, **dimensions)
    shapes = [value.shape for value in ours.get_outputs()]
    assert shapes == [value.shape for value in theirs.get_outputs()]
    if not dimensions:
        assert shapes == [["places", 3], ["total", 3], ["b", "c"]]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("version", [None, 0, 7])
def test_a_file_without_a_version_tells_onnxruntimes_number_for_none(provider, version):
    model = onnx.parser.parse_model(GRAPH)
    if version is not None:
        model.model_version = version
    theirs, ours = sessions(model, provider)
    assert ours.get_modelmeta().version == theirs.get_modelmeta().version


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stated", [None, "?", -1], ids=str)
def test_sizes_without_a_name_are_told_as_onnxruntime_tells_them(provider, stated):
    model = onnx.parser.parse_model(GRAPH)
    for value in model.graph.input:
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        if isinstance(stated, int):
            dim.dim_value = stated
        elif stated is not None:
            dim.dim_param = stated
    for value in model.graph.output:  # what the file does not name follows from the inputs
        value.type.tensor_type.ClearField("shape")
    theirs, ours = sessions(model, provider)
    assert described(ours.get_inputs()) == described(theirs.get_inputs())
    assert described(ours.get_outputs()) == described(theirs.get_outputs())


def described(values):
    return [(value.name, value.type, value.shape) for value in values]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("version", [3, 4])
def test_initializers_of_the_oldest_files_are_constants_though_they_are_inputs(provider, version):
    model = onnx.parser.parse_model(GRAPH)
    model.ir_version = version
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "more"))
    theirs, ours = sessions(model, provider)
    for told in ("get_inputs", "get_overridable_initializers"):
        assert described(getattr(ours, told)()) == described(getattr(theirs, told)())
    assert len(ours.get_overridable_initializers()) == (version > 3)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_output_whose_rank_follows_from_what_is_fed_has_the_files(provider):
    graph = "g (float[n, 2] x, int64[m] sizes) => (float[k, l] y) { y = Reshape(x, sizes) }"
    model = onnx.parser.parse_model(f'<ir_version: 6, opset_import: ["" : 11]> {graph}')
    theirs, ours = sessions(model, provider)
    assert described(ours.get_outputs()) == described(theirs.get_outputs())


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("stated", "told"),
    [("float", []), ("float[5]", []), ("float[n, 3]", [4, 3]), ("float[5, 3]", [None, 3]), ("float[4, 3]", [4, 3]),
     ("float[]", [4, 3])],
)  # fmt: skip
def test_where_the_file_contradicts_its_graph_neither_is_told(provider, stated, told):
    graph = f"g (float[4, 3] x) => ({stated} y) {{ y = Relu(x) }}"
    theirs, ours = sessions(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), provider)
    assert described(ours.get_outputs()) == described(theirs.get_outputs()) == [("y", "tensor(float)", told)]
    (y,) = ours.run(None, {"x": np.ones((4, 3), np.float32)})
    assert y.shape == (4, 3)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("stated", "told"),
    [("float[n, 5, k]", ["n", None, "k"]), ("float[k, 5, n]", [None, None, None]),
     ("float[4, 5, k]", [None, None, "k"]), ("float[n, 2, 7]", ["n", 2, 7])],
)  # fmt: skip
def test_beside_a_contradiction_sizes_are_told_in_which_file_and_graph_agree(provider, stated, told):
    graph = f"g (float[n, 2, k] x) => ({stated} y) {{ y = Relu(x) }}"
    theirs, ours = sessions(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), provider)
    assert described(ours.get_outputs()) == described(theirs.get_outputs()) == [("y", "tensor(float)", told)]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stated", ["float", "float[m]", "float[3, 5]"])
def test_of_a_graph_that_is_optimised_the_sizes_are_told_whatever_the_file_says(provider, stated):
    """Files of PaddlePaddle state outputs without dimensions."""
    graph = f"g (float[n, 2] x) => ({stated} y) {{ copy = Identity(x) y = Relu(copy) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    if stated == "float":
        model.graph.output[0].type.tensor_type.shape.SetInParent()
    theirs, ours = sessions(model, provider)
    assert described(ours.get_outputs()) == described(theirs.get_outputs()) == [("y", "tensor(float)", ["n", 2])]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_optional_values_have_the_shape_of_what_they_hold(provider):
    graph = "g (optional(float[n, 3]) x) => (bool has) { has = OptionalHasElement(x) }"
    theirs, ours = sessions(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {graph}'), provider)
    assert described(ours.get_inputs()) == described(theirs.get_inputs())
    assert [value.shape for value in ours.get_inputs()] == [["n", 3]]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_outputs_without_a_type_have_the_type_that_follows_from_a_graph_in_steps(provider):
    """onnxscript writes such outputs where a function has no annotation of its result."""
    graph = """g (float[n, 4] x, int64 k) => (y, chosen, parts, count) {
        parts = SplitToSequence<axis = 0>(x)
        y = ConcatFromSequence<axis = 0>(parts)
        chosen = NonZero(x)
        count = SequenceLength(parts)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {graph}')
    theirs, ours = sessions(model, provider)
    types = ["tensor(float)", "tensor(int64)", "seq(tensor(float))", "tensor(int64)"]
    assert [value.type for value in ours.get_outputs()] == [value.type for value in theirs.get_outputs()] == types
    assert [value.shape for value in ours.get_outputs()] == [[None, 4], [2, None], [], []]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_sizes_follow_from_scales_that_an_identity_hands_on(provider):
    """torch's older exporter writes equal initializers once, and an Identity for each other use."""
    graph = """g (float[batch, 3, 4, 4] x) => (float[batch, c, h, w] y) <float[4] s = {1, 1, 1.5, 1.5}> {
        copy = Identity(s)
        larger = Resize(x, , s)
        y = Resize(larger, , copy)
    }"""
    theirs, ours = sessions(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 16]> {graph}'), provider)
    assert (
        described(ours.get_outputs()) == described(theirs.get_outputs()) == [("y", "tensor(float)", ["batch", 3, 9, 9])]
    )
    feeds = {"x": np.arange(96, dtype=np.float32).reshape(2, 3, 4, 4)}
    np.testing.assert_allclose(ours.run(None, feeds)[0], theirs.run(None, feeds)[0])
    np.testing.assert_array_equal(ours.run(["copy"], feeds)[0], [1, 1, 1.5, 1.5])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_contradiction_that_onnxruntime_does_not_see_is_told_as_the_file_has_it(provider):
    graph = """g (float[n, 4] x) => (float[1, length] y) {
        shape = Shape(x)
        zero = Constant<value_int=0>()
        rows = Gather<axis=0>(shape, zero)
        sizes = Unsqueeze<axes=[0]>(rows)
        rest = Constant<value_ints=[2, 2]>()
        whole = Concat<axis=0>(sizes, rest)
        one = Constant<value_int=1>()
        larger = Max(whole, one)
        y = Reshape(x, larger)
    }"""
    theirs, ours = sessions(onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : 12]> {graph}'), provider)
    assert described(ours.get_outputs()) == described(theirs.get_outputs())
    assert ours.run(None, {"x": np.ones((3, 4), np.float32)})[0].shape == (3, 2, 2)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "rest",
    [
        "y = Identity(forest)",
        "copy = Identity(forest) y = Relu(copy)",
        "limit = Greater(forest, zero) y = Where(limit, forest, zero)",
    ],
)
def test_of_a_forest_with_several_targets_the_stated_size_is_told(provider, rest):
    """skl2onnx states one column whatever the number of targets, and onnxruntime infers nothing of a forest."""
    graph = """g (float[n, 2] x) => (float[n, 1] y) <float zero = {0}> {
        forest = ai.onnx.ml.TreeEnsembleRegressor<
            n_targets = 3, nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
            nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [0.5, 0.0, 0.0],
            nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0, 0],
            target_nodeids = [1, 2, 2], target_ids = [0, 1, 2], target_weights = [1.0, 2.0, 3.0]
        >(x)
        REST
    }""".replace("REST", rest)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]> {graph}')
    theirs, ours = sessions(model, provider)
    assert described(ours.get_outputs()) == described(theirs.get_outputs())
    assert [value.shape for value in ours.get_outputs()] == [["n", 1]]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("version", [7, 11, 13])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_sizes_of_a_softmax_of_any_opset_keep_their_names(provider, op_type, version):
    text = f"""<ir_version: 8, opset_import: ["" : {version}]>
    g (float[rows, length, ?, 4] x) => (float y) {{ y = {op_type}(x) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    theirs, ours = sessions(model, provider)
    assert described(ours.get_outputs()) == described(theirs.get_outputs())
    assert ours.get_outputs()[0].shape == ["rows", "length", None, 4]
