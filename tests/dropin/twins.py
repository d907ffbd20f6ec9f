"""Runs a line with onnxruntime and with ontrain, and compares what it gives or raises."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import onnxruntime.backend

import ontrain


class Maker:
    """Makes sessions of one module on one list of providers."""

    def __init__(self, module, folder, providers, scratch):
        self.m, self.folder, self.providers, self.scratch = module, folder, providers, scratch

    def path(self, name):
        return str(self.folder / f"{name}.onnx")

    def bytes(self, name):
        return Path(self.path(name)).read_bytes()

    def __call__(self, name="scaled", options=None, **kwargs):
        return self.m.InferenceSession(self.path(name), options, **{"providers": self.providers, **kwargs})

    def run(self, name, feeds, outputs=None, options=None, **kwargs):
        return self(name, **kwargs).run(outputs, feeds, options)


def outcome(probe, maker):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return probe(maker), None
        except Exception as error:  # noqa: BLE001  # whatever onnxruntime raises is what ontrain has to raise
            return None, error


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
    elif isinstance(theirs, dict):
        assert ours == theirs
    else:
        assert ours == theirs


def compare(probe, folder, scratch, providers):
    """Raise an AssertionError where ontrain's providers come to something else than onnxruntime on the CPU."""
    expected, refused = outcome(probe, Maker(onnxruntime, folder, ["CPUExecutionProvider"], scratch))
    result, error = outcome(probe, Maker(ontrain, folder, providers, scratch))
    if refused is None:
        assert error is None, f"{error!r} is raised, where onnxruntime gives {expected!r}"
        assert_same(result, expected)
    else:
        assert isinstance(error, type(refused)), f"{error!r} would not be caught as {refused!r}"
        assert isinstance(error, ontrain.OntrainError | AttributeError) or type(error) is type(refused)
