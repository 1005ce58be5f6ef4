"""What the training comparison found, in sentences. The claims are those of Masumura and Taki (2025)."""

from __future__ import annotations

import pandas as pd

from headscape.hopfield.networks import LEARNED_START, base_arm
from headscape.intervals import Interval, mean_interval, student_interval
from headscape.papers import claims
from headscape.results import Finding
from headscape.studies.train.result import TrainResult
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge

__all__ = ["findings", "usable"]

COLLAPSED = 0.01
"""Share of pairs with a cosine of .99 or more from which a layer counts as having aligned tokens."""
MOVED = 0.05
"""Change of entropy by layer, beyond that between seeds, from which it counts as changed; 1 is the largest entropy."""
FEW = 3
"""Number of seeds below which intervals are of little use."""


def findings(r: TrainResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    if "standard" not in r.arms:
        return [*(_failed(r, arm) for arm in r.failed), *_cautions(r)]
    found = [_usable(r)]
    found += [_against(r, arm) for arm in r.arms if base_arm(arm).stretch == 1 and arm != "standard"]
    found += [_failed(r, arm) for arm in r.failed]
    found += [_given_skip(r, both, skip) for both in r.kinds("both") if (skip := _its_skip(both)) in r.arms]
    found += [_control(r, arm) for arm in r.arms if base_arm(arm).stretch != 1]
    found += [_wanted(r)] if "learned" in r.arms else []
    for arm in r.kinds("both"):
        found += [_tokens(r, arm), _entropy(r, arm)]
    return [*found, *_cautions(r)]


def usable(r: TrainResult) -> Judgement:
    """Whether standard attention clearly beats the strongest baseline: otherwise comparisons are meaningless."""
    return _beyond(r, r.score("standard"), r.baselines[r.strongest], r.rival)


def _beyond(r: TrainResult, score: Interval, other: float, control: str) -> Judgement:
    """Whether a score is better than another: higher of images, lower of text."""
    return judge(score, **{"above" if r.images else "below": other}, control=control)


def _unit(r: TrainResult) -> str:
    """The unit of scores, to stand behind an interval."""
    return r.unit.replace("%", "percent")


def _usable(r: TrainResult) -> Finding:
    verdict = usable(r)
    beaten = ", ".join(f"{name} {value:.4g}" for name, value in r.baselines.items())
    own = r.score("standard")
    costs = [mean_interval(r.scores("standard", lesion) - r.scores("standard")) for lesion in ("uniform", "removed")]
    rest = f"""
        : standard attention reaches {own} {_unit(r)}, baselines {beaten}. Making its attention uniform changes that by
        {costs[0]}, removing its output by {costs[1]}.
    """
    return on_claim("train.usable", verdict, rest, "arms")


def _control(r: TrainResult, arm: str) -> Finding:
    change = r.difference(arm)
    verdict = _better(r, change, "standard attention, paired by seed")
    rest = f": {base_arm(arm).about} changes the score by {change} {_unit(r)}."
    return on_claim("train.control", verdict, rest, "scores")


def _wanted(r: TrainResult) -> Finding:
    """Whether training raises a' where it is free to."""
    rows = r.heads[r.heads["arm"] == "learned"]
    final = rows[rows["step"] == rows["step"].max()]
    mean = mean_interval(final.groupby("seed")["alpha"].mean())
    verdict = _unless_useless(r, judge(mean, above=LEARNED_START, control="where it started"), mean)
    most = final.groupby(["layer", "head"])["alpha"].mean()
    rest = f"""
        : mean over layers and heads {mean} from {LEARNED_START}; the largest of a head is {most.max():.2g}, in layer
        {most.idxmax()[0] + 1}.
    """
    return on_claim("train.learned", verdict, rest, "learned")


def _better(r: TrainResult, change: Interval, control: str) -> Judgement:
    """Whether a change is for the better."""
    return _unless_useless(r, _beyond(r, change, 0.0, control), change)


def _unless_useless(r: TrainResult, verdict: Judgement, statistic: Interval) -> Judgement:
    """The verdict, if standard attention beats its baselines: of networks that do not use attention nothing is said.

    Why it does not is said once, by `_usable`.
    """
    if usable(r).verdict == "holds":
        return verdict
    return cannot_tell(f"standard attention is not shown to beat the {r.rival}", statistic)


def _which(arm: str) -> str:
    """The alphas of an arm of a grid."""
    _, _, alphas = arm.partition(" ")
    return f" ({alphas})" if alphas else ""


def _against(r: TrainResult, arm: str) -> Finding:
    change = r.difference(arm)
    verdict = _better(r, change, "standard attention, paired by seed")
    own, base = (r.score(name).value for name in (arm, "standard"))
    rest = f"""
        : {own:.4g} {_unit(r)} against {base:.4g} with standard attention, a change of {change} over seeds, paired by seed.
    """
    return _on_arm(arm, verdict, rest, "scores")


def _failed(r: TrainResult, arm: str) -> Finding:
    """An arm that diverged."""
    rest = f": it diverged and is not compared. Reason: {r.failed[arm]}."
    if "standard" not in r.arms:
        return Finding(f"{base_arm(arm).title}{rest}", "arms")
    return _on_arm(arm, cannot_tell("the arm diverged"), rest, "arms")


def _on_arm(arm: str, verdict: Judgement, rest: str, figure: str) -> Finding:
    """Whether an arm is better than standard attention."""
    claim = f"train.{arm.partition(' ')[0]}"
    if claim in claims() and arm != "learned":  # of that what it learns counts
        return on_claim(claim, verdict, rest, figure, which=_which(arm))
    better, worse = (f"{base_arm(arm).about} is {word} than standard attention" for word in ("better", "worse"))
    return Finding(f"{verdict.opening(better, worse)}{rest.strip()}", figure, verdict)


def _its_skip(both: str) -> str:
    """The arm that has the scaled skip of another, and no hidden state."""
    return " ".join(["skip", *(part for part in both.split(" ") if part.startswith("a="))])


def _given_skip(r: TrainResult, both: str, skip: str) -> Finding:
    change = r.difference(both, skip)
    verdict = _better(r, change, "the scaled skip alone, paired by seed")
    rest = f": it changes the score by {change} {_unit(r)}."
    return on_claim("train.hidden_given_skip", verdict, rest, "scores", which=_which(both))


def _tokens(r: TrainResult, arm: str) -> Finding:
    """Whether aligned tokens that standard attention has are gone; by seed, in the layer that has most of them."""
    worst = r.last[r.last["layer"] > 0].groupby(["arm", "seed"])["aligned"].max()
    standard, both = (student_interval(worst[name]).within(0, 1) for name in ("standard", arm))
    there = judge(standard, above=COLLAPSED, control="a group of aligned tokens")
    verdict = judge(both, below=COLLAPSED, control="a group of aligned tokens")
    if there.verdict != "holds":
        verdict = cannot_tell(f"no group of aligned tokens to remove: {there.why}", both)
    verdict = _unless_useless(r, verdict, both)
    rest = f"""
        : in the layer that has most of them, the percentage of {r.pairs} with a cosine of 0.99 or more is
        {standard.scaled(100)} with standard attention and {both.scaled(100)} with {base_arm(arm).about}.
    """
    figure = "violins" if arm == r.kinds("both")[0] else "similarity"
    return on_claim("train.tokens", verdict, rest, figure, which=_which(arm))


def _entropy(r: TrainResult, arm: str) -> Finding:
    """Whether entropies by layer differ from those of standard attention by more than two seeds of that differ."""
    own, base = r.entropies(arm), r.entropies("standard")
    shared = [seed for seed in own.index if seed in base.index]
    moved = {seed: float((own.loc[seed] - base.loc[seed]).abs().mean()) for seed in shared}
    others = {s: (base.drop(index=s) - base.loc[s]).abs().mean(axis=1).mean() for s in shared}  # NaN for one seed
    excess = student_interval([moved[seed] - others[seed] for seed in shared])
    verdict = judge(excess, below=MOVED, control="a change of entropy, beyond that between seeds")
    verdict = _unless_useless(r, verdict, excess)
    between = mean_interval(list(others.values())).value
    beside = f", two seeds of standard attention by {between:.2g}" if len(base) > 1 else ""
    rest = f"""
        : by layer its mean entropy (1 is uniform) is {_layers(own)} with {base_arm(arm).about} and {_layers(base)} with
        standard attention. They differ by {mean_interval(list(moved.values())).value:.2g} per layer{beside}.
    """
    return on_claim("train.entropy", verdict, rest, "entropy", which=_which(arm))


def _layers(by_seed: pd.DataFrame) -> str:
    """The lowest and highest layer's mean, with their numbers."""
    mean = by_seed.mean().to_numpy()
    return f"{mean.min():.2f} (layer {mean.argmin() + 1}) to {mean.max():.2f} (layer {mean.argmax() + 1})"


def _cautions(r: TrainResult) -> list[Finding]:
    rates = sorted(r.settings["rates"])
    found = []
    edge = [f"{a} ({r.rate(a):g})" for a in r.arms if len(rates) > 1 and r.rate(a) in (rates[0], rates[-1])]
    if unsure := _unsure(r):
        found.append(Finding(unsure, "rates"))
    if edge:
        text = f"The best learning rate lies at the edge of those tried for {', '.join(edge)}: try more."
        found.append(Finding(text, "rates"))
    diverged = r.trials[r.trials["diverged"] & r.trials["arm"].isin(r.arms)]
    if len(diverged):
        which = ", ".join(f"{row.arm} at {row.rate:g}" for row in diverged.itertuples())
        found.append(Finding(f"Runs that diverged: {which}.", "rates"))
    if len(r.settings["seeds"]) < FEW:
        found.append(Finding("Fewer than three seeds: the intervals are wide or do not exist.", "scores"))
    return found


def _unsure(r: TrainResult) -> str:
    """What the search for learning rates leaves open: rates that differ by less than seeds, runs that learned little."""
    search = r.trials[~r.trials["kept"] & ~r.trials["diverged"]]
    if r.settings["finalists"] > 1 or search.empty:
        return ""
    close = []
    for arm, tries in search.groupby("arm", sort=False):
        runs = r.trials[(r.trials["arm"] == arm) & r.trials["chosen"] & ~r.trials["diverged"]]
        two = tries.nsmallest(2, "valid_loss")
        if len(two) > 1 and len(runs) > 1 and two["valid_loss"].diff().iloc[1] < runs["valid_loss"].std():
            close.append(f"{arm} ({' and '.join(f'{rate:g}' for rate in two['rate'])})")
    reached, sign = search[search["arm"] == "standard"]["score"], 1 if r.images else -1
    behind = (sign * reached).max() < sign * r.baselines[r.strongest]
    short = f", which do not reach the {r.rival}" if behind else ""
    if not close and not short:
        return ""
    text = f"Learning rates were chosen by one seed in runs of {r.settings['search_steps']} steps{short}."
    if close:
        text += f" The two best differ by less than seeds do for {', '.join(close)}."
    return f"{text} `--finalists 2` runs the two best with all seeds."
