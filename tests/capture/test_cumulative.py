"""Batch normalisation with momentum=None, and of several processes: eager PyTorch's numbers, or refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributed, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from ontrain import CaptureError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule
from tests.processes import start_and_join
from tests.training.ortmodule.networks import assert_same_gradients, pair

CLOSE = dict(rtol=1e-12, atol=1e-14)


def network(momentum=None, **options):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum, **options), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 3), nn.BatchNorm1d(3, momentum=momentum, **options),
    ).double()  # fmt: skip


def batches(count):
    return [torch.randn(4 + i, 3, 6, 6, dtype=torch.float64) for i in range(count)]


def assert_same_buffers(ours, eager):
    for (name, computed), expected in zip(ours.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(computed, expected, **CLOSE, msg=name)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_each_step_weighs_in_by_the_number_of_batches_so_far(options):
    ours, eager = pair(network(**options))
    for x in batches(4):
        for module in (ours, eager):
            module(x).sin().sum().backward()
        assert_same_gradients(ours, eager, **CLOSE)
        assert_same_buffers(ours, eager)
    for module in (ours, eager):
        module.eval()
    x = batches(1)[0]
    torch.testing.assert_close(ours(x), eager(x), **CLOSE)


def test_layers_with_a_momentum_beside_such_without_keep_it():
    module = network()
    module[5].momentum = 0.3
    ours, eager = pair(module)
    for x in batches(3):
        for twin in (ours, eager):
            twin(x).sum().backward()
    assert_same_buffers(ours, eager)


def test_update_bn_finds_the_statistics_of_averaged_weights():
    module = network(momentum=0.1)
    ours, eager = ORTModule(copy.deepcopy(module)), module
    for twin in (ours, eager):
        twin(torch.ones(4, 3, 6, 6, dtype=torch.float64)).sum().backward()
    averaged = AveragedModel(ours), AveragedModel(eager)
    data = batches(3)
    for model in averaged:
        update_bn(data, model)
    assert_same_buffers(*averaged)
    assert averaged[0].module.module[1].momentum == 0.1


def test_the_trainer_counts_batches_too():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return self.network(x).sin().sum()

    module = Loss()
    eager, x = copy.deepcopy(module), torch.randn(4, 3, 6, 6, dtype=torch.float64)
    description = {"inputs": [("x", [4, 3, 6, 6])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(module, description, optim.SGDConfig(lr=0.0))
    for factor in (1.0, 2.0, 0.5):
        trainer.train_step(factor * x)
        eager(factor * x)
    state = trainer.state_dict()["model"]["full_precision"]
    for name, expected in eager.named_buffers():
        torch.testing.assert_close(torch.as_tensor(state[name]), expected, **CLOSE, msg=name)


@pytest.mark.parametrize("momentum", [None, 0.1])
def test_in_one_process_synchronised_layers_are_plain_ones(momentum):
    ours, eager = pair(nn.SyncBatchNorm.convert_sync_batchnorm(network(momentum)))
    for x in batches(3):
        for module in (ours, eager):
            module(x).sin().sum().backward()
        assert_same_gradients(ours, eager, **CLOSE)
        assert_same_buffers(ours, eager)


def _synchronised(rank, store):
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    ours, eager = pair(nn.SyncBatchNorm.convert_sync_batchnorm(network(0.1)))
    (x,) = batches(1)
    with pytest.raises(CaptureError, match="statistics of the batches of all processes"):
        ours(x)
    for module in (ours, eager):
        module.eval()
    torch.testing.assert_close(ours(x), eager(x), **CLOSE)
    distributed.destroy_process_group()


def test_several_processes_are_refused_in_training_and_evaluate_by_what_they_have(tmp_path):
    start_and_join(_synchronised, [(rank, str(tmp_path / "store")) for rank in range(2)])
