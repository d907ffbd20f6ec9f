"""Threads that share a session: each gets the results of its own feeds."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnxruntime
import pytest
import torch
from torch import nn

import ontrain
from ontrain.training.ortmodule import ORTModule
from tests.threads import at_once
from tests.training.conftest import PROVIDERS, Net, batches, make_trainer

pytestmark = pytest.mark.usefixtures("switching_often")

THREADS, RUNS, WIDTH = 8, 25, 8


@pytest.fixture(scope="module")
def model() -> bytes:
    """Four blocks of a product, an activation and a normalisation, over [rows, columns, WIDTH]."""
    values = np.random.default_rng(1)
    make, x, nodes, weights = onnx.helper, "x", [], []
    for layer in range(4):
        weights.append(onnx.numpy_helper.from_array(values.standard_normal((WIDTH, WIDTH), np.float32), f"w{layer}"))
        nodes += [
            make.make_node("MatMul", [x, f"w{layer}"], [f"a{layer}"]),
            make.make_node("Tanh", [f"a{layer}"], [f"b{layer}"]),
            make.make_node("Softmax", [f"b{layer}"], [f"c{layer}"], axis=1),
            make.make_node("Add", [f"c{layer}", x], [f"d{layer}"]),
        ]
        x = f"d{layer}"
    ends = (make.make_tensor_value_info(name, 1, ["rows", "columns", WIDTH]) for name in ("x", x))
    graph = make.make_graph(nodes, "blocks", *([block] for block in ends), weights)
    proto = make.make_model(graph, opset_imports=[make.make_opsetid("", 21)], ir_version=10)
    return proto.SerializeToString()


def hammer(
    session: ontrain.InferenceSession, model: bytes, sizes: list[tuple[int, int]], seed: int, runs: int = RUNS
) -> None:
    """Run a session from many threads, and compare each result with that of stock onnxruntime in one."""
    values = np.random.default_rng(seed)
    feeds = [values.standard_normal((*size, WIDTH), np.float32) for size in sizes for _ in range(2)]
    alone = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = [alone.run(None, {"x": x})[0] for x in feeds]

    def work(number: int) -> None:
        order = random.Random(seed + number)
        for _ in range(runs):
            which = order.randrange(len(feeds))
            (y,) = session.run(None, {"x": feeds[which]})
            np.testing.assert_allclose(y, expected[which], rtol=1e-4, atol=1e-5)

    at_once(*(lambda number=number: work(number) for number in range(THREADS)))


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", *PROVIDERS])
def test_each_thread_gets_the_results_of_its_own_feeds(model, provider, seed):
    session = ontrain.InferenceSession(model, providers=[provider])
    hammer(session, model, [(1 + i % 3, 2 + i) for i in range(9)], seed)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_plans_are_forgotten_and_made_again_meanwhile(model, provider, seed, monkeypatch):
    for graphs in ("graph_inference", "whole_graph"):
        monkeypatch.setattr(f"ontrain.inference.{graphs}.PLANS", 3)
    session = ontrain.InferenceSession(model, providers=[provider])
    hammer(session, model, [(1, 2 + i) for i in range(5)], seed, runs=5)


def test_sessions_of_one_file_are_planned_at_once(model, seed):
    sessions = [ontrain.InferenceSession(model, providers=[name]) for name in PROVIDERS]
    at_once(*(lambda session=session: hammer(session, model, [(2, 3), (1, 5)], seed, runs=8) for session in sessions))


def test_a_trainer_evaluates_in_many_threads(seed):
    model = Net()
    trainer = make_trainer(model)
    trainer.train_step(*batches(1)[0])
    eager = Net()
    eager.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    data = [batch for size in (2, 3) for batch in batches(2, batch=size)]
    with torch.no_grad():
        expected = [eager.eval()(ids) for ids, _ in data]

    def work(number: int) -> None:
        order = random.Random(seed + number)
        for _ in range(RUNS):
            which = order.randrange(len(data))
            _, output = trainer.eval_step(*data[which])
            torch.testing.assert_close(output, expected[which], rtol=1e-4, atol=1e-5)

    at_once(*(lambda number=number: work(number) for number in range(THREADS)))


def test_an_evaluation_beside_training_sees_the_parameters_between_two_steps():
    data, probe = batches(8), batches(1, batch=2)[0]
    states, models = [], [Net(), Net()]
    models[1].load_state_dict(models[0].state_dict())
    alone, shared = (make_trainer(model, ontrain.training.optim.SGDConfig(lr=0.5)) for model in models)
    for batch in data:
        alone.train_step(*batch)
        states.append(alone.eval_step(*probe, fetches=["output"]))
    shared.train_step(*data[0])
    seen = [shared.eval_step(*probe, fetches=["output"])]

    def train() -> None:
        for batch in data[1:]:
            shared.train_step(*batch)

    def look() -> None:
        seen.extend(shared.eval_step(*probe, fetches=["output"]) for _ in range(40))

    at_once(train, look, look)
    for output in seen:
        assert any(torch.equal(output, state) for state in states)
    torch.testing.assert_close(shared.eval_step(*probe, fetches=["output"]), states[-1], rtol=0, atol=0)


def test_threads_draw_masks_of_their_own():
    module = nn.Sequential(nn.Dropout(0.5))
    wrapped = ORTModule(module)
    x = torch.ones(64, 64)
    masks: list[torch.Tensor] = []
    at_once(*[lambda: masks.extend(wrapped(x) for _ in range(20))] * 4)
    assert len(masks) == 80 and all(set(mask.unique().tolist()) == {0.0, 2.0} for mask in masks)
    assert all(0.4 < float((mask == 0).float().mean()) < 0.6 for mask in masks)
    assert len({mask.numpy().tobytes() for mask in masks}) == len(masks)
