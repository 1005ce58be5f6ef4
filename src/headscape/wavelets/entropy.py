"""Entropies of Haar coefficients: how spread out they are, and what the largest of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import numba
import numpy as np
import numpy.typing as npt
import pandas as pd
from numba.extending import intrinsic

from headscape.checks import LARGEST, check_finite, integer, one_of
from headscape.compiled import compiled_in_order, n_threads, run_tasks
from headscape.errors import InputError
from headscape.tensor import AttentionTensor
from headscape.tree import IntArray, PartitionTree
from headscape.wavelets.haar import (
    LANES,
    FloatArray,
    Trees,
    as_floats,
    haar_support,
    haar_transform,
    inverse_haar_transform,
    largest_supports,
    lift,
    lifting,
    listed,
    load,
    match_trees,
    transform_axes,
)

__all__ = ["decay_curve", "head_entropies", "network_entropy", "reconstruct", "top_energy"]

# Energy beyond the constant term below this share of the whole is rounding, not signal.
ROUNDING = (64 * np.finfo(np.float64).eps) ** 2
TINY = 1e-300  # keeps the logarithm of an exact zero finite; its factor is zero anyway
FAR = 330  # entries beyond 2^+-330, about 1e+-99, are scaled first: their squares are near the ends of float64
MAX_BUFFER = 2**29  # bytes of LANES matrices that a thread may hold; for larger ones only one axis is fused
_POINT = PartitionTree.dyadic(1)


def head_entropies(X: npt.ArrayLike, trees: Trees, n_basis: int = 400) -> pd.DataFrame:
    """Measure every head by its coefficients b in the bi-Haar basis of queries x keys (eq. 21, with psi^K for psi^H).

    ======== =========================================================================================================
    l1_top   sum of abs(b) over the `n_basis` largest supports, ties by index; large support means LOW frequency
    l1_all   sum of abs(b) over all coefficients
    dc       the mean (DC) coefficient, sum of the entries / sqrt(n_query n_key): one number for all heads of probabilities
    l1_rel   l1 / l2 without the constant term: does not depend on units; 0 for a constant head, where it is 0/0
    shannon  entropy of b^2 / sum b^2 in nats, constant term included; 0 for a zero head
    l1_scale l1_scale_s is the sum of abs(b) over the functions of scale s, the sum over the axes of
             floor(log2(n / support)), without the constant term; they add up to l1_all - abs(dc)
    n_ties   functions that share the support at which `n_basis` cut, 0 if it cut between two supports; the same for
             all heads, also in ``.attrs`` beside n_basis and the support at the cut
    ======== =========================================================================================================

    Parameters
    ----------
    X
        (n_query, n_key, n_head) array or `AttentionTensor`; further axes before the last are transformed too, and a
        matrix is one head.
    trees
        One tree for each axis; that of the heads is not used and may be left out.
    n_basis
        How many largest supports l1_top takes; all of them if there are fewer.

    Returns
    -------
    pandas.DataFrame
        One row per head, indexed by (block, layer, head) for an `AttentionTensor`, by number otherwise.

    Raises
    ------
    InputError
        If a tree does not fit its axis, or an entry is NaN, infinite or beyond 1e300.

    >>> X = np.zeros((4, 4, 2)); X[:2, :2, 1] = 1
    >>> tree = hs.PartitionTree.dyadic(4)
    >>> hs.head_entropies(X, (tree, tree))[["l1_all", "dc", "l1_rel"]].round(3)
          l1_all   dc  l1_rel
    head
    0        0.0  0.0   0.000
    1        4.0  1.0   1.732
    """
    values, names = as_floats(X)
    if values.ndim == 1:
        raise InputError(f"heads are matrices; an array of shape {values.shape} has none, use network_entropy")
    axes = listed(trees)
    if values.ndim == 2:
        axes, values = match_trees(values.shape, axes, names), values[..., None]
    else:
        axes = match_trees(values.shape, axes if len(axes) == values.ndim else [*axes, None], names)[:-1]
    columns, attrs = _entropies(values, axes, names, n_basis)
    rows: pd.Index[Any] = pd.RangeIndex(values.shape[-1], name="head")
    if isinstance(X, AttentionTensor):
        rows = pd.MultiIndex.from_tuples(X.heads, names=["block", "layer", "head"])
    frame = pd.DataFrame(columns, index=rows)
    frame.attrs.update(attrs)
    return frame


def network_entropy(X: npt.ArrayLike, trees: Trees, n_basis: int = 100) -> pd.Series[Any]:
    """Measure the whole array by its coefficients in the product basis of all axes (the tri-Haar basis, appendix B.2).

    The entries are the columns of `head_entropies`; X may have any order >= 1 and needs one tree per axis.

    >>> tree = hs.PartitionTree.dyadic(4)
    >>> hs.network_entropy(np.ones((4, 4, 4)), (tree, tree, tree))[["l1_top", "dc", "l1_rel"]].round(9).tolist()
    [8.0, 8.0, 0.0]
    """
    values, names = as_floats(X)
    axes = match_trees(values.shape, trees, names)
    columns, attrs = _entropies(values[..., None], axes, names, n_basis)
    series = pd.Series({name: column[0] for name, column in columns.items()}, name="network")
    series.attrs.update(attrs)
    return series


def decay_curve(
    X: npt.ArrayLike,
    trees: Trees,
    by: Literal["magnitude", "support"] = "magnitude",
    per: Literal["network", "head"] = "network",
    n: int | None = 400,
    without: int | None = None,
) -> FloatArray:
    """Return the absolute coefficients, largest first or those of the largest support first (figures 4 and 6).

    Parameters
    ----------
    X, trees
        As in `network_entropy`, or with per="head" as in `head_entropies`.
    by
        "magnitude": sorted by size; "support": by (support descending, index), the same order for every head.
    per
        "network" gives shape (n,), "head" (n, n_head).
    n
        At most this many coefficients; None for all.
    without
        An axis whose constant function is left out, as the keys' (1) of attention that sums to 1 over them: there all
        coefficients but the mean are 0 by construction, and the mean is one number for all heads.

    >>> tree = hs.PartitionTree.dyadic(4)
    >>> hs.decay_curve(np.kron([[1.0, 5.0], [2.0, 2.0]], np.ones((2, 2))), (tree, tree), n=6).round(6)
    array([10.,  4.,  4.,  2.,  0.,  0.])
    """
    one_of("by", by, ("magnitude", "support"))
    one_of("per", per, ("head", "network"))
    axes, one = listed(trees), per == "network" or np.ndim(X) == 2
    basis = _no_gaps(axes if one else axes[: np.ndim(X) - 1])
    size = np.abs(haar_transform(X, basis if one else [*basis, None]))
    supports = [haar_support(tree).support for tree in basis]
    if without is not None:
        size = size.take(np.arange(1, size.shape[without]), axis=without)
        supports[without] = supports[without][1:]
    curve: FloatArray = size.reshape(-1, 1 if one else size.shape[-1])
    n = len(curve) if n is None else min(integer("n", n, low=1), len(curve))
    if n == 0:  # one key, whose constant function was all there is
        pass
    elif by == "support":
        index = largest_supports(supports, n).indices
        curve = curve[np.ravel_multi_index(tuple(index.T), size.shape[: len(basis)])]
    else:
        curve = -np.sort(np.partition(-curve, n - 1, axis=0)[:n], axis=0)
    return curve[:, 0] if per == "network" else curve


def reconstruct(X: npt.ArrayLike, trees: Trees, k: int) -> FloatArray:
    """Rebuild `X` from the k coefficients of largest magnitude (ties by index), the constant term among them.

    >>> X = np.kron([[1.0, 5.0], [2.0, 2.0]], np.ones((2, 2)))
    >>> tree = hs.PartitionTree.dyadic(4)
    >>> bool(np.allclose(hs.reconstruct(X, (tree, tree), 4), X))
    True
    """
    integer("k", k, low=0)
    C = haar_transform(X, trees)
    flat = C.reshape(-1)
    flat[np.argsort(-np.abs(flat), kind="stable")[k:]] = 0
    return inverse_haar_transform(C, trees)


def top_energy(X: npt.ArrayLike, trees: Trees, fraction: float = 0.01, constant: bool = True) -> float:
    """Return the share of the energy sum C^2 that the largest `fraction` of the coefficients holds.

    The number of coefficients is rounded up; constant=False leaves the constant term out of both. 0 where there is no
    energy.

    >>> hs.top_energy(np.ones((8, 8)), [hs.PartitionTree.dyadic(8)] * 2)
    1.0
    """
    if not 0 < fraction <= 1:
        raise InputError(f"fraction must lie in (0, 1], not {fraction}")
    C = _in_range(haar_transform(X, trees).reshape(-1), None)[0]
    energy = C[0 if constant else 1 :] ** 2
    if not energy.sum() > ROUNDING * (C @ C):
        return 0.0
    k = int(np.ceil(fraction * len(energy)))
    return float(np.partition(energy, len(energy) - k)[len(energy) - k :].sum() / energy.sum())


def _no_gaps(axes: Sequence[PartitionTree | None]) -> list[PartitionTree]:
    if any(tree is None for tree in axes):
        raise InputError("every transformed axis needs a tree, None was given")
    return cast(list[PartitionTree], list(axes))


class _Sums(NamedTuple):
    """What the columns are made of, one entry per head."""

    l1: FloatArray  # (n_scales, n_head), without the constant
    energy: FloatArray  # without the constant
    energy_log: FloatArray  # sum of b^2 log b^2, without the constant
    constant: FloatArray
    top: FloatArray  # sum of abs(b) over the largest supports, the constant included


def _entropies(
    values: npt.NDArray[Any], trees: Sequence[PartitionTree | None], names: Sequence[str], n_basis: int
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, int]]:
    """Return columns and attributes for (*trees, n_head) values."""
    axes = _no_gaps(trees)
    top = largest_supports([haar_support(tree).support for tree in axes], n_basis)
    scaled, exponent = _in_range(values, tuple(range(values.ndim - 1)), names)
    columns = _columns(_coefficient_sums(scaled, axes, top.indices), exponent)
    columns["n_ties"] = np.full(values.shape[-1], top.n_ties, dtype=np.intp)
    return columns, {"n_basis": len(top.indices), "n_ties": top.n_ties, "support_at_cut": int(top.support[-1])}


def _in_range(
    values: npt.NDArray[Any], over: tuple[int, ...] | None, names: Sequence[str] = ()
) -> tuple[npt.NDArray[Any], IntArray]:
    """Bring very large or small entries near 1 by a power of two, which rounds nothing; also its exponent.

    The exponent is found over the axes `over`; with `names` of all axes, entries that are not finite are refused.
    """
    largest = np.maximum(values.max(axis=over), -values.min(axis=over)).astype(np.float64)
    if names and not (largest <= LARGEST).all():
        check_finite(values.reshape(values.shape[: len(names)]), names)
    exponent = np.frexp(largest)[1].astype(np.intp)
    exponent = np.where(np.abs(exponent) > FAR, exponent, 0)
    return (np.ldexp(values, -exponent) if exponent.any() else values), exponent


def _coefficient_sums(values: npt.NDArray[Any], axes: list[PartitionTree], top: IntArray) -> _Sums:
    """Sum over the coefficients of (*axes, n_head) values, all axes but the last transformed.

    The first two axes are transformed and summed in one pass that keeps no coefficients, many lanes at a time. A lane
    is an index into the remaining axes, which are transformed beforehand.
    """
    n_head = values.shape[-1]
    few_lanes = np.prod(values.shape[2:]) < LANES // 4
    if len(axes) == 1 or few_lanes or axes[0].n_leaves * axes[1].n_leaves * LANES * 8 > MAX_BUFFER:
        # an axis of one leaf comes first, so that the second axis, if there is one, joins the lanes
        axes, values, top = [_POINT, *axes], values[None], np.pad(top, ((0, 0), (1, 0)))
    about = [haar_support(tree) for tree in axes]
    n_row, n_col, *rest = values.shape
    if rest[:-1]:
        values = transform_axes(values, list(enumerate(axes))[2:])
    rest_scale = np.zeros(1, dtype=np.intp)
    for a in about[2:]:
        rest_scale = np.add.outer(rest_scale, a.scale).reshape(-1)
    rest_index = np.ravel_multi_index(tuple(top[:, 2:].T), rest[:-1]) if rest[:-1] else np.zeros_like(top[:, 0])

    rows, cols = lifting(axes[0]), lifting(axes[1])
    top_row, top_col = np.argsort(rows.place)[top[:, 0]], np.argsort(cols.place)[top[:, 1]]
    by_col = np.argsort(top_col, kind="stable")
    col_start = np.searchsorted(top_col[by_col], np.arange(n_col + 1))
    n_scales = 1 + sum(max(0, tree.n_leaves.bit_length() - 2) for tree in axes)  # a support is at least 2 leaves
    lanes = values.reshape(n_row, n_col, -1)
    blocks = np.zeros((-(-lanes.shape[2] // LANES), n_scales + 4, LANES))
    workers = min(n_threads(), len(blocks))
    row_facts = (rows.steps, rows.gains, about[0].scale[rows.place], int(np.argmin(rows.place)))
    col_facts = (cols.steps, cols.gains, about[1].scale[cols.place], int(np.argmin(cols.place)))
    top_facts = (col_start, top_row[by_col], n_head * rest_index[by_col], n_head)
    shared = (lanes, row_facts, col_facts, top_facts, blocks)
    run_tasks(_fused_sums, [(*shared, worker, workers) for worker in range(workers)], workers)
    sums = blocks.transpose(1, 0, 2).reshape(n_scales + 4, -1)[:, : np.prod(rest)]  # the last block had lanes to spare
    sums = sums.reshape(n_scales + 4, -1, n_head)

    l1 = np.zeros((n_scales, n_head))
    for scale in range(n_scales - rest_scale.max()):
        np.add.at(l1, scale + rest_scale, sums[scale])
    energy, energy_log, constant, top_l1 = sums[n_scales:]
    np.add.at(l1, rest_scale[1:], np.abs(constant[1:]))  # only the first is constant on the remaining axes too
    square, square_log = _square_and_log(constant[1:])
    energy = energy.sum(axis=0) + square.sum(axis=0)
    energy_log = energy_log.sum(axis=0) + square_log.sum(axis=0)
    return _Sums(l1, energy, energy_log, constant[0], top_l1.sum(axis=0))


def _square_and_log(b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return b^2 and b^2 log b^2."""
    square = b**2
    return square, square * np.log(square + TINY)


