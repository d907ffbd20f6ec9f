"""What a step graph contains: its inputs, states, updates and their order, and what it is not built from."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ontrain.errors import GradientError, GraphError, OptionError
from ontrain.graph import (
    Builder,
    Role,
    Slot,
    StateKind,
    by_role,
    new_model,
    role_of,
    set_updates,
    slot_of,
    to_text,
    updates_of,
)
from ontrain.optim import OptimizerSpec, StepKind, build_step
from ontrain.passes import pipeline, run_passes
from tests.optim.networks import IN, NAMES, PLAIN, batch, least_squares, network, start, value

UPDATE, ACCUMULATE, LAST = StepKind.UPDATE, StepKind.ACCUMULATE, StepKind.ACCUMULATE_UPDATE


@pytest.mark.parametrize("kind", [UPDATE, LAST])
def test_a_step_that_is_not_finite_says_so(step_runner, rng, kind):
    """Who runs it may then leave the update out: it is an output, and no part of the update."""
    spec, values = OptimizerSpec("AdamW", {"weight_decay": 0.1}), start(rng)
    good, bad = batch(rng), batch(rng)
    bad["x"][0, 0] = np.inf
    model = build_step(network(), "loss", spec, trainable=NAMES, kind=kind, max_norm=1.0)
    runner = step_runner(values)
    assert runner(model, good)["all_finite"]
    runner.reset_accumulators()
    outputs = runner(model, bad, step=2)
    assert not outputs["all_finite"] and not np.isfinite(outputs["grad_norm"])
    careless = step_runner(values)
    outputs = careless(build_step(network(), "loss", spec, trainable=NAMES, kind=kind), bad)
    assert not outputs["all_finite"] and np.isnan(careless.values["w1"]).any()


@pytest.mark.parametrize("overflow", [np.inf, -np.inf, 3e38], ids=["inf", "-inf", "a norm beyond the range"])
def test_an_infinite_gradient_is_not_finite_even_where_nothing_is_nan(step_runner, overflow):
    x, w = value("x", [2], Role.INPUT), value("w", [2])
    forward = new_model([x, w], "linear")
    op = Builder(forward.graph)
    loss = op.ReduceSum(op.Mul(w, x), keepdims=0)
    loss.name = "loss"
    forward.graph.outputs.append(loss)
    step = build_step(forward, "loss", PLAIN, trainable=["w"])
    runner = step_runner({"w": np.ones(2, np.float32)})
    with np.errstate(over="ignore"):
        outputs = runner(step, {"x": np.full(2, overflow, np.float32)})
    assert np.isposinf(outputs["grad_norm"]) and not outputs["all_finite"]


@pytest.mark.parametrize("overflow", [np.inf, -np.inf, np.nan])
def test_a_statistic_that_overflows_in_half_precision_stays_as_it_was(step_runner, overflow):
    x, w = value("x", [2], Role.INPUT), value("w", [2])
    peak = value("peak", [], Role.BUFFER)
    forward = new_model([x, w, peak], "linear")
    op = Builder(forward.graph)
    loss = op.ReduceSum(op.Mul(w, x), keepdims=0)
    loss.name = "loss"
    later = op.Add(peak, op.ReduceSum(x, keepdims=0))
    forward.graph.outputs.extend([loss, set_updates(later, "peak")])
    step = build_step(forward, "loss", PLAIN, trainable=["w"], narrow=True)
    runner = step_runner({"w": np.ones(2, np.float32), "peak": np.array(1.0, np.float32)})
    runner(step, {"x": np.array([1.0, 2.0], np.float32)})
    assert runner.values["peak"] == 4
    runner(step, {"x": np.array([1.0, overflow], np.float32)})
    assert runner.values["peak"] == 4


def test_frozen_and_unreached_parameters_are_left_alone():
    model = build_step(network(unused=True), "loss", OptimizerSpec("Lamb"), trainable=["w1", "b2", "pooler"])
    updated = {updates_of(v) for v in model.graph.outputs} - {None}
    states = {f"{name}.{kind}" for name in ("w1", "b2") for kind in ("exp_avg", "exp_avg_sq")}
    assert updated == {"w1", "b2"} | states
    assert {v.name for v in by_role(model.graph, Role.STATE)} == states


def test_every_step_has_the_same_hyper_inputs_and_states_fit_their_parameters():
    for kind in StepKind:
        model = build_step(network(), "loss", OptimizerSpec("AdamW"), trainable=NAMES, kind=kind)
        hyper = by_role(model.graph, Role.HYPER)
        assert [v.name for v in hyper] == ["learning_rate", "step", "loss_scale"]
        assert all(v.dtype == ir.DataType.FLOAT and not v.shape for v in hyper)
        inputs = {v.name: v for v in model.graph.inputs}
        for name, state in inputs.items():
            owner = inputs.get(name.rsplit(".", 1)[0])
            assert role_of(state) is not Role.STATE or owner is None or state.shape == owner.shape
        resident = [updates_of(v) for v in model.graph.outputs if updates_of(v)]
        assert len(resident) == len(set(resident)) == {UPDATE: 12, ACCUMULATE: 5, LAST: 12}[kind]


@pytest.mark.parametrize("kind", StepKind)
def test_a_step_marks_what_it_keeps_and_passes_leave_the_marks(kind):
    """A parameter may be called as if it were another's gradient."""
    names = ("w", "w.exp_avg.grad_acc")
    x, *params = value("x", [2], Role.INPUT), *(value(name, [2]) for name in names)
    forward = new_model([x, *params], "forward")
    op = Builder(forward.graph)
    loss = op.ReduceSum(op.Mul(op.Mul(x, params[0]), params[1]), keepdims=0)
    loss.name = "loss"
    forward.graph.outputs.append(loss)
    step = build_step(forward, "loss", OptimizerSpec("Adam"), trainable=names, kind=kind)
    step, _ = run_passes(step, pipeline("step"), stage="step")
    expected = set()
    if kind is not ACCUMULATE:
        expected |= {Slot(name, moment) for name in names for moment in (StateKind.EXP_AVG, StateKind.EXP_AVG_SQ)}
    if kind is not UPDATE:
        expected |= {Slot(name, StateKind.GRADIENT_SUM) for name in names} | {Slot("", StateKind.LABEL_COUNT)}
    states = by_role(step.graph, Role.STATE)
    assert {slot_of(state) for state in states} == expected
    assert all(state.name == slot_of(state).name for state in states)


