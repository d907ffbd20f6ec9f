"""Training loops on a GPU: ORTModule step by step beside eager PyTorch, ORTTrainer beside itself on the CPU."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

from ontrain.errors import InputError
from ontrain.training import ORTTrainer, optim
from ontrain.training.checkpoint import experimental_load_checkpoint, experimental_save_checkpoint
from ontrain.training.ortmodule import ORTModule
from tests.threads import at_once
from tests.training.conftest import DESC, Net, batches, make_trainer, token_loss
from tests.training.ortmodule.networks import LanguageModel

pytestmark = pytest.mark.gpu

LENGTHS = [(2, 7), (3, 5), (2, 9), (2, 7), (4, 2), (2, 7), (2, 7), (3, 5), (3, 5)]


class Images(nn.Module):
    """Convolutions, normalisations with running statistics, pools."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, groups=4, bias=False), nn.GroupNorm(2, 16), nn.Hardswish(),
            nn.ConvTranspose2d(16, 8, 2, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
            nn.Linear(32, 5),
        )  # fmt: skip

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(pixels), labels)


class Recurrent(nn.Module):
    """An LSTM in both directions, and a GRU over its states."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 8, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.head(self.gru(self.lstm(x)[0])[0]), target)


def tokens(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    ids, labels = torch.randint(0, 20, (2, batch, length), device="cuda")
    return ids, labels


def images(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    pixels = torch.randn(batch, 3, 16, 16, dtype=torch.float64, device="cuda")
    return pixels, torch.randint(0, 5, (batch,), device="cuda")


def series(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(batch, length, 5, dtype=torch.float64, device="cuda") for _ in range(2))


NETWORKS = {"tokens": (LanguageModel, tokens), "images": (Images, images), "series": (Recurrent, series)}


def loss_of(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", NETWORKS)
def test_updates_over_varying_sizes_are_eagers(name):
    make, batch = NETWORKS[name]
    eager = make().double().cuda()
    ours = ORTModule(copy.deepcopy(eager))
    optimizers = [torch.optim.AdamW(module.parameters(), lr=1e-2) for module in (ours, eager)]
    for sizes in LENGTHS:
        args, losses = batch(*sizes), []
        for module, optimizer in zip((ours, eager), optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(module(*args))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-10)
    for (key, p), q in zip(ours.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, msg=key, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_as_near_to_single_precision_as_eagers(dtype):
    exact = LanguageModel(words=50, width=64).cuda()
    eager, ours = copy.deepcopy(exact), ORTModule(copy.deepcopy(exact))
    ids, labels = torch.randint(0, 50, (2, 8, 32), device="cuda")
    loss_of(exact(ids, labels)).backward()
    for module in (eager, ours):
        with torch.autocast("cuda", dtype):
            loss = loss_of(module(ids, labels))
        (loss * 1024).backward()
    for (name, p), q, r in zip(ours.named_parameters(), eager.parameters(), exact.parameters(), strict=True):
        ours_error, eager_error = (float((x.grad / 1024 - r.grad).norm() / r.grad.norm()) for x in (p, q))
        assert ours_error <= 1.5 * eager_error + 1e-3, name


def test_a_grad_scaler_finds_what_overflows():
    ours = ORTModule(LanguageModel(words=50, width=64).cuda())
    optimizer, scaler = torch.optim.SGD(ours.parameters(), lr=0.1), torch.amp.GradScaler("cuda", init_scale=2.0**40)
    (ids, labels), losses = torch.randint(0, 50, (2, 4, 16), device="cuda"), []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(ours(ids, labels))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert scaler.get_scale() < 2.0**40 and losses[-1] < losses[0]


def test_dropout_draws_anew_each_step_and_repeats_for_a_seed():
    def gradients(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        module = ORTModule(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).cuda())
        x, results = torch.ones(256, 64, device="cuda"), []
        for _ in range(5):
            module.zero_grad()
            y = module(x)
            y.square().sum().backward()
            results += [y.detach().clone(), next(module.parameters()).grad.clone()]
        return results

    first, again, other = gradients(1), gradients(1), gradients(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    outputs = first[::2]
    # Weights are drawn behind the same seed, so only the masks differ from step to step.
    assert all(not torch.equal(a, b) for i, a in enumerate(outputs) for b in outputs[:i])


def test_what_dropout_drops_gets_no_gradient():
    module = ORTModule(nn.Dropout(0.3).cuda())
    for _ in range(4):
        x = torch.rand(64, 512, device="cuda").add_(1).requires_grad_()
        y = module(x)
        y.sum().backward()
        assert torch.equal(x.grad != 0, y != 0)
        assert 0.27 < float((y == 0).float().mean()) < 0.33


def test_a_model_that_is_evaluated_between_steps():
    eager = Images().double().cuda()
    ours = ORTModule(copy.deepcopy(eager))
    for step in range(6):
        args = images(4, 0)
        for module in (ours, eager):
            module.train()
            module(*args).backward()
            module.eval()
        with torch.no_grad():
            torch.testing.assert_close(ours(*args), eager(*args), rtol=1e-8, atol=1e-9, msg=str(step))


def test_two_modules_train_in_two_threads():
    eager = [LanguageModel().double().cuda() for _ in range(2)]
    ours = [ORTModule(copy.deepcopy(module)) for module in eager]
    (ids, labels), problems = torch.randint(0, 20, (2, 2, 7), device="cuda"), list[str]()

    def train(i: int) -> None:
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.05) for module in (ours[i], eager[i])]
        for step in range(8):
            losses = []
            for module, optimizer in zip((ours[i], eager[i]), optimizers, strict=True):
                optimizer.zero_grad()
                loss = loss_of(module(ids, labels))
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
            if abs(losses[0] - losses[1]) > 1e-8:
                problems.append(f"{i}, {step}: {losses}")

    at_once(*(functools.partial(train, i) for i in range(2)))
    assert not problems


def dropping() -> ORTModule:
    return ORTModule(nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 16)).double().cuda())


def test_forwards_that_wait_for_their_backward_keep_what_they_left():
    """More and more calls are open at once, so graphs of new blocks are recorded after those of older ones."""
    module, x = dropping(), torch.randn(4, 16, dtype=torch.float64, device="cuda")
    parameters = list(module.parameters())
    for count in (1, 1, 1, 2, 3, 4, 4, 4, 4):
        losses = [module(x * (i + 1)).square().sum() for i in range(count)]
        first = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
        # A second backward computes its forward anew, from the same masks, and has nothing open beside it.
        again = [torch.autograd.grad(loss, parameters) for loss in losses]
        torch.testing.assert_close(first, again, rtol=1e-9, atol=1e-11)


def test_threads_keep_what_their_forwards_left():
    module, x = dropping(), torch.randn(4, 16, dtype=torch.float64, device="cuda")

    def work() -> None:
        for _ in range(30):
            loss = module(x).square().sum()
            first = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
            again = torch.autograd.grad(loss, list(module.parameters()))
            torch.testing.assert_close(first, again, rtol=1e-9, atol=1e-11)

    for _ in range(3):
        at_once(*[work] * 4)


def test_a_trainer_accumulates_as_on_the_cpu():
    model = Net()
    on_cpu = make_trainer(copy.deepcopy(model), batch={"gradient_accumulation_steps": 3})
    on_gpu = make_trainer(model.cuda(), device={"id": "cuda"}, batch={"gradient_accumulation_steps": 3})
    for ids, label in batches(9):
        expected = on_cpu.train_step(ids, label)
        torch.testing.assert_close(
            on_gpu.train_step(ids.cuda(), label.cuda())[0].cpu(), expected[0], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_trainer_in_half_precision_learns(dtype):
    trainer = make_trainer(
        Net().cuda(), optim.AdamConfig(lr=0.02), device={"id": "cuda"},
        mixed_precision={"enabled": True, "dtype": dtype}, debug={"check_model_export": False},
    )  # fmt: skip
    ((ids, label),) = batches(1)
    losses = [float(trainer.train_step(ids.cuda(), label.cuda())[0]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_checkpoint_moves_between_cpu_and_gpu(tmp_path):
    model, data = Net(), batches(8)
    first = make_trainer(model.cuda(), device={"id": "cuda"})
    for ids, label in data[:4]:
        first.train_step(ids.cuda(), label.cuda())
    experimental_save_checkpoint(first, tmp_path)
    second = make_trainer(Net(), device={"id": "cpu"})
    experimental_load_checkpoint(second, tmp_path)
    for ids, label in data[4:]:
        expected = first.train_step(ids.cuda(), label.cuda())[0].cpu()
        torch.testing.assert_close(second.train_step(ids, label)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_wrapped_module_refuses_a_batch_on_the_cpu():
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(InputError, match="different devices"):
        ORTModule(LanguageModel().cuda())(ids)


def test_a_trainer_takes_the_gpu_by_itself_and_moves_module_and_batches_there():
    module, data = Net(), batches(4)
    on_cpu = make_trainer(copy.deepcopy(module), optim.SGDConfig(lr=0.1))
    trainer = ORTTrainer(module, DESC, optim.SGDConfig(lr=0.1), loss_fn=token_loss)
    for i, (ids, label) in enumerate(data):
        loss = trainer.train_step(ids if i % 2 else ids.cuda(), label)[0]
        assert loss.is_cuda
        torch.testing.assert_close(loss.cpu(), on_cpu.train_step(ids, label)[0], rtol=1e-4, atol=1e-5)
    assert all(parameter.is_cuda for parameter in module.parameters())


@pytest.mark.parametrize("provider", ["OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider"])
def test_a_provider_without_gpus_trains_on_the_cpu(provider):
    trainer = ORTTrainer(Net(), DESC, optim.SGDConfig(lr=0.1), loss_fn=token_loss, options={"provider": provider})
    ((ids, label),) = batches(1)
    assert trainer.train_step(ids, label)[0].is_cpu and trainer.device == "cpu"
