"""What the collapse study found, in sentences: rank, the four variants, entropy and the bounds.

The claims are those of Masumura and Taki (2025, Modern Hopfield Attention); rank collapse is Dong et al. (2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from headscape.collapse.bounds import CONDITION
from headscape.collapse.similarity import ALIKE
from headscape.intervals import Interval, exactly, geometric_interval, mean_interval, share_interval
from headscape.results import Finding
from headscape.studies.collapse.result import CollapseResult, entropy_column, four_of
from headscape.studies.work.sentences import of_enough, on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, of_different, strictest

__all__ = ["findings"]

COLLAPSED = 0.01
"""Relative residual below which tokens count as collapsed."""
GONE = 1e-6
"""Relative residual that a network in float32 cannot distinguish from 0."""
PEAK = 0.98
"""A mode above this (the last of 100 bins) is a population of tokens that are all alike."""
PAPER = "Masumura and Taki 2025"
UNTRAINED = "the claim is about networks trained with a hidden state; this one was trained without, and it was inserted"
CONTROLS = {"shuffled": "with shuffled inputs", "random": "with random weights"}


def findings(r: CollapseResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = []
    if r.residual is not None:
        found += [_rank(r), _population(r)]
        found += [_removed(r)] if "hidden" in r.variants else []
        found += [_work(r, weights) for weights in ("", "random") if set(four_of(weights)) <= set(r.variants)]
    if r.entropy is not None:
        found.append(_entropy(r))
    return [*found, *_bounds(r), *(Finding(note) for note in r.notes)]


def _judge(r: CollapseResult, statistic: Interval, **rule: Any) -> Judgement:
    """`judge`, if there are enough inputs and none repeats."""
    own, asked = r.residuals("standard"), int(r.settings.get("asked", r.settings["batches"]))
    return of_enough(len(own), asked, of_different(own, judge(statistic, **rule)))


def _rank(r: CollapseResult) -> Finding:
    assert r.rank is not None
    values = r.residuals("standard")
    fall = mean_interval(np.log10(values[:, -1] / values[:, 0]))
    # what is lost in round-off lies between 0 and that: a bound, and no estimate
    most = float(values[:, -1].max())
    last = Interval(most, 0.0, most, len(values)) if r.is_round_off("standard") else geometric_interval(values[:, -1])
    verdict = strictest(
        _judge(r, last, below=COLLAPSED, control="collapsed"),
        _judge(r, fall, below=0.0, control="decades since the first layer"),
    )
    beside = [f"{r.interval(name)} {words}" for name, words in CONTROLS.items() if name in r.variants]
    rest = (
        f"(rank collapse, Dong et al. 2021): their relative residual goes from {r.interval('standard', 0).value:.2g} "
        f"before the first layer to {r.interval('standard')} after the last"
        + "".join(f", {part}" for part in beside)
        + f"; collapsed is below {COLLAPSED:g}. The effective rank goes from {r.rank[0, :, 0].mean():.3g} to "
        f"{r.rank[0, :, -1].mean():.3g}."
    )
    return on_claim("collapse.rank", verdict, rest, "residual")


def _population(r: CollapseResult) -> Finding:
    peaks = {
        name: (r.alike_by_input(name, "mode") > PEAK).mean(axis=1)
        for name in ("standard", "random")
        if name in r.variants
    }
    own = share_interval(peaks["standard"], step=1.0)  # the layers of an input go together
    verdict = _judge(r, own, above=0.5, control="half of the layers")
    if verdict.verdict == "holds":
        verdict = cannot_tell("control missing: random weights", verdict.statistic)
        if "random" in peaks:
            more = share_interval(peaks["standard"] - peaks["random"], step=1.0, low=-1.0)
            verdict = _judge(r, more, above=0.0, control="random weights")
    shares = {name: float(np.mean([s.share for s in r.alike(name)[1:]])) for name in r.variants}
    unlike = ""
    if r.different is not None:
        unlike = f" ({np.mean([s.share for s in r.alike('standard', True)[1:]]):.2%} of pairs of different tokens)"
    rest = (
        f": the percentage of layers in which the cosines of pairs of tokens have their mode above {PEAK:g} is "
        f"{own.scaled(100)} ({PAPER}: all layers of the networks they trained). On average "
        f"{shares['standard']:.2%} of pairs have a cosine of {ALIKE:g} or more{unlike}; before the first layer {r.alike('standard')[0].share:.2%}"
        + "".join(f", {shares[name]:.2%} {words}" for name, words in CONTROLS.items() if name in r.variants)
        + "."
    )
    return on_claim("collapse.population", verdict, rest, "similarity")


def _removed(r: CollapseResult) -> Finding:
    before, after = (r.alike_by_input(name, "share").mean(axis=1) for name in ("standard", "hidden"))
    text = f"""
        We cannot tell from this model whether training with a hidden state removes tokens that are alike ({PAPER}).
        With a hidden state inserted (a' = {r.settings["alpha_hidden"]:g}, no training), the share of such pairs goes
        from {before.mean():.2%} to {after.mean():.2%}, mean over layers, a change of
        {mean_interval(after - before).scaled(100)} points.
    """
    return Finding(text, "similarity-hopfield", cannot_tell(UNTRAINED), "collapse.removed")


def _work(r: CollapseResult, weights: str) -> Finding:
    """Which of skip and hidden state keeps tokens apart: the one that moves the last residual further, in decades."""
    names = four_of(weights)
    skip, hidden, bare, bare_hidden = (r.interval(name) for name in names)
    s0, s1, n0, _ = (np.log10(r.residuals(name)[:, -1]) for name in names)
    by_skip, by_hidden = (_moved(r, names[0], other) for other in (names[2], names[1]))
    alone = _moved(r, names[2], names[3], signed=True)
    further = abs(s1 - s0) - abs(s0 - n0)
    verdict = _judge(r, mean_interval(further), above=0.0, control="decades of the skip, paired by input")
    lost = [r.is_round_off(name) for name in names[:3]]
    if any(lost):
        verdict = cannot_tell("last residuals are round-off, so how far they were moved is not known")
    most = float(further.max())
    if lost == [False, False, True] and most < 0:  # the skip moved it by more than that: a bound, and no estimate
        control = "decades of the skip, paired by input; at most that, since without a skip only round-off is left"
        verdict = _judge(r, exactly(most, len(further)), above=0.0, control=control)
    rest = f"""
        ({PAPER} credit the hidden state): the last residual
        is {skip} with the model's skip and {bare} without it; with a hidden state {hidden} and {bare_hidden}. The skip
        moves it by {by_skip} decades, the hidden state beside a skip by {by_hidden}, and without one by {alone}. Without
        a skip the residual falls below {GONE:g} {_gone(r, names[2])}, with a hidden state {_gone(r, names[3])}.
    """
    figure = "residual-cells-random" if weights else "residual-cells"
    return on_claim(f"collapse.work{'_random' if weights else ''}", verdict, rest, figure)


def _moved(r: CollapseResult, one: str, other: str, signed: bool = False) -> str:
    """By how many decades the last residuals of two variants differ; at least so many where one of them is round-off.

    Signed: by how many the second is larger.
    """
    apart = np.log10(r.residuals(other)[:, -1] / r.residuals(one)[:, -1])
    lost = r.is_round_off(one) + r.is_round_off(other)
    if lost == 2:
        whole = r.round_off(one).all() and r.round_off(other).all()
        return f"an unknown amount ({'both are round-off' if whole else 'inputs of both are round-off'})"
    if lost:
        return f"at least {abs(apart).min():.3g}"
    return str(mean_interval(apart if signed else abs(apart)))


def _gone(r: CollapseResult, variant: str) -> str:
    """After which layer the differences between tokens are gone."""
    below = np.flatnonzero(r.residuals(variant).mean(axis=0) < GONE)
    return f"after layer {below[0]}" if len(below) else f"nowhere in {r.n_layers} layers"


def _entropy(r: CollapseResult) -> Finding:
    assert r.entropy is not None
    column = r.heads["entropy"]
    beside = [
        f"{r.heads[entropy_column(name)].mean():.2f} {words}" for name, words in CONTROLS.items() if name in r.variants
    ]
    text = (
        f"Attention has {mean_interval(np.nanmean(r.entropy[0], axis=1)).within(0, 1)} of the largest possible entropy, mean over heads "
        f"({column.min():.2f} to {column.max():.2f})"
        + "".join(f", {part}" for part in beside)
        + f"; {int((column < 0.1).sum())} of {len(column)} heads are below 0.1."
    )
    if "hidden" not in r.variants:
        return Finding(text, "entropy")
    change = mean_interval(np.nanmean(r.entropy[r.at("hidden")] - r.entropy[0], axis=1))
    text += f" An inserted hidden state changes it by {change}; {PAPER} see no change in networks trained with one."
    return Finding(text, "entropy", cannot_tell(UNTRAINED), "collapse.entropy")


def _bounds(r: CollapseResult) -> list[Finding]:
    if r.causal:
        text = "Causal attention has no bound: a masked key makes D infinite, so neither the printed nor the repaired "
        return [Finding(f"{text}inequality says anything about this model.")]
    if not len(r.bounds):
        return []
    met = r.bounds[r.bounds["spread"] <= CONDITION]
    broken = int((~met["keeps_repaired"]).sum()), int((~r.bounds["keeps_anywhere"]).sum())
    verdict = judge(exactly(sum(broken), len(r.bounds)), below=1.0, control="violations beyond round-off")
    if verdict.verdict == "holds" and not (met["arm"] == "standard").any():
        verdict = cannot_tell(f"no layer of the model has D of at most {CONDITION:.3f}, which the bound needs")
    counts = [f"{int((met['arm'] == name).sum())} {name}" for name in dict.fromkeys(r.bounds["arm"])]
    where = f": {', '.join(counts)}" if len(counts) > 1 else ""
    rest = (
        f": D is at most {CONDITION:.3f} in {len(met)} of {len(r.bounds)} layers (over inputs and sets of weights){where}. "
        f"There the bound with 4 D is exceeded in {broken[0]}"
        + (f" and is {_times(met, 'repaired')} the measured value" if len(met) else "")
        + f"; that with 2(e^D - 1) is exceeded in {broken[1]} of all layers"
    )
    printed = r.bounds[np.isfinite(r.bounds["printed"])]
    if len(printed):
        violated = int((~printed["keeps_printed"]).sum())
        rest += f". The printed bound is {_times(printed, 'printed')} the measured value, exceeded in {violated}"
    return [on_claim("collapse.bounds", verdict, f"{rest} (medians).", "bounds")]


def _times(bounds: pd.DataFrame, name: str) -> str:
    real = bounds[bounds["measured"] > bounds["floor"]]
    return f"{(real[name] / real['measured']).median():.2g} times" if len(real) else "not comparable with"
