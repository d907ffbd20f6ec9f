"""Small nodes in rows: equal to onnxruntime and to the same nodes one by one, where it is safe and worth a call."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

import ontrain
from ontrain.functions import cost
from ontrain.providers.torch.lowering import nodes as lowering, small_nodes
from ontrain.training import ORTTrainer, optim
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, calls_by_plan, file_of
from tests.providers.torch.lowering.small_models import chain, perceptron, rows_among_calls

TORCH = ["TorchExecutionProvider"]
BOUNDS = small_nodes.ALONE
node = helper.make_node
pytestmark = pytest.mark.usefixtures("joined")


@pytest.fixture
def alone(monkeypatch):
    """One thread, and the bounds for it."""
    monkeypatch.setattr(small_nodes, "ALONE", BOUNDS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_small_model_is_one_call_and_equals_onnxruntime(rng):
    session = assert_as_onnxruntime(*perceptron(rng), rtol=1e-6, atol=1e-6)
    assert calls(session) == ["onnxruntime_4 Gemm + 4 Softplus"]


def test_nodes_that_are_alike_are_measured_once(rng, monkeypatch):
    measured, body = [], cost._body
    monkeypatch.setattr(cost, "_body", lambda node: measured.append(node.op_type) or body(node))
    weights = {f"w{i}": rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6 for i in range(3)}
    names = ["x", "", "r0", "", "r1"]
    layers = [
        layer for i in range(3) for layer in (
            node("Conv", [names[2 * i], f"w{i}"], [f"c{i}"], pads=[1] * 4), node("Relu", [f"c{i}"], [f"r{i}"]),
        )
    ]  # fmt: skip
    fed = {"x": rng.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    assert_as_onnxruntime(file_of(layers, fed, weights, ["r2"]), fed, rtol=1e-5, atol=1e-5)
    assert measured.count("FusedConv") == 1


def test_large_products_keep_their_kernels(rng):
    model, feeds = perceptron(rng, wide=600, layers=3, rows=8)
    assert not rows_among_calls(assert_as_onnxruntime(model, feeds, rtol=1e-4, atol=1e-4))


def test_on_one_thread_larger_products_and_convolutions_stand_in_the_row(rng, alone):
    model, feeds = perceptron(rng, wide=600, layers=3, rows=8)
    assert rows_among_calls(assert_as_onnxruntime(model, feeds, rtol=1e-4, atol=1e-4)) == [
        "onnxruntime_3 Gemm + 3 Softplus"
    ]
    w = rng.standard_normal((64, 32, 3, 3)).astype(np.float32) / 17
    conv = node("Conv", ["b", "w"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2])
    model, feeds = chain(rng, [conv], shape=(2, 32, 57, 57), weights={"w": w})
    session = assert_as_onnxruntime(model, feeds, rtol=1e-3, atol=1e-3)
    assert rows_among_calls(session) == calls(session) == ["onnxruntime_Exp + Neg + Conv + Abs + Sqrt"]


def test_on_one_thread_convolutions_of_a_large_network_stand_in_the_row(rng, alone):
    w = rng.standard_normal((512, 512, 3, 3)).astype(np.float32) / 68  # 9.4 MiB, 3e8 operations
    conv = node("Conv", ["b", "w"], ["c"], pads=[1] * 4)
    model, feeds = chain(rng, [conv], shape=(1, 512, 8, 8), weights={"w": w})
    session = assert_as_onnxruntime(model, feeds, rtol=1e-3, atol=1e-3)
    assert rows_among_calls(session) == calls(session) == ["onnxruntime_Exp + Neg + Conv + Abs + Sqrt"]


def test_on_one_thread_convolutions_of_large_images_stand_in_the_row(rng, alone):
    w = rng.standard_normal((64, 32, 3, 3)).astype(np.float32) / 17
    conv = node("Conv", ["b", "w"], ["c"], pads=[1] * 4)
    model, feeds = chain(rng, [conv], shape=(1, 32, 180, 190), weights={"w": w})  # 8.7 MB, 1.3e9 operations
    session = assert_as_onnxruntime(model, feeds, rtol=1e-3, atol=1e-3)
    assert rows_among_calls(session) == calls(session) == ["onnxruntime_Exp + Neg + Conv + Abs + Sqrt"]


def test_on_one_thread_many_sizes_do_not_each_hold_large_weights(rng, alone, monkeypatch):
    monkeypatch.setattr(small_nodes, "_HELD", 16 << 20)
    w = rng.standard_normal((512, 512, 3, 3)).astype(np.float32) / 68  # 9.4 MiB
    model, feeds = chain(rng, [node("Conv", ["b", "w"], ["c"], pads=[1] * 4)], (1, 512, 4, 4), {"w": w})
    proto = onnx.load_from_string(model)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    session = ontrain.InferenceSession(proto.SerializeToString(), providers=TORCH)
    stock = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for height in (4, 5, 6, 4):
        x = rng.standard_normal((1, 512, height, 4)).astype(np.float32)
        (y,), (wanted,) = session.run(None, {"x": x}), stock.run(None, {"x": x})
        np.testing.assert_allclose(y, wanted, rtol=1e-3, atol=1e-3)
    plans = sorted(calls_by_plan(session), key=len)
    assert plans[:2] == [["onnxruntime_Exp + Neg + Conv + Abs + Sqrt"]] * 2 and len(plans) == 3 and len(plans[2]) > 1


def test_on_one_thread_the_weights_of_all_rows_have_a_bound(rng, alone):
    model, feeds = perceptron(rng, wide=900, layers=12, rows=1)  # of 3.1 MiB each
    names = calls(assert_as_onnxruntime(model, feeds, rtol=1e-3, atol=1e-4))
    assert names[0] == "onnxruntime_10 Gemm + 10 Softplus" and len(names) > 1


def test_the_weights_of_all_rows_are_few(rng):
    """Sessions hold weights in an order of their own, beside the model's."""
    model, feeds = perceptron(rng, wide=256, layers=24, rows=1)
    session = assert_as_onnxruntime(model, feeds, rtol=1e-4, atol=1e-5)
    assert calls(session)[0] == "onnxruntime_15 Gemm + 15 Softplus"  # of 263,168 bytes each


