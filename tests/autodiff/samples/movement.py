"""Operators that move elements: reshapes, slices, joins, pads, gathers, scatters."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import Sample, normal, sample


def _slice(shape: tuple[int, ...], index: tuple[slice, ...], starts, ends, axes=None, steps=None) -> Sample:
    def twin(x, *_):
        return x.reshape(-1)[torch.tensor(np.arange(x.numel()).reshape(shape)[index].copy())]

    rest = [v for v in (axes, steps) if v is not None]
    return sample("Slice", normal(*shape), starts, ends, *rest, twin=twin)


def _pad(shape: tuple[int, ...], pads: list[int], mode: str) -> Sample:
    rank = len(shape)

    def twin(x, *_):
        widths = [(pads[i], pads[rank + i]) for i in range(rank)]
        if mode == "constant":
            return F.pad(x, [p for pair in widths[::-1] for p in pair])
        index = np.pad(np.arange(x.numel()).reshape(shape), widths, mode=mode)
        return x.reshape(-1)[torch.tensor(index)]

    return sample("Pad", normal(*shape), pads, twin=twin, mode=mode)


def _depth_to_space_dcr(x):
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, h * 2, w * 2)


def _space_to_depth(x):
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(n, c * 4, h // 2, w // 2)


def _reverse(x, lengths):
    rows = [torch.cat([x[: int(n), i].flip(0), x[int(n) :, i]]) for i, n in enumerate(lengths)]
    return torch.stack(rows, 1)


SHAPE = [
    sample("Identity", normal(2, 3), twin=torch.clone),
    sample("Inspect", normal(2, 3), twin=torch.clone, domain="ontrain", name="x"),
    sample("Cast", normal(2, 3), twin=lambda x: x.float(), to=1, second=False),
    sample("CastLike", normal(2, 3), np.array(1.0), fixed=[1], twin=lambda x, y: x.clone()),
    sample("Reshape", normal(2, 6), [3, -1], twin=lambda x, s: x.reshape(3, 4)),
    sample("Reshape", normal(1, 1), np.array([], np.int64), twin=lambda x, s: x.reshape(())),
    sample("Flatten", normal(2, 3, 4), twin=lambda x: x.reshape(6, 4), axis=2),
    sample("Squeeze", normal(2, 1, 3, 1), [1], twin=lambda x, a: x.squeeze(1)),
    sample("Squeeze", normal(2, 1, 3, 1), twin=torch.squeeze),
    sample("Unsqueeze", normal(2, 3), [0, -1], twin=lambda x, a: x[None, :, :, None]),
    sample("Transpose", normal(2, 3, 4), twin=lambda x: x.permute(2, 1, 0)),
    sample("Transpose", normal(2, 3, 4), twin=lambda x: x.permute(1, 2, 0), perm=[1, 2, 0]),
    sample("Expand", normal(3, 1), [2, 3, 4], twin=lambda x, s: x.expand(2, 3, 4)),
    sample("Expand", normal(3, 4), [1, 4], twin=lambda x, s: x.clone()),
    sample("Tile", normal(2, 3), [2, 3], twin=lambda x, r: x.tile(2, 3)),
    sample("Concat", normal(2, 3), normal(2, 1), normal(2, 2), twin=lambda *x: torch.cat(x, 1), axis=1),
    sample("Concat", normal(2, 3), normal(2, 1), twin=lambda *x: torch.cat(x, -1), axis=-1),
    sample("Concat", normal(2, 3), twin=lambda *x: torch.cat(x, 0), axis=0),
    sample("Split", normal(5, 2), [1, 4], twin=lambda x, s: x.split([1, 4]), outputs=2, seeded=[0, 1]),
    sample("Split", normal(2, 6), twin=lambda x: x.split(2, 1)[1], axis=1, num_outputs=3, outputs=3, seeded=[1]),
    _slice((4, 5), (slice(1, 3), slice(0, 4)), [1, 0], [3, 4]),
    _slice((4, 5), (slice(None), slice(-3, -1)), [-3], [-1], [1]),
    _slice((4, 5), (slice(None), slice(1, None, 2)), [1], [2**40], [1], [2]),
    _slice((4, 5), (slice(None, None, -1), slice(3, 0, -2)), [-1, 3], [-(2**40), 0], [0, 1], [-1, -2]),
    _slice((2, 3, 5), (slice(1, 2), slice(None), slice(0, 5, 3)), [1, 0], [2, 5], [0, -1], [1, 3]),
    _slice((3, 4), (slice(None), slice(None, 2)), [-9], [2], [1]),
    _pad((2, 3), [1, 0, 2, 1], "constant"),
    _pad((3, 4), [2, 1, 1, 3], "reflect"),
    _pad((3, 4), [2, 0, 1, 3], "edge"),
    _pad((3, 4), [2, 1, 1, 3], "wrap"),
    sample("Pad", normal(2, 3), [0, 1, 1, 0], normal(), twin=lambda x, p, c: torch.cat(
        [torch.cat([c.expand(2, 1), x], 1), c.expand(1, 4)], 0)),
    sample("Pad", normal(2, 3), [1, 2], normal(), [-1], twin=lambda x, p, c, a: torch.cat(
        [c.expand(2, 1), x, c.expand(2, 2)], 1)),
    sample("DepthToSpace", normal(1, 8, 2, 3), twin=_depth_to_space_dcr, blocksize=2),
    sample("DepthToSpace", normal(1, 8, 2, 3), twin=lambda x: F.pixel_shuffle(x, 2), blocksize=2, mode="CRD"),
    sample("SpaceToDepth", normal(1, 2, 4, 6), twin=_space_to_depth, blocksize=2),
    sample("Trilu", normal(3, 4), twin=torch.triu),
    sample("Trilu", normal(2, 3, 4), np.array(1), twin=lambda x, k: torch.tril(x, 1), upper=0),
    sample("ReverseSequence", normal(4, 3), [1, 2, 4], twin=_reverse, batch_axis=1, time_axis=0),
]  # fmt: skip

_IDS = np.array([[0, 2, 2], [3, 0, 2]])
_ROWS = np.array([[0, 1, 2], [2, 0, 0]])
_DOWN = np.array([[0, 1, 2, 0], [2, 1, 0, 0]])
_FED = np.array([[1, 0, -1], [2, 0, 0]])


def _reduced(x, ids, updates, *, how):
    """Each row's elements and the updates meant for them, reduced; scatter_reduce has no forward mode for all."""
    nothing = {"prod": 1.0, "amax": -torch.inf, "amin": torch.inf}[how]
    rows = torch.arange(len(x))[None, :, None]
    meant = torch.where(ids.expand_as(updates)[:, None] == rows, updates[:, None], nothing)
    return getattr(torch.cat([x[None], meant]), how)(0)


