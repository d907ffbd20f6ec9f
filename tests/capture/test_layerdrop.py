"""Layers that a Hugging Face model leaves out at random while it trains: those that eager leaves out, too."""

from __future__ import annotations

import copy

import pytest
import torch

from ontrain.capture import capture
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.sampled(2)


def bart(rate):
    config = transformers.BartConfig(
        vocab_size=20, d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=16, dropout=0.0,
        encoder_layerdrop=rate, decoder_layerdrop=rate,
    )  # fmt: skip
    ids = torch.tensor([[3, 5, 7, 4], [8, 3, 9, 6]])
    return transformers.BartForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def wav2vec2(rate):
    config = transformers.Wav2Vec2Config(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, layerdrop=rate,
        conv_dim=(4, 4), conv_stride=(2, 2), conv_kernel=(3, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, apply_spec_augment=False, hidden_dropout=0.0, attention_dropout=0.0,
        feat_proj_dropout=0.0, activation_dropout=0.0,
    )  # fmt: skip
    return transformers.Wav2Vec2Model(config), {"input_values": torch.randn(2, 64)}


@pytest.mark.parametrize("make", [bart, wav2vec2], ids=lambda make: make.__name__)
def test_a_rate_above_zero_leaves_out_the_layers_that_eager_leaves_out(make):
    plain, batch = make(0.5)
    model = ORTModule(copy.deepcopy(plain))
    for seed in range(2):
        torch.manual_seed(seed)
        expected = plain.train()(**batch)[0]
        torch.manual_seed(seed)
        torch.testing.assert_close(model.train()(**batch)[0], expected)
    torch.testing.assert_close(model.eval()(**batch)[0], plain.eval()(**batch)[0])


def test_a_trainer_refuses_a_rate_above_zero_by_line():
    plain, batch = bart(0.5)
    with pytest.raises(CaptureError, match=r"modeling_bart.py[\s\S]*config.layerdrop = 0"):
        capture(plain.train(), (), batch)


@pytest.mark.parametrize("make", [bart, wav2vec2], ids=lambda make: make.__name__)
def test_a_rate_of_zero_trains_as_eager(make):
    plain, batch = make(0.0)
    model = ORTModule(copy.deepcopy(plain.train()))
    ours, theirs = model(**batch)[0], plain(**batch)[0]
    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(theirs.shape)  # the sum of a normalised result's squares would have no gradient
    for y in (ours, theirs):
        (y * weight).sum().backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        if q.grad is not None:
            scale = max(float(q.grad.abs().max()), 1e-3)
            assert float((p.grad - q.grad).abs().max()) <= 1e-4 * scale, name
