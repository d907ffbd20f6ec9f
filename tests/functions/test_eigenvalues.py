"""Eigenvalues and eigenvectors by the body: A v = λ v, the values are numpy's, and the vectors have length one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.functions.test_gradients import run

TURN = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])
"""A permutation: its eigenvalues are equally large, and an iteration without shifts stays where it is."""


def matrices(rng):
    return {
        "one": rng.standard_normal((1, 1)),
        "real": rng.standard_normal((4, 4)),
        "a batch": rng.standard_normal((2, 1, 3, 3)),
        "complex": rng.standard_normal((2, 3, 3)) + 1j * rng.standard_normal((2, 3, 3)),
        "a permutation": TURN,
        "symmetric": TURN + TURN.T + np.diag([1.0, 2, 3]),
        "a triangle": np.triu(rng.standard_normal((3, 3))) * 1e3,
        "zero": np.zeros((2, 2)),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", matrices(np.random.default_rng(0)))
def test_values_and_vectors(rng, name):
    x = matrices(rng)[name]
    real, imag, *vectors = run("Eig", *((x.real, x.imag) if np.iscomplexobj(x) else (x,)), outputs=4)
    values, vectors = real + 1j * imag, vectors[0] + 1j * vectors[1]
    size = 1e-12 * (np.abs(x).max() + 1e-300)
    np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], rtol=0, atol=size)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-2), 1.0, rtol=1e-12)
    expected = np.linalg.eigvals(x)
    apart = np.abs(values[..., :, None] - expected[..., None, :])
    assert apart.min(-1).max() <= 10 * size and apart.min(-2).max() <= 10 * size


def test_empty_matrices(rng):
    assert [a.shape for a in run("Eig", np.zeros((2, 0, 0)), outputs=4)] == [(2, 0), (2, 0), (2, 0, 0), (2, 0, 0)]
