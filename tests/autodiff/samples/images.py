"""Images resized, sampled, cut and folded; and transforms to frequencies."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import Sample, normal, sample, spread, uniform


def _resize(shape: tuple[int, ...], sizes: list[int], twin, **attributes) -> Sample:
    """Resize the axes behind the first two, to `sizes`."""
    axes = list(range(2, len(shape)))
    return sample("Resize", normal(*shape), None, None, sizes, twin=lambda x, *_: twin(x), axes=axes, **attributes)


def _scaled(shape: tuple[int, ...], scales: list[float], twin, **attributes) -> Sample:
    """Resize all axes by factors."""
    factors = np.array(scales, np.float32)
    return sample(
        "Resize", normal(*shape), None, factors, fixed=[2], single=[2], twin=lambda x, *_: twin(x), **attributes
    )


def _torch(mode: str, sizes: list[int], **options):
    return partial(F.interpolate, size=sizes, mode=mode, **options)


def _rows(index: list[int], columns: list[int]):
    return lambda x: x[:, :, index][..., columns]


def _cubic_matrix(x):
    """Places 0, 4/3, 8/3 and 4 of five by Keys' kernel with a = −1/2, weights outside left out."""
    kernel = lambda t: 1.5 * t**3 - 2.5 * t**2 + 1 if t <= 1 else -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2 if t < 2 else 0.0  # noqa: E731
    rows = [[kernel(abs(i - at)) for i in range(5)] for at in (0, 4 / 3, 8 / 3, 4)]
    matrix = torch.tensor(rows, dtype=x.dtype)
    return x @ (matrix / matrix.sum(1, keepdim=True)).T


def _symmetric(x):
    """Two places, 0.7 and 2.3, of four."""
    return torch.stack([0.3 * x[:, 0] + 0.7 * x[:, 1], 0.7 * x[:, 2] + 0.3 * x[:, 3]], 1)


