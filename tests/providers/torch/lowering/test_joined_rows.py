"""Rows of small nodes as calls of onnxruntime: what it refuses, what follows from weights, traces, errors, threads."""

from __future__ import annotations

import functools
import gc

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

import ontrain
from ontrain.internals import without_function_modes
from ontrain.providers.torch.lowering import joined_rows, small_nodes
from tests.providers.torch.lowering.files import assert_as_onnxruntime, file_of
from tests.providers.torch.lowering.small_models import chain, perceptron, rows_among_calls
from tests.threads import at_once

TORCH = ["TorchExecutionProvider"]
node = helper.make_node
pytestmark = pytest.mark.usefixtures("joined")


def test_what_onnxruntime_refuses_when_it_runs_has_other_kernels(rng, monkeypatch):
    """It takes such a convolution, and fails at the first run; the standard has it."""
    monkeypatch.setattr(small_nodes, "pads_by_size", lambda node: False)  # else it is kept out before
    w = rng.standard_normal((3, 2, 2)).astype(np.float32)
    conv = node("Conv", ["b", "w"], ["c"], auto_pad="SAME_UPPER", dilations=[2])
    model, feeds = chain(rng, [conv], shape=(1, 2, 9), weights={"w": w})
    with pytest.raises(Exception, match="Dilation not supported"):
        onnxruntime.InferenceSession(model).run(None, feeds)
    session = ontrain.InferenceSession(model, providers=TORCH)
    (y,) = session.run(None, feeds)
    assert not rows_among_calls(session)
    padded = np.pad(-np.exp(feeds["x"][0]), ((0, 0), (1, 1)))
    windows = np.stack([padded[:, i : i + 3 : 2] for i in range(9)])
    wanted = np.sqrt(np.abs(np.einsum("tck,mck->mt", windows, w)))
    np.testing.assert_allclose(y[0], wanted, rtol=1e-5, atol=1e-5)


def test_a_row_reads_small_images_whose_channels_lie_last(rng):
    """The convolution is too large for a row, and its images have their channels last where that is quicker."""
    w = rng.standard_normal((32, 256, 3, 3)).astype(np.float32) / 48
    nodes = [node("Conv", ["x", "w"], ["c"], strides=[4, 4], pads=[1] * 4), node("Softplus", ["c"], ["a"]),
             node("Neg", ["a"], ["b"]), node("Exp", ["b"], ["d"]), node("Sqrt", ["d"], ["y"])]  # fmt: skip
    feeds = {"x": rng.standard_normal((1, 256, 32, 32)).astype(np.float32)}
    session = assert_as_onnxruntime(file_of(nodes, feeds, {"w": w}, ["y"]), feeds, rtol=1e-4, atol=1e-4)
    assert rows_among_calls(session) == ["onnxruntime_Softplus + Neg + Exp + Sqrt"]


def test_what_follows_from_weights_alone_is_computed_once_for_all_plans(rng):
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in "pq"}
    nodes = [
        node("Concat", ["p", "q"], ["pq"], axis=0), node("Exp", ["pq"], ["w"]), node("Transpose", ["p"], ["t"]),
        node("MatMul", ["x", "t"], ["h"]), node("Gemm", ["h", "w"], ["y"], transB=1),
    ]  # fmt: skip
    x = rng.standard_normal((2, 8)).astype(np.float32)
    proto = onnx.load_from_string(file_of(nodes, {"x": x}, weights, ["y"]))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    options = ontrain.SessionOptions()
    options.graph_optimization_level = ontrain.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = ontrain.InferenceSession(
        proto.SerializeToString(), options, providers=TORCH, disabled_optimizers=["FoldWeights"]
    )
    for n in (2, 3, 70):
        x = rng.standard_normal((n, 8)).astype(np.float32)
        wanted = x @ weights["p"].T @ np.exp(np.concatenate([weights["p"], weights["q"]])).T
        np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-4, atol=1e-4)
    for plan in session._own._session._planner.plans.values():
        names = [call.node.op_type for call in plan.executable.current._program]
        assert not any("Concat" in name or "Exp" in name for name in names)


def test_a_row_is_traced_node_by_node(rng):
    model, feeds = perceptron(rng)
    session = ontrain.InferenceSession(model, providers=TORCH)
    (y,) = session.run(None, feeds)
    (plan,) = session._own._session._planner.plans.values()
    outputs, times = plan.executable.trace({"x": torch.from_numpy(feeds["x"])})
    assert sum("Softplus" in time.operator for time in times) == 4
    np.testing.assert_allclose(outputs["y3"].numpy(), y, rtol=1e-6)
    with without_function_modes():
        (call,) = plan.executable.current.trace({"x": torch.from_numpy(feeds["x"])})[1]
    assert call.name == ", ".join(f"layer{i}, bend{i}" for i in range(4))


