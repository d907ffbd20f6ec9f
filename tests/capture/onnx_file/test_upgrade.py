"""Operators of every operator set compute after conversion what they computed before, by onnxruntime's own word."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from ontrain import GraphError, InferenceSession
from ontrain.capture import load_onnx
from ontrain.graph import OPSET
from ontrain.session.export import inference_model
from tests.capture.onnx_file.models import KINDS, const, legacy_in_torch, node, value, weight

FLOAT = TensorProto.FLOAT


def run(proto: onnx.ModelProto, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)


def converted(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The file after loading, as an inference model."""
    loaded = load_onnx(proto)
    arrays = {name: tensor.numpy() for name, tensor in loaded.initial.items()}
    upgraded = ir.to_proto(inference_model(loaded.evaluation, arrays, loaded.output_names))
    onnx.checker.check_model(upgraded, full_check=True)
    assert [(i.domain, i.version) for i in upgraded.opset_import] == [("", OPSET)]
    return upgraded


def ints(name: str, *content: int) -> onnx.TensorProto:
    return const(name, content)


def floats(name: str, *content: float) -> onnx.TensorProto:
    return const(name, content, np.float32)


# (operator set, node, stored tensors); x is float [2, 3, 4, 4]
CASES = [
    (7, node("Softmax", "x", "y", axis=1), []),
    (11, node("LogSoftmax", "x", "y", axis=2), []),
    (11, node("Hardmax", "x", "y"), []),
    (13, node("Softmax", "x", "y"), []),
    (7, node("Unsqueeze", "x", "y", axes=[0, 3]), []),
    (11, node("Unsqueeze", "x", "y", axes=[-1]), []),
    (9, node("ReduceSum", "x", "y", axes=[1, 2], keepdims=0), []),
    (11, node("ReduceSum", "x", "y"), []),
    (13, node("ReduceMean", "x", "y", axes=[-1]), []),
    (17, node("ReduceMax", "x", "y", axes=[0, 3], keepdims=0), []),
    (11, node("ReduceL2", "x", "y", axes=[1]), []),
    (11, node("ReduceLogSumExp", "x", "y", axes=[1]), []),
    (11, node("ReduceSumSquare", "x", "y", axes=[2], keepdims=0), []),
    (17, node("ReduceProd", "x", "y", axes=[2], keepdims=0), []),
    (8, node("Split", "x", "y z", axis=1, split=[1, 2]), []),
    (11, node("Split", "x", "y z", axis=2), []),
    (13, node("Split", "x sizes", "y z", axis=1), [ints("sizes", 2, 1)]),
    (13, node("Split", "x", "y z", axis=3), []),
    (9, node("Slice", "x", "y", starts=[1, -3], ends=[3, 99], axes=[1, 2]), []),
    (7, node("Slice", "x", "y", starts=[0, 1], ends=[1, 3]), []),
    (10, node("Slice", "x s e", "y"), [ints("s", 0, 1), ints("e", 1, 3)]),
    (7, node("TopK", "x", "y i", k=2, axis=3), []),
    (10, node("TopK", "x k", "y i"), [ints("k", 2)]),
    (7, node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=0.5), []),
    (10, node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 0, 1], mode="reflect"), []),
    (10, node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 0, 1], mode="edge"), []),
    (6, node("Clip", "x", "y", min=-0.5, max=0.25), []),
    (10, node("Clip", "x", "y", max=0.25), []),
    (12, node("Clip", "x - high", "y"), [const("high", 0.1, np.float32)]),
    (7, node("Dropout", "x", "y", ratio=0.3), []),
    (10, node("Dropout", "x", "y"), []),
    (12, node("Dropout", "x r", "y"), [const("r", 0.4, np.float32)]),
    (7, node("BatchNormalization", "x s b m v", "y", epsilon=1e-3, spatial=1),
     [floats("s", 1, 2, 3), floats("b", 0, 1, 2), floats("m", 0.1, 0.2, 0.3), floats("v", 1, 2, 0.5)]),
    (9, node("BatchNormalization", "x s b m v", "y"),
     [floats("s", 1, 2, 3), floats("b", 0, 1, 2), floats("m", 0.1, 0.2, 0.3), floats("v", 1, 2, 0.5)]),
    (14, node("BatchNormalization", "x s b m v", "y"),
     [floats("s", 1, 2, 3), floats("b", 0, 1, 2), floats("m", 0.1, 0.2, 0.3), floats("v", 1, 2, 0.5)]),
    (7, node("Upsample", "x", "y", scales=[1.0, 1.0, 2.0, 2.0], mode="nearest"), []),
    (9, node("Upsample", "x c", "y", mode="linear"), [floats("c", 1, 1, 2, 3)]),
    (10, node("Resize", "x c", "y", mode="nearest"), [floats("c", 1, 1, 2, 1.5)]),
    (10, node("Resize", "x c", "y", mode="linear"), [floats("c", 1, 1, 1.5, 2)]),
    (10, node("Resize", "x c", "y", mode="nearest"), [floats("c", 1, 1, 0.6, 0.5)]),
    (10, node("Resize", "x c", "y", mode="nearest"), [floats("c", 1, 1, 0.6, 2.4)]),
    (10, node("Resize", "x c", "y", mode="linear"), [floats("c", 1, 1, 0.6, 0.5)]),
    (11, node("Resize", "x r c", "y", mode="cubic"), [floats("r"), floats("c", 1, 1, 2, 2)]),
    (13, node("Resize", "x - c", "y", mode="linear", coordinate_transformation_mode="align_corners"),
     [floats("c", 1, 1, 2, 2)]),
    (9, node("Scatter", "x i u", "y", axis=3),
     [const("i", np.zeros((2, 3, 4, 1)), np.int64), const("u", np.ones((2, 3, 4, 1)), np.float32)]),
    (10, node("RoiAlign", "x rois b", "y", output_height=2, output_width=2),
     [const("rois", [[0, 0, 3, 3]], np.float32), ints("b", 0)]),
    (16, node("RoiAlign", "x rois b", "y", output_height=2, output_width=2, sampling_ratio=0),  # the default, stated
     [const("rois", [[0, 0, 3, 3], [0.5, 1, 2, 3.5]], np.float32), ints("b", 0, 1)]),
    (16, node("GridSample", "x g", "y", mode="bilinear"),
     [const("g", np.linspace(-0.9, 0.9, 2 * 2 * 2 * 2).reshape(2, 2, 2, 2), np.float32)]),
    (16, node("GridSample", "x g", "y", mode="bicubic", padding_mode="border"),
     [const("g", np.linspace(-0.9, 0.9, 2 * 2 * 2 * 2).reshape(2, 2, 2, 2), np.float32)]),
    (18, node("GroupNormalization", "x s b", "y", num_groups=1), [floats("s", 2), floats("b", 1)]),
    (7, node("PRelu", "x s", "y"), [const("s", [[[0.1]], [[0.2]], [[0.3]]], np.float32)]),
    (8, node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2]), []),
    (7, node("AveragePool", "x", "y", kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1), []),
    (7, node("Cast", "x", "y", to=TensorProto.INT64), []),
    (9, node("ConstantOfShape", "n", "y"), [ints("n", 2, 2)]),
    (21, node("Pow", "x two", "y"), [const("two", 2, np.float32)]),
]  # fmt: skip


