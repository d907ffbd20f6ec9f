"""What is refused when a trainer is made or at a step: before anything changes, with a way out."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import pytest
import torch

from ontrain import CheckpointError, InputError, OntrainError, OptionError
from ontrain.training import ORTTrainerOptions, amp
from ontrain.training.optim.lr_scheduler import _LRScheduler
from tests.training.conftest import DESC, Net, batches, make_trainer, token_loss

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]


@pytest.mark.parametrize(
    ("inputs", "loss_fn", "says"),
    [
        ([("ids", ["b", "l"]), ("x", ["b"]), ("label", ["b", "l"])], token_loss, r"ids, x[^$]*takes \(ids"),
        ([("ids", ["b", "l"]), ("label", ["b", "l"])], None, "without a loss_fn the label is one of them"),
    ],
)
def test_inputs_that_forward_does_not_take_are_named(inputs, loss_fn, says):
    trainer = make_trainer(Net(), desc={**DESC, "inputs": inputs}, loss_fn=loss_fn)
    with pytest.raises(OptionError, match=says):
        trainer.train_step(**{name: torch.ones([2] * len(shape), dtype=torch.int64) for name, shape in inputs})


@pytest.mark.parametrize(
    ("name", "shape"), [("ids", ["batch"]), ("label", [3, 7]), ("output", ["batch", "length", 12]), ("loss", ["batch"])]
)
def test_a_description_that_disagrees_with_the_first_batch_is_said_once(name, shape):
    desc = {
        where: [(n, shape if n == name else dims, *more) for n, dims, *more in entries]
        for where, entries in DESC.items()
    }
    trainer, (first, second) = make_trainer(Net(), desc=desc), batches(2)
    with pytest.warns(UserWarning, match=f"describes '{name}' as .* in the first batch it is"):
        trainer.train_step(*first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train_step(*second)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("trained", [False, True])
def test_a_trainer_is_neither_copied_nor_pickled(how, trained):
    trainer = make_trainer(Net())
    if trained:
        trainer.train_step(*batches(1)[0])
    with pytest.raises(OptionError, match="cannot be copied or pickled") as refused:
        how(trainer)
    assert "state_dict()" in refused.value.way_out and "save_checkpoint" in refused.value.way_out


class Gives(_LRScheduler):
    """A rate that a subclass made up."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def get_lr(self, train_step_info):
        return self.rate if train_step_info.optimization_step else [0.01]


class Scales(amp.LossScaler):
    """Not a number from the second update on."""

    def update(self, train_step_info):
        self.loss_scale = math.nan


AT_A_STEP = {
    "a rate that is none": ({"lr_scheduler": Gives(0.1)}, {}, "Gives.get_lr returned 0.1"),
    "no rate": ({"lr_scheduler": Gives([])}, {}, "get_lr returned"),
    "a rate for each group": ({"lr_scheduler": Gives([0.1, 0.2])}, {}, "get_lr returned"),
    "NaN for a rate": ({"lr_scheduler": Gives([math.nan])}, {}, "get_lr returned"),
    "NaN for a scale": ({"mixed_precision": {"enabled": True, "loss_scaler": Scales(4.0)}}, {}, "loss scale of Scales"),
    "an unknown output": ({}, {"fetches": ["los"]}, "no output 'los' to fetch[^$]*'loss'"),
    "an output of updates only": (
        {"batch": {"gradient_accumulation_steps": 3}}, {"fetches": ["grad_norm"]}, "known after an update only",
    ),
    "a text for a list": ({}, {"fetches": "loss"}, "fetches is one string, 'loss'"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "arguments", "says"), AT_A_STEP.values(), ids=AT_A_STEP)
def test_what_is_refused_at_a_step_leaves_the_run_as_it_was(options, arguments, says):
    trainer, (first, second) = make_trainer(Net(dropout=0.2), **options), batches(2)
    trainer.train_step(*first)
    before = trainer.state_dict()
    with pytest.raises(OptionError, match=says):
        trainer.train_step(*second, **arguments)
    after = trainer.state_dict()
    assert after["train_step_info"] == before["train_step_info"]
    for kind in ("model", "optimizer"):
        for name, tensors in before[kind].items():
            assert all(torch.equal(tensor, after[kind][name][key]) for key, tensor in tensors.items()), name
    twin = make_trainer(Net(dropout=0.2), **{k: v for k, v in options.items() if k == "batch"})
    twin.load_state_dict(before)
    if "fetches" in arguments:
        assert torch.equal(trainer.train_step(*second)[0], twin.train_step(*second)[0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids: ids[:0], "is empty"),
        (lambda ids: ids.to_sparse(), "layout torch.sparse_coo"),
    ],
)
def test_a_batch_that_cannot_be_computed_with_is_refused(change, says):
    trainer, ((ids, label),) = make_trainer(Net()), batches(1)
    trainer.train_step(ids, label)
    with pytest.raises(InputError, match=says):
        trainer.train_step(change(ids), change(label))