def test_an_index_out_of_range_is_named(rng):
    nodes = [node("Gather", ["b", "i"], ["g"], axis=1), node("Sin", ["g"], ["c"])]
    x = rng.standard_normal((2, 8)).astype(np.float32)
    around = [node("Exp", ["x"], ["a"]), node("Neg", ["a"], ["b"])], [node("Abs", ["c"], ["y"])]
    i = np.array([1, 3, -1])
    session = ontrain.InferenceSession(
        file_of([*around[0], *nodes, *around[1]], {"x": x, "i": i}, {}, ["y"]), providers=TORCH
    )
    (y,) = session.run(None, {"x": x, "i": i})
    np.testing.assert_allclose(y, np.abs(np.sin(-np.exp(x))[:, i]), rtol=1e-5, atol=1e-6)
    with pytest.raises(ontrain.ProviderError, match="Gather"):
        session.run(None, {"x": x, "i": np.array([1, 8, 0])})


def test_threads_share_a_row_at_many_sizes(rng):
    model, _ = perceptron(rng)
    proto = onnx.load_from_string(model)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    session = ontrain.InferenceSession(proto.SerializeToString(), providers=TORCH)
    stock = onnxruntime.InferenceSession(proto.SerializeToString())
    fed = [rng.standard_normal((n, 16)).astype(np.float32) for n in range(1, 9)]
    wanted, wrong = [stock.run(None, {"x": x})[0] for x in fed], []

    def work(start):
        for turn in range(60):
            at = (start + turn) % len(fed)
            (y,) = session.run(None, {"x": fed[at]})
            if not np.allclose(y, wanted[at], rtol=1e-5, atol=1e-6):
                wrong.append(at)

    at_once(*(functools.partial(work, i) for i in range(8)))
    assert not wrong


def test_an_operand_that_is_left_out_at_the_end(rng):
    """An empty name for the bias ends the process in onnxruntime's kernel."""
    layer = node("LayerNormalization", ["b", "s", ""], ["c"])
    model, feeds = chain(rng, [layer], weights={"s": np.ones(8, np.float32)})
    session = ontrain.InferenceSession(model, providers=TORCH)
    (y,) = session.run(None, feeds)
    b = -np.exp(feeds["x"])
    normal = (b - b.mean(-1, keepdims=True)) / np.sqrt(b.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, np.sqrt(np.abs(normal)), rtol=1e-3, atol=1e-4)
    assert rows_among_calls(session)


def _of_weights(nodes, weights, x):
    """A session that folds nothing while it loads."""
    return ontrain.InferenceSession(
        file_of(nodes, {"x": x}, weights, ["y"]), providers=TORCH, disabled_optimizers=["FoldWeights"]
    )


def test_what_is_drawn_over_weights_is_drawn_in_each_run(rng):
    weights = {"w": np.ones((4, 8), np.float32), "ratio": np.float32(0.5), "on": np.bool_(True)}
    x = rng.standard_normal((4, 8)).astype(np.float32)
    nodes = [node("Dropout", ["w", "ratio", "on"], ["d"]), node("Exp", ["d"], ["e"]), node("Mul", ["x", "e"], ["y"])]
    session = _of_weights(nodes, weights, x)
    a, b = (session.run(None, {"x": x})[0] for _ in range(2))
    assert (a != b).any()


def test_whole_numbers_of_weights_are_not_divided_by_onnxruntime(rng):
    """The least number by −1 ends the process there."""
    weights = {"a": np.full(8, np.iinfo(np.int32).min, np.int32), "b": np.full(8, -1, np.int32)}
    x = rng.standard_normal((4, 8)).astype(np.float32)
    nodes = [node("Div", ["a", "b"], ["c"]), node("Cast", ["c"], ["d"], to=1), node("Mul", ["x", "d"], ["y"])]
    with pytest.raises(ontrain.OntrainError, match="least integer"):
        _of_weights(nodes, weights, x).run(None, {"x": x})


def test_large_weights_of_a_row_are_lent(rng):
    """A message with the weights would be written and read, and onnxruntime would have them a second time."""
    weights = {f"w{i}": rng.standard_normal((96, 96)).astype(np.float32) / 10 for i in range(3)}
    nodes = []
    for i in range(3):
        nodes += [node("MatMul", [f"t{i - 1}" if i else "x", f"w{i}"], [f"p{i}"]), node("Tanh", [f"p{i}"], [f"t{i}"])]
    feeds = {"x": rng.standard_normal((2, 96)).astype(np.float32)}
    known = set(joined_rows._sessions)
    session = ontrain.InferenceSession(file_of(nodes, feeds, weights, ["t2"]), providers=TORCH)
    wanted = functools.reduce(lambda x, w: np.tanh(x @ w), weights.values(), feeds["x"])
    gc.collect()
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, feeds)[0], wanted, rtol=1e-4, atol=1e-5)
    rows = [row for key, row in joined_rows._sessions.items() if key not in known]
    assert rows and all(len(row._model_bytes) < 4096 for row in rows)
