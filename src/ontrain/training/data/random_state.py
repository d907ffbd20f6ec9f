"""The global random generators of a process as plain JSON."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ontrain.errors import CheckpointError

__all__ = ["random_state", "restore_random_state"]


def random_state() -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's global generators, those of CUDA devices included.

    A trainer's dropout does not need it: its seed and position are in each checkpoint. What a program draws itself, for
    augmentation or negative samples, goes on in a resumed run if this is saved in `user_dict`.
    """
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    on_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "python": [version, _text(np.array(words, np.uint64)), gauss],
        "numpy": [_text(numpy["state"]["key"]), numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]],
        "torch": _text(torch.get_rng_state().numpy()),
        "cuda": [_text(state.numpy()) for state in torch.cuda.get_rng_state_all()] if on_cuda else [],
    }


def restore_random_state(state: Mapping[str, object]) -> None:
    """Let the global generators go on where they were when `random_state` returned this.

    Raises:
        CheckpointError: it is no such state, or of more CUDA devices than there are; the generators are as before.
    """
    before = random_state()
    try:
        _restore(state)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        _restore(before)
        raise CheckpointError(
            "this is no state of random generators", reason=str(error), way_out="give what random_state returned"
        ) from error


def _restore(state: Mapping[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(_array(words, np.uint64).tolist()), gauss))
    key, position, has_gauss, value = state["numpy"]
    np.random.set_state(("MT19937", _array(key, np.uint32), position, has_gauss, value))
    torch.set_rng_state(torch.from_numpy(_array(state["torch"], np.uint8)))
    for device, text in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(torch.from_numpy(_array(text, np.uint8)), device)


def _text(array: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _array(text: str, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    array = np.frombuffer(base64.b64decode(text, validate=True), np.dtype(dtype).newbyteorder("<"))
    return array.astype(dtype)