def test_a_large_node_parts_two_rows(rng):
    wide = rng.standard_normal((8, 40_000)).astype(np.float32) / 200
    tall = np.ascontiguousarray(wide.T)
    middle = [node("MatMul", ["b", "wide"], ["m"]), node("MatMul", ["m", "tall"], ["c0"]), node("Sin", ["c0"], ["c"])]
    model, feeds = chain(rng, [node("Sin", ["b"], ["b0"]), *middle][1:], weights={"wide": wide, "tall": tall})
    session = assert_as_onnxruntime(model, feeds, rtol=1e-3, atol=1e-3)
    assert rows_among_calls(session) == ["onnxruntime_Sin + Abs + Sqrt"]


def test_whole_numbers_are_not_divided_in_a_row():
    """The least number by −1 ends the process in onnxruntime."""
    a, b = np.full((2, 3), np.iinfo(np.int32).min, np.int32), np.full((2, 3), -1, np.int32)
    nodes = [node("Div", ["a", "b"], ["c"]), node("Cast", ["c"], ["d"], to=1), node("Abs", ["d"], ["e"]),
             node("Sqrt", ["e"], ["f"]), node("Neg", ["f"], ["y"])]  # fmt: skip
    session = ontrain.InferenceSession(file_of(nodes, {"a": a, "b": b}, {}, ["y"]), providers=TORCH)
    with pytest.raises(ontrain.ProviderError, match="least integer"):
        session.run(None, {"a": a, "b": b})
    (y,) = session.run(None, {"a": a, "b": -2 * b})
    np.testing.assert_allclose(y, -np.sqrt(np.full((2, 3), 2.0**30)), rtol=1e-6)
    assert rows_among_calls(session) == ["onnxruntime_Cast + Abs + Sqrt + Neg"]


def test_random_numbers_are_drawn_by_torch(rng):
    nodes = [node("Dropout", ["b", "ratio", "on"], ["c"], seed=3)]
    model, feeds = chain(rng, nodes, weights={"ratio": np.float32(0.5), "on": np.bool_(True)})
    session = ontrain.InferenceSession(model, providers=TORCH)
    a, b = (session.run(None, feeds)[0] for _ in range(2))
    assert (a == 0).any() and (a != b).any() and not rows_among_calls(session)  # two draws
    off = ontrain.InferenceSession(
        chain(rng, nodes, weights={"ratio": np.float32(0.5), "on": np.bool_(False)})[0], providers=TORCH
    )
    np.testing.assert_allclose(off.run(None, feeds)[0], np.sqrt(np.exp(feeds["x"])), rtol=1e-6)
    assert len(rows_among_calls(off)) == 1


@pytest.mark.parametrize("off", ["ONTRAIN_JOIN", "ONTRAIN_TUNE", "level"])
def test_rows_can_be_turned_off(rng, monkeypatch, off):
    model, feeds = perceptron(rng)
    options = ontrain.SessionOptions()
    if off == "level":
        options.graph_optimization_level = ontrain.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        monkeypatch.setenv(off, "0")
    session = ontrain.InferenceSession(model, options, providers=TORCH)
    session.run(None, feeds)
    assert not rows_among_calls(session)


def test_a_word_that_is_no_switch_is_refused(monkeypatch):
    monkeypatch.setenv("ONTRAIN_JOIN", "2")
    with pytest.raises(ontrain.OptionError, match="join is 2"):
        ontrain.providers.get_provider(*TORCH)


