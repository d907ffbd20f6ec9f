"""Strings and maps of classical models, against stock onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import onnxruntime.capi.onnxruntime_pybind11_state as upstream
import pytest
from onnx import TensorProto, helper

import ontrain

ML = "ai.onnx.ml"
NAMES = np.array(["bee", "cow", "ant", "bee"], object)
TEXTS = np.array(["The cat sat", "a cat, a dog", "", "cat"], object)
CLASSES = {"classlabels_strings": ["ant", "bee", "cow"]}
X = np.array([[1, 2], [0, -1], [-0.5, 0.1], [0, 0]], np.float32)
ROWS = np.array([[0.5, 0.25, 0.25], [0, 1, 0]], np.float32)
LINEAR = {"coefficients": [0.5, 0.2, -0.1, 0.3, 0.2, 0.2], "intercepts": [0.1, 0.2, 0.0]}
MACHINE = {
    "kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0], "vectors_per_class": [1, 1, 1], "rho": [0.1, 0.2, 0.3],
    "coefficients": [1.0, -1.0, 0.5, 0.25, 1.0, -0.5], "support_vectors": [0.0, 1.0, 1.0, 0.0, -1.0, -1.0],
}  # fmt: skip
TREE = {
    "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3, "nodes_values": [0.25, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
    "class_treeids": [0] * 6, "class_nodeids": [1, 1, 1, 2, 2, 2], "class_ids": [0, 1, 2] * 2,
    "class_weights": [0.2, 0.3, 0.5, 0.6, 0.3, 0.1],
}  # fmt: skip
KINDS = {
    "f": TensorProto.FLOAT, "i": TensorProto.INT64, "O": TensorProto.STRING, "u": TensorProto.UINT32,
    "j": TensorProto.INT32,
}  # fmt: skip


def grams(**changed):
    attributes = {
        "mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 2],
        "pool_strings": ["cat", "a", "a", "dog", "the", "sat"], "ngram_indexes": [1, 0, 4, 2],
        "weights": [0.5, 2.0, 3.0, 4.0],
    }  # fmt: skip
    return attributes | changed


WORDS = np.array([["a", "cat", "a", "dog"], ["the", "cat", "sat", "dog"]], object)
CASES = [
    ("LabelEncoder", NAMES, {"keys_strings": ["ant", "bee"], "values_int64s": [3, 4], "default_int64": 9}, "i"),
    ("LabelEncoder", NAMES, {"keys_strings": ["ant", "bee"], "values_strings": ["A", "B"]}, "O"),
    ("LabelEncoder", NAMES, {"keys_strings": ["ant", "bee"], "values_floats": [0.5, 1.5]}, "f"),
    ("LabelEncoder", np.array([[1, 2], [3, 1]]),
     {"keys_int64s": [1, 2, 1], "values_strings": ["A", "B", "C"], "default_string": "none"}, "O"),
    ("LabelEncoder", np.float32([1, 2]), {"keys_floats": [1.0], "values_strings": ["A"]}, "O"),
    ("LabelEncoder", NAMES, {"version": 1, "classes_strings": ["cow", "bee"], "default_int64": -7}, "i"),
    ("LabelEncoder", np.array([0, 1, 5]), {"version": 1, "classes_strings": ["cow", "bee"]}, "O"),
    ("CategoryMapper", NAMES, {"cats_strings": ["ant", "bee"], "cats_int64s": [3, 4]}, "i"),
    ("CategoryMapper", np.array([3, 5]), {"cats_strings": ["ant", "bee"], "cats_int64s": [3, 4]}, "O"),
    ("OneHotEncoder", NAMES.reshape(2, 2), {"cats_strings": ["cow", "ant"]}, "f"),
    ("ArrayFeatureExtractor", WORDS, {"places": [2, 0]}, "O"),
    ("ArrayFeatureExtractor", NAMES, {"places": [2, 0]}, "O"),
    ("ZipMap", ROWS, {"classlabels_int64s": [3, 5, 7]}, "m"),
    ("ZipMap", ROWS, CLASSES, "m"),
    ("ZipMap", ROWS[:0], CLASSES, "m"),
    ("TfIdfVectorizer", WORDS, grams(), "f"),
    ("TfIdfVectorizer", WORDS[0], grams(mode="TF"), "f"),
    ("TfIdfVectorizer", WORDS, grams(mode="IDF", min_gram_length=2, max_skip_count=0), "f"),
    ("Tokenizer", TEXTS, {"tokenexp": "[a-z]+", "mark": 0, "mincharnum": 1, "pad_value": "#"}, "O"),
    ("MurmurHash3", np.array([["The cat", ""], ["déjà vu 漢字", "a\tb"]], object), {}, "u"),
    ("MurmurHash3", TEXTS, {"positive": 0, "seed": 123456}, "j"),
    ("MurmurHash3", np.array([1, -(2**40)]), {"seed": 7}, "u"),
    ("MurmurHash3", X, {"positive": 0}, "j"),
    ("Tokenizer", TEXTS, {"separators": [" ", ","], "mark": 1, "mincharnum": 2, "pad_value": "~"}, "O"),
]  # fmt: skip
CLASSIFIERS = [("LinearClassifier", LINEAR), ("SVMClassifier", MACHINE), ("TreeEnsembleClassifier", TREE)]
DOMAINS = {"TfIdfVectorizer": "", "Tokenizer": "com.microsoft", "MurmurHash3": "com.microsoft"}


def model_of(op_type, x, kind, version=2, places=None, **attributes):
    domain = DOMAINS.get(op_type, ML)
    names = ["x", *(["places"] if places else [])]
    outputs = ["label", "scores"] if kind == "c" else ["y"]
    nodes = [helper.make_node(op_type, names, outputs, domain=domain, **attributes)]
    weights = [helper.make_tensor("places", TensorProto.INT64, [len(places)], places)] if places else []
    if kind == "m":
        results = [onnx.ValueInfoProto(name="y")]
        key = TensorProto.STRING if "classlabels_strings" in attributes else TensorProto.INT64
        results[0].type.sequence_type.elem_type.map_type.key_type = key
        results[0].type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    elif kind == "c":
        results = [helper.make_tensor_value_info("label", TensorProto.STRING, None),
                   helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)]  # fmt: skip
    else:
        results = [helper.make_tensor_value_info("y", KINDS[kind], None)]
    shape = [f"n{i}" for i in range(x.ndim - 1)] + [x.shape[-1]] if x.dtype.kind == "f" else [None] * x.ndim
    inputs = [helper.make_tensor_value_info("x", KINDS[x.dtype.kind], shape)]
    # An import that is there twice, as skl2onnx writes it: the last one counts.
    sets = [helper.make_opsetid(*pair) for pair in ((ML, version), ("", 11), ("", 17), ("com.microsoft", 1))]
    graph = helper.make_graph(nodes, "one node", inputs, results, weights)
    return helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()


def both(model, feeds):
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert [value.type for value in session.get_outputs()] == [value.type for value in theirs.get_outputs()]
    return session.run(None, feeds), theirs.run(None, feeds)


def same(result, expected):
    if isinstance(expected, list):
        return result == expected and [[*map(type, r)] for r in result] == [[*map(type, e)] for e in expected]
    equal = np.array_equal if expected.dtype == object else np.allclose
    return result.dtype == expected.dtype and result.shape == expected.shape and equal(result, expected)


def test_tables_maps_and_ngrams():
    wrong = []
    for op_type, x, attributes, kind in CASES:
        (result,), (expected,) = both(model_of(op_type, x, kind, **attributes), {"x": x})
        if not same(result, expected):
            wrong.append(f"{op_type} {attributes}: {result!r} instead of {expected!r}")
    assert not wrong


def test_classifiers_give_labels_that_are_strings():
    for op_type, attributes in CLASSIFIERS:
        results, expected = both(model_of(op_type, X, "c", **attributes, **CLASSES), {"x": X})
        assert all(map(same, results, expected)), (op_type, results, expected)


def mapped(op_type, key, value, result, **attributes):
    """Bytes of a model that takes a map."""
    x = onnx.ValueInfoProto(name="x")
    x.type.map_type.key_type, x.type.map_type.value_type.tensor_type.elem_type = key, value
    y = helper.make_tensor_value_info("y", result, None)
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], domain=ML, **attributes)], "a map", [x], [y])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()


MAPS = [
    ("DictVectorizer", ("STRING", "FLOAT", "FLOAT"), {"string_vocabulary": ["b", "a", "c"]}, {"a": 1.0, "c": 2.0}),
    ("DictVectorizer", ("INT64", "FLOAT", "FLOAT"), {"int64_vocabulary": [4, 2]}, {2: 0.5}),
    ("CastMap", ("INT64", "FLOAT", "FLOAT"), {"cast_to": "TO_FLOAT"}, {3: 0.5, 1: 2.0}),
    ("CastMap", ("INT64", "FLOAT", "INT64"), {"cast_to": "TO_INT64", "map_form": "SPARSE", "max_map": 5},
     {3: 7.0, 1: 2.0}),
]  # fmt: skip


def test_maps_that_are_fed():
    wrong = []
    for op_type, kinds, attributes, fed in MAPS:
        model = mapped(op_type, *(getattr(TensorProto, kind) for kind in kinds), **attributes)
        (result,), (expected,) = both(model, {"x": fed})
        if not same(result, expected):
            wrong.append(f"{op_type} {attributes}: {result!r} instead of {expected!r}")
    assert not wrong


def test_strings_of_a_map_are_read_as_numbers():
    model = mapped("CastMap", TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT, cast_to="TO_FLOAT")
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])  # onnxruntime takes no such map
    (result,) = session.run(None, {"x": {3: "0.5", 1: "2"}})
    assert same(result, np.float32([[2.0, 0.5]]))


def test_what_is_no_map_is_refused_by_the_inputs_name():
    model = mapped("CastMap", TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT, cast_to="TO_FLOAT")
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    with pytest.raises(upstream.InvalidArgument, match="'x' is no dictionary"):
        session.run(None, {"x": [1.0, 2.0]})


@pytest.mark.parametrize("x", [X, WORDS], ids=["numbers", "strings"])
@pytest.mark.parametrize("place", [-1, 4])
def test_places_of_an_extractor_are_counted_from_the_start_alone(x, place):
    places = np.array([0, place], np.int64)
    inputs = [helper.make_tensor_value_info("x", KINDS[x.dtype.kind], [None, 4]),
              helper.make_tensor_value_info("places", TensorProto.INT64, [None])]  # fmt: skip
    output = helper.make_tensor_value_info("y", KINDS[x.dtype.kind], None)
    node = helper.make_node("ArrayFeatureExtractor", ["x", "places"], ["y"], domain=ML)
    sets = [helper.make_opsetid(ML, 2), helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=sets, ir_version=8).SerializeToString()
    feeds = {"x": np.resize(x, (2, 4)), "places": places}
    session = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"])
    for runs, error in ((session, ontrain.OntrainError), (onnxruntime.InferenceSession(model), Exception)):
        with pytest.raises(error):
            runs.run(None, feeds)