def _columns(sums: _Sums, exponent: IntArray) -> dict[str, npt.NDArray[Any]]:
    """Turn sums of heads that were divided by 2^exponent into the columns of the table."""
    square, square_log = _square_and_log(sums.constant)
    energy, energy_log = sums.energy + square, sums.energy_log + square_log
    l1 = sums.l1.sum(axis=0)
    l1_rel, shannon = np.zeros_like(l1), np.zeros_like(l1)
    varies, some = sums.energy > ROUNDING * energy, energy > 0
    l1_rel[varies] = l1[varies] / np.sqrt(sums.energy[varies])
    shannon[some] = np.log(energy[some]) - energy_log[some] / energy[some]
    shannon = np.maximum(shannon, 0.0)  # rounding may leave -1e-16 for a single coefficient
    sized = {"l1_top": sums.top, "l1_all": l1 + np.abs(sums.constant), "dc": sums.constant}
    by_scale = {f"l1_scale_{s}": np.ldexp(row, exponent) for s, row in enumerate(sums.l1)}
    return (
        {name: np.ldexp(x, exponent) for name, x in sized.items()} | {"l1_rel": l1_rel, "shannon": shannon} | by_scale
    )


def _bitcast(to: Any, of: Any) -> Any:
    """Make a function that reads the bits of one type as another, which numba lacks."""

    def cast_bits(_typing: Any, _x: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(to))

        return to(of), generate

    return intrinsic(cast_bits)


