"""The first trainer API: the getting-started sample as printed, and what else older programs call."""

from __future__ import annotations

import copy
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import ontrain
from ontrain import CheckpointError, InferenceSession, InputError, OptionError
from ontrain.capi import _pybind_state
from ontrain.capi.description import fitted
from ontrain.capi.optimizer import optimizer_config
from ontrain.capi.ort_trainer import (
    IODescription,
    LossScaler,
    ModelDescription,
    ORTTrainer,
    generate_sample,
    load_checkpoint,
    save_checkpoint,
)
from ontrain.training import amp, optim
from tests.training.conftest import Net, batches, make_trainer, token_loss

pytestmark = pytest.mark.usefixtures("captured_once")

RATE = IODescription("Learning_Rate", [1], torch.float32)


def description(dims: Any = ("batch", "length")) -> ModelDescription:
    inputs = [IODescription(name, list(dims), torch.int64, num_classes=11) for name in ("ids", "label")]
    outputs = [IODescription("loss", [], torch.float32), IODescription("output", [*dims, 11], torch.float32)]
    return ModelDescription(inputs, outputs)


def first_trainer(model: nn.Module, optimizer: str = "SGDOptimizer", attributes: Any = None, **more: Any) -> ORTTrainer:
    return ORTTrainer(model, token_loss, description(), optimizer, attributes, RATE, "cpu", **more)


def rate(value: float) -> torch.Tensor:
    return torch.tensor([value])


# The code of the getting-started sample's description, as printed.
SAMPLE = """
def loss_with_flat_output(output, target):
    output = output.view(-1, ntokens)
    return criterion(output, target)

def model_description():
    input_desc = IODescription('src', [bptt, batch_size], torch.float32)
    label_desc = IODescription('label', [bptt, batch_size, ntokens], torch.int64)
    loss_desc = IODescription('loss', [], torch.float32)
    output_desc = IODescription('output', [bptt, batch_size, ntokens], torch.float32)
    return ModelDescription([input_desc, label_desc], [loss_desc, output_desc])

def learning_rate_description():
    return IODescription('Learning_Rate', [lr,], torch.float32)

trainer = ORTTrainer(model,                       # model
                     loss_with_flat_output,       # loss function
                     model_description(),         # model description
                     "SGDOptimizer",              # optimizer name
                     None,                        # optimizer attributes
                     learning_rate_description(), # learning rate description
                     device,                      # device
                     _opset_version=12)           # opset version
"""


