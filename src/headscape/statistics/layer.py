"""One attention layer against its Gaussians (Wertich 2024): scores, what comes out of attention, rank, cosines.

Everything is measured on all inputs together, and again with each input left out: that is what intervals come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.attention.layers import LayerData
from headscape.errors import InputError
from headscape.statistics import chain
from headscape.statistics.bilinear import (
    Moments,
    by_cumulants,
    centred_kurtosis,
    form_cumulants,
    independent_cumulants,
    pooled,
)
from headscape.statistics.cosines import PermutedCosines, RankCorrelations, rank_correlations
from headscape.statistics.fixed_weights import Sums, moments_off, with_fixed_weights
from headscape.statistics.gaussian import log_determinants, principal_subspace
from headscape.statistics.left_out import (
    Fits,
    cumulants_left_out,
    folds,
    gaussians_left_out,
    joined,
    means_left_out,
    pairs_left_out,
    without,
)
from headscape.statistics.mixture import energy_rank
from headscape.statistics.tokens import pair_information

__all__ = ["COLUMNS", "FACTS", "Reading", "information_at_distances", "layer_table", "present_offsets"]

Array = npt.NDArray[Any]
Row = dict[str, float]
OFFSETS = (0, 1, 4, 16, 64)
"""Distances from query to key at which scores are predicted and measured; both ways without a causal mask."""
N_COMPONENTS = 32
"""Principal components per token where determinants are taken."""
COMPARED = 8
"""Inputs on which singular values are taken and attention is compared with cosines."""
PERMUTATIONS = 99


_MOMENTS = Moments._fields
COLUMNS = (
    *_MOMENTS,
    *(f"{name}_independent" for name in _MOMENTS),
    *(f"{name}_joint" for name in _MOMENTS),
    *(f"self_{name}" for name in _MOMENTS),
    *(f"self_{name}_predicted" for name in _MOMENTS),
    *("directions", "score_shrinkage"),
    *("mean_off", "covariance_off", "covariance_halves", "trace_ratio", "variance_kept"),
    *("entropy_values", "entropy_measured", "entropy_propagated"),
    *("information_values", "information_measured", "information_propagated"),
    *("rank90", "cosine_rho", "cosine_partial", "cosine_p"),
    *chain.COLUMNS,
    *("data_query", "data_key", "data_value"),
)
"""What is measured of a head.

mean, variance, skewness, kurtosis (excess) of its scores over the pairs at `OFFSETS`; the same predicted by independent
tokens of one Gaussian (*_independent) and by a joint Gaussian for every offset (*_joint, whose mean is an identity);
self_* at offset 0. directions is 6 over the kurtosis of the centred form: how many directions carry the scores.

mean_off, covariance_off: relative distance of the propagated moments of the head's output from the measured ones;
covariance_halves that of two halves of the inputs, which is chance; trace_ratio propagated over measured. entropy_* of
values and outputs in the principal subspace of the values (variance_kept), information_* of neighbours in it, less
that of shuffled pairs. All of these are taken about the mean of each position over inputs, where there are several.

