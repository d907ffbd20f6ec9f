"""What does not fit is refused by name and changes nothing; what may differ between two trainers does not matter."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ontrain import CheckpointError
from ontrain.checkpoint import read_checkpoint
from ontrain.training import amp, optim
from tests.training.conftest import Net, batches, make_trainer

pytestmark = pytest.mark.usefixtures("captured_once")


def trained(steps: int, accumulation: int = 1, model: Any = None, config: Any = None, **options: Any) -> Any:
    torch.manual_seed(1)
    options = {"batch": {"gradient_accumulation_steps": accumulation}, **options}
    trainer = make_trainer(model or Net(), config or optim.AdamConfig(lr=0.01), **options)
    for batch in batches(steps):
        trainer.train_step(*batch)
    return trainer


def flat(state: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(state, dict):
        return {path: state}
    return {name: value for key, branch in state.items() for name, value in flat(branch, f"{path}/{key}").items()}


def assert_same(first: Any, second: Any) -> None:
    a, b = flat(first), flat(second)
    assert set(a) == set(b)
    for name, value in a.items():
        assert torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name], name


@pytest.fixture(scope="module")
def trainer() -> Any:
    scheduler = optim.lr_scheduler.LinearWarmupLRScheduler(total_steps=9)
    half = {"enabled": True, "loss_scaler": amp.DynamicLossScaler(loss_scale=64.0)}
    return trained(5, accumulation=2, lr_scheduler=scheduler, mixed_precision=half)


def test_a_state_is_complete_and_its_plain_part_is_json(trainer):
    state = trainer.state_dict()
    plain = {name: value for name, value in state.items() if name not in ("model", "optimizer")}
    assert json.loads(json.dumps(plain)) == plain
    assert state["train_step_info"] == {"optimization_step": 2, "step": 5, "pending": 1, "seed": 0}
    assert state["loss_scaler"]["loss_scale"] == 64.0 and "lr_scheduler" in state
    assert set(state["optimizer"]["mix.weight"]) == {"Moment_1", "Moment_2", "Gradient"}
    assert float(state["optimizer"]["loss_weight_acc"]["Gradient"]) > 0


CHANGES = {
    "a counter that is text": (["train_step_info", "step"], "ten", "train_step_info.step"),
    "a negative counter": (["train_step_info", "optimization_step"], -1, "optimization_step of the state is -1"),
    "more waiting than fits": (["train_step_info", "pending"], 2, "2 micro-batches(.|\n)*updates after 2"),
    "a scale that is text": (["loss_scaler", "loss_scale"], "much", "loss_scaler.loss_scale"),
    "a scaler with other fields": (["loss_scaler", "growth"], 2, "growth"),
    "a scheduler that is none": (["lr_scheduler"], 3, "does not fit"),
    "a scheduler with other fields": (["lr_scheduler", "shape"], 2, "shape"),
    "counters that are a list": (["train_step_info"], [1], "'train_step_info' of the state is a list"),
    "options that are a list": (["trainer_options"], [1], "'trainer_options' of the state is a list"),
    "another optimizer": (["trainer_options", "optimizer_name"], "Lamb", "optimizer Lamb, this trainer uses AdamW"),
    "no weights": (["model", "full_precision"], None, "no state_dict"),
    "text for a tensor": (["model", "full_precision", "mix.weight"], "ones", "'mix.weight' is a str"),
    "whole numbers": (["model", "full_precision", "mix.weight"], torch.ones(8, 8).long(), "has dtype torch.int64"),
    "no values": (["model", "full_precision", "mix.bias"], torch.ones(8, device="meta"), "is on the device meta"),
    "a moment's shape": (["optimizer", "mix.bias", "Moment_2"], torch.ones(9), r"bias.exp_avg_sq' has shape \[9\]"),
    "a gradient's shape": (["optimizer", "mix.bias", "Gradient"], torch.ones(9), r"bias.grad_acc' has shape \[9\]"),
    "an unknown moment": (["optimizer", "mix.bias", "Moment_3"], torch.ones(8), "unexpected optimizer state"),
    "an unknown parameter": (["model", "full_precision", "mix.wait"], torch.ones(8), "unexpected parameter 'mix.wait'"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(trainer, change):
    path, value, says = CHANGES[change]
    before = trainer.state_dict()
    state = copy.deepcopy(before)
    # All that could be taken over is different, so that a half-taken state shows.
    for tensors in (state["model"]["full_precision"], *state["optimizer"].values()):
        for tensor in tensors.values():
            tensor.mul_(2)
    state["train_step_info"].update(step=77, optimization_step=33, seed=5)
    state["loss_scaler"]["loss_scale"] = 32.0
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(CheckpointError, match=says):
        trainer.load_state_dict(state)
    assert_same(trainer.state_dict(), before)


@pytest.mark.parametrize("missing", ["mix.bias", "loss_weight_acc"])
def test_gradients_that_wait_must_all_be_there(trainer, missing):
    state = trainer.state_dict()
    del state["optimizer"][missing]["Gradient"]
    with pytest.raises(CheckpointError, match=f"missing accumulated gradient '{missing}"):
        trainer.load_state_dict(state, strict=False)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_after_an_update_any_number_of_micro_batches_goes_on_from_any_other(first, second, tmp_path):
    saved, other = trained(4, first), trained(3, second)
    saved.save_checkpoint(tmp_path / "ck")
    other.load_checkpoint(tmp_path / "ck")
    assert_same(other.state_dict(), saved.state_dict())
    # And what the other had accumulated before is gone.
    fresh = trained(0, second)
    fresh.load_checkpoint(tmp_path / "ck")
    for batch in batches(6)[4:]:
        assert float(other.train_step(*batch)[0]) == float(fresh.train_step(*batch)[0])
    assert_same(other.state_dict(), fresh.state_dict())


def test_weights_alone_start_a_new_run(tmp_path):
    first = trained(3)
    first.save_checkpoint(tmp_path / "ck", {"from": "phase 1"}, include_optimizer_states=False)
    files, plain = read_checkpoint(tmp_path / "ck")
    assert set(files) == {"model"} and set(plain) == {"trainer_options", "versions", "user_dict"}
    second = trained(0)
    assert second.load_checkpoint(tmp_path / "ck") == {"from": "phase 1"}
    eager = Net()
    eager.load_state_dict(first.state_dict(pytorch_format=True))
    third = make_trainer(eager, optim.AdamConfig(lr=0.01))
    for batch in batches(5)[3:]:
        assert float(second.train_step(*batch)[0]) == float(third.train_step(*batch)[0])
    assert second.train_step_info.optimization_step == 2


def test_a_checkpoint_of_another_model_is_refused_before_the_first_step(tmp_path):
    trained(1).save_checkpoint(tmp_path / "ck")
    other = make_trainer(torch.nn.Sequential(torch.nn.Embedding(11, 4), torch.nn.Linear(4, 11)))
    with pytest.raises(CheckpointError, match="missing parameter '0.weight'(.|\n)*unexpected parameter 'embed.weight'"):
        other.load_checkpoint(tmp_path / "ck")
    assert other.pending_state is None


def test_a_state_that_turns_out_not_to_fit_stays_an_error_until_another_is_loaded():
    broken = trained(1).state_dict()
    broken["optimizer"]["mix.weight"]["Moment_1"] = torch.zeros(3)  # what only a session knows the shape of
    trainer = trained(0)
    trainer.load_state_dict(broken)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="'mix.weight.exp_avg' has shape"):
            trainer.train_step(*batches(1)[0])
    trainer.load_state_dict(trained(1).state_dict())
    trainer.train_step(*batches(1)[0])
    assert trainer.train_step_info.optimization_step == 2


def test_an_older_checkpoint_is_gone_on_from_where_the_newest_is_damaged(tmp_path):
    first = trained(1)
    for batch in batches(3)[1:]:
        first.save_checkpoint(tmp_path / "ck", {"step": first.train_step_info.step}, keep=2)
        first.train_step(*batch)
    path: Path = tmp_path / "ck" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    second = trained(0)
    with pytest.warns(UserWarning, match=r"ck/optimizer.safetensors has (.|\n)*ck~1"):
        assert second.load_checkpoint(tmp_path / "ck") == {"step": 1}
    for batch in batches(3)[1:]:
        second.train_step(*batch)
    assert_same(second.state_dict(), first.state_dict())


def test_of_many_names_that_do_not_fit_a_message_lists_a_few(trainer):
    state = trainer.state_dict()
    strange = {f"t{i}": torch.zeros(1) for i in range(50)}
    state["model"]["full_precision"] |= strange
    with pytest.raises(CheckpointError, match=r"'t19'(.|\n)*and 30 more") as raised:
        trainer.load_state_dict(state)
    assert "'t20'" not in str(raised.value)
