"""The tokens of the Gaussian study: their embeddings, and the mixture of embeddings that comes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headscape.geometry.diffusion import one_blas_thread
from headscape.statistics.softmax import entropy_of_sphere, softmax_entropy
from headscape.statistics.tokens import next_token_mixture

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.samples import Sample

__all__ = ["FACTS", "cosines_of", "embedding_table", "embeddings", "likely_next", "mixtures", "one_gram"]

Array = npt.NDArray[Any]
TOP = 20
"""Next tokens that make up a mixture."""
DOMINANT = 5
"""The thesis' number of tokens that may dominate what comes next, with 9 tenths of the probability."""
VOCABULARY = 20_000
"""Rows of the embedding table among which neighbours are looked for when statistics are taken."""
SAMPLED = 1000
ASKED = 200
SHOWN = 8
NEIGHBOURS = 5
FACTS = ("mass", "dominated", "hit", "directions", "rank90", "trace_share")
"""Of the mixtures of one input: mean mass of the 5 likeliest tokens, share of positions where it exceeds .9, how often
the token that came is among them; participation ratio and rank at 90 % of the covariance; its trace over that of all
the tokens of the text."""


def embedding_table(model: Model) -> Array | None:
    """The input embeddings (n_vocabulary, dim), None for a model without a vocabulary."""
    module: Any = model.module
    if model.images is not None or model.task == "module" or not hasattr(module, "get_input_embeddings"):
        return None
    table = getattr(module.get_input_embeddings(), "weight", None)
    return None if table is None else table.detach().float().cpu().numpy()


def cosines_of(vectors: Array) -> Array:
    """Cosines of all pairs of vectors (..., n, dim), (..., n, n)."""
    size = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = vectors / np.where(size > 0, size, 1)
    return np.asarray(unit @ unit.swapaxes(-1, -2))


# --- embeddings (E11) ------------------------------------------------------------------------------------------------


def embeddings(table: Array, ids: Array, tokenizer: Any, seed: int) -> tuple[dict[str, Array], list[list[str]]]:
    """Lengths, softmax entropies and nearest neighbours of embeddings, each beside random vectors of equal length.

    Returns arrays over sampled tokens and rows (token, its neighbours with cosines) of tokens of the text.
    """
    rng = np.random.default_rng(seed)
    n, dim = table.shape
    norms = np.linalg.norm(table, axis=1)
    sampled = np.sort(rng.choice(n, min(SAMPLED, n), replace=False))
    rows = table[sampled].astype(float)
    noise = _like(rows, rng)
    in_text = np.unique(ids)
    asked = np.sort(rng.choice(in_text, min(ASKED, len(in_text)), replace=False))
    pool = np.union1d(np.sort(rng.choice(n, min(VOCABULARY, n), replace=False)), asked)
    with one_blas_thread():
        found = _nearest(table[asked], table[pool], asked[:, None] == pool)
        drawn = _like(table[pool], rng).astype(np.float32)
        random = _nearest(drawn[: len(asked)], drawn, np.eye(len(asked), len(pool), dtype=bool))
    arrays = {
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
    return arrays, _neighbour_rows(table, ids, tokenizer)


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


def _neighbour_rows(table: Array, ids: Array, tokenizer: Any) -> list[list[str]]:
    """Frequent words of the text with the nearest tokens of the whole vocabulary."""
    if tokenizer is None:
        return []
    chosen: list[int] = []
    for token, _ in Counter(ids.ravel().tolist()).most_common():
        word = str(tokenizer.decode([token])).strip()
        if word.isalpha() and len(word) > 3 and not any(token == c for c in chosen):
            chosen.append(int(token))
        if len(chosen) == SHOWN:
            break
    size = np.maximum(np.linalg.norm(table, axis=1), 1e-30)
    rows = []
    for token in chosen:
        cosines = table @ (table[token] / size[token]) / size
        cosines[token] = -np.inf
        near = np.argsort(-cosines, kind="stable")[:NEIGHBOURS]
        shown = ", ".join(f"{str(tokenizer.decode([int(i)])).strip()} {cosines[i]:.2f}" for i in near)
        rows.append([str(tokenizer.decode([token])).strip(), shown])
    return rows


# --- what comes next -------------------------------------------------------------------------------------------------


def likely_next(model: Model, samples: Sequence[Sample]) -> list[tuple[Array, Array]]:
    """The model's likeliest next tokens at every position: ids and probabilities (n_token, TOP), a pair a sample."""
    import torch

    from headscape.attention.sites import run

    out = []
    for sample in samples:
        with torch.no_grad():
            logits = run(model, sample.arguments).logits[0].float()
            best = torch.topk(logits, TOP, dim=-1)
            probs = (best.values - torch.logsumexp(logits, dim=-1, keepdim=True)).exp()
        out.append((best.indices.cpu().numpy(), probs.double().cpu().numpy()))
    return out


def one_gram(ids: Array, n_samples: int) -> list[tuple[Array, Array]]:
    """The same for the first inputs, by counting which token follows which in all others; the thesis' table.

    Ids are (n_input, n_token), of two inputs at least. A token that does not occur there is followed by their tokens at
    large. Missing places have probability 0.
    """
    out = []
    for i in range(min(n_samples, len(ids))):
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


def mixtures(likely: Sequence[tuple[Array, Array]], ids: Array, table: Array, content: slice) -> tuple[Array, Array]:
    """Facts (n_input, n_fact) and mean spectra (n_input, TOP), each of trace 1, of the mixtures that come next."""
    everything = table[ids.ravel()].astype(float)
    whole = float(everything.var(axis=0).sum())
    facts, spectra = [], []
    for (tokens, probs), own in zip(likely, ids, strict=False):
        places = np.arange(len(own))[content][:-1]
        rows, shapes = [], []
        for k in places:
            spectrum = next_token_mixture(table[tokens[k]], probs[k]).spectrum
            trace = float(spectrum.sum())
            mass = float(probs[k, :DOMINANT].sum())
            hit = float(own[k + 1] in tokens[k, :DOMINANT][probs[k, :DOMINANT] > 0])
            if trace > 0:
                shape = spectrum / trace
                rank = 1 + int(np.searchsorted(np.cumsum(shape), 0.9 - 1e-12))
                rows.append([mass, float(mass > 0.9), hit, 1 / float((shape**2).sum()), rank, trace / whole])
                shapes.append(shape)
            else:  # one token is sure to come
                rows.append([mass, float(mass > 0.9), hit, np.nan, 0.0, 0.0])
        facts.append(np.nanmean(rows, axis=0))
        spectra.append(np.mean(shapes, axis=0) if shapes else np.full(TOP, np.nan))
    return np.array(facts), np.array(spectra)
