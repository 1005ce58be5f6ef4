"""Roles: how far each head follows a pattern that researchers know by name, and what chance would give."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.errors import InputError
from headscape.tensor import AttentionTensor, present_pairs

__all__ = [
    "BLOCK_ROLES",
    "DISPLAY",
    "ENOUGH",
    "MIXED",
    "PROBED",
    "ROLES",
    "BatchRoles",
    "assign_roles",
    "batch_roles",
    "find_role",
    "role_name",
    "role_scores",
    "role_table",
]

ROLES = {
    "induction": "attends to what followed the same token before",
    "previous": "attends to the previous token",
    "duplicate": "attends to earlier occurrences of the same token",
    "first": "attends to the first token (attention sink)",
    "self": "attends to its own position",
    "next": "attends to the next token",
    "punctuation": "attends to punctuation and separators after the first token",
    "local": "attends within a window of a few tokens",
    "uniform": "spreads its attention evenly",
}
"""The roles, strongest evidence first; each is a column of scores, a share of the attention from 0 to 1."""
DISPLAY = {
    "previous": "previous token",
    "duplicate": "duplicate token",
    "first": "first token (sink)",
    "next": "next token",
    "punctuation": "punctuation or separator",
    "local": "local window",
}
"""The roles as researchers call them, where that is another name."""
BLOCK_ROLES = {  # of a pooled tensor, where single tokens cannot be distinguished
    "own block": "attends to its own block of tokens",
    "block before": "attends to the block before its own",
    "first block": "attends to the first block (an attention sink lies there)",
    "even blocks": "spreads its attention evenly over blocks; single rows may be uneven",
}
ALIASES = {
    **{shown: role for role, shown in DISPLAY.items()},
    **{"sink": "first", "first token": "first", "same": "duplicate", "separator": "punctuation"},
}
PROBED = ("induction", "duplicate")
"""Measured on repeated random tokens if the model is available; otherwise on the text itself."""
MIXED = "mixed"
ENOUGH = 0.4  # share of the attention a pattern must hold to give a head its name
BEYOND = 0.2  # by how much it must exceed chance
EVEN = 0.95  # share of the largest possible entropy that counts as even
WINDOW = 8  # tokens back that count as local, the query's own included
FloatArray = npt.NDArray[np.float64]
Pattern = npt.NDArray[np.bool_]


def find_role(name: str) -> str:
    """The role a name stands for.

    >>> find_role("sink"), find_role("previous token")
    ('first', 'previous')
    """
    asked = name.strip().lower().replace("_", " ")
    asked = ALIASES.get(asked, asked)
    if asked not in ROLES and asked not in BLOCK_ROLES:
        raise InputError(f"no role is called {name!r}; there are {', '.join([*ROLES, *BLOCK_ROLES])}")
    return asked


def role_name(role: str) -> str:
    """A role as a reader should see it; anything else is returned unchanged.

    >>> role_name("first"), role_name("induction")
    ('first token (sink)', 'induction')
    """
    return DISPLAY.get(role, role)


@dataclass(frozen=True)
class BatchRoles:
    """Scores of the heads of one batch by role, (n_head,) each, and what attention at random would score."""

    scores: dict[str, FloatArray]
    chance: dict[str, float]


def batch_roles(X: AttentionTensor) -> BatchRoles:
    """Score every head of one batch of probabilities by the known patterns.

    A score is the mean share of a query's attention that lies on the keys of the pattern, over the queries that have
    such keys; chance is that share for attention spread at random over the present keys. Induction and duplicate look
    at tokens that were in the text before; tokens that are all different have neither. uniform is the entropy of a row
    over that of an even row, averaged over rows with at least two present keys, and has no chance level.

    A pooled tensor shows only patterns of blocks; even blocks is the entropy a row would have if it were even
    within blocks, over that of an even row (so no less than `uniform` would be).
    """
    if X.pooled:
        return _block_roles(X)
    present = X.present
    scores, chance = {}, {}
    for name, pattern in _patterns(X).items():
        scores[name] = _mean_mass(X.values, pattern & present)
        chance[name] = _chance(pattern & present, present)
    scores["uniform"] = _evenness(X.values, present)
    return BatchRoles(scores, chance)


def role_scores(X: AttentionTensor) -> pd.DataFrame:
    """The scores of `batch_roles` as a table, one row per head, with `positional` beside them.

    positional is the share of the variance of the present entries that their offset (query - key) alone explains.
    """
    frame = pd.DataFrame(X.heads, columns=["block", "layer", "head"])
    for name, scores in batch_roles(X).scores.items():
        frame[name] = scores
    return frame.assign(positional=positional(X))


def _offset(X: AttentionTensor) -> npt.NDArray[np.intp]:
    """How far each key lies behind its query."""
    n_query, n_key, _ = X.shape
    return np.arange(n_query)[:, None] + (n_key - n_query if X.mask == "causal" else 0) - np.arange(n_key)


def _patterns(X: AttentionTensor) -> dict[str, Pattern]:
    n_query, n_key, _ = X.shape
    offset = _offset(X)
    keys, queries = np.array(X.key_tokens, dtype=object), np.array(X.query_tokens, dtype=object)
    named = len(set(X.key_tokens)) < n_key  # tokens that are all different (positions, patches) have no repeats
    nothing = np.zeros((n_query, n_key), dtype=bool)
    same = (queries[:, None] == keys[None, :]) & (offset != 0) if named else nothing
    followed = nothing.copy()
    followed[:, 1:] = (same & (offset > 0))[:, :-1]  # the key after an earlier occurrence
    separators = (
        np.array([_is_separator(token) for token in X.key_tokens]) & named & (np.arange(n_key) > 0)
    )  # [CLS] is a sink
    later = np.broadcast_to(np.arange(n_query)[:, None] > 0, nothing.shape)
    return {
        "induction": followed & (offset > 0),
        "previous": offset == 1,
        "duplicate": same,
        "first": later & (np.arange(n_key) == 0)[None, :],
        "self": offset == 0,
        "next": offset == -1,
        "punctuation": np.broadcast_to(separators, nothing.shape),
        "local": np.abs(offset) < WINDOW,
    }


def _is_separator(token: str) -> bool:
    """Punctuation, symbols, white space, and special tokens such as [SEP] or <|im_start|>."""
    text = token.strip()
    if not text:
        return True
    if len(text) > 2 and (text[0], text[-1]) in (("[", "]"), ("<", ">")):
        return True
    return all(unicodedata.category(c)[0] in "PSZC" for c in text)


def _mean_mass(values: npt.NDArray[np.float32], chosen: Pattern) -> FloatArray:
    """Mean over the queries that have any chosen key of the attention on chosen keys: (n_head,); NaN if none has."""
    rows = chosen.any(axis=1)
    if not rows.any():
        return np.full(values.shape[2], np.nan)
    mass = np.einsum("qkh,qk->qh", values[rows], chosen[rows].astype(np.float32), optimize=True)
    return np.asarray(mass.mean(axis=0, dtype=np.float64))


def _chance(chosen: Pattern, present: Pattern) -> float:
    """The same for attention that is spread at random over the present keys."""
    rows = chosen.any(axis=1)
    return float((chosen.sum(axis=1) / present.sum(axis=1).clip(1))[rows].mean()) if rows.any() else float("nan")


def _block_roles(X: AttentionTensor) -> BatchRoles:
    """Patterns of blocks: their places are compared by their middles, so that memories and cross attention fit too."""
    assert X.query_bounds is not None
    assert X.key_bounds is not None
    mass, present = X.mass(), X.present
    offset = _block_offset(X)
    patterns = {
        "own block": offset == 0,
        "block before": offset == 1,
        "first block": (offset[:, :1] > 0) & (np.arange(mass.shape[1]) == 0)[None, :],
    }
    scores = {name: _mean_mass(mass, chosen & present) for name, chosen in patterns.items()}
    chance = {name: _chance(chosen & present, present) for name, chosen in patterns.items()}
    keys = present_pairs(X.mask, X.query_bounds, X.key_bounds) / np.diff(X.query_bounds)[:, None]
    scores["even blocks"] = _block_evenness(mass, keys)
    return BatchRoles(scores, chance)


def _block_offset(X: AttentionTensor) -> npt.NDArray[np.intp]:
    assert X.query_bounds is not None
    assert X.key_bounds is not None
    back = X.key_bounds[-1] - X.query_bounds[-1] if X.mask == "causal" else 0
    middle = (X.query_bounds[1:] + X.query_bounds[:-1]) // 2 + back
    own = np.clip(np.searchsorted(X.key_bounds, middle, side="right") - 1, 0, len(X.key_bounds) - 2)
    return own[:, None] - np.arange(len(X.key_bounds) - 1)[None, :]


def _block_evenness(mass: npt.NDArray[np.float32], keys: FloatArray) -> FloatArray:
    """Sum of m log(k / m) over the k keys of each block, over the log of all keys, averaged over query blocks."""
    total = keys.sum(axis=1)
    rows = total > 1
    if not rows.any():
        return np.full(mass.shape[2], np.nan)
    m, k = mass[rows].astype(np.float64), keys[rows][:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = np.where(m > 0, m * np.log(k / m), 0.0).sum(axis=1)
    return np.asarray((entropy / np.log(total[rows])[:, None]).mean(axis=0))


def _evenness(values: npt.NDArray[np.float32], present: Pattern) -> FloatArray:
    counts = present.sum(axis=1)
    rows = counts > 1
    if not rows.any():
        return np.full(values.shape[2], np.nan)
    p = values[rows].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(p > 0, p * np.log(p), 0.0).sum(axis=1)
    return np.asarray((entropy / np.log(counts[rows])[:, None]).mean(axis=0))


def positional(X: AttentionTensor) -> FloatArray:
    """Variance between offsets over total variance, among present entries: (n_head,); 0 for a constant head."""
    offset, present = _block_offset(X) if X.pooled else _offset(X), X.present
    groups = (offset - offset.min())[present]
    entries = X.values[present].astype(np.float64)  # (n_present, n_head)
    sizes = np.bincount(groups)
    used = sizes > 0
    sums = np.zeros((len(sizes), entries.shape[1]))
    np.add.at(sums, groups, entries)
    means = sums[used] / sizes[used, None]
    centre = entries.mean(axis=0)
    between = (sizes[used, None] * (means - centre) ** 2).sum(axis=0)
    total = ((entries - centre) ** 2).sum(axis=0)
    return np.asarray(np.divide(between, total, out=np.zeros_like(total), where=total > 0))


def _holds(role: str, score: FloatArray, chance: FloatArray) -> Pattern:
    """Whether a score is enough for a role's name, and enough beyond chance."""
    with np.errstate(invalid="ignore"):
        if role in ("uniform", "even blocks"):
            return np.asarray(score >= EVEN)
        return np.asarray((score >= ENOUGH) & (score >= chance + BEYOND))


