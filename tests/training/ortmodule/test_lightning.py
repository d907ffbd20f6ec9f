"""Lightning's Trainer around an ORTModule: the graph runs, and curves, logs and checkpoints are eager's."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ontrain.training.ortmodule import ORTModule

lightning = pytest.importorskip("lightning", reason="lightning is not installed: pip install lightning")
pytestmark = pytest.mark.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

RAN = []


class Net(nn.Sequential):
    """Writes down each time that PyTorch runs it."""

    def forward(self, x):
        RAN.append(torch.compiler.is_exporting())
        return super().forward(x)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        self.curve = []

    def forward(self, x):
        return self.net(x)

    def _loss(self, batch, name):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log(name, loss)
        return loss

    def training_step(self, batch, index):
        loss = self._loss(batch, "train_loss")
        self.curve.append(loss.detach().clone())
        return loss

    def validation_step(self, batch, index):
        self._loss(batch, "val_loss")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class Direct(Classifier):
    """Calls its network itself, not by way of forward."""

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def batches():
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(64, 4, generator=generator), torch.randint(3, (64,), generator=generator)
    return DataLoader(TensorDataset(x, y), 16)


def trainer(folder, epochs=3, **settings):
    saved = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{epoch}", monitor="val_loss", save_top_k=-1)
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", enable_progress_bar=False, logger=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=[saved], **settings,
    )  # fmt: skip


@pytest.fixture
def plain():
    torch.manual_seed(0)
    return Classifier()


@pytest.mark.parametrize(
    "settings", [{}, {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}], ids=str
)
def test_the_graph_runs_and_the_curve_is_eagers(plain, tmp_path, settings):
    model = ORTModule(copy.deepcopy(plain))
    ours, theirs = trainer(tmp_path / "ours", **settings), trainer(tmp_path / "theirs", **settings)
    theirs.fit(plain, batches(), batches())
    RAN.clear()
    ours.fit(model, batches(), batches())
    assert RAN and all(RAN), "PyTorch ran the network for captures only"
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if settings.get("precision") else {"rtol": 1e-4, "atol": 1e-5}
    assert len(model.curve) == len(plain.curve) == 12
    torch.testing.assert_close(torch.stack(model.curve), torch.stack(plain.curve), **tolerance)
    assert ours.callback_metrics.keys() == theirs.callback_metrics.keys() == {"train_loss", "val_loss"}
    for name, value in ours.callback_metrics.items():
        torch.testing.assert_close(value, theirs.callback_metrics[name], **tolerance)
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()), **tolerance)


def test_a_checkpoint_is_lightnings_and_training_goes_on_from_it(plain, tmp_path):
    model = ORTModule(copy.deepcopy(plain))
    again = ORTModule(copy.deepcopy(plain))
    whole = trainer(tmp_path / "whole")
    whole.fit(model, batches(), batches())
    saved = sorted((tmp_path / "whole").glob("*.ckpt"))
    assert [path.name for path in saved] == ["epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt"]
    # Into the plain class, without ontrain.
    loaded = Classifier.load_from_checkpoint(saved[-1], weights_only=True)
    torch.testing.assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    trainer(tmp_path / "again").fit(again, batches(), batches(), ckpt_path=saved[0], weights_only=True)
    assert len(again.curve) == 8
    torch.testing.assert_close(torch.stack(again.curve), torch.stack(model.curve[4:]), rtol=0, atol=0)


def test_evaluation_and_prediction_run_the_graph(plain, tmp_path):
    model = ORTModule(copy.deepcopy(plain))
    run = trainer(tmp_path)
    expected = trainer(tmp_path).validate(plain, batches(), verbose=False)
    RAN.clear()
    [metrics] = run.validate(model, batches(), verbose=False)
    assert metrics["val_loss"] == pytest.approx(expected[0]["val_loss"], rel=1e-5)
    inputs = DataLoader(batches().dataset.tensors[0], 16)
    predicted = torch.cat(run.predict(model, inputs))
    assert RAN and all(RAN)
    torch.testing.assert_close(predicted, plain.eval()(batches().dataset.tensors[0]))


def test_a_step_that_calls_a_submodule_itself_is_said_to_run_without_the_graph(tmp_path):
    model = ORTModule(Direct())
    with pytest.warns(UserWarning, match=r"training_step of Direct calls self\.net\(\.\.\.\)"):
        trainer(tmp_path, epochs=1).fit(model, batches())
