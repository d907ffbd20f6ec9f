"""Plans that are recorded and played: the same numbers as plain runs, and a reason where one runs plainly for good."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

from ontrain import OptionError
from ontrain.providers import get_provider, registry
from ontrain.providers.torch.replay import WARM_UP, CudaRecorder, PlanPart, Pool, Recording, told
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from tests.providers.torch.recorder import CpuRecorder, recorded

pytestmark = pytest.mark.usefixtures("captured_once")

STEPS = 5


class Network(nn.Module):
    """An embedding, attention with dropout, a norm and a classifier: what plans are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.layer, self.dropout, self.head = nn.Linear(16, 48), nn.Dropout(0.3), nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.layer(self.embedding(ids)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)
        return self.head(self.norm(self.dropout(attended.transpose(1, 2).flatten(2))).mean(1))


def make_trainer(network: nn.Module, **options) -> ORTTrainer:
    description = {"inputs": [("ids", ["batch", "length"]), ("label", ["batch"])], "outputs": [("loss", [], True)]}
    return ORTTrainer(
        copy.deepcopy(network), description, optim.AdamConfig(lr=0.01), nn.functional.cross_entropy,
        {"utils": {"seed": 3}, **options},
    )  # fmt: skip


def batches(*lengths: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randint(0, 50, (4, n), generator=generator), torch.randint(0, 5, (4,), generator=generator))
        for n in lengths
    ]


def losses(trainer: ORTTrainer, *lengths: int, device: str = "cpu") -> list[float]:
    return [float(trainer.train_step(*(t.to(device) for t in batch))) for batch in batches(*lengths)]


def played(network: nn.Module, recorder: CpuRecorder, **options) -> ORTTrainer:
    trainer = make_trainer(network, **options)
    trainer._run.setup.provider = recorded(recorder)
    return trainer


def same(trainer: ORTTrainer, other: ORTTrainer) -> None:
    ours, theirs = (t.state_dict(pytorch_format=True) for t in (trainer, other))
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def launched(trainer: ORTTrainer) -> list[str]:
    return [plan.executable.launched for plan in trainer._run.session.plans.values()]


def test_what_is_played_trains_to_the_bit_like_what_runs():
    network, recorder = Network(), CpuRecorder()
    plain, graphed = make_trainer(network), played(network, recorder)
    assert losses(graphed, *[7] * STEPS) == losses(plain, *[7] * STEPS)
    same(graphed, plain)
    assert recorder.recorded == 2, "a micro-step and an update"
    assert recorder.played == 2 * (STEPS - WARM_UP)
    assert launched(graphed) == ["as CUDA graphs"]


def test_a_part_runs_plainly_before_it_is_recorded():
    recorder = CpuRecorder()
    trainer = played(Network(), recorder)
    losses(trainer, *[7] * WARM_UP)
    assert recorder.recorded == 0 and launched(trainer) == ["plainly at first, then as CUDA graphs"]


def test_each_shape_has_recordings_of_its_own_and_a_larger_arena_makes_them_anew():
    network, recorder = Network(), CpuRecorder()
    plain, graphed = make_trainer(network), played(network, recorder)
    lengths = [5, 5, 5, 9, 9, 9, 5, 5, 5, 9, 5]  # the arena grows at the first 9
    assert losses(graphed, *lengths) == losses(plain, *lengths)
    same(graphed, plain)
    assert recorder.recorded == 6, "each shape's two parts, those of the first twice"


def test_accumulated_micro_batches_are_played_too():
    network, recorder = Network(), CpuRecorder()
    options = {"batch": {"gradient_accumulation_steps": 2}}
    plain, graphed = make_trainer(network, **options), played(network, recorder, **options)
    assert losses(graphed, *[6] * 8) == losses(plain, *[6] * 8)
    same(graphed, plain)
    assert recorder.played > 0


def test_a_step_that_is_skipped_leaves_the_update_for_later():
    network, recorder = Network(), CpuRecorder()
    options = {"utils": {"seed": 3, "nonfinite_loss": "skip"}}
    plain, graphed = make_trainer(network, **options), played(network, recorder, **options)
    for trainer in (plain, graphed):
        losses(trainer, 6)
        before = trainer.parameter("head.bias")
        trainer.set_parameter("head.bias", torch.full_like(before, float("nan")))
        losses(trainer, 6)
        trainer.set_parameter("head.bias", before)
        losses(trainer, *[6] * 4)
    same(graphed, plain)
    assert launched(graphed) == ["as CUDA graphs"]


@pytest.mark.parametrize("calls", [1, 2], ids=["one call", "two calls before backward"])
def test_a_module_in_a_users_loop_is_played_to_the_bit(calls):
    torch.manual_seed(1)
    network, recorder = Network(), CpuRecorder()
    runs = []
    for graphed in (False, True):
        torch.manual_seed(2)
        module = ORTModule(copy.deepcopy(network))
        with pytest.MonkeyPatch.context() as patch:
            if graphed:
                patch.setitem(registry._BUILT_IN, "TorchExecutionProvider", lambda device, **_: recorded(recorder))
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for ids, label in batches(*[6] * 6):
                optimizer.zero_grad()
                sum(nn.functional.cross_entropy(module(ids), label) for _ in range(calls)).backward()
                optimizer.step()
        runs.append([p.detach().clone() for p in module.parameters()])
    assert recorder.played > 0
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    # A forward and its backward share a pool; what lives at the same time has pools of its own.
    assert len(set(map(id, recorder.pools))) == calls and recorder.recorded == 2 * calls


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.cond(y.sum() > 0, lambda t: t * 2.0, lambda t: t - 1.0, (y,))


