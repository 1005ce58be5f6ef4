"""Diffusion coordinates: they are eigenvectors of the chain, whatever the chain looks like."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headscape.geometry.diffusion as diffusion
from headscape.errors import InputError
from headscape.geometry.diffusion import diffusion_map, markov_spectrum
from reference import QUICK
from reference_geometry import markov_matrix


def random_affinity(rng, n):
    points = rng.normal(size=(n, 3))
    return np.exp(-np.abs(points[:, None] - points).sum(axis=2))


@given(st.integers(1, 25), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2**32 - 1))
@QUICK
def test_are_the_eigenvectors_of_the_markov_matrix(n, alpha, seed):
    rng = np.random.default_rng(seed)
    K = rng.random((n, n))
    K = K + K.T  # not positive definite: eigenvalues of both signs
    P = markov_matrix(K, alpha)
    values, psi, stationary = markov_spectrum(K, n, alpha)
    np.testing.assert_allclose(stationary @ P, stationary, atol=1e-12)
    np.testing.assert_allclose(P @ psi, psi * values, atol=1e-8)
    np.testing.assert_allclose(stationary @ psi, 0, atol=1e-9)  # the constant is left out
    np.testing.assert_allclose(psi.T @ (psi * stationary[:, None]), np.eye(len(values)), atol=1e-8)
    assert (np.diff(np.abs(values)) <= 1e-12).all()
    rest = np.sort(np.abs(np.linalg.eigvals(P).real))[::-1][1:]
    np.testing.assert_allclose(np.abs(values), rest[: len(values)], atol=1e-8)
    assert (rest[len(values) :] < 1e-8).all()


def test_lanczos_agrees_with_dense(monkeypatch):
    K = random_affinity(np.random.default_rng(0), 60)
    dense = markov_spectrum(K, 5)
    monkeypatch.setattr(diffusion, "_DENSE_UP_TO", 10)
    lanczos = markov_spectrum(K, 5)
    np.testing.assert_allclose(lanczos.values, dense.values, atol=1e-10)
    np.testing.assert_allclose(lanczos.vectors, dense.vectors, atol=1e-7)


def test_lanczos_where_there_is_little_to_find(monkeypatch):
    monkeypatch.setattr(diffusion, "_DENSE_UP_TO", 10)
    assert not diffusion_map(np.ones((20, 20)), 3).any()
    blocks = diffusion_map(np.kron(np.eye(3), np.ones((7, 7))), 3)  # eigenvalues 1, 1, 0, 0, ...
    np.testing.assert_allclose(blocks, np.repeat(blocks[::7], 7, axis=0), atol=1e-9)
    assert not blocks[:, 2].any()
    assert len({tuple(row) for row in blocks.round(6)}) == 3
    monkeypatch.setattr(diffusion.scipy.sparse.linalg, "eigsh", raise_arpack_error)
    K = random_affinity(np.random.default_rng(3), 30)
    values, psi, _ = markov_spectrum(K, 4)
    np.testing.assert_allclose(markov_matrix(K, 1.0) @ psi, psi * values, atol=1e-9)


def raise_arpack_error(*args, **kwargs):
    raise diffusion.scipy.sparse.linalg.ArpackNoConvergence("no", [], [])


def test_permuting_points_permutes_rows_and_nothing_else():
    rng = np.random.default_rng(1)
    K = random_affinity(rng, 30)
    move = rng.permutation(30)
    np.testing.assert_allclose(diffusion_map(K[np.ix_(move, move)], 6), diffusion_map(K, 6)[move], atol=1e-9)


def test_time_multiplies_by_powers_of_the_eigenvalues():
    K = random_affinity(np.random.default_rng(2), 20)
    values, psi, _ = markov_spectrum(K, 4)
    np.testing.assert_allclose(diffusion_map(K, 4, t=0), psi)
    np.testing.assert_allclose(diffusion_map(K, 4, t=3), values**3 * psi)
    np.testing.assert_allclose(diffusion_map(K), (values * psi)[:, :3])  # the three largest, not the smallest


def test_two_disconnected_blocks():
    K = np.kron(np.eye(2), np.ones((6, 6)))
    with np.errstate(all="raise"):
        coordinates = diffusion_map(K, 3)
    np.testing.assert_allclose(np.abs(coordinates[:, 0]), 1, atol=1e-9)  # lambda = 1 a second time
    assert len(set(np.sign(coordinates[:6, 0]))) == len(set(np.sign(coordinates[6:, 0]))) == 1
    assert coordinates[0, 0] * coordinates[6, 0] < 0
    assert not coordinates[:, 1:].any()  # nothing else is there


def test_one_far_outlier():
    K = np.full((8, 8), 0.9)
    np.fill_diagonal(K, 1.0)
    K[7, :7] = K[:7, 7] = 1e-300
    with np.errstate(all="raise", under="ignore"):
        coordinates = diffusion_map(K, 1, markov_alpha=0.0)
    assert np.isfinite(coordinates).all()
    assert np.ptp(coordinates[:7]) < 1e-9 * abs(coordinates[7] - coordinates[0])


def test_no_structure_gives_zeros():
    assert not diffusion_map(np.ones((5, 5)), 3).any()
    assert diffusion_map([[2.0]], 3).shape == (1, 3)
    assert diffusion_map(np.eye(2), 3).shape == (2, 3)


@pytest.mark.parametrize(
    ("affinity", "message"),
    [
        (np.ones((2, 3)), "square"),
        ([[1.0, np.nan], [np.nan, 1.0]], "entry \\(0, 1\\) is nan"),
        ([[1.0, -0.5], [-0.5, 1.0]], "entry \\(0, 1\\) is -0.5"),
        ([[1.0, 0.5], [0.1, 1.0]], "symmetric"),
        ([[1.0, 0.0], [0.0, 0.0]], "row 1 of the affinity is all zeros"),
        ([[0.0, 0.0], [0.0, 0.0]], "row 0 of the affinity is all zeros"),
    ],
)
def test_says_what_is_not_an_affinity(affinity, message):
    with pytest.raises(InputError, match=message):
        diffusion_map(affinity)


def test_other_refusals():
    with pytest.raises(InputError, match="n_components must be at least 1, not 0"):
        diffusion_map(np.eye(3), 0)
    with pytest.raises(InputError, match="t must be a finite number, not nan"):
        diffusion_map(np.eye(3), t=np.nan)
    with pytest.raises(InputError, match="markov_alpha must be a number from -10 to 10, not inf"):
        diffusion_map(np.eye(3), markov_alpha=np.inf)
    odd = np.array([[0.0, 1.0], [1.0, 0.0]])  # a walk that goes back and forth: eigenvalue -1
    assert diffusion_map(odd, 1, t=2).ravel() == pytest.approx([-1, 1])
    with pytest.raises(InputError, match="not negative, the chain has -1"):
        diffusion_map(odd, 1, t=0.5)
