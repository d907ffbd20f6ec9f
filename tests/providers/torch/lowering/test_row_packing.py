"""Rows that are selected, packed and put back: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

from tests.providers.bodies import compare, lowered_in


@lowered_in("row_packing")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")
