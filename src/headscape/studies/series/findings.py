"""What a series found, in sentences: which roles begin when, and whether the network still changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headscape.intervals import Interval, exactly, mean_interval, mean_of_pairs
from headscape.results import Finding
from headscape.roles import MIXED, ROLES
from headscape.studies.series.result import SeriesResult
from headscape.verdicts import judge, of_different

__all__ = ["findings"]

NAMED = 5  # heads listed in a sentence


def findings(r: SeriesResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    known = [role for role in r.role_names if role in ROLES and role != "local"]
    return [*(_birth(r, role) for role in known if role == "induction" or _ends(r, role)), _settled(r), _moving(r)]


def _ends(r: SeriesResult, role: str) -> bool:
    return role in set(r.births()["role"])


def _birth(r: SeriesResult, role: str) -> Finding:
    """Which heads hold a role at the end, and between which checkpoints they got it."""
    births = r.births()
    rows = births[births["role"] == role].sort_values("score", ascending=False)
    scores = r.scores[:, list(r.role_names).index(role)].mean(axis=1)  # (n_step, n_head)
    chance = r.chance[list(r.role_names).index(role)]
    control = "" if np.isnan(chance) else f"; attention spread at random would score {chance:.2f}"
    if not len(rows):
        t, h = np.unravel_index(np.argmax(scores), scores.shape)
        best = f"{r.heads['layer'][h]}.{r.heads['head'][h]} with {scores[t, h]:.2f} at step {r.steps[t]}"
        return Finding(f"No head has the role '{role}' at the end: the best is {best}{control}.", f"scores-{role}")
    listed = ", ".join(
        f"{row.layer}.{row.head} ({row.score:.2f}, {_when(row.after, row.by)})" for row in rows.head(NAMED).itertuples()
    )
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    many = "1 head holds" if len(rows) == 1 else f"{len(rows)} heads hold"
    text = f"{many} the role '{role}' at the end: {listed}{more}. Such a head {ROLES[role]}{control}."
    return Finding(text, f"scores-{role}")


def _when(after: Any, by: Any) -> str:
    return "from the first step seen" if pd.isna(after) else f"since steps {after} to {by}"


def _settled(r: SeriesResult) -> Finding:
    """How many heads have kept their role over the second half of the series."""
    half = r.steps[len(r.steps) // 2]
    since = [step for step in r.since() if step is not None]
    kept = sum(step <= half for step in since)
    nothing = sum(name == MIXED for name in r.named[-1])
    text = f"""
        {kept} of the {len(since)} heads that end with a role have had it since step {half} or before;
        {nothing} of {len(r.heads)} heads end without one.
    """
    return Finding(text, "heads-over-training")


def _between_inputs(r: SeriesResult) -> Interval:
    """How far the scores of the last checkpoint differ between two inputs, over all pairs; n counts inputs, not pairs."""
    scores = r.scores[-1].swapaxes(0, 1)  # (n_batch, n_role, n_head)
    apart = np.array([np.abs(scores - one).mean(axis=(1, 2)) for one in scores])
    return mean_of_pairs(apart).within(0, np.inf)


def _moving(r: SeriesResult) -> Finding:
    """Whether the scores still change by more, at the end, than they differ between two inputs."""
    last, noise = mean_interval(r.change[-1]), _between_inputs(r)
    last = last if r.change[-1].any() else exactly(0.0)  # the same network twice, whatever the input
    verdict = judge(last, below=noise, control="one checkpoint on other input")
    verdict = of_different(r.scores[-1].swapaxes(0, 1), verdict)
    opening = verdict.opening(
        "the heads have settled by the end of the series", "the heads still change at the end of the series"
    )
    most = int(np.argmax(r.moved.mean(axis=1)))
    text = f"""
        {opening}: between the last two checkpoints a role score changes by {last} on average, and between two inputs by
        {noise}. Maps moved most between steps {r.steps[most]} and {r.steps[most + 1]} (Hellinger distance {r.moved[most].mean():.2f}).
    """
    return Finding(text, "change", verdict)
