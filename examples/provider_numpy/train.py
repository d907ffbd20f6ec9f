"""Train a small network on the provider, which is found by its name once the package is installed.

pip install -e examples/provider_numpy && python examples/provider_numpy/train.py
"""

import torch
from torch import nn

from ontrain.training import ORTTrainer, optim

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))
desc = {"inputs": [("x", ["n", 4]), ("y", ["n", 1])], "outputs": [("loss", [], True), ("out", ["n", 1])]}
options = {"device": {"id": "cpu"}, "provider": "NumpyExecutionProvider"}
trainer = ORTTrainer(net, desc, optim.AdamConfig(lr=0.01), nn.functional.mse_loss, options)
batches = torch.Generator().manual_seed(1)
for step in range(20):
    x = torch.randn(32, 4, generator=batches)
    loss, _ = trainer.train_step(x, x.prod(1, keepdim=True))
    print(step, f"{float(loss):.6f}")