RESIZE = [
    _resize((1, 2, 4, 5), [7, 3], _torch("bilinear", [7, 3]), mode="linear"),
    _resize((1, 2, 4, 5), [7, 9], _torch("bilinear", [7, 9], align_corners=True), mode="linear",
            coordinate_transformation_mode="align_corners"),
    _resize((1, 1, 5, 6), [7, 4], _torch("bicubic", [7, 4]), mode="cubic"),
    _resize((1, 1, 7, 6), [3, 4], _torch("bilinear", [3, 4], antialias=True), mode="linear", antialias=1,
            exclude_outside=1),
    _resize((1, 1, 2, 3, 2), [3, 4, 3], _torch("trilinear", [3, 4, 3]), mode="linear"),
    _resize((2, 2, 5), [1], _torch("linear", [1]), mode="linear"),
    _resize((1, 1, 5), [4], _cubic_matrix, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1,
            coordinate_transformation_mode="align_corners"),
    _resize((1, 2, 4, 6), [8, 3], _torch("nearest", [8, 3]), mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric"),
    _resize((1, 1, 4, 6), [2, 3], _rows([1, 3], [1, 3, 5]), nearest_mode="round_prefer_ceil"),
    _resize((1, 1, 4, 6), [8, 8], partial(F.interpolate, scale_factor=(4 / 3, 4 / 3), mode="bilinear"), mode="linear",
            keep_aspect_ratio_policy="not_larger"),
    _scaled((1, 2, 3, 4), [1.0, 1.0, 2.0, 2.0], _torch("bilinear", [6, 8]), mode="linear"),
    _scaled((1, 2, 3, 4), [1.0, 1.0, 2.0, 0.5], _rows([0, 0, 1, 1, 2, 2], [0, 2])),
    _scaled((3, 4), [1.0, 0.625], _symmetric,
            mode="linear", coordinate_transformation_mode="half_pixel_symmetric"),
    sample("Resize", normal(2, 4), np.array([0.0, 1 / 6, 1.0, 7 / 6]), None, [2, 3], fixed=[1], twin=lambda x, *_: (
        torch.stack([x[:, 0] * 0.5 + x[:, 1] * 0.5, x[:, 2], torch.full_like(x[:, 0], 7.0)], 1)), mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0),
]  # fmt: skip


def _grid(shape: tuple[int, ...], grid: tuple[int, ...], span: float = 1.3, **attributes) -> Sample:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(attributes.get("mode", "linear"), "nearest")
    twin = partial(
        F.grid_sample, mode=mode, padding_mode=attributes.get("padding_mode", "zeros"),
        align_corners=bool(attributes.get("align_corners", 0)),
    )  # fmt: skip
    return sample("GridSample", normal(*shape), uniform(-span, span, *grid), twin=twin, **attributes)


SAMPLING = [
    _grid((2, 3, 4, 5), (2, 3, 2, 2)),
    _grid((1, 2, 4, 5), (1, 3, 3, 2), align_corners=1),
    _grid((1, 2, 4, 5), (1, 4, 3, 2), padding_mode="border"),
    _grid((1, 2, 4, 3), (1, 4, 4, 2), 3.7, padding_mode="reflection"),
    _grid((1, 2, 4, 3), (1, 4, 4, 2), 3.7, padding_mode="reflection", align_corners=1),
    _grid((2, 2, 4, 5), (2, 3, 3, 2), mode="nearest"),
    _grid((1, 1, 4, 5), (1, 2, 3, 2), mode="cubic"),
    _grid((1, 1, 4, 5), (1, 3, 2, 2), mode="cubic", padding_mode="border", align_corners=1),
    _grid((1, 1, 4, 5), (1, 3, 2, 2), 2.6, mode="cubic", padding_mode="reflection"),
    _grid((1, 2, 3, 2, 3), (1, 2, 2, 2, 3)),
    sample("AffineGrid", normal(2, 2, 3), [2, 1, 3, 4], twin=lambda t, s: F.affine_grid(t, s.tolist(), False)),
    sample("AffineGrid", normal(2, 2, 3), [2, 1, 3, 4], twin=lambda t, s: F.affine_grid(t, s.tolist(), True),
           align_corners=1),
    sample("AffineGrid", normal(1, 3, 4), [1, 1, 2, 3, 2], twin=lambda t, s: F.affine_grid(t, s.tolist(), False)),
]  # fmt: skip


def _bilinear(x, h, w):
    """x [C, H, W] at scalar places h and w; zero outside."""
    h0, w0 = int(np.floor(float(h.detach()))), int(np.floor(float(w.detach())))
    total = 0
    for i, share_h in ((h0, 1 - (h - h0)), (h0 + 1, h - h0)):
        for j, share_w in ((w0, 1 - (w - w0)), (w0 + 1, w - w0)):
            if 0 <= i < x.shape[1] and 0 <= j < x.shape[2]:
                total = total + x[:, i, j] * share_h * share_w
    return total if torch.is_tensor(total) else x[:, 0, 0] * 0


def _deform(x, w, offset, b=None, mask=None, *, groups=1, offset_groups=1, stride=1, pad=0, gap=1):
    """The definition, place by place."""
    (n, c, _, _), (m, share, kh, kw), (oh, ow) = x.shape, w.shape, offset.shape[2:]
    offset = offset.reshape(n, offset_groups, kh * kw, 2, oh, ow)
    mask = None if mask is None else mask.reshape(n, offset_groups, kh * kw, oh, ow)
    per = c // offset_groups
    images = []
    for s in range(n):
        columns = []
        for i in range(oh):
            for j in range(ow):
                read = []
                for g in range(offset_groups):
                    for k in range(kh * kw):
                        h = i * stride - pad + (k // kw) * gap + offset[s, g, k, 0, i, j]
                        v = j * stride - pad + (k % kw) * gap + offset[s, g, k, 1, i, j]
                        value = _bilinear(x[s, g * per : (g + 1) * per], h, v)
                        read.append(value if mask is None else value * mask[s, g, k, i, j])
                grid = torch.stack(read).reshape(offset_groups, kh * kw, per).permute(0, 2, 1).reshape(c, kh, kw)
                parts = [
                    (w[q * m // groups : (q + 1) * m // groups] * grid[q * share : (q + 1) * share]).sum((1, 2, 3))
                    for q in range(groups)
                ]
                columns.append(torch.cat(parts))
        images.append(torch.stack(columns, 1).reshape(m, oh, ow))
    y = torch.stack(images)
    return y if b is None else y + b[:, None, None]


def _roi_align(x, rois, batch, *, bins, ratio, scale, half, mode="avg"):
    """The definition; the twin of torchvision.ops.roi_align."""
    regions = []
    for r, image in zip(rois, batch.tolist(), strict=True):
        x1, y1, x2, y2 = (v * scale - 0.5 * half for v in r)
        width, height = (x2 - x1, y2 - y1) if half else ((x2 - x1).clamp(min=1), (y2 - y1).clamp(min=1))
        counts = [ratio or int(np.ceil(float(v.detach()) / b)) for v, b in zip((height, width), bins, strict=True)]
        cells = []
        for i in range(bins[0]):
            for j in range(bins[1]):
                samples = []
                for p in range(counts[0]):
                    for q in range(counts[1]):
                        h = y1 + height / bins[0] * (i + (p + 0.5) / counts[0])
                        w = x1 + width / bins[1] * (j + (q + 0.5) / counts[1])
                        if -1 <= h <= x.shape[2] and -1 <= w <= x.shape[3]:
                            samples.append(_bilinear(x[image], h.clamp(0, x.shape[2] - 1), w.clamp(0, x.shape[3] - 1)))
                        else:
                            samples.append(x[image][:, 0, 0] * 0)
                cells.append(torch.stack(samples).mean(0))
        regions.append(torch.stack(cells, 1).reshape(-1, *bins))
    return torch.stack(regions)


def _max_roi_pool(x, rois, *, bins, scale):
    regions = []
    for r in rois.detach().numpy():
        x1, y1, x2, y2 = (int(np.floor(v * scale + 0.5)) for v in r[1:])
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        cells = []
        for i in range(bins[0]):
            for j in range(bins[1]):
                top, low = y1 + int(np.floor(i * height / bins[0])), y1 + int(np.ceil((i + 1) * height / bins[0]))
                left, right = x1 + int(np.floor(j * width / bins[1])), x1 + int(np.ceil((j + 1) * width / bins[1]))
                part = x[int(r[0]), :, max(top, 0) : max(low, 0), max(left, 0) : max(right, 0)]
                cells.append(part.amax((1, 2)) if part.numel() else x[0, :, 0, 0] * 0)
        regions.append(torch.stack(cells, 1).reshape(-1, *bins))
    return torch.stack(regions)


_BOXES = np.array([[0.3, 0.6, 4.2, 3.7], [1.1, -0.4, 6.3, 2.9], [2.2, 1.4, 2.5, 1.6]])
_IMAGES = np.array([0, 1, 0])
_REGIONS = np.array([[0, 1, 0, 5, 4], [1, 3, 2, 9, 9], [1, -4, 2, -2, 3]], np.float64)

REGIONS = [
    sample("DeformConv", normal(1, 2, 4, 5), normal(2, 2, 2, 2), uniform(-0.9, 0.9, 1, 8, 3, 4), twin=_deform,
           kernel_shape=[2, 2]),
    sample("DeformConv", normal(1, 4, 4, 5), normal(4, 2, 2, 2), uniform(-1.4, 1.4, 1, 16, 2, 2), normal(4),
           normal(1, 8, 2, 2), group=2, offset_group=2, strides=[2, 2], pads=[1, 1, 0, 0], dilations=[2, 2],
           twin=partial(_deform, groups=2, offset_groups=2, stride=2, pad=1, gap=2)),
    sample("RoiAlign", normal(2, 2, 5, 6), _BOXES, _IMAGES, output_height=2, output_width=3, sampling_ratio=2,
           spatial_scale=0.75, twin=partial(_roi_align, bins=(2, 3), ratio=2, scale=0.75, half=True)),
    sample("RoiAlign", normal(2, 2, 5, 6), _BOXES, _IMAGES, output_height=2, output_width=2, fixed=[1],
           coordinate_transformation_mode="output_half_pixel",
           twin=partial(_roi_align, bins=(2, 2), ratio=0, scale=1.0, half=False)),
    sample("MaxRoiPool", spread(2, 2, 6, 8), _REGIONS, pooled_shape=[2, 3], fixed=[1], spatial_scale=0.75,
           twin=partial(_max_roi_pool, bins=(2, 3), scale=0.75)),
]  # fmt: skip


def _unfolded_back(x, image, block, **options):
    return F.fold(x, image.tolist(), block.tolist(), **options)


def _lp_sum(x, p: int, kernel: list[int], **options):
    ones = torch.ones([1, 1, *kernel], dtype=x.dtype)
    images = (x.abs() ** p).flatten(0, 1).unsqueeze(1)
    return (F.conv2d(images, ones, **options) ** (1 / p)).unflatten(0, x.shape[:2]).squeeze(2)


_PLACES = np.array([[[[0, 3], [8, 10]], [[17, 19], [28, 31]]]])

WINDOWS = [
    sample("LpPool", normal(1, 2, 5, 6), kernel_shape=[2, 3], strides=[2, 1],
           twin=partial(_lp_sum, p=2, kernel=[2, 3], stride=(2, 1))),
    sample("LpPool", normal(1, 2, 5, 6), kernel_shape=[2, 2], p=3, pads=[1, 0, 1, 0],
           twin=partial(_lp_sum, p=3, kernel=[2, 2], padding=(1, 0))),
    sample("LpPool", spread(1, 2, 5, 6), kernel_shape=[2, 2], p=1, dilations=[2, 1],
           twin=partial(_lp_sum, p=1, kernel=[2, 2], dilation=(2, 1))),
    sample("LpPool", normal(1, 1, 5, 5), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1,
           twin=lambda x: _lp_sum(F.pad(x, (0, 1, 0, 1)), 2, [2, 2], stride=2)),
    # A third window would begin in the margin behind the image: it is none.
    sample("LpPool", normal(1, 2, 4), kernel_shape=[2], strides=[2], pads=[0, 1], ceil_mode=1,
           twin=lambda x: x.unfold(2, 2, 2).square().sum(3).sqrt()),
    sample("GlobalLpPool", normal(2, 3, 4, 2), twin=lambda x: x.norm(2, (2, 3), keepdim=True)),
    sample("GlobalLpPool", normal(2, 3, 4), p=3, twin=lambda x: (x.abs() ** 3).sum(2, keepdim=True) ** (1 / 3)),
    sample("MaxUnpool", normal(1, 2, 2, 2), _PLACES, kernel_shape=[2, 2], strides=[2, 2],
           twin=lambda x, i: x.new_zeros(32).scatter(0, i.reshape(-1), x.reshape(-1)).reshape(1, 2, 4, 4)),
    *(
        sample("Interpolate", normal(2, 3, 4, 5), domain="ontrain", size=size, mode=name,
               twin=partial(F.interpolate, size=size, mode=mode, **aligned))
        for name, mode, aligned, sizes in (
            ("nearest", "nearest", {}, ([8, 15], [4, 10])),
            ("linear", "bilinear", {"align_corners": False}, ([8, 10], [7, 5], [3, 2], [1, 11])),
            ("aligned", "bilinear", {"align_corners": True}, ([8, 10], [7, 5], [3, 2])),
            ("cubic", "bicubic", {"align_corners": False}, ([8, 10], [7, 5], [3, 2])),
            ("cubic aligned", "bicubic", {"align_corners": True}, ([8, 10], [3, 2])),
        ) for size in sizes
    ),
    *(
        sample("InterpolateGrad", normal(2, 3, 8, 10), domain="ontrain", size=[4, 5], mode=name,
               twin=lambda dy, mode=mode, told=told: torch.autograd.grad(
                   F.interpolate(x := torch.ones(2, 3, 4, 5, dtype=dy.dtype, requires_grad=True), size=(8, 10),
                                 mode=mode, **told), x, dy, create_graph=True)[0])
        for name, mode, told in (
            ("nearest", "nearest", {}), ("linear", "bilinear", {"align_corners": False}),
            ("aligned", "bilinear", {"align_corners": True}),
            ("cubic", "bicubic", {"align_corners": False}),
            ("cubic aligned", "bicubic", {"align_corners": True}),
        )
    ),
    sample("Im2Col", normal(1, 2, 4, 5), domain="ontrain", kernel_shape=[2, 3], dilations=[1, 1], pads=[0, 0, 0, 0],
           strides=[1, 1], twin=lambda x: F.unfold(x, (2, 3))),
    sample("Im2Col", normal(2, 1, 6, 5), domain="ontrain", kernel_shape=[3, 2], dilations=[1, 2], pads=[1, 2, 1, 2],
           strides=[2, 3], twin=lambda x: F.unfold(x, (3, 2), (1, 2), (1, 2), (2, 3))),
    sample("Im2Col", normal(2, 3, 7), domain="ontrain", kernel_shape=[2], dilations=[2], pads=[1, 0], strides=[2],
           twin=lambda x: F.unfold(F.pad(x, (1, 0)).unsqueeze(2), (1, 2), (1, 2), 0, (1, 2))),
    sample("Col2Im", normal(1, 8, 6), [3, 4], [2, 2], twin=_unfolded_back),
    sample("Col2Im", normal(2, 4, 12), [5, 4], [2, 2], strides=[2, 1], pads=[1, 1, 1, 1], dilations=[1, 2],
           twin=partial(_unfolded_back, stride=(2, 1), dilation=(1, 2), padding=1)),
]  # fmt: skip


def _dft(x, length=None, axis=None, *, inverse=False, onesided=False):
    place = int(axis) if axis is not None else -2
    place = (place % x.ndim) - (x.ndim - 1) if x.shape[-1] == 2 else place % x.ndim - x.ndim + 1
    z = torch.view_as_complex(x) if x.shape[-1] == 2 else x[..., 0]
    n = None if length is None else int(length)
    function = torch.fft.ifft if inverse else torch.fft.rfft if onesided and not z.is_complex() else torch.fft.fft
    spectrum = function(z, n, place)
    if onesided and z.is_complex():
        spectrum = spectrum.narrow(place, 0, spectrum.shape[place] // 2 + 1)
    return torch.view_as_real(spectrum)


def _stft(signal, step, window, length=None, *, onesided=True):
    n = window.shape[0] if window is not None else int(length)
    frames = signal.reshape(signal.shape[0], signal.shape[1], -1)
    z = torch.view_as_complex(frames.contiguous()) if frames.shape[-1] == 2 else frames[..., 0]
    parts = z.unfold(1, n, int(step)) * (1 if window is None else window)
    return torch.view_as_real((torch.fft.rfft if onesided else torch.fft.fft)(parts))


FREQUENCY = [
    sample("DFT", normal(2, 5, 1), twin=_dft),
    sample("DFT", normal(2, 6, 1), twin=partial(_dft, onesided=True), onesided=1),
    sample("DFT", normal(3, 4, 2), None, np.array(0), twin=_dft),
    sample("DFT", normal(2, 4, 3, 2), None, np.array(1), twin=partial(_dft, inverse=True), inverse=1),
    sample("DFT", normal(2, 5, 2), np.array(4), twin=_dft),
    sample("DFT", normal(2, 3, 1), np.array(5), twin=_dft),
    sample("STFT", normal(2, 12, 1), np.array(3), normal(6), twin=_stft),
    sample("STFT", normal(1, 11, 2), np.array(2), normal(5), twin=partial(_stft, onesided=False), onesided=0),
    sample("STFT", normal(1, 9, 1), np.array(4), None, np.array(4), twin=_stft),
]  # fmt: skip

IMAGES = [*RESIZE, *SAMPLING, *REGIONS, *WINDOWS, *FREQUENCY]
