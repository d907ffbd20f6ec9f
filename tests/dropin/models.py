"""Small models, each for something that programs for onnxruntime do, and their bytes by name."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def tensor(name, kind=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def sequence(name, kind=TensorProto.FLOAT):
    return helper.make_tensor_sequence_value_info(name, kind, None)


def model(nodes, inputs, outputs, weights=(), ml=False, **kwargs):
    sets = [helper.make_opsetid("", 17), *([helper.make_opsetid("ai.onnx.ml", 3)] if ml else [])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, list(weights), doc_string="of a graph")
    proto = helper.make_model(
        graph, opset_imports=sets, ir_version=8, producer_name="a test", domain="some.where", doc_string="of a model",
        model_version=3, **kwargs,
    )  # fmt: skip
    proto.metadata_props.add(key="colour", value="blue")
    return proto


def scaled(overridable=False):
    """y = relu(x · w), with w an initializer that may be overridden."""
    w = numpy_helper.from_array(WEIGHT, "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "product"), helper.make_node("Relu", ["h"], ["y"], "cut")]
    inputs = [tensor("x", shape=["rows", 2]), *([tensor("w", shape=[2, 2])] if overridable else [])]
    return model(nodes, inputs, [tensor("y", shape=["rows", 2])], [w])


def identity(kind, shape=("n",)):
    return model([helper.make_node("Identity", ["x"], ["y"])], [tensor("x", kind, shape)], [tensor("y", kind, shape)])


def two_inputs():
    nodes = [helper.make_node("And", ["b", "a"], ["y"])]
    boolean = TensorProto.BOOL
    return model(nodes, [tensor("a", boolean, ["n"]), tensor("b", boolean, ["n"])], [tensor("y", boolean, ["n"])])


def sequence_in():
    return model([helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)], [sequence("x")], [tensor("y")])


def sequence_length():
    whole = TensorProto.INT64
    return model([helper.make_node("SequenceLength", ["x"], ["y"])], [sequence("x")], [tensor("y", whole, [])])


def sequence_at():
    whole = TensorProto.INT64
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"]),
        helper.make_node("SequenceAt", ["parts", "i"], ["y"]),
    ]
    return model(nodes, [tensor("x", shape=["n", 2]), tensor("i", whole, [])], [tensor("y")])


def sequence_out():
    nodes = [helper.make_node("SequenceConstruct", ["a", "b"], ["y"])]
    return model(nodes, [tensor("a", shape=["n"]), tensor("b", shape=["m"])], [sequence("y")])


def zip_map():
    number = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    out = helper.make_value_info("y", helper.make_sequence_type_proto(number))
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[5, 7])
    return model([node], [tensor("x", shape=["n", 2])], [out], ml=True)


def sparse():
    """y = a · b, with a sparse a."""
    a = helper.make_sparse_tensor_value_info("a", TensorProto.FLOAT, [2, 2])
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft")
    proto = model([node], [a, tensor("b", shape=[2, 2])], [tensor("y", shape=[2, 2])])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def of_map():
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    map_ = helper.make_value_info("x", helper.make_map_type_proto(TensorProto.INT64, number))
    node = helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml", cast_to="TO_FLOAT", map_form="DENSE")
    return model([node], [map_], [tensor("y")], ml=True)


def denoted():
    """A dimension with a name and one with a denotation."""
    proto = model([helper.make_node("Abs", ["x"], ["y"])], [tensor("x", shape=["named", "other"])], [tensor("y")])
    proto.graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_BATCH"
    return proto


def half():
    kind = TensorProto.BFLOAT16
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    return model(nodes, [tensor("x", kind, ["n"])], [tensor("y", shape=["n"])])


def unknown_operator():
    return model([helper.make_node("Nonsense", ["x"], ["y"], domain="no.where")], [tensor("x")], [tensor("y")])


def never_made():
    return model([helper.make_node("MatMul", ["x", "nothing"], ["y"])], [tensor("x")], [tensor("y")])


def newer_standard():
    proto = scaled()
    proto.opset_import[0].version = 99
    return proto


def newer_form():
    proto = scaled()
    proto.ir_version = 99
    return proto


def gather():
    w = numpy_helper.from_array(WEIGHT, "w")
    whole = TensorProto.INT64
    return model([helper.make_node("Gather", ["w", "i"], ["y"])], [tensor("i", whole, ["n"])], [tensor("y")], [w])


def rounds():
    """A loop of `n` rounds over a matrix."""
    inner = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["goes"]), helper.make_node("Tanh", ["v"], ["w"])], "round",
        [tensor("i", TensorProto.INT64, []), tensor("on", TensorProto.BOOL, []), tensor("v", shape=["a", "b"])],
        [tensor("goes", TensorProto.BOOL, []), tensor("w", shape=["a", "b"])],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=inner)]
    return model(
        nodes, [tensor("n", TensorProto.INT64, []), tensor("x", shape=["a", "b"])], [tensor("y", shape=["a", "b"])]
    )


def optional():
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    node = helper.make_node("OptionalHasElement", ["x"], ["y"])
    proto = model([node], [helper.make_value_info("x", kind)], [tensor("y", TensorProto.BOOL, [])])
    proto.opset_import[0].version = 18
    return proto


def circular():
    """A function that calls itself."""
    return onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
    g (float[n] x) => (float[n] y) { y = f.call(x) }
    <domain: "f", opset_import: ["" : 21, "f" : 1]> call (x) => (y) { y = f.call(x) }""")


MODELS = {
    "scaled": scaled(), "overridable": scaled(True), "two_inputs": two_inputs(), "sequence_in": sequence_in(),
    "sequence_length": sequence_length(), "sequence_out": sequence_out(), "zip_map": zip_map(), "of_map": of_map(),
    "denoted": denoted(), "half": half(), "unknown_operator": unknown_operator(), "gather": gather(),
    "never_made": never_made(), "newer_standard": newer_standard(), "newer_form": newer_form(),
    "sequence_at": sequence_at(), "rounds": rounds(), "optional": optional(),
    "strings": identity(TensorProto.STRING), "booleans": identity(TensorProto.BOOL),
    "integers": identity(TensorProto.INT64), "bytes": identity(TensorProto.UINT8),
    "doubles": identity(TensorProto.DOUBLE), "sparse": sparse(), "shorts": identity(TensorProto.INT16),
    "halves": identity(TensorProto.FLOAT16), "words": identity(TensorProto.UINT16),
    "circular": circular(), "unsigned": identity(TensorProto.UINT32), "wide": identity(TensorProto.UINT64),
}  # fmt: skip


def write(folder):
    """Write every model; one has its weight in a file beside it."""
    for name, proto in MODELS.items():
        onnx.save(proto, folder / f"{name}.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "scaled.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(folder / "scaled.onnx", options, providers=["CPUExecutionProvider"])
    onnx.save(scaled(), folder / "outside.onnx", save_as_external_data=True, location="outside.bin", size_threshold=0)
    return folder
