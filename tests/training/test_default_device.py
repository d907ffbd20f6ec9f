"""A default device that the caller has set is for what the caller's code makes, and not for what ontrain makes.

Module and inputs are on the CPU in all tests, and the default device is another one, "meta", of which nothing can be
read. Each result is the one without a default device, to the bit.
"""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ontrain as ort
from ontrain.errors import CaptureError
from ontrain.training import ORTTrainer, ORTTrainerOptions, optim
from ontrain.training.optim import FP16_Optimizer, FusedAdam, FusedLamb
from ontrain.training.ortmodule import ORTModule

X, LABEL = torch.randn(4, 3, 8, 8), torch.tensor([0, 3, 1, 2])
DESCRIPTION = {
    "inputs": [("x", ["batch", 3, 8, 8]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("logits", ["batch", 5])],
}


class Network(nn.Module):
    """One of each kind of layer whose plan holds constants, draws numbers, or lays weights out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.batch_norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.linear, self.dropout, self.layer_norm = nn.Linear(8 * 36, 16), nn.Dropout(0.1), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.lstm, self.head = nn.LSTM(16, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.batch_norm(self.convolution(x))).flatten(1)
        x = self.layer_norm(self.dropout(self.linear(x)))[:, None].repeat(1, 3, 1)
        x, _ = self.attention(x, x, x)
        x, _ = self.lstm(x)
        return self.head(x.mean(1))


NETWORK = Network()


def loss_of(call: Callable[..., torch.Tensor], x: torch.Tensor = X, label: torch.Tensor = LABEL) -> torch.Tensor:
    return nn.functional.cross_entropy(call(x), label)


def alike(run: Callable[[], Any]) -> None:
    """What `run` returns is the same with a default device and without one."""
    torch.manual_seed(3)
    wanted = run()
    torch.manual_seed(3)
    with torch.device("meta"):
        actual = run()
        assert torch.empty(1).device.type == "meta"
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0)


def trained(network: nn.Module, call: Callable[..., torch.Tensor], optimizer: Any, steps: int = 3) -> list[Any]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(call)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(tensor.detach() for tensor in network.state_dict().values())]


def trainer(config: Any = None, **options: Any) -> ORTTrainer:
    return ORTTrainer(
        copy.deepcopy(NETWORK), DESCRIPTION, config or optim.AdamConfig(lr=1e-3), nn.functional.cross_entropy,
        ORTTrainerOptions({"device": {"id": "cpu"}, **options}),
    )  # fmt: skip


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "FusedAdam": lambda parameters: FusedAdam(parameters, lr=1e-3),
    "FusedLamb": lambda parameters: FusedLamb(parameters, lr=1e-3),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ortmodule_trains(name):
    def run() -> list[Any]:
        network = copy.deepcopy(NETWORK)
        return trained(network, ORTModule(network), OPTIMIZERS[name](network.parameters()))

    alike(run)


def test_optimizers_go_on_from_their_saved_state():
    def run() -> list[Any]:
        network = copy.deepcopy(NETWORK)
        module, optimizer = ORTModule(network), FusedAdam(network.parameters(), lr=1e-3)
        trained(network, module, optimizer, 1)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        later = FusedAdam(network.parameters(), lr=1e-3)
        later.load_state_dict(torch.load(file))
        return trained(network, module, later, 2)

    alike(run)


def test_loss_scaling_of_an_optimizer():
    def run() -> list[Any]:
        network = copy.deepcopy(NETWORK)
        module, optimizer = ORTModule(network), FP16_Optimizer(FusedAdam(network.parameters(), lr=1e-3))
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(module).backward()
            optimizer.step()
        return [tensor.detach() for tensor in network.parameters()]

    alike(run)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (optim.AdamConfig(lr=1e-3), {"utils": {"grad_norm_clip": True}}),
        (optim.LambConfig(lr=1e-3), {}),
        (optim.SGDConfig(lr=0.1), {"batch": {"gradient_accumulation_steps": 2}}),
        (optim.AdamConfig(lr=1e-3), {"lr_scheduler": optim.lr_scheduler.LinearWarmupLRScheduler(10, 0.1)}),
        (
            optim.AdamConfig(lr=1e-3),
            {"mixed_precision": {"enabled": True, "loss_scaler": ort.training.amp.DynamicLossScaler()}},
        ),
    ],
    ids=["clipping", "LAMB", "accumulation", "schedule", "mixed precision"],
)
def test_orttrainer_trains(config, options):
    def run() -> list[Any]:
        runner = trainer(config, **copy.deepcopy(options))
        return [*(runner.train_step(X, LABEL)[0] for _ in range(4)), *runner.eval_step(X, LABEL)]

    alike(run)


def test_orttrainer_goes_on_from_its_checkpoint_and_its_state(tmp_path):
    def run() -> list[Any]:
        runner = trainer()
        runner.train_step(X, LABEL)
        runner.save_checkpoint(str(tmp_path / "checkpoint"))
        resumed, copied = trainer(), trainer()
        resumed.load_checkpoint(str(tmp_path / "checkpoint"))
        copied.load_state_dict(runner.state_dict())
        return [each.train_step(X, LABEL)[0] for each in (runner, resumed, copied)]

    alike(run)


@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "CPUExecutionProvider"])
def test_a_session_runs_and_binds(provider, tmp_path):
    file = str(tmp_path / "network.onnx")
    runner = trainer()
    runner.train_step(X, LABEL)
    runner.save_as_onnx(file)
    feeds = {"x": X.numpy(), "label": LABEL.numpy()}

    def run() -> list[Any]:
        session = ort.InferenceSession(file, providers=[provider])
        named = {value.name: feeds[value.name] for value in session.get_inputs()}
        binding = session.io_binding()
        for name, array in named.items():
            binding.bind_cpu_input(name, array)
        for value in session.get_outputs():
            binding.bind_output(value.name)
        session.run_with_iobinding(binding)
        return [torch.from_numpy(a) for a in (*session.run(None, named), *binding.copy_outputs_to_cpu())]

    alike(run)


def test_torch_compile_trains():
    def run() -> list[Any]:
        torch.compiler.reset()
        network = copy.deepcopy(NETWORK)
        compiled = torch.compile(network, backend="ontrain")
        return trained(network, compiled, torch.optim.SGD(network.parameters(), lr=0.1))

    alike(run)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([5, 2, 3], device="cpu")
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0].sum()


class Varied(nn.Module):
    """An autograd function, a branch on values, a mask, a CTC loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if y.sum() > 0:
            y = y * 2
        label = torch.tensor([[1, 2], [3, 4], [1, 1]], device="cpu")
        aligned = nn.functional.ctc_loss(y.log_softmax(-1).transpose(0, 1), label, (5, 5, 5), (2, 2, 2))
        return Sign.apply(y).sum() + x[x > 0].square().sum() + aligned


@pytest.mark.parametrize("kind", [Packs, Varied])
def test_what_a_capture_has_to_write_otherwise(kind):
    network, x = kind(), torch.randn(3, 5, 4)

    def run() -> list[Any]:
        module = ORTModule(copy.deepcopy(network))
        results = [module(x * sign) for sign in (1, -1)]
        sum(results).backward()
        return [*(r.detach() for r in results), *(p.grad for p in module.parameters())]

    alike(run)


class AsksWhere(nn.Module):
    """Makes a tensor without naming a device, and looks where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (2 if torch.zeros(1).device.type == "meta" else 3)


@pytest.mark.parametrize("cached", [False, True])
def test_what_forward_makes_is_where_eager_makes_it_in_each_call(cached, tmp_path, monkeypatch):
    """Also where the capture is another call's, or another process's."""
    if cached:
        monkeypatch.setenv("ONTRAIN_CACHE_DIR", str(tmp_path))
    network, x = AsksWhere(), torch.randn(3, 4)
    module = ORTModule(network)
    for each in (module, module, ORTModule(copy.deepcopy(network))):
        torch.testing.assert_close(each(x), network(x))
        with torch.device("meta"):
            torch.testing.assert_close(each(x), network(x))
        with torch.device("cpu"):
            torch.testing.assert_close(each(x), network(x))


class Shifts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + torch.ones(4)


def test_tensors_of_two_devices_are_refused_as_in_eager():
    network, x = Shifts(), torch.randn(3, 4)
    module = ORTModule(network)
    module(x).sum().backward()
    with torch.device("meta"):
        with pytest.raises(RuntimeError, match="device"):
            network(x)
        with pytest.raises((ValueError, RuntimeError), match="device"):
            module(x)
        with pytest.raises(CaptureError, match=r"two devices(.|\n)*meta(.|\n)*way out: name the device"):
            ORTModule(network)(x)
    torch.testing.assert_close(module(x), network(x))


def test_a_device_that_is_set_between_forward_and_backward():
    network = copy.deepcopy(NETWORK)
    module = ORTModule(network)
    torch.manual_seed(5)
    loss_of(module).backward()
    wanted = [p.grad.clone() for p in network.parameters()]
    network.load_state_dict(NETWORK.state_dict())
    network.zero_grad()
    torch.manual_seed(5)
    loss = loss_of(module)
    with torch.device("meta"):
        loss.backward()
    torch.testing.assert_close([p.grad for p in network.parameters()], wanted, rtol=0, atol=0)


def test_a_default_device_of_another_thread():
    """It belongs to a thread: what one has set, another one does not see."""
    network, results = copy.deepcopy(NETWORK).eval(), []
    module = ORTModule(network)

    def run() -> None:
        with torch.device("meta"):
            results.append(module(X))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    results.append(module(X))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
