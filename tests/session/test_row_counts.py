"""How many rows a plan holds: counted from the batch, rounded, part of the plan's key."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, strategies as st

from ontrain import InferenceSession
from ontrain.passes.rows import bucket
from ontrain.session import row_counts
from ontrain.training import ORTTrainer, optim

pytestmark = pytest.mark.usefixtures("rows_counted")

CLASSES = 7
DESCRIPTION = {
    "inputs": [("x", ["batch", 4]), ("label", ["batch"])],
    "outputs": [("loss", [], True)],
}


@given(st.integers(1, 5000), st.data())
def test_a_bucket_holds_the_count_and_little_more(rows, data):
    count = data.draw(st.integers(0, rows))
    size = bucket(count, rows)
    assert count <= size <= rows
    assert size == rows or size <= max(1, count * 9 / 8 + 1, count + rows / 64)


def test_there_are_few_buckets():
    assert len({bucket(count, 4096) for count in range(4097)}) < 40


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES))


def make_trainer(module, **options):
    return ORTTrainer(
        module,
        DESCRIPTION,
        optim.SGDConfig(lr=0.5),
        torch.nn.functional.cross_entropy,
        {"device": {"id": "cpu"}, **options},
    )


def batch(seed, labelled, rows=32):
    generator = torch.Generator().manual_seed(seed)
    x, label = torch.randn(rows, 4, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)
    return x, torch.where(torch.arange(rows) % 32 < labelled, label, -100)


def eager(module, batches, accumulated=1):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for start in range(0, len(batches), accumulated):
        group = batches[start : start + accumulated]
        count = sum(int((label != -100).sum()) for _, label in group)
        optimizer.zero_grad()
        for x, label in group:
            loss = torch.nn.functional.cross_entropy(module(x), label, reduction="sum") / count
            loss.backward()
        optimizer.step()
    return [p.detach() for p in module.parameters()]


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize(
    "provider", ["TorchExecutionProvider", pytest.param("OnnxRuntimeExecutionProvider", marks=pytest.mark.thorough)]
)
def test_batches_with_ever_other_labels_train_like_eager(provider, accumulated):
    batches = [batch(i, labelled) for i, labelled in enumerate((3, 30, 1, 17, 32, 9))]
    trainer = make_trainer(network(), provider=provider, batch={"gradient_accumulation_steps": accumulated})
    for x, label in batches:
        trainer.train_step(x, label)
    expected = eager(network(), batches, accumulated)
    for have, want in zip(trainer._run.session.model_tensors, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(trainer._run.session.state[have]), want, rtol=1e-5, atol=1e-6)


def test_a_plan_is_made_for_each_bucket_and_used_again():
    trainer = make_trainer(network())
    for seed, labelled in enumerate((9, 9, 17, 18, 9)):
        trainer.train_step(*batch(seed, labelled))
    buckets = sorted(dict(signature)["labelled rows 0"] for _, signature in trainer._run.session.plans)
    assert buckets == [(9,), (18,)] and sorted(plan.runs for plan in trainer._run.session.plans.values()) == [2, 3]


def test_evaluation_counts_for_itself():
    trainer = make_trainer(network())
    x, label = batch(0, 5)
    expected = torch.nn.functional.cross_entropy(network()(x), label).detach()
    torch.testing.assert_close(trainer.eval_step(x, label), expected)
    ((kind, signature),) = trainer._run.session.plans
    assert kind == "eval" and dict(signature)["labelled rows 0"] == (5,)


def test_a_batch_without_a_label_has_no_loss_and_warns():
    trainer = make_trainer(network())
    with pytest.warns(UserWarning, match="has the batch a label at all"):
        assert torch.isnan(trainer.train_step(*batch(0, 0)))
    for have, want in zip(trainer._run.session.model_tensors, network().parameters(), strict=True):
        assert torch.equal(torch.as_tensor(trainer._run.session.state[have]), want)


def test_the_same_batches_in_another_order_meet_the_same_plans():
    # What a batch's plan keeps may depend on nothing before it, or a resumed run would draw other masks.
    def plans(order):
        trainer, signatures = make_trainer(network()), {}
        for labelled in order:
            before = (
                {key: plan.runs for key, plan in trainer._run.session.plans.items()} if trainer._run.session else {}
            )
            trainer.train_step(*batch(0, labelled))
            signatures[labelled] = next(
                k for k, plan in trainer._run.session.plans.items() if plan.runs != before.get(k, 0)
            )
        return signatures

    assert plans([20, 19, 18, 17]) == plans([17, 18, 19, 20])


def test_a_graph_in_which_no_pass_finds_rows_is_not_measured(monkeypatch):
    def measured(graph):
        raise AssertionError("the graph is measured")

    monkeypatch.setattr(row_counts, "count_flops", measured)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        squares (float[n, 3] x) => (float[n, 3] y) { y = Mul(x, x) }
    """)
    session = InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    (y,) = session.run(None, {"x": np.full((2, 3), 3, np.float32)})
    np.testing.assert_array_equal(y, np.full((2, 3), 9))
