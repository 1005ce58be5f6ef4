"""One layer of the Gaussian study: scores predicted and measured, what attention does to Gaussians, rank, cosines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from headscape.attention.watching import LayerData
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.statistics.bilinear import (
    Moments,
    centred_kurtosis,
    form_moments,
    measured_moments,
    pooled_moments,
)
from headscape.statistics.gaussian import entropy, fit_gaussian, principal_subspace
from headscape.statistics.mixture import energy_rank, relative_difference
from headscape.statistics.tokens import information_by_distance, pair_information
from headscape.studies.work.old import write_arrays

__all__ = ["COLUMNS", "INFORMATION", "OFFSETS", "Reading", "measure_layer", "measure_state", "present_offsets"]

Array = npt.NDArray[Any]
OFFSETS = (0, 1, 4, 16, 64)
"""How far back a key lies from its query where scores are predicted and measured; both ways without a causal mask."""
N_COMPONENTS = 32
"""Dimensions a token where determinants are taken."""
RANKED = 2
"""Inputs of which the singular values of the maps are taken."""
COMPARED = 3
"""Inputs of which attention is compared with cosines."""
PERMUTATIONS = 199

_MOMENTS = Moments._fields
_SCORES = (
    *_MOMENTS,
    *(f"{name}_independent" for name in _MOMENTS),
    *(f"{name}_joint" for name in _MOMENTS),
    *(f"self_{name}" for name in _MOMENTS),
    *(f"self_{name}_predicted" for name in _MOMENTS),
    *("directions", "score_shrinkage"),
)
_AFTER = (
    *("mean_off", "covariance_off", "covariance_halves", "trace_ratio", "variance_kept"),
    *("entropy_values", "entropy_measured", "entropy_propagated"),
    *("information_values", "information_measured", "information_propagated"),
)
COLUMNS = (*_SCORES, *_AFTER, "rank90", "cosine_rho", "cosine_partial", "cosine_p")
"""What is measured of a head.

mean, variance, skewness, kurtosis (excess) of its scores over the pairs at `OFFSETS`; the same predicted by independent
tokens of one Gaussian (*_independent) and by a joint Gaussian for every offset (*_joint, whose mean is an identity);
self_* at offset 0. directions is 6 over the kurtosis of the centred form: how many directions carry the scores.

mean_off, covariance_off: relative distance of the propagated moments of the head's output from the measured ones;
covariance_halves that of two halves of the inputs, what chance makes of it; trace_ratio propagated over measured.
entropy_* of values and outputs in the principal subspace of the values (variance_kept), information_* of neighbours in
it, less that of shuffled pairs. All of these are about the mean of each position over inputs, where there are several.

