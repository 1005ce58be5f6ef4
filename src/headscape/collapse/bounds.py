"""How much of the residual one layer of attention can keep: the printed bounds, the repaired ones, and what is so.

With R = Res(X), scores are A = E + 1 r^T + c 1^T, where r_j is the mean of column j of A (the paper's r up to a
constant, whatever the scores are made of), d_i = max_jk |E_ij - E_ik| and D = max_i d_i. Then P_ij / softmax(r)_j lies
within exp(-d_i) and exp(d_i), and subtracting the mean row costs a factor 2 at most in either norm, which gives

    ||Res(P X W)||_{1,inf} <= 2 (e^D - 1) sqrt(N sigma) ||R||_{1,inf} ||W||_{1,inf},  sigma = max_j softmax(r)_j,

and, where e^D - 1 <= 2 D (D up to 1.256), the same with 4 D. A mask makes D infinite: causal attention has no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headscape.collapse.residual import norm_1, norm_1inf, norm_inf, residual
from headscape.errors import InputError

__all__ = [
    "BOUNDS",
    "CONDITION",
    "LayerBounds",
    "corrected_d3",
    "layer_bounds",
    "named_bounds",
    "printed_d1",
    "printed_d2",
    "printed_d3",
    "repaired",
    "softmax_rows",
    "spread_of",
]

Array = npt.NDArray[np.float64]
CONDITION = 1.2564312086261697
"""Root of e^d = 1 + 2 d: up to here e^d - 1 <= 2 d."""
BOUNDS = ("measured", "floor", "repaired", "anywhere", "printed", "spread")
"""What `LayerBounds.row` holds; spread is the largest D of the heads."""
MASKED = -1e30
"""Scores below this are a mask."""


def softmax_rows(scores: npt.ArrayLike) -> Array:
    """Softmax over the last axis."""
    s = np.asarray(scores, dtype=np.float64)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    out: Array = e / e.sum(axis=-1, keepdims=True)
    return out


def spread_of(scores: npt.ArrayLike) -> tuple[float, float]:
    """D and sigma of the scores (n_query, n_key) that enter softmax; D is infinite where one is masked.

    >>> spread_of([[1.0, 2.0], [2.0, 3.0]])[0]  # rows that differ by a constant: attention is the same in all
    0.0
    """
    A = np.asarray(scores, dtype=np.float64)
    if A.min() < MASKED:
        return float("inf"), 1.0
    r = A.mean(axis=0)
    E = A - r
    return float((E.max(axis=1) - E.min(axis=1)).max()), float(softmax_rows(r).max())


def repaired(
    n: int,
    r: tuple[float, float],
    w: Sequence[tuple[float, float]],
    spread: Sequence[float],
    sigma: Sequence[float],
    *,
    anywhere: bool = False,
) -> float:
    """The repaired bound of a layer: c sqrt(N sum_h g_h s_h |R|_1 |W_h|_1 * sum_h g_h |R|_inf |W_h|_inf).

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
    g = [_expm1(d) if anywhere else d for d in spread]
    columns = sum(gh * s * r[0] * wh[0] for gh, s, wh in zip(g, sigma, w, strict=True))
    rows = sum(gh * r[1] * wh[1] for gh, wh in zip(g, w, strict=True))
    return float((2 if anywhere else 4) * np.sqrt(n * columns) * np.sqrt(rows))


def _expm1(x: float) -> float:
    return float(np.expm1(x)) if x < 700 else float("inf")


def printed_d1(r: float, w: float, qk: float, dim: int, alpha_hidden: float = 0.0, hidden: float = 0.0) -> float:
    """Lemma D.1: 4 (1 - a') C1 / sqrt(dk) |R|^3 + 4 a' C2 / sqrt(dk) |R|, one head, norms {1,inf} but where said.

    Parameters
    ----------
    r, w
        ||Res(X)|| and ||W||, W = W_V or W_V W_O.
    qk
        ||W_Q W_K^T||_1; C1 = ||W|| qk.
    dim
        dk.
    hidden
        ||H||_1 of the hidden state of the layer before, not yet divided by sqrt(dk); C2 = ||W|| hidden.
    """
    return float(4 * w * ((1 - alpha_hidden) * qk * r**3 + alpha_hidden * hidden * r) / np.sqrt(dim))