def case_model(opset, case, stored):
    outputs = [helper.make_empty_tensor_value_info(name) for name in case.output]
    graph = helper.make_graph([case], "g", [value("x", [2, 3, 4, 4])], outputs, stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


@pytest.mark.parametrize(
    ("opset", "case", "stored"), CASES, ids=lambda entry: str(getattr(entry, "op_type", entry))[:20]
)
def test_an_operator_means_the_same_after_conversion(rng, opset, case, stored):
    proto = case_model(opset, case, stored)
    feeds = {"x": rng.standard_normal((2, 3, 4, 4)).astype(np.float32)}
    theirs, ours = run(proto, feeds), converted(proto)
    fed = {i.name: feeds[i.name] for i in ours.graph.input}
    # onnxruntime runs no RoiAlign of today.
    actual = ReferenceEvaluator(ours).run(None, fed) if case.op_type == "RoiAlign" else run(ours, fed)
    for a, b in zip(actual, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scales", [(1, 1, 0.6, 0.5), (1, 1, 0.6, 2.4), (1, 1, 1.5, 2)])
def test_an_old_resize_reads_scales_that_are_fed(rng, scales):
    nodes, scaling = [node("Resize", "x c", "y", mode="nearest")], value("c", [4])
    graph = helper.make_graph(nodes, "g", [value("x", [2, 3, 7, 6]), scaling], [value("y", ["a", "b", "c", "d"])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    feeds = {"x": rng.standard_normal((2, 3, 7, 6), np.float32), "c": np.array(scales, np.float32)}
    (expected,) = run(proto, feeds)
    (result,) = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12])
def test_a_mask_of_a_dropout_that_drops_nothing_is_onnxruntimes(rng, opset):
    kind = TensorProto.BOOL if opset >= 10 else FLOAT
    mask = helper.make_tensor_value_info("mask", kind, [2, 3])
    nodes = [node("Dropout", "x", "y mask")]
    graph = helper.make_graph(nodes, "g", [value("x", [2, 3])], [value("y", [2, 3]), mask])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    feeds = {"x": rng.standard_normal((2, 3), np.float32)}
    expected = run(proto, feeds)
    session = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"])
    assert session.get_outputs()[1].type == ("tensor(bool)" if opset >= 10 else "tensor(float)")
    for result, theirs in zip(session.run(None, feeds), expected, strict=True):
        assert result.dtype == theirs.dtype
        np.testing.assert_array_equal(result, theirs)


@pytest.mark.parametrize("opset", [7, 8])
def test_a_batch_normalisation_of_each_position_runs(rng, opset):
    stored = [weight(rng, name, 3, 4, 4) for name in "sbm"]
    stored.append(const("v", rng.random((3, 4, 4)) + 0.5, np.float32))
    nodes = [node("BatchNormalization", "x s b m v", "y", spatial=0, epsilon=1e-3)]
    graph = helper.make_graph(nodes, "g", [value("x", [2, 3, 4, 4])], [value("y", [2, 3, 4, 4])], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    feeds = {"x": rng.standard_normal((2, 3, 4, 4), np.float32)}
    (expected,) = run(proto, feeds)
    (result,) = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_broadcasts_with_an_axis_are_those_of_onnxs_own_converter(rng):
    stored = [weight(rng, "b", 3), weight(rng, "c", 3, 4)]
    nodes = [
        node("Add", "x b", "s", broadcast=1, axis=1),
        node("Mul", "s c", "m", broadcast=1, axis=-3),
        node("Div", "m x", "d"),
        node("Sub", "d one", "y", broadcast=1),
    ]
    stored.append(const("one", [1.0], np.float32))
    inputs = [value("x", [2, 3, 4, 4]), *(value(t.name, list(t.dims)) for t in stored)]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", [2, 3, 4, 4])], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    x = rng.standard_normal((2, 3, 4, 4)).astype(np.float32)
    b, c = (onnx.numpy_helper.to_array(t) for t in stored[:2])
    expected = ((x + b[:, None, None]) * c[:, :, None]) / x - 1
    (result,) = run(converted(proto), {"x": x})
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("opset", [7, 9, 13, 14])
@pytest.mark.parametrize("training", [False, True])
def test_a_batch_normalisation_keeps_the_mode_that_its_outputs_told(rng, opset, training):
    """Before operator set 14 more outputs than one were training mode; since then there is an attribute."""
    x = rng.standard_normal((2, 3, 4, 4), np.float32)
    stored = [floats("s", 1, 2, 3), floats("b", 0, 1, 2), floats("m", 0.1, 0.2, 0.3), floats("v", 1, 2, 0.5)]
    outputs = "y next_m next_v" + " saved_m saved_v" * (opset < 14)
    mode = {"training_mode": int(training)} if opset >= 14 else {}
    normalization = node("BatchNormalization", "x s b m v", outputs if training else "y", **mode)
    graph = helper.make_graph([normalization], "g", [value("x", x.shape)], [value("y", x.shape)], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    (result,) = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"]).run(None, {"x": x})
    scale, bias, mean, var = (torch.tensor(onnx.numpy_helper.to_array(tensor)) for tensor in stored)
    statistics = (None, None) if training else (mean, var)
    expected = functional.batch_norm(torch.from_numpy(x), *statistics, scale, bias, training=training)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_file_of_2017_computes_what_its_operators_meant(seed):
    file = KINDS["legacy"](np.random.default_rng(seed))
    stored = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in file.proto.graph.initializer}
    (ours,) = run(converted(file.proto), {"x": file.batch["x"]})
    theirs = legacy_in_torch(stored, torch.from_numpy(file.batch["x"]), training=False)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backwards", [0, 1])
def test_the_first_scan_runs_over_each_sequence_of_the_batch(rng, backwards):
    body = helper.make_graph(
        [node("Add", "state row", "next"), node("Identity", "next", "out")], "body",
        [value("state", [2]), value("row", [2])], [value("next", [2]), value("out", [2])],
    )  # fmt: skip
    scan = node("Scan", "- start x", "last sums", num_scan_inputs=1, body=body, directions=[backwards])
    graph = helper.make_graph(
        [scan], "g", [value("start", [3, 2]), value("x", [3, 4, 2])], [value("last", [3, 2]), value("sums", [3, 4, 2])]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=8)
    start, x = rng.standard_normal((3, 2), np.float32), rng.standard_normal((3, 4, 2), np.float32)
    last, sums = run(converted(proto), {"start": start, "x": x})
    expected = start[:, None] + np.cumsum(x[:, ::-1] if backwards else x, 1)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, expected[:, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("opset", "case", "stored", "says"),
    [
        (8, node("BatchNormalization", "x s s s s", "y", spatial=0), [weight(np.random.default_rng(0), "s", 3, 4, 4)],
         "normalises each position for itself"),
        (8, node("Scan", "n x", "y", num_scan_inputs=1, body=helper.make_graph(
            [node("Relu", "a", "b")], "body", [value("a", [3, 4, 4])], [value("b", [3, 4, 4])])), [floats("n", 3, 3)],
         "Scan took sequences of different lengths"),
        (1, node("Tile", "x n a", "y"), [floats("n", 2), floats("a", 1)], "Tile took a number and an axis"),
    ],
)  # fmt: skip
def test_a_form_that_is_gone_is_refused_by_node(opset, case, stored, says):
    graph = helper.make_graph([case], "g", [value("x", [2, 3, 4, 4])], [value("y", None)], stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    with pytest.raises(GraphError, match=rf"(?s){says}.*node: {case.op_type}"):
        load_onnx(proto)


def test_a_layout_of_onnxruntimes_is_refused_with_the_way_to_a_file_without_it(tmp_path, rng):
    w = helper.make_tensor("w", FLOAT, [16, 3, 3, 3], rng.standard_normal(432))
    images, results = value("x", [1, 3, 8, 8], FLOAT), value("y", [1, 16, 6, 6], FLOAT)
    graph = helper.make_graph([node("Conv", "x w", "y")], "g", [images], [results], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    levels = onnxruntime.GraphOptimizationLevel
    for level in (levels.ORT_ENABLE_EXTENDED, levels.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.optimized_model_filepath = level, str(tmp_path / f"{level}.onnx")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    InferenceSession(tmp_path / f"{levels.ORT_ENABLE_EXTENDED}.onnx", providers=["TorchExecutionProvider"])
    optimised = tmp_path / f"{levels.ORT_ENABLE_ALL}.onnx"
    if b"nchwc" not in optimised.read_bytes():
        pytest.skip("this processor has no layout of its own")
    with pytest.raises(GraphError, match="com.microsoft.nchwc(.|\n)*optimised at ORT_ENABLE_EXTENDED"):
        InferenceSession(optimised, providers=["TorchExecutionProvider"])


def test_an_operator_of_another_domain_is_refused_by_name(rng):
    stranger = node("Frobnicate", "x", "y", domain="acme")
    graph = helper.make_graph([stranger], "g", [value("x", [2])], [value("y", [2])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    with pytest.raises(GraphError, match=r"(?s)acme\.Frobnicate.*node"):
        load_onnx(helper.make_model(graph, opset_imports=imports, ir_version=8))


@pytest.mark.parametrize("opset", [8, 9, 11, 12, 13, 14, 17, 18, 20, 22, 23, 24, 25, 26])
def test_one_network_is_the_same_at_every_operator_set(seed, opset):
    """onnx's own converter writes the later versions."""
    file = KINDS["mlp"](np.random.default_rng(seed), 13)
    proto = KINDS["mlp"](np.random.default_rng(seed), opset).proto
    if opset > 13:
        proto = onnx.version_converter.convert_version(file.proto, opset)
    (expected,) = run(file.proto, {"x": file.batch["x"]})
    (result,) = run(converted(proto), {"x": file.batch["x"]})
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_the_standard_may_be_imported_under_its_name(rng, domain):
    """Version 11 takes the numbers of a Slice as operands, and flattens for Softmax."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=1, domain=domain),
        helper.make_node("Slice", ["s", "from", "to"], ["y"], domain=domain),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", [2, 3, 4])], [value("y", [2, 2, 4])], [ints("from", 0, 1), ints("to", 2, 3)]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx", 11)], ir_version=6)
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(converted(proto), {"x": x})[0], run(proto, {"x": x})[0], rtol=1e-5)
    session = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], run(proto, {"x": x})[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("imported", "op_type", "domain", "settings"),
    [
        ("", "Gelu", "com.microsoft", {}), ("", "Binarizer", "ai.onnx.ml", {"threshold": 0.5}),
        ("ai.onnx.ml", "Relu", "", {}), ("com.microsoft", "Relu", "", {}),
    ],
    ids=str,
)  # fmt: skip
def test_domains_that_onnxruntime_knows_need_no_import(rng, imported, op_type, domain, settings):
    foreign = helper.make_node(op_type, ["x"], ["y"], domain=domain, **settings)
    graph = helper.make_graph([foreign], "g", [value("x", [2, 3])], [value("y", [2, 3])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid(imported, 17 if not imported else 1)])
    proto.ir_version = 8
    x = rng.standard_normal((2, 3)).astype(np.float32)
    session = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], run(proto, {"x": x})[0], rtol=1e-5)


def test_of_a_domain_that_is_imported_twice_the_last_import_counts(rng):
    graph = helper.make_graph(
        [node("Softmax", "x", "y", axis=1)], "g", [value("x", [2, 3, 4])], [value("y", [2, 3, 4])]
    )
    imports = [helper.make_opsetid("", 0), helper.make_opsetid("", 11)]
    proto, x = helper.make_model(graph, opset_imports=imports, ir_version=6), rng.standard_normal((2, 3, 4))
    feeds = {"x": x.astype(np.float32)}
    session = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], run(proto, feeds)[0], rtol=1e-5)


@pytest.mark.parametrize("operand", ["float", "float16"])
@pytest.mark.parametrize("scale", ["float", "float16"])
def test_an_early_layer_normalisation_is_of_its_scales_dtype_and_reads_its_own_attributes(rng, operand, scale):
    """onnxruntime wrote it before the standard had it; there its dtypes may differ, and attributes may be unknown."""
    model = onnx.parser.parse_model(f"""<ir_version: 7, opset_import: ["" : 12]>
        g ({operand}[n, 8] x, {scale}[8] gamma, {scale}[8] beta) => ({scale}[n, 8] y) {{
            y = LayerNormalization <axis = -1, epsion = 0.3> (x, gamma, beta)
        }}""")
    kinds = {"float": np.float32, "float16": np.float16}
    feeds = {"x": rng.standard_normal((3, 8)).astype(kinds[operand])}
    feeds |= {name: rng.standard_normal(8).astype(kinds[scale]) for name in ("gamma", "beta")}
    (ours,) = InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"]).run(None, feeds)
    (theirs,) = run(model, feeds)
    assert ours.dtype == theirs.dtype == kinds[scale]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5 if scale == "float" else 2e-3, atol=1e-5)


_NUMBERS = {
    "BlackmanWindow": [16], "HammingWindow": [16], "HannWindow": [16],
    "MelWeightMatrix": [5, 16, 8000, np.float32(0), np.float32(4000)],
}  # fmt: skip


@pytest.mark.parametrize("op_type", [*_NUMBERS, "DFT", "STFT"])
def test_an_array_of_one_element_that_a_graph_is_fed_is_taken_for_a_number(rng, op_type):
    numbers = {f"n{i}": np.atleast_1d(number) for i, number in enumerate(_NUMBERS.get(op_type, [4, 1]))}
    x = rng.standard_normal((1, 16, 1)).astype(np.float32)
    operands = {"DFT": ["x", "n0", "n1"], "STFT": ["x", "n0", "", "n1"]}.get(op_type, [*numbers])
    feeds = {**({"x": x} if "x" in operands else {}), **numbers}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op_type, operands, ["y"])], "g", inputs, [onnx.ValueInfoProto(name="y")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (ours,) = InferenceSession(proto.SerializeToString(), providers=["TorchExecutionProvider"]).run(None, feeds)
    np.testing.assert_allclose(ours, run(proto, feeds)[0], rtol=1e-4, atol=1e-5)