REFUSED_OPTIONS = {
    "no dictionary": (3, "the options are a int"),
    "no device": ({"device": {"id": "gpu"}}, "'device.id' is 'gpu'"),
    "a device without memory": ({"device": {"id": "meta"}}, "'device.id' is 'meta'"),
    "an opset to come": ({"_internal_use": {"onnx_opset_version": 99}}, "from 12 to"),
    "a number of no layers": ({"graph_transformer": {"number_recompute_layers": 2}}, "transformer_layer_recompute"),
    "a scaler without update": (
        {"mixed_precision": {"enabled": True, "loss_scaler": amp.LossScaler(8.0)}}, "subclass of amp.LossScaler",
    ),
    "a scheduler without get_lr": ({"lr_scheduler": _LRScheduler()}, "_LRScheduler with get_lr"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "says"), REFUSED_OPTIONS.values(), ids=REFUSED_OPTIONS)
def test_an_option_that_would_fail_later_or_not_act_is_refused_at_once(options, says):
    with pytest.raises(OptionError, match=says):
        ORTTrainerOptions(options)


@pytest.mark.parametrize("path", ["", None, "folder"])
def test_a_file_that_cannot_be_written_is_said_and_leaves_nothing(path, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer(Net())
    trainer.train_step(*batches(1)[0])
    with pytest.raises(OptionError, match="cannot write"):
        trainer.save_as_onnx(path)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


MALFORMED = {
    "moments that are none": (lambda state: {**state, "optimizer": {"mix.weight": 3}}, "'mix.weight' is a int"),
    "options that are none": (lambda state: {**state, "trainer_options": 3}, "'trainer_options' of the state is a int"),
    "a count that is none": (lambda state: {**state, "train_step_info": {"step": "a"}}, "step of the state is 'a'"),
    "another optimizer": (
        lambda state: {**state, "trainer_options": {"optimizer_name": "Lamb"}}, "of optimizer Lamb, this trainer",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), MALFORMED.values(), ids=MALFORMED)
def test_a_state_that_is_refused_before_the_first_step_leaves_the_one_that_waits(change, says):
    first, second = make_trainer(Net()), make_trainer(Net())
    first_batch, two = batches(2)
    first.train_step(*first_batch)
    second.load_state_dict(first.state_dict())
    with pytest.raises(CheckpointError, match=says):
        second.load_state_dict(change(first.state_dict()))
    assert torch.equal(first.train_step(*two)[0], second.train_step(*two)[0])


class Counts(_LRScheduler):
    """A rate that falls with each call, whatever the run's counters say."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def get_lr(self, train_step_info):
        self.calls += 1
        return [0.02 / self.calls]


UNFIT = {
    "too few": lambda ids, label: (ids,),
    "too many": lambda ids, label: (ids, label, label),
    "another rank": lambda ids, label: (ids[0], label),
    "lengths that differ": lambda ids, label: (ids, label[:2]),
    "another dtype": lambda ids, label: (ids.float(), label),
    "an id out of range": lambda ids, label: (ids + 11, label),
    "a label out of range": lambda ids, label: (ids, label + 50),
}
SETUPS = {
    "plain": dict,
    "a scheduler that counts": lambda: {"lr_scheduler": Counts()},
    "accumulation": lambda: {"batch": {"gradient_accumulation_steps": 3}},
    "half precision": lambda: {
        "mixed_precision": {"enabled": True, "loss_scaler": amp.DynamicLossScaler(up_scale_window=2)}
    },
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_a_batch_that_does_not_fit_leaves_the_run_as_it_was(setup, provider):
    if provider != "TorchExecutionProvider" and "mixed_precision" in setup():
        pytest.skip("trains in float32")

    def losses(unfit=()):
        torch.manual_seed(5)
        trainer, curve = make_trainer(Net(dropout=0.2), provider=provider, **setup()), []
        for batch in batches(6):
            for change in unfit:
                with pytest.raises(OntrainError):  # the module's own, if it is the first batch
                    trainer.train_step(*change(*batch))
            curve.append(float(trainer.train_step(*batch)[0]))
        return curve

    assert losses(UNFIT.values()) == losses()


def test_a_first_batch_of_another_rank_is_refused_by_name():
    trainer, (batch,) = make_trainer(Net()), batches(1)
    with pytest.raises(InputError, match=r"input 'ids' has shape \[5\], model_desc says \['batch', 'length'\]"):
        trainer.train_step(batch[0][0], batch[1])


def test_profiling_a_label_out_of_range_names_it():
    trainer, (batch,) = make_trainer(Net()), batches(1)
    before = trainer.train_step(*batch), trainer.parameter("mix.weight")
    with pytest.raises(InputError, match="input 'label' holds label 5"):
        trainer.profile(batch[0], batch[1] * 0 + 50)
    assert torch.equal(trainer.parameter("mix.weight"), before[1])
