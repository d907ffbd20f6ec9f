"""The same trainer on a GPU. Skipped, with the reason, where there is none."""

from __future__ import annotations

import copy

import pytest
import torch

from ontrain.errors import OptionError
from ontrain.providers import get_provider
from ontrain.training import optim
from tests.training.conftest import Net, batches, make_trainer

CONFIGS = {
    "adamw": lambda: optim.AdamConfig(lr=0.01, lambda_coef=0.1),
    "lamb": lambda: optim.LambConfig(lr=0.01, do_bias_correction=True),
    "momentum": lambda: optim.SGDConfig(lr=0.1, momentum=0.9),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_a_gpu_trains_like_the_cpu(name):
    torch.manual_seed(3)
    model = Net()
    on_cpu = make_trainer(copy.deepcopy(model), CONFIGS[name]())
    on_gpu = make_trainer(model.cuda(), CONFIGS[name](), device={"id": "cuda"})
    for ids, label in batches(10):
        expected = on_cpu.train_step(ids, label)
        results = on_gpu.train_step(ids.cuda(), label.cuda())
        assert results[0].is_cuda
        torch.testing.assert_close(results[0].cpu(), expected[0], rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(on_gpu.eval_step(ids.cuda(), label.cuda()), on_cpu.eval_step(ids, label), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_dropout_on_a_gpu_repeats_for_a_seed():
    def losses() -> list[torch.Tensor]:
        torch.manual_seed(0)
        trainer = make_trainer(Net(dropout=0.5).cuda(), device={"id": "cuda"}, utils={"seed": 3})
        return [trainer.train_step(ids.cuda(), label.cuda())[0] for ids, label in batches(3)]

    assert all(torch.equal(a, b) for a, b in zip(losses(), losses(), strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_gpu_says_so():
    with pytest.raises(OptionError, match="torch sees no CUDA device"):
        get_provider("TorchExecutionProvider", "cuda")
