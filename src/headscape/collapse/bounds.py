"""How much of the residual one layer of attention can keep: what is measured, the printed bounds and the repaired ones.

With R = Res(X), scores are A = E + 1 r^T + c 1^T, where r_j is the mean of column j of A (the paper's r up to a
constant, however the scores were made), d_i = max_jk |E_ij - E_ik| and D = max_i d_i. Then P_ij / softmax(r)_j lies
between exp(-d_i) and exp(d_i), and subtracting the mean row costs at most a factor 2 in either norm, which gives

    ||Res(P X W)||_{1,inf} <= 2 (e^D - 1) sqrt(N sigma) ||R||_{1,inf} ||W||_{1,inf},  sigma = max_j softmax(r)_j,

and, where e^D - 1 <= 2 D (D up to 1.256), the same with 4 D. A mask makes D infinite: causal attention has no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import softmax, xlogy

from headscape.collapse.residual import norm_1, norm_1inf, norm_inf, residual
from headscape.errors import InputError

__all__ = [
    "BOUNDS",
    "CONDITION",
    "LayerBounds",
    "bound_curves",
    "corrected_d3",
    "d3_decades",
    "layer_bounds",
    "named_bounds",
    "printed_d1",
    "printed_d2",
    "printed_d3",
    "repaired",
    "spread_of",
]

Array = npt.NDArray[np.float64]
Numbers = Sequence[float] | Array
CONDITION = 1.2564312086261697
"""Root of e^d = 1 + 2 d: up to here e^d - 1 <= 2 d."""
BOUNDS = ("measured", "floor", "repaired", "anywhere", "printed", "spread")
"""The entries of `LayerBounds.row`; spread is the largest D of the heads."""
MASKED = -1e30
"""Scores below this are a mask."""
MOST_DECADES = 308.0
"""Larger powers of ten are no float64."""


def spread_of(scores: npt.ArrayLike) -> tuple[float, float]:
    """D and sigma of the scores (n_query, n_key) that enter softmax; D is infinite where one is masked.

    >>> spread_of([[1.0, 2.0], [2.0, 3.0]])[0]  # rows that differ by a constant: all attend alike
    0.0
    """
    A = np.asarray(scores, dtype=np.float64)
    if A.min() < MASKED:
        return float("inf"), 1.0
    r = A.mean(axis=0)
    E = A - r
    return float((E.max(axis=1) - E.min(axis=1)).max()), float(softmax(r).max())


def repaired(
    n: int,
    r: tuple[float, float],
    w: Sequence[tuple[float, float]] | Array,
    spread: Numbers,
    sigma: Numbers,
    *,
    anywhere: bool = False,
) -> float:
    """The repaired bound of a layer: c sqrt(N sum_h g_h s_h |R|_1 |W_h|_1 * sum_h g_h |R|_inf |W_h|_inf).

    A head with W_h = 0 outputs nothing and adds nothing, however large its D.

    Parameters
    ----------
    n
        N, the number of queries.
    r, w
        (||R||_1, ||R||_inf), and the same of W_h = W_V W_O for every head.
    spread, sigma
        D and sigma of every head, from `spread_of`.
    anywhere
        g = e^D - 1 and c = 2, which needs no condition; otherwise g = D and c = 4, for D up to `CONDITION`.
    """
    norms = np.asarray(w, dtype=np.float64) * np.asarray(r)
    with np.errstate(over="ignore"):  # a bound too large to be a number is infinite
        g = np.expm1(spread) if anywhere else np.asarray(spread, dtype=np.float64)
        terms = np.multiply(g[:, None], norms, out=np.zeros_like(norms), where=norms > 0)
        columns, rows = np.asarray(sigma) @ terms[:, 0], terms[:, 1].sum()
        return float((2 if anywhere else 4) * np.sqrt(n * columns) * np.sqrt(rows))


def printed_d1(r: float, w: float, qk: float, dim: int, alpha_hidden: float = 0.0, hidden: float = 0.0) -> float:
    """Lemma D.1: 4 (1 - a') C1 / sqrt(dk) |R|^3 + 4 a' C2 / sqrt(dk) |R|, one head; norms {1,inf} unless said.

    Parameters
    ----------
    r, w, dim
        ||Res(X)||, ||W|| with W = W_V or W_V W_O, and dk.
    qk
        ||W_Q W_K^T||_1; C1 = ||W|| qk.
    hidden
        ||H||_1 of the hidden state of the layer before, not yet divided by sqrt(dk); C2 = ||W|| hidden.
    """
    return float(4 * w * ((1 - alpha_hidden) * qk * r**3 + alpha_hidden * hidden * r) / np.sqrt(dim))


def printed_d2(r: float, w: Numbers, qk: Numbers, dim: int, alpha_hidden: float = 0.0, hidden: Numbers = ()) -> float:
    """Lemma D.2: H times Lemma D.1 with the largest C1 and C2 of the H heads.

    Its proof adds up heads by a triangle inequality that ||.||_{1,inf} does not have; it is false in general.
    """
    c1, c2 = (float(np.max(np.multiply(w, given))) if len(given) else 0.0 for given in (qk, hidden))
    return len(w) * printed_d1(r, 1.0, c1, dim, alpha_hidden, c2)


def printed_d3(a: float, b: float, r: float, depth: int) -> float:
    """Theorem D.3 as printed: max over m = 0..L of a^((3^m-1)/2) b^(3^m (L-m)) R^(3^m).

    a = 8 H (1 - a') C1 / sqrt(dk) and b = 8 H a' C2 / sqrt(dk). It claims to bound L steps of R -> max(a R^3, b R), and
    for b < 1 does not: the steps with b may come after the cubes.

    >>> round(printed_d3(1, 0.5, 0.9, 3), 4), round(corrected_d3(1, 0.5, 0.9, 3), 4)
    (0.1125, 0.1937)
    """
    return _power(d3_decades(a, b, r, depth, printed=True))


def corrected_d3(a: float, b: float, r: float, depth: int) -> float:
    """Theorem D.3 corrected: max over m = 0..L of a^((3^m-1)/2) max(b^(L-m), b^(3^m (L-m))) R^(3^m)."""
    return _power(d3_decades(a, b, r, depth))


def d3_decades(a: float, b: float, r: float, depth: int, *, printed: bool = False) -> float:
    """Log10 of Theorem D.3, corrected or as printed: the bound itself is soon too large to be a number.

    >>> round(d3_decades(1e10, 0, 1.0, 5))  # a^((3^5 - 1) / 2)
    1210
    """
    if min(a, b, r) < 0 or depth < 0:
        raise InputError(f"a, b, R and the depth must not be negative; given were {a}, {b}, {r} and {depth}")
    cubed = np.arange(depth + 1)  # m, of the L layers
    linear, power = depth - cubed, 3.0**cubed
    early = xlogy(power * linear, b)
    of_b = early if printed else np.maximum(xlogy(linear, b), early)
    return float((xlogy((power - 1) / 2, a) + of_b + xlogy(power, r)).max() / np.log(10))


def _power(decades: float) -> float:
    """Ten to a power; infinite where that is no number."""
    return float(10.0**decades) if decades < MOST_DECADES else float("inf")


@dataclass(frozen=True)
class LayerBounds:
    """What one layer of attention leaves of the residual, and what bounds it; all norms are {1,inf}.

    measured is ||Res(sum_h P_h X W_h)||; repaired is a bound where `condition` holds (D of every head up to
    `CONDITION`), anywhere always; printed is Lemma D.2 (D.1 for one head), NaN where scores are not a product of X with
    weights. floor is the round-off of measured, which means nothing below it.
    """

    measured: float
    floor: float
    repaired: float
    anywhere: float
    printed: float
    spread: Array  # D by head
    sigma: Array  # sigma by head
    condition: bool

    def keeps(self, bound: float) -> bool:
        """Whether the measured value is within a bound, up to round-off."""
        return _keeps(self.measured, self.floor, bound)

    @property
    def row(self) -> Array:
        """The layer in numbers, by `BOUNDS`."""
        return np.array([*(getattr(self, name) for name in BOUNDS[:-1]), self.spread.max()], dtype=np.float64)


def _keeps(measured: float, floor: float, bound: float) -> bool:
    return not measured - floor > bound  # a bound that is not known (NaN) is not broken


def named_bounds(row: npt.ArrayLike) -> dict[str, float | bool]:
    """A `LayerBounds.row` by name, and whether each bound was kept; one that is not known (NaN) was not broken."""
    found: dict[str, float] = dict(zip(BOUNDS, np.asarray(row).tolist(), strict=True))
    names = ("repaired", "anywhere", "printed")
    return found | {f"keeps_{name}": _keeps(found["measured"], found["floor"], found[name]) for name in names}


def bound_curves(rows: pd.DataFrame, along: str) -> dict[str, pd.Series[float]]:
    """Medians by layer (column `along`) of the measured value and of its bounds, from rows of `named_bounds`.

    The bound with 4 D is left out where its condition fails, and so are values that are not finite.
    """
    shown = {"measured": "measured", "repaired": "4 D", "anywhere": "2 (e^D - 1)", "printed": "printed"}
    kept = {name: rows[np.isfinite(rows[name]) & (rows[name] > 0)] for name in shown}
    kept["repaired"] = kept["repaired"][kept["repaired"]["spread"] <= CONDITION]
    return {shown[name]: part.groupby(along)[name].median() for name, part in kept.items() if len(part)}


def layer_bounds(
    X: npt.ArrayLike,
    scores: npt.ArrayLike,
    W: npt.ArrayLike,
    W_QK: npt.ArrayLike | None = None,
    dim: int | None = None,
    alpha_hidden: float = 0.0,
    hidden: npt.ArrayLike | None = None,
) -> LayerBounds:
    """Measure one layer of attention and its bounds.

    Parameters
    ----------
    X
        What enters the layer (after its norm, where it has one): (n_token, width).
    scores
        What enters softmax, divided by sqrt(dk), mask included: (n_head, n_token, n_token).
    W
        W_V W_O of every head: (n_head, width, out). Biases of values and outputs do not change a residual.
    W_QK, dim
        W_Q W_K^T of every head (n_head, width, width), and dk; without them the printed bound is left out.
    alpha_hidden, hidden
        a', and the hidden state of the layer before, not divided by sqrt(dk): (n_head, n_token, n_token).
    """
    tokens, A, maps = (np.asarray(x, dtype=np.float64) for x in (X, scores, W))
    n_head, n = len(maps), len(tokens)
    if A.shape != (n_head, n, n) or maps.shape[:2] != (n_head, tokens.shape[1]):
        raise InputError(
            f"tokens {tokens.shape}, scores {A.shape} and maps {maps.shape} do not fit; they are (n_token, width), "
            "(n_head, n_token, n_token) and (n_head, width, out)"
        )
    R = residual(tokens)
    # Res(P X W) = Res(P R W), as rows of P sum to 1; from R there is less to cancel
    out = sum(P @ (R @ w) for P, w in zip(softmax(A, axis=-1), maps, strict=True))
    spread, sigma = np.array([spread_of(a) for a in A]).T
    given = n, (norm_1(R), norm_inf(R)), np.stack([norm_1(maps), norm_inf(maps)], axis=1), spread, sigma
    printed = float("nan")
    if W_QK is not None and dim is not None:
        before = () if hidden is None else norm_1(hidden)
        printed = printed_d2(norm_1inf(R), norm_1inf(maps), norm_1(W_QK), dim, alpha_hidden, before)
    return LayerBounds(
        measured=float(norm_1inf(residual(out))),
        floor=float(n * np.finfo(np.float64).eps * norm_1inf(out)),
        repaired=repaired(*given),
        anywhere=repaired(*given, anywhere=True),
        printed=printed,
        spread=spread,
        sigma=sigma,
        condition=bool(spread.max() <= CONDITION),
    )