rank90: singular values for 90 % of the energy of the map. cosine_*: rank correlation of attention with the cosine of
the embeddings, the same with distance held fixed, and its p by permuting the tokens. Then `statistics.chain`. data_*:
variance of the layer's inputs along the leading right singular vectors of W_q, W_k and W_v, over that of as many random
directions.
"""
FACTS = ("null", "shrinkage", "kept")
"""Beside the information of tokens at a distance: that of shuffled pairs, shrinkage, share of variance kept."""


@dataclass(frozen=True)
class Reading:
    """How the study reads the inputs: which tokens count, whether keys only precede queries, and the cosines.

    `content` leaves out the first token (a sink, the same in every input) and special tokens at the end. `distances`
    are those at which information is measured. `cosines` (n_input, n_token, n_token) are those of the embeddings.
    """

    content: slice
    causal: bool
    distances: Sequence[int]
    seed: int
    cosines: Array | None = None

    @cached_property
    def permuted(self) -> list[PermutedCosines]:
        """The cosines of the content tokens of the first inputs."""
        if self.cosines is None:
            return []
        return [
            PermutedCosines(one[self.content, self.content], PERMUTATIONS, self.seed + number, causal=self.causal)
            for number, one in enumerate(self.cosines[:COMPARED])
        ]


def _centred(tokens: Array) -> Array:
    """Tokens (n_input, n, k) less the mean of their position over inputs, rescaled to compensate.

    Position i has a Gaussian N(mu_i, S_i) of its own; with one input its mean cannot be separated from the token.
    """
    n_input = len(tokens)
    return tokens if n_input < 2 else (tokens - tokens.mean(axis=0)) * np.sqrt(n_input / (n_input - 1))


def present_offsets(n_content: int, causal: bool) -> list[int]:
    """The offsets (query less key position) that some pair of content tokens has."""
    back = [r for r in OFFSETS if r < n_content]
    return back if causal else sorted({*back, *(-r for r in back)})


def layer_table(data: LayerData, reading: Reading) -> Array:
    """The table (1 + n_input, n_head, n_column) of a layer by `COLUMNS`: on all inputs, and with each left out."""
    n_input, n_head = data.probs.shape[:2]
    rows = [_score_rows(data, reading, head) or [{} for _ in folds(n_input)] for head in range(n_head)]
    for head, found in enumerate(rows):
        for part in (_after_rows(data, reading, head), _rank_rows(data, head)):
            for row, more in zip(found, part, strict=False):
                row |= more
    _cosine_rows(data, reading, rows)
    _chain_rows(data, reading, rows)
    _data_rows(data, reading, rows)
    table = [[[row.get(name, np.nan) for name in COLUMNS] for row in found] for found in rows]
    return np.array(table, dtype=np.float64).swapaxes(0, 1)


# --- scores ----------------------------------------------------------------------------------------------------------


def _form(data: LayerData, dim: int, r: int) -> Array:
    """The matrix C of the score q C k^T of a query with a key r before it."""
    if data.rotations is None:
        return data.scaling * np.eye(dim)
    at_query, at_key = data.rotations[max(r, 0)], data.rotations[max(-r, 0)]
    return np.asarray(data.scaling * at_query.astype(float) @ at_key.T.astype(float))


def _score_rows(data: LayerData, reading: Reading, head: int) -> list[Row]:
    """Moments of the scores of a head, measured and predicted; none where they are not products of queries and keys."""
    if data.queries is None or data.keys is None or data.scores is None or not np.isfinite(data.scaling):
        return []
    q = data.queries[:, head, reading.content].astype(float)
    k = data.keys[:, head * data.keys.shape[1] // data.probs.shape[1], reading.content].astype(float)
    scores = data.scores[:, head, reading.content, reading.content]
    dim = q.shape[-1]
    offsets = present_offsets(q.shape[1], reading.causal)
    forms = [_form(data, dim, r) for r in offsets]
    both, of_q, of_k = pairs_left_out(q, k, offsets), gaussians_left_out(q), gaussians_left_out(k)
    alone = of_q.mean, of_k.mean, of_q.covariance, of_k.covariance
    cumulants = {  # (4, n_offset, n_fold)
        "{}": [cumulants_left_out(np.diagonal(scores, -r, axis1=1, axis2=2)) for r in offsets],
        "{}_independent": [independent_cumulants(C, *alone) for C in forms],
        "{}_joint": [form_cumulants(C, g.mean, g.covariance) for C, g in zip(forms, both, strict=True)],
    }
    moments = {name: by_cumulants(np.stack(parts, axis=1)) for name, parts in cumulants.items()}
    counts = np.array([q.shape[1] - abs(r) for r in offsets])
    named = {name: pooled(parts, counts) for name, parts in moments.items()}
    itself = offsets.index(0)
    named |= {"self_{}": moments["{}"][:, itself], "self_{}_predicted": moments["{}_joint"][:, itself]}
    shrinkage = max(g.shrinkage for g in (of_q, of_k, *both))
    predicted = chain.row_variance_predicted(np.array(forms), of_q.mean, of_q.covariance, of_k.mean, of_k.covariance)
    rows = []
    for fold in folds(len(q)):
        row: Row = {"score_shrinkage": shrinkage, "row_variance_predicted": float(predicted[fold])}
        for pattern, found in named.items():
            row |= {pattern.format(name): float(x) for name, x in zip(_MOMENTS, found[:, fold], strict=True)}
        row["directions"] = 6 / centred_kurtosis(np.eye(dim), of_q.covariance[fold], of_k.covariance[fold])
        rows.append(row)
    return rows


# --- after attention -------------------------------------------------------------------------------------------------


def _after_rows(data: LayerData, reading: Reading, head: int) -> list[Row]:
    """Moments of a head's output: with the map of each input, and with the mean map of the other inputs."""
    if data.values is None or data.outputs is None:
        return []
    n_input, n_head = data.probs.shape[:2]
    values = data.values[:, head * data.values.shape[1] // n_head].astype(float)
    probs, content = data.probs[:, head].astype(float), reading.content
    parts = {"values": values[:, content], "measured": data.outputs[:, head, content].astype(float)}
    rows: list[Row] = []
    measured = Sums.of(parts["measured"])
    first = content.start if reading.causal else None
    for fold, fixed in enumerate(with_fixed_weights(probs[:, content], values, first)):
        kept = without(np.arange(n_input), fold)
        rows.append(moments_off(measured, kept, Sums.of(fixed)) if len(fixed) > 1 else {})
        if fold == 0 and n_input > 1:
            parts["propagated"] = fixed
    tokens = parts["values"]
    try:
        subspace = principal_subspace(tokens.reshape(-1, tokens.shape[-1]), N_COMPONENTS)
    except InputError:  # values that are all equal
        return rows
    for name, found in parts.items():
        for row, more in zip(rows, _information(name, subspace.project(found), reading.seed), strict=False):
            row |= more | {"variance_kept": subspace.kept}
    return rows


def _information(name: str, tokens: Array, seed: int) -> list[Row]:
    """Entropy of tokens (n_input, n, k) and information of neighbours; none where the covariance is singular."""
    tokens = _centred(tokens)
    k = tokens.shape[-1]
    pairs = joined(tokens, tokens, 1)
    try:
        null = _null(pairs, seed, 1)
        volumes = log_determinants(gaussians_left_out(tokens).covariance)
        shared = _shared(gaussians_left_out(pairs), k)
    except InputError:  # outputs that are all equal, say of a head that attends to one token only
        return []
    entropies = 0.5 * (k * (1 + math.log(2 * math.pi)) + volumes)
    return [
        {f"entropy_{name}": float(own), f"information_{name}": float(both) - null}
        for own, both in zip(entropies, shared, strict=True)
    ]


def _shared(fits: Fits, k: int) -> Array:
    """`mutual_information` of the first k dimensions with the others, by fold."""
    S = fits.covariance
    parts = log_determinants(S[:, :k, :k]) + log_determinants(S[:, k:, k:])
    return np.asarray(0.5 * (parts - log_determinants(S)))


def _null(pairs: Array, seed: int, n_shuffles: int) -> float:
    """Information of pairs (n_input, n, 2k) when their partners are shuffled: finite samples show some."""
    flat = pairs.reshape(-1, pairs.shape[-1])
    k = flat.shape[1] // 2
    return pair_information(flat[:, :k], flat[:, k:], seed, n_shuffles).null


# --- rank and cosines ------------------------------------------------------------------------------------------------


def _rank_rows(data: LayerData, head: int) -> list[Row]:
    ranks = np.array([energy_rank(P) for P in data.probs[:COMPARED, head]], dtype=float)
    return [{"rank90": float(mean)} for mean in means_left_out(ranks, len(data.probs))]


def _cosine_rows(data: LayerData, reading: Reading, rows: Sequence[Sequence[Row]]) -> None:
    """Rank correlation of attention with embedding cosines over pairs of different tokens, for all heads."""
    if reading.cosines is None:
        return
    content, n_key = reading.content, data.probs.shape[-1]
    # a row with many keys has little for each: times their number, rows of different length compare
    keys = np.arange(1, n_key + 1) if reading.causal else np.full(n_key, n_key)
    found = [
        rank_correlations((probs * keys[:, None].astype(np.float32))[:, content, content], permuted)
        for probs, permuted in zip(data.probs, reading.permuted, strict=False)
    ]
    n_input = len(data.probs)
    rho, partial = (means_left_out(np.array(parts), n_input) for parts in zip(*found, strict=True))
    p = RankCorrelations(rho[0], partial[0]).p
    for head, row_of in enumerate(rows):
        for fold, row in enumerate(row_of):
            row |= {"cosine_rho": rho[fold][head], "cosine_partial": partial[fold][head, 0], "cosine_p": p[head]}


def _chain_rows(data: LayerData, reading: Reading, rows: Sequence[Sequence[Row]]) -> None:
    """From scores to mixing, for all heads: measured, and predicted from the link before and from the weights."""
    keys = chain.rows_and_keys(data.probs.shape[-1], reading.content, reading.causal)
    if data.scores is None or not keys.any() or not all("row_variance_predicted" in row for of in rows for row in of):
        return
    count = keys.sum(axis=1)[keys.any(axis=1)].astype(float)
    found: dict[str, list[Array]] = {}
    for i, (scores, probs) in enumerate(zip(data.scores, data.probs, strict=True)):
        links = chain.measured_links(scores, probs, keys)
        variance, entropy = links["variance"], links["entropy"]
        now = {"row_variance": variance.mean(axis=1), "row_ratio": links["ratio"], "row_entropy": entropy.mean(axis=1)}
        now["row_ratio_from_variance"] = chain.MEDIAN * np.sqrt(variance).mean(axis=1)
        now["row_entropy_from_variance"] = chain.expected_entropy(count, variance).mean(axis=1)
        if data.values is not None and data.outputs is not None:
            own = np.repeat(data.values[i], len(probs) // data.values.shape[1], axis=0)
            now |= {
                "mixing": chain.mixing(own, data.outputs[i], keys),
                "mixing_from_entropy": chain.mixed_by(entropy, count),
            }
        for name, values in now.items():
            found.setdefault(name, []).append(values)
    means = {name: means_left_out(np.array(values), len(data.probs)) for name, values in found.items()}
    for head, row_of in enumerate(rows):
        for fold, row in enumerate(row_of):
            row |= {name: float(values[fold][head]) for name, values in means.items()}
            v = row["row_variance_predicted"]
            entropy = chain.expected_entropy(count, v)
            row |= {
                "temperature": float(np.sqrt(row["row_variance"])),
                "row_ratio_predicted": chain.MEDIAN * float(np.sqrt(v)),
            }
            row |= {
                "row_entropy_predicted": float(entropy.mean()),
                "mixing_predicted": float(chain.mixed_by(entropy, count)),
            }


# --- tokens at a distance --------------------------------------------------------------------------------------------


def information_at_distances(state: Array, reading: Reading) -> tuple[Array, Array]:
    """Mutual information by distance of tokens (n_input, n, dim) at one depth, less that of shuffled pairs.

    Returns it as (n_distance, 1 + n_input), of all inputs and with each left out, and facts (n_distance, 3) by `FACTS`.
    Position means are removed: a position embedding makes tokens depend on each other at any distance.
    """
    tokens = _centred(state[:, reading.content].astype(float))
    subspace = principal_subspace(tokens.reshape(-1, tokens.shape[-1]), N_COMPONENTS)
    projected = subspace.project(tokens)
    rows, facts = [], []
    for r in reading.distances:
        pairs = joined(projected, projected, r)
        null, fitted = _null(pairs, reading.seed, 5), gaussians_left_out(pairs)
        rows.append(_shared(fitted, subspace.dim) - null)
        facts.append([null, fitted.shrinkage, subspace.kept])
    return np.array(rows), np.array(facts)


def _data_rows(data: LayerData, reading: Reading, rows: Sequence[Sequence[Row]]) -> None:
    """How much the inputs vary along the leading directions that each head reads."""
    if data.inputs is None or not data.leading:
        return
    x = data.inputs[:, reading.content].astype(float)
    x = x - x.mean(axis=(0, 1))
    for kind, name in (("q", "data_query"), ("k", "data_key"), ("v", "data_value")):
        n_head, r, d = data.leading[kind].shape
        along = (x @ data.leading[kind].reshape(-1, d).T).reshape(*x.shape[:2], n_head, r)
        for fold in folds(len(x)):
            whole, part = (_variance(without(one, fold)) for one in (x, along))
            share = part.sum(axis=-1) / whole.sum() * d / r if whole.any() else np.full(n_head, np.nan)
            for head, row_of in enumerate(rows):
                row_of[fold][name] = float(share[head * n_head // len(rows)])


def _variance(x: Array) -> Array:
    """Over inputs and tokens, the first two axes."""
    return np.asarray((x**2).mean(axis=(0, 1)) - x.mean(axis=(0, 1)) ** 2)
