"""Whole models in train mode, dropout off, against eager: at the sample's sizes and, where they vary, at others."""

from __future__ import annotations

import pytest
import torch

from ontrain.capture import capture, validate
from tests.capture import networks
from tests.capture.harness import nodes, operators, run_captured

transformers = pytest.importorskip("transformers")

SMALL = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_hidden_layers=2)


def bert():
    config = transformers.BertConfig(**SMALL, max_position_embeddings=16)
    return transformers.BertForMaskedLM(config), ("attention_mask", "labels")


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_head=2, n_layer=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), ("labels",)


def t5():
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), ("attention_mask", "labels")


def llama():
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=16)
    return transformers.LlamaForCausalLM(config), ("attention_mask", "labels")


def call_of(extras, batch, length):
    ids = torch.randint(1, 40, (batch, length))
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids, **{name: {"attention_mask": mask, "labels": ids}[name] for name in extras}}


@pytest.mark.parametrize("make", [bert, gpt2, t5, llama])
@pytest.mark.sampled(2)
def test_a_hugging_face_model_is_captured_with_dynamic_batch_and_sequence(make, no_dropout):
    module, extras = make()
    no_dropout(module.train())
    sample = call_of(extras, 2, 6)
    captured = capture(module, (), sample, dynamic=[{0: "batch", 1: "sequence"} for _ in sample])
    assert not captured.specialised
    assert getattr(module.config, "use_cache", True)
    assert set(captured.parameters) == dict(module.named_parameters()).keys()
    for batch, length in ((2, 6), (3, 9)):
        call = call_of(extras, batch, length)
        outputs, _ = run_captured(captured, (), call)
        expected = module(**call, **({"use_cache": False} if hasattr(module.config, "use_cache") else {}))
        # A cache that only the configuration asks for is refused when it is read: tests/capture/test_key_values.py.
        assert type(outputs) is type(expected) and outputs.keys() - {"past_key_values"} == expected.keys()
        for name in expected:
            torch.testing.assert_close(outputs[name], expected[name], rtol=1e-5, atol=1e-5)


def test_bert_keeps_its_operators_whole():
    module, extras = bert()
    call = call_of(extras, 2, 6)
    captured = capture(module.train(), (), call, dynamic=[{0: "batch", 1: "sequence"} for _ in call])
    counts = operators(captured)
    assert counts["Attention"] == 2 and counts["LayerNormalization"] == 6 and counts["SoftmaxCrossEntropyLoss"] == 1
    assert counts["Dropout"] == 5 and counts["Embedding"] == 3
    assert [node.attributes["dropout"].value for node in nodes(captured, "Attention")] == pytest.approx([0.1, 0.1])
    assert captured.aliases == {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"} | {
        name: own for name, own in captured.aliases.items() if name.endswith("bias")
    }
    assert len(captured.model.graph) < 140
    validate(captured, module, (), call)


def test_a_cached_forward_is_captured_without_its_cache():
    module, extras = gpt2()
    captured = capture(module, (), call_of(extras, 2, 6))
    assert captured.output_names == ["output_0", "output_1"]
    assert module.config.use_cache is True


def test_a_convolutional_network_gives_torchs_loss_and_statistics():
    module = networks.Convolutional()
    x, y = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
    captured = capture(module, (x, y), dynamic=[{0: "batch"}, {0: "batch"}])
    x, y = torch.randn(6, 3, 8, 8), torch.randint(5, (6,))
    loss, updates = run_captured(captured, (x, y))
    torch.testing.assert_close(loss, module(x, y))
    for name, value in updates.items():
        torch.testing.assert_close(value, module.state_dict()[name])


def test_a_transformer_encoder_with_padding_and_causal_mask_is_captured(no_dropout):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = no_dropout(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x, padding = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    captured = capture(module, (x, mask), {"src_key_padding_mask": padding})
    output, _ = run_captured(captured, (x, mask), {"src_key_padding_mask": padding})
    torch.testing.assert_close(output, module(x, mask, padding), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.nn.MultiheadAttention(4, 2, dropout=0.1), (torch.randn(3, 2, 4),) * 3),
        lambda: (torch.nn.Transformer(4, 2, 1, 1, 8), (torch.randn(3, 2, 4), torch.randn(2, 2, 4))),
        lambda: (torch.nn.Sequential(torch.nn.Conv2d(2, 4, 1), torch.nn.Dropout2d(0.3)), (torch.randn(2, 2, 3, 3),)),
        lambda: (torch.nn.LSTM(4, 5, 2, batch_first=True, dropout=0.2), (torch.randn(2, 3, 4),)),
        lambda: (torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4)), (torch.randn(3, 4),)),
        lambda: (torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), (torch.randn(3, 4),)),
        lambda: (torch.nn.Linear(4, 4).double(), (torch.randn(3, 4).double(),)),
        lambda: (torch.nn.Linear(4, 4).bfloat16(), (torch.randn(3, 4).bfloat16(),)),
    ],
    ids=["attention", "transformer", "dropout2d", "lstm", "spectral_norm", "weight_norm", "float64", "bfloat16"],
)
def test_modules_of_torch_pass_validation(make):
    module, args = make()
    captured = capture(module, args)
    validate(captured, module, args)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}, {"bias": False}])
def test_recurrent_layers_keep_the_dropout_between_them(kind, options):
    module, x = kind(4, 5, 3, dropout=0.2, **options), torch.randn(2, 3, 4)
    captured = capture(module, (x,))
    assert operators(captured)["Dropout"] == 2
    validate(captured, module, (x,))


def test_a_classifier_may_read_the_last_state_of_an_lstm():
    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = torch.nn.LSTM(4, 5, 2), torch.nn.Linear(5, 3)

        def forward(self, x):
            _, (h, _) = self.lstm(x)
            return self.head(h[-1])

    module, x = Classifier(), torch.randn(3, 2, 4)
    output, _ = run_captured(capture(module, (x,)), (x,))
    assert output.shape == (2, 3)
    torch.testing.assert_close(output, module(x))


def test_validate_notices_lost_training_behaviour():
    module, x = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)), torch.randn(4, 3)
    captured = capture(module, (x,))
    validate(captured, module, (x,))
    with torch.no_grad():
        captured.parameters["0.weight"] = torch.nn.Parameter(module[0].weight + 0.1)
    with pytest.raises(ValueError, match="differs from the module's"):
        validate(captured, module, (x,))
    del captured.parameters["0.weight"]
    with pytest.raises(ValueError, match=r"'0\.weight' is used by forward"):
        validate(captured, module, (x,))
    captured = capture(module.eval(), (x,))
    captured.training = True
    with pytest.raises(ValueError, match="BatchNormalization was captured in inference mode"):
        validate(captured, module.train(), (x,))
