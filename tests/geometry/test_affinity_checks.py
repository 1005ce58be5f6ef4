"""What counts as an affinity: dense and sparse ones are held to the same rules."""

import numpy as np
import pytest
from scipy import sparse

import headscape as hs
from headscape.errors import InputError

KINDS = [np.asarray, sparse.csr_array, sparse.coo_matrix]


def affinity(n=6):
    points = np.linspace(0, 2, n)
    return np.exp(-((points[:, None] - points) ** 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_asymmetry_is_measured_against_the_largest_entry(kind, scale):
    K = affinity()
    K[1, 0] *= 1 + 1e-9  # rounding
    hs.diffusion_map(kind(scale * K))
    K[1, 0] *= 1 + 1e-6
    with pytest.raises(InputError, match=r"is symmetric, this one differs from its transpose by \d"):
        hs.diffusion_map(kind(scale * K))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [-1e-9, np.nan, np.inf])
def test_the_first_bad_entry_is_named(kind, bad):
    K = affinity()
    K[2, 4] = K[4, 2] = bad
    K[5, 5] = -1
    with pytest.raises(InputError, match=rf"entry \(2, 4\) is {bad}"):
        hs.diffusion_map(kind(K))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_zeros_is_named(kind):
    K = affinity()
    K[3], K[:, 3] = 0, 0
    with pytest.raises(InputError, match="row 3 of the affinity is all zeros"):
        hs.diffusion_map(kind(K))
    K[3, 3] = 1e-9  # a point on its own
    assert np.isfinite(hs.diffusion_map(kind(K))).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (0, 0)])
def test_it_is_square(kind, shape):
    if shape == (0, 0) and kind is sparse.coo_matrix:
        pytest.skip("scipy has no such matrix")
    with pytest.raises(InputError, match=rf"square matrix, this array has shape \({shape[0]}, {shape[1]}\)"):
        hs.diffusion_map(kind(np.ones(shape)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_point_has_coordinate_zero(kind):
    assert hs.diffusion_map(kind(np.ones((1, 1))), n_components=2).tolist() == [[0.0, 0.0]]


def test_there_is_at_least_one_component():
    with pytest.raises(InputError, match="n_components must be at least 1, not 0"):
        hs.diffusion_map(affinity(), n_components=0)
    assert hs.diffusion_map(affinity(), n_components=1).shape == (6, 1)
