"""Hugging Face's models with padded batches: rows left out or not, loss and gradients are the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import transformers

from ontrain.training import ORTTrainer, optim

BATCH, LENGTH, VOCABULARY = 4, 10, 60
LENGTHS = (10, 7, 4, 6)
NAMES = ("EliminateUnlabelledRows", "EliminateUnreadRows", "EliminatePadding")
BERT = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=VOCABULARY,
    max_position_embeddings=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def bert(kind, **more):
    return lambda: getattr(transformers, f"BertFor{kind}")(transformers.BertConfig(**{**BERT, **more}))


def roberta():
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**BERT, pad_token_id=1))


def gpt2():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=20, use_cache=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
        vocab_size=VOCABULARY, max_position_embeddings=20, use_cache=False, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def t5():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, vocab_size=VOCABULARY, use_cache=False,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def tokens():
    ids = torch.randint(5, VOCABULARY, (BATCH, LENGTH))
    mask = (torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": torch.where(mask == 1, ids, 1), "attention_mask": mask}


def masked():
    batch = tokens()
    return {**batch, "labels": torch.where(torch.arange(LENGTH) == 2, batch["input_ids"], -100)}


def prompted():
    """Answers are learned, prompts and padding are not."""
    batch = tokens()
    answer = (torch.arange(LENGTH) > 2) & (batch["attention_mask"] == 1)
    return {**batch, "labels": torch.where(answer, batch["input_ids"], -100)}


def tagged():
    batch = tokens()
    return {**batch, "labels": torch.where(batch["attention_mask"] == 1, batch["input_ids"] % 5, -100)}


def spans():
    return {**tokens(), "start_positions": torch.tensor([0, 1, 2, 1]), "end_positions": torch.tensor([1, 1, 3, 2])}


def classified():
    return {**tokens(), "labels": torch.tensor([0, 1, 2, 1])}


# A model, its batch, and what each pass says it keeps.
# 27 tokens are real, 15 of them answers; plans are made for 28 and 15.
LABELS, PADDING = "labelled rows 0: {} of 40", "unpadded rows 0: 28 of 40"
MODELS = [
    pytest.param(bert("MaskedLM"), masked, [LABELS.format(4), PADDING], id="bert"),
    pytest.param(gpt2, prompted, [LABELS.format(15), PADDING], id="gpt2"),
    pytest.param(t5, prompted, [LABELS.format(15), PADDING], id="t5"),
    pytest.param(llama, prompted, [LABELS.format(15), PADDING], id="llama", marks=pytest.mark.thorough),
    pytest.param(bert("SequenceClassification", num_labels=3), classified, [PADDING], id="bert-sequences"),
    pytest.param(roberta, masked, [LABELS.format(4), PADDING], id="roberta", marks=pytest.mark.thorough),
    pytest.param(bert("TokenClassification", num_labels=5), tagged, [LABELS.format(28), PADDING], id="bert-tokens",
                 marks=pytest.mark.thorough),
    # Scores over all places include the padding's: only keys and values are packed.
    pytest.param(bert("QuestionAnswering"), spans, [PADDING], id="bert-spans", marks=pytest.mark.thorough),
]  # fmt: skip


class Steps:
    """A trainer whose weights are put back after each step."""

    def __init__(self, make, feeds):
        self.feeds, self.model = feeds, make().double().train()
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(3.0)  # or the gradients of queries and keys would be next to nothing
        self.weights = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        description = {
            "inputs": [(name, ["batch", "length"][: value.dim()]) for name, value in feeds.items()],
            "outputs": [("loss", [], True)],
        }
        self.trainer = ORTTrainer(self.model, description, optim.SGDConfig(lr=1.0), None, {"device": {"id": "cpu"}})

    def step(self, names):
        """The loss, the gradients, and what the passes of these names say."""
        loss = self.trainer.train_step(**self.feeds)
        grads = {name: self.weights[name] - weight.detach() for name, weight in self.model.named_parameters()}
        for name, value in self.weights.items():
            self.model.get_parameter(name).data.copy_(value)
        (plan,) = self.trainer._run.session.plans.values()
        return loss, grads, [text for report in plan.passes if report.name in names for text in report.notes]

    def compare_without(self, names, loss, grads):
        """Turn passes off, and compare."""
        session = self.trainer._run.session
        session._planning = dataclasses.replace(session._planning, disabled_passes=names)
        session._planner.plans.clear()
        session._planner._row_counts._counters.clear()
        whole_loss, whole_grads, notes = self.step(names)
        assert not notes
        # The causal models turn their logits to single precision.
        tolerance = 1e-12 if loss.dtype == torch.float64 else 1e-6
        torch.testing.assert_close(loss, whole_loss, rtol=tolerance, atol=0)
        for name, grad in whole_grads.items():
            # A bias of keys has no gradient but rounding, and the largest of a weight's entries sets its scale.
            scale = max(float(grad.abs().max()), 1e-3)
            torch.testing.assert_close(grads[name], grad, rtol=0, atol=tolerance * scale, msg=name)


@pytest.mark.parametrize(("make", "batch", "said"), MODELS)
@pytest.mark.sampled(2)
def test_rows_are_left_out_and_nothing_changes(make, batch, said):
    torch.manual_seed(0)
    steps = Steps(make, batch())
    loss, grads, notes = steps.step(NAMES)
    savings = [text for text in notes if " of 40 rows" in text]
    assert len(savings) == len(said) and all(have.startswith(want) for have, want in zip(savings, said, strict=True)), (
        notes
    )
    steps.compare_without(NAMES, loss, grads)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("make", "batch", "_"), MODELS)
def test_a_mask_of_ones_is_not_added_and_nothing_changes(make, batch, _):
    torch.manual_seed(0)
    feeds = batch()
    steps = Steps(make, {**feeds, "attention_mask": torch.ones_like(feeds["attention_mask"])})
    loss, grads, notes = steps.step(["EliminateMasks"])
    assert any("without what hides nothing" in text for text in notes), notes
    steps.compare_without(("EliminateMasks",), loss, grads)
