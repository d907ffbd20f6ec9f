"""onnxruntime.training.checkpoint's functions, and its files; a file that wants to run code does not get to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ontrain import CheckpointError, OptionError
from ontrain.training import checkpoint, optim
from tests.training.conftest import Net, batches, make_trainer

pytestmark = pytest.mark.usefixtures("captured_once")


def trained(steps: int, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    trainer = make_trainer(Net(), optim.AdamConfig(lr=0.01), **options)
    trainer.prepare(*batches(1)[0])
    for batch in batches(steps):
        trainer.train_step(*batch)
    return trainer


def go_on(*trainers: Any) -> list[float]:
    return [float(trainer.train_step(*batches(6)[5])[0]) for trainer in trainers]


def test_a_flat_state_moves_a_run_to_another_trainer():
    first, second = trained(3), trained(0, seed=1)
    state = checkpoint.experimental_state_dict(first)
    assert {"mix.weight", "Moment_1_mix.weight", "Moment_2_mix.weight", "Step"} <= set(state) and int(
        state["Step"]
    ) == 3
    assert "Step" not in checkpoint.experimental_state_dict(first, include_optimizer_state=False)
    checkpoint.experimental_load_state_dict(second, state, strict=True)
    a, b = go_on(first, second)
    assert a == b and second.train_step_info.optimization_step == 4


def test_a_saved_checkpoint_is_loaded_with_what_the_user_put_beside(tmp_path):
    first, second = trained(2), trained(0, seed=1)
    checkpoint.experimental_save_checkpoint(first, tmp_path / "new", "best", {"epoch": 3})
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["best"]
    assert checkpoint.experimental_load_checkpoint(second, tmp_path / "new", "best") == {"epoch": 3}
    a, b = go_on(first, second)
    assert a == b
    with pytest.raises(OptionError, match="holds the tensor 'weights'"):
        checkpoint.experimental_save_checkpoint(first, tmp_path, "other", {"weights": torch.zeros(1)})


def upstream_file(state: dict[str, torch.Tensor], path: Path, **beside: Any) -> None:
    """A file as onnxruntime.training 1.8 lays it out: the wrapper's prefix, counts from 1, and copies in float16."""
    model: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        kind = next((moment for moment in ("Moment_1_", "Moment_2_") if name.startswith(moment)), "")
        plain = name.removeprefix(kind)
        if plain in ("Step", "Micro_Step", "Pending", "Seed"):
            continue
        model[f"{kind}model_.{plain}"] = tensor
        if not kind:
            model[f"model_.{plain}_fp16"] = tensor.half()
            model[f"Update_Count_model_.{plain}"] = state["Step"] + 1
    torch.save({"model": model, **beside}, path)


def test_a_file_of_onnxruntime_goes_on_where_it_stopped(tmp_path):
    first, second = trained(3), trained(0, seed=1)
    upstream_file(checkpoint.experimental_state_dict(first), tmp_path / "ORT_checkpoint.ort.pt", epoch=7)
    assert checkpoint.experimental_load_checkpoint(second, tmp_path) == {"epoch": 7}
    a, b = go_on(first, second)
    assert a == b


