"""Scores that are read of all rows are differentiated where there is a label, and the numbers are eager's."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.training import ORTTrainer, optim
from tests.training.ortmodule.networks import assert_same_gradients, pair

WIDTH, CLASSES, ROWS, LABELLED = 8, 50, 48, 5


class Tagger(nn.Module):
    """Scores of all rows and their loss; the weight lies as nn.Linear has it, or as in GPT-2, or is the embedding."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head, self.form = nn.Linear(WIDTH, CLASSES), form
        self.across = nn.Parameter(torch.randn(WIDTH, CLASSES))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.body(self.embed(ids)))
        if self.form == "linear":
            scores = self.head(x)
        else:
            scores = x @ (self.across if self.form == "across" else self.embed.weight.T)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores


FORMS = ("linear", "across", "tied")


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, CLASSES, (4, ROWS // 4))
    labels = torch.full((ROWS,), -100)
    labels[torch.randperm(ROWS)[:LABELLED]] = torch.randint(0, CLASSES, (LABELLED,))
    return ids, labels.view(ids.shape)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("rows_counted")
def test_gradients_and_scores_are_eagers(form, batch):
    ours, eager = pair(Tagger(form).double())
    for _ in range(3):  # from the second step on the scores are known to be read
        outputs, wanted = ours(*batch), eager(*batch)
        torch.testing.assert_close(outputs[1] + 0, wanted[1], rtol=1e-9, atol=1e-12)
        for module, (loss, _) in ((ours, outputs), (eager, wanted)):
            module.zero_grad()
            loss.backward()
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("rows_counted")
def test_products_with_the_scores_gradient_are_of_labelled_rows(form, batch):
    names = {
        "inputs": [(name, ["batch", "length"]) for name in ("ids", "labels")],
        "outputs": [("loss", [], True), ("scores", ["batch", "length", CLASSES])],
    }
    trainer = ORTTrainer(Tagger(form), names, optim.SGDConfig(lr=0.1))
    trainer.train_step(*batch)
    rows = []
    for node in trainer.step_model().graph:
        if node.op_type in ("MatMul", "Gemm"):
            sizes = {size for value in (*node.inputs[:2], *node.outputs) for size in value.shape}
            if {CLASSES, WIDTH} < sizes:
                rows += sizes - {CLASSES, WIDTH}
    # Forward of all rows; both factors' gradients of the labelled.
    assert sorted(rows) == [LABELLED, LABELLED, ROWS]
