"""What an OptimizerSpec gives each parameter, and what it refuses."""

from __future__ import annotations

import math

import pytest

from ontrain.errors import OptionError
from ontrain.optim import OptimizerSpec


def test_groups_override_the_defaults_of_their_parameters():
    spec = OptimizerSpec("AdamW", {"weight_decay": 0.1}, [({"a.bias", "b.bias"}, {"weight_decay": 0.0, "epsilon": 1})])
    assert spec.attributes_for("a.weight")["weight_decay"] == 0.1
    assert spec.attributes_for("b.bias")["weight_decay"] == 0.0
    assert spec.attributes_for("b.bias")["epsilon"] == 1.0
    assert spec.attributes_for("b.bias")["beta"] == 0.999


def test_attributes_have_the_types_that_the_function_declares():
    attributes = OptimizerSpec("AdamW", {"bias_correction": True, "weight_decay": 1}).attributes_for("w")
    assert type(attributes["bias_correction"]) is int and type(attributes["weight_decay"]) is float
    assert OptimizerSpec("Lamb").attributes_for("w")["ratio_max"] == math.inf


def test_state_names_are_torchs_per_parameter():
    assert OptimizerSpec("Lamb").state_names("fc.weight") == ("fc.weight.exp_avg", "fc.weight.exp_avg_sq")
    assert OptimizerSpec("SGD").state_names("w") == ()
    one_group = OptimizerSpec("SGD", {}, [({"w"}, {"momentum": 0.9})])
    assert one_group.state_names("w") == ("w.momentum_buffer",) and one_group.state_names("b") == ()


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(OptionError, match="'AdamW'"):
        OptimizerSpec("Adamw")
    with pytest.raises(OptionError, match=r"no hyper-parameter 'weight_deccay'\n.*'weight_decay'"):
        OptimizerSpec("AdamW", {"weight_deccay": 0.1})
    with pytest.raises(OptionError, match=r"'betta'\n.*'beta'"):
        OptimizerSpec("AdamW", {}, [({"w"}, {"betta": 0.1})])
    with pytest.raises(OptionError, match=r"'fc1.weigth'.*\n.*'fc1.weight'"):
        OptimizerSpec("AdamW", {}, [({"fc1.weigth"}, {})]).check_parameters(["fc1.weight", "fc1.bias"])


def test_a_parameter_in_two_groups_is_refused():
    with pytest.raises(OptionError, match="'b' is in two groups"):
        OptimizerSpec("SGD", {}, [({"a", "b"}, {}), ({"b"}, {})])