rank90: singular values for 90 % of the energy of the map. cosine_*: rank correlation of attention with the cosine of
the embeddings, that with the distance taken out, and its p by permuting the tokens.
"""
INFORMATION = ("information", "null", "error", "shrinkage", "kept")


@dataclass(frozen=True)
class Reading:
    """How the study reads the inputs: which tokens count, whether keys only lie before queries, and the cosines.

    `content` leaves the first token out (a sink, the same in every input) and special tokens at the end. `cosines`
    (n_input, n_token, n_token) are those of the embeddings.
    """

    content: slice
    causal: bool
    cosines: Array | None
    seed: int


def present_offsets(n_content: int, causal: bool) -> list[int]:
    """The offsets (query less key position) that some pair of content tokens has."""
    back = [r for r in OFFSETS if r < n_content]
    return back if causal else sorted({*back, *(-r for r in back)})


def measure_layer(data: LayerData, reading: Reading, path: Path) -> None:
    """Measure all heads of a layer and keep the table (n_head, n_column); skipped when the file is there."""
    if path.exists():
        return
    with one_blas_thread():
        rows = _score_rows(data, reading)
        _after_rows(data, reading, rows)
        for head, row in enumerate(rows):
            row["rank90"] = float(np.mean([energy_rank(P[head]) for P in data.probs[:RANKED]]))
        _cosine_rows(data, reading, rows)
    table = np.array([[row.get(name, np.nan) for name in COLUMNS] for row in rows], dtype=np.float64)
    write_arrays(path, {"table": table}, {"note": data.note})


# --- scores ----------------------------------------------------------------------------------------------------------


def _score_rows(data: LayerData, reading: Reading) -> list[dict[str, float]]:
    n_head = data.probs.shape[1]
    if data.queries is None or data.keys is None or not np.isfinite(data.scaling):
        return [{} for _ in range(n_head)]
    group = n_head // data.keys.shape[1]
    return [_score_row(data, reading, head, head // group) for head in range(n_head)]


def _pairs(x: Array, y: Array, r: int) -> tuple[Array, Array]:
    """Rows of x (n_input, n, ...) with the rows of y that lie r before them."""
    n = x.shape[1]
    first, second = (x[:, r:], y[:, : n - r]) if r >= 0 else (x[:, :r], y[:, -r:])
    return first.reshape(-1, *first.shape[2:]), second.reshape(-1, *second.shape[2:])


def _form(data: LayerData, r: int) -> Array:
    """The matrix C of the score q C k^T of a query with a key r before it."""
    assert data.queries is not None
    if data.rotations is None:
        return data.scaling * np.eye(data.queries.shape[-1])
    at_query, at_key = data.rotations[max(r, 0)], data.rotations[max(-r, 0)]
    return np.asarray(data.scaling * at_query.astype(float) @ at_key.T.astype(float))


def _score_row(data: LayerData, reading: Reading, head: int, kv_head: int) -> dict[str, float]:
    assert data.queries is not None
    assert data.keys is not None
    q = data.queries[:, head, reading.content].astype(float)
    k = data.keys[:, kv_head, reading.content].astype(float)
    scores = data.scores[:, head, reading.content, reading.content].astype(float)
    dim = q.shape[-1]
    of_q, of_k = (fit_gaussian(part.reshape(-1, dim)) for part in (q, k))
    measured, independent, joint, counts, shrinkage = [], [], [], [], [of_q.shrinkage, of_k.shrinkage]
    row: dict[str, float] = {}
    for r in present_offsets(q.shape[1], reading.causal):
        seen = np.diagonal(scores, -r, axis1=1, axis2=2)
        C = _form(data, r)
        both = fit_gaussian(np.hstack(_pairs(q, k, r)))
        x, y = slice(0, dim), slice(dim, 2 * dim)
        S = both.covariance
        measured.append(measured_moments(seen))
        independent.append(form_moments(C, of_q.mean, of_k.mean, of_q.covariance, of_k.covariance))
        joint.append(form_moments(C, both.mean[x], both.mean[y], S[x, x], S[y, y], S[y, x]))
        counts.append(seen.size)
        shrinkage.append(both.shrinkage)
        if r == 0:
            row |= _named("self_{}", measured[-1]) | _named("self_{}_predicted", joint[-1])
    row |= _named("{}", pooled_moments(measured, counts))
    row |= _named("{}_independent", pooled_moments(independent, counts))
    row |= _named("{}_joint", pooled_moments(joint, counts))
    row["directions"] = 6 / centred_kurtosis(np.eye(dim), of_q.covariance, of_k.covariance)
    row["score_shrinkage"] = max(shrinkage)
    return row


def _named(pattern: str, moments: Moments) -> dict[str, float]:
    return {pattern.format(name): value for name, value in moments._asdict().items()}


# --- after attention -------------------------------------------------------------------------------------------------


def _after_rows(data: LayerData, reading: Reading, rows: Sequence[dict[str, float]]) -> None:
    """Moments of what a head gives: with the map of each input, and with the mean map of the other inputs."""
    if data.values is None:
        return
    n_input, n_head = data.probs.shape[:2]
    group = n_head // data.values.shape[1]
    total = data.probs.sum(axis=0)
    for head, row in enumerate(rows):
        values = data.values[:, head // group].astype(float)
        measured = data.outputs[:, head, reading.content].astype(float)
        tokens = values[:, reading.content]
        propagated = None
        if n_input > 1:
            fixed = (total[head] - data.probs[:, head]) / (n_input - 1)
            propagated = (fixed.astype(float) @ values)[:, reading.content]
            row |= _moments_off(measured, propagated)
        try:
            subspace = principal_subspace(tokens.reshape(-1, tokens.shape[-1]), N_COMPONENTS)
        except InputError:  # values that are all equal
            continue
        row["variance_kept"] = subspace.kept
        for name, found in (("values", tokens), ("measured", measured), ("propagated", propagated)):
            if found is not None:
                row |= _information(name, subspace.project(found), reading.seed)


def _centred(tokens: Array) -> Array:
    """Tokens (n_input, n, k) less the mean of their position over inputs, and scaled to make up for that.

    Position i has a Gaussian N(mu_i, S_i) of its own; with one input there is no telling its mean from the token.
    """
    n_input = len(tokens)
    return tokens if n_input < 2 else (tokens - tokens.mean(axis=0)) * np.sqrt(n_input / (n_input - 1))


def _moments_off(measured: Array, propagated: Array) -> dict[str, float]:
    def covariance(tokens: Array) -> Array:
        flat = _centred(tokens).reshape(-1, tokens.shape[-1])
        return np.asarray(flat.T @ flat / len(flat))

    S, S_p = covariance(measured), covariance(propagated)
    trace = float(np.trace(S))
    found = {
        "mean_off": relative_difference(propagated.mean(axis=0), measured.mean(axis=0)),
        "covariance_off": relative_difference(S_p, S),
        "trace_ratio": float(np.trace(S_p)) / trace if trace else float("nan"),
    }
    if len(measured) > 3:  # each half has a mean of its own
        halves = [covariance(measured[start::2]) for start in (0, 1)]
        found["covariance_halves"] = relative_difference(*halves)
    return found


def _information(name: str, tokens: Array, seed: int) -> dict[str, float]:
    """Entropy of tokens (n_input, n, k) and information of neighbours; NaN where the covariance is singular."""
    tokens = _centred(tokens)
    try:
        own = entropy(fit_gaussian(tokens.reshape(-1, tokens.shape[-1])))
        found = pair_information(*_pairs(tokens, tokens, 1), seed, n_shuffles=1)
    except InputError:  # outputs that are all equal, say of a head that rests on one token
        return {}
    return {f"entropy_{name}": own, f"information_{name}": found.information - found.null}


# --- cosines ---------------------------------------------------------------------------------------------------------


def _cosine_rows(data: LayerData, reading: Reading, rows: Sequence[dict[str, float]]) -> None:
    """Rank correlation of attention with embedding cosines over pairs of different tokens, for all heads."""
    if reading.cosines is None:
        return
    content = np.arange(data.probs.shape[-1])[reading.content]
    n = len(content)
    if n < 3:
        return
    i, j = np.tril_indices(n, -1) if reading.causal else np.nonzero(~np.eye(n, dtype=bool))
    # a row of many keys has little for each: times their number, rows of different length compare
    keys = (content[i] + 1 if reading.causal else np.full(len(i), data.probs.shape[-1])).astype(np.float32)
    distance = _standard_ranks(np.abs(i - j)[None])[0]
    rng = np.random.default_rng(reading.seed)
    stacks = []
    for probs, cosines in zip(data.probs[:COMPARED], reading.cosines[:COMPARED], strict=False):
        attention = _standard_ranks(probs[:, content[i], content[j]] * keys)
        ranks = np.zeros((n, n))
        ranks[i, j] = _standard_ranks(cosines[np.ix_(content, content)][i, j][None])[0]
        if reading.causal:
            ranks += ranks.T  # cosines are symmetric: any order of the tokens has the same ranks
        turns = [np.arange(n), *(rng.permutation(n) for _ in range(PERMUTATIONS))]
        moved = np.stack([ranks[turn[i], turn[j]] for turn in turns])
        rho = attention @ moved.T  # (n_head, 1 + n_permutation)
        with_distance = (attention @ distance)[:, None], moved @ distance
        partial = (rho - with_distance[0] * with_distance[1]) / np.sqrt(
            np.maximum((1 - with_distance[0] ** 2) * (1 - with_distance[1] ** 2), 1e-12)
        )
        stacks.append((rho[:, 0], partial))
    rho, partial = (np.mean([stack[part] for stack in stacks], axis=0) for part in (0, 1))
    beyond = (np.abs(partial[:, 1:]) >= np.abs(partial[:, :1])).sum(axis=1)
    for head, row in enumerate(rows):
        row["cosine_rho"], row["cosine_partial"] = float(rho[head]), float(partial[head, 0])
        row["cosine_p"] = (1 + int(beyond[head])) / (1 + PERMUTATIONS)


def _standard_ranks(values: Array) -> Array:
    """Ranks of each row, centred and of length 1, so that products of two rows are rank correlations."""
    ranks = np.asarray(rankdata(values, axis=1), dtype=float)
    ranks -= ranks.mean(axis=1, keepdims=True)
    size = np.linalg.norm(ranks, axis=1, keepdims=True)
    return ranks / np.where(size > 0, size, 1)


# --- tokens at a distance --------------------------------------------------------------------------------------------


def measure_state(state: Array, reading: Reading, distances: Sequence[int], path: Path) -> None:
    """Mutual information by distance of the tokens (n_input, n, dim) at one depth; skipped when the file is there.

    Positions have their means taken out: a position embedding makes tokens depend on each other at any distance.
    """
    if path.exists():
        return
    tokens = list(_centred(state[:, reading.content].astype(float)))
    with one_blas_thread():
        try:
            found = information_by_distance(tokens, distances, N_COMPONENTS, reading.seed)
        except InputError as error:
            where = "before the first layer" if path.stem.endswith("0000") else f"at a depth ({path.stem})"
            raise InputError(f"tokens {where} have no Gaussian: {error}; capture inputs with other tokens") from None
    kept = np.full(len(distances), found.subspace.kept)
    table = np.stack([found.information, found.null, found.error, found.shrinkage, kept], axis=1)
    write_arrays(path, {"information": table})
