"""Session options of the user's: no session sees what another changes of them, and none leaves a change."""

from __future__ import annotations

import functools
import threading

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper
import onnxruntime
import pytest

import ontrain
from ontrain.inference.lending import Changes, lent
from ontrain.inference.options import EXTERNAL_FOLDER, config_entry
from tests.threads import at_once

LEVELS = onnxruntime.GraphOptimizationLevel


def written(nodes, inputs, outputs, weights):
    graph = make.make_graph(nodes, "g", inputs, outputs, weights)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


def floats(name):
    return make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3])


@pytest.fixture(scope="module")
def normalisation() -> bytes:
    """Its running statistics are read by nobody, so that it must not be optimised."""
    state = {"scale": 1.0, "bias": 0.0, "before": 0.0, "spread": 1.0}
    node = make.make_node("BatchNormalization", ["x", *state], ["y", "mean", "var"], training_mode=1)
    weights = [onnx.numpy_helper.from_array(np.full(3, v, np.float32), name) for name, v in state.items()]
    return written([node], [floats("x")], [floats("y")], weights).SerializeToString()


@pytest.fixture(scope="module")
def sum_() -> bytes:
    weight = onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")
    return written(
        [make.make_node("Add", ["x", "w"], ["y"])], [floats("x")], [floats("y")], [weight]
    ).SerializeToString()


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize("kind", [ontrain.SessionOptions, onnxruntime.SessionOptions])
def test_threads_that_open_files_with_the_same_options_leave_them_as_they_were(kind, normalisation, sum_):
    options = kind()
    options.graph_optimization_level = LEVELS.ORT_ENABLE_EXTENDED

    def work(number: int) -> None:
        for _ in range(25):
            ontrain.InferenceSession(
                sum_ if number == 3 else normalisation, options, providers=["CPUExecutionProvider"]
            )

    at_once(*(functools.partial(work, number) for number in range(4)))
    assert options.graph_optimization_level == LEVELS.ORT_ENABLE_EXTENDED


@pytest.mark.parametrize("kind", [ontrain.SessionOptions, onnxruntime.SessionOptions])
def test_no_session_opens_while_another_has_changed_its_options(kind):
    options = kind()
    entered, opened = threading.Event(), threading.Event()
    seen = []

    def another() -> None:
        entered.set()
        with lent(options, Changes()) as own:
            seen.append(own.graph_optimization_level)
            opened.set()

    thread = threading.Thread(target=another)
    with lent(options, Changes(plain=True, folder="/somewhere")) as own:
        assert own is options and own.graph_optimization_level == LEVELS.ORT_DISABLE_ALL
        assert config_entry(own, EXTERNAL_FOLDER) == "/somewhere"
        thread.start()
        assert entered.wait(60) and not opened.wait(0.2)
    thread.join(60)
    assert seen == [LEVELS.ORT_ENABLE_ALL] and config_entry(options, EXTERNAL_FOLDER) == ""


def test_sessions_that_change_nothing_open_at_the_same_time():
    options = onnxruntime.SessionOptions()
    opened = threading.Event()

    def another() -> None:
        with lent(options, Changes()):
            opened.set()

    thread = threading.Thread(target=another)
    with lent(options, Changes()):
        thread.start()
        assert opened.wait(60)
    thread.join(60)


@pytest.mark.parametrize("kind", [ontrain.SessionOptions, onnxruntime.SessionOptions])
def test_the_folder_of_one_files_weights_is_not_the_next_ones(kind, tmp_path):
    ints = [make.make_tensor_value_info(name, onnx.TensorProto.INT64, ["n"]) for name in ("a", "b", "q")]
    weight = onnx.numpy_helper.from_array(np.arange(300, dtype=np.int64), "w")
    nodes = [make.make_node("Div", ["a", "b"], ["d"]), make.make_node("Add", ["d", "w"], ["q"])]
    model = written(nodes, ints[:2], ints[2:], [weight])
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    options = kind()
    session = ontrain.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    feeds = {name: np.full(300, value, np.int64) for name, value in (("a", 7), ("b", 2))}
    np.testing.assert_array_equal(session.run(None, feeds)[0], np.arange(300) + 3)
    assert config_entry(options, EXTERNAL_FOLDER) == ""
    assert getattr(options, "config_entries", {}) == {}
