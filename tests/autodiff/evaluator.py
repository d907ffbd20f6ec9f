"""Where onnx's evaluator (1.23) is wrong or computes in single precision: the same operators by torch, in double."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from onnx.reference.op_run import OpRun

from ontrain.graph.evaluator_corrections import LRN, LpNormalization, MaxPool
from tests.autodiff.samples.recurrent import by_definition


class Erf(OpRun):
    """Its result is rounded to single precision."""

    def _run(self, x):
        return (torch.erf(torch.tensor(x)).numpy(),)


class Gelu(OpRun):
    """Its body has constants in single precision."""

    def _run(self, x, approximate=None):
        return (F.gelu(torch.tensor(x), approximate=approximate or "none").numpy(),)


class HardSwish(OpRun):
    """Its body has 1/6 in single precision."""

    def _run(self, x):
        return (F.hardswish(torch.tensor(x)).numpy(),)


class GroupNormalization(OpRun):
    """Its body computes in single precision."""

    def _run(self, x, scale, bias, epsilon=None, num_groups=None, stash_type=None):
        x, scale, bias = (torch.tensor(v) for v in (x, scale, bias))
        return (F.group_norm(x, num_groups, scale, bias, epsilon).numpy(),)


class MeanVarianceNormalization(OpRun):
    """Its body mixes single and double precision."""

    def _run(self, x, axes=None):
        centred = x - x.mean(tuple(axes), keepdims=True)
        return (centred / (np.sqrt((centred**2).mean(tuple(axes), keepdims=True)) + 1e-9),)


class GatherElements(OpRun):
    """Fails with more than 64 elements."""

    def _run(self, x, ids, axis=None):
        ids = torch.tensor(ids)
        return (torch.gather(torch.tensor(x), axis, torch.where(ids < 0, ids + x.shape[axis], ids)).numpy(),)


class ConvTranspose(OpRun):
    """Drops all but the first output channel of each group and slices the weight wrongly."""

    def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, output_padding=None,
             output_shape=None, pads=None, strides=None):  # fmt: skip
        rank = x.ndim - 2
        function = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][rank - 1]
        dilations, strides = dilations or [1] * rank, strides or [1] * rank
        extra, pads = output_padding or [0] * rank, pads or [0] * (2 * rank)
        y = function(torch.tensor(x), torch.tensor(w), None, strides, 0, 0, group or 1, dilations)
        y = F.pad(y, [p for e in reversed(extra) for p in (0, e)])
        before, after = pads[:rank], pads[rank:]
        if output_shape:
            totals = [have - want for have, want in zip(y.shape[2:], output_shape, strict=True)]
            less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
            before, after = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
        for i in range(rank):
            y = y.narrow(2 + i, before[i], y.shape[2 + i] - before[i] - after[i])
        if b is not None:
            y = y + torch.tensor(b).reshape([1, -1] + [1] * rank)
        return (y.numpy(),)


def _recurrent(op_type: str) -> type[OpRun]:
    """onnx's knows one direction, no lengths and no clipping."""

    def run(self, *arrays, **attributes):
        del self
        tensors = (None if a is None else torch.tensor(a) for a in arrays)
        options = {name: value for name, value in attributes.items() if value is not None}
        return tuple(y.numpy() for y in by_definition(op_type, *tensors, **options))

    return type(op_type, (OpRun,), {"_run": run})


RECURRENT = [_recurrent(op_type) for op_type in ("LSTM", "GRU", "RNN")]
CORRECTED = [
    ConvTranspose, Erf, GatherElements, Gelu, GroupNormalization, HardSwish, LRN, LpNormalization,
    MaxPool, MeanVarianceNormalization, *RECURRENT,
]  # fmt: skip
