"""The bilinear form x^T Wq^T Wk y of random matrices, drawn (Wertich 2024, chapter 6): angles, bound, aligned bases."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.statistics.edits import random_basis
from headscape.statistics.softmax import on_sphere

__all__ = ["BASES", "Angles", "aligned_traces", "bound_ratios", "scores_by_angle", "traces_of_spectra"]

Array = npt.NDArray[Any]
BASES = ("unrelated", "aligned, paired by rank", "aligned, paired at random")


class Angles(NamedTuple):
    """Of scores s = x^T C y and s' = x^T C y' over draws of C: squares n s^2 and products n s s', (n_cosine, draws)."""

    cosines: Array
    squares: Array  # x and y at this cosine; expected 1 at every angle
    products: Array  # y and y' at this cosine; expected the cosine


def scores_by_angle(n: int, cosines: npt.ArrayLike, draws: int, random_state: int = 0) -> Angles:
    """Scores of unit vectors at given cosines under matrices C with entries N(0, 1/n).

    By theory x^T C y has variance 1/n whatever the angle of x and y; what an angle changes is how scores vary together,
    Cov(x^T C y, x^T C y') = <y, y'> / n.
    """
    rng = np.random.default_rng(random_state)
    angles = np.asarray(cosines, dtype=float)
    squares, products = np.zeros((2, len(angles), draws))
    for i in range(draws):
        C = rng.standard_normal((n, n)) / np.sqrt(n)
        x, across = np.linalg.qr(rng.standard_normal((n, 2)))[0].T
        turned = angles[:, None] * x + np.sqrt(1 - angles[:, None] ** 2) * across  # at these cosines to x
        squares[:, i] = n * (turned @ C.T @ x) ** 2
        z = on_sphere(n, 1, 1.0, int(rng.integers(2**32)))[0]
        products[:, i] = n * (z @ C @ x) * (turned @ C.T @ z)
    return Angles(angles, squares, products)


def bound_ratios(n: int, head: int, draws: int, random_state: int = 0) -> Array:
    """|<Wq x, Wk y>| over ||Wq|| ||Wk|| |x| |y|, and over that times |cos(x, y)|, as printed: (2, draws); a bound stays below 1."""
    rng = np.random.default_rng(random_state)
    found = np.zeros((2, draws))
    for i in range(draws):
        Wq, Wk = rng.standard_normal((2, head, n)) / np.sqrt(n)
        x, y = on_sphere(n, 2, 1.0, int(rng.integers(2**32)))
        ratio = abs((Wq @ x) @ (Wk @ y)) / (np.linalg.norm(Wq, 2) * np.linalg.norm(Wk, 2))
        found[:, i] = ratio, ratio / abs(x @ y)
    return found


def aligned_traces(n: int, draws: int, random_state: int = 0) -> dict[str, Array]:
    """tr(A^T B) / (n^2 s^2) for square A, B with entries N(0, s^2) (draws,): unrelated, and B turned into the bases of A.

    With singular values paired by rank it is about 1 (printed: always), paired at random (8 / 3 pi)^2 = 0.72.
    """
    rng = np.random.default_rng(random_state)
    found = {name: np.zeros(draws) for name in BASES}
    for i in range(draws):
        A, B = rng.standard_normal((2, n, n))
        a, b = (np.linalg.svd(M, compute_uv=False) for M in (A, B))
        for name, trace in zip(BASES, ((A * B).sum(), a @ b, a @ rng.permutation(b)), strict=True):
            found[name][i] = trace / n**2
    return found


def traces_of_spectra(a: npt.ArrayLike, b: npt.ArrayLike, draws: int, random_state: int = 0) -> Array:
    """tr(A^T B) of matrices with these singular values and bases drawn at random, (draws,)."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    rng = np.random.default_rng(random_state)
    found = np.zeros(draws)
    for i in range(draws):
        P, Q = (random_basis(len(a), len(a), rng) for _ in range(2))  # U_a^T U_b and V_a^T V_b
        found[i] = a @ (P * Q) @ b
    return found
