"""What a user reads and sets between two steps: parameters, hyper-parameters, what to fetch; and the captured graph."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from ontrain import OptionError
from ontrain.training import ORTTrainerOptions, TrainStepInfo, amp, optim
from ontrain.training.orttrainer import ORTTrainer
from tests.training.conftest import DESC, Net, batches, make_trainer, token_loss

pytestmark = pytest.mark.usefixtures("captured_once")


def test_a_parameter_that_is_set_is_trained_from_there(provider, twins):
    ours, theirs = twins
    data = batches(2)
    trainer = make_trainer(ours, optim.SGDConfig(lr=0.1), provider=provider)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for number, (ids, label) in enumerate(data):
        if number:
            value = torch.linspace(-1, 1, 64).view(8, 8)
            trainer.set_parameter("mix.weight", value)
            assert torch.equal(trainer.parameter("mix.weight"), value)
            assert torch.equal(ours.mix.weight, value)
            with torch.no_grad():
                theirs.mix.weight.copy_(value)
        stepped_loss = trainer.train_step(ids, label)[0]
        loss = token_loss(theirs(ids), label)
        np.testing.assert_allclose(stepped_loss, loss.detach(), rtol=2e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(trainer.parameter("mix.weight"), theirs.mix.weight.detach(), atol=1e-6)


@pytest.mark.parametrize("how", ["in place", "other memory"])
def test_a_parameter_changed_on_the_module_is_noticed(provider, twins, how):
    ours, _ = twins
    ((ids, label),) = batches(1)
    trainer = make_trainer(ours, optim.SGDConfig(lr=1e-12), provider=provider)
    trainer.train_step(ids, label)
    with torch.no_grad():
        if how == "in place":
            ours.mix.weight.mul_(3.0)
        else:
            ours.mix.weight.data = ours.mix.weight.detach() * 3.0
        wanted = token_loss(ours(ids), label)
    np.testing.assert_allclose(trainer.eval_step(ids, label)[0], wanted, rtol=2e-6)
    np.testing.assert_allclose(trainer.train_step(ids, label)[0], wanted, rtol=2e-6)
    assert torch.equal(trainer.parameter("mix.weight"), ours.mix.weight)


@pytest.mark.parametrize("trained", [True, False])
def test_a_parameter_that_is_frozen_or_freed_after_the_first_step_is_refused(trained):
    module, data = Net(), batches(3)
    module.mix.weight.requires_grad_(trained)
    trainer = make_trainer(module, optim.SGDConfig(lr=0.1))
    trainer.train_step(*data[0])
    before = trainer.state_dict()
    module.mix.weight.requires_grad_(not trained)
    with pytest.raises(
        OptionError, match=r"requires_grad of 'mix.weight' was set to (True|False) after the first step"
    ):
        trainer.train_step(*data[1])
    trainer.eval_step(*data[1])
    module.mix.weight.requires_grad_(trained)
    trainer.train_step(*data[2])
    assert trainer.state_dict().keys() == before.keys()


def test_a_parameter_of_another_shape_or_name_is_refused():
    model = Net()
    trainer = make_trainer(model)
    with pytest.raises(OptionError, match="run one step first"):
        trainer.set_parameter("mix.weight", torch.zeros(8, 8))
    trainer.prepare(*batches(1)[0])
    with pytest.raises(OptionError, match=r"has shape \[8, 8\], the value given \[8\]"):
        trainer.set_parameter("mix.weight", torch.zeros(8))
    with pytest.raises(OptionError, match="no parameter 'mix.weigth'(.|\n)*'mix.weight'"):
        trainer.parameter("mix.weigth")
    model.mix.bias.data = torch.zeros(9)
    with pytest.raises(OptionError, match=r"'mix.bias' was given data of shape \[9\]"):
        trainer.train_step(*batches(1)[0])


def test_hyper_parameters_that_are_set_act_from_the_next_step_on(provider, twins):
    ours, theirs = twins
    config = optim.AdamConfig(lr=0.01)
    trainer = make_trainer(ours, config, provider=provider, utils={"grad_norm_clip": False})
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.0)
    for number, (ids, label) in enumerate(batches(4)):
        if number == 2:
            config.lr, config.lambda_coef, config.beta = 0.05, 0.3, 0.9
            optimizer.param_groups[0].update(lr=0.05, weight_decay=0.3, betas=(0.9, 0.9))
        stepped_loss = trainer.train_step(ids, label)[0]
        loss = token_loss(theirs(ids), label)
        np.testing.assert_allclose(stepped_loss, loss.detach(), rtol=5e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def decay_of_a_group(trainer):
    trainer.optim_config.params[0]["lambda_coef"] = 0.5


def norm_option(trainer):
    trainer.options.utils.max_grad_norm = 1e-3


def no_clipping(trainer):
    trainer.options.utils.grad_norm_clip = False


CHANGES = {
    decay_of_a_group: {"params": [{"params": ["mix.weight"], "lambda_coef": 0.5, "alpha": 0.8}]},
    norm_option: {"max_norm_clip": 1e-3},
    no_clipping: {"max_norm_clip": math.inf},
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_set_in_a_group_or_in_the_options_acts_as_if_the_trainer_had_been_made_with_it(change):
    config = {"lr": 0.1, "params": [{"params": ["mix.weight"], "lambda_coef": 0.0, "alpha": 0.8}]}
    torch.manual_seed(5)
    first, second = batches(2)
    results = []
    for changed in (True, False):
        torch.manual_seed(6)
        trainer = make_trainer(Net(), optim.AdamConfig(**config))
        trainer.train_step(*first)
        if changed:
            change(trainer)
        else:
            state = trainer.state_dict()
            trainer = make_trainer(Net(), optim.AdamConfig(**(config | CHANGES[change])))
            trainer.load_state_dict(state)
        trainer.train_step(*second)
        results.append(trainer.parameter("mix.weight"))
    assert torch.equal(*results)
    trainer = make_trainer(Net(), optim.AdamConfig(**config))
    trainer.load_state_dict(state)
    trainer.train_step(*second)
    assert not torch.equal(trainer.parameter("mix.weight"), results[0])


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("utils", "frozen_weights", ["mix.weight"]), ("utils", "seed", 5), ("device", "mem_limit", 1000),
        ("batch", "gradient_accumulation_steps", 2), ("mixed_precision", "enabled", True),
        ("graph_transformer", "disabled_passes", ["LinearToGemm"]), ("debug", "deterministic_compute", True),
    ],
)  # fmt: skip
def test_an_option_that_a_trainer_would_not_follow_is_refused_when_it_is_set(section, name, value):
    trainer = make_trainer(Net())
    says = rf"option '{section}.{name}' is set after the trainer was made(.|\n)*make a new trainer"
    before = repr(getattr(trainer.options, section))
    of_others = {"device": {"id": "cpu"}, "debug": {"check_model_export": True}}
    with pytest.raises(OptionError, match=says):
        setattr(getattr(trainer.options, section), name, value)
    with pytest.raises(OptionError, match=says):
        trainer.options = ORTTrainerOptions(of_others | {section: of_others.get(section, {}) | {name: value}})
    assert repr(getattr(trainer.options, section)) == before
    trainer.train_step(*batches(1)[0])


def test_options_that_are_set_are_checked_as_given_ones_are():
    options = ORTTrainerOptions()
    for section, name, value, says in [
        ("utils", "max_grad_nrom", 1.0, "unknown option 'utils.max_grad_nrom'(.|\n)*'max_grad_norm'"),
        ("utils", "max_grad_norm", -1.0, "allowed: a positive number"),
        ("distributed", "pipeline_parallel_size", 2, "leave it at 1"),
        ("debug", "graph_save_paths", {}, "is a section"),
    ]:
        with pytest.raises(OptionError, match=says):
            setattr(getattr(options, section), name, value)
    options.mixed_precision.loss_scaler = amp.DynamicLossScaler()
    with pytest.raises(OptionError, match="set without mixed precision"):
        ORTTrainer(Net(), DESC, optim.AdamConfig(), token_loss, options)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (lambda: optim.AdamConfig([{"params": ["mix.wieght"], "alpha": 0.5}]), "nearest: 'mix.weight'"),
        (lambda: 0.1, "give optim.SGDConfig"),
    ],
)
def test_a_configuration_that_is_put_in_place_of_another_is_checked_as_the_first_one_was(config, says):
    trainer = make_trainer(Net())
    with pytest.raises(OptionError, match=says):
        trainer.optim_config = config()


def test_momentum_for_an_optimizer_that_had_none_is_refused_and_the_run_goes_on():
    config = optim.SGDConfig(lr=0.01)
    trainer = make_trainer(Net(), config)
    trainer.train_step(*batches(1)[0])
    config.momentum = 0.9
    with pytest.raises(OptionError, match="would need the state .*momentum_buffer, and has none"):
        trainer.train_step(*batches(1)[0])
    config.momentum = 0.0
    trainer.train_step(*batches(1)[0])


def test_fetches_choose_outputs_by_name(twins):
    trainer = make_trainer(twins[0], batch={"gradient_accumulation_steps": 2})
    ids, label = batches(1)[0]
    output, loss = trainer.train_step(ids, label, fetches=["output", "loss"])
    assert output.shape == (3, 5, 11) and loss.shape == ()
    norm, finite = trainer.train_step(ids, label, fetches=["grad_norm", "all_finite"])
    assert norm > 0 and finite
    with pytest.raises(OptionError, match="no output 'grad_norm'(.|\n)*after an update only"):
        trainer.train_step(ids, label, fetches=["grad_norm"])
    with pytest.raises(OptionError, match="no output 'los'(.|\n)*'loss'"):
        trainer.eval_step(ids, label, fetches=["los"])
    trainer.train_step_info.fetches = ["output"]
    assert trainer.eval_step(ids, label).shape == (3, 5, 11)
    assert trainer.train_step(ids, label, fetches=["loss"]).shape == ()


def test_a_run_says_where_it_stands(twins):
    trainer = make_trainer(twins[0], batch={"gradient_accumulation_steps": 2})
    for batch in batches(5):
        trainer.train_step(*batch)
    info = trainer.train_step_info
    assert (info.optimization_step, info.step, info.all_finite, info.fetches) == (2, 5, True, [])
    assert info.optimizer_config is trainer.optim_config


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"optimizer_config": "Adam"}, "optimizer_config is a str"),
        ({"all_finite": 1}, "all_finite is 1"),
        ({"fetches": "loss"}, "fetches is 'loss'"),
        ({"optimization_step": -1}, "optimization_step is -1"),
        ({"step": 1.0}, "step is 1.0"),
    ],
)
def test_a_step_info_of_the_wrong_kind_is_refused(arguments, says):
    with pytest.raises(OptionError, match=says):
        TrainStepInfo(**{"optimizer_config": optim.AdamConfig(), **arguments})


def postprocessing(function, ids_label=None):
    trainer = make_trainer(Net(), debug={}, _internal_use={"extra_postprocess": function})
    return trainer.train_step(*batches(1)[0])


def test_a_postprocessed_graph_is_trained_in_place_of_the_captured(twins):
    ours, theirs = twins

    def relu(model: onnx.ModelProto) -> onnx.ModelProto:
        for node in model.graph.node:
            node.op_type = "Relu" if node.op_type == "Tanh" else node.op_type
        return model

    class Changed(nn.Module):
        def __init__(self, net: Net) -> None:
            super().__init__()
            self.net = net

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.net.embed(ids)
            return self.net.head(self.net.norm(x + torch.relu(self.net.mix(x))))

    trainer = make_trainer(ours, debug={}, _internal_use={"extra_postprocess": relu})
    plain = make_trainer(Changed(theirs), debug={})
    for batch in batches(3):
        np.testing.assert_allclose(trainer.train_step(*batch)[0], plain.train_step(*batch)[0], rtol=1e-6)
    np.testing.assert_allclose(trainer.eval_step(*batch)[1], plain.eval_step(*batch)[1], rtol=1e-5)


def test_a_postprocessing_that_breaks_the_graph_is_told_how():
    with pytest.raises(OptionError, match="returned a str"):
        postprocessing(lambda model: "done")

    def renamed(model: onnx.ModelProto) -> None:
        model.graph.input[0].name = "tokens"

    with pytest.raises(ValueError, match="'ids'"):
        postprocessing(renamed)

    def dangling(model: onnx.ModelProto) -> None:
        model.graph.node[2].input[0] = "nowhere"

    with pytest.raises(ValueError, match="nowhere"):
        postprocessing(dangling)


def test_an_option_of_the_trainer_module_is_found_where_users_import_it():
    assert ORTTrainer.__module__ == "ontrain.training.orttrainer"
