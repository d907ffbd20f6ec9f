"""Attention sequence by sequence: what is left out changes no loss and no gradient, and what is not plain stays whole.

The pass asks for a GPU's kernels. Here the provider says that it has them, and runs the operator by its formula.
"""

from __future__ import annotations

from functools import cache

import onnx_ir as ir
import pytest
import torch
from hypothesis import given as drawn, settings, strategies as st

from ontrain.passes.rows import sequences
from ontrain.providers.torch import TorchExecutionProvider
from ontrain.providers.torch.lowering import attention
from ontrain.training import ORTTrainer, optim
from tests.passes.rows.encoders import BATCH, LENGTH, Classifier, Pair, Tagger
from tests.passes.rows.test_equality import PATTERNS, ROWS, tokens
from tests.passes.rows.test_huggingface import BERT, MODELS, bert, tagged
from tests.providers.torch.packed_kernels import packed_kernels

pytestmark = pytest.mark.sampled(4)


@pytest.fixture(autouse=True)
def _kernels_everywhere(monkeypatch):
    monkeypatch.setattr(TorchExecutionProvider, "attends_sequences", True)
    monkeypatch.setattr(sequences, "_WIDTHS", range(1, 257))
    monkeypatch.setattr(sequences, "_TYPES", (*sequences._TYPES, ir.DataType.DOUBLE))


@pytest.fixture
def said(monkeypatch):
    """What the pass says about each plan that it changes."""
    notes = []
    monkeypatch.setattr(sequences, "note", notes.append)
    return notes


@pytest.mark.parametrize("module", [Tagger, Classifier, lambda: Tagger(causal=True)], ids=["tags", "classes", "causal"])
def test_patterns_that_are_easily_got_wrong(module, said):
    pair = Pair(module())
    for labelled, mask in PATTERNS:
        ids, mask, labels = tokens(labelled, mask)
        if isinstance(pair.eager, Classifier):
            labels = torch.arange(BATCH)
        pair.check(ids, mask, labels)
    assert bool(said) != pair.eager.encoder.causal


pattern = st.lists(st.booleans(), min_size=ROWS, max_size=ROWS)


@cache
def tags():
    return Pair(Tagger())


@settings(max_examples=12)
@drawn(pattern, st.lists(st.integers(0, LENGTH), min_size=BATCH, max_size=BATCH), pattern, st.booleans())
def test_any_mask_and_any_labels_give_the_same(labelled, lengths, scattered, ends):
    mask = [i < n for n in lengths for i in range(LENGTH)] if ends else scattered
    tags().check(*tokens(labelled, mask))


def test_a_labelled_row_that_the_mask_hides_keeps_the_batch_whole(said):
    """It is a query and no key: there is no sequence that it is one of."""
    pair = Pair(Tagger())
    real = [i < n for n in (6, 3, 2) for i in range(LENGTH)]
    pair.check(*tokens(real, real))
    assert [line.partition(": ")[2] for line in said] == ["2 attentions sequence by sequence"]
    beside = [i in (0, 5 + LENGTH) for i in range(ROWS)]
    pair.check(*tokens(beside, real))
    assert len(said) == 1


class Weighed(torch.nn.Module):
    """A mask that hides nothing and adds something: it is no padding."""

    def __init__(self):
        super().__init__()
        self.tagger = Tagger()

    def forward(self, ids, mask, labels, added):
        encoder = self.tagger.encoder
        x = encoder.words(ids) + encoder.places.weight
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min + added[:, None, None, :]
        for layer in encoder.layers:
            x = layer(x, bias)
        return torch.nn.functional.cross_entropy(self.tagger.head(x).flatten(0, 1), labels.flatten())


def test_what_is_added_to_scores_is_looked_at_in_each_batch(said):
    pair = Pair(Weighed())
    real = [i < n for n in (6, 3, 2) for i in range(LENGTH)]
    batch = tokens(real, real)
    nothing, something = torch.zeros(BATCH, LENGTH).double(), torch.linspace(0, 1, ROWS).reshape(BATCH, LENGTH).double()
    pair.check(*batch, nothing)
    assert len(said) == 1
    pair.check(*batch, something)
    pair.check(*batch, torch.where(batch[1] == 1, 0.0, something))  # what is added to hidden keys alone is nothing
    assert len(said) == 1


