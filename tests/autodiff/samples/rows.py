"""Reductions, normalisations and losses."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import Sample, normal, sample, spread, uniform


def _reduce(op_type: str, twin, draw=normal) -> list[Sample]:
    """All axes; one axis kept; two axes dropped; none."""
    return [
        sample(op_type, draw(2, 3), twin=lambda x: twin(x, (0, 1), True)),
        sample(op_type, draw(2, 3, 2), [1], twin=lambda x, a: twin(x, (1,), True)),
        sample(op_type, draw(2, 3, 2), [0, -1], twin=lambda x, a: twin(x, (0, 2), False), keepdims=0),
    ]


def _prod(x, axes, keep):
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _bag(weight, ids, starts, shares=None, **options):
    return F.embedding_bag(ids, weight, starts, per_sample_weights=shares, **options)


_positive = partial(uniform, 0.5, 2.0)

REDUCE = [
    *_reduce("ReduceSum", torch.sum),
    *_reduce("ReduceMean", torch.mean),
    *_reduce("ReduceMax", torch.amax, spread),
    *_reduce("ReduceMin", torch.amin, spread),
    *_reduce("ReduceProd", _prod),
    *_reduce("ReduceL1", lambda x, a, k: x.abs().sum(a, k), spread),
    *_reduce("ReduceL2", lambda x, a, k: (x * x).sum(a, k).sqrt()),
    *_reduce("ReduceLogSum", lambda x, a, k: x.sum(a, k).log(), _positive),
    *_reduce("ReduceLogSumExp", torch.logsumexp),
    *_reduce("ReduceSumSquare", lambda x, a, k: (x * x).sum(a, k)),
    sample("ReduceSum", normal(2, 3), np.array([], np.int64), twin=lambda x, a: x.clone(), noop_with_empty_axes=1),
    # Which only speaks of empty axes.
    sample("ReduceSum", normal(2, 3), [1], twin=lambda x, a: x.sum(1, keepdim=True), noop_with_empty_axes=1),
    sample("ReduceMean", normal(2, 3), [0], twin=lambda x, a: x.mean(0), keepdims=0, noop_with_empty_axes=1),
    sample("ReduceProd", np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0]]), [1], twin=lambda x, a: x.prod(1, keepdim=True)),
    sample("CumSum", normal(3, 4), np.array(1), twin=lambda x, a: x.cumsum(1)),
    sample("CumSum", normal(3, 4), np.array(0), exclusive=1, reverse=1,
           twin=lambda x, a: x.flip(0).cumsum(0).flip(0) - x),
    sample("EmbeddingBag", normal(6, 3), [5, 0, 2, 2, 4], [0, 2, 2], domain="ontrain", twin=partial(_bag, mode="sum")),
    sample("EmbeddingBag", normal(6, 3), [5, 0, 2, 2, 4], [0, 3, 5], domain="ontrain", mean=1, padding_idx=2,
           fed=[1], twin=partial(_bag, mode="mean", padding_idx=2)),
    sample("EmbeddingBag", normal(6, 3), [5, 0, 2, 2, 4], [0, 1], normal(5), domain="ontrain", padding_idx=2,
           twin=partial(_bag, mode="sum", padding_idx=2)),
    sample("EmbeddingBag", normal(6, 3), [5, 0, 2, 2, 4], [0, 1], normal(5), domain="ontrain", fixed=[3],
           twin=partial(_bag, mode="sum")),
    sample("Distances", normal(3, 4), normal(5, 4), domain="ontrain", twin=torch.cdist),
    sample("Distances", normal(2, 1, 27, 3), normal(2, 2, 3), domain="ontrain", twin=torch.cdist),  # by a product
    sample("LogCumSumExp", normal(3, 4), axis=0, domain="ontrain", twin=lambda x: x.logcumsumexp(0)),
    sample("LogCumSumExp", normal(2, 5, 2), axis=1, domain="ontrain", twin=lambda x: x.logcumsumexp(1)),
    sample("RunningExtremum", spread(2, 5, 2), axis=1, outputs=2, domain="ontrain", twin=lambda x: x.cummax(1)[0]),
    sample("RunningExtremum", spread(3, 4), largest=0, outputs=2, domain="ontrain", twin=lambda x: x.cummin(0)[0]),
    sample("Extremum", spread(2, 3, 4), axis=1, keepdims=0, outputs=2, domain="ontrain", twin=lambda x: x.max(1)[0]),
    sample("Extremum", spread(2, 3, 4), axis=2, largest=0, outputs=2, domain="ontrain",
           twin=lambda x: x.min(2, True)[0]),
    sample("TopK", spread(3, 5), [2], twin=lambda x, k: x.topk(2, 1).values, outputs=2),
    sample("TopK", spread(4, 2), [3], axis=0, largest=0, outputs=2,
           twin=lambda x, k: x.topk(3, 0, largest=False).values),
]  # fmt: skip


def _batch_norm(x, scale, bias, mean, var):
    mean, var, scale, bias = (v.reshape([1, -1] + [1] * (x.ndim - 2)) for v in (mean, var, scale, bias))
    return (x - mean) / torch.sqrt(var + 2**-10) * scale + bias


def _batch_norm_training(x, scale, bias, mean, var):
    return F.batch_norm(x, None, None, scale, bias, True, 0.0, 2**-10)


def _rms(x, scale):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 2**-10) * scale


def _lrn(size):
    """As the standard writes it: from (size − 1) // 2 channels before to size // 2 behind, over the size."""

    def twin(x):
        sums = [x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].square().sum(1) for c in range(x.shape[1])]
        return x / (2.0 + 0.5 / size * torch.stack(sums, 1)) ** 0.75

    return twin


