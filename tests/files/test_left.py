"""Large external data are read when the weights are made, and no sooner; what a file says of that is not believed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ontrain
from ontrain import GraphError, InferenceSession
from ontrain.files import left_data, read_proto

_SIDE = 1024
_KINDS = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64]


def _saved(folder, weight: np.ndarray, kind: int = TensorProto.FLOAT) -> str:
    """A product with a weight that lies in `w.bin`, behind 24 other bytes."""
    (folder / "w.bin").write_bytes(b"\1" * 24 + weight.tobytes())
    tensor = TensorProto(name="w", data_type=kind, dims=weight.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", 24), ("length", weight.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    nodes = [
        helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", _SIDE]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [tensor]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(model, folder / "m.onnx")
    return str(folder / "m.onnx")


def _own(path: str, options=None) -> InferenceSession:
    return InferenceSession(path, options, providers=["TorchExecutionProvider"])


@pytest.mark.parametrize("kind", _KINDS)
def test_weights_of_every_type_are_onnxruntimes_and_stay_what_they_were(tmp_path, rng, kind):
    weight = (10 * rng.standard_normal((_SIDE, _SIDE))).astype(helper.tensor_dtype_to_np_dtype(kind))
    path = _saved(tmp_path, weight, kind)
    x = rng.standard_normal((2, _SIDE)).astype(np.float32)
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    session = _own(path)
    with open(tmp_path / "w.bin", "r+b") as file:
        file.write(bytes(24 + weight.nbytes))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-3)


def test_a_message_has_no_copy_of_large_data(tmp_path, rng):
    weight = rng.standard_normal((_SIDE, _SIDE)).astype(np.float32)
    path = _saved(tmp_path, weight)
    proto, _ = read_proto(path, leaves=True)
    (tensor,) = proto.graph.initializer
    left = left_data(tensor)
    assert left is not None and not tensor.raw_data
    np.testing.assert_array_equal(left.array(weight.dtype, tensor.dims), weight)
    read_proto(proto)  # and reads them for whoever wants them
    assert tensor.raw_data == weight.tobytes() and left_data(tensor) is None


def test_the_optimised_file_has_the_weights(tmp_path, rng):
    path = _saved(tmp_path, rng.standard_normal((_SIDE, _SIDE)).astype(np.float32))
    options = ontrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    feeds = {"x": rng.standard_normal((2, _SIDE)).astype(np.float32)}
    (y,) = _own(path, options).run(None, feeds)
    (tmp_path / "w.bin").unlink()
    np.testing.assert_allclose(_own(str(tmp_path / "optimised.onnx")).run(None, feeds)[0], y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", ["0:{size}:{secret}", "{token}:0:{size}:{secret}"])
def test_a_file_cannot_say_that_its_data_were_checked(tmp_path, text):
    (tmp_path / "model").mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4 * _SIDE * _SIDE))
    path = _saved(tmp_path / "model", np.ones((_SIDE, _SIDE), np.float32))
    proto = onnx.load(path, load_external_data=False)
    (tensor,) = proto.graph.initializer
    tensor.external_data[0].value = "missing.bin"
    entry = text.format(size=4 * _SIDE * _SIDE, secret=secret, token="0" * 32)
    tensor.external_data.add(key="checksum", value=entry)
    path = tmp_path / "model" / "hostile.onnx"
    path.write_bytes(proto.SerializeToString())
    for source in (str(path), proto):
        with pytest.raises(GraphError, match="external data"):
            read_proto(source, leaves=True)


def test_short_data_are_refused_before_they_are_read(tmp_path):
    path = _saved(tmp_path, np.ones((_SIDE, _SIDE), np.float32))
    with open(tmp_path / "w.bin", "r+b") as file:
        file.truncate(100)
    with pytest.raises(GraphError, match="is short"):
        read_proto(path, leaves=True)


_PEAK = """
import resource, sys
import ontrain
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
ontrain.InferenceSession(sys.argv[1], providers=["TorchExecutionProvider"])
before = peak()
session = ontrain.InferenceSession(sys.argv[2], providers=["TorchExecutionProvider"])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts peaks in other units")
def test_loading_takes_memory_for_the_weights_once_and_for_one_of_them_again(tmp_path):
    """The file's pages count while they are copied, one weight after the other."""
    size, count = 16 << 20, 8
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(count * size)
    weights = []
    for i in range(count):
        tensor = TensorProto(
            name=f"w{i}", data_type=TensorProto.FLOAT, dims=[2048, size // 8192], data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", "w.bin"), ("offset", i * size), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        weights.append(tensor)
    names = ["x", *(f"h{i}" for i in range(count))]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(count)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2048]) for name in (names[0], names[-1]))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "large.onnx"
    )
    (tmp_path / "small").mkdir()
    small = _saved(tmp_path / "small", np.ones((_SIDE, _SIDE), np.float32))
    command = [sys.executable, "-c", _PEAK, small, str(tmp_path / "large.onnx")]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 1.5 * count * size