def printed_d2(
    r: float, w: Sequence[float], qk: Sequence[float], dim: int, alpha_hidden: float = 0.0, hidden: Sequence[float] = ()
) -> float:
    """Lemma D.2: H times Lemma D.1 with the largest C1 and C2 of the H heads.

    Its proof adds up heads by a triangle inequality that ||.||_{1,inf} does not have; it is false in general.
    """
    c1 = max(wh * q for wh, q in zip(w, qk, strict=True))
    c2 = max((wh * h for wh, h in zip(w, hidden, strict=True)), default=0.0) if hidden else 0.0
    return len(w) * printed_d1(r, 1.0, c1, dim, alpha_hidden, c2)


def printed_d3(a: float, b: float, r: float, depth: int) -> float:
    """Theorem D.3 as printed: max over m = 0..L of a^((3^m-1)/2) b^(3^m (L-m)) R^(3^m).

    a = 8 H (1 - a') C1 / sqrt(dk) and b = 8 H a' C2 / sqrt(dk). It claims to bound L steps of R -> max(a R^3, b R), and
    for b < 1 does not: the steps with b may come after the cubes.

    >>> round(printed_d3(1, 0.5, 0.9, 3), 4), round(corrected_d3(1, 0.5, 0.9, 3), 4)
    (0.1125, 0.1937)
    """
    return _d3(a, b, r, depth, corrected=False)


def corrected_d3(a: float, b: float, r: float, depth: int) -> float:
    """Theorem D.3 corrected: max over m = 0..L of a^((3^m-1)/2) max(b^(L-m), b^(3^m (L-m))) R^(3^m)."""
    return _d3(a, b, r, depth, corrected=True)


def _d3(a: float, b: float, r: float, depth: int, corrected: bool) -> float:
    if min(a, b, r) < 0 or depth < 0:
        raise InputError(f"a, b, R and the depth are not negative; given were {a}, {b}, {r} and {depth}")

    def log(x: float) -> float:
        return float(np.log(x)) if x > 0 else float("-inf")

    def power(x: float, exponent: float) -> float:
        return 0.0 if exponent == 0 else exponent * log(x)

    found = []
    for m in range(depth + 1):
        late, early = power(b, depth - m), power(b, 3.0**m * (depth - m))
        found.append(power(a, (3.0**m - 1) / 2) + (max(late, early) if corrected else early) + power(r, 3.0**m))
    largest = max(found)
    return float(np.exp(largest)) if largest < 709 else float("inf")


@dataclass(frozen=True)
class LayerBounds:
    """What one layer of attention leaves of the residual, and what bounds it; all norms are {1,inf}.

    measured is ||Res(sum_h P_h X W_h)||; repaired holds where `condition` does (D of every head up to `CONDITION`),
    anywhere always; printed is Lemma D.2 (D.1 for one head), NaN where scores are not a product of X with weights.
    floor is the round-off of measured: up to there it says nothing.
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
        """Whether what was measured is within a bound, but for round-off."""
        return self.measured - self.floor <= bound

    @property
    def row(self) -> Array:
        """The layer in numbers, by `BOUNDS`."""
        return np.array([*(getattr(self, name) for name in BOUNDS[:-1]), self.spread.max()], dtype=np.float64)


def named_bounds(row: npt.ArrayLike) -> dict[str, float | bool]:
    """A `LayerBounds.row` by name, and whether each bound was kept; one that is not known (NaN) was not broken."""
    found: dict[str, float | bool] = dict(zip(BOUNDS, np.asarray(row).tolist(), strict=True))
    beyond = found["measured"] - found["floor"]
    return found | {f"keeps_{name}": not beyond > found[name] for name in ("repaired", "anywhere", "printed")}


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
    out = sum(P @ (R @ w) for P, w in zip(softmax_rows(A), maps, strict=True))
    spread, sigma = zip(*(spread_of(a) for a in A), strict=True)
    r = (float(norm_1(R)), float(norm_inf(R)))
    w = [(float(norm_1(m)), float(norm_inf(m))) for m in maps]
    printed = float("nan")
    if W_QK is not None and dim is not None:
        qk = [float(norm_1(np.asarray(m, dtype=np.float64))) for m in np.asarray(W_QK)]
        before = [] if hidden is None else [float(norm_1(h)) for h in np.asarray(hidden, dtype=np.float64)]
        w_1inf = [float(norm_1inf(m)) for m in maps]
        printed = printed_d2(float(norm_1inf(R)), w_1inf, qk, dim, alpha_hidden, before)
    return LayerBounds(
        measured=float(norm_1inf(residual(out))),
        floor=float(n * np.finfo(np.float64).eps * norm_1inf(out)),
        repaired=repaired(n, r, w, spread, sigma),
        anywhere=repaired(n, r, w, spread, sigma, anywhere=True),
        printed=printed,
        spread=np.array(spread),
        sigma=np.array(sigma),
        condition=max(spread) <= CONDITION,
    )
