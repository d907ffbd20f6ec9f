"""Gradients that are sums: the terms are added up in place, and the sum is eager PyTorch's."""

from __future__ import annotations

import copy

import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.graph import Builder, Role, new_model, set_role, set_updates
from ontrain.optim import StepKind
from ontrain.providers import StateSpec, get_provider
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from tests.providers.graphs import float_input

VOCABULARY, WIDTH = 50, 16
DESC = {"inputs": [("ids", [4, 6]), ("labels", [4, 6])], "outputs": [("loss", [], True)]}


class Tied(nn.Module):
    """One matrix embeds, is the head, and is a layer in between."""

    def __init__(self, padding_idx: int | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=padding_idx)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.mix(torch.tanh(self.mix(self.embed(ids))))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 5, (4, 6)), torch.randint(0, VOCABULARY, (4, 6))


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_a_matrix_with_several_uses_gets_the_sum_of_their_gradients(padding_idx):
    plain = Tied(padding_idx).double()
    wrapped = ORTModule(copy.deepcopy(plain))
    for _ in range(2):
        batch = _batch()
        for model in (plain, wrapped):
            model.zero_grad()
            model(*batch).backward()
        for (name, p), q in zip(plain.named_parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.parametrize(("kind", "steps"), [(StepKind.UPDATE, 1), (StepKind.ACCUMULATE, 2)])
def test_no_sum_of_matrices_is_left_to_be_taken(kind, steps):
    options = {"device": {"id": "cpu"}, "batch": {"gradient_accumulation_steps": steps}}
    trainer = ORTTrainer(Tied(0), DESC, optim.AdamConfig(), options=options)
    batch = _batch()
    session, _ = trainer.prepare(*batch)
    plan = session.plan(kind, dict(zip(("ids", "labels"), batch, strict=True)))
    matrices = [(VOCABULARY, WIDTH), (WIDTH, WIDTH)]
    sums = [n for n in plan.model.graph if n.op_type == "Add" and tuple(n.outputs[0].shape.numpy()) in matrices]
    assert len(sums) == 2 * steps, "the graph has them"
    writes = [
        (instruction.node, buf)
        for instruction in plan.executable.current._program
        for buf in instruction.writes
        if buf.shape in matrices
    ]
    assert writes and not [node for node, _ in writes if node in sums]
    # Where nothing is left to be added no gradient needs room in the arena.
    assert all(buf.storage.tensor is not None for _, buf in writes)


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_micro_batches_add_to_the_accumulators_what_eager_adds(padding_idx):
    plain = Tied(padding_idx)
    options = {"device": {"id": "cpu"}, "batch": {"gradient_accumulation_steps": 3}, "utils": {"grad_norm_clip": False}}
    trainer = ORTTrainer(copy.deepcopy(plain), DESC, optim.SGDConfig(lr=0.5), options=options)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(2):
        batches = [_batch() for _ in range(3)]
        optimizer.zero_grad()
        for batch in batches:
            (plain(*batch) / 3).backward()
            trainer.train_step(*batch)
        optimizer.step()
    for name, wanted in plain.named_parameters():
        torch.testing.assert_close(trainer.parameter(name), wanted.detach(), msg=name)


@pytest.mark.parametrize("reader", ["none", "before", "between", "after"])
def test_an_accumulator_that_others_read_keeps_its_value_until_they_have(reader):
    """The sum must not be taken in place where somebody wants the old value."""
    total, a, b = (float_input(*pair) for pair in (("total", (4, 5)), ("a", (4, 3)), ("b", (3, 5))))
    set_role(total, Role.STATE)
    model = new_model([total, a, b], "adds")
    op = Builder(model.graph)
    doubled = op.Mul(total, 2.0) if reader == "before" else None
    product = op.MatMul(a, b)
    doubled = op.Mul(total, 2.0) if reader == "between" else doubled
    following = op.Add(total, product)
    doubled = op.Mul(total, 2.0) if reader == "after" else doubled
    model.graph.outputs.append(set_updates(following, "total"))
    if doubled is not None:
        doubled.name = "doubled"
        model.graph.outputs.append(doubled)
    provider = get_provider("TorchExecutionProvider")
    state = provider.create_state([StateSpec("total", (4, 5), ir.DataType.FLOAT, "fixed")])
    executable = provider.compile(model, state)
    expected = torch.zeros(4, 5)
    for _ in range(3):
        feeds = {"a": torch.randn(4, 3), "b": torch.randn(3, 5)}
        outputs = executable.run(feeds)
        if doubled is not None:
            torch.testing.assert_close(outputs["doubled"], 2 * expected)
        expected = expected + feeds["a"] @ feeds["b"]
        torch.testing.assert_close(torch.as_tensor(state["total"]), expected)