INDEX = [
    sample("Gather", normal(4, 5), _IDS, twin=lambda x, i: x[i]),
    sample("Gather", normal(4, 5), np.array([3, -1, 0]), twin=lambda x, i: x[i]),
    sample("Gather", normal(3, 5), np.array([[2, -1], [0, -3]]), twin=lambda x, i: x[i], fed=[1]),
    sample("Gather", normal(3, 5), _FED, twin=lambda x, i: x[i], fed=[1]),
    sample("Gather", normal(4), np.array([1, 1, 3]), twin=lambda x, i: x[i]),
    sample("Gather", normal(2, 4, 3), _IDS, twin=lambda x, i: x[:, i], axis=1),
    sample("Gather", normal(2, 4, 3), np.array([0, 2, 2]), twin=lambda x, i: x[..., i], axis=-1),
    sample("Gather", normal(2, 4, 3), np.array(-1), twin=lambda x, i: x[:, -1], axis=1),
    sample("Gather", normal(2, 4, 3), np.array([2]), twin=lambda x, i: x[:, 2:3], axis=1),
    sample("Gather", normal(2, 4, 3), np.array(1), twin=lambda x, i: x[:, 1], axis=1, fed=[1]),
    sample("Embedding", normal(4, 3), _IDS, twin=lambda w, i: F.embedding(i, w), domain="ontrain", fed=[1]),
    sample("PackRows", normal(5, 2, 3), np.array([3, 0, 4]), twin=lambda x, i: x[i], domain="ontrain", fed=[1]),
    sample("UnpackRows", normal(3, 2), np.array([3, 0, 4]), domain="ontrain", fed=[1], rows=5,
           twin=lambda x, i: torch.zeros(5, 2, dtype=x.dtype).index_put((i,), x)),
    sample("GatherND", normal(3, 4, 2), np.array([[0, 1], [2, 3], [0, 1], [-1, -2]]),
           twin=lambda x, i: x[i[:, 0], i[:, 1]]),
    sample("GatherND", normal(3, 4, 2), np.array([[1], [1], [3]]), batch_dims=1, fed=[1],
           twin=lambda x, i: x[torch.arange(3), i[:, 0]]),
    sample("GatherND", normal(3, 4), np.array([[[0, 0]], [[2, 1]]]), twin=lambda x, i: x[i[..., 0], i[..., 1]]),
    sample("GatherElements", normal(3, 4), _DOWN, twin=lambda x, i: x.gather(0, i), axis=0),
    sample("GatherElements", normal(2, 4), _ROWS, twin=lambda x, i: x.gather(1, i), axis=1),
    sample("ScatterElements", normal(2, 4), np.array([[0, 2, 3], [3, 0, 1]]), normal(2, 3), axis=1,
           twin=lambda x, i, u: x.scatter(1, i, u)),
    sample("ScatterElements", normal(3, 4), _DOWN, normal(2, 4), axis=0, reduction="add",
           twin=lambda x, i, u: x.scatter_add(0, i, u)),
    *(
        sample("ScatterElements", normal(3, 4), _DOWN, normal(2, 4), axis=0, reduction=r, twin=partial(_reduced, how=h))
        for r, h in (("mul", "prod"), ("max", "amax"), ("min", "amin"))
    ),
    *(
        sample("ScatterND", normal(3, 2), np.array([[0], [2], [0]]), normal(3, 2), reduction=r,
               twin=partial(_reduced, how=h))
        for r, h in (("mul", "prod"), ("max", "amax"), ("min", "amin"))
    ),
    sample("OneHot", np.array([1, 0, 3]), np.array(4), normal(2), axis=0,
           twin=lambda i, d, v: torch.where(F.one_hot(i, 4).T.bool(), v[1], v[0])),
    sample("Compress", normal(4, 3), np.array([True, False, True, True]), twin=lambda x, c: x[c], axis=0),
    sample("Compress", normal(2, 3), np.array([False, True, True, False]), twin=lambda x, c: x.flatten()[1:3]),
    sample("CenterCropPad", normal(4, 5), [2, 8], twin=lambda x, s: F.pad(x[1:3], (1, 2))),
    sample("ScatterND", normal(4, 3), np.array([[0], [2]]), normal(2, 3),
           twin=lambda x, i, u: x.index_put((i[:, 0],), u)),
    sample("ScatterND", normal(4, 3), np.array([[0], [2], [0]]), normal(3, 3), reduction="add",
           twin=lambda x, i, u: x.index_put((i[:, 0],), u, accumulate=True)),
]  # fmt: skip
