"""Several processes train as one does on their batches together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ontrain import CheckpointError, NonFiniteLossError, ProcessError
from ontrain.distributed import find_processes
from ontrain.distributed.adasum import adasum_
from ontrain.training import ORTTrainer, optim
from ontrain.training.checkpoint import experimental_load_state_dict, experimental_state_dict
from tests.distributed import together as t

UPDATES = 20
Cases = list[tuple[str, int, int]]


def one_process(config: str, folder: Path, dtype: torch.dtype = torch.float64) -> None:
    """Train on whole batches in this process, and keep the weights as the oracle; eager PyTorch where it can."""
    model = t.net(dtype)
    data = [t.joined(parts) for parts in t.batches(UPDATES)]
    if config == "SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=float(torch.tensor(0.2)))
        for ids, label in data:
            optimizer.zero_grad()
            t.token_loss(model(ids), label).backward()
            optimizer.step()
        weights = model.state_dict()
    else:
        trainer = t.trainer(config, model)
        for batch in data:
            trainer.train_step(*batch)
        weights = t.weights(trainer)
    torch.save(weights, folder / f"{config}.pt")


def all_cases(cases: Cases, folder: Path) -> None:
    """What each process does, one thing after the other, because starting processes is what takes time."""
    me = find_processes()
    equal_to_one(cases, folder)
    adaptive_summation()
    if me.world_size == 2:
        unequal_batches_and_an_infinite_one()
        halves_of_the_range()
        weights_of_process_0()
        masks_differ()
        running_statistics()
        adaptive_training()
        refused()
        checkpoints_here(folder)
    else:
        checkpoints_there(folder)


def equal_to_one(cases: Cases, folder: Path, dtype: torch.dtype = torch.float64, tolerance: float = 1e-12) -> None:
    me = find_processes()
    for config, steps, stage in cases:
        trainer = t.trainer(config, t.net(dtype, seed=3 + me.rank), stage, steps)  # weights are those of process 0
        t.train(trainer, t.batches(UPDATES), steps)
        oracle = torch.load(folder / f"{config}.pt")
        assert t.furthest(t.weights(trainer), oracle) < tolerance, (config, steps, stage, me.rank)
        assert trainer.train_step_info.optimization_step == UPDATES
        if config == "Adam":
            sizes(trainer, stage)


def sizes(trainer: ORTTrainer, stage: int) -> None:
    """Moments take a part of the memory for each process that shares them."""
    me = find_processes()
    session, _ = trainer.prepare(*t.own_batches(t.batches(1)[0], 1, me.rank, me.world_size)[0])
    flat = {key: tensor.nbytes for key, tensor in session.state.flat.items()}
    moments = sum(size for (kind, _, _), size in flat.items() if kind.startswith("exp_avg"))
    whole = 2 * sum(size for (kind, _, _), size in flat.items() if kind == "parameter")
    gaps = 2 * 64 * len(session.trainable)
    parts = me.world_size if stage else 1
    assert whole / parts - gaps <= moments <= whole / parts + gaps


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


LINE = {
    "inputs": [("x", ["batch", 3]), ("label", ["batch", 2])],
    "outputs": [("loss", [], True), ("y", ["batch", 2])],
}


def line_trainer(model: nn.Module, config: Any, **sections: Any) -> ORTTrainer:
    asked = {"distributed": {**find_processes().options(), **sections.pop("distributed", {})}, "device": {"id": "cpu"}}
    return ORTTrainer(model, LINE, config, nn.functional.mse_loss, {**asked, **sections})


def unequal_batches_and_an_infinite_one() -> None:
    me = find_processes()
    torch.manual_seed(8)
    model = Line().double()
    eager = Line().double()
    eager.load_state_dict(model.state_dict())
    trainer = line_trainer(model, optim.SGDConfig(lr=0.125))
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.125)
    for number in range(6):
        x, y = torch.randn(5, 3).double(), torch.randn(5, 2).double()
        if number == 3:
            x[4] = torch.inf  # of process 1 alone
        mine = slice(0, 2) if me.rank == 0 else slice(2, 5)
        if number == 3:
            before = t.weights(trainer)
            with pytest.raises(NonFiniteLossError):
                trainer.train_step(x[mine], y[mine])
            assert t.furthest(t.weights(trainer), before) == 0 and not trainer.train_step_info.all_finite
            continue
        _, norm, finite = trainer.train_step(x[mine], y[mine], fetches=["loss", "grad_norm", "all_finite"])
        optimizer.zero_grad()
        nn.functional.mse_loss(eager(x), y).backward()
        assert bool(finite)
        torch.testing.assert_close(
            float(norm), float(torch.nn.utils.get_total_norm(p.grad for p in eager.parameters()))
        )
        optimizer.step()
    assert t.furthest(t.weights(trainer), eager.state_dict()) < 1e-12
    assert trainer.train_step_info.optimization_step == 5


def halves_of_the_range() -> None:
    """In float16 all processes skip what one of them overflows at, and agree on the scale."""
    me = find_processes()
    trainer = t.trainer("Adam", t.net(torch.float32), mixed_precision={"enabled": True})
    scales = []
    for parts in t.batches(6):
        t.train(trainer, [parts])
        scales.append((trainer.options.mixed_precision.loss_scaler.loss_scale, trainer.train_step_info.all_finite))
    done = trainer.train_step_info.optimization_step
    for parts in t.batches(3):
        ids, label = t.joined(parts)
        trainer.train_step(ids, torch.full_like(label, -100) if me.rank else label)
    assert trainer.train_step_info.optimization_step > done, "a process without any label holds up nobody"
    everyone = trainer._run.setup.reduction.world.gather(scales)
    assert everyone[me.rank] == everyone[0] == everyone[1]
    digests = trainer._run.setup.reduction.world.gather([float(w.double().sum()) for w in t.weights(trainer).values()])
    assert digests[0] == digests[1]


def weights_of_process_0() -> None:
    """It is enough that process 0 has loaded weights; what it alone has trained on is noticed."""
    me = find_processes()
    loaded = t.trainer("SGD", t.net(seed=20))
    batch = t.own_batches(t.batches(1)[0], 1, me.rank, me.world_size)[0]
    loaded.train_step(*batch)
    state = loaded.state_dict()
    trainer, twin = t.trainer("SGD", t.net(seed=21)), t.trainer("SGD", t.net(seed=21))
    if me.rank == 0:
        trainer.load_state_dict({"model": state["model"], "trainer_options": state["trainer_options"]})
        twin.load_state_dict(state)
    trainer.train_step(*batch)
    loaded.train_step(*batch)
    assert t.furthest(t.weights(trainer), t.weights(loaded)) == 0
    with pytest.raises(ProcessError, match="the updates that they have made: 1 on rank 0; 0 on rank 1"):
        twin.train_step(*batch)


def masks_differ() -> None:
    """Processes drop out different elements of equal batches."""
    trainer = t.trainer("SGD", t.net(dropout=0.5))
    loss = float(trainer.train_step(*t.joined(t.batches(1)[0][:4]))[0])
    losses = trainer._run.setup.reduction.world.gather(loss)
    assert losses[0] != losses[1]


def running_statistics() -> None:
    """They are those of process 0, which saw its own batch."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    eager = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    eager.load_state_dict(model.state_dict())
    trainer = line_trainer(model, optim.SGDConfig(lr=0.125))
    x, y = torch.randn(2, 4, 3).double(), torch.randn(2, 4, 2).double()
    rank = find_processes().rank
    trainer.train_step(x[rank], y[rank])
    eager(x[0])
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(t.weights(trainer)[name], eager.state_dict()[name])


