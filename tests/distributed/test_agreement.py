"""Processes that would make different updates make none, and all of them say what differs, and where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ontrain import ProcessError
from ontrain.capi import ort_trainer as first_api
from ontrain.distributed import find_processes
from ontrain.training import ORTTrainer, optim
from tests.distributed import together as t
from tests.processes import start


def is_odd() -> bool:
    """Whether this is the process that does something else than the others: not the first, and not the last."""
    return find_processes().rank == 1


def batch() -> Any:
    return t.batches(1)[0][find_processes().rank]


@contextmanager
def refused(trainer: ORTTrainer, what: str) -> Iterator[None]:
    """All processes are told of a difference, each in the same words, and no parameter changes."""
    before = t.weights(trainer)
    with pytest.raises(ProcessError) as raised:
        yield
    told = str(raised.value)
    assert f"the processes differ in {what}" in told, told
    assert " on rank 1" in told.partition("\n")[0]
    assert len(set(trainer._run.setup.reduction.world.gather(told))) == 1
    assert t.furthest(t.weights(trainer), before) == 0


def first_step_is_refused(trainer: ORTTrainer, what: str) -> None:
    with refused(trainer, what):
        trainer.train_step(*batch())


def goes_on(trainer: ORTTrainer, updates: int) -> None:
    """After a refusal, once the processes agree again, training goes on and the replicas stay equal."""
    trainer.train_step(*batch())
    assert trainer.train_step_info.optimization_step == updates
    sums = trainer._run.setup.reduction.world.gather([float(w.double().sum()) for w in t.weights(trainer).values()])
    assert all(theirs == sums[0] for theirs in sums)


class Own(optim.lr_scheduler._LRScheduler):
    """A schedule that follows what a user measures, as ReduceLROnPlateau does."""

    rate = 0.02

    def get_lr(self, train_step_info: Any) -> list[float]:
        return [self.rate]


class PerToken(nn.Module):
    """A loss of torch's on scores and labels of each token."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return self.loss(scores.flatten(0, 1), label.flatten())


def loss_after_evaluation() -> None:
    """The loss is captured when the first label comes, long after the processes have met."""
    loss = PerToken(nn.CrossEntropyLoss(label_smoothing=0.2 if is_odd() else 0.1))
    sections = {"distributed": find_processes().options() | {"timeout": 300}, "device": {"id": "cpu"}}
    trainer = ORTTrainer(t.net(), t.DESCRIPTION, optim.AdamConfig(lr=0.02), loss, sections)
    trainer.eval_step(batch()[0])
    first_step_is_refused(trainer, "the constant")


def at_the_start() -> None:
    odd = is_odd()
    no_decay = [{"params": ["mix.bias"], "lambda_coef": 0.5 if odd else 0.0}]
    weight = torch.full((t.VOCABULARY,), 2.0 if odd else 1.0)

    def weighted(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), label.flatten(), weight=weight.double())

    double = weight.double()

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(double.clone(), requires_grad=False)

        def forward(self, scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(scores.flatten(0, 1), label.flatten(), weight=self.weight)

    def counted(limit: int) -> Any:
        """A loss of the classes below a limit."""
        return lambda scores, label: (
            nn.functional.cross_entropy(scores.flatten(0, 1), label.flatten(), reduction="none")
            * (label.flatten() < limit)
        ).mean()

    def reordered(order: list[int]) -> Any:
        """A loss with classes in another order."""
        place = torch.tensor([*order, *range(2, t.VOCABULARY)])
        return lambda scores, label: nn.functional.cross_entropy(scores.flatten(0, 1)[:, place], label.flatten())

    def masked(rows: Any) -> Any:
        """A loss of some of the scores."""
        mask = torch.tensor([number in rows for number in range(t.VOCABULARY)])
        return lambda scores, label: nn.functional.cross_entropy(
            scores.flatten(0, 1).masked_fill(mask, 0.0), label.flatten()
        )

    def smoothed(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), label.flatten(), ignore_index=3 if odd else -100)

    def of(config: Any = None, loss: Any = t.token_loss, model: nn.Module | None = None, **sections: Any) -> ORTTrainer:
        sections["distributed"] = find_processes().options() | {"timeout": 300}
        config = config or optim.AdamConfig(lr=0.02)
        return ORTTrainer(model or t.net(), t.DESCRIPTION, config, loss, {"device": {"id": "cpu"}, **sections})

    frozen = t.net()
    frozen.mix.weight.requires_grad_(not odd)
    cases = [
        (of(optim.AdamConfig(lr=0.03 if odd else 0.02)), "the learning rate: 0.02 on ranks 0, 2; 0.03 on rank 1"),
        (of(optim.AdamConfig(alpha=0.8 if odd else 0.9)), "the optimizer's alpha for"),
        (of(optim.AdamConfig(epsilon=1e-6 if odd else 1e-8)), "the optimizer's epsilon for"),
        (of(optim.AdamConfig(params=no_decay)), "the optimizer's weight_decay for 'mix.bias'"),
        (of(utils={"max_grad_norm": 0.5 if odd else 1.0}), "the norm to clip to"),
        (of(utils={"frozen_weights": ["mix.weight"] if odd else []}), "'mix.weight' of the model"),
        (of(model=frozen), "'mix.weight' of the model"),
        (of(model=t.net(torch.float32 if odd else torch.float64)), "'embed.weight' of the model"),
        (of(model=t.net(dropout=0.1 if odd else 0.2)), "the constant"),
        (of(loss=weighted), "the constant"),
        (of(loss=smoothed), "node "),
        (of(loss=PerToken(nn.CrossEntropyLoss(weight=double.clone()))), "the loss function's 'loss.weight'"),
        (of(loss=Frozen()), "the loss function's 'weight'"),
        (of(loss=counted(5 if odd else 4)), "the constant"),
        (of(loss=reordered([1, 0] if odd else [0, 1])), "the constant"),
        (of(loss=masked({1} if odd else {2, 5})), "the constant"),
        (of(batch={"gradient_accumulation_steps": 2 if odd else 1}), "gradients accumulated"),
        (of(graph_transformer={"disabled_passes": ["LinearToGemm"] if odd else []}), "the option graph_transformer"),
        (of(lr_scheduler=Own() if odd else None), "the option lr_scheduler"),
        (of(utils={"nonfinite_loss": "skip" if odd else "raise"}), "the option utils.nonfinite_loss"),
    ]
    for trainer, what in cases:
        first_step_is_refused(trainer, what)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONTRAIN_LOGITS_BYTES", "1000" if odd else "2000")
        first_step_is_refused(of(), "the environment variable ONTRAIN_LOGITS_BYTES: 2000 on ranks 0, 2; 1000 on rank 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONTRAIN_CACHE_DIR", f"/nowhere/{find_processes().rank}")  # may differ
        of().train_step(*batch())


