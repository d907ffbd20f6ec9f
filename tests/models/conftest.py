"""Small random models of the kinds that must train, with a batch each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.models.gradients import LossOf


class ConvNet(nn.Module):
    """Convolutions with batch normalisation, groups, stride, pooling and a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        )
        self.down = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.down(torch.relu(x + self.block(x)))
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), label)


class Identical(nn.Module):
    """Layers that start out equal in every number, which an optimizing exporter merges."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(6) for _ in range(4)])
        for layer in self.layers:
            layer.load_state_dict(self.layers[0].state_dict())

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(torch.tanh(layer(x)) + x)
        return nn.functional.mse_loss(x, label)


def _bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    ids = torch.randint(1, 60, (3, 11))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    ids[1, 7:] = 0
    labels = torch.where(torch.rand(3, 11) < 0.4, ids, -100)
    names = ["input_ids", "attention_mask", "token_type_ids", "labels"]
    return BertForMaskedLM(config), names, [ids, mask, torch.randint(0, 2, (3, 11)), labels]


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    ids = torch.randint(0, 60, (2, 13))
    return GPT2LMHeadModel(config), ["input_ids", "labels"], [ids, ids.clone()]


def _t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=60,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return (
        T5ForConditionalGeneration(config),
        ["input_ids", "labels"],
        [torch.randint(1, 60, (2, 9)), torch.randint(1, 60, (2, 7))],
    )


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
    )
    ids = torch.randint(0, 60, (2, 13))
    return LlamaForCausalLM(config), ["input_ids", "labels"], [ids, ids.clone()]


def _wrapped(make):
    model, names, batch = make()
    return LossOf(model.train(), names), batch


MODELS = {
    "bert": lambda: _wrapped(_bert),
    "gpt2": lambda: _wrapped(_gpt2),
    "t5": lambda: _wrapped(_t5),
    "llama": lambda: _wrapped(_llama),
    "convnet": lambda: (ConvNet().train(), [torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))]),
    "identical layers": lambda: (Identical().train(), [torch.randn(5, 6), torch.randn(5, 6)]),
}


@pytest.fixture(params=MODELS, ids=lambda name: name.replace(" ", "_"))
def model_and_batch(request):
    """A module whose forward returns its loss, in training mode without dropout, and a batch."""
    torch.manual_seed(7)
    module, batch = MODELS[request.param]()
    with torch.no_grad():
        # Default initialisation leaves queries and keys with gradients near zero: wider weights give them a signal.
        for parameter in module.parameters():
            if parameter.ndim > 1 and request.param != "identical layers":
                parameter.mul_(3.0)
    return module, batch
