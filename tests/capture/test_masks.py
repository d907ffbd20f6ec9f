"""Masks that transformers' speech models draw by numpy: each call draws its own, as eager does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

transformers = pytest.importorskip("transformers")
modeling_wav2vec2 = pytest.importorskip("transformers.models.wav2vec2.modeling_wav2vec2")
_compute_mask_indices = modeling_wav2vec2._compute_mask_indices


class Hearing(nn.Module):
    """Features of two steps each, with some steps masked, and some channels."""

    def __init__(self, branches=False, early=False, options=None):
        super().__init__()
        self.layer, self.mask, self.head = nn.Linear(2, 8), nn.Parameter(torch.randn(8)), nn.Linear(8, 3)
        self.branches, self.early = branches, early
        self.options = {"mask_prob": 0.4, "mask_length": 2, **(options or {})}
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, attention_mask=None):  # x: [N, 2 L], attention_mask: [N, 2 L]
        self.calls += 1
        scale = 2.0 if self.early and np.random.random() < 0.5 else 1.0
        x = self.layer(x.unflatten(1, (-1, 2))) * scale
        counted = None if attention_mask is None else attention_mask[:, ::2]
        steps = _compute_mask_indices(tuple(x.shape[:2]), attention_mask=counted, **self.options)
        x[torch.tensor(steps, device=x.device, dtype=torch.bool)] = self.mask.to(x.dtype)
        channels = _compute_mask_indices((x.shape[0], 8), 0.3, 2)
        x[torch.tensor(channels, dtype=torch.bool)[:, None].expand(-1, x.shape[1], -1)] = 0
        if self.branches and np.random.random() < 0.5:
            return self.head(x) * self.calls
        return self.head(x.tanh()) * self.calls


def batch(size, length, heard):
    x = torch.randn(size, 2 * length)
    mask = torch.ones(size, 2 * length, dtype=torch.long)
    mask[-1, length:] = 0
    return (x, mask) if heard else (x,)


def numpys_state():
    state = np.random.get_state(legacy=False)["state"]
    return state["key"].tolist(), state["pos"]


def assert_steps_are_eagers(plain, model, batches, to_loss=lambda result: result.square().mean()):
    """Train both on batches, two to a step, and compare losses, gradients, buffers and what numpy draws next."""
    results = []
    for module in (plain, model):
        np.random.seed(7)
        torch.manual_seed(7)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        values = []
        for number, arguments in enumerate(batches):
            named = arguments if isinstance(arguments, dict) else {}
            loss = to_loss(module(**named) if named else module(*arguments))
            loss.backward()
            gradients = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in module.parameters()]
            values.append((loss.detach(), gradients, numpys_state(), [b.clone() for b in module.buffers()]))
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        results.append(values)
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("heard", [False, True])
def test_masks_of_each_call_are_eagers_in_one_graph_for_all_sizes(heard):
    plain = Hearing()
    model = ORTModule(copy.deepcopy(plain))
    assert_steps_are_eagers(plain, model, [batch(2 + n % 2, 9 + 3 * (n % 3), heard) for n in range(6)])
    assert model._engine.captures == 1


def test_masks_are_drawn_before_the_numbers_that_forward_branches_on():
    plain = Hearing(branches=True)
    assert_steps_are_eagers(plain, ORTModule(copy.deepcopy(plain)), [batch(2, 9 + n % 2, True) for n in range(8)])


def test_a_second_backward_has_the_masks_of_its_forward():
    plain = Hearing()
    results = []
    for module in (plain, ORTModule(copy.deepcopy(plain))):
        torch.manual_seed(1)
        np.random.seed(1)
        y = module(*batch(2, 9, True))
        y.square().mean().backward(retain_graph=True)
        y.sum().backward()
        results.append((y.detach(), [p.grad for p in module.parameters()], numpys_state()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_masks_behind_other_numbers_are_refused():
    with pytest.raises(CaptureError, match="masks over features from numpy's generator, and other numbers before"):
        ORTModule(Hearing(early=True))(*batch(2, 9, False))


def test_a_mask_longer_than_the_batch_is_refused_as_in_eager():
    model = ORTModule(Hearing(options={"mask_length": 6}))
    model(*batch(2, 9, False))
    with pytest.raises(ValueError, match="mask_length"):
        model(*batch(2, 4, False))


def test_whoever_does_not_draw_masks_refuses_them_by_name():
    state = numpys_state()
    with pytest.raises(CaptureError, match="masks over features") as error:
        capture(Hearing(), batch(2, 9, True))
    assert "config.mask_time_prob = 0" in str(error.value) and "test_masks.py" in str(error.value)
    assert numpys_state() == state


def test_the_function_is_transformers_own_again_after_a_capture():
    ORTModule(Hearing())(*batch(2, 9, True))
    assert modeling_wav2vec2._compute_mask_indices is _compute_mask_indices
    assert isinstance(_compute_mask_indices((2, 30), 0.4, 2), np.ndarray)


def speech(**options):
    sizes = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 12,
        "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2, "mask_time_length": 3, "mask_feature_length": 2,
    }  # fmt: skip
    still = dict.fromkeys(
        ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout"), 0.0
    )
    return {**sizes, **still, **options}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind, options",
    [("Wav2Vec2", {}), ("Hubert", {"mask_time_prob": 0.4, "mask_feature_prob": 0.3, "layerdrop": 0.0})],
)
def test_speech_models_train_as_in_eager(kind, options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**speech(**options))
    plain = getattr(transformers, f"{kind}ForCTC")(config).train()
    batches = []
    for number in range(4):
        length = 400 + 60 * (number % 2)
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, 300:] = 0
        labels = torch.randint(1, 12, (2, 5))
        batches.append({"input_values": torch.randn(2, length), "attention_mask": mask, "labels": labels})
    model = ORTModule(copy.deepcopy(plain))
    assert_steps_are_eagers(plain, model, batches, lambda result: result.loss / 100)
    model.eval()
    plain.eval()
    state = numpys_state()
    with torch.no_grad():
        ours, eager = model(**batches[0]).loss, plain(**batches[0]).loss
    assert numpys_state() == state
    torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-2)