def two_stages() -> None:
    """One process has moments of its own, the other a share: they would wait for each other in other collectives."""
    trainer = t.trainer("Adam", stage=find_processes().rank, distributed={"timeout": 60})
    with refused(trainer, "the ZeRO stage: 0 on rank 0; 1 on rank 1"):
        trainer.train_step(*batch())


def learning_rates(stage: int, config: str) -> None:
    """Set by hand, from one step to the next, and amid the micro-batches of an update."""
    odd = is_odd()
    trainer = t.trainer(config, stage=stage, steps=2)
    rate = trainer.optim_config.lr
    trainer.train_step(*batch())
    trainer.optim_config.lr = 3 * rate if odd else rate
    with refused(trainer, f"the learning rate: {rate} on ranks 0, 2; {3 * rate} on rank 1"):
        trainer.train_step(*batch())
    trainer.optim_config.lr = rate / 2
    trainer.train_step(*batch())
    goes_on(trainer, 1)


def what_belongs_to_a_step(stage: int) -> None:
    odd = is_odd()
    trainer = t.trainer("Adam", stage=stage)
    trainer.train_step(*batch())
    trainer.options.lr_scheduler = schedule = Own()
    goes_on(trainer, 2)
    schedule.rate = 0.01 if odd else 0.02
    first_step_is_refused(trainer, "the learning rate: 0.02 on ranks 0, 2; 0.01 on rank 1")
    schedule.rate = 0.01
    goes_on(trainer, 3)
    trainer.optim_config.alpha = 0.5 if odd else 0.9
    first_step_is_refused(trainer, "the optimizer's alpha for 'embed.weight': 0.9 on ranks 0, 2; 0.5 on rank 1")
    trainer.optim_config.alpha = 0.5
    goes_on(trainer, 4)
    group = trainer.optim_config.params[0]
    group["lambda_coef"] = 0.5 if odd else 0.0
    first_step_is_refused(trainer, "the optimizer's weight_decay for 'mix.bias': 0.0 on ranks 0, 2; 0.5 on rank 1")
    group["lambda_coef"] = 0.5
    goes_on(trainer, 5)
    trainer.options.utils.max_grad_norm = 0.5 if odd else 1.0
    first_step_is_refused(trainer, "the norm to clip to: 1.0 on ranks 0, 2; 0.5 on rank 1")
    trainer.options.utils.max_grad_norm = None
    goes_on(trainer, 6)
    scaled = t.trainer("Adam", t.net(torch.float32), stage, mixed_precision={"enabled": True})
    scaled.train_step(*batch())
    scaler = scaled.options.mixed_precision.loss_scaler
    common = scaler.loss_scale
    scaler.loss_scale = 2 * common if odd else common
    first_step_is_refused(scaled, f"the loss scale: {int(common)} on ranks 0, 2; {int(2 * common)} on rank 1")


