"""Throughput with a clock that is moved by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))

from harness.meter import Meter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_throughput_counts_what_was_trained_on_and_the_time_it_took() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now += 30  # the first update captures and plans
    meter.add(8, 600)
    assert meter.read() is None
    for _ in range(5):  # five updates of two seconds between two rows of the log
        clock.now += 2
        meter.add(8, 500)
    with meter.paused():
        clock.now += 1000  # a checkpoint
    assert meter.read() == pytest.approx((4.0, 250.0))
    clock.now += 4
    meter.add(8, 400)
    assert meter.read() == pytest.approx((2.0, 100.0))
    assert meter.overall() == pytest.approx((48 / 14, 2900 / 14))
    assert meter.first_seconds == 30
    assert meter.train_seconds == pytest.approx(44)
    assert (meter.sequences, meter.tokens) == (56, 3500)


def test_a_pause_before_the_first_reading_is_no_training() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now += 10
    meter.add(4, 40)
    with meter.paused():
        clock.now += 50
    clock.now += 2
    meter.add(4, 40)
    assert meter.overall() == pytest.approx((2.0, 20.0))
