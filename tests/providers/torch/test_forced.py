"""Whatever formulation a measurement may pick: models trained with each, on one thread and on two, against float64.

Sizes lie above and below the thresholds from which on there is a choice, matrices are cut or are not, and are given as
they lie in a model: turned, with gaps, as blocks of a larger one."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from ontrain import OptionError
from ontrain.providers import get_provider
from ontrain.providers.torch import norms, plan
from ontrain.providers.torch.lowering import attention_tiles, layer_norm, product, random as masks
from ontrain.providers.torch.tuning import formulations
from ontrain.training import ORTTrainer, optim
from tests.providers.torch.doubled import assert_trains_as_in_double, mixed

transformers = pytest.importorskip("transformers")


_SAMPLE = Path(__file__).parents[3] / "recipes/getting_started"


pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("captured_once")]


def test_gpt2_of_width_64(forced, threads, multiplied):
    config = transformers.GPT2Config(
        n_layer=1, n_embd=64, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False
    )
    torch.manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (4, 64))
    assert_trains_as_in_double(transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids.clone()})
    assert forced in multiplied


def test_bert_of_width_64_with_its_whole_vocabulary(forced, threads, multiplied):
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=256, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )  # fmt: skip
    torch.manual_seed(0)
    ids = torch.randint(1000, config.vocab_size, (8, 128))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    batch = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels,
        "next_sentence_label": torch.randint(0, 2, (8,)),
    }  # fmt: skip
    assert_trains_as_in_double(transformers.BertForPreTraining(config), batch)
    assert forced in multiplied


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", [28_785, 1_003])
def test_the_sample_evaluates_and_trains(words, forced, threads, multiplied, monkeypatch):
    """Logits and loss of an evaluation with sizes of its own, then a step, then the evaluation again."""
    monkeypatch.syspath_prepend(str(_SAMPLE))
    model_file = importlib.import_module("model")
    monkeypatch.delitem(sys.modules, "model")

    def loss_fn(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.view(-1, words), label)

    torch.manual_seed(0)
    model = model_file.TransformerModel(words, 200, 2, 200, 1, dropout=0.0)
    exact = copy.deepcopy(model).double()
    description = {
        "inputs": [("src", ["length", "batch"]), ("label", ["words"])],
        "outputs": [("loss", [], True), ("output", ["length", "batch", words])],
    }
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=0.5), loss_fn, {"device": {"id": "cpu"}})
    for length, batch in ((35, 10), (31, 10)):
        src, label = torch.randint(0, words, (length, batch)), torch.randint(0, words, (length * batch,))
        loss, logits = trainer.eval_step(src, label)
        torch.testing.assert_close(logits.double(), exact(src), rtol=1e-4, atol=1e-5)
        wanted_loss = loss_fn(exact(src), label)
        assert float(loss) == pytest.approx(float(wanted_loss.detach()), rel=1e-5)
        trainer.train_step(src, label)
        exact.zero_grad()
        wanted_loss.backward()
        with torch.no_grad():
            for parameter in exact.parameters():
                parameter -= 0.5 * parameter.grad
    assert forced in multiplied


def _two_grus(features, hidden):
    """An ONNX file of two stacked GRUs, and the same in torch; ONNX's gates are z, r, h, torch's r, z, n."""
    torch.manual_seed(0)
    layers = [nn.GRU(features, hidden), nn.GRU(hidden, hidden)]
    arrays = {}
    for i, layer in enumerate(layers):
        swap = [*range(hidden, 2 * hidden), *range(hidden), *range(2 * hidden, 3 * hidden)]
        arrays[f"W{i}"] = layer.weight_ih_l0.detach()[swap].numpy()[None]
        arrays[f"R{i}"] = layer.weight_hh_l0.detach()[swap].numpy()[None]
        biases = [layer.bias_ih_l0.detach()[swap], layer.bias_hh_l0.detach()[swap]]
        arrays[f"B{i}"] = torch.cat(biases).numpy()[None]
    arrays["axes"] = np.array([1], np.int64)
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    stacked (float[length, batch, {features}] x) => (float[length, batch, {hidden}] y) {{
        a = GRU <hidden_size = {hidden}, linear_before_reset = 1> (x, W0, R0, B0)
        b = Squeeze (a, axes)
        c = GRU <hidden_size = {hidden}, linear_before_reset = 1> (b, W1, R1, B1)
        y = Squeeze (c, axes)
    }}
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model, layers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [(96, 64, 40, 32), (64, 64, 8, 12), (40, 256, 5, 96)], ids=str)
def test_two_stacked_grus_of_a_file(sizes, forced, threads, multiplied, tmp_path, monkeypatch):
    monkeypatch.setattr(product, "_WORTH", 0)
    features, hidden, length, batch = sizes
    model, layers = _two_grus(features, hidden)
    onnx.save(model, tmp_path / "grus.onnx")
    description = {
        "inputs": [("x", ["length", "batch", features]), ("target", ["length", "batch", hidden])],
        "outputs": [("loss", [], True), ("y", ["length", "batch", hidden])],
    }
    trainer = ORTTrainer(
        tmp_path / "grus.onnx", description, optim.SGDConfig(lr=0.5), "MSELoss", {"device": {"id": "cpu"}}
    )
    layers = [layer.double() for layer in layers]
    for _ in range(2):
        x, target = torch.randn(length, batch, features), torch.randn(length, batch, hidden)
        loss, y = trainer.train_step(x, target)
        wanted = layers[1](layers[0](x.double())[0])[0]
        wanted_loss = nn.functional.mse_loss(wanted, target.double())
        torch.testing.assert_close(y.double(), wanted.detach(), rtol=1e-4, atol=1e-5)
        assert float(loss) == pytest.approx(float(wanted_loss.detach()), rel=1e-5)
        wanted_loss.backward()
        with torch.no_grad():
            for layer in layers:
                for parameter in layer.parameters():
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
    assert forced in multiplied


class _Attending(nn.Module):
    """Layer norms, attention, long gradients, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(301, 48), nn.LayerNorm(48)
        self.qkv, self.out, self.last = nn.Linear(48, 144), nn.Linear(48, 48), nn.LayerNorm(48)
        self.head = nn.Linear(48, 301)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = (head.unflatten(-1, (3, 16)).transpose(1, 2) for head in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.last(x + self.out(y.transpose(1, 2).flatten(2)))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


_THRESHOLDS = {
    "attention in one tile": (attention_tiles, "_TILE", 1 << 40),
    "attention in many tiles": (attention_tiles, "_TILE", 1 << 12),
    "tiles of few rows": (attention_tiles, "_ROWS", 4),
    "layer norms large": (layer_norm, "_LARGE", 1),
    "layer norms small": (layer_norm, "_LARGE", 1 << 40),
    "layer norms tiny": (layer_norm, "_TINY", 1 << 40),
    "layer norms not tiny": (layer_norm, "_TINY", 0),
    "layer norms in kernel pieces": (layer_norm, "_KERNEL_PIECE", 1 << 12),
    "layer norms in pieces": (layer_norm, "_PIECE", 1 << 10),
    "norms by rows": (norms, "_LONG", 1),
    "norms at once": (norms, "_LONG", 1 << 40),
    "results held": (plan, "_SOON", 1 << 40),
    "results copied": (plan, "_SOON", -1),
    "masks serial": (masks, "_SERIAL", 1 << 40),
    "masks by tables": (masks, "_SERIAL", 0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", _THRESHOLDS)
@pytest.mark.parametrize("tune", ["0", "linear"])
@pytest.mark.parametrize("logits", ["1", "67108864"], ids=["row-by-row", "at-once"])
def test_each_side_of_each_threshold(way, tune, logits, threads, monkeypatch):
    place, name, value = _THRESHOLDS[way]
    monkeypatch.setattr(place, name, value)
    monkeypatch.setattr(product, "_WORTH", 0)
    monkeypatch.setenv("ONTRAIN_TUNE", tune)
    monkeypatch.setenv("ONTRAIN_LOGITS_BYTES", "40000" if logits == "1" else logits)
    torch.manual_seed(0)
    ids = torch.randint(0, 301, (3, 37))
    assert_trains_as_in_double(_Attending(), {"ids": ids, "labels": ids.clone()})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("held", [0, 1 << 40], ids=["held-if-read-soon", "held-always"])
@pytest.mark.parametrize("soon", [-1, 8], ids=["never", "soon"])
def test_results_held_or_not(held, soon, forced, threads, monkeypatch):
    monkeypatch.setattr("ontrain.providers.torch.program.HELD_LONG", held)
    monkeypatch.setattr(plan, "_SOON", soon)
    monkeypatch.setattr(product, "_WORTH", 0)
    assert_trains_as_in_double(*mixed(70, 66, 51, 130, seed=3))


def test_the_formulation_can_be_named(monkeypatch):
    for name in formulations():
        monkeypatch.setenv("ONTRAIN_TUNE", name)
        chosen = get_provider("TorchExecutionProvider").settings.tuning
        assert chosen is not None and chosen.fastest("1024x1024x1024 NNN", formulations(), dict) == name
        by_option = get_provider("TorchExecutionProvider", options={"tune": name}).settings.tuning
        assert by_option is not None and by_option.fastest("1024x1024x1024 NNN", formulations(), dict) == name


@pytest.mark.parametrize("wrong", ["fast", "2", "Packed"])
def test_a_formulation_that_there_is_not_is_refused(wrong, monkeypatch):
    monkeypatch.setenv("ONTRAIN_TUNE", wrong)
    with pytest.raises(OptionError, match="ONTRAIN_TUNE") as caught:
        get_provider("TorchExecutionProvider")
    assert all(name in str(caught.value) for name in formulations())
    with pytest.raises(OptionError, match="tune is"):
        get_provider("TorchExecutionProvider", options={"tune": wrong})
