"""What a user changes in a module between two steps of a trainer: followed as by eager PyTorch, or refused."""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from ontrain import CaptureError, InputError, OptionError
from ontrain.training import optim
from ontrain.training.orttrainer import ORTTrainer

DESC = {
    "inputs": [("x", ["batch", 6]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("logits", ["batch", 3])],
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.zeros(8))
        self.scale = 1.0

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)) + self.shift)
        if self.training:
            self.shift.lerp_(h.detach().mean(0), 0.1)
        return self.last(h) * self.scale


def batch(step, size=5):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)


def trainer_of(model):
    options = {"device": {"id": "cpu"}, "utils": {"grad_norm_clip": False}}
    return ORTTrainer(model, DESC, optim.SGDConfig(lr=0.1), F.cross_entropy, options)


def set_scale(model):
    model.scale = 3.0


def replace_parameter(model):
    model.first.weight = nn.Parameter(model.first.weight.detach() * 0.5)


def replace_buffer(model):
    model.shift = torch.ones(8)


def replace_layer(model):
    torch.manual_seed(7)
    model.last = nn.Linear(8, 3)


def assign_state(model):
    model.load_state_dict({name: value * 1 for name, value in model.state_dict().items()}, assign=True)


def stop_statistics(model):
    model.norm.eval()


def put_hook_before(model):
    model.last.register_forward_pre_hook(lambda _, arguments: (arguments[0] * 2,))