class Two(torch.nn.Module):
    """Two sets of tokens, each with a mask of its own; either may be no padding."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Weighed(), Weighed()

    def forward(self, ids, mask, labels, added, others, other_mask, other_added):
        return self.first(ids, mask, labels, added) + 2 * self.second(others, other_mask, labels[:2], other_added)


@pytest.mark.parametrize("plain", [(True, False), (False, True), (True, True), (False, False)])
def test_of_two_masks_each_is_looked_at_by_itself(plain, said):
    pair = Pair(Two())
    real = [i < n for n in (6, 3, 2) for i in range(LENGTH)]
    other = [i < n for n in (2, 4, 6) for i in range(LENGTH)]
    both = [first and two for first, two in zip(real, other, strict=True)]
    ids, mask, labels = tokens(both, real)
    something = torch.linspace(0, 1, ROWS).reshape(BATCH, LENGTH).double()
    added = [torch.zeros(BATCH, LENGTH).double() if mask else something for mask in plain]
    pair.check(ids, mask, labels, added[0], ids.flip(0)[:2], tokens(both, other)[1][:2], added[1][:2])
    assert len(said) == sum(plain)


def trained(make, feeds, *, off=(), dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = make().to(dtype).train()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    description = {
        "inputs": [(name, ["batch", "length"][: tensor.dim()]) for name, tensor in feeds.items()],
        "outputs": [("loss", [], True)],
    }
    options = {"device": {"id": "cpu"}, "graph_transformer": {"disabled_passes": list(off)}, **options}
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=1.0), None, options)
    trainer.prepare(**feeds)
    loss = trainer.train_step(**feeds)
    grads = {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}
    return loss, grads


# How many attentions; a causal one hides something always, T5 adds what it learns but in the last layer's view of the
# encoder, and scores of spans are read over all places.
COUNTS = {
    "bert": 2,
    "gpt2": 0,
    "t5": 1,
    "llama": 0,
    "bert-sequences": 2,
    "roberta": 2,
    "bert-tokens": 2,
    "bert-spans": 0,
}


@pytest.mark.parametrize(
    ("make", "batch", "count"),
    [pytest.param(*case.values[:2], COUNTS[case.id], id=case.id, marks=case.marks) for case in MODELS],
)
def test_models_of_hugging_face_lose_nothing(make, batch, count, said):
    torch.manual_seed(0)
    feeds = batch()
    loss, grads = trained(make, feeds)
    whole, expected = trained(make, feeds, off=("AttendSequences",))
    assert sum(int(line.split(": ")[1].split()[0]) for line in said) == count
    tolerance = 1e-12 if loss.dtype == torch.float64 else 1e-6
    torch.testing.assert_close(loss, whole, rtol=tolerance, atol=0)
    for name, grad in expected.items():
        scale = max(float(grad.abs().max()), 1e-3)
        torch.testing.assert_close(grads[name], grad, rtol=0, atol=tolerance * scale, msg=name)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_a_step_on_the_kernels_is_the_same_step(precision, monkeypatch, said):
    monkeypatch.setattr(attention, "_has_fused", lambda device: True)
    monkeypatch.setattr(attention, "runs_flash", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    torch.manual_seed(0)
    make, feeds = bert("TokenClassification", num_labels=5), tagged()
    half = {"mixed_precision": {"enabled": True, "dtype": precision}} if precision else {}
    with packed_kernels():
        loss, grads = trained(make, feeds, dtype=torch.float32, **half)
    assert len(said) == 1
    monkeypatch.undo()
    whole, expected = trained(make, feeds, dtype=torch.float32, off=("AttendSequences",), **half)
    tolerance = 2e-2 if precision else 1e-5
    torch.testing.assert_close(loss, whole, rtol=tolerance, atol=0)
    for name, grad in expected.items():
        scale = max(float(grad.abs().max()), 1e-2)
        torch.testing.assert_close(grads[name], grad, rtol=0, atol=tolerance * scale, msg=name)


def test_a_provider_without_the_kernels_is_not_counted_for(monkeypatch, said):
    monkeypatch.setattr(TorchExecutionProvider, "attends_sequences", False)
    torch.manual_seed(0)
    trained(bert("TokenClassification", num_labels=5), tagged())
    assert not said


def test_activations_that_are_computed_again_keep_attention_whole(said):
    """A mask that is drawn inside of a kernel cannot be drawn twice."""
    torch.manual_seed(0)
    trained(bert("TokenClassification", num_labels=5), tagged(), graph_transformer={"attn_dropout_recompute": True})
    assert not said


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_in_single_precision_keeps_attention_whole(dtype, said):
    """The kernel for it draws other masks of packed sequences going backward than forward."""
    torch.manual_seed(0)
    make = bert("TokenClassification", num_labels=5, **{**BERT, "attention_probs_dropout_prob": 0.2})
    trained(make, tagged(), dtype=dtype)
    assert bool(said) == (dtype == torch.float64)
    if dtype == torch.float32:
        trained(make, tagged(), dtype=dtype, mixed_precision={"enabled": True, "dtype": "bfloat16"})
        assert said


def test_dropout_is_drawn_for_the_rows_that_are_left():
    make = bert("TokenClassification", num_labels=5)

    def noisy():
        model = make()
        for module in model.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.5
            if isinstance(getattr(module, "dropout", None), torch.nn.Dropout) and "Self" in type(module).__name__:
                module.dropout.p = 0.5
        return model

    torch.manual_seed(0)
    feeds = tagged()
    losses = [trained(noisy, feeds)[0] for _ in range(2)]
    still, _ = trained(make, feeds)
    assert torch.equal(*losses)
    assert not torch.equal(losses[0], still)
