"""Ranges measured in constant memory, errors told node by node, and what onnxruntime's quantiser makes runs here."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import ontrain
from ontrain import quantization
from ontrain.errors import InputError, OptionError
from ontrain.inference.quantization import calibrate, node_errors

PROVIDERS = ["CPUExecutionProvider", "TorchExecutionProvider"]
rng = np.random.default_rng(0)
W = rng.standard_normal((64, 64), np.float32) / 8
SPIKED = W.copy()
SPIKED[:, 7] *= 300  # a channel with outliers, which eight bits for all channels cannot hold


@pytest.fixture
def file(tmp_path):
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        net (float[n, 64] x) => (float[n, 64] y) {
            [calm] h = MatMul(x, v) [bend] t = Tanh(h) [spiked] s = MatMul(t, u) [last] y = MatMul(s, v)
        }""")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for w, n in ((W, "v"), (SPIKED, "u")))
    onnx.save(proto, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def samples(count, rows=16):
    return [{"x": np.random.default_rng(i).standard_normal((rows, 64), np.float32)} for i in range(count)]


class Reader(quantization.CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def quantize(file, ranges, **options):
    path = file.with_name("quantized.onnx")
    quantization.quantize_static(file, path, None, calibration_cache_path=ranges, **options)
    return path


@pytest.mark.parametrize("reader", [Reader, list])
def test_ranges_are_the_least_and_greatest_values_over_all_samples(file, reader):
    inputs = samples(5)
    ranges = calibrate(file, reader(inputs), file.with_name("ranges.json"))
    session = ontrain.InferenceSession(file)
    values = np.concatenate([session.run(["s"], feeds)[0] for feeds in inputs])
    assert [float(np.ravel(bound)[0]) for bound in ranges["s"].range_value] == [values.min(), values.max()]
    assert json.loads(file.with_name("ranges.json").read_text())["data"]["s"]


def test_percentiles_are_those_of_the_values_of_all_samples(file):
    inputs = samples(8)
    ranges = calibrate(file, inputs, file.with_name("ranges.json"), method="Percentile", percentile=99.0, num_bins=4096)
    session = ontrain.InferenceSession(file)
    values = np.abs(np.concatenate([session.run(["t"], feeds)[0] for feeds in inputs]))
    high = float(ranges["t"].range_value[1])
    assert np.mean(values <= high) == pytest.approx(0.99, abs=0.005)


@pytest.mark.parametrize("method", ["MinMax", "Percentile", "Entropy"])
def test_memory_does_not_grow_with_the_number_of_samples(file, method):
    def peak(count):
        stream = (feeds for i in range(count) for feeds in samples(1, rows=4096))  # a megabyte a value each
        tracemalloc.start()
        calibrate(file, stream, file.with_name("ranges.json"), method=method)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(1)
    assert peak(12) < 1.3 * peak(3)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_error_table_names_the_node_to_exclude(file, provider):
    inputs, ranges = samples(4), file.with_name("ranges.json")
    calibrate(file, inputs, ranges)
    quantized = quantize(file, ranges)
    errors = node_errors(file, quantized, inputs, providers=[provider])
    assert {error.node for error in errors} == {"calm", "bend", "spiked", "last"}
    by_node = {error.node: error for error in errors}
    plain = ontrain.SessionOptions()  # fused kernels saturate on processors without dot products of bytes
    plain.graph_optimization_level = ontrain.GraphOptimizationLevel.ORT_DISABLE_ALL
    session, other = (ontrain.InferenceSession(path, plain, [provider]) for path in (file, quantized))
    right, wrong = (np.concatenate([s.run(None, feeds)[0] for feeds in inputs]) for s in (session, other))
    ratio = 10 * np.log10(np.square(right).sum() / np.square(right - wrong).sum())
    assert by_node["last"].decibels == pytest.approx(ratio, abs=0.5)
    exact = node_errors(file, quantize(file, ranges, nodes_to_exclude=["calm", "bend", "spiked", "last"]), inputs)
    assert all(error.decibels == np.inf and error.lost == 0 for error in exact)
    without = node_errors(file, quantize(file, ranges, nodes_to_exclude=["spiked", "last"]), inputs)
    assert {e.node: e for e in without}["last"].decibels > by_node["last"].decibels + 3


@pytest.mark.parametrize("provider", PROVIDERS)
def test_weights_of_four_bits_run_on_both_providers(file, provider):
    from ontrain.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(file), block_size=32, is_symmetric=True, accuracy_level=1)
    quantizer.process()
    model = quantizer.model.model
    assert [node.op_type for node in model.graph.node].count("MatMulNBits") == 3
    (feeds,) = samples(1)
    wanted, got = (ontrain.InferenceSession(m, providers=[provider]).run(["h"], feeds)[0] for m in (str(file), model))
    assert 10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum()) > 15


@pytest.mark.parametrize("provider", PROVIDERS)
def test_weights_in_half_precision_run_on_both_providers(file, provider):
    from ontrain.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(file), keep_io_types=True)
    in_order = ir.from_proto(model)
    in_order.graph.sort()
    model = ir.to_proto(in_order)
    (feeds,) = samples(1)
    wanted, got = (ontrain.InferenceSession(m, providers=[provider]).run(["t"], feeds)[0] for m in (str(file), model))
    assert got.dtype == np.float16 and np.abs(wanted - got).max() < 5e-3


def test_external_data_is_calibrated_and_quantised(file, tmp_path):
    path = tmp_path / "outside.onnx"
    onnx.save(onnx.load(file), path, save_as_external_data=True, size_threshold=0, location="outside.bin")
    ranges = tmp_path / "ranges.json"
    calibrate(path, samples(2), ranges, external_data=True)
    quantized = quantize(path, ranges, use_external_data_format=True)
    assert ontrain.InferenceSession(quantized).run(None, samples(1)[0])[0].shape == (16, 64)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"reader": []}, InputError, "no samples"),
        ({"reader": 3}, InputError, "samples are a int"),
        ({"method": "Minmax"}, OptionError, "'Minmax'[^$]*'MinMax'"),
        ({"model": "nowhere.onnx"}, InputError, "no model file 'nowhere.onnx'"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(file, arguments, error, told):
    keywords = {"model": file, "reader": samples(1), "path": file.with_name("ranges.json")} | arguments
    with pytest.raises(error, match=told):
        calibrate(**keywords)


def test_models_that_have_nothing_in_common_are_refused(file):
    other = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]> m (float[n, 64] x) => (float[n, 64] z) { z = Abs(x) }""")
    with pytest.raises(InputError, match="no inner value in common"):
        node_errors(file, other, samples(1))
    with pytest.raises(InputError, match="no samples"):
        node_errors(file, file, [])