def role_table(batches: Sequence[BatchRoles], probes: dict[str, BatchRoles] | None = None) -> pd.DataFrame:
    """Scores by head and role over batches, in long form: number of the head, role, score, chance, share, enough.

    score and chance are means over the batches that can show the pattern; share is the share of them in which the head
    holds it. `probes` are measurements made for one role (induction on repeated random tokens) and take the place of
    its scores. enough says whether the mean gives the head the role.
    """
    rows = []
    for role in batches[0].scores:
        given = [probes[role]] if probes and role in probes else batches
        scores = np.array([batch.scores[role] for batch in given])
        chance = np.array([batch.chance.get(role, np.nan) for batch in given])
        known = ~np.isnan(scores).all(axis=1)
        if not known.any():
            continue
        held = np.array([_holds(role, score, c) for score, c in zip(scores[known], chance[known], strict=True)])
        mean, level = scores[known].mean(axis=0), float(chance[known].mean())
        facts = {
            "score": mean,
            "chance": level,
            "share": held.mean(axis=0),
            "enough": _holds(role, mean, np.array(level)),
        }
        rows.append(pd.DataFrame({"number": np.arange(len(mean)), "role": role, **facts}))
    return pd.concat(rows, ignore_index=True)


def assign_roles(table: pd.DataFrame, n_heads: int) -> list[str]:
    """Name each head in a `role_table` by its strongest role, `mixed` if none holds.

    Induction and duplicate-token scores come first where they hold, and a head is local only if nothing more exact is
    true of it.
    """
    names = [MIXED] * n_heads
    held = table[table["enough"]]
    strength = held["score"] + held["role"].map(_rank)
    for number, role in zip(
        *held.assign(strength=strength).sort_values("strength")[["number", "role"]].T.to_numpy(), strict=True
    ):
        names[int(number)] = str(role)  # the strongest comes last
    return names


def _rank(role: str) -> float:
    return {"induction": 4.0, "duplicate": 4.0, "uniform": 2.0, "even blocks": 2.0, "local": -2.0}.get(role, 0.0)


RoleFunction = Callable[[npt.NDArray[np.float32], Sequence[str]], npt.ArrayLike]
"""A user's own role: a function from maps (n_query, n_key, n_head) and key tokens to scores (n_head,)."""
