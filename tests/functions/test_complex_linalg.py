"""Determinants and factorisations of complex matrices by the bodies, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.functions.test_gradients import run

SHAPES = [(1, 1), (3, 3), (4, 2), (2, 3, 3), (2, 1, 3, 2)]


def drawn(rng, shape):
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 3), (2, 0, 0)])
def test_determinants(rng, shape):
    x = drawn(rng, shape)
    real, imag = run("ComplexDet", x.real, x.imag, outputs=2)
    np.testing.assert_allclose(real + 1j * imag, np.linalg.det(x), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("complete", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_q_is_unitary_and_r_a_triangle_with_a_real_diagonal(rng, shape, complete):
    x = drawn(rng, shape)
    a, b, c, d = run("ComplexQr", x.real, x.imag, outputs=4, complete=complete)
    q, r = a + 1j * b, c + 1j * d
    assert q.shape[-1] == r.shape[-2] == (shape[-2] if complete else min(shape[-2:]))
    np.testing.assert_allclose(q @ r, x, rtol=0, atol=1e-12)
    unit = np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], *[q.shape[-1]] * 2))
    np.testing.assert_allclose(q.conj().swapaxes(-1, -2) @ q, unit, rtol=0, atol=1e-12)
    assert not np.tril(r, -1).any() and np.abs(np.diagonal(r, axis1=-2, axis2=-1).imag).max() < 1e-12


@pytest.mark.sampled(3)
@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 4), (2, 2, 3)])
def test_singular_values_and_their_vectors(rng, shape, full):
    x = drawn(rng, shape)
    s, *parts = run("ComplexSvd", x.real, x.imag, outputs=5, full=full)
    u, vh = parts[0] + 1j * parts[1], parts[2] + 1j * parts[3]
    k = min(shape[-2:])
    assert (u.shape[-1], vh.shape[-2]) == (shape[-2:] if full else (k, k))
    np.testing.assert_allclose(s, np.linalg.svd(x, compute_uv=False), rtol=1e-10)
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, rtol=0, atol=1e-11)
    for basis in (u, vh.conj().swapaxes(-1, -2)):
        unit = np.broadcast_to(np.eye(basis.shape[-1]), (*shape[:-2], *[basis.shape[-1]] * 2))
        np.testing.assert_allclose(basis.conj().swapaxes(-1, -2) @ basis, unit, rtol=0, atol=1e-10)
