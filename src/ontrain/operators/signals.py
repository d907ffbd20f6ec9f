"""Fourier transforms and windows."""

from __future__ import annotations

from ontrain.operators.record import define

__all__: list[str] = []

FROM_SIZE = "it makes a table from a size"

define("BlackmanWindow", settings=(0,), zero_gradient=FROM_SIZE)
define("DFT", settings=(1, 2))
define("HammingWindow", settings=(0,), zero_gradient=FROM_SIZE)
define("HannWindow", settings=(0,), zero_gradient=FROM_SIZE)
define("MelWeightMatrix", settings=(0, 1, 2, 3, 4), zero_gradient=FROM_SIZE)
define("STFT", settings=(1, 3), weightless=(2,))