_bits = _bitcast(numba.int64, numba.float64)
_from_bits = _bitcast(numba.float64, numba.int64)


@compiled_in_order
def _log(x: float) -> float:
    """Natural logarithm of a normal positive double to 1 ulp, in a form that vectorizes; the C library's does not.

    x = 2^k m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), by fdlibm's polynomial.
    """
    bits = _bits(x) + (0x3FF0000000000000 - 0x3FE6A09E667F3BCD)  # so that the exponent changes at sqrt(1/2)
    k = _from_bits((bits >> 52) - 1023 + 0x4338000000000000) - 6755399441055744.0  # int to double by the mantissa
    f = _from_bits((bits & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = 2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)
    rest = odd + z * (6.666666666666735130e-01 + w * even)
    half = 0.5 * f * f
    log: float = k * 6.93147180369123816490e-01 - ((half - (s * (half + rest) + k * 1.90821492927058770002e-10)) - f)
    return log


@compiled_in_order
def _fused_sums(
    values: npt.NDArray[Any],
    rows: tuple[IntArray, FloatArray, IntArray, int],
    cols: tuple[IntArray, FloatArray, IntArray, int],
    top: tuple[IntArray, IntArray, IntArray, int],
    sums: FloatArray,
    worker: int,
    workers: int,
) -> None:
    """Transform (n_row, n_col, n_lanes) along two axes and sum, LANES lanes at a time; a worker does whole blocks.

    `rows`, `cols`: steps, gains, scale of each row, row of the constant. `top`, the largest supports: where the entries
    of each column start, their rows, the first lane each counts in, and in how many.
    `sums` (n_blocks, n_scales + 4, LANES) gets l1 by scale, energy, energy log energy, constant, l1 of the top list.
    """
    row_steps, row_gains, row_scale, row_constant = rows
    col_steps, col_gains, col_scale, col_constant = cols
    top_start, top_row, top_lane, top_width = top
    n_row, n_col, _ = values.shape
    n_scales = sums.shape[1] - 4
    slab = np.zeros((n_col, LANES))
    between = np.empty((n_col, n_row, LANES))
    for b in range(worker, len(sums), workers):
        for r in range(n_row):
            for c in range(n_col):
                load(values[r, c, b * LANES : (b + 1) * LANES], slab[c])
            lift(slab, col_steps, col_gains, False)
            for c in range(n_col):
                for v in range(LANES):
                    between[c, r, v] = slab[c, v]
        energy, energy_log, top_l1 = sums[b, n_scales], sums[b, n_scales + 1], sums[b, n_scales + 3]
        for c in range(n_col):
            tile = between[c]
            lift(tile, row_steps, row_gains, False)
            for t in range(top_start[c], top_start[c + 1]):
                lane = top_lane[t] - b * LANES
                for v in range(max(lane, 0), min(lane + top_width, LANES)):
                    top_l1[v] += abs(tile[top_row[t], v])
            if c == col_constant:
                for v in range(LANES):
                    sums[b, n_scales + 2, v] = tile[row_constant, v]
                    tile[row_constant, v] = 0.0
            for r in range(n_row):
                row, l1 = tile[r], sums[b, row_scale[r] + col_scale[c]]
                for v in range(LANES):
                    l1[v] += abs(row[v])
            for r in range(n_row):
                row = tile[r]
                for v in range(LANES):
                    square = row[v] * row[v]
                    energy[v] += square
                    energy_log[v] += square * _log(square + TINY)