def summed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Two gradients by the paper's formula, equation 3."""
    product = float(a @ b)
    left = 1 - product / (2 * float(a @ a)) if float(a @ a) else 1.0
    right = 1 - product / (2 * float(b @ b)) if float(b @ b) else 1.0
    return left * a + right * b


def tree(vectors: list[torch.Tensor]) -> torch.Tensor:
    while len(vectors) > 1:
        vectors = [summed(*vectors[start : start + 2]) for start in range(0, len(vectors), 2)]
    return vectors[0]


def adaptive_summation() -> None:
    me = find_processes()
    world = t.trainer("SGD")._run.setup.reduction.world
    torch.manual_seed(1)
    spans = [(0, 7), (8, 11), (11, 12), (16, 29)]
    everyone = torch.randn(me.world_size, 31).double()
    everyone[1, 8:11] = 0  # a gradient that is zero
    everyone[0, 16:29] = everyone[1, 16:29]  # and two that are equal
    summed = adasum_(world, everyone[me.rank].clone(), spans)
    for start, stop in spans:
        torch.testing.assert_close(summed[start:stop], tree(list(everyone[:, start:stop])), rtol=1e-12, atol=1e-12)
    if me.world_size == 2:
        torch.testing.assert_close(summed[16:29], everyone[0, 16:29])  # what is shared counts once
    texts = world.gather(summed.tolist())
    assert all(text == texts[0] for text in texts)