_channels = [normal(3), normal(3)]
_eps = {"epsilon": 2**-10}
_stats = [normal(3), uniform(0.5, 2, 3)]

NORMALIZATION = [
    sample("LayerNormalization", normal(2, 3, 4), normal(4), normal(4), **_eps,
           twin=lambda x, s, b: F.layer_norm(x, (4,), s, b, 2**-10)),
    sample("LayerNormalization", normal(2, 3, 4), normal(3, 4), axis=1, **_eps,
           twin=lambda x, s: F.layer_norm(x, (3, 4), s, None, 2**-10)),
    sample("LayerNormalization", normal(3, 4), normal(3, 4), normal(3, 4), axis=0, **_eps,
           twin=lambda x, s, b: F.layer_norm(x, (3, 4), s, b, 2**-10)),
    sample("LayerNormalization", normal(2, 3, 4), normal(2, 1, 4), normal(3, 1), **_eps,
           twin=lambda x, s, b: F.layer_norm(x, (4,), eps=2**-10) * s + b),
    sample("LayerNormalization", normal(2, 4), normal(1), normal(4), **_eps,
           twin=lambda x, s, b: F.layer_norm(x, (4,), s.expand(4), b, 2**-10)),
    sample("LayerNormalization", normal(2, 3, 4), normal(4), normal(4), **_eps, dtype="float32",
           twin=lambda x, s, b: F.layer_norm(x, (4,), s, b, 2**-10)),
    sample("LayerNormalization", normal(2, 3, 4), normal(4), normal(4), **_eps, dtype="float32", outputs=3,
           seeded=[0, 1, 2], twin=lambda x, s, b: (F.layer_norm(x, (4,), s, b, 2**-10), x.mean(-1, keepdim=True),
                                                   (x.var(-1, correction=0, keepdim=True) + 2**-10) ** -0.5)),
    sample("RMSNormalization", normal(2, 3, 4), normal(4), twin=_rms, **_eps),
    sample("BatchNormalization", normal(4, 3, 2), *_channels, *_stats, twin=_batch_norm, **_eps),
    sample("BatchNormalization", normal(4, 3, 2), *_channels, *_stats, fixed=[3, 4], twin=_batch_norm, **_eps),
    sample("BatchNormalization", normal(4, 3), *_channels, *_stats, fixed=[1, 3, 4], twin=_batch_norm, **_eps),
    sample("BatchNormalization", normal(4, 3, 2), *_channels, *_stats, fixed=[3, 4], training_mode=1, outputs=3,
           twin=_batch_norm_training, **_eps),
    sample("BatchNormalization", normal(6, 3), *_channels, *_stats, fixed=[3, 4], training_mode=1, outputs=3,
           twin=_batch_norm_training, **_eps),
    sample("InstanceNormalization", normal(2, 3, 4, 2), *_channels, **_eps,
           twin=lambda x, s, b: F.instance_norm(x, weight=s, bias=b, eps=2**-10)),
    sample("GroupNormalization", normal(2, 4, 3), normal(4), normal(4), num_groups=2, **_eps,
           twin=lambda x, s, b: F.group_norm(x, 2, s, b, 2**-10)),
    sample("LpNormalization", normal(3, 4), twin=lambda x: F.normalize(x, 2.0, -1)),
    sample("LpNormalization", spread(3, 4), twin=lambda x: F.normalize(x, 1.0, 0), axis=0, p=1),
    *(sample("LRN", normal(2, 5, 3, 2), twin=_lrn(size), size=size, alpha=0.5, beta=0.75, bias=2.0)
      for size in (3, 4, 2)),
    sample("LRN", 30 * np.eye(3, 4)[None, ..., None] + 1, size=3,
           twin=lambda x: F.local_response_norm(x, 3, alpha=float(np.float32(1e-4)))),
    sample("MeanVarianceNormalization", normal(2, 3, 4, 2),
           twin=lambda x: (x - x.mean((0, 2, 3), True)) / (x.std((0, 2, 3), correction=0, keepdim=True) + 1e-9)),
]  # fmt: skip