class Evil:
    """Unpickling it creates a folder."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("kind", ["code", "torn", "text", "list", "no tensors"])
def test_a_file_that_is_no_checkpoint_is_refused_and_nothing_runs_or_changes(kind, tmp_path):
    trainer = trained(1)
    file, marker = tmp_path / "ORT_checkpoint.ort.pt", tmp_path / "ran"
    if kind == "code":
        torch.save({"model": {"mix.weight": torch.zeros(8, 8)}, "user": Evil(str(marker))}, file)
    elif kind == "torn":
        torch.save({"model": {"mix.weight": torch.zeros(8, 8)}}, file)
        file.write_bytes(file.read_bytes()[:200])
    elif kind == "text":
        file.write_text("not a checkpoint")
    else:
        torch.save([torch.zeros(1)] if kind == "list" else {"model": {"mix.weight": 3}}, file)
    before = trainer.state_dict()["model"]["full_precision"]
    with pytest.raises(CheckpointError, match="ORT_checkpoint.ort.pt"):
        checkpoint.experimental_load_checkpoint(trainer, tmp_path)
    assert not marker.exists()
    after = trainer.state_dict()["model"]["full_precision"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def test_no_checkpoint_at_all_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoint.experimental_load_checkpoint(trained(0), tmp_path)


def test_a_checkpoint_of_another_model_lists_what_differs(tmp_path):
    checkpoint.experimental_save_checkpoint(trained(1), tmp_path)
    other = make_trainer(torch.nn.Sequential(torch.nn.Embedding(11, 4), torch.nn.Linear(4, 11)))
    other.prepare(*batches(1)[0])
    with pytest.raises(CheckpointError, match="missing parameter '0.weight'(.|\n)*unexpected parameter 'embed.weight'"):
        checkpoint.experimental_load_checkpoint(other, tmp_path, strict=True)


def with_schedule(total_steps: int, warmup: float, seed: int = 0) -> Any:
    schedule = optim.lr_scheduler.LinearWarmupLRScheduler(total_steps, warmup=warmup)
    return trained(0, seed=seed, lr_scheduler=schedule), schedule


@pytest.mark.parametrize("read", [lambda trainer: trainer.state_dict(), checkpoint.experimental_state_dict])
def test_either_form_of_a_state_resumes_a_run_with_its_schedule(read):
    (first, _), (second, _) = with_schedule(6, 0.5), with_schedule(6, 0.5, seed=1)
    for batch in batches(4):
        first.train_step(*batch)
    checkpoint.experimental_load_state_dict(second, read(first), strict=False)
    for _ in range(2):
        a, b = go_on(first, second)
        assert a == b


@pytest.mark.parametrize("read", [lambda trainer: trainer.state_dict(), checkpoint.experimental_state_dict])
def test_a_second_phase_takes_weights_and_moments_and_begins_its_own_schedule(read):
    (first, _), (second, schedule) = with_schedule(4, 0.5), with_schedule(8, 0.5, seed=1)
    for batch in batches(4):
        first.train_step(*batch)
    with pytest.warns(UserWarning, match=r"total_steps 4 there, 8 here[\s\S]*begins at step 4"):
        checkpoint.experimental_load_state_dict(second, read(first), strict=False)
    after, rates = first.state_dict(), []
    for batch in batches(3):
        second.train_step(*batch)
        rates.append(schedule.get_last_lr()[0])
        if len(rates) == 1:  # a rate of 0: the weights are still those of the first phase
            weights = second.state_dict()["model"]["full_precision"]
            assert all(torch.equal(tensor, weights[name]) for name, tensor in after["model"]["full_precision"].items())
    assert rates == pytest.approx([0.0, 0.01 / 4, 0.01 * 2 / 4])
    assert second.train_step_info.optimization_step == 7
    third, again = with_schedule(8, 0.5, seed=2)
    checkpoint.experimental_load_state_dict(third, read(second), strict=False)
    a, b = go_on(second, third)
    assert a == b and again.get_last_lr() == schedule.get_last_lr() == pytest.approx([0.01 * 3 / 4])


@pytest.mark.parametrize(
    "call",
    [
        lambda trainer, folder: checkpoint.experimental_state_dict(None),
        lambda trainer, folder: checkpoint.experimental_load_state_dict(Net(), {}),
        lambda trainer, folder: checkpoint.experimental_load_state_dict(trainer, {1: torch.zeros(2)}),
        lambda trainer, folder: checkpoint.experimental_save_checkpoint(Net(), folder),
        lambda trainer, folder: checkpoint.experimental_save_checkpoint(trainer, None),
        lambda trainer, folder: checkpoint.experimental_save_checkpoint(trainer, folder, 3),
        lambda trainer, folder: checkpoint.experimental_save_checkpoint(trainer, folder, "run", ["epoch"]),
        lambda trainer, folder: checkpoint.experimental_load_checkpoint(None, folder),
        lambda trainer, folder: checkpoint.experimental_load_checkpoint(trainer, None),
        lambda trainer, folder: checkpoint.experimental_load_checkpoint(trainer, folder, None),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(call, tmp_path):
    with pytest.raises((OptionError, CheckpointError), match="ort_trainer|state|checkpoint_dir|checkpoint_prefix"):
        call(trained(1), tmp_path)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("changed", "says"),
    [(lambda t: t.to_sparse(), "layout torch.sparse_coo(.|\n)*to_dense"), (lambda t: t.to("meta"), "device meta")],
)
def test_a_tensor_without_plain_values_is_refused_and_nothing_changes(changed, says, strict):
    trainer = trained(1)
    before = trainer.state_dict()
    weights = before["model"]["full_precision"]
    state = {**before, "model": {"full_precision": {**weights, "mix.bias": changed(weights["mix.bias"])}}}
    with pytest.raises(CheckpointError, match=f"'mix.bias'.*{says}"):
        checkpoint.experimental_load_state_dict(trainer, state, strict)
    assert all(torch.equal(t, weights[n]) for n, t in trainer.state_dict()["model"]["full_precision"].items())