def adaptive_training() -> None:
    me = find_processes()
    for stage in (0, 1):
        torch.manual_seed(8)
        model = Line().double()
        eager = Line().double()
        eager.load_state_dict(model.state_dict())
        several = {"enable_adasum": True, "deepspeed_zero_optimization": {"stage": stage}}
        trainer = line_trainer(model, optim.SGDConfig(lr=0.125), distributed=several)
        for _ in range(3):
            x, y = torch.randn(2, 4, 3).double(), torch.randn(2, 4, 2).double()
            trainer.train_step(x[me.rank], y[me.rank])
            grads = []
            for rank in range(2):
                eager.zero_grad()
                nn.functional.mse_loss(eager(x[rank]), y[rank]).backward()
                grads.append([p.grad.flatten().clone() for p in eager.parameters()])
            with torch.no_grad():
                for p, a, b in zip(eager.parameters(), *grads, strict=True):
                    p -= 0.125 * summed(a, b).view_as(p)
        assert t.furthest(t.weights(trainer), eager.state_dict()) < 1e-12


def refused() -> None:
    """Who would train something else is named, with what differs, before the first step."""
    me = find_processes()
    odd = me.rank == 1
    for make, says in (
        (lambda: t.trainer("Adam", t.net(width=8 if odd else 6)), r"'embed.weight' of the model.*8\].* on rank 1"),
        (lambda: t.trainer("Adam", steps=2 if odd else 1), "gradients accumulated: 1 on rank 0; 2 on rank 1"),
        (lambda: t.trainer("Lamb" if odd else "Adam"), "the optimizer: AdamW? on rank 0; Lamb on rank 1"),
    ):
        trainer = make()
        with pytest.raises(ProcessError, match=says):
            trainer.train_step(*t.joined(t.batches(1)[0][:2]))


def flat_of_all(trainer: ORTTrainer, stage: int) -> list[dict[str, torch.Tensor]]:
    """The flat state of both processes; in stage 1 each says that it has its own share only."""
    states: list[Any] = [None, None]
    with pytest.warns(UserWarning, match="rank . of 2") if stage else nullcontext():
        flat = experimental_state_dict(trainer)
    torch.distributed.all_gather_object(states, flat)
    return states


def checkpoints_here(folder: Path) -> None:
    """Two processes save, between updates and in the midst of one; what they go on to is kept as the oracle."""
    for stage in (0, 1):
        trainer = t.trainer("Lamb", stage=stage, steps=4)
        data = t.batches(8)
        t.train(trainer, data[:4], 4)
        trainer.save_checkpoint(folder / f"between{stage}", {"epoch": 3})
        me = find_processes()
        micro = t.own_batches(data[4], 4, me.rank, 2)
        for batch in micro[:2]:
            trainer.train_step(*batch)
        trainer.save_checkpoint(folder / f"amidst{stage}")
        own, flat = trainer.state_dict(), flat_of_all(trainer, stage)
        for batch in micro[2:]:
            trainer.train_step(*batch)
        t.train(trainer, data[5:], 4)
        for source in ("file", "memory", "flat")[: 1 + 2 * stage]:
            other = t.trainer("Lamb", stage=stage, steps=4)
            if source == "file":
                other.load_checkpoint(folder / f"amidst{stage}")
            elif source == "flat":
                experimental_load_state_dict(other, flat[me.rank], strict=True)
            else:
                other.load_state_dict(own)
            for batch in micro[2:]:
                other.train_step(*batch)
            t.train(other, data[5:], 4)
            assert t.furthest(t.weights(other), t.weights(trainer)) == 0, "a resumed run equals one that never stopped"
            if source == "flat":
                with pytest.raises(CheckpointError, match=f"the share of rank {1 - me.rank} of 2"):
                    experimental_load_state_dict(other, flat[1 - me.rank])
    if me.rank == 0:
        torch.save(t.weights(trainer), folder / "after.pt")


