"""Embeddings of a vocabulary beside random vectors, and the mixtures of embeddings that come next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.statistics.softmax import entropy_of_sphere, softmax_entropy
from headscape.statistics.tokens import next_token_mixture

__all__ = ["FACTS", "TOP", "describe_embeddings", "mixtures", "neighbour_rows", "one_gram"]

Array = npt.NDArray[Any]
Likely = tuple[Array, Array]
"""Likely next tokens at every position: ids and probabilities (n_token, TOP)."""
TOP = 20
"""Next tokens that make up a mixture."""
DOMINANT = 5
"""Wertich's (2024) number of tokens that may dominate what comes next, with 9 tenths of the probability."""
VOCABULARY = 20_000
"""Embeddings among which nearest neighbours are searched where statistics are taken."""
SAMPLED, ASKED = 1000, 200
"""Tokens whose lengths and entropies are taken, and whose nearest neighbours are searched."""
FACTS = ("mass", "dominated", "hit", "directions", "rank90", "trace_share")
"""Per input: mean mass of the 5 likeliest next tokens, share of positions where it exceeds .9, how often the actual next
token is among them; participation ratio and rank at 90 % of the covariance; its trace over that of all text tokens."""


def describe_embeddings(table: Array, ids: Array, random_state: int = 0) -> dict[str, Array]:
    """Lengths, softmax entropies and nearest neighbours of embeddings (n_vocabulary, dim), each beside random vectors.

    Of sampled tokens of the vocabulary, and of the tokens `ids` of a text; random vectors have the same lengths.
    """
    rng = np.random.default_rng(random_state)
    n, dim = table.shape
    norms = np.linalg.norm(table, axis=1)
    sampled = np.sort(rng.choice(n, min(SAMPLED, n), replace=False))
    rows = table[sampled].astype(float)
    noise = _like(rows, rng)
    in_text = np.unique(ids)
    asked = np.sort(rng.choice(in_text, min(ASKED, len(in_text)), replace=False))
    pool = np.union1d(np.sort(rng.choice(n, min(VOCABULARY, n), replace=False)), asked)
    found = _nearest(table[asked], table[pool], asked[:, None] == pool)
    drawn = _like(table[pool], rng).astype(np.float32)
    random = _nearest(drawn[: len(asked)], drawn, np.eye(len(asked), len(pool), dtype=bool))
    return {
        "dim": np.array([dim]),
        "norms": norms[sampled],
        "norms_text": norms[in_text],
        "entropy": softmax_entropy(rows),
        "entropy_random": softmax_entropy(noise),
        "entropy_predicted": entropy_of_sphere(dim, norms[sampled]),
        "nearest": found[0],
        "nearest_random": random[0],
        "pairs": found[1],
        "pairs_random": random[1],
    }


def _like(rows: Array, rng: np.random.Generator) -> Array:
    """Random vectors as long as the rows."""
    x = rng.standard_normal(rows.shape)
    return np.asarray(x * (np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(x, axis=1, keepdims=True)))


def _nearest(asked: Array, pool: Array, own: Array) -> tuple[Array, Array]:
    """Largest cosine of each asked vector with another of the pool, and its mean cosine with them."""
    unit, others = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30) for x in (asked, pool))
    cosines = unit @ others.T
    mean = (cosines.sum(axis=1) - (cosines * own).sum(axis=1)) / np.maximum((~own).sum(axis=1), 1)
    return np.where(own, -np.inf, cosines).max(axis=1).astype(float), mean.astype(float)


def neighbour_rows(
    table: Array, ids: Array, spelled: Callable[[int], str], words: int = 8, neighbours: int = 5
) -> list[list[str]]:
    """Frequent words among the token ids of a text, each with the nearest tokens of the vocabulary and their cosines."""
    tokens = [int(token) for token, _ in Counter(ids.ravel().tolist()).most_common()]
    chosen = [token for token in tokens if spelled(token).isalpha() and len(spelled(token)) > 3][:words]
    size = np.maximum(np.linalg.norm(table, axis=1), 1e-30)
    rows = []
    for token in chosen:
        cosines = table @ (table[token] / size[token]) / size
        cosines[token] = -np.inf
        near = np.argsort(-cosines, kind="stable")[:neighbours]
        rows.append([spelled(token), ", ".join(f"{spelled(int(i))} {cosines[i]:.2f}" for i in near)])
    return rows


def one_gram(ids: Array, n_inputs: int) -> list[Likely]:
    """Likely next tokens in the first inputs, by counting which token follows which in all others (Wertich 2024).

    Ids are (n_input, n_token), of two inputs at least. For a token that does not occur there, all their tokens are
    counted. Missing places have probability 0.
    """
    out = []
    for i in range(min(n_inputs, len(ids))):
        others = np.delete(ids, i, axis=0)
        after: dict[int, Counter[int]] = {}
        for row in others:
            for a, b in zip(row[:-1].tolist(), row[1:].tolist(), strict=True):
                after.setdefault(a, Counter())[b] += 1
        every = Counter(others.ravel().tolist())
        tokens = np.zeros((ids.shape[1], TOP), dtype=np.int64)
        probs = np.zeros((ids.shape[1], TOP))
        for k, token in enumerate(ids[i].tolist()):
            counts = after.get(token, every)
            best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP]
            tokens[k, : len(best)] = [t for t, _ in best]
            probs[k, : len(best)] = np.array([c for _, c in best]) / sum(counts.values())
        out.append((tokens, probs))
    return out


def mixtures(likely: Sequence[Likely], ids: Array, table: Array, content: slice) -> tuple[Array, Array]:
    """Facts (n_input, n_fact) by `FACTS` and mean spectra (n_input, TOP), each of trace 1, of next-token mixtures."""
    whole = float(table[ids.ravel()].astype(float).var(axis=0).sum())
    facts, spectra = [], []
    for (tokens, probs), own in zip(likely, ids, strict=False):
        rows, shapes = [], []
        for k in np.arange(len(own))[content][:-1]:
            spectrum = next_token_mixture(table[tokens[k]], probs[k]).spectrum
            trace = float(spectrum.sum())
            mass = float(probs[k, :DOMINANT].sum())
            hit = float(own[k + 1] in tokens[k, :DOMINANT][probs[k, :DOMINANT] > 0])
            if trace > 0:
                shape = spectrum / trace
                rank = 1 + int(np.searchsorted(np.cumsum(shape), 0.9 - 1e-12))
                rows.append([mass, float(mass > 0.9), hit, 1 / float((shape**2).sum()), rank, trace / whole])
                shapes.append(shape)
            else:  # one token is certain
                rows.append([mass, float(mass > 0.9), hit, np.nan, 0.0, 0.0])
        facts.append(np.nanmean(rows, axis=0))
        spectra.append(np.mean(shapes, axis=0) if shapes else np.full(TOP, np.nan))
    return np.array(facts), np.array(spectra)