def test_a_branch_by_a_value_runs_plainly_and_says_so():
    torch.manual_seed(0)
    description = {"inputs": [("x", ["batch", 4]), ("label", ["batch"])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Branching(), description, optim.SGDConfig(lr=0.1), nn.functional.cross_entropy)
    trainer._run.setup.provider = recorded(CpuRecorder())
    for _ in range(3):
        trainer.train_step(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    assert launched(trainer) == ["plainly: If asks the device for a number"]


def test_what_cannot_be_recorded_runs_plainly_and_says_why(caplog):
    network, recorder = Network(), CpuRecorder(refuses="operation not permitted when stream is capturing\nmore")
    plain, graphed = make_trainer(network), played(network, recorder)
    with caplog.at_level(logging.WARNING, logger="ontrain.phases"):
        assert losses(graphed, *[7] * STEPS) == losses(plain, *[7] * STEPS)
    same(graphed, plain)
    reason = "it cannot be recorded: operation not permitted when stream is capturing"
    assert launched(graphed) == [f"plainly: {reason}"]
    assert [record.getMessage() for record in caplog.records].count(
        f"a part of a plan runs plainly, not as a CUDA graph: {reason}"
    ) == 2, "once for each part"


def test_a_part_that_takes_results_of_a_plain_one_is_not_recorded():
    recorder = CpuRecorder()
    first = PlanPart(lambda held: [torch.ones(1)], None, why_not="it waits")
    second = PlanPart(lambda held: [held.pop() + 1], recorder, before=first, warm_up=0)
    assert float(second(first([]))[0]) == 2
    assert recorder.recorded == 0 and told([first, second]).startswith("plainly: it waits; it takes results")


def test_results_that_wait_for_the_next_part_stay_where_they_are():
    recorder, x = CpuRecorder(), torch.zeros(3)
    first = PlanPart(lambda held: [x * 2], recorder, warm_up=0)
    second = PlanPart(lambda held: [held.pop() + 1], recorder, before=first, warm_up=0)
    for number in range(4):
        x.fill_(number)
        held = first([])
        assert second(held)[0].tolist() == [2 * number + 1] * 3 and held == []


def test_the_switch_turns_it_off(monkeypatch):
    cuda = torch.device("cuda")
    assert Recording.on(cuda, wanted=True).recorder is not None
    assert Recording.on(cuda, wanted=False).why_not == "cuda_graphs is off"
    assert Recording.on(torch.device("cpu"), wanted=True).why_not == "the device is cpu, not cuda"
    assert get_provider("TorchExecutionProvider", "cpu").settings.cuda_graphs
    assert not get_provider("TorchExecutionProvider", "cpu", {"cuda_graphs": False}).settings.cuda_graphs
    monkeypatch.setenv("ONTRAIN_CUDA_GRAPHS", "0")
    assert not get_provider("TorchExecutionProvider", "cpu").settings.cuda_graphs
    monkeypatch.setenv("ONTRAIN_CUDA_GRAPHS", "2")
    with pytest.raises(OptionError, match="cuda_graphs is 2"):
        get_provider("TorchExecutionProvider", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_graphs_on_a_gpu_train_to_the_bit_like_plain_launches(precision):
    network = Network().cuda()
    half = {"mixed_precision": {"enabled": True, "dtype": precision}} if precision != "float32" else {}
    runs = []
    for graphs in (True, False):
        trainer = make_trainer(
            network, device={"id": "cuda"}, provider=("TorchExecutionProvider", {"cuda_graphs": graphs}), **half
        )
        runs.append((losses(trainer, *[8] * 6, *[16] * 6, *[8] * 3, device="cuda"), trainer))
    (graphed, trainer), (plain, other) = runs
    assert set(launched(trainer)) == {"as CUDA graphs"}
    assert set(launched(other)) == {"plainly: cuda_graphs is off"}
    assert graphed == plain
    same(trainer, other)


@pytest.mark.gpu
def test_a_module_on_a_gpu_is_played_to_the_bit(monkeypatch):
    network, runs = Network().cuda(), []
    for graphs in ("1", "0"):
        monkeypatch.setenv("ONTRAIN_CUDA_GRAPHS", graphs)
        torch.manual_seed(2)
        module = ORTModule(copy.deepcopy(network))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for ids, label in batches(*[6] * 6):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(ids.cuda()), label.cuda()).backward()
            optimizer.step()
        runs.append([p.detach().clone() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.gpu
def test_a_recording_that_ends_early_leaves_generators_as_they_were():
    device = torch.device("cuda")
    own, x = torch.Generator(device).manual_seed(5), torch.ones(4, device=device)
    torch.cuda.manual_seed(3)
    wanted = torch.rand(4, device=device), torch.rand(4, device=device, generator=own)
    torch.cuda.manual_seed(3)
    own.manual_seed(5)
    recorder = CudaRecorder(device)
    with pytest.raises(RuntimeError):
        recorder.record(lambda: x.sum().item(), [own], Pool())
    drawn = torch.rand(4, device=device), torch.rand(4, device=device, generator=own)
    assert all(torch.equal(a, b) for a, b in zip(drawn, wanted, strict=True))
    y = torch.zeros(4, device=device)
    play = recorder.record(lambda: y.copy_(torch.rand(4, device=device, generator=own)), [own], Pool())
    drawn = []
    for _ in range(2):
        play()
        drawn.append(y.clone())
    assert not torch.equal(*drawn)


@pytest.mark.gpu
def test_a_recorder_goes_on_when_all_its_graphs_are_gone():
    device, y = torch.device("cuda"), torch.zeros(4, device="cuda")
    recorder, pool = CudaRecorder(device), Pool()
    for number in (1.0, 2.0, 3.0):
        play = recorder.record(lambda number=number: y.copy_(torch.full_like(y, number).mul(2)), [], pool)
        play()
        assert y.tolist() == [2 * number] * 4
        del play
