"""The smoke test: a tiny model trains, as eager PyTorch trains it. Runs as a script, too, with nothing but the wheel.

Any change of the public calls below is a change of what the README promises.
"""

from __future__ import annotations

import copy

import torch

from ontrain.training import ORTTrainer, ORTTrainerOptions, optim

BATCH, FEATURES, CLASSES, STEPS, LR = 8, 6, 4, 5, 0.05


def model_and_batch() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, CLASSES))
    return model, torch.randn(BATCH, FEATURES), torch.randint(CLASSES, (BATCH,))


def eager_losses(model: torch.nn.Module, x: torch.Tensor, label: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_tiny_model_trains_like_eager() -> None:
    model, x, label = model_and_batch()
    expected = eager_losses(copy.deepcopy(model), x, label)
    description = {
        "inputs": [("x", ["batch", FEATURES]), ("label", ["batch"])],
        "outputs": [("loss", [], True), ("output", ["batch", CLASSES])],
    }
    trainer = ORTTrainer(
        model,
        description,
        optim.SGDConfig(lr=LR),
        loss_fn=torch.nn.functional.cross_entropy,
        # Clipping is on by default, as it was upstream; the eager loop above does not clip.
        options=ORTTrainerOptions({"device": {"id": "cpu"}, "utils": {"grad_norm_clip": False}}),
    )
    losses = [float(trainer.train_step(x, label)[0]) for _ in range(STEPS)]
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    test_a_tiny_model_trains_like_eager()
    print("a tiny model trained as eager PyTorch trains it")