CHANGES = [
    set_scale, replace_parameter, replace_buffer, replace_layer, assign_state, stop_statistics, put_hook_before,
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:the forward hooks")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_steps_acts_from_the_next_step_on(change):
    torch.manual_seed(0)
    ours = Model()
    eager = copy.deepcopy(ours)
    trainer = trainer_of(ours)
    for step in range(5):
        if step == 2:
            change(ours)
            change(eager)
        x, label = batch(step, size=5 - step % 2)
        loss, logits = trainer.train_step(x, label)
        for parameter in eager.parameters():
            parameter.grad = None
        expected = eager(x)
        wanted = F.cross_entropy(expected, label)
        wanted.backward()
        with torch.no_grad():
            for parameter in eager.parameters():
                parameter -= 0.1 * parameter.grad
        torch.testing.assert_close((loss, logits), (wanted.detach(), expected.detach()), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=1e-5, atol=1e-6)
    norm = eager.norm.training
    torch.testing.assert_close(trainer.eval_step(x), copy.deepcopy(eager).eval()(x).detach(), rtol=1e-5, atol=1e-6)
    assert ours.norm.training == norm


class Taught(Model):
    """Has a teacher that is no submodule."""

    def __init__(self, reads_numbers):
        super().__init__()
        self.teachers, self.reads_numbers = [nn.Linear(6, 3).requires_grad_(False)], reads_numbers
        self.number = torch.tensor(2.0)

    def forward(self, x):
        y = super().forward(x)
        return y * float(self.number) if self.reads_numbers else y + self.teachers[0](x)


@pytest.mark.parametrize("reads_numbers", [False, True])
def test_a_teacher_in_a_list_that_moves_between_steps_is_followed(reads_numbers):
    torch.manual_seed(0)
    eager = Taught(reads_numbers)
    model = copy.deepcopy(eager)
    trainer, optimizer, losses = trainer_of(model), torch.optim.SGD(eager.parameters(), lr=0.1), []
    for step in range(5):
        x, label = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(eager(x), label)
        loss.backward()
        optimizer.step()
        losses.append((float(trainer.train_step(x, label)[0]), loss.item()))
        for followed in (eager, model):
            for tensor in (followed.number, *followed.teachers[0].parameters()):
                tensor.mul_(0.5)
    for ours, theirs in losses:
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_an_evaluation_follows_a_changed_attribute():
    trainer = trainer_of(model := Model())
    x, label = batch(0)
    trainer.train_step(x, label)
    before = trainer.eval_step(x)
    model.scale = 3.0
    torch.testing.assert_close(trainer.eval_step(x), before * 3)


@contextmanager
def doubled_linears():
    handle = register_module_forward_hook(lambda module, _, result: result * 2 if type(module) is nn.Linear else None)
    try:
        yield
    finally:
        handle.remove()


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


class Promoting(Model):
    def forward(self, x):
        return super().forward(x) * torch.full((3,), 1 / 3).float()


@contextmanager
def double_by_default():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*forward hook of all modules")
@pytest.mark.parametrize("around", [doubled_linears, autocast, double_by_default])
@pytest.mark.parametrize("steps", [{0, 1}, {2, 3}, {1, 3}], ids=["at first", "later", "now and then"])
def test_what_is_set_for_all_of_torch_acts_on_the_steps_that_it_is_around(around, steps):
    torch.manual_seed(0)
    ours = Promoting()
    eager = copy.deepcopy(ours)
    trainer = trainer_of(ours)
    for step in range(5):
        x, label = batch(step, size=5 - step % 2)
        with around() if step in steps else nullcontext():
            loss, logits = trainer.train_step(x, label)
            expected = eager(x)
            wanted = F.cross_entropy(expected, label)
        wanted.backward()
        with torch.no_grad():
            for parameter in eager.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        torch.testing.assert_close((loss, logits), (wanted.detach(), expected.detach()), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict(), rtol=1e-5, atol=1e-6)
        evaluated = copy.deepcopy(eager).eval()(x).detach()
        torch.testing.assert_close(trainer.eval_step(x), evaluated, rtol=1e-5, atol=1e-6)


def test_steps_under_autocast_and_evaluations_without_are_captured_once_each(monkeypatch):
    from ontrain.training import source

    captures = []
    capture = source.capture_described
    monkeypatch.setattr(source, "capture_described", lambda *a, **k: captures.append(0) or capture(*a, **k))
    trainer = trainer_of(Model())
    for step in range(4):
        with autocast():
            trainer.train_step(*batch(step))
        trainer.eval_step(batch(step)[0])
    assert len(captures) == 2


def test_a_backward_hook_of_all_modules_that_comes_later_is_refused():
    trainer = trainer_of(Model())
    trainer.train_step(*batch(0))
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    try:
        with pytest.raises(CaptureError, match="backward hook of all modules"):
            trainer.train_step(*batch(1))
    finally:
        handle.remove()
    trainer.train_step(*batch(2))


def test_notes_of_a_loop_in_the_module_are_not_captured_for_ever(monkeypatch):
    from ontrain.training import source

    captures = []
    capture = source.capture_described
    monkeypatch.setattr(source, "capture_described", lambda *a, **k: captures.append(0) or capture(*a, **k))
    trainer = trainer_of(model := Model())
    with pytest.warns(UserWarning, match="its graph was the same each time"):
        for step in range(8):
            model.epoch = step
            trainer.train_step(*batch(step))
    assert len(captures) == 4


def round_all(model):
    model.bfloat16()
    model.float()


def give_memory_and_a_buffer(model):
    model.first.weight.data = model.first.weight.data * 0.5
    model.shift = torch.ones(8)


@pytest.mark.parametrize("change", [round_all, give_memory_and_a_buffer])
def test_parameters_given_other_memory_while_buffers_are_replaced_keep_what_they_were_given(change):
    trainer = trainer_of(model := Model())
    trainer.train_step(*batch(0))
    change(eager := copy.deepcopy(model))
    change(model)
    loss, _ = trainer.train_step(*batch(1))
    torch.testing.assert_close(loss, F.cross_entropy(eager(batch(1)[0]), batch(1)[1]).detach())


def share_memory(model):
    model.norm.bias.data = model.first.bias.data


@pytest.mark.parametrize("at", [0, 1])
def test_parameters_in_one_memory_are_refused(at):
    trainer = trainer_of(model := Model())
    for step in range(at):
        trainer.train_step(*batch(step))
    share_memory(model)
    with pytest.raises(OptionError, match=r"'first.bias' and 'norm.bias' lie in the same memory"):
        trainer.train_step(*batch(at))
    model.norm.bias.data = model.norm.bias.data.clone()
    trainer.train_step(*batch(at))


def test_parameters_side_by_side_in_one_buffer_are_trained():
    torch.manual_seed(0)
    model = Model()
    eager = copy.deepcopy(model)
    flat, start = torch.cat([p.data.flatten() for p in model.parameters()]), 0
    for parameter in model.parameters():
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    loss, _ = trainer_of(model).train_step(*batch(0))
    torch.testing.assert_close(loss, F.cross_entropy(eager(batch(0)[0]), batch(0)[1]).detach())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("at", [0, 1])
def test_a_part_that_torch_jit_has_compiled_is_refused(at):
    trainer = trainer_of(model := Model())
    for step in range(at):
        trainer.train_step(*batch(step))
    model.last = torch.jit.script(model.last)
    with pytest.raises(CaptureError, match="^the submodule 'last' is a ScriptModule"):
        trainer.train_step(*batch(at))


def rename_layer(model):
    model.other = model.last
    del model.last
    model.last = nn.Identity()


def freeze_by_replacing(model):
    model.first.weight = nn.Parameter(model.first.weight.detach(), requires_grad=False)


def widen(model):
    model.first, model.norm = nn.Linear(6, 9), nn.BatchNorm1d(9)


@pytest.mark.parametrize("change", [rename_layer, freeze_by_replacing, widen])
def test_other_parameters_than_at_the_first_step_are_refused(change):
    trainer = trainer_of(model := Model())
    trainer.train_step(*batch(0))
    change(model)
    with pytest.raises(OptionError, match="make a new trainer"):
        trainer.train_step(*batch(1))


def hook_backward(model):
    model.last.register_full_backward_hook(lambda _, inputs, __: (inputs[0] * 2,))


def hook_parameter(model):
    model.last.weight.register_hook(lambda gradient: gradient * 2)


def hook_accumulation(model):
    model.last.weight.register_post_accumulate_grad_hook(print)


@pytest.mark.parametrize("hook", [hook_backward, hook_parameter, hook_accumulation])
@pytest.mark.parametrize("at", [0, 1])
def test_a_hook_on_gradients_is_refused(hook, at):
    trainer = trainer_of(model := Model())
    for step in range(at):
        trainer.train_step(*batch(step))
    hook(model)
    with pytest.raises(CaptureError, match="hook"):
        trainer.train_step(*batch(at))


class Remembering(Model):
    def __init__(self):
        super().__init__()
        self.before = torch.zeros(8)

    def forward(self, x):
        h = torch.tanh(self.first(x) + self.before)
        self.before = h.detach().mean(0)
        return self.last(h)


def test_a_tensor_that_forward_keeps_in_an_attribute_for_its_next_call_is_refused():
    trainer = trainer_of(Remembering())
    with pytest.raises(CaptureError, match="keeps a tensor from call to call in the attribute 'before'"):
        trainer.train_step(*batch(0))


@pytest.mark.parametrize(("arrange", "way_out"), [
    (lambda x, label: {"x": x, "label": label}, r"\*\*batch"),
    (lambda x, label: [x, label], r"\*batch"),
])  # fmt: skip
def test_a_batch_in_one_piece_is_told_how_to_be_handed_over(arrange, way_out):
    with pytest.raises(InputError, match=way_out):
        trainer_of(Model()).train_step(arrange(*batch(0)))
