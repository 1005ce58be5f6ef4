"""Find the heads of a role, known by name or given as a function, in a run, a capture or a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.roles import BLOCK_ROLES, PROBED, RoleFunction, batch_roles, find_role, role_table
from headscape.runs import Run
from headscape.studies.organize.heads import probed, probed_roles
from headscape.studies.organize.result import OrganizeResult
from headscape.studies.organize.units import shuffled_rows
from headscape.studies.work.folder import newest_by_block
from headscape.studies.work.how import Progress, Say, Steps, Work
from headscape.studies.work.models import Loader, models_of
from headscape.tensor import AttentionTensor, HeadId

if TYPE_CHECKING:
    import torch

    from headscape.attention.models import Model

__all__ = ["find_heads", "heads_by_role"]

SHUFFLES = 19
"""Draws of shuffled rows that a head must beat to have a role given as a function: one head of noise in twenty does."""

NEEDS = {
    "induction": "tokens that repeat, or the model itself (model=)",
    "duplicate": "tokens that repeat, or the model itself (model=)",
    "punctuation": "punctuation or separators among the tokens",
    "next": "a network that looks ahead",
    **dict.fromkeys(BLOCK_ROLES, "a pooled capture"),
}
"""What a role needs in addition to probabilities."""

CIRCUITS = {
    **dict.fromkeys(("induction", "duplicate"), ("copying", "score_pair")),
    **dict.fromkeys(("previous", "self", "next", "local"), ("score_distance",)),
    **{"first": ("score_key", "sink_features"), "punctuation": ("score_key",)},
}
"""Of a head's QK and OV circuit, what bears on a role, where it was measured: the columns of `organize`."""


def find_heads(
    source: Run | Capture | AttentionTensor | OrganizeResult | list[OrganizeResult] | str | Path,
    role: str | RoleFunction = "induction",
    top: int | None = 10,
    *,
    block: str | None = None,
    model: Model | torch.nn.Module | bool | None = True,
    random_state: int = 0,
) -> pd.DataFrame:
    """The heads that follow a pattern most, best first.

    Parameters
    ----------
    source
        A run (its newest organized result is used, which may have seen the model), a capture, one attention tensor, or
        what `organize` returned.
    role
        One of `headscape.roles.ROLES` (induction, previous token, duplicate token, first token or sink, self, next
        token, punctuation or separator, local window, uniform); or a function of maps (n_query, n_key, n_head) and key
        tokens that returns a score per head.
    top
        How many; None for all.
    block
        Which block of an encoder-decoder; by default all.
    model
        Shows a decoder repeated random tokens for induction and duplicate token, and reads its weights for copying.
        True takes the one that a capture in memory was made from, while it still exists, or loads that of a run
        which is not organized yet; without one the inputs themselves are looked at. Results have been measured before.

    Returns
    -------
    DataFrame
        block, layer, head, score (mean over batches), chance (the score of attention spread at random; for your own
        function its mean score on shuffled rows, of which a head must beat all 19), share (of the batches in which
        the head holds the role), has_role (by its mean score; for your own function, in most batches). Before it, what of
        the head's circuits bears on the role, where the model was there: copying (OV) for repeated tokens, and of an
        organized run score_distance, score_key or score_pair (QK) and sink_features.

    >>> maps = np.zeros((4, 4, 2)); maps[1:, 0, 0] = 1; maps[:, :, 1] = 0.25; maps[0, 0, 0] = 1
    >>> hs.find_heads(hs.AttentionTensor(maps), "sink")[["layer", "head", "score", "has_role"]]
       layer  head  score  has_role
    0      0     0   1.00      True
    1      0     1   0.25     False
    """
    if top is not None:
        integer("top", top, low=1)
    check_seed(random_state)
    if not callable(role) and not isinstance(role, str):
        raise InputError(f"role must be a name or a function, not {role!r}")
    if callable(role):
        found = pd.concat([_own(X, role, random_state) for X in _tensors(source, block)])
        found = found.groupby(["block", "layer", "head"], sort=False, as_index=False).mean()
        found["has_role"] = found["share"] > 0.5
    else:
        found = _named(_measured(source, [find_role(role)], block, model, random_state, Work()), find_role(role))
    found = _best_first(found)
    return found if top is None else found.head(top)


def heads_by_role(
    source: Run | str | Path,
    roles: Iterable[str],
    *,
    block: str | None = None,
    model: Model | torch.nn.Module | bool | None = True,
    random_state: int = 0,
    progress: Progress | None = None,
) -> dict[str, pd.DataFrame]:
    """What `find_heads` returns for each of several roles, measured once; one that nothing here can show has no entry.

    `InputError` if that is all of them.
    """
    asked = [find_role(role) for role in roles]
    parts = _measured(
        source, asked, block, model, random_state, Work() if progress is None else Work(progress=progress)
    )
    found: dict[str, pd.DataFrame] = {}
    missing = []
    for role in asked:
        try:
            found[role] = _best_first(_named(parts, role))
        except InputError as error:
            missing.append(error)
    if not found and missing:
        raise missing[0]
    return found


def _best_first(found: pd.DataFrame) -> pd.DataFrame:
    return found.sort_values("score", ascending=False, kind="stable", ignore_index=True)


Parts = Sequence[tuple[pd.DataFrame, pd.DataFrame]]
"""Per block: its heads, and its table of roles."""


