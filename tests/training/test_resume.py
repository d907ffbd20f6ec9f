"""A run that is saved and resumed is the run that was never stopped."""

from __future__ import annotations

import itertools

import pytest
import torch

from ontrain import CheckpointError
from tests.training.conftest import PROVIDERS, Net, batches, make_trainer

pytestmark = [pytest.mark.sampled(3), pytest.mark.usefixtures("captured_once")]


def _fresh(**options):
    torch.manual_seed(1)
    return make_trainer(Net(dropout=0.3), utils={"seed": 5}, **options)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path, provider, accumulation, stop):
    data = batches(6)
    options = {"provider": provider, "batch": {"gradient_accumulation_steps": accumulation}}
    whole = _fresh(**options)
    curve = [whole.train_step(*b)[0] for b in data]

    first = _fresh(**options)
    for b in data[:stop]:
        first.train_step(*b)
    first.save_checkpoint(tmp_path / "ck", {"position": stop})

    torch.manual_seed(99)
    second = make_trainer(Net(dropout=0.3), **options)
    assert second.load_checkpoint(tmp_path / "ck") == {"position": stop}
    resumed = [second.train_step(*b)[0] for b in data[stop:]]
    assert all(torch.equal(a, b) for a, b in zip(curve[stop:], resumed, strict=True))
    end, other = whole.state_dict(), second.state_dict()
    assert all(torch.equal(t, other["model"]["full_precision"][n]) for n, t in end["model"]["full_precision"].items())
    assert second.train_step_info.optimization_step == whole.train_step_info.optimization_step


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(PROVIDERS, 2)])
def test_a_state_dict_moves_between_providers(first, second):
    data = batches(4)
    ours = make_trainer(Net(), provider=first)
    theirs = make_trainer(Net(), provider=second)
    for b in data[:2]:
        ours.train_step(*b)
    theirs.load_state_dict(ours.state_dict())
    for b in data[2:]:
        assert float(ours.train_step(*b)[0]) == pytest.approx(float(theirs.train_step(*b)[0]), rel=1e-5)


def test_another_models_state_is_refused_by_name_and_changes_nothing():
    trainer, other = make_trainer(Net()), make_trainer(torch.nn.Sequential(torch.nn.Embedding(11, 11)))
    (batch,) = batches(1)
    trainer.train_step(*batch)
    other.train_step(*batch)
    before = trainer.state_dict()["model"]["full_precision"]
    with pytest.raises(CheckpointError) as error:
        trainer.load_state_dict(other.state_dict())
    assert "missing parameter 'mix.weight'" in str(error.value)
    assert "unexpected parameter '0.weight'" in str(error.value)
    after = trainer.state_dict()["model"]["full_precision"]
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_a_parameter_of_another_shape_is_named():
    trainer = make_trainer(Net())
    trainer.train_step(*batches(1)[0])
    state = trainer.state_dict()
    state["model"]["full_precision"]["mix.bias"] = torch.zeros(9)
    with pytest.raises(CheckpointError, match=r"'mix.bias' has shape \[9\], the model's is \[8\]"):
        trainer.load_state_dict(state)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_refused_and_names_the_file(tmp_path, damage, name):
    trainer = make_trainer(Net())
    trainer.train_step(*batches(1)[0])
    trainer.save_checkpoint(tmp_path / "ck")
    path = tmp_path / "ck" / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content) if damage == "flip" else bytes(content[:-3]))
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        make_trainer(Net()).load_checkpoint(tmp_path / "ck")


def test_a_second_save_replaces_the_first_whole(tmp_path):
    trainer = make_trainer(Net())
    (batch,) = batches(1)
    for n in range(3):
        trainer.train_step(*batch)
        trainer.save_checkpoint(tmp_path / "ck", {"n": n})
    assert trainer.load_checkpoint(tmp_path / "ck") == {"n": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["ck"]


def test_no_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        make_trainer(Net()).load_checkpoint(tmp_path / "nothing")