def test_buffer_updates_of_the_forward_graph_survive(step_runner, rng):
    forward = network()
    mean, op = value("mean", [IN], Role.BUFFER), Builder(forward.graph)
    forward.graph.inputs.append(mean)
    forward.graph.outputs.append(
        set_updates(op.Add(mean, op.ReduceMean(forward.graph.inputs[0], [0], keepdims=0)), "mean")
    )
    runner, feeds = step_runner({**start(rng), "mean": np.zeros(IN, np.float32)}), batch(rng)
    runner(build_step(forward, "loss", PLAIN, trainable=NAMES), feeds)
    np.testing.assert_allclose(runner.values["mean"], feeds["x"].mean(0), rtol=1e-5, atol=1e-6)


def test_updates_come_after_everything_that_reads_the_parameters():
    model = build_step(network(), "loss", OptimizerSpec("AdamW"), trainable=NAMES, max_norm=1.0)
    types = [node.op_type for node in model.graph]
    assert types[-4:] == ["AdamW"] * 4 and "AdamW" not in types[:-4]


def test_narrow_parameters_have_state_in_float32():
    x, w = value("x", [2], Role.INPUT, ir.DataType.FLOAT16), value("w", [2], Role.PARAMETER, ir.DataType.FLOAT16)
    forward = new_model([x, w], "half")
    op = Builder(forward.graph)
    loss = op.ReduceMean(op.Mul(w, x), keepdims=0)
    loss.name = "loss"
    forward.graph.outputs.append(loss)
    model = build_step(forward, "loss", OptimizerSpec("AdamW"), trainable=["w"], kind=LAST)
    assert {v.dtype for v in by_role(model.graph, Role.STATE)} == {ir.DataType.FLOAT}
    assert {v.dtype for v in model.graph.outputs if updates_of(v) == "w"} == {ir.DataType.FLOAT16}


def test_the_forward_model_is_left_untouched():
    forward = network()
    before = to_text(forward)
    build_step(forward, "loss", PLAIN, trainable=NAMES, kind=LAST)
    assert to_text(forward) == before


def test_what_a_step_cannot_be_built_from_is_refused():
    cases = [
        (least_squares(), "los", {}, OptionError, "nearest: 'loss'"),
        (least_squares(), "loss", {"trainable": ["v"]}, OptionError, "nearest: 'w'"),
        (least_squares(), "loss", {"trainable": ["x"]}, OptionError, "no parameter 'x'"),
        (least_squares(), "loss", {"max_norm": 0.0}, OptionError, "positive norm"),
        (network(), "scores", {"trainable": NAMES}, GraphError, r"shape \[8, 3\]"),
        (network(unused=True), "loss", {"trainable": ["pooler"]}, GradientError, "none of the 1 trainable"),
    ]
    for model, loss, options, error, message in cases:
        with pytest.raises(error, match=message):
            build_step(model, loss, PLAIN, **{"trainable": ["w"], **options})
    with pytest.raises(OptionError, match=r"'W'.*\n.*'w'"):
        build_step(least_squares(), "loss", OptimizerSpec("SGD", {}, [({"W"}, {})]), trainable=["w"])
    taken = least_squares()
    taken.graph.inputs.append(value("step", [], Role.INPUT))
    with pytest.raises(GraphError, match="'step' already"):
        build_step(taken, "loss", PLAIN, trainable=["w"])
