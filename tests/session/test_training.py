"""A session's counters, accumulators and random stream between steps, seen from near."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from ontrain import NonFiniteLossError, OptionError
from ontrain.graph import Builder, Role, new_model, set_role
from ontrain.optim import OptimizerSpec
from ontrain.optim.loss import softmax_cross_entropy
from ontrain.providers import available_providers, get_provider
from ontrain.session import PlanOptions, TrainingSession, TrainingTask

ROWS, WIDTH, CLASSES = 6, 3, 4


def graph(dropout: float = 0.0, trap: bool = False) -> ir.Model:
    """Cross entropy of x W; with `trap` beside it a term that is 0 at w = 0 and has no finite slope there."""

    def value(name, shape, role, dtype=ir.DataType.FLOAT):
        return set_role(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)), role)

    x, label = value("x", [ROWS, WIDTH], Role.INPUT), value("label", [ROWS], Role.LABEL, ir.DataType.INT64)
    weight, slope = value("weight", [WIDTH, CLASSES], Role.PARAMETER), value("slope", [1], Role.PARAMETER)
    model = new_model([x, label, weight, slope], "captured")
    op = Builder(model.graph)
    dropped = op.Dropout(x, dropout, True) if dropout else x
    loss = softmax_cross_entropy(op, op.MatMul(dropped, weight), label, ignore_index=-100)
    if trap:
        loss = op.Add(loss, op.ReduceSum(op.Sqrt(op.Abs(slope)), keepdims=0))
    loss.name = "loss"
    model.graph.outputs.append(loss)
    return model


def make_session(
    provider="TorchExecutionProvider", steps=1, rate_of=None, optimizer="SGD", **options
) -> TrainingSession:
    model = graph(options.pop("dropout", 0.0), options.pop("trap", False))
    torch.manual_seed(1)
    initial = {"weight": torch.randn(WIDTH, CLASSES), "slope": torch.zeros(1)}
    task = TrainingTask(
        model, loss="loss", optimizer=OptimizerSpec(optimizer, rate_of or {}), trainable=["weight", "slope"],
        accumulation_steps=steps,
    )  # fmt: skip
    return TrainingSession(task, initial, get_provider(provider), planning=PlanOptions(**options))


def batch(seed: int, labelled: int = ROWS) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (ROWS,), generator=generator)
    label[labelled:] = -100
    return {"x": torch.randn(ROWS, WIDTH, generator=generator), "label": label}


@pytest.mark.parametrize("provider", available_providers())
def test_after_an_update_nothing_of_it_is_left_in_the_accumulators(provider):
    session = make_session(provider, steps=2)
    assert {"weight.grad_acc", "loss_weight_acc"} <= set(session.state)
    session.step(batch(0, labelled=5), 0.1)
    assert float(session.state["loss_weight_acc"]) == 5 and torch.as_tensor(session.state["weight.grad_acc"]).any()
    session.step(batch(1, labelled=2), 0.1)
    for name in session.state:
        if name.endswith("_acc"):
            assert not torch.as_tensor(session.state[name]).any(), name


@pytest.mark.parametrize("provider", available_providers())
def test_updates_of_unequal_micro_batches_are_those_of_the_joined_batches(provider):
    """A count of labels that stayed behind would weigh in the second update."""
    session = make_session(provider, steps=3)
    weight = torch.nn.Parameter(torch.as_tensor(session.state["weight"]).clone())
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for number in range(3):
        parts = [batch(10 * number + i, labelled) for i, labelled in enumerate((6, 1, 3 + number))]
        for part in parts:
            session.step(part, 0.5)
        optimizer.zero_grad()
        x, label = (torch.cat([part[name] for part in parts]) for name in ("x", "label"))
        torch.nn.functional.cross_entropy(x @ weight, label).backward()
        optimizer.step()
        torch.testing.assert_close(torch.as_tensor(session.state["weight"]), weight.detach(), rtol=1e-5, atol=1e-6)
    assert (session.counters.updates, session.counters.micro_steps, session.counters.pending) == (3, 9, 0)


def test_every_micro_batch_has_random_numbers_of_its_own():
    session, losses = make_session(dropout=0.5), []
    for _ in range(4):
        losses.append(float(session.step(batch(0), 0.0)["loss"]))
    assert len(set(losses)) == 4
    again = make_session(dropout=0.5)
    assert [float(again.step(batch(0), 0.0)["loss"]) for _ in range(4)] == losses


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("steps", [1, 2], ids=["update", "amid an accumulation"])
def test_a_step_that_is_profiled_changes_nothing(steps, optimizer):
    session = make_session(steps=steps, optimizer=optimizer)
    session.step(batch(0), 0.1)
    before = {name: torch.as_tensor(session.state[name]).clone() for name in session.state}
    session.profile(batch(1))
    assert all(torch.equal(torch.as_tensor(session.state[name]), tensor) for name, tensor in before.items())


def test_a_gradient_that_is_not_finite_is_refused_though_the_loss_is():
    session = make_session(trap=True)
    before = torch.as_tensor(session.state["weight"]).clone()
    with pytest.raises(NonFiniteLossError, match="its gradient not finite"):
        session.step(batch(0), 0.1)
    assert torch.equal(torch.as_tensor(session.state["weight"]), before) and session.counters.updates == 0


def test_a_memory_limit_is_kept_to_the_byte():
    free = make_session()
    plan = free.plan(free._next_kind(), batch(0))
    needed = free.state_bytes() + plan.executable.planned_bytes
    make_session(memory_limit=needed).step(batch(0), 0.1)
    with pytest.raises(OptionError, match=f"needs {needed:,} bytes"):
        make_session(memory_limit=needed - 1).step(batch(0), 0.1)
