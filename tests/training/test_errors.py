"""Wrong input of each kind: the message names the node, the line, the reason and the way out; nothing is half done."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain import CaptureError, GradientError, InputError, NonFiniteLossError, OntrainError, OptionError
from ontrain.operators.gradients import rules
from ontrain.training import ORTTrainer, ORTTrainerOptions, amp, optim
from ontrain.training.ortmodule import ORTModule
from tests.training.conftest import DESC, Net, batches, make_trainer

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]

XY = {"inputs": [("x", ["n", 4]), ("y", ["n"])], "outputs": [("loss", [], True), ("logits", ["n", 3])]}
X, Y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:  # the line that the message must name
            return y
        return -y


def test_data_dependent_control_flow_names_the_users_line():
    trainer = make_trainer(Branching(), desc=XY, loss_fn=nn.functional.cross_entropy)
    with pytest.raises(CaptureError) as error:
        trainer.train_step(X, Y)
    text = str(error.value)
    assert "test_errors.py:" in text and "if y.sum() > 0" in text
    assert "reason" in text and "torch.where" in text


OPERATORS = torch.library.Library("errors", "DEF")
OPERATORS.define("unheard_of(Tensor x) -> Tensor")
OPERATORS.impl("unheard_of", lambda x: x * 3, "CompositeExplicitAutograd")
torch.library.register_fake("errors::unheard_of", torch.empty_like, lib=OPERATORS)
torch.library.register_autograd("errors::unheard_of", lambda _, dy: dy * 3, lib=OPERATORS)


def test_an_operator_that_cannot_be_captured_is_named_with_its_line():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return torch.ops.errors.unheard_of(self.linear(x))

    trainer = make_trainer(Odd(), desc=XY, loss_fn=nn.functional.cross_entropy)
    with pytest.raises(CaptureError) as error:
        trainer.train_step(X, Y)
    assert "unheard_of" in str(error.value) and "test_errors.py:" in str(error.value)


def _trainer_on(model):
    return make_trainer(model, optim.SGDConfig(lr=0.1), XY, loss_fn=nn.functional.cross_entropy)


def test_a_missing_gradient_is_an_error_only_on_the_path_to_a_parameter(monkeypatch):
    monkeypatch.delitem(rules, ("", "Tanh"))

    class Model(nn.Module):
        def __init__(self, on_path):
            super().__init__()
            self.linear, self.on_path = nn.Linear(4, 3), on_path

        def forward(self, x):
            return torch.tanh(self.linear(x)) if self.on_path else self.linear(torch.tanh(x))

    _trainer_on(Model(on_path=False)).train_step(X, Y)
    with pytest.raises(GradientError) as error:
        _trainer_on(Model(on_path=True)).train_step(X, Y)
    text = str(error.value)
    assert "Tanh" in text and "test_errors.py:" in text and "torch.tanh(self.linear(x))" in text and "way out" in text


@pytest.mark.parametrize(
    ("config", "options", "names"),
    [
        (optim.AdamConfig(params=[{"params": ["mix.wieght"], "lambda_coef": 0.0}]), {}, "'mix.wieght'"),
        (optim.AdamConfig(), {"utils": {"frozen_weights": ["mx.bias"]}}, "'mx.bias'"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest_name(config, options, names):
    with pytest.raises(OptionError) as error:
        make_trainer(Net(), config, **options)
    assert names in str(error.value) and "'mix." in str(error.value)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_nan_loss_names_the_step_and_leaves_everything_as_it_was(provider, accumulation):
    model = nn.Linear(4, 3)
    trainer = make_trainer(
        model, desc=XY, loss_fn=nn.functional.cross_entropy, provider=provider,
        batch={"gradient_accumulation_steps": accumulation},
    )  # fmt: skip
    for _ in range(2 * accumulation):
        trainer.train_step(X, Y)
    before = trainer.state_dict()
    with pytest.raises(NonFiniteLossError, match="step 3"):
        for _ in range(accumulation):
            trainer.train_step(X * float("nan"), Y)
    after = trainer.state_dict()
    assert all(
        torch.equal(t, after["model"]["full_precision"][n]) for n, t in before["model"]["full_precision"].items()
    )
    assert all(torch.equal(t, after["optimizer"][p][k]) for p, s in before["optimizer"].items() for k, t in s.items())
    assert trainer.train_step_info.optimization_step == 2 and not trainer.train_step_info.all_finite
    for _ in range(accumulation):
        trainer.train_step(X, Y)
    assert trainer.train_step_info.optimization_step == 3


def test_a_nan_loss_may_be_skipped():
    trainer = make_trainer(
        nn.Linear(4, 3), desc=XY, loss_fn=nn.functional.cross_entropy, utils={"nonfinite_loss": "skip"}
    )
    trainer.train_step(X, Y)
    loss, _ = trainer.train_step(X * float("inf"), Y)
    assert not torch.isfinite(loss) and trainer.train_step_info.optimization_step == 1


def test_labels_out_of_range_are_refused_before_anything_changes():
    trainer = make_trainer(Net())
    ids, label = batches(1)[0]
    trainer.train_step(ids, label)
    before = trainer.state_dict()
    wrong = label.clone()
    wrong[1, 2] = 11
    with pytest.raises(InputError, match=r"'label' holds label 11, allowed is 0 to 10, or -100"):
        trainer.train_step(ids, wrong)
    with pytest.raises(InputError, match=r"'ids' holds index 12, allowed is 0 to 10"):
        trainer.train_step(torch.where(ids == ids[0, 0], 12, ids), label)
    after = trainer.state_dict()
    assert all(
        torch.equal(t, after["model"]["full_precision"][n]) for n, t in before["model"]["full_precision"].items()
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids, label: (ids.float(), label), "input 'ids' is float32, the graph expects int64"),
        (lambda ids, label: (ids.int(), label), "input 'ids' is int32, the graph expects int64"),
        (lambda ids, label: (ids[0], label), r"'ids' has shape \[5\], the graph expects \['batch', 'length'\]"),
        (lambda ids, label: (ids, label[:, :4]), "dimension 'length' is 4 in input 'label' and 5 in 'ids'"),
        (lambda ids, label: (ids.to("meta"), label), r"input 'ids' is on the device meta\n.*no values"),
        (lambda ids, label: (ids,), "input 'label' is missing"),
        (lambda ids, label: (ids, label, label), "3 inputs were given"),
        (lambda ids, label: (ids.tolist(), label), "torch.as_tensor"),
        (lambda ids, label: (ids.numpy().astype(str), label), "torch.as_tensor"),
    ],
)
def test_a_batch_that_does_not_fit_is_told_what_the_graph_expects(change, says):
    trainer = make_trainer(Net())
    ids, label = batches(1)[0]
    trainer.train_step(ids, label)
    with pytest.raises(InputError, match=says):
        trainer.train_step(*change(ids, label))


def test_a_fixed_dimension_says_how_to_let_it_vary():
    trainer = make_trainer(nn.Linear(4, 3), desc={**XY, "inputs": [("x", [6, 4]), ("y", [6])]},
                           loss_fn=nn.functional.cross_entropy)  # fmt: skip
    trainer.train_step(X, Y)
    with pytest.raises(
        InputError, match=r"has shape \[5, 4\], the graph expects \[6, 4\]\n  way out: .*string in model_desc"
    ):
        trainer.train_step(X[:5], Y[:5])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bach": {}}, "unknown option 'bach'.*'batch'"),
        ({"batch": {"gradient_acumulation_steps": 2}}, "'gradient_accumulation_steps'"),
        ({"batch": {"gradient_accumulation_steps": 0}}, "a whole number from 1"),
        ({"mixed_precision": {"loss_scaler": amp.DynamicLossScaler()}}, "set without mixed precision"),
        ({"distributed": {"world_size": 2}}, "cannot be met.*torchrun"),
        ({"utils": {"nonfinite_loss": "explode"}}, "'raise' or 'skip'"),
        ({"provider": "TourchExecutionProvider"}, "'TorchExecutionProvider'"),
        ({"device": "cpu"}, "give a dictionary"),
        ({"graph_transformer": {"disabled_passes": ["LinearToGem"]}}, "'LinearToGemm'"),
    ],
)
def test_options_say_what_is_allowed(options, says):
    import re

    with pytest.raises(OptionError) as error:
        ORTTrainer(Net(), DESC, optim.AdamConfig(), options=ORTTrainerOptions(options))
    assert re.search(says, str(error.value), re.DOTALL)


@pytest.mark.parametrize(
    ("desc", "says"),
    [
        ({"inputs": [("x", [4])]}, "'outputs' must be a list"),
        ({**DESC, "output": []}, "unknown key 'output'"),
        ({**DESC, "outputs": [("loss", []), ("output", [3])]}, "0 outputs are marked as loss"),
        ({**DESC, "outputs": [("a", [], True), ("b", [], True)]}, "2 outputs are marked as loss"),
        ({**DESC, "inputs": [("ids", [0])]}, "positive int"),
        ({**DESC, "inputs": [("loss", ["b"])]}, "given twice"),
        ({**DESC, "inputs": ["ids"]}, "write \\(name, shape\\)"),
    ],
)
def test_a_malformed_description_is_refused(desc, says):
    with pytest.raises(OptionError, match=says):
        ORTTrainer(Net(), desc, optim.AdamConfig(), loss_fn=lambda o, y: o.sum())


def test_every_error_is_a_value_error():
    assert issubclass(OntrainError, ValueError)


def test_exporting_before_training_and_to_nowhere(tmp_path):
    trainer = make_trainer(Net())
    with pytest.raises(OptionError, match="run one step first"):
        trainer.save_as_onnx(tmp_path / "m.onnx")
    trainer.train_step(*batches(1)[0])
    with pytest.raises(OptionError, match="cannot write"):
        trainer.save_as_onnx(tmp_path / "missing" / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_into_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    trainer = make_trainer(Net())
    trainer.train_step(*batches(1)[0])
    with pytest.raises(OntrainError, match="cannot write the checkpoint"):
        trainer.save_checkpoint(tmp_path / "taken" / "ck")


@pytest.mark.parametrize("content", [b"", b"not onnx", b"\x08\x07" * 50])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    import ontrain

    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(InputError, match="cannot load the model|there is no model"):
        ontrain.InferenceSession(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="there is no model file"):
        ontrain.InferenceSession(tmp_path / "other.onnx")


def test_inference_feeds_are_checked_by_name(tmp_path):
    import ontrain

    trainer = make_trainer(Net())
    trainer.train_step(*batches(1)[0])
    trainer.save_as_onnx(tmp_path / "m.onnx")
    session = ontrain.InferenceSession(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="no input 'idz'.*\n.*'ids'"):
        session.run(None, {"idz": torch.zeros(1, 2, dtype=torch.int64)})
    with pytest.raises(InputError, match="do not fit"):
        session.run(None, {"ids": torch.zeros(1, 2)})


def test_a_batch_without_a_single_label_is_said_and_has_no_gradient(provider):
    trainer = make_trainer(Net(), optim.SGDConfig(lr=0.1), provider=provider)
    ids, label = batches(1)[0]
    trainer.train_step(ids, label)
    before = trainer.state_dict()["model"]["full_precision"]
    with pytest.warns(UserWarning, match="the loss is nan at step 2 and its gradient finite"):
        trainer.train_step(ids, torch.full_like(label, -100))
    after = trainer.state_dict()["model"]["full_precision"]
    assert all(torch.equal(t, after[n]) for n, t in before.items())


def test_a_micro_batch_without_a_label_counts_for_nothing(provider):
    torch.manual_seed(0)
    model = Net()
    alone = make_trainer(copy.deepcopy(model), optim.SGDConfig(lr=0.1), provider=provider)
    beside = make_trainer(model, optim.SGDConfig(lr=0.1), provider=provider, batch={"gradient_accumulation_steps": 2})
    ids, label = batches(1)[0]
    alone.train_step(ids, label)
    beside.train_step(ids, torch.full_like(label, -100))
    beside.train_step(ids, label)
    a, b = (t.state_dict()["model"]["full_precision"] for t in (alone, beside))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-6, atol=1e-7)


def test_a_size_that_forward_branches_on_is_refused_on_the_other_side():
    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.linear(x * 2 if x.shape[0] > 4 else x)

    description = {"inputs": [("x", ["batch", 2]), ("y", ["batch", 1])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Branching(), description, optim.SGDConfig(lr=0.1), torch.nn.functional.mse_loss)
    trainer.train_step(torch.randn(6, 2), torch.randn(6, 1))
    trainer.train_step(torch.randn(5, 2), torch.randn(5, 1))
    with pytest.raises(InputError, match=r"5 <= x.shape\[0\]"):
        trainer.train_step(torch.randn(3, 2), torch.randn(3, 1))


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return sum(self.layer(x[start : start + 2]).exp().mean() for start in range(0, x.shape[0], 2))


def test_a_size_that_forward_loops_over_names_ortmodule():
    description = {"inputs": [("x", ["batch", 4])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Chunked(), description, optim.SGDConfig(lr=0.1))
    trainer.train_step(torch.rand(6, 4))
    with pytest.raises(InputError, match=r"forward fixes the dimension 'batch'(.|\n)*way out: .*ORTModule"):
        trainer.train_step(torch.rand(5, 4))
    module = ORTModule(Chunked())
    assert [module(torch.rand(rows, 4)).item() > 0 for rows in (6, 5, 6)] == [True] * 3
