"""Loss scalers as a user of onnxruntime.training.amp knows them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ontrain import CheckpointError, OptionError
from ontrain.training import amp
from ontrain.training.amp import DynamicLossScaler, LossScaler


def after(scaler: LossScaler, finite: list[bool]) -> list[float]:
    return [scaler.update(SimpleNamespace(all_finite=flag)) for flag in finite]


def test_defaults_are_those_of_onnxruntime_training():
    scaler = DynamicLossScaler()
    assert (scaler.automatic_update, scaler.loss_scale, scaler.up_scale_window) == (True, 65536.0, 2000)
    assert (scaler.min_loss_scale, scaler.max_loss_scale) == (1.0, 2.0**24)
    assert amp.loss_scaler.DynamicLossScaler is DynamicLossScaler


def test_the_scale_doubles_after_a_window_of_finite_steps_and_halves_at_an_overflow():
    scaler = DynamicLossScaler(loss_scale=8.0, up_scale_window=3)
    assert after(scaler, [True] * 7) == [8.0, 8.0, 16.0, 16.0, 16.0, 32.0, 32.0]
    assert after(scaler, [False, False]) == [16.0, 8.0]
    assert after(scaler, [True, True, False, True, True, True]) == [8.0, 8.0, 4.0, 4.0, 4.0, 8.0]


def test_the_window_is_two_thousand_steps():
    scaler = DynamicLossScaler()
    assert set(after(scaler, [True] * 1999)) == {65536.0}
    assert after(scaler, [True]) == [131072.0]


def test_the_scale_stays_within_its_bounds():
    scaler = DynamicLossScaler(loss_scale=4.0, up_scale_window=1, min_loss_scale=2.0, max_loss_scale=8.0)
    assert after(scaler, [True, True, False, False, False]) == [8.0, 8.0, 4.0, 2.0, 2.0]


def test_without_automatic_update_nothing_changes():
    assert set(after(DynamicLossScaler(automatic_update=False, up_scale_window=1), [True, False])) == {65536.0}


def test_reset_goes_back_to_the_start():
    scaler = DynamicLossScaler(loss_scale=8.0, up_scale_window=2)
    after(scaler, [False, True])
    scaler.reset()
    assert scaler.loss_scale == 8.0 and after(scaler, [True]) == [8.0]


def test_the_base_asks_for_an_update():
    with pytest.raises(NotImplementedError, match="must define update"):
        LossScaler(2.0).update(None)


def test_a_state_is_plain_values_and_fits_only_its_kind():
    scaler, other = DynamicLossScaler(loss_scale=8.0, up_scale_window=5), DynamicLossScaler()
    after(scaler, [False, True, True])
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert after(other, [True] * 3) == after(scaler, [True] * 3) == [4.0, 4.0, 8.0]
    with pytest.raises(CheckpointError, match="does not fit LossScaler"):
        LossScaler(1.0).load_state_dict(scaler.state_dict())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"loss_scale": 0}, "loss_scale is 0"),
        ({"loss_scale": float("inf")}, "loss_scale is inf"),
        ({"loss_scale": True}, "loss_scale is True"),
        ({"up_scale_window": 0}, "up_scale_window is 0"),
        ({"up_scale_window": 1.5}, "up_scale_window is 1.5"),
        ({"min_loss_scale": -1.0}, "min_loss_scale is -1.0"),
        ({"loss_scale": 2.0, "min_loss_scale": 4.0}, "not within"),
        ({"max_loss_scale": 2.0}, "not within"),
    ],
)
def test_what_is_out_of_range_is_refused(arguments, says):
    with pytest.raises(OptionError, match=says):
        DynamicLossScaler(**arguments)
