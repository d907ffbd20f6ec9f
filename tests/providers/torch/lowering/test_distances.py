"""Distances between rows: kernels give what the bodies give, gradients included."""

from __future__ import annotations

from tests.providers.bodies import compare, lowered_in


@lowered_in("distances")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")