_LABELS = np.array([2, 0, 1, 3])
_IGNORED = np.array([2, -100, 1, 3])
_WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])
_PIXELS = np.array([[0, 2], [3, -1]])


def _losses(op_type: str, loss, scores) -> list[Sample]:
    return [
        *(
            sample(op_type, scores(4, 4), _LABELS, fed=[1], reduction=r, twin=partial(_loss, loss, r, -100))
            for r in ("mean", "sum", "none")
        ),
        sample(op_type, scores(4, 4), _IGNORED, ignore_index=-100, fed=[1], twin=partial(_loss, loss, "mean", -100)),
        sample(op_type, scores(4, 4), _IGNORED, _WEIGHTS, ignore_index=-100, fixed=[2],
               twin=partial(_loss, loss, "mean", -100)),
        sample(op_type, scores(2, 4, 2), _PIXELS, _WEIGHTS, ignore_index=-1, reduction="none", fixed=[2],
               twin=partial(_loss, loss, "none", -1)),
    ]  # fmt: skip


def _loss(loss, reduction, ignore_index, scores, labels, weights=None):
    return loss(scores, labels, weights, reduction=reduction, ignore_index=ignore_index)


def _alignment(blank, x, targets, lengths, sizes):
    return F.ctc_loss(x, targets, lengths, sizes, blank, reduction="none")


# torch's gradient takes log-probabilities for a result of log_softmax, and so adds probabilities to the derivative.
# These are none beside it.
_low = uniform(-45.0, -40.0, 5, 2, 4)

LOSS = [
    sample("CTC", _low, [[1, 1], [3, 2]], [5, 4], [2, 1], domain="ontrain", twin=partial(_alignment, 0)),
    sample("CTC", _low, [[1, 0], [3, 3]], [4, 5], [2, 0], domain="ontrain", blank=2, fed=[1, 2, 3],
           twin=partial(_alignment, 2)),
    *_losses("SoftmaxCrossEntropyLoss", F.cross_entropy, normal),
    sample("LinearCrossEntropy", normal(4, 3), _LABELS, normal(5, 3), normal(5), fed=[1], domain="ontrain",
           twin=lambda h, t, w, b: F.cross_entropy(F.linear(h, w, b), t)),
    sample("LinearCrossEntropy", normal(4, 3), np.array([2, -100, 1, -100]), normal(3, 5), fed=[1], domain="ontrain",
           reduction="sum", ignore_index=-100, transB=0,
           twin=lambda h, t, w: F.cross_entropy(h @ w, t, reduction="sum")),
    sample("ScaleGrad", normal(4, 3), normal(), twin=torch.mul, domain="ontrain"),
    sample("SoftmaxCrossEntropyLoss", normal(4, 4), _LABELS, outputs=2, seeded=[0, 1],
           twin=lambda x, i: (F.cross_entropy(x, i), torch.log_softmax(x, 1))),
    *_losses("NegativeLogLikelihoodLoss", F.nll_loss, normal),
]  # fmt: skip