def checkpoints_there(folder: Path) -> None:
    """Four processes go on from what two saved."""
    me = find_processes()
    for stage, saved in ((1, "between0"), (0, "between1"), (1, "between1")):
        trainer = t.trainer("Lamb", stage=stage)
        assert trainer.load_checkpoint(folder / saved) == {"epoch": 3}
        t.train(trainer, t.batches(8)[4:])
        assert t.furthest(t.weights(trainer), torch.load(folder / "after.pt")) < 1e-12
    trainer = t.trainer("Lamb", stage=1, steps=3)
    trainer.load_checkpoint(folder / "amidst1")
    # Of each half of the parts, which one process had, the first half was seen; the rest is dealt out anew.
    parts = t.batches(8)[4]
    rest = [*parts[4:8], *parts[12:16]]
    trainer.train_step(*t.joined(rest[2 * me.rank : 2 * me.rank + 2]))
    assert trainer.train_step_info.optimization_step == 5
    two = t.trainer("Lamb", stage=0)
    two.load_checkpoint(folder / "between0")
    t.train(two, [parts])
    assert t.furthest(t.weights(trainer), t.weights(two)) < 1e-12
    trainer.save_checkpoint(folder / "four")


CASES = {
    2: [("SGD", 1, 0), ("SGD", 4, 1), ("Adam", 1, 1), ("Adam", 4, 0), ("Lamb", 1, 0), ("Lamb", 4, 1)],
    4: [("SGD", 1, 1), ("Adam", 4, 1), ("Lamb", 1, 1), ("Lamb", 4, 0)],
}


def test_two_and_four_processes_train_as_one_does(tmp_path: Path) -> None:
    for config in t.CONFIGS:
        one_process(config, tmp_path)
    for size, cases in CASES.items():
        t.run(size, all_cases, cases, tmp_path)
    # One process goes on from what four saved.
    trainer, twin = (t.trainer("Lamb", steps=steps) for steps in (1, 1))
    trainer.load_checkpoint(tmp_path / "four")
    twin.load_checkpoint(tmp_path / "between1")
    data = [t.joined(parts) for parts in t.batches(8)]
    twin.train_step(*data[4])
    for batch in data[5:]:
        assert trainer.train_step(*batch)[0] == pytest.approx(float(twin.train_step(*batch)[0]), rel=1e-12)
    assert t.furthest(t.weights(trainer), torch.load(tmp_path / "after.pt")) < 1e-12
    said = json.loads((tmp_path / "four" / "state.json").read_text())["trainer_options"]
    assert (said["world_size"], said["zero_stage"]) == (4, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
def test_every_optimizer_accumulation_and_stage(
    tmp_path: Path, size: int, dtype: torch.dtype, tolerance: float
) -> None:
    for config in t.CONFIGS:
        one_process(config, tmp_path, dtype)
    cases = [(config, steps, stage) for config in t.CONFIGS for steps in (1, 4) for stage in (0, 1)]
    t.run(size, equal_to_one, cases, tmp_path, dtype, tolerance)


def as_mpirun_starts_it(folder: Path) -> None:
    """The script that the test below gives to mpirun."""
    me = find_processes()
    trainer = t.trainer("Lamb", t.net(seed=3 + me.rank), stage=1)
    t.train(trainer, t.batches(2))
    torch.save(t.weights(trainer), folder / f"{me.launcher}{me.rank}of{me.world_size}.pt")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="OpenMPI is not installed")
def test_processes_that_mpirun_started(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from tests.distributed import test_training as t; "
        "t.as_mpirun_starts_it(pathlib.Path(sys.argv[1]))"
    )
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, "-c", script, str(tmp_path)]
    env = {**os.environ, "MASTER_PORT": str(t.free_port()), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(start, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    trainer = t.trainer("Lamb")
    for parts in t.batches(2):
        trainer.train_step(*t.joined(parts))
    for rank in range(2):
        assert t.furthest(torch.load(tmp_path / f"OpenMPI{rank}of2.pt"), t.weights(trainer)) < 1e-12
