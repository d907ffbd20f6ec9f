"""Small encoders in double precision, run by eager torch and by ORTModule on the same batches."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCABULARY, WIDTH, LENGTH, BATCH = 13, 8, 6, 3


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual and a normalisation."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, bias):
        q, k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.o(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """Tokens and positions, two layers, and a mask as Hugging Face's models add it: 0 or the lowest number."""

    def __init__(self, causal=False):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.causal = causal

    def forward(self, ids, mask):
        x = self.words(ids) + self.places.weight
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        if self.causal:
            bias = bias.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), torch.finfo(x.dtype).min)
        for layer in self.layers:
            x = layer(x, bias)
        return x


class Tagger(nn.Module):
    """A label for each token; −100 is no label."""

    def __init__(self, form="flat", reduction="mean", causal=False):
        super().__init__()
        self.encoder, self.head = Encoder(causal), nn.Linear(WIDTH, VOCABULARY)
        self.form, self.reduction = form, reduction

    def forward(self, ids, mask, labels):
        logits = self.head(self.encoder(ids, mask))
        if self.form == "shifted":
            logits, labels = logits[:, :-1], labels[:, 1:]
        if self.form == "classes second":
            loss = F.cross_entropy(logits.transpose(1, 2), labels, reduction=self.reduction)
        elif self.form == "log-probabilities":
            loss = F.nll_loss(F.log_softmax(logits, -1).flatten(0, 1), labels.flatten(), reduction=self.reduction)
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=self.reduction)
        return loss if self.reduction == "mean" else loss.sum() / 7


class Classifier(nn.Module):
    """A label for each sequence, from its first token."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(WIDTH, 4)

    def forward(self, ids, mask, labels):
        return F.cross_entropy(self.head(torch.tanh(self.encoder(ids, mask)[:, 0])), labels)


def initialised(module):
    """The module with weights that let every gradient be seen, in double precision."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7)
    return module.double().train()


class Pair:
    """A module and its copy in an ORTModule."""

    def __init__(self, module):
        from ontrain.training.ortmodule import ORTModule

        self.eager = initialised(module)
        self.ours = ORTModule(copy.deepcopy(self.eager))

    def check(self, *batch):
        """Compare loss and every gradient of one batch.

        Eager attention is that of its definition: the gradients of ATen's flash kernel are too large by the number of
        keys where the mask hides all of them, since the logarithm of a sum is lost beside the lowest number.
        """
        for module in (self.eager, self.ours):
            module.zero_grad(set_to_none=True)
        with sdpa_kernel(SDPBackend.MATH):
            expected = self.eager(*batch)
        loss = self.ours(*batch)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
        expected.backward()
        loss.backward()
        for (name, want), have in zip(self.eager.named_parameters(), self.ours.parameters(), strict=True):
            assert (have.grad is None) == (want.grad is None), name
            if want.grad is not None:
                scale = float(want.grad.abs().max())
                torch.testing.assert_close(have.grad, want.grad, rtol=1e-11, atol=1e-12 * max(scale, 1.0), msg=name)

    @property
    def plans(self):
        """How many plans there are."""
        (entry,) = self.ours._engine.entries
        return len(entry.session.plans)
