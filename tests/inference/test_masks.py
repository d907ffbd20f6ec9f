"""Masks of every look, whoever reads them: outputs are onnxruntime's, and padding is left out only where it may be."""

from __future__ import annotations

import functools

import numpy as np
import onnxruntime
import pytest

from tests.inference.encoders import rows_multiplied, session
from tests.inference.masked import LENGTH, MASKS, SEQUENCES, Masked, feeds_of, file_of

CLOSE = {"rtol": 1e-4, "atol": 3e-5}
CASES = [
    *((hides, "aa", reads, "int64") for hides in ("added", "sdpa", "filled", "where", "square", "billion", "thousands")
      for reads in ("mean", "states")),
    *(("added", "aa", reads, "int64") for reads in ("first", "last", "sum", "largest", "mean of b")),
    *(("added", masks, reads, "int64") for masks in ("ab", "a-", "-a") for reads in ("mean", "states", "mean of b")),
    *(("sdpa", masks, "mean", dtype) for masks in ("aa", "ab") for dtype in ("bool", "float32", "int32")),
    ("added", "aa", "mean", "bool"), ("added", "aa", "mean", "float32"), ("given", "aa", "states", "float32"),
]  # fmt: skip
"""How a mask hides, which masks the layers take, what is read, and the masks' dtype."""


@functools.cache
def compiled(hides, masks, reads, dtype):
    model = file_of(Masked(hides, masks, reads), dtype)
    return model, onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def batch(case, look, rng):
    """A batch with one mask of a look and another of any look."""
    hides, _, _, dtype = case
    a, b = MASKS[look](rng), MASKS[rng.choice([*MASKS])](rng)
    feeds = feeds_of(rng, a, b, dtype)
    if hides == "given":
        feeds["a"] = np.where(a, 0, -1e9).astype(np.float32)
    return feeds, a


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_outputs_are_stocks_for_every_mask(case, rng):
    model, stock = compiled(*case)
    runs = session(model)
    for look in MASKS:
        feeds, _ = batch(case, look, rng)
        (wanted,), (result,) = stock.run(None, feeds), runs.run(None, feeds)
        np.testing.assert_allclose(result, wanted, **CLOSE, err_msg=look)


@pytest.mark.parametrize("hides", ["added", "sdpa"])
def test_padding_is_left_out_wherever_it_lies(hides, rng):
    """Otherwise the other tests would hold of sessions that leave nothing out."""
    case = (hides, "aa", "mean", "int64")
    for look in ("prefix", "left", "holes", "few"):
        runs = session(compiled(*case)[0])
        runs.run(None, batch(case, look, rng)[0])
        assert max(*rows_multiplied(runs)) < SEQUENCES * LENGTH, look


@pytest.mark.sampled(4)
@pytest.mark.parametrize("padding", ["states", "zeros"])
@pytest.mark.parametrize("case", [case for case in CASES if case[2] == "states"], ids="-".join)
def test_states_that_may_be_zero_are_stocks_where_tokens_are(case, padding, rng):
    model, stock = compiled(*case)
    runs = session(model, padding=padding)
    for look in MASKS:
        feeds, real = batch(case, look, rng)
        (wanted,), (result,) = stock.run(None, feeds), runs.run(None, feeds)
        is_zero = ~result.any(-1)
        np.testing.assert_allclose(result[~is_zero], wanted[~is_zero], **CLOSE, err_msg=look)
        assert not (is_zero & real).any(), look