def test_a_step_that_trains_runs_node_by_node(monkeypatch):
    """Its numbers are eager PyTorch's, call by call."""

    def refused(*args):
        raise AssertionError("nodes of a step were joined")

    monkeypatch.setattr(lowering, "emit_joined", refused)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softplus(), torch.nn.Linear(8, 2))
    description = {"inputs": [("x", ["n", 8]), ("label", ["n", 2])], "outputs": [("loss", [], True), ("y", ["n", 2])]}
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=0.1), torch.nn.functional.mse_loss)
    for _ in range(2):
        loss, y = trainer.train_step(torch.randn(3, 8), torch.randn(3, 2))
        trainer.eval_step(torch.randn(2, 8), torch.randn(2, 2))
    assert torch.isfinite(loss) and y.shape == (3, 2)


def test_half_precision_runs_in_a_row_and_errs_no_more_than_onnxruntime(rng):
    """The row carries single precision through; onnxruntime rounds to halves in the middle of it once more."""
    w, bias = rng.standard_normal((8, 8)).astype(np.float16), rng.standard_normal(8).astype(np.float16)

    def middle(kind):
        return [node("Cast", ["b"], ["g"], to=10), node("Cast", ["g"], ["h"], to=kind),
                node("MatMul", ["h", "w"], ["m"]), node("Add", ["m", "bias"], ["n"]), node("Softmax", ["n"], ["s"]),
                node("Mul", ["s", "n"], ["p"]), node("Sigmoid", ["p"], ["q"]),
                node("Cast", ["q"], ["c"], to=1)]  # fmt: skip

    model, feeds = chain(rng, middle(10), weights={"w": w, "bias": bias})
    wide = {name: array.astype(np.float64) for name, array in (("w", w), ("bias", bias))}
    exact = ontrain.InferenceSession(chain(rng, middle(11), weights=wide)[0], providers=TORCH).run(None, feeds)[0]
    session = ontrain.InferenceSession(model, providers=TORCH)
    ours = session.run(None, feeds)[0]
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert np.linalg.norm(ours - exact) < np.linalg.norm(stock - exact)
    assert calls(session) == rows_among_calls(session) and len(rows_among_calls(session)) == 1


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("kind", [np.uint16, np.int16])
def test_numbers_quantised_to_16_bits_stay_in_the_row(rng, domain, kind):
    held = {"s": np.float32(1e-3), "z": kind(7), "w": rng.integers(0, 999, (8, 8), kind), "ws": np.float32(1e-3)}
    way = {"domain": domain}
    middle = [node("QuantizeLinear", ["b", "s", "z"], ["q"], **way), node("Transpose", ["q"], ["t"], perm=[1, 0]),
              node("DequantizeLinear", ["t", "s", "z"], ["d0"], **way), node("Transpose", ["d0"], ["d1"], perm=[1, 0]),
              node("DequantizeLinear", ["w", "ws", "z"], ["v"], **way), node("MatMul", ["d1", "v"], ["c"])]  # fmt: skip
    x = rng.standard_normal((2, 8)).astype(np.float32)
    around = (
        [node("Exp", ["x"], ["a"]), node("Neg", ["a"], ["b"])],
        [node("Abs", ["c"], ["e"]), node("Sqrt", ["e"], ["y"])],
    )
    file = file_of([*around[0], *middle, *around[1]], {"x": x}, held, ["y"], opset=21, microsoft=1 if domain else None)
    session = assert_as_onnxruntime(file, {"x": x}, rtol=1e-6, atol=1e-6)
    assert calls(session) == rows_among_calls(session) and len(rows_among_calls(session)) == 1


def test_whole_numbers_of_16_bits_are_added_outside_of_rows(rng):
    """What does not come of reals is arithmetic of whole numbers."""
    a, b = rng.integers(-9, 9, (2, 3), np.int16), rng.integers(-9, 9, (2, 3), np.int16)
    nodes = [node("Add", ["a", "b"], ["c"]), node("Cast", ["c"], ["d"], to=1), node("Abs", ["d"], ["e"]),
             node("Sqrt", ["e"], ["f"]), node("Neg", ["f"], ["y"])]  # fmt: skip
    session = ontrain.InferenceSession(file_of(nodes, {"a": a, "b": b}, {}, ["y"]), providers=TORCH)
    (y,) = session.run(None, {"a": a, "b": b})
    np.testing.assert_allclose(y, -np.sqrt(np.abs(a + b)), rtol=1e-6)
    assert rows_among_calls(session) == ["onnxruntime_Cast + Abs + Sqrt + Neg"]


