"""Roles: how far each head follows a known pattern, and which role a folder of heads has too much of."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import hypergeom

from headscape.tensor import AttentionTensor, present_pairs
from headscape.tree import PartitionTree

__all__ = ["BLOCK_ROLES", "MIXED", "ROLES", "FolderRole", "assign_roles", "name_folders", "role_scores"]

ROLES = {
    "self": "attends to its own position",
    "previous": "attends to the token before",
    "next": "attends to the token after",
    "first": "attends to the first token (a sink)",
    "same": "attends to other occurrences of the same token",
    "punctuation": "attends to punctuation and separators",
    "uniform": "spreads its attention evenly",
    "induction": "attends to what followed the same token before",
    "duplicate": "attends to the same token of the first copy",
}
BLOCK_ROLES = {  # of a pooled tensor, where single tokens cannot be told apart
    "own block": "attends to its own block of tokens",
    "block before": "attends to the block before its own",
    "first block": "attends to the first block (a sink lies there)",
    "even blocks": "spreads its attention evenly over blocks; single rows may be uneven",
}
MIXED = "mixed"
ENOUGH = 0.4  # share of the attention a pattern must hold to give a head its name
EVEN = 0.95  # share of the largest possible entropy that counts as even


def _is_separator(token: str) -> bool:
    """Punctuation, symbols, white space, and special tokens such as [SEP] or <|im_start|>."""
    text = token.strip()
    if not text:
        return True
    if len(text) > 2 and (text[0], text[-1]) in (("[", "]"), ("<", ">")):
        return True
    return all(unicodedata.category(c)[0] in "PSZC" for c in text)


def _mean_mass(values: npt.NDArray[np.float32], chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Mean over the queries that have any chosen key of the attention on chosen keys: (n_head,); NaN if none has."""
    rows = chosen.any(axis=1)
    if not rows.any():
        return np.full(values.shape[2], np.nan)
    mass = np.einsum("qkh,qk->qh", values[rows], chosen[rows].astype(np.float32), optimize=True)
    return np.asarray(mass.mean(axis=0, dtype=np.float64))


def role_scores(X: AttentionTensor) -> pd.DataFrame:
    """Score every head of one batch by the known patterns; one row a head.

    self, previous, next, first, same and punctuation are the mean share of a query's attention that lies on such keys,
    over the queries that have one (the first query is left out of `first`). uniform is the entropy of a row over that
    of an even row, averaged over rows with at least two present keys. positional is the share of the variance of the
    present entries that their offset (query - key) alone explains. Scores of pre-softmax tensors make no sense as
    shares of attention: pass probabilities.

    Of a pooled tensor the exact patterns cannot be seen and are left out; own block, block before and first block are
    the mean share of the attention that lies on such blocks, even blocks is the entropy a row would have if it were
    even within blocks, over that of an even row (so no less than `uniform` would be), and positional is about blocks.
    """
    if X.pooled:
        return _with_heads(X, _block_scores(X))
    values = X.values
    n_query, n_key, _ = X.shape
    present = X.present
    offset = np.arange(n_query)[:, None] + (n_key - n_query if X.mask == "causal" else 0) - np.arange(n_key)
    tokens = np.array(X.key_tokens, dtype=object)
    queries = np.array(X.query_tokens, dtype=object)
    named = len(set(X.key_tokens)) < n_key  # tokens that are all different (positions, patches) have no repeats
    separators = np.array([_is_separator(token) for token in X.key_tokens]) & named
    later = np.broadcast_to(np.arange(n_query)[:, None] > 0, present.shape)
    patterns = {
        "self": offset == 0,
        "previous": offset == 1,
        "next": offset == -1,
        "first": later & (np.arange(n_key) == 0)[None, :],
        "same": (queries[:, None] == tokens[None, :]) & (offset != 0) if named else np.zeros(present.shape, bool),
        "punctuation": np.broadcast_to(separators, present.shape),
    }
    columns = {name: _mean_mass(values, chosen & present) for name, chosen in patterns.items()}
    columns["uniform"] = _evenness(values, present)
    columns["positional"] = _offset_share(values, present, offset)
    return _with_heads(X, columns)


def _with_heads(X: AttentionTensor, columns: dict[str, npt.NDArray[np.float64]]) -> pd.DataFrame:
    frame = pd.DataFrame(columns)
    for i, name in enumerate(("block", "layer", "head")):
        frame.insert(i, name, [head[i] for head in X.heads])
    return frame