def _measured(source: Any, roles: Sequence[str], block: str | None, model: Any, seed: int, work: Work) -> Parts:
    """All roles of all heads, kept by an organized result or measured now; the model is asked if one of `roles` needs it."""
    results = _results_of(source)
    if results:
        if block is not None and block not in (blocks := [result.block for result in results]):
            raise InputError(f"the organized heads are of block {', '.join(blocks)}, not {block!r}")
        return [(result.heads, result.roles) for result in results if block in (None, result.block)]
    names = _blocks_of(source, block)
    scores = {}
    if set(PROBED) & set(roles):
        steps = work.stage("asking the model", 1)
        scores = _probe(source, model, seed, work.warn)
        steps.one()
    n_input = 1 if isinstance(source, AttentionTensor) else len(open_capture(source))
    steps = work.stage("reading maps", len(names) * n_input)
    return [_table_of(source, name, scores, steps) for name in names]


def _named(parts: Parts, role: str) -> pd.DataFrame:
    """Score, chance and share of every head for a role that has a name."""
    heads = pd.concat([heads for heads, _ in parts], ignore_index=True)
    sizes = np.cumsum([0, *(len(heads) for heads, _ in parts)])
    table = pd.concat([t.assign(number=t["number"] + sizes[i]) for i, (_, t) in enumerate(parts)])
    table = table[table["role"] == role] if len(table) else table
    if not len(table):
        raise InputError(
            f"nothing here can show the role {role!r}: it needs {NEEDS.get(role, 'probabilities')}; give such an input, or "
            "ask for another role, such as 'first'"
        )
    found = heads.iloc[table["number"]][["block", "layer", "head"]].reset_index(drop=True)
    for name in ("score", "chance", "share"):
        found[name] = table[name].to_numpy()
    for name in [name for name in CIRCUITS.get(role, ()) if name in heads]:
        found[name] = heads[name].iloc[table["number"]].to_numpy()
    return found.assign(has_role=table["enough"].to_numpy(dtype=bool))


def _results_of(source: Any) -> list[OrganizeResult]:
    """The organized results of a source, one per block, that know roles."""
    if isinstance(source, OrganizeResult):
        return [source]
    if isinstance(source, list) and all(isinstance(one, OrganizeResult) for one in source):
        return source  # the blocks of an encoder-decoder
    if isinstance(source, (Capture, AttentionTensor)):
        return []
    run = source if isinstance(source, Run) else Run.open(source)
    found = [kept.result(run, OrganizeResult) for kept in newest_by_block(run, OrganizeResult.study)]
    return [result for result in found if len(result.roles)]


def _blocks_of(source: Any, block: str | None) -> Sequence[str | None]:
    if isinstance(source, AttentionTensor):
        return [None]
    captured = open_capture(source)
    return captured.chosen(block)


def _probe(source: Any, model: Any, seed: int, warn: Say) -> dict[str, dict[HeadId, float]]:
    """What is measured on the model, by column; nothing without a model that reads text."""
    own = None if isinstance(model, bool) else model
    if model is True and not isinstance(source, AttentionTensor):
        without = "induction is measured on the inputs alone"
        own, _ = models_of(open_capture(source), True, None, Loader(say=warn), seed, without, warn)
    if own is None:
        return {}
    from headscape.attention.models import Model, wrap_module

    try:
        return probed(own if isinstance(own, Model) else wrap_module(own), seed)
    except InputError:
        return {}


def _table_of(
    source: Any, block: str | None, scores: Mapping[str, Mapping[HeadId, float]], steps: Steps
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The heads of a block and their roles, one batch at a time."""
    own: Sequence[HeadId] = []
    batches = []
    for X in _tensors(source, block):
        if X.kind != "probs":
            raise InputError("roles are about probabilities; these are scores before softmax")
        own = X.heads
        batches.append(batch_roles(X))
        steps.one()
    missing = [head for of in scores.values() for head in own if head not in of]
    if missing:
        raise InputError(f"the model has no head {missing[0]}: it is not the one that was captured")
    columns = {name: np.array([of[head] for head in own]) for name, of in scores.items()}
    heads = pd.DataFrame(own, columns=list(HeadId._fields))
    if "copying" in columns:
        heads["copying"] = columns["copying"]
    return heads, role_table(batches, probed_roles(columns))


def _tensors(source: Any, block: str | None) -> Iterator[AttentionTensor]:
    """The maps of every batch, one at a time."""
    if isinstance(source, AttentionTensor):
        yield source
        return
    if isinstance(source, OrganizeResult):
        raise InputError("a role given as a function needs the maps; give the run or the capture")
    captured = open_capture(source)
    for name in captured.chosen(block):
        yield from (captured.tensor(i, name, captured.kind()) for i in range(len(captured)))


def _own(X: AttentionTensor, function: RoleFunction, seed: int) -> pd.DataFrame:
    """Scores of one batch by a user's function, and on its rows shuffled: whether a head is above all of these."""

    def scored(tensor: AttentionTensor) -> npt.NDArray[np.float64]:
        return np.asarray(function(tensor.values, tensor.key_tokens), dtype=float)

    score = scored(X)
    if score.shape != (len(X.heads),):
        raise InputError(f"the role's function returned shape {score.shape}; a score per head is ({len(X.heads)},)")
    draws = np.array([scored(shuffled_rows(X, seed + draw)) for draw in range(SHUFFLES)])
    frame = pd.DataFrame(X.heads, columns=list(HeadId._fields))
    return frame.assign(score=score, chance=draws.mean(axis=0), share=(score > draws.max(axis=0)).astype(float))
