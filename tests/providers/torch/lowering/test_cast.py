"""Conversions against those of ml_dtypes and of onnx, for all values of the small types and for what lies between."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import ontrain

FLOAT8 = [ir.DataType[f"FLOAT8E{name}"] for name in ("4M3FN", "4M3FNUZ", "5M2", "5M2FNUZ")]
GRIDS = [
    getattr(ir.DataType, name)
    for name in ("FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2")
    if hasattr(ir.DataType, name)  # the latter two came with onnx-ir 1.1
]
WHOLE = [ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4]
POWERS = ir.DataType.FLOAT8E8M0


def converted(array, kind, **attributes):
    target = ir.DataType(kind)
    source = helper.np_dtype_to_tensor_dtype(array.dtype)
    node = helper.make_node("Cast", ["x"], ["y"], to=target.value, **attributes)
    infos = [helper.make_tensor_value_info(*info, list(array.shape)) for info in (("x", source), ("y", target.value))]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)])
    (result,) = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, {"x": array})
    assert result.dtype == target.numpy()
    return result


def values(kind):
    """All numbers of a type, what lies halfway between neighbours and just beside that, and what is far outside."""
    bits = np.arange(1 << kind.bitwidth, dtype=np.uint8)
    held = np.unique(bits.view(kind.numpy()).astype(np.float32) if kind.bitwidth == 8 else grid(kind))
    held = held[np.isfinite(held)]
    between = (held[1:] + held[:-1]) / 2
    beside = [np.nextafter(between, np.float32(side)) for side in (-np.inf, np.inf)]
    beyond = np.float32([held[-1] * factor for factor in (1.03, 1.034, 1.0357, 1.0666, 1.0714, 1.2, 4e9)])
    return np.concatenate([held, between, *beside, beyond, -beyond, [np.inf, -np.inf]]).astype(np.float32)


def grid(kind):
    return np.float32([float(x) for x in np.linspace(-32, 32, 4097).astype(np.float32).astype(kind.numpy())])


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("kind", FLOAT8, ids=lambda kind: kind.name)
def test_eight_bits_are_rounded_and_cut_off_as_in_ml_dtypes(kind, saturate):
    for array in (values(kind), np.float32([np.nan]), values(kind)[::3].astype(np.float64)):
        wanted = numpy_helper.saturate_cast(array, kind.numpy()) if saturate else array.astype(kind.numpy())
        result = converted(array, kind, saturate=saturate)
        np.testing.assert_array_equal(result.astype(np.float32), wanted.astype(np.float32))
        np.testing.assert_array_equal(
            converted(wanted, ir.DataType.FLOAT), wanted.astype(np.float32), err_msg="the way back"
        )


@pytest.mark.parametrize("kind", GRIDS, ids=lambda kind: kind.name)
def test_four_and_six_bits_are_rounded_as_in_ml_dtypes(kind):
    array = np.concatenate([values(kind), np.float32([np.nan])])
    wanted = array.astype(kind.numpy())
    np.testing.assert_array_equal(converted(array, kind).astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(converted(wanted, ir.DataType.FLOAT16), wanted.astype(np.float16))


def test_whole_numbers_of_few_bits_keep_their_lowest():
    numbers = np.arange(-40, 40)
    for kind, source in itertools.product(WHOLE, (np.int64, np.float32, np.float16, ml_dtypes.bfloat16)):
        array = numbers.astype(source)
        result = converted(array, kind)
        np.testing.assert_array_equal(result.astype(np.int64), numbers.astype(kind.numpy()).astype(np.int64))
        np.testing.assert_array_equal(converted(result, ir.DataType.INT32), result.astype(np.int32))


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two_are_rounded_as_onnx_says(mode, saturate):
    array = np.float32(np.ldexp([1.0, 1.25, 1.5, 1.75, 1.999], np.arange(-120, 121)[:, None])).reshape(-1)
    array = np.concatenate([array, np.float32([np.nan])])
    wanted = numpy_helper.to_float8e8m0(array, bool(saturate), mode)
    result = converted(array, POWERS, saturate=saturate, round_mode=mode)
    np.testing.assert_array_equal(result.view(np.uint8), wanted.view(np.uint8))


def test_bits_are_read_as_another_type():
    array = np.float32([[1.0, -2.5], [0.0, np.inf]])
    node = helper.make_node("BitCast", ["x"], ["y"], to=onnx.TensorProto.INT32)
    infos = [
        helper.make_tensor_value_info(name, kind, ["a", "b"])
        for name, kind in (("x", onnx.TensorProto.FLOAT), ("y", onnx.TensorProto.INT32))
    ]
    model = helper.make_model(
        helper.make_graph([node], "g", infos[:1], infos[1:]), opset_imports=[helper.make_opsetid("", 26)]
    )
    (result,) = ontrain.InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, {"x": array.T})
    np.testing.assert_array_equal(result, np.ascontiguousarray(array.T).view(np.int32))
