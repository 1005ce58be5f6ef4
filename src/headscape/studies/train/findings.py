"""What the training comparison found, in sentences. The claims are those of Masumura and Taki (2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscape.hopfield.networks import LEARNED_START, base_arm
from headscape.intervals import Interval, mean_interval
from headscape.results import Finding
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge

if TYPE_CHECKING:
    from headscape.studies.train.result import TrainResult

__all__ = ["findings", "usable"]

COLLAPSED = 0.01
"""Share of pairs with a cosine of .99 or more from which a layer counts as having aligned tokens."""
FEW = 3
"""Number of seeds below which intervals are of little use."""


def findings(r: TrainResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    if "standard" not in r.arms:
        return _cautions(r)
    found = [_usable(r)]
    found += [_against(r, arm) for arm in r.arms if base_arm(arm).stretch == 1 and arm != "standard"]
    found += [_given_skip(r)] if {"both", "skip"} <= set(r.arms) else []
    found += [_control(r, arm) for arm in r.arms if base_arm(arm).stretch != 1]
    found += [_wanted(r)] if "learned" in r.arms else []
    found += [_tokens(r)] if "both" in r.arms else []
    return [*found, *_cautions(r)]


def usable(r: TrainResult) -> Judgement:
    """Whether standard attention clearly beats the strongest baseline: otherwise comparisons are meaningless."""
    own, name, reached = mean_interval(r.scores("standard")), r.strongest, r.baselines[r.strongest]
    return judge(own, above=reached, control=name) if r.images else judge(own, below=reached, control=name)


def _usable(r: TrainResult) -> Finding:
    verdict = usable(r)
    opening = verdict.opening(
        "the networks use attention enough to be compared",
        "the networks are no better than a baseline without attention",
    )
    beaten = ", ".join(f"{name} {value:.4g}" for name, value in r.baselines.items())
    own = mean_interval(r.scores("standard"))
    costs = [mean_interval(r.scores("standard", lesion) - r.scores("standard")) for lesion in ("uniform", "removed")]
    text = f"""
        {opening}: standard attention reaches {own} {r.unit}, baselines {beaten}. Making its attention uniform changes that
        by {costs[0]}, removing its output by {costs[1]}.
    """
    return Finding(text, "arms", verdict, "train.usable")


def _control(r: TrainResult, arm: str) -> Finding:
    change, control = r.difference(arm), "standard attention, paired by seed"
    verdict = judge(change, above=0.0, control=control) if r.images else judge(change, below=0.0, control=control)
    opening = verdict.opening(
        "a known gain is detected, so the comparison can show one", "a known gain is reversed in this comparison"
    )
    text = f"{opening}: {base_arm(arm).about} changes the score by {change} {r.unit}."
    return Finding(text, "scores", verdict, "train.control")


def _wanted(r: TrainResult) -> Finding:
    """Whether training raises a' where it is free to."""
    rows = r.heads[r.heads["arm"] == "learned"]
    final = rows[rows["step"] == rows["step"].max()]
    mean = mean_interval(final.groupby("seed")["alpha"].mean())
    verdict = judge(mean, above=LEARNED_START, control="where it started")
    opening = verdict.opening("training raises a' where it is learned", "training lowers a' where it is learned")
    most = final.groupby(["layer", "head"])["alpha"].mean()
    text = f"""
        {opening}: mean over layers and heads {mean} from {LEARNED_START}; the largest of a head is {most.max():.2g}, in layer
        {most.idxmax()[0] + 1}.
    """
    return Finding(text, "learned", verdict, "train.learned")


def _better(r: TrainResult, change: Interval, control: str) -> tuple[Judgement, str]:
    """Whether a change is for the better, and the word for it."""
    verdict = judge(change, above=0.0, control=control) if r.images else judge(change, below=0.0, control=control)
    if usable(r).verdict != "holds":
        verdict = cannot_tell(f"standard attention is not shown to beat the {r.strongest}: {usable(r).why}", change)
    word = {"holds": "better", "does not hold": "worse", "cannot tell": "not shown to differ"}[verdict.verdict]
    return verdict, word


def _against(r: TrainResult, arm: str) -> Finding:
    change = r.difference(arm)
    verdict, word = _better(r, change, "standard attention, paired by seed")
    about = base_arm(arm).about
    own, base = (mean_interval(r.scores(name)).value for name in (arm, "standard"))
    text = f"""
        {about[0].upper()}{about[1:]} is {word}: {own:.4g} {r.unit} against {base:.4g} with standard attention, a change of
        {change} over seeds, paired by seed.
    """
    return Finding(
        text, "scores", verdict, None if arm == "learned" else f"train.{arm}"
    )  # of that what it learns counts


def _given_skip(r: TrainResult) -> Finding:
    change = r.difference("both", "skip")
    verdict, word = _better(r, change, "the scaled skip alone, paired by seed")
    text = f"Given the scaled skip, the hidden state is {word}: it changes the score by {change} {r.unit}."
    return Finding(text, "scores", verdict, "train.hidden_given_skip")


def _tokens(r: TrainResult) -> Finding:
    """Whether aligned tokens that standard attention has are gone; by seed, in the layer that has most of them."""
    worst = r.last[r.last["layer"] > 0].groupby(["arm", "seed"])["aligned"].max()
    standard, both = (mean_interval(worst[arm]) for arm in ("standard", "both"))
    there = judge(standard, above=COLLAPSED, control="a group of aligned tokens")
    verdict = judge(both, below=COLLAPSED, control="a group of aligned tokens")
    if usable(r).verdict != "holds":
        verdict = cannot_tell(f"standard attention is not shown to beat the {r.strongest}", both)
    elif there.verdict != "holds":
        verdict = cannot_tell(f"no group of aligned tokens to remove: {there.why}", both)
    rest = f"""
        : of {r.pairs}, at most {standard.scaled(100)} % have a cosine of 0.99 or more in any layer with standard
        attention, and {both.scaled(100)} % with Modern Hopfield Attention.
    """
    return on_claim("train.tokens", verdict, rest, "similarity")


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
        found.append(Finding("Fewer than three seeds: the intervals are wide or do not exist.", "scores"))
    return found
