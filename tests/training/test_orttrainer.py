"""ORTTrainer against eager PyTorch, on every provider."""

from __future__ import annotations

import copy

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import ontrain
from ontrain import InputError
from ontrain.training import optim
from tests.training.conftest import DESC, Net, batches, eager_losses, make_trainer, token_loss

pytestmark = [pytest.mark.sampled(3), pytest.mark.usefixtures("captured_once")]

OPTIMIZERS = {
    "sgd": (lambda: optim.SGDConfig(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1), None),
    "momentum": (
        lambda: optim.SGDConfig(lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        None,
    ),
    "adamw": (
        lambda: optim.AdamConfig(lr=0.01, lambda_coef=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        1.0,
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_loss_curve_is_eagers(provider, twins, name):
    ours, theirs = twins
    config, optimizer, max_norm = OPTIMIZERS[name]
    data = batches(20)
    trainer = make_trainer(ours, config(), provider=provider)
    curve = [float(trainer.train_step(*batch)[0]) for batch in data]
    wanted = eager_losses(theirs, optimizer(theirs.parameters()), data, max_norm)
    np.testing.assert_allclose(curve, wanted, rtol=2e-6)


def test_parameter_groups_have_their_own_decay(provider, twins):
    ours, theirs = twins
    no_decay = ["norm.weight", "norm.bias", "mix.bias"]
    config = optim.AdamConfig(params=[{"params": no_decay, "lambda_coef": 0.0}], lr=0.01, lambda_coef=0.2)
    trainer = make_trainer(ours, config, provider=provider)
    named = dict(theirs.named_parameters())
    groups = [
        {"params": [named[n] for n in no_decay], "weight_decay": 0.0},
        {"params": [p for n, p in named.items() if n not in no_decay]},
    ]
    data = batches(10)
    curve = [float(trainer.train_step(*batch)[0]) for batch in data]
    wanted = eager_losses(theirs, torch.optim.AdamW(groups, lr=0.01, weight_decay=0.2), data)
    np.testing.assert_allclose(curve, wanted, rtol=2e-6)


def test_accumulated_micro_batches_equal_the_joined_batch(provider, twins):
    joined, split = twins
    data = batches(8)
    for _, label in data[::2]:
        label[:, 2:] = -100  # unequal numbers of labels
    whole = make_trainer(joined, provider=provider)
    parts = make_trainer(split, provider=provider, batch={"gradient_accumulation_steps": 2})
    for first, second in zip(data[::2], data[1::2], strict=True):
        whole.train_step(*(torch.cat(pair) for pair in zip(first, second, strict=True)))
        parts.train_step(*first)
        parts.train_step(*second)
    a, b = whole.state_dict(pytorch_format=True), parts.state_dict(pytorch_format=True)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_a_new_shape_makes_a_plan_and_no_capture(twins, monkeypatch):
    from ontrain.training import wrapping

    calls = []
    real = wrapping.capture
    monkeypatch.setattr(wrapping, "capture", lambda *a, **k: calls.append(1) or real(*a, **k))
    ours, theirs = twins
    data = [*batches(2), *batches(2, batch=2, length=7), *batches(1, batch=1, length=3)]
    trainer = make_trainer(ours)
    curve = [float(trainer.train_step(*batch)[0]) for batch in data]
    wanted = eager_losses(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0), data)
    np.testing.assert_allclose(curve, wanted, rtol=2e-6)
    assert len(calls) == 1


def test_evaluation_uses_no_dropout_and_changes_nothing(provider):
    torch.manual_seed(0)
    model = Net(dropout=0.5)
    (batch,) = batches(1)
    trainer = make_trainer(model, provider=provider)
    trainer.train_step(*batch)
    before = trainer.state_dict()["model"]["full_precision"]
    first, second = trainer.eval_step(*batch), trainer.eval_step(*batch)
    assert torch.equal(first[1], second[1])
    after = trainer.state_dict()["model"]["full_precision"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_dropout_drops_in_training():
    (batch,) = batches(1)
    trainer = make_trainer(Net(dropout=0.5), optim.SGDConfig(lr=1e-12))
    losses = {float(trainer.train_step(*batch)[0]) for _ in range(5)}
    assert len(losses) == 5


def test_the_module_sees_every_update(provider, twins):
    ours, _ = twins
    (batch,) = batches(1)
    trainer = make_trainer(ours, provider=provider)
    before = copy.deepcopy(ours.state_dict())
    trainer.train_step(*batch)
    start = trainer.state_dict()
    assert all(torch.equal(ours.state_dict()[n], t) for n, t in start["model"]["full_precision"].items())
    trainer.train_step(*batch)
    trainer.load_state_dict(start)
    assert all(torch.equal(t, start["model"]["full_precision"][n]) for n, t in ours.named_parameters())
    assert not torch.equal(before["mix.weight"], ours.state_dict()["mix.weight"])
    assert ours.head.weight is ours.embed.weight


def test_frozen_weights_stay(provider, twins):
    ours, _ = twins
    trainer = make_trainer(ours, provider=provider, utils={"frozen_weights": ["mix.weight"]})
    start = copy.deepcopy(ours.state_dict())
    for batch in batches(2):
        trainer.train_step(*batch)
    state = trainer.state_dict()["model"]["full_precision"]
    assert torch.equal(state["mix.weight"], start["mix.weight"])
    assert not torch.equal(state["mix.bias"], start["mix.bias"])


def test_batch_normalisation_keeps_running_statistics(provider):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    theirs = copy.deepcopy(ours)
    desc = {"inputs": [("x", ["n", 4]), ("y", ["n"])], "outputs": [("loss", [], True), ("logits", ["n", 3])]}
    trainer = make_trainer(ours, optim.SGDConfig(lr=0.1), desc, loss_fn=nn.functional.cross_entropy, provider=provider)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(4):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        trainer.train_step(x, y)
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    state = trainer.state_dict()["model"]["full_precision"]
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)
    theirs.eval()
    torch.testing.assert_close(trainer.eval_step(x, y)[1], theirs(x).detach(), rtol=1e-5, atol=1e-5)


def test_outputs_are_found_by_name_in_a_model_output():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.BertForMaskedLM(config)
    desc = {
        "inputs": [("labels", ["b", "s"]), ("input_ids", ["b", "s"])],
        "outputs": [("logits", ["b", "s", 20]), ("loss", [], True)],
    }
    trainer = make_trainer(model, desc=desc, loss_fn=None)
    ids = torch.randint(0, 20, (2, 6))
    logits, loss = trainer.train_step(input_ids=ids, labels=ids)
    assert logits.shape == (2, 6, 20) and loss.shape == ()


def test_the_exported_model_gives_the_eval_outputs_in_stock_onnxruntime(provider, twins, tmp_path):
    ours, _ = twins
    trainer = make_trainer(ours, provider=provider)
    for batch in batches(3):
        trainer.train_step(*batch)
    trainer.save_as_onnx(tmp_path / "model.onnx")
    session = ontrain.InferenceSession(tmp_path / "model.onnx")
    assert [i.name for i in session.get_inputs()] == ["ids"]
    assert [o.name for o in session.get_outputs()] == ["output"]
    for ids, label in (*batches(1), *batches(1, batch=1, length=9)):
        (scores,) = session.run(None, {"ids": ids})
        np.testing.assert_allclose(scores, trainer.eval_step(ids, label)[1], atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_check_model_export_passes_a_good_model(twins):
    trainer = make_trainer(twins[0], debug={"check_model_export": True})
    trainer.train_step(*batches(1)[0])


def test_the_learning_rate_follows_the_scheduler(provider, twins):
    ours, theirs = twins
    scheduler = optim.lr_scheduler.LinearWarmupLRScheduler(total_steps=10, warmup=0.4)
    trainer = make_trainer(ours, optim.SGDConfig(lr=0.5), provider=provider, lr_scheduler=scheduler)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5 * (n / 4.0 if n < 4 else (10 - n) / 6.0))
    for ids, label in batches(10):
        ours_loss = float(trainer.train_step(ids, label)[0])
        loss = nn.functional.cross_entropy(theirs(ids).flatten(0, 1), label.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
        assert ours_loss == pytest.approx(float(loss.detach()), rel=2e-6)
    assert DESC["outputs"][0][2]


def test_deterministic_compute_holds_during_the_step_only(twins, monkeypatch):
    trainer = make_trainer(twins[0], debug={"deterministic_compute": True})
    (batch,) = batches(1)
    trainer.train_step(*batch)
    seen = []
    plan = next(iter(trainer._run.session.plans.values()))
    real = plan.executable.run
    monkeypatch.setattr(
        plan.executable,
        "run",
        lambda *a, **k: seen.append(torch.are_deterministic_algorithms_enabled()) or real(*a, **k),
    )
    trainer.train_step(*batch)
    assert seen == [True] and not torch.are_deterministic_algorithms_enabled()


def test_deterministic_compute_leaves_a_caller_its_warnings_in_place_of_errors(twins):
    trainer = make_trainer(twins[0], debug={"deterministic_compute": True})
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        trainer.train_step(*batches(1)[0])
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_span_head_whose_ignored_place_is_the_sequence_length_trains():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    ours = transformers.BertForQuestionAnswering(config)
    theirs = copy.deepcopy(ours)
    names = ["input_ids", "start_positions", "end_positions"]
    desc = {"inputs": list(zip(names, [["b", "s"], ["b"], ["b"]], strict=True)), "outputs": [("loss", [], True)]}
    trainer = make_trainer(ours, desc=desc, loss_fn=None)
    for length in (6, 9):
        ids = torch.randint(0, 20, (3, length))
        ends = torch.tensor([1, length - 1, length + 4])  # the last lies outside and counts for nothing
        batch = dict(zip(names, [ids, torch.tensor([0, 1, length + 2]), ends], strict=True))
        theirs.load_state_dict(ours.state_dict())
        wanted = float(theirs.train()(**batch).loss.detach())
        assert float(trainer.train_step(**batch)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("make", [optim.AdamConfig, optim.LambConfig])
def test_the_configurations_norm_clips_the_gradient(make):
    def losses(config, later=None, **options):
        torch.manual_seed(3)
        trainer = make_trainer(Net(dropout=0.0), config, **options)
        curve = []
        for number, batch in enumerate(batches(4)):
            if number == 2 and later is not None:
                config.max_norm_clip = later
            curve.append(float(trainer.train_step(*batch)[0]))
        return curve

    narrow = losses(make(lr=0.05, epsilon=0.1, max_norm_clip=0.01))
    assert narrow == losses(make(lr=0.05, epsilon=0.1), utils={"max_grad_norm": 0.01})
    assert narrow != losses(make(lr=0.05, epsilon=0.1))
    changed = losses(make(lr=0.05, epsilon=0.1), later=0.01)
    assert changed[:3] == losses(make(lr=0.05, epsilon=0.1))[:3] and changed[3] != losses(make(lr=0.05, epsilon=0.1))[3]


def test_the_first_evaluation_needs_no_label_beside_an_outside_loss():
    torch.manual_seed(3)
    module = Net()
    reference = copy.deepcopy(module).eval()
    trainer = make_trainer(module, optim.SGDConfig(lr=0.0))
    trainer.train_step(*batches(1)[0])
    ids = batches(1, batch=4, length=7)[0][0]
    torch.testing.assert_close(trainer.eval_step(ids), reference(ids), atol=1e-5, rtol=1e-5)
    loss, _ = trainer.eval_step(*batches(1, batch=2)[0])
    assert loss.ndim == 0


def test_an_evaluation_without_a_label_may_be_the_very_first_call(provider):
    torch.manual_seed(3)
    module = Net()
    reference, plain = copy.deepcopy(module).eval(), copy.deepcopy(module)
    trainer = make_trainer(module, optim.SGDConfig(lr=0.1), provider=provider)
    ids = batches(1, batch=4, length=7)[0][0]
    torch.testing.assert_close(trainer.eval_step(ids), reference(ids), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(trainer.eval_step(ids=ids), reference(ids), atol=1e-5, rtol=1e-5)
    data = batches(4)
    wanted = eager_losses(plain, torch.optim.SGD(plain.parameters(), lr=0.1), data, max_norm=None)
    curve = [float(trainer.train_step(*batch)[0]) for batch in data]
    np.testing.assert_allclose(curve, wanted, rtol=1e-5)
    torch.testing.assert_close(trainer.eval_step(ids), plain.eval()(ids), atol=1e-5, rtol=1e-5)
    loss, scores = trainer.eval_step(*data[0])
    np.testing.assert_allclose(scores, plain(data[0][0]).detach(), atol=1e-5)
    np.testing.assert_allclose(loss, token_loss(plain(data[0][0]), data[0][1]).detach(), rtol=1e-5)


def test_an_evaluation_without_a_label_has_the_state_that_was_loaded(tmp_path):
    torch.manual_seed(3)
    trained = make_trainer(Net())
    for batch in batches(3):
        trained.train_step(*batch)
    ids, label = batches(1)[0]
    fresh = make_trainer(Net())
    fresh.load_state_dict(trained.state_dict())
    torch.testing.assert_close(fresh.eval_step(ids), trained.eval_step(ids, label)[1], atol=1e-6, rtol=1e-6)
    fresh.save_as_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"ids": ids.numpy()})[0], trained.eval_step(ids), atol=1e-5)
    for batch in batches(2):
        np.testing.assert_array_equal(fresh.train_step(*batch)[0], trained.train_step(*batch)[0])


class Margin(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return token_loss(output * self.scale, label)


def test_the_first_evaluation_needs_the_label_where_the_loss_is_trained_too():
    trainer = make_trainer(Net(), loss_fn=Margin())
    with pytest.raises(InputError, match="input 'label' is missing"):
        trainer.eval_step(batches(1)[0][0])
    trainer.eval_step(*batches(1)[0])
    assert trainer.eval_step(batches(1)[0][0]).shape == (3, 5, 11)
