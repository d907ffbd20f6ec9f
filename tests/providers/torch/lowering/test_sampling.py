"""Images read at places of a grid: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

from tests.providers.bodies import compare, lowered_in


@lowered_in("sampling")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")
