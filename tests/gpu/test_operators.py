"""Every operator and its gradient by the kernels of a GPU, against plain bodies in onnx's evaluator."""

from __future__ import annotations

import pytest

from tests.autodiff.samples import IDS, SAMPLES
from tests.providers.bodies import compare

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider", "cuda")