def _block_scores(X: AttentionTensor) -> dict[str, npt.NDArray[np.float64]]:
    """Patterns of blocks: their places are compared by their middles, so that memories and cross attention fit too."""
    assert X.query_bounds is not None
    assert X.key_bounds is not None
    mass, present = X.mass(), X.present
    back = X.key_bounds[-1] - X.query_bounds[-1] if X.mask == "causal" else 0
    middle = (X.query_bounds[1:] + X.query_bounds[:-1]) // 2 + back
    own = np.clip(np.searchsorted(X.key_bounds, middle, side="right") - 1, 0, len(X.key_bounds) - 2)
    key = np.arange(mass.shape[1])
    offset = own[:, None] - key[None, :]
    patterns = {
        "own block": offset == 0,
        "block before": offset == 1,
        "first block": (own > 0)[:, None] & (key == 0)[None, :],
    }
    columns = {name: _mean_mass(mass, chosen & present) for name, chosen in patterns.items()}
    keys = present_pairs(X.mask, X.query_bounds, X.key_bounds) / np.diff(X.query_bounds)[:, None]
    columns["even blocks"] = _block_evenness(mass, keys)
    columns["positional"] = _offset_share(X.values, present, offset)
    return columns


def _block_evenness(mass: npt.NDArray[np.float32], keys: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sum of m log(k / m) over the k keys of each block, over the log of all keys, averaged over query blocks."""
    total = keys.sum(axis=1)
    rows = total > 1
    if not rows.any():
        return np.full(mass.shape[2], np.nan)
    m, k = mass[rows].astype(np.float64), keys[rows][:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = np.where(m > 0, m * np.log(k / m), 0.0).sum(axis=1)
    return np.asarray((entropy / np.log(total[rows])[:, None]).mean(axis=0))


def _evenness(values: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    counts = present.sum(axis=1)
    rows = counts > 1
    if not rows.any():
        return np.full(values.shape[2], np.nan)
    p = values[rows].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(axis=1)
    return np.asarray((entropy / np.log(counts[rows])[:, None]).mean(axis=0))


def _offset_share(
    values: npt.NDArray[np.float32], present: npt.NDArray[np.bool_], offset: npt.NDArray[np.intp]
) -> npt.NDArray[np.float64]:
    """Between-offset variance over total variance, among present entries; 0 for a constant head."""
    groups = (offset - offset.min())[present]
    entries = values[present].astype(np.float64)  # (n_present, n_head)
    sizes = np.bincount(groups)
    used = sizes > 0
    sums = np.zeros((len(sizes), entries.shape[1]))
    np.add.at(sums, groups, entries)
    means = sums[used] / sizes[used, None]
    centre = entries.mean(axis=0)
    between = (sizes[used, None] * (means - centre) ** 2).sum(axis=0)
    total = ((entries - centre) ** 2).sum(axis=0)
    return np.asarray(np.divide(between, total, out=np.zeros_like(total), where=total > 0))


def assign_roles(scores: pd.DataFrame) -> list[str]:
    """Name each head by its strongest pattern, `mixed` where none holds enough of the attention.

    Induction and duplicate-token scores, where known, come first: they are measured on a sequence made for them, on
    which a head must look back by a given distance. A head is `uniform` when its rows are nearly even.
    """
    names = []
    every = ("self", "previous", "next", "first", "same", "punctuation", *BLOCK_ROLES)
    even = "uniform" if "uniform" in scores else "even blocks"
    shares = [name for name in every if name in scores and name != even]
    for _, row in scores.iterrows():
        probes = {name: row[name] for name in ("induction", "duplicate") if name in scores}
        found = max(probes, key=lambda name: probes[name], default=None)
        if found is not None and probes[found] >= ENOUGH:
            names.append(found)
            continue
        strongest = max(shares, key=lambda name: -1.0 if np.isnan(row[name]) else row[name])
        if row[even] >= EVEN:
            names.append(even)
        elif row[strongest] >= ENOUGH:
            names.append(strongest)
        else:
            names.append(MIXED)
    return names


@dataclass(frozen=True)
class FolderRole:
    """A folder of the head tree and the role that over-represents it."""

    level: int
    folder: int
    size: int
    role: str
    count: int
    p: float


def name_folders(tree: PartitionTree, roles: Sequence[str], alpha: float = 0.01) -> list[FolderRole]:
    """Name the folders (not the root, not single heads) by their most over-represented role.

    p is the chance of at least so many heads of the role in a folder of that size drawn without replacement
    (hypergeometric), uncorrected; folders whose smallest p is above `alpha` stay nameless, and `mixed` is no name.
    """
    labels = np.array(roles)
    folders = tree.folders()
    named = []
    for start, stop, level in zip(folders.start, folders.stop, folders.level, strict=True):
        size = int(stop - start)
        if level == 0 or size < 2:
            continue
        members = tree.order[start:stop]
        best: FolderRole | None = None
        for role in sorted(set(labels[members]) - {MIXED}):
            count, total = int((labels[members] == role).sum()), int((labels == role).sum())
            p = float(hypergeom.sf(count - 1, len(labels), total, size))
            if best is None or p < best.p:
                best = FolderRole(int(level), int(tree.level(int(level))[members[0]]), size, str(role), count, p)
        if best is not None and best.p <= alpha:
            named.append(best)
    return named