def getting_started_model() -> nn.Module:
    path = Path(__file__).parents[2] / "recipes" / "getting_started" / "model.py"
    spec = importlib.util.spec_from_file_location("getting_started_model_of_capi", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.TransformerModel(23, 8, 2, 12, 2, 0.0)


def test_the_getting_started_sample_runs_as_printed_and_trains_as_eager(tmp_path):
    torch.manual_seed(0)
    model = getting_started_model()
    twin = copy.deepcopy(model)
    scope = {
        "torch": torch, "IODescription": IODescription, "ModelDescription": ModelDescription, "ORTTrainer": ORTTrainer,
        "ntokens": 23, "bptt": 7, "batch_size": 4, "lr": 0.5, "criterion": nn.CrossEntropyLoss(), "model": model,
        "device": torch.device("cpu"),
    }  # fmt: skip
    exec(SAMPLE, scope)
    trainer, optimizer = scope["trainer"], torch.optim.SGD(twin.parameters(), lr=0.5)
    for number in range(5):
        tokens = torch.randint(0, 23, (8, 4))
        data, targets = tokens[:-1], tokens[1:].reshape(-1)
        if number == 0:
            # The description calls tokens float32 and gives the label a dimension too many.
            with pytest.warns(UserWarning) as seen:
                loss, output = trainer.train_step(data, targets, rate(0.5))
            told = [str(warning.message) for warning in seen if "IODescription" in str(warning.message)]
            assert "'src' is described as torch.float32 [7, 4]" in told[0] and "torch.int64 [7, 4]" in told[0]
            assert "'label' is described as torch.int64 [7, 4, 23]" in told[1] and "torch.int64 [28]" in told[1]
        else:
            loss, output = trainer.train_step(data, targets, rate(0.5))
        wanted = nn.functional.cross_entropy(twin(data).view(-1, 23), targets)
        np.testing.assert_allclose(loss, wanted.detach(), rtol=2e-6)
        assert output.shape == (7, 4, 23)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
    trainer.save_as_onnx(tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").opset_import[0].version == 12
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["src"]
    (result,) = session.run(["output"], {"src": data.numpy()})
    np.testing.assert_allclose(result, trainer.eval_step(data, fetches=["output"]), atol=1e-5)
    np.testing.assert_allclose(result, twin.eval()(data).detach(), atol=1e-5)


def test_the_learning_rate_comes_by_position_by_name_in_a_list_or_from_a_function(twins):
    ours, _ = twins
    ((ids, label),) = batches(1)
    # One rate for all ways, so that three trainers with equal weights must agree to the bit.
    ways = {
        "position": lambda t: t.train_step(ids, label, rate(0.25)),
        "list": lambda t: t.train_step([ids, label, rate(0.25)]),
        "names": lambda t: t.train_step(ids, label=label, Learning_Rate=rate(0.25)),
        "the first by name": lambda t: t.train_step(label, rate(0.25), ids=ids),
        "all names": lambda t: t(label=label, ids=ids, Learning_Rate=0.25),
    }
    states = {}
    for name, way in ways.items():
        trainer = first_trainer(copy.deepcopy(ours))
        way(trainer)
        states[name] = trainer.state_dict()
    seen = []
    trainer = first_trainer(copy.deepcopy(ours), get_lr_this_step=lambda step: seen.append(step) or 0.25, global_step=7)
    trainer.train_step(ids, label)
    states["function"] = trainer.state_dict()
    assert seen == [7] and trainer.global_step_ == 8
    for name, state in states.items():
        assert all(torch.equal(tensor, states["position"][key]) for key, tensor in state.items()), name
    plain = make_trainer(ours, optim.SGDConfig(lr=0.25))
    plain.train_step(ids, label)
    assert torch.equal(states["list"]["mix.weight"], plain.parameter("mix.weight"))


def test_attributes_are_mapped_by_parameter_name(twins):
    ours, theirs = twins

    def attributes(name: str) -> dict[str, float]:
        decay = 0.0 if "bias" in name or "norm" in name else 0.1
        return {"alpha": 0.8, "beta": 0.95, "lambda": decay, "epsilon": 1e-6}

    trainer = first_trainer(ours, "LambOptimizer", attributes)
    no_decay = [name for name, _ in theirs.named_parameters() if "bias" in name or "norm" in name]
    config = optim.LambConfig([{"params": no_decay, "lambda_coef": 0.0}], lr=0.02, alpha=0.8, beta=0.95,
                              lambda_coef=0.1, epsilon=1e-6, do_bias_correction=True)  # fmt: skip
    later = make_trainer(theirs, config)
    for ids, label in batches(4):
        loss, wanted = trainer.train_step(ids, label, rate(0.02))[0], later.train_step(ids, label)[0]
        assert float(loss) == float(wanted)


def test_a_flag_may_be_a_number():
    for value in (0, 1):
        config = optimizer_config("LambOptimizer", lambda _, value=value: {"do_bias_correction": value}, ["weight"])
        assert config.params[0]["do_bias_correction"] is bool(value)


def test_a_batch_that_fits_names_of_dimensions_is_not_told_of(twins):
    inputs = [IODescription(name, ["batch", "length"], torch.int64) for name in ("ids", "label")]
    described = ModelDescription(inputs, [IODescription("loss", [], torch.float32)])
    ((ids, label),) = batches(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted(described, {"ids": ids, "label": label}).inputs_ == inputs


def test_accumulation_counts_updates(twins):
    trainer = first_trainer(twins[0], gradient_accumulation_steps=2)
    for ids, label in batches(5):
        trainer.train_step(ids, label, rate(0.1))
    assert (trainer.current_step, trainer.global_step_) == (5, 2)


def test_a_call_trains_or_evaluates(twins):
    trainer = first_trainer(twins[0])
    ((ids, label),) = batches(1)
    trainer(ids, label, rate(0.1))
    before = trainer.state_dict()
    trainer.eval()
    loss, output = trainer(ids, label)
    only = trainer(ids)  # without the label there is no loss
    assert torch.equal(only, output)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state_dict().items())
    trainer.train()
    assert float(trainer(ids, label, rate(0.1), fetches=["loss"])) == pytest.approx(float(loss), rel=1e-6)
    with pytest.raises(InputError, match="'ids' is missing"):
        trainer.eval_step(label=label)


def test_mixed_precision_takes_the_scale_and_tells_whether_all_was_finite(twins):
    trainer = first_trainer(twins[0], "AdamOptimizer", use_mixed_precision=True, gradient_accumulation_steps=2)
    scaler = LossScaler(trainer.loss_scale_input_name, True, 2.0**30, up_scale_window=2, max_loss_scale=2.0**30)
    ((ids, label),) = batches(1)
    finite = []
    for step in range(1, 41):
        result = trainer.train_step(ids, label, rate(0.01), torch.tensor([scaler.loss_scale_]))
        assert len(result) == (3 if step % 2 == 0 else 2)
        if step % 2 == 0:
            finite.append(bool(result[-1]))
            scaler.update_loss_scale(result[-1])
    first = finite.index(True)
    assert 5 < first < 20 and not any(finite[:first]) and trainer.global_step_ == sum(finite)
    assert trainer.train_step(ids, label, Learning_Rate=0.01, loss_scale=scaler.loss_scale_)[0].isfinite()


def test_mixed_precision_with_a_scaler_inside_needs_no_scale(twins):
    scaler = LossScaler("scale", True, loss_scale=256.0, up_scale_window=2)
    trainer = first_trainer(twins[0], use_mixed_precision=True, loss_scaler=scaler, get_lr_this_step=lambda step: 0.1)
    for ids, label in batches(4):
        assert len(trainer.train_step(ids, label)) == 2
    assert scaler.loss_scale_ == 1024.0 and trainer.loss_scale_input_name == "scale"


def test_a_scaler_follows_upstreams_rule():
    scaler = LossScaler("scale", True, loss_scale=4.0, up_scale_window=2, max_loss_scale=8.0)
    scales = []
    for finite in (1, 1, torch.tensor([True]), True, False, 0, 0, 0):
        scaler.update_loss_scale(finite)
        scales.append(scaler.loss_scale_)
    assert scales == [4.0, 8.0, 8.0, 8.0, 4.0, 2.0, 1.0, 1.0]
    scaler.reset()
    assert scaler.loss_scale_ == 4.0
    fixed = LossScaler("scale", False)
    fixed.update_loss_scale(False)
    assert fixed.loss_scale_ == 65536.0


def test_a_flat_state_resumes_the_run(twins):
    ours, theirs = twins
    data = batches(6)
    first = first_trainer(ours, "AdamOptimizer", get_lr_this_step=lambda step: 0.01 * (step + 1))
    for ids, label in data[:3]:
        first.train_step(ids, label)
    state = first.state_dict()
    assert {"mix.weight", "Moment_1_mix.weight", "Moment_2_mix.weight", "Step"} <= set(state)
    assert set(first.state_dict(include_optimizer_state=False)) == {
        n for n in state if n in dict(ours.named_parameters())
    }
    second = first_trainer(theirs, "AdamOptimizer", get_lr_this_step=lambda step: 0.01 * (step + 1), global_step=3)
    second.load_state_dict(state)
    for ids, label in data[3:]:
        assert float(first.train_step(ids, label)[0]) == float(second.train_step(ids, label)[0])
    broken = {**state, "mix.weight": torch.zeros(3)}
    before = second.state_dict()
    with pytest.raises(CheckpointError, match="'mix.weight' has shape"):
        second.load_state_dict(broken)
    assert all(torch.equal(tensor, before[name]) for name, tensor in second.state_dict().items())


def test_a_flat_state_has_loss_scale_and_place_in_an_accumulation(twins):
    def prepared(model):
        scaler = LossScaler("scale", True, loss_scale=64.0, up_scale_window=2)
        return first_trainer(
            model, "AdamOptimizer", gradient_accumulation_steps=2, use_mixed_precision=True, loss_scaler=scaler,
            get_lr_this_step=lambda step: 0.01 * (step + 1),
        ), scaler  # fmt: skip

    ours, theirs = twins
    data = batches(14)
    (first, scale), (second, loaded) = prepared(ours), prepared(theirs)
    for ids, label in data[:7]:
        first.train_step(ids, label)
    assert scale.loss_scale_ == 128.0
    second.load_state_dict(first.state_dict())
    for ids, label in data[7:]:
        assert float(first.train_step(ids, label)[0]) == float(second.train_step(ids, label)[0])
        assert (scale.loss_scale_, first.global_step_) == (loaded.loss_scale_, second.global_step_)
    assert (scale.loss_scale_, first.global_step_, first.current_step) == (512.0, 7, 14)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_all_finite_is_told_with_the_update_of_a_loaded_state(twins):
    first, second = (first_trainer(model, gradient_accumulation_steps=2, use_mixed_precision=True) for model in twins)
    (ids, label), *_ = batches(1)
    assert len(first.train_step(ids, label, rate(0.1), torch.tensor([8.0]))) == 2
    second.load_state_dict(first.state_dict())
    assert len(second.train_step(ids, label, rate(0.1), torch.tensor([8.0]))) == 3


def test_a_flat_state_of_another_optimizer_or_with_damage_is_refused(twins):
    (ids, label), *_ = batches(1)
    first, second = first_trainer(twins[0], "LambOptimizer"), first_trainer(twins[1], "AdamOptimizer")
    for trainer in (first, second):
        trainer.train_step(ids, label, rate(0.1))
    before = second.state_dict()
    with pytest.raises(CheckpointError, match="of optimizer Lamb, this trainer uses AdamW"):
        second.load_state_dict(first.state_dict())
    with pytest.raises(CheckpointError, match="'Step' of the state is"):
        second.load_state_dict({**before, "Step": torch.ones(3)})
    with pytest.raises(CheckpointError, match="the state is a int"):
        second.load_state_dict(3)
    with pytest.raises(CheckpointError, match="'Run_State' of the state is damaged"):
        second.load_state_dict({**before, "Run_State": before["Run_State"][3:]})
    assert all(torch.equal(tensor, before[name]) for name, tensor in second.state_dict().items())


def test_a_saved_checkpoint_resumes_the_run(twins, tmp_path):
    ours, theirs = twins
    data = batches(4)
    first, second = (
        first_trainer(model, "LambOptimizer", get_lr_this_step=lambda step: 0.01) for model in (ours, theirs)
    )
    for ids, label in data[:2]:
        first.train_step(ids, label)
    save_checkpoint(first, tmp_path, "best", {"epoch": 2})
    assert load_checkpoint(second, tmp_path, "best") == {"epoch": 2}
    for ids, label in data[2:]:
        assert float(first.train_step(ids, label)[0]) == float(second.train_step(ids, label)[0])


def test_frozen_weights_stay_and_a_postprocessed_graph_is_trained(twins):
    seen = []
    trainer = first_trainer(
        twins[0], frozen_weights=["mix.weight"], postprocess_model=lambda model: seen.append(len(model.graph.node))
    )
    before = twins[0].mix.weight.detach().clone()
    for ids, label in batches(2):
        trainer.train_step(ids, label, rate(0.1))
    assert seen and torch.equal(trainer.state_dict()["mix.weight"], before)


def test_a_sample_has_the_described_shape_and_range():
    sample = generate_sample(IODescription("ids", ["batch", 40], torch.int64, num_classes=5))
    assert sample.shape == (1, 40) and sample.dtype == torch.int64 and set(sample.unique().tolist()) == set(range(5))
    assert generate_sample(IODescription("x", [3], torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: first_trainer(Net(), "Lamb"), "no optimizer 'Lamb'"),
        (lambda: first_trainer(Net(), "LambOptimizer", lambda name: {"lamda": 0}), "attribute 'lamda'(.|\n)*'lambda'"),
        (lambda: first_trainer(Net(), "LambOptimizer", {"alpha": 0.9}), "map_optimizer_attributes is a dict"),
        (lambda: first_trainer(Net(), "LambOptimizer", lambda name: 0.1), "returned a float"),
        (lambda: first_trainer(Net(), world_size=2), "distributed.world_size"),
        (lambda: first_trainer(Net(), frozen_weights=["mix"]), "'mix', which is no parameter"),
        (lambda: ORTTrainer(Net(), token_loss, {}, "SGDOptimizer", None, RATE, "cpu"), "model_desc is a dict"),
        (lambda: ORTTrainer(Net(), token_loss, description(), "SGDOptimizer", None, "lr", "cpu"), "is a str"),
        (lambda: first_trainer(Net(), frozen_weights="mix.weight"), "frozen_weights is one string"),
        (lambda: first_trainer(Net(), postprocess_model="add_name"), "postprocess_model is 'add_name'"),
        (lambda: first_trainer(Net(), _extra_postprocess=3), "_extra_postprocess is 3"),
        (lambda: first_trainer(Net(), deepspeed_zero_stage="one"), "stage' is 'one'"),
        (lambda: first_trainer(Net(), global_step="5"), "global_step is '5'"),
        (lambda: first_trainer(Net(), global_step=-1), "global_step is -1"),
        (lambda: save_checkpoint(None, "folder"), "model is a NoneType"),
        (lambda: load_checkpoint(Net(), "folder"), "model is a Net"),
        (lambda: ModelDescription(3, [RATE]), "description of inputs is a int"),
        (lambda: generate_sample(IODescription("ids", [2], torch.int64)), "torch.int64 without num_classes"),
        (lambda: first_trainer(Net(), loss_scaler=amp.DynamicLossScaler()), "loss_scaler is a DynamicLossScaler"),
        (lambda: first_trainer(Net(), get_lr_this_step=0.1), "get_lr_this_step is 0.1"),
        (lambda: ORTTrainer(Net(), token_loss, description(), "SGDOptimizer", None, RATE, "gpu"), "device is 'gpu'"),
        (lambda: IODescription("x", 3), "shape of 'x' is 3"),
        (lambda: ModelDescription([], []), "without inputs or outputs"),
        (lambda: _pybind_state.set_seed(-1), "seed is -1"),
        (lambda: ontrain.set_seed(1 << 63), "at most 63 bits"),
        (lambda: _pybind_state.set_cuda_device_id(99), "no CUDA device 99"),
        (lambda: _pybind_state.set_arena_extend_strategy(_pybind_state.ArenaExtendStrategy.kNextPowerOfTwo), "arena"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(OptionError, match=says):
        make()


def test_a_step_without_its_learning_rate_or_with_too_much_is_told_the_order(twins):
    trainer = first_trainer(twins[0])
    ((ids, label),) = batches(1)
    with pytest.raises(InputError, match="given no 'Learning_Rate'"):
        trainer.train_step(ids, label)
    with pytest.raises(InputError, match="4 inputs were given by position(.|\n)*ids, label, Learning_Rate"):
        trainer.train_step(ids, label, rate(0.1), rate(0.1))
    with pytest.raises(InputError, match=r"'Learning_Rate' has shape \[2\]"):
        trainer.train_step(ids, label, torch.zeros(2))
    with pytest.raises(InputError, match="no input 'lable'"):
        trainer.train_step(ids, lable=label, Learning_Rate=0.1)


def test_the_seed_of_the_process_is_that_of_the_dropout():
    def losses(seed: int) -> list[float]:
        _pybind_state.set_seed(seed)
        torch.manual_seed(0)
        trainer = first_trainer(Net(dropout=0.5))
        return [float(trainer.train_step(ids, label, rate(0.0))[0]) for ids, label in batches(2)]

    try:
        assert losses(1) == losses(1) != losses(2)
    finally:
        _pybind_state.set_seed(0)


def test_all_arguments_of_the_last_release_are_taken(twins, tmp_path):
    ours, theirs = twins
    plain = first_trainer(theirs, "LambOptimizer")
    trainer = first_trainer(
        ours, "LambOptimizer", _enable_internal_postprocess=False, use_memory_efficient_gradient=True,
        enable_adasum=False, optimized_model_filepath=str(tmp_path / "step.onnx"),
        loss_scaler=LossScaler("loss_scale", True),
    )  # fmt: skip
    for ids, label in batches(2):  # in float32 there is no scale to give, and none to adapt
        assert float(trainer.train_step(ids, label, rate(0.1))[0]) == float(plain.train_step(ids, label, rate(0.1))[0])
    assert trainer.loss_scaler_.loss_scale_ == 2.0**16
    written = onnx.load(tmp_path / "step.onnx")
    assert "mix.weight" in {value.name for value in written.graph.input}
    with pytest.raises(OptionError, match="use_memory_efficient_gradient"):
        first_trainer(ours, use_memory_efficient_gradient="yes")


def test_the_later_trainers_state_is_taken_too(twins):
    ours, theirs = twins
    first, second = first_trainer(ours, "AdamOptimizer"), first_trainer(theirs, "AdamOptimizer")
    ids, label = batches(1)[0]
    first.train_step(ids, label, rate(0.1))
    second.load_state_dict(first.later_trainer.state_dict())
    assert float(first.train_step(ids, label, rate(0.1))[0]) == float(second.train_step(ids, label, rate(0.1))[0])


def test_the_providers_that_are_named_run_a_file(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "negative", values[:1], values[1:])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    session = InferenceSession(path, providers=_pybind_state.get_available_providers())
    np.testing.assert_array_equal(session.run(None, {"x": np.array([1, -2], np.float32)})[0], [-1, 2])
