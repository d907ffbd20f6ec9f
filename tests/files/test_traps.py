"""Guards that keep onnxruntime's process alive."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ontrain import InferenceSession
from ontrain.files.traps import guard
from tests.capture.onnx_file.models import const, node, value
from tests.fuzz.traps import INT64, file


@pytest.mark.parametrize("opset", [7, 9, 13, 18])
def test_guards_are_valid_in_every_operator_set(opset):
    body = helper.make_graph(
        [node("Div", "c d", "n"), node("Identity", "go", "g")], "body",
        [value("i", [], INT64), value("go", [], TensorProto.BOOL), value("c", [2], INT64)],
        [value("g", [], TensorProto.BOOL), value("n", [2], INT64)],
    )  # fmt: skip
    proto = onnx.ModelProto.FromString(
        file([node("Loop", "m yes x", "y", body=body)], [value("x", [2], INT64), value("d", [2], INT64)],
             [value("y", [2], INT64)], [const("m", 3), const("yes", True, np.bool_)], opset)
    )  # fmt: skip
    assert guard(proto)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    feeds = {"x": np.array([80, 9]), "d": np.array([2, 3])}
    np.testing.assert_array_equal(session.run(None, feeds)[0], [10, 0])
    with pytest.raises(Exception, match="integer division"):
        session.run(None, {**feeds, "d": np.array([2, 0])})


@pytest.mark.parametrize("opset", [10, 13, 22])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 0, 2), (0, 0), (0,), ()], ids=str)
@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_a_division_of_nothing_gives_nothing(op_type, shape, opset):
    described = [value(name, [None] * len(shape), INT64) for name in "aby"]
    content = file([node(op_type, "a b", "y")], described[:2], described[2:], [], opset)
    feeds = {"a": np.full(shape, 7), "b": np.full(shape, 2)}
    (wanted,) = onnxruntime.InferenceSession(content).run(None, feeds)
    (result,) = InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)
    np.testing.assert_array_equal(result, wanted, strict=True)


SCALES = {"xs": np.float32(0.05), "xz": np.uint8(3), "ys": np.float32(0.06), "yz": np.uint8(5)}
RESULT = {"zs": np.float32(0.07), "zz": np.uint8(9)}
STEPS = {name: np.asarray(number) for name, number in {**SCALES, **RESULT}.items()}


def choice_of_bytes(rng, constant):
    """A QLinearWhere with some operands constant, and its feeds; `doubled` is a scale that a node makes."""
    x, y = rng.integers(0, 256, (2, 4, 3)).astype(np.uint8)
    operands = {"c": rng.random((4, 3)) > 0.5, "x": x, **SCALES, "y": y, **RESULT}
    fed = {name: np.asarray(array) for name, array in operands.items() if name not in constant}
    inputs = [value(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in fed.items()]
    held = [const(name, operands[name], np.asarray(operands[name]).dtype) for name in constant]
    names = ["c", "x", "xs", "xz", "y", "ys", "yz", "doubled", "zz"]
    nodes = [
        node("Add", "zs zs", "doubled"),
        helper.make_node("QLinearWhere", names, ["z"], "chosen", domain="com.microsoft"),
    ]
    proto = onnx.ModelProto.FromString(file(nodes, inputs, [value("z", [4, 3], TensorProto.UINT8)], held, 20))
    proto.opset_import.add(domain="com.microsoft", version=1)
    return proto.SerializeToString(), fed


@pytest.mark.parametrize("constant", [[*RESULT], [*RESULT, "xs", "ys"], [*RESULT, "xz", "ys", "yz"]], ids="".join)
def test_a_choice_of_bytes_with_some_constant_scales_runs_on_ontrains_provider_only(rng, constant):
    model, fed = choice_of_bytes(rng, constant)
    with pytest.raises(ValueError, match=r"QLinearWhere 'chosen' has constant scales, and x.* from elsewhere"):
        InferenceSession(model, providers=["CPUExecutionProvider"])
    session = InferenceSession(model, providers=["TorchExecutionProvider"])
    whole, _ = choice_of_bytes(rng, [])
    wanted = onnxruntime.InferenceSession(whole).run(None, {**fed, **STEPS})[0]
    for _ in range(5):  # onnxruntime may be asked for a small model's later runs
        np.testing.assert_array_equal(session.run(None, fed)[0], wanted)


@pytest.mark.parametrize("constant", [[], [*SCALES, *RESULT], [*SCALES], ["zs"]], ids="".join)
def test_a_choice_of_bytes_with_other_scales_runs_on_onnxruntime(rng, constant):
    model, fed = choice_of_bytes(rng, constant)
    InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, fed)
