"""Optimizer configurations and learning-rate schedulers as a user of onnxruntime.training knows them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ontrain.errors import OptionError
from ontrain.training import ORTTrainer, optim
from ontrain.training.optim import AdamConfig, LambConfig, SGDConfig
from ontrain.training.optim.config import _OptimizerConfig
from ontrain.training.optim.lr_scheduler import (
    ConstantWarmupLRScheduler,
    CosineWarmupLRScheduler,
    LinearWarmupLRScheduler,
    PolyWarmupLRScheduler,
    _LRScheduler,
)


def test_defaults_are_those_of_onnxruntime_training():
    adam = AdamConfig()
    assert (adam.name, adam.lr, adam.alpha, adam.beta) == ("AdamOptimizer", 0.001, 0.9, 0.999)
    assert (adam.lambda_coef, adam.epsilon, adam.do_bias_correction) == (0.0, 1e-8, True)
    assert (adam.max_norm_clip, LambConfig().max_norm_clip, LambConfig().do_bias_correction) == (1.0, 1.0, False)
    assert adam.weight_decay_mode is AdamConfig.DecayMode.BEFORE_WEIGHT_UPDATE
    lamb = LambConfig()
    assert (lamb.name, lamb.epsilon, lamb.ratio_min, lamb.ratio_max) == ("LambOptimizer", 1e-6, -math.inf, math.inf)
    sgd = SGDConfig()
    assert (sgd.name, sgd.lr, sgd.momentum, sgd.nesterov, sgd.params) == ("SGDOptimizer", 0.001, 0.0, False, [])
    assert optim.AdamConfig is optim.config.AdamConfig


@pytest.mark.parametrize("corrected", [None, False, True])
def test_lamb_corrects_its_moments_where_it_is_told_to(corrected):
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 1, bias=False)
    weight, x = module.weight.detach().clone(), torch.randn(4, 3)
    (gradient,) = torch.autograd.grad((x @ (w := weight.clone().requires_grad_()).T).sum(), w)
    options = {} if corrected is None else {"do_bias_correction": corrected}
    config = LambConfig(lr=0.1, alpha=0.5, beta=0.75, lambda_coef=0.1, max_norm_clip=1e9, **options)
    description = {
        "inputs": [("x", ["batch", 3]), ("label", ["batch", 1])], "outputs": [("loss", [], True), ("y", ["batch", 1])]
    }  # fmt: skip
    trainer = ORTTrainer(module, description, config, lambda y, label: (y + label).sum(), {"device": {"id": "cpu"}})
    trainer.train_step(x, torch.zeros(4, 1))
    m, v = 0.5 * gradient, 0.25 * gradient**2
    if corrected:
        m, v = m / (1 - 0.5), v / (1 - 0.75)
    update = m / (v.sqrt() + 1e-6) + 0.1 * weight
    wanted = weight - 0.1 * weight.norm() / update.norm() * update
    torch.testing.assert_close(module.weight.detach(), wanted)


def test_arguments_are_positional_in_upstreams_order():
    groups = [{"params": ["w"], "alpha": 0.5}]
    adam = AdamConfig(groups, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, False, AdamConfig.DecayMode.AFTER_WEIGHT_UPDATE)
    assert (adam.lr, adam.alpha, adam.beta, adam.lambda_coef, adam.epsilon) == (0.1, 0.2, 0.3, 0.4, 0.5)
    lamb = LambConfig(groups, 0.1, 0.2, 0.3, 0.4, -1.0, 2.0, 0.5, 0.6, False)
    assert (adam.max_norm_clip, lamb.max_norm_clip) == (0.6, 0.6)
    assert (lamb.ratio_min, lamb.ratio_max, lamb.epsilon, lamb.do_bias_correction) == (-1.0, 2.0, 0.5, False)


def test_groups_show_all_hyper_parameters_and_keep_the_callers_dict():
    mine = {"params": ["fc1.weight", "fc1.bias"], "alpha": 0.5}
    config = AdamConfig([mine], lr=0.1, beta=0.9)
    (group,) = config.params
    assert (group["alpha"], group["beta"], group["lr"]) == (0.5, 0.9, 0.1)
    assert mine == {"params": ["fc1.weight", "fc1.bias"], "alpha": 0.5}


def test_a_spec_carries_everything_but_the_learning_rate():
    mode = AdamConfig.DecayMode.AFTER_WEIGHT_UPDATE
    config = AdamConfig([{"params": ["b"], "lambda_coef": 0.0}], lambda_coef=0.01, weight_decay_mode=mode)
    spec = config.spec()
    assert spec.algorithm == "AdamW"
    assert spec.attributes_for("w") == {
        "alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 0.01, "bias_correction": 1, "mode": 1,
    }  # fmt: skip
    assert spec.attributes_for("b")["weight_decay"] == 0.0
    assert LambConfig(ratio_max=10.0, do_bias_correction=False).spec().attributes_for("w") == {
        "alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "weight_decay": 0.0, "ratio_min": -math.inf, "ratio_max": 10.0,
        "bias_correction": 0,
    }  # fmt: skip
    assert SGDConfig(momentum=0.9, nesterov=True).spec().attributes_for("w") == {
        "momentum": 0.9, "dampening": 0.0, "nesterov": 1, "weight_decay": 0.0,
    }  # fmt: skip


def test_attributes_can_be_set_and_reach_the_spec():
    config = AdamConfig([{"params": ["b"], "alpha": 0.5}])
    config.lr, config.lambda_coef = 0.5, 0.25
    assert config.lr == config.defaults["lr"] == 0.5
    assert config.spec().attributes_for("b")["weight_decay"] == 0.25


def test_a_set_attribute_is_checked_as_an_argument_is():
    config = AdamConfig()
    with pytest.raises(OptionError, match="nearest: 'lambda_coef'"):
        config.lambda_coeff = 0.1
    with pytest.raises(OptionError, match="use a number from 0"):
        config.lr = -1.0
    assert config.lr == 0.001


def test_a_value_that_is_set_in_a_group_is_checked_and_reaches_the_spec():
    config = LambConfig([{"params": ["b"], "ratio_max": 4.0}], ratio_min=0.5)
    group = config.params[0]
    group["lambda_coef"] = np.float64(0.25)
    group.update(alpha=0.5)
    assert config.spec().attributes_for("b") | {"alpha": 0.5, "weight_decay": 0.25} == config.spec().attributes_for("b")
    assert config.spec().attributes_for("w")["weight_decay"] == config.lambda_coef == 0.0
    for name, value, says in [
        ("lr", 0.1, "set one learning rate for all"),
        ("max_norm_clip", 0.1, "set one norm for all"),
        ("lambda_coeff", 0.1, "nearest: 'lambda_coef'"),
        ("beta", 1.0, r"use a number in \[0, 1\)"),
        ("ratio_max", 0.25, "use ratio_min ≤ ratio_max"),
        ("params", ["w"], "make a new configuration"),
    ]:
        before = repr(config)
        with pytest.raises(OptionError, match=says):
            group[name] = value
        assert repr(config) == before
    with pytest.raises(OptionError, match="use ratio_min ≤ ratio_max"):
        config.ratio_min = 5.0  # above the group's ratio_max
    with pytest.raises(OptionError, match="use a number from 0"):
        config.defaults["lr"] = -1.0
    with pytest.raises(OptionError, match="make a new configuration"):
        config.params.append({"params": ["w"], "alpha": 0.5})
    group["ratio_min"] = 3.0
    with pytest.raises(OptionError, match="use ratio_min ≤ ratio_max"):
        group["ratio_max"] = 2.0  # above that of all, below the group's own ratio_min
    with pytest.raises(OptionError, match="use ratio_min ≤ ratio_max"):
        config.ratio_min = 5.0
        del group["ratio_min"]
    config.ratio_min = 0.5
    del group["alpha"]
    assert group["alpha"] == 0.9
    assert repr(LambConfig(config.params, ratio_min=0.5)) == repr(config)


def test_a_config_can_be_copied():
    config = LambConfig([{"params": ["b"], "alpha": 0.5}])
    other = copy.deepcopy(config)
    other.lr = 1.0
    assert config.lr == 0.001 and other.params[0]["alpha"] == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamConfig(lr=-1), "lr of AdamOptimizer is -1\n.*use a number from 0"),
        (lambda: AdamConfig(lr="fast"), "lr of AdamOptimizer is 'fast'"),
        (lambda: AdamConfig(lr=math.nan), "lr of AdamOptimizer is nan"),
        (lambda: AdamConfig(alpha=1.0), r"alpha.*\n.*\[0, 1\)"),
        (lambda: AdamConfig(beta=-0.1), r"beta.*\n.*\[0, 1\)"),
        (lambda: AdamConfig(epsilon=-1e-8), "epsilon"),
        (lambda: AdamConfig(lambda_coef=-0.1), "lambda_coef"),
        (lambda: AdamConfig(do_bias_correction=1), "use True or False"),
        (lambda: AdamConfig(weight_decay_mode=0), "use an AdamConfig.DecayMode"),
        (lambda: LambConfig(ratio_min=2.0, ratio_max=1.0), "ratio_min is above ratio_max"),
        (lambda: LambConfig(ratio_min=math.nan), "infinity included"),
        (lambda: SGDConfig(params=[{"params": ["w"], "momentum": 0.5}]), r"pass params=\[\]"),
        (lambda: SGDConfig(nesterov=True), "momentum above 0"),
        (lambda: AdamConfig([{"params": ["w"], "lr": 0.1}]), "one learning rate for all parameters"),
        (lambda: AdamConfig([{"params": ["w"], "max_norm_clip": 0.1}]), "one norm for all parameters"),
        (lambda: LambConfig(max_norm_clip=0.0), "use a positive number"),
        (lambda: AdamConfig([{"params": ["w"], "epsilom": 0.1}]), "nearest: 'epsilon'"),
        (lambda: AdamConfig([{"params": ["w"], "alpha": 2.0}]), r"alpha.*\n.*\[0, 1\)"),
        (lambda: AdamConfig([{"params": ["w"]}]), "is no parameter group"),
        (lambda: AdamConfig([{"params": "w", "alpha": 0.5}]), "is no parameter group"),
        (lambda: AdamConfig([{"alpha": 0.5}]), "is no parameter group"),
        (lambda: AdamConfig({"params": ["w"], "alpha": 0.5}), "use a list of dicts"),
        (lambda: AdamConfig([{"params": ["w"], "alpha": 0.5}, {"params": ["w"], "beta": 0.5}]), "'w' is in two groups"),
        (lambda: _OptimizerConfig("Adam", [], {"lr": 0.1}), "use one of .*AdamOptimizer"),
        (lambda: _OptimizerConfig("AdamOptimizer", [], {"alpha": 0.1}), "have no 'lr'"),
        (lambda: _OptimizerConfig("SGDOptimizer", [], {"lr": 0.1, "alpha": 0.1}), "no hyper-parameter 'alpha'"),
    ],
)
def test_what_is_out_of_range_is_refused_with_what_is_allowed(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@dataclass
class StepInfo:
    optimizer_config: AdamConfig
    optimization_step: int = 0


def rates(scheduler, steps, lr=0.5):
    info = StepInfo(AdamConfig(lr=lr))
    values = []
    for info.optimization_step in steps:
        values += scheduler._step(info)
        assert scheduler.get_last_lr() == values[-1:]
    return values


TOTAL, WARM = 20, 5  # warmup = 0.25


@pytest.mark.parametrize(
    ("scheduler", "after"),
    [
        (ConstantWarmupLRScheduler(TOTAL, 0.25), lambda t: 1.0),
        (LinearWarmupLRScheduler(TOTAL, 0.25), lambda t: max(0.0, (20 - t) / 15)),
        (CosineWarmupLRScheduler(TOTAL, warmup=0.25), lambda t: 0.5 * (1 + math.cos(math.pi * (t - 5) / 15))),
        (CosineWarmupLRScheduler(TOTAL, 1.5, 0.25), lambda t: 0.5 * (1 + math.cos(3 * math.pi * (t - 5) / 15))),
        (PolyWarmupLRScheduler(TOTAL, warmup=0.25), lambda t: ((0.5 - 1e-7) * (20 - t) / 15 + 1e-7) / 0.5),
        (PolyWarmupLRScheduler(TOTAL, 0.1, 2.0, 0.25), lambda t: (0.4 * ((20 - t) / 15) ** 2 + 0.1) / 0.5),
    ],
)
def test_schedules_follow_their_closed_form(scheduler, after):
    wanted = [0.5 * t / WARM if t < WARM else 0.5 * after(t) for t in range(TOTAL + 1)]
    assert rates(scheduler, range(TOTAL + 1)) == pytest.approx(wanted, abs=1e-12)


def test_schedules_past_the_end():
    assert rates(LinearWarmupLRScheduler(10), [11, 50]) == [0.0, 0.0]
    assert rates(PolyWarmupLRScheduler(10, lr_end=0.125), [11, 50]) == [0.125, 0.125]
    assert rates(ConstantWarmupLRScheduler(10), [11]) == [0.5]


def test_a_warmup_shorter_than_a_step_starts_at_zero_and_no_warmup_starts_at_the_full_rate():
    assert rates(LinearWarmupLRScheduler(100), [0]) == [0.0]
    assert rates(LinearWarmupLRScheduler(100, warmup=0.0), [0]) == [0.5]


def test_a_schedule_follows_a_learning_rate_set_during_training():
    scheduler, info = ConstantWarmupLRScheduler(10, 0.0), StepInfo(AdamConfig(lr=0.5))
    info.optimizer_config.lr = 0.25
    assert scheduler._step(info) == [0.25]


def test_a_users_scheduler_keeps_its_own_state():
    class Halving(_LRScheduler):
        def __init__(self):
            super().__init__()
            self.factor = 2.0

        def get_lr(self, train_step_info):
            self.factor /= 2
            return [train_step_info.optimizer_config.lr * self.factor]

    scheduler = Halving()
    assert scheduler.get_last_lr() == []
    assert rates(scheduler, [0, 1, 2]) == [0.5, 0.25, 0.125]


def test_a_scheduler_without_get_lr_is_refused():
    with pytest.raises(NotImplementedError, match="must define get_lr"):
        _LRScheduler()._step(SimpleNamespace())


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantWarmupLRScheduler(0),
        lambda: ConstantWarmupLRScheduler(10.0),
        lambda: LinearWarmupLRScheduler(10, warmup=1.0),
        lambda: LinearWarmupLRScheduler(10, warmup=-0.1),
        lambda: CosineWarmupLRScheduler(10, cycles=0.0),
        lambda: PolyWarmupLRScheduler(10, lr_end=-1.0),
        lambda: PolyWarmupLRScheduler(10, power=math.nan),
        lambda: rates(PolyWarmupLRScheduler(10, lr_end=0.5), [0]),
    ],
)
def test_scheduler_arguments_out_of_range_are_refused(make):
    with pytest.raises(OptionError):
        make()
