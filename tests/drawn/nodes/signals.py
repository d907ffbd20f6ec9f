"""Fourier transforms, their windows, and grids."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, node


@node
def fourier(draw: Draw) -> Node:
    """DFT of reals and of complex numbers, and its inverse."""
    x = draw.array(2, 6, draw.choice([1, 2]))
    return Node("DFT", [x, None, np.array(1)], dict(inverse=draw.choice([0, 1])), opset=20)


@node
def spectrogram(draw: Draw) -> Node:
    """STFT, with a window or without."""
    length, step = draw.choice([6, 8]), draw.integer(2, 5)
    window = draw.maybe(np.abs(draw.array(length)))
    inputs = [draw.array(2, draw.integer(16, 24), 1), np.array(step), window, np.array(length)]
    return Node("STFT", inputs, dict(onesided=draw.choice([0, 1])))


@node
def mel_weights(draw: Draw) -> Node:
    """MelWeightMatrix."""
    bins, length = draw.integer(3, 8), draw.choice([16, 32])
    edges = np.float32(draw.choice([0.0, 100.0])), np.float32(draw.choice([3000.0, 4000.0]))
    return Node("MelWeightMatrix", [np.array(bins), np.array(length), np.array(8000), *edges], {})


@node
def signal_window(draw: Draw) -> Node:
    """Hann, Hamming and Blackman, periodic or symmetric."""
    op_type = draw.choice(["HannWindow", "HammingWindow", "BlackmanWindow"])
    return Node(op_type, [np.array(draw.integer(2, 9))], dict(periodic=draw.choice([0, 1])))


@node
def affine_grid(draw: Draw) -> Node:
    """Of images and of volumes."""
    rank = draw.choice([2, 3])
    sizes = np.array([2, 3, *draw.sizes(rank, 2, 4)])
    return Node("AffineGrid", [draw.array(2, rank, rank + 1), sizes], dict(align_corners=draw.choice([0, 1])), opset=20)


@node
def unpool(draw: Draw) -> Node:
    """MaxUnpool of two by two."""
    x = draw.array(1, 2, 2, 3)
    places = np.stack([np.arange(6).reshape(2, 3) * 2 + np.arange(2)[:, None] * 6 + 24 * c for c in range(2)])[None]
    return Node("MaxUnpool", [x, places], dict(kernel_shape=[2, 2], strides=[2, 2]), opset=11)
