"""`OrtValue`s of strings, sequences and maps: made, fed and copied as onnxruntime has them."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ontrain

PROVIDERS = ["TorchExecutionProvider", "CPUExecutionProvider"]
X = np.arange(6, dtype=np.float32).reshape(3, 2)
tensor, listed = helper.make_tensor_value_info, helper.make_tensor_sequence_value_info
FLOAT, STRING, INT64 = TensorProto.FLOAT, TensorProto.STRING, TensorProto.INT64


def _model(nodes, inputs, outputs) -> bytes:
    graph = helper.make_graph(nodes, "values", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def _zipped(**labels) -> bytes:
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(
            STRING if "classlabels_strings" in labels else INT64, helper.make_tensor_type_proto(FLOAT, None)
        )
    )
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", **labels)
    return _model([node], [tensor("x", FLOAT, [None, 2])], [helper.make_value_info("y", maps)])


SPLIT = _model([helper.make_node("SplitToSequence", ["x"], ["y"])], [tensor("x", FLOAT, [None, 2])],
               [listed("y", FLOAT, None)])  # fmt: skip
EMPTY = _model([helper.make_node("SequenceEmpty", [], ["y"], dtype=INT64), helper.make_node("Neg", ["x"], ["n"])],
               [tensor("x", FLOAT, [None, 2])], [listed("y", INT64, None), tensor("n", FLOAT, None)])  # fmt: skip
JOIN = _model([helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)], [listed("s", FLOAT, None)],
              [tensor("y", FLOAT, None)])  # fmt: skip
TEXTS = _model([helper.make_node("Identity", ["x"], ["y"])], [tensor("x", STRING, [None])],
               [tensor("y", STRING, [None])])  # fmt: skip
CONSTANT = _model([helper.make_node("Constant", [], ["y"], value_strings=["ä", "bc"])], [],
                  [tensor("y", STRING, None)])  # fmt: skip
WORDS = _model([helper.make_node("SequenceConstruct", ["x", "x"], ["y"])], [tensor("x", STRING, [None])],
               [listed("y", STRING, None)])  # fmt: skip
KINDS = {
    "sequence": SPLIT, "empty sequence": EMPTY, "maps by number": _zipped(classlabels_int64s=[4, 7]),
    "maps by text": _zipped(classlabels_strings=["a", "ä"]),
}  # fmt: skip


def _bound(session, feeds):
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    for result in session.get_outputs():
        binding.bind_output(result.name)
    session.run_with_iobinding(binding)
    return binding


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_values_of_onnxruntimes_types(kind):
    feeds = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(X)}
    stock = onnxruntime.InferenceSession(KINDS[kind])
    session = ontrain.InferenceSession(KINDS[kind], providers=["TorchExecutionProvider"])
    wanted = [value.data_type() for value in stock.run_with_ort_values(None, feeds)]
    binding = _bound(session, feeds)
    for values in (session.run_with_ort_values(None, feeds), binding.get_outputs()):
        assert [value.data_type() for value in values] == wanted and all(value.has_value() for value in values)
    for result, other in zip(binding.copy_outputs_to_cpu(), _bound(stock, feeds).copy_outputs_to_cpu(), strict=True):
        np.testing.assert_equal(result, other)


@pytest.mark.parametrize("made_by", PROVIDERS)
@pytest.mark.parametrize("read_by", PROVIDERS)
def test_a_sequence_goes_from_session_to_session(made_by, read_by):
    (items,) = ontrain.InferenceSession(SPLIT, providers=[made_by]).run_with_ort_values(
        None, {"x": ontrain.OrtValue.ortvalue_from_numpy(X)}
    )
    session = ontrain.InferenceSession(JOIN, providers=[read_by])
    (y,) = session.run_with_ort_values(None, {"s": items})
    np.testing.assert_array_equal(y.numpy(), X)
    np.testing.assert_array_equal(_bound(session, {"s": items}).copy_outputs_to_cpu()[0], X)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_strings_are_bound_and_copied(provider):
    """onnxruntime's own `copy_outputs_to_cpu` ends the process."""
    (texts,) = ontrain.InferenceSession(CONSTANT, providers=[provider]).run_with_ort_values(None, {})
    assert texts.numpy().tolist() == ["ä", "bc"]
    for model, wanted in ((TEXTS, ["ä", "bc"]), (WORDS, [["ä", "bc"]] * 2)):
        session = ontrain.InferenceSession(model, providers=[provider])
        (result,) = _bound(session, {"x": texts}).copy_outputs_to_cpu()
        assert [item if isinstance(item, str) else item.tolist() for item in result] == wanted


def test_onnxruntimes_process_ends_where_bound_strings_are_copied(tmp_path):
    """Once it does not, ontrain need not copy them itself."""
    path = tmp_path / "texts.onnx"
    path.write_bytes(CONSTANT)
    code = (
        "import sys, onnxruntime; session = onnxruntime.InferenceSession(sys.argv[1]); binding = session.io_binding();"
        "binding.bind_output('y'); session.run_with_iobinding(binding); binding.copy_outputs_to_cpu()"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode < 0


def test_a_value_that_is_no_sequence_is_refused():
    session = ontrain.InferenceSession(JOIN, providers=["TorchExecutionProvider"])
    with pytest.raises(ontrain.InputError, match="sequence of tensors"):
        session.run_with_ort_values(None, {"s": ontrain.OrtValue.ortvalue_from_numpy(X)})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_sequence_is_fed_to_a_run_in_another_thread(provider):
    session = ontrain.InferenceSession(JOIN, providers=[provider])
    done, told = threading.Event(), []

    def take(results, user_data, error):
        told.append((results, user_data, error))
        done.set()

    session.run_async(None, {"s": [X[:1], X[1:]]}, take, 7)
    assert done.wait(60)
    ((results, user_data, error),) = told
    assert not error and user_data == 7
    np.testing.assert_array_equal(results[0], X)
