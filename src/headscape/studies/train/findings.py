"""What the training comparison says, in sentences. The claims are those of Masumura and Taki (2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscape.hopfield.networks import ARMS
from headscape.intervals import Interval, mean_interval
from headscape.results import Finding
from headscape.verdicts import Judgement, cannot_tell, judge

if TYPE_CHECKING:
    from headscape.studies.train.result import TrainResult

__all__ = ["findings"]

COLLAPSED = 0.01
"""Share of pairs with a cosine of .99 or more from which a layer counts as having aligned tokens."""
FEW = 3
"""Seeds below which intervals say little."""


def findings(r: TrainResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = [_against(r, arm) for arm in ("both", "hidden", "skip") if {arm, "standard"} <= set(r.arms)]
    found += [_given_skip(r)] if {"both", "skip"} <= set(r.arms) else []
    found += [_tokens(r)] if {"both", "standard"} <= set(r.arms) else []
    return [*found, *_cautions(r)]


def _better(r: TrainResult, change: Interval, control: str) -> tuple[Judgement, str]:
    """Whether a change is for the better, and the word for it."""
    verdict = judge(change, above=0.0, control=control) if r.images else judge(change, below=0.0, control=control)
    word = {"holds": "better", "does not hold": "worse", "cannot tell": "not shown to differ"}[verdict.verdict]
    return verdict, word


def _against(r: TrainResult, arm: str) -> Finding:
    change = r.difference(arm)
    verdict, word = _better(r, change, "standard attention, paired by seed")
    about = ARMS[arm].about
    own, base = (mean_interval(r.scores(name)).value for name in (arm, "standard"))
    text = (
        f"{about[0].upper()}{about[1:]} is {word}: {own:.4g} {r.unit} against {base:.4g} with standard attention, a change of "
        f"{change} over seeds, paired by seed."
    )
    return Finding(text, "scores", verdict, f"train.{arm}")


def _given_skip(r: TrainResult) -> Finding:
    change = r.difference("both", "skip")
    verdict, word = _better(r, change, "the scaled skip alone, paired by seed")
    text = f"Given the scaled skip, the hidden state is {word}: it changes the score by {change} {r.unit}."
    return Finding(text, "scores", verdict, "train.hidden_given_skip")


def _tokens(r: TrainResult) -> Finding:
    """Whether aligned tokens that standard attention has are gone; by seed, in the layer that has most of them."""
    worst = r.similarity[r.similarity["layer"] > 0].groupby(["arm", "seed"])["aligned"].max()
    standard, both = (mean_interval(worst[arm]) for arm in ("standard", "both"))
    there = judge(standard, above=COLLAPSED, control="a group of aligned tokens")
    verdict = judge(both, below=COLLAPSED, control="a group of aligned tokens")
    if there.verdict != "holds":
        verdict = cannot_tell(f"no group of aligned tokens to remove: {there.why}")
    opening = {
        "holds": "Modern Hopfield Attention removes the group of aligned tokens",
        "does not hold": "Modern Hopfield Attention does not remove the group of aligned tokens",
        "cannot tell": "Whether Modern Hopfield Attention removes aligned tokens cannot be told",
    }[verdict.verdict]
    text = (
        f"{opening}: of {r.pairs}, at most {standard.scaled(100)} % have a cosine of 0.99 or more in any layer with standard "
        f"attention, and {both.scaled(100)} % with Modern Hopfield Attention."
    )
    return Finding(text, "similarity", verdict, "train.tokens")


def _cautions(r: TrainResult) -> list[Finding]:
    rates = sorted(r.settings["rates"])
    found = []
    edge = [f"{a} ({r.rate(a):g})" for a in r.arms if len(rates) > 1 and r.rate(a) in (rates[0], rates[-1])]
    if edge:
        text = f"The best learning rate lies at the edge of those tried for {', '.join(edge)}: try more."
        found.append(Finding(text, "rates"))
    diverged = r.trials[r.trials["diverged"]]
    if len(diverged):
        which = ", ".join(f"{row.arm} at {row.rate:g}" for row in diverged.itertuples())
        found.append(Finding(f"Runs whose loss did not stay finite: {which}.", "rates"))
    if len(r.settings["seeds"]) < FEW:
        found.append(Finding("Fewer than three seeds: the intervals say little or do not exist.", "scores"))
    return found
