"""Halves in single precision: as near to exact numbers as onnxruntime's, and no kernels for halves."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper

from ontrain import InferenceSession
from ontrain.providers.torch.lowering import nodes as lowering
from ontrain.training import ORTTrainer, optim
from tests.providers.torch.lowering.files import assert_as_onnxruntime, calls, file_of

node = helper.make_node
HALF_ULP = {"rtol": 1e-3, "atol": 1e-3}


@pytest.fixture(autouse=True)
def joined(apart, monkeypatch):
    monkeypatch.setenv("ONTRAIN_JOIN", "1")


def _halved(layer, rng, shape, **weights):
    """A layer of halves between casts, of which onnxruntime drops the first one, and what is fed: halves, too."""
    x = rng.standard_normal(shape).astype(np.float16).astype(np.float32)
    held = {
        name: (rng.standard_normal(size) / np.prod(size[1:]) ** 0.5).astype(np.float16)
        for name, size in weights.items()
    }
    nodes = [node("Cast", ["x"], ["h"], to=10), layer, node("Cast", ["c"], ["y"], to=1)]
    return file_of(nodes, {"x": x}, held, ["y"]), {"x": x}


LAYERS = {
    "images": (node("Conv", ["h", "w", "b"], ["c"], pads=[1] * 4), (1, 64, 40, 40), {"w": (96, 64, 3, 3), "b": (96,)}),
    "sounds": (node("Conv", ["h", "w"], ["c"], dilations=[4]), (1, 80, 900), {"w": (128, 80, 5)}),
    "back": (node("ConvTranspose", ["h", "w"], ["c"], strides=[2, 2]), (1, 32, 40, 40), {"w": (32, 48, 4, 4)}),
    "LSTM": (node("LSTM", ["h", "w", "r"], ["c"], hidden_size=192), (9, 4, 96),
             {"w": (1, 768, 96), "r": (1, 768, 192)}),
    "GRU": (node("GRU", ["h", "w", "r"], ["c"], hidden_size=192, linear_before_reset=1), (9, 8, 96),
            {"w": (1, 576, 96), "r": (1, 576, 192)}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_halves_runs_carry_single(rng, name):
    layer, shape, weights = LAYERS[name]
    model, feeds = _halved(layer, rng, shape, **weights)
    session = assert_as_onnxruntime(model, feeds, **HALF_ULP)
    names = calls(session)
    # Two casts of what is fed and two of the result, and images in another order: none of weights.
    assert "sigmoid" not in names and names.count("copy_") <= 6


def test_large_numbers_overflow_at_the_end_only(rng):
    """In halves the sum of the first product would be infinite before the bias brings it back."""
    held = {"w": np.full((1, 4, 1, 1), 1e4, np.float16), "b": np.full(1, -4e4, np.float16)}
    x = np.full((1, 4, 600, 600), 2, np.float32)
    nodes = [node("Cast", ["x"], ["h"], to=10), node("Conv", ["h", "w", "b"], ["c"]), node("Cast", ["c"], ["y"], to=1)]
    session = assert_as_onnxruntime(file_of(nodes, {"x": x}, held, ["y"]), {"x": x}, rtol=0, atol=0)
    assert session.run(None, {"x": x})[0].max() == 4e4


def test_a_step_that_trains_keeps_its_halves(monkeypatch):
    widened = []
    monkeypatch.setattr(lowering, "carry_single", widened.append)
    model = torch.nn.Sequential(torch.nn.Conv1d(4, 6, 3), torch.nn.Flatten(), torch.nn.Linear(30, 2)).half()
    description = {"inputs": [("x", ["n", 4, 7]), ("z", ["n", 2])], "outputs": [("loss", [], True), ("y", ["n", 2])]}
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=0.01), torch.nn.functional.mse_loss)
    loss = trainer.train_step(torch.randn(3, 4, 7).half(), torch.randn(3, 2).half())[0]
    assert torch.isfinite(loss) and not widened


def test_without_rows_halves_are_computed_as_the_file_has_them(rng, monkeypatch):
    monkeypatch.setenv("ONTRAIN_JOIN", "0")
    layer, shape, weights = LAYERS["GRU"]
    model, feeds = _halved(layer, rng, shape, **weights)
    assert "sigmoid" in calls(assert_as_onnxruntime(model, feeds, rtol=5e-3, atol=5e-3))


def _run(model, feeds):
    return InferenceSession(model, providers=["TorchExecutionProvider"]).run(None, feeds)[0]


def test_a_chain_errs_no_more_than_onnxruntimes(rng):
    """Ten layers: each product rounded to halves would add an error of its own."""
    held = {f"w{i}": (rng.standard_normal((64, 64)) / 8).astype(np.float16) for i in range(10)}
    x = rng.standard_normal((32, 64)).astype(np.float16)
    nodes, before, exact = [], "x", x.astype(np.float64)
    for i in range(10):
        nodes += [node("MatMul", [before, f"w{i}"], [f"p{i}"]), node("Tanh", [f"p{i}"], [f"t{i}"])]
        nodes += [node("Add", [f"t{i}", before], [f"s{i}"])]
        before, exact = f"s{i}", exact + np.tanh(exact @ held[f"w{i}"].astype(np.float64))
    model = file_of(nodes, {"x": x}, held, [before], result=10)
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    ours = _run(model, {"x": x})
    errors = [np.linalg.norm(y.astype(np.float64) - exact) for y in (ours, stock)]
    assert ours.dtype == np.float16 and errors[0] <= errors[1] * 1.02


def test_a_cast_to_halves_rounds(rng):
    nodes = [node("Cast", ["x"], ["h"], to=10), node("Add", ["h", "h"], ["s"]), node("Cast", ["s"], ["y"], to=1)]
    x = np.array([2049.0, 1 / 3], np.float32)
    y = _run(file_of(nodes, {"x": x}, {}, ["y"]), {"x": x})
    np.testing.assert_array_equal(y, 2 * x.astype(np.float16).astype(np.float32))


def test_rows_of_a_table_stay_halves(rng):
    table, ids = rng.standard_normal((500, 8)).astype(np.float16), np.array([[3, 499]], np.int64)
    nodes = [node("Gather", ["table", "ids"], ["g"]), node("Mul", ["g", "g"], ["y"])]
    session = InferenceSession(
        file_of(nodes, {"ids": ids}, {"table": table}, ["y"], result=10), providers=["TorchExecutionProvider"]
    )
    (y,) = session.run(None, {"ids": ids})
    np.testing.assert_array_equal(y, table[ids] * table[ids])
    assert calls(session).count("copy_") <= 2  # the rows, and the result: not the table


def test_branches_hand_halves_in_and_out(rng):
    half = helper.make_tensor_value_info
    branch = [
        helper.make_graph([node(op_type, ["h", "h"], ["z"])], op_type, [], [half("z", 10, [4])])
        for op_type in ("Mul", "Add")
    ]
    nodes = [
        node("Exp", ["x"], ["h"]), node("If", ["c"], ["i"], then_branch=branch[0], else_branch=branch[1]),
        node("Sqrt", ["i"], ["y"]),
    ]  # fmt: skip
    x = rng.standard_normal(4).astype(np.float16)
    for c in (True, False):
        feeds = {"x": x, "c": np.array(c)}
        e = np.exp(x.astype(np.float64))
        y = _run(file_of(nodes, feeds, {}, ["y"], result=10), feeds)
        np.testing.assert_allclose(y, np.sqrt(e * e if c else e + e), rtol=2e-3)
