"""Whole training steps of a two-layer network against torch's loop."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch.nn import functional

from ontrain.functions import inline_all
from ontrain.graph import Builder, Role, by_role, new_model
from ontrain.optim import OptimizerSpec, StepKind, build_step
from tests.optim.networks import NAMES, PLAIN, batch, least_squares, network, start, value

UPDATE, ACCUMULATE, LAST = StepKind.UPDATE, StepKind.ACCUMULATE, StepKind.ACCUMULATE_UPDATE


def parameters(values):
    return {name: torch.nn.Parameter(torch.tensor(value)) for name, value in values.items()}


def torch_loss(p, feeds):
    scores = torch.tanh(torch.tensor(feeds["x"]) @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return functional.cross_entropy(scores, torch.tensor(feeds["y"]))


def assert_same(runner, wanted, tolerance=1e-6):
    for name, param in wanted.items():
        np.testing.assert_allclose(
            runner.values[name], param.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=name
        )


def two_groups(reference, p, lr, with_decay, without):
    groups = [{"params": [p["w1"], p["w2"]], **with_decay}, {"params": [p["b1"], p["b2"]], **without}]
    return reference(groups, lr=lr)


BIASES = frozenset({"b1", "b2"})
OPTIMIZERS = {
    "AdamW": (
        OptimizerSpec("AdamW", {"weight_decay": 0.1}, [(BIASES, {"weight_decay": 0.0, "beta": 0.99})]),
        lambda p, lr: two_groups(
            torch.optim.AdamW, p, lr, {"weight_decay": 0.1}, {"weight_decay": 0, "betas": (0.9, 0.99)}
        ),
    ),
    "Adam": (
        OptimizerSpec("Adam", {"weight_decay": 0.1}, [(BIASES, {"weight_decay": 0.0})]),
        lambda p, lr: two_groups(torch.optim.Adam, p, lr, {"weight_decay": 0.1}, {}),
    ),
    "SGD": (
        OptimizerSpec("SGD", {"momentum": 0.9, "dampening": 0.5}, [(BIASES, {"momentum": 0.0, "weight_decay": 0.1})]),
        lambda p, lr: two_groups(
            torch.optim.SGD, p, lr, {"momentum": 0.9, "dampening": 0.5}, {"momentum": 0, "weight_decay": 0.1}
        ),
    ),
}


@pytest.mark.parametrize("max_norm", [None, 0.25, 100.0])
@pytest.mark.parametrize("algorithm", OPTIMIZERS)
def test_twenty_steps_are_torchs(step_runner, rng, algorithm, max_norm):
    spec, reference = OPTIMIZERS[algorithm]
    model = build_step(network(), "loss", spec, trainable=NAMES, max_norm=max_norm)
    runner = step_runner(start(rng))
    p = parameters(runner.values)
    optimizer = reference(p, 0.02)
    for step in range(1, 21):
        feeds = batch(rng, ignored=step % 3)
        outputs = runner(model, feeds, step=step, lr=0.02, loss_scale=1024.0)
        optimizer.zero_grad()
        loss = torch_loss(p, feeds)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(p.values(), max_norm or float("inf"))
        optimizer.step()
        np.testing.assert_allclose(outputs["loss"], loss.item(), rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(outputs["grad_norm"], norm, rtol=2e-6, atol=1e-6)
        assert outputs["all_finite"]
    assert_same(runner, p)


def test_micro_batches_with_unequal_labels_make_the_same_step_as_one_batch(step_runner, rng):
    spec = OPTIMIZERS["AdamW"][0]
    options = {"trainable": NAMES, "max_norm": 0.25}
    more = build_step(network(), "loss", spec, kind=ACCUMULATE, **options)
    last = build_step(network(), "loss", spec, kind=LAST, **options)
    whole = build_step(network(rows=32), "loss", spec, **options)
    values = start(rng)
    parts, at_once = step_runner(values), step_runner(values)
    for step in range(1, 6):
        micro = [batch(rng, ignored=n) for n in (7, 0, 3, 5)]
        hyper = {"step": step, "loss_scale": 8.0}
        for part in micro[:-1]:
            parts(more, part, **hyper)
        outputs = parts(last, micro[-1], **hyper)
        parts.reset_accumulators()
        joined = {key: np.concatenate([part[key] for part in micro]) for key in ("x", "y")}
        wanted = at_once(whole, joined, step=step)
        np.testing.assert_allclose(outputs["grad_norm"], wanted["grad_norm"], rtol=2e-6)
    for name in at_once.values:
        np.testing.assert_allclose(parts.values[name], at_once.values[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_accumulation_changes_nothing_but_the_accumulators(step_runner, rng):
    model = build_step(network(), "loss", PLAIN, trainable=NAMES, kind=ACCUMULATE)
    values = start(rng)
    runner = step_runner(values)
    outputs = runner(model, batch(rng, ignored=3))
    assert set(outputs) == {"loss", "scores"}
    for name, before in values.items():
        np.testing.assert_array_equal(runner.values[name], before)
    assert runner.values["loss_weight_acc"] == 5
    assert all(runner.values[f"{name}.grad_acc"].any() for name in NAMES)


def test_a_micro_batch_without_labels_changes_nothing(step_runner, rng):
    more = build_step(network(), "loss", PLAIN, trainable=NAMES, kind=ACCUMULATE)
    last = build_step(network(), "loss", PLAIN, trainable=NAMES, kind=LAST)
    values, empty, full = start(rng), batch(rng, ignored=8), batch(rng)
    with_it, without = step_runner(values), step_runner(values)
    with_it(more, empty)
    for runner in (with_it, without):
        runner(last, full)
    for name in NAMES:
        np.testing.assert_array_equal(with_it.values[name], without.values[name])


def test_a_batch_without_any_label_has_no_gradient(step_runner, rng):
    values = start(rng)
    for kind in (UPDATE, LAST):
        runner = step_runner(values)
        outputs = runner(build_step(network(), "loss", PLAIN, trainable=NAMES, kind=kind), batch(rng, ignored=8))
        assert outputs["grad_norm"] == 0 and outputs["all_finite"]
        np.testing.assert_array_equal(runner.values["w1"], values["w1"])


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_loss_of_one_element_need_not_be_a_scalar(step_runner, shape):
    runner = step_runner({"w": np.array([1, 2], np.float32)})
    runner(build_step(least_squares(shape), "loss", PLAIN, trainable=["w"]), {"x": np.array([3, 1], np.float32)})
    np.testing.assert_allclose(runner.values["w"], [1 - 0.09, 2 - 0.02], rtol=1e-6)


def test_a_tied_weight_gets_both_gradients(step_runner):
    x, w = value("x", [2, 2], Role.INPUT), value("w", [2, 2])
    model = new_model([x, w], "tied")
    op = Builder(model.graph)
    loss = op.ReduceMean(op.Tanh(op.MatMul(op.MatMul(x, w), w)), keepdims=0)
    loss.name = "loss"
    model.graph.outputs.append(loss)
    first, feed = np.array([[1, 2], [3, 4]], np.float32) / 10, np.array([[1, -1], [2, 0]], np.float32)
    runner = step_runner({"w": first})
    runner(build_step(model, "loss", PLAIN, trainable=["w"]), {"x": feed}, lr=1.0)
    p = torch.nn.Parameter(torch.tensor(first))
    (torch.tensor(feed) @ p @ p).tanh().mean().backward()
    np.testing.assert_allclose(runner.values["w"], first - p.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["SGD", "Adam", "AdamW", "Lamb"])
def test_an_inlined_step_runs_in_stock_onnxruntime(step_runner, rng, algorithm):
    ort = pytest.importorskip("onnxruntime")
    spec = OptimizerSpec(algorithm, {"weight_decay": 0.1, **({"momentum": 0.9} if algorithm == "SGD" else {})})
    model = build_step(network(), "loss", spec, trainable=NAMES, max_norm=0.5)
    runner, feeds = step_runner(start(rng)), batch(rng)
    fed = {v.name: np.zeros(v.shape.numpy(), np.float32) for v in by_role(model.graph, Role.STATE)}
    fed |= {**runner.values, **feeds}
    fed |= {"learning_rate": 0.01, "step": 1, "loss_scale": 1}
    fed = {name: np.asarray(v, np.int64 if name == "y" else np.float32) for name, v in fed.items()}
    session = ort.InferenceSession(
        ir.to_proto(inline_all(model)).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs = dict(zip([v.name for v in model.graph.outputs], session.run(None, fed), strict=True))
    runner(model, feeds)
    for name in NAMES:
        np.testing.assert_allclose(outputs[f"{name}.next"], runner.values[name], rtol=1e-5, atol=1e-6)
