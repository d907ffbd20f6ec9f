"""Losses over alignments: ATen's kernels give what the bodies give, and a device is waited for."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.operators import record_of
from tests.providers.bodies import compare, lowered_in


@lowered_in("alignment")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


def test_a_plan_with_lengths_is_not_recorded():
    """The kernels read lengths on the host."""
    for name in ("CTC", "CTCGrad"):
        assert record_of(ir.Node("ontrain", name, [])).asks_device
