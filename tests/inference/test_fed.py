"""What is fed: arrays of whatever dtype and order in memory, tensors, values of onnxruntime; and what comes out."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

import ontrain
from ontrain import InputError, OntrainError
from ontrain.stock_values import array_of, ort_value
from tests.training.conftest import PROVIDERS

KIND = onnx.TensorProto
DTYPES = {
    "bfloat16": KIND.BFLOAT16, "float8_e4m3fn": KIND.FLOAT8E4M3FN, "float8_e4m3fnuz": KIND.FLOAT8E4M3FNUZ,
    "float8_e5m2": KIND.FLOAT8E5M2, "float8_e5m2fnuz": KIND.FLOAT8E5M2FNUZ, "int4": KIND.INT4, "uint4": KIND.UINT4,
}  # fmt: skip


BFLOAT16 = helper.tensor_dtype_to_np_dtype(KIND.BFLOAT16)


def dtype_of(name: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(DTYPES[name])


def model(op_type: str, kind: int, result: int | None = None, inputs: str = "x", **attributes: object) -> bytes:
    """One operator on matrices of a dtype."""
    values = [helper.make_tensor_value_info(name, kind, [None, None]) for name in dict.fromkeys(inputs)]
    node = helper.make_node(op_type, list(inputs), ["z"], **attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("z", result or kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def open_session(content: bytes, provider: str) -> ontrain.InferenceSession:
    return ontrain.InferenceSession(content, providers=[provider])


NUMBERS = np.array([[0, 1, -2], [3, 1.5, -4]], np.float32)


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "ReferenceExecutionProvider"])
def test_bfloat16_goes_in_and_comes_out_of_our_providers(provider):
    x = NUMBERS.astype(BFLOAT16)
    added, multiplied = (
        open_session(model("Add", KIND.BFLOAT16, inputs="xy"), provider),
        open_session(model("MatMul", KIND.BFLOAT16, inputs="xy"), provider),
    )
    for fed in (x, torch.tensor(NUMBERS, dtype=torch.bfloat16), torch.tensor(NUMBERS.T, dtype=torch.bfloat16).T):
        (z,) = added.run(None, {"x": fed, "y": x})
        assert z.dtype == BFLOAT16
        np.testing.assert_array_equal(z.astype(np.float32), 2 * NUMBERS)
    (z,) = multiplied.run(None, {"x": x, "y": x.T})  # all numbers have few digits, so that nothing is rounded
    np.testing.assert_array_equal(z.astype(np.float32), NUMBERS @ NUMBERS.T)


@pytest.mark.parametrize("name", DTYPES)
def test_what_numpy_lacks_goes_in_and_comes_out_of_onnxruntime(name):
    dtype, kind = dtype_of(name), DTYPES[name]
    exact = np.array([[0, 1, 2], [3, 1, 7]], np.float32)  # what all of them hold: seven numbers of four bits
    exact = np.where(exact == 7, 6, exact)
    there, back = (
        open_session(model("Cast", kind, KIND.FLOAT, to=KIND.FLOAT), "CPUExecutionProvider"),
        open_session(model("Cast", KIND.FLOAT, kind, to=kind), "CPUExecutionProvider"),
    )
    (z,) = there.run(None, {"x": exact.astype(dtype)})
    np.testing.assert_array_equal(z, exact)
    (z,) = back.run(["z"], {"x": exact})
    assert z.dtype == dtype
    np.testing.assert_array_equal(z.astype(np.float32), exact)
    assert back.run(None, {"x": exact[:0]})[0].shape == (0, 3)


@pytest.mark.parametrize("name", [name for name in DTYPES if "float" in name])
@pytest.mark.parametrize("provider", ["OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"])
def test_floats_that_numpy_lacks_run_where_there_are_kernels(provider, name):
    x = np.array([[0, 1, -2]]).astype(dtype_of(name))
    for result, attributes in ((DTYPES[name], {}), (KIND.FLOAT, {"to": KIND.FLOAT})):
        content = model("Cast" if attributes else "Identity", DTYPES[name], result, **attributes)
        (z,) = open_session(content, provider).run(None, {"x": x})
        assert z.dtype == (np.float32 if attributes else x.dtype)
        np.testing.assert_array_equal(z.astype(np.float32), [[0, 1, -2]])


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op_type", ["Identity", "Add", "Sigmoid", "Cast"])
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_a_dtype_without_a_kernel_is_refused_with_a_way_out(provider, op_type, name):
    attributes = {"to": KIND.FLOAT} if op_type == "Cast" else {}
    content = model(op_type, DTYPES[name], KIND.FLOAT if attributes else None, "xx" if op_type == "Add" else "x",
                    **attributes)  # fmt: skip
    try:
        runner = open_session(content, provider)
        (z,) = runner.run(None, {"x": np.ones((2, 2)).astype(dtype_of(name))})
    except OntrainError as error:
        # Without a way out only where the standard itself does not define the operator for the dtype.
        undefined = op_type in ("Add", "Sigmoid") and name != "bfloat16"
        assert undefined or error.way_out, str(error)
        return
    assert z.dtype == (np.float32 if attributes else dtype_of(name))


def test_onnxruntime_without_a_kernel_names_the_provider_that_has_one():
    with pytest.raises(InputError, match="TorchExecutionProvider"):
        ontrain.InferenceSession(model("MatMul", KIND.BFLOAT16, inputs="xy"))


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
@pytest.mark.parametrize("result", [KIND.FLOAT, KIND.BFLOAT16])
@pytest.mark.parametrize(
    "fed",
    [
        NUMBERS[::-1].copy()[::-1], NUMBERS.T.copy().T, NUMBERS.astype(">f4"),
        torch.tensor(NUMBERS, requires_grad=True),
        torch.tensor(NUMBERS.T).T, onnxruntime.OrtValue.ortvalue_from_numpy(NUMBERS),
    ],
    ids=["negative strides", "Fortran's order", "big endian", "tensor with a gradient", "strided tensor", "OrtValue"],
)  # fmt: skip
def test_any_order_in_memory_is_fed(provider, result, fed):
    if provider == "CPUExecutionProvider" and getattr(fed, "dtype", None) == np.dtype(">f4"):
        fed = fed.astype("<f4")  # onnxruntime reads such an array as it lies, and that is its own affair
    (z,) = open_session(model("Cast", KIND.FLOAT, result, to=result), provider).run(None, {"x": fed})
    np.testing.assert_array_equal(z.astype(np.float32), NUMBERS)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, BFLOAT16])
def test_an_array_that_may_not_be_written_to_is_fed_without_a_warning(dtype, recwarn):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = np.frombuffer(np.array([[1, -2], [3, 4]], dtype).tobytes(), dtype).reshape(2, 2)
    assert not x.flags.writeable
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        (z,) = open_session(model("Neg", kind), "TorchExecutionProvider").run(None, {"x": x})
    finally:
        torch.set_warn_always(before)
    assert z.astype(np.float32).tolist() == [[-1, 2], [-3, -4]] and x.astype(np.float32).tolist() == [[1, -2], [3, 4]]
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("fed", [[[1.0, 2.0], [3.0]], NUMBERS.astype(str), {"a": 1}, None, object()])
def test_what_is_no_array_is_refused_by_the_inputs_name(provider, fed):
    with pytest.raises(InputError, match="'x'"):
        open_session(model("Identity", KIND.FLOAT), provider).run(None, {"x": fed})


def test_sequences_beside_a_result_that_numpy_lacks_are_refused():
    sequence = helper.make_tensor_sequence_value_info("x", KIND.FLOAT, None)
    nodes = [
        helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0),
        helper.make_node("Cast", ["y"], ["z"], to=KIND.BFLOAT16),
    ]
    outputs = [
        helper.make_tensor_value_info("y", KIND.FLOAT, None),
        helper.make_tensor_value_info("z", KIND.BFLOAT16, None),
    ]
    graph = helper.make_graph(nodes, "g", [sequence], outputs)
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    session, parts = ontrain.InferenceSession(content), [np.ones(2, np.float32), np.zeros(1, np.float32)]
    np.testing.assert_array_equal(session.run(["y"], {"x": parts})[0], [1, 1, 0])
    with pytest.raises(InputError, match="(?s)'x' is a list.*way out"):
        session.run(None, {"x": parts})


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("provider", [["TorchExecutionProvider"], ["TorchExecutionProvider", "CPUExecutionProvider"]])
def test_values_of_onnxruntime_hold_what_numpy_lacks(name, provider):
    """DLPack, as onnxruntime knows it, has bfloat16 of these and no float of eight bits or integer of four."""
    array = np.array([[0, 1, 2], [3, 1, 6]], np.float32).astype(dtype_of(name))
    ours = ontrain.InferenceSession(model("Identity", DTYPES[name]), providers=provider)
    fed = ort_value(array)
    (result,) = ours.run_with_ort_values(None, {"x": fed})
    binding = ours.io_binding()
    binding.bind_ortvalue_input("x", fed)
    binding.bind_output("z")
    ours.run_with_iobinding(binding)
    for value in (result, binding.get_outputs()[0]):
        assert (value.data_type(), value.shape()) == (fed.data_type(), [2, 3])
        np.testing.assert_array_equal(array_of(value), array, strict=True)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], array, strict=True)
