"""Linear algebra: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import pytest

from tests.providers.bodies import compare, lowered_in


@pytest.mark.sampled(2)
@lowered_in("linalg")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")