def test_quantised_weights_and_numbers_stay_what_onnxruntime_makes_of_them(rng):
    scale, zero = np.float32(0.05), np.uint8(120)
    middle = [node("QuantizeLinear", ["b", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["c"])]
    model, feeds = chain(rng, middle, weights={"s": scale, "z": zero})
    assert len(rows_among_calls(assert_as_onnxruntime(model, feeds, rtol=1e-6, atol=1e-6))) == 1
    assert numpy_helper.to_array(onnx.load_from_string(model).graph.initializer[0]) == scale


def test_statistics_of_a_batch_are_no_part_of_a_row(rng):
    """onnxruntime's optimisation writes such statistics over the initializers, so that each run changes the next."""
    held = {"s": np.ones(3), "b": np.zeros(3), "m": np.zeros(3), "v": np.ones(3)}
    weights = {name: array.astype(np.float32) for name, array in held.items()}
    middle = [node("BatchNormalization", ["b0", "s", "b", "m", "v"], ["c", "m2", "v2"], training_mode=1)]
    x = rng.standard_normal((5, 3)).astype(np.float32)
    nodes = [node("Exp", ["x"], ["a"]), node("Neg", ["a"], ["b0"]), *middle, node("Abs", ["c"], ["d"]),
             node("Exp", ["d"], ["e"]), node("Neg", ["e"], ["y"])]  # fmt: skip
    session = ontrain.InferenceSession(file_of(nodes, {"x": x}, weights, ["y", "m2"]), providers=TORCH)
    e = -np.exp(x)
    wanted = -np.exp(np.abs((e - e.mean(0)) / np.sqrt(e.var(0) + 1e-5)))
    for _ in range(6):
        y, mean = session.run(None, {"x": x})
        np.testing.assert_allclose(y, wanted, rtol=1e-4)
        np.testing.assert_allclose(mean, 0.1 * e.mean(0), rtol=1e-4)


def test_a_normalisation_by_running_statistics_is_part_of_a_row(rng):
    weights = {name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in "sbmv"}
    middle = [node("BatchNormalization", ["b0", "s", "b", "m", "v"], ["c"], epsilon=1e-3)]
    nodes = [node("Exp", ["x"], ["a"]), node("Neg", ["a"], ["b0"]), *middle, node("Abs", ["c"], ["d"]),
             node("Sqrt", ["d"], ["y"])]  # fmt: skip
    feeds = {"x": rng.standard_normal((2, 3, 4, 4)).astype(np.float32)}
    session = assert_as_onnxruntime(file_of(nodes, feeds, weights, ["y"]), feeds, rtol=1e-5, atol=1e-5)
    assert calls(session) == rows_among_calls(session) == ["onnxruntime_Exp + Neg + BatchNormalization + Abs + Sqrt"]


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_windows_with_gaps_and_pads_by_size_are_no_part_of_a_row(rng, op_type):
    """onnxruntime resolves such pads as if there were no gaps."""
    pool = node(op_type, ["b"], ["c"], kernel_shape=[3], dilations=[2], strides=[2], auto_pad="SAME_UPPER")
    model, feeds = chain(rng, [pool], shape=(1, 2, 9))
    session = ontrain.InferenceSession(model, providers=TORCH)
    (y,) = session.run(None, feeds)
    assert not any("Pool" in row for row in rows_among_calls(session))
    x = -np.exp(feeds["x"][0])
    places = [[p for p in (i - 2, i, i + 2) if 0 <= p < 9] for i in range(0, 9, 2)]  # 5 windows, pads 2 and 2
    pooled = np.stack([(x[:, p].max(-1) if op_type == "MaxPool" else x[:, p].mean(-1)) for p in places], -1)
    np.testing.assert_allclose(y[0], np.sqrt(np.abs(pooled)), rtol=1e-5)


@pytest.mark.parametrize(("op_type", "size"), [("Sigmoid", 1 << 17), ("Softplus", 1 << 11), ("Softplus", 1 << 13)])
def test_on_one_thread_a_single_node_is_one_call_as_far_as_onnxruntime_is_as_fast(rng, alone, op_type, size):
    fed = {"x": rng.standard_normal(size).astype(np.float32)}
    model = file_of([node(op_type, ["x"], ["y"])], fed, {}, ["y"])
    session = assert_as_onnxruntime(model, fed, rtol=1e-5, atol=1e-6)
    assert (calls(session) == [f"onnxruntime_{op_type}"]) == ((op_type, size) != ("Softplus", 1 << 13))


@pytest.mark.parametrize("length", [8, 64])
def test_what_onnxruntime_is_far_behind_at_stands_in_no_row(rng, alone, length):
    scales = {"region": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    resize = node("Resize", ["b", "region", "scales"], ["c"], mode="cubic")
    model, feeds = chain(rng, [resize], shape=(1, 2, length, length), weights=scales)
    rows = rows_among_calls(assert_as_onnxruntime(model, feeds, rtol=1e-4, atol=1e-4))
    assert bool(rows) == (length == 8)