def weights_from_outside(stage: int) -> None:
    odd = is_odd()
    model = t.net()
    trainer = t.trainer("SGD", model, stage)
    trainer.train_step(*batch())
    value = torch.full((6,), 0.5 if odd else 0.25)
    trainer.set_parameter("mix.bias", value)
    first_step_is_refused(trainer, "the value given to 'mix.bias'")
    trainer.set_parameter("mix.bias", torch.ones(6))
    goes_on(trainer, 2)
    model.mix.bias.data = (torch.zeros if odd else torch.ones)(6, dtype=torch.float64)
    trainer._run.adopt(
        trainer._run.session, training=True
    )  # the step does that first, so what it finds is no change of its own
    first_step_is_refused(trainer, "the value given to 'mix.bias'")


def checkpoints(stage: int, folder: Path) -> None:
    """Two that are as old as each other, loaded on different processes, at the start and in mid-training."""
    for seed, place in ((3, "one"), (4, "other")):
        saved = t.trainer("Lamb", t.net(seed=seed), stage)
        saved.train_step(*batch())
        saved.save_checkpoint(folder / f"{place}{stage}")
    fresh, trained = (t.trainer("Lamb", stage=stage) for _ in range(2))
    trained.train_step(*batch())
    for trainer in (fresh, trained):
        trainer.load_checkpoint(folder / f"{'other' if is_odd() else 'one'}{stage}")
    with pytest.raises(ProcessError, match="the processes differ in the state that was loaded: of update 1 with hash"):
        fresh.train_step(*batch())
    first_step_is_refused(trained, "the state that was loaded: of update 1 with hash")
    trained.load_checkpoint(folder / f"one{stage}")
    goes_on(trained, 2)
    if is_odd():
        trained.load_state_dict({"model": trained.state_dict()["model"]})
    first_step_is_refused(trained, "the state that was loaded")


def first_trainers() -> None:
    """The first API is given learning rate and loss scale with each step."""
    me, odd = find_processes(), is_odd()
    description = first_api.ModelDescription(
        [
            first_api.IODescription("ids", ["batch", "length"], torch.int64),
            first_api.IODescription("label", ["batch", "length"], torch.int64),
        ],
        [
            first_api.IODescription("loss", [], torch.float32),
            first_api.IODescription("scores", ["batch", "length", t.VOCABULARY], torch.float32),
        ],
    )
    for stage in (0, 1):
        trainer = first_api.ORTTrainer(
            t.net(torch.float32), t.token_loss, description, "AdamOptimizer", None,
            first_api.IODescription("rate", [1], torch.float32), "cpu", world_rank=me.rank, world_size=me.world_size,
            deepspeed_zero_stage=stage, use_mixed_precision=True,
        )  # fmt: skip
        trainer.train_step(*batch(), torch.tensor([0.02]), torch.tensor([64.0]))
        later = trainer.later_trainer
        with refused(later, "the learning rate"):
            trainer.train_step(*batch(), torch.tensor([0.03 if odd else 0.02]), torch.tensor([64.0]))
        with refused(later, "the loss scale: 64 on ranks 0, 2; 32 on rank 1"):
            trainer.train_step(*batch(), torch.tensor([0.02]), torch.tensor([32.0 if odd else 64.0]))


def numbers_of_steps(stage: int) -> None:
    """One process trained on before, by itself: neither sums nor means would show that on every process."""
    trainer = t.trainer("SGD", stage=stage)
    trainer.train_step(*batch())
    trainer._run.session.counters.updates += find_processes().rank
    with pytest.raises(ProcessError, match="the updates that they have made: 1 on rank 0; 2 on rank 1; 3 on rank 2"):
        trainer.train_step(*batch())


def later(folder: Path) -> None:
    for stage in (0, 1):
        for config in t.CONFIGS:
            learning_rates(stage, config)
        what_belongs_to_a_step(stage)
        weights_from_outside(stage)
        checkpoints(stage, folder)
        numbers_of_steps(stage)
    first_trainers()


def test_processes_that_begin_differently_make_no_update():
    t.run(3, at_the_start)


def test_a_loss_that_comes_after_an_evaluation_is_compared_too():
    t.run(2, loss_after_evaluation)


@pytest.mark.thorough
def test_processes_that_come_to_make_different_updates_make_none(tmp_path):
    t.run(3, later, tmp_path)


def test_processes_in_two_zero_stages_are_told_so_within_their_timeout():
    processes = start(t.enter, t.rows(2, two_stages))
    for process in processes:
        process.join(60 + 30)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0, 0]
