"""What the few-shot study found: each observation of Wertich (2024, chapter 8), measured with its control."""

from __future__ import annotations

from typing import Literal

import numpy as np

from headscape.intervals import Interval, exactly, mean_interval
from headscape.results import Finding
from headscape.statistics.edits import EXACT
from headscape.statistics.thesis import THESIS
from headscape.studies.prompt.maps import MEASURES
from headscape.studies.prompt.result import PromptResult
from headscape.studies.prompt.sweep import Sweep
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, strictest

__all__ = ["findings"]

MINIMAL = 0.1
"""Rank correlation below which a relation counts as minimal."""
FLAT = 0.95
"""Normalized entropy from which attention counts as uniform."""
LEVEL = 0.05


def findings(r: PromptResult) -> list[Finding]:
    """The clue, patterns by depth and shot, cosines, then the controls."""
    found = [_clue(r), _depth(r), _values(r)]
    if r.settings["shots"] > 0:
        found.append(_shots(r))
    found.append(_cosines(r))
    if "random weights" in r.versions:
        found.append(_random(r))
    found += [_up(r)] if "alpha 2" in r.versions else []
    found += [_down(r)] if "alpha 0.5" in r.versions else []
    if r.sweep is not None:
        found += [_more(r.sweep), *([_style(r.sweep)] if r.sweep.shots[0] == 0 else [])]
    return [*found, _edits(r), _law(r)]


def _clue(r: PromptResult) -> Finding:
    text = f"""
        For {r.targets[0]!r} after {r.settings["shots"]} examples the model writes “{r.clues["trained"][0].strip()}”.
        Numbers below are means over {len(r.targets)} such prompts, with 95 % intervals over them; the observations
        tested are those of {THESIS}, chapter 8.
    """
    return Finding(text, "clues")


def _beyond_random(verdict: Judgement, less: Interval | None, side: Literal["above", "below"]) -> Judgement:
    """The verdict on what is said to be learned: the statistic less that of random weights must lie on the same side."""
    if less is not None:
        return strictest(judge(less, **{side: 0.0}, control="less that of random weights"), verdict)
    missing = cannot_tell("control missing: random weights (--random-weights)", verdict.statistic)
    return missing if verdict.verdict == "holds" else verdict


def _depth(r: PromptResult) -> Finding:
    own = r.of("trained", "drawn_self")
    n, ends = r.n_layers, max(1, r.n_layers // 10)
    middle = own[:, n // 4 : max(n // 4 + 1, 3 * n // 4)].mean(axis=1)
    parts = {"first": own[:, :ends].mean(axis=1), "last": own[:, -ends:].mean(axis=1)}
    gaps = {name: mean_interval(values - middle) for name, values in parts.items()}
    verdict = strictest(*(judge(gap, above=0.0, control="the middle half of the layers") for gap in gaps.values()))
    uniform = float(r.uniform[:, MEASURES.index("drawn_self")].mean())
    rest = f"""
        . Of what a word gives to words and clues (the map that is drawn) {parts["first"].mean():.3f} stays on itself in the
        first layers, {middle.mean():.3f} in the middle half, {parts["last"].mean():.3f} in the last (uniform attention
        {uniform:.3f}); first - middle is {gaps["first"]}, last - middle {gaps["last"]}. Of all its attention a token keeps
        {r.mean("trained", "self")} on itself.
    """
    return on_claim("prompt.depth", verdict, rest, "self-mass")


def _values(r: PromptResult) -> Finding:
    i, j = np.tril_indices(len(r.tokens), -1)
    text = f"""
        Most attention is not in the picture: words and clues put {r.mean("trained", "first")} of their weight on the first
        token, and a picture of words and clues alone leaves out {r.mean("trained", "dropped")}. Of its entries off the
        diagonal, {float((r.token_maps[:, i, j] > 0.1).mean()):.1%} are above 0.1, the range that Wertich shows.
    """
    return Finding(text, "masses")


def _shots(r: PromptResult) -> Finding:
    share = {name: r.within_share(name).mean(axis=1) for name in ("trained", "distance", "uniform")}
    gain = mean_interval(share["trained"] - share["distance"])
    verdict = judge(gain, above=0.0, control="the same map with content averaged out, which knows distances alone")
    control, random = "", None
    if "random weights" in r.versions:
        random = r.within_share("random weights").mean(axis=1)
        control = f", {float(random.mean()):.2f} with random weights"
    verdict = _beyond_random(verdict, None if random is None else mean_interval(share["trained"] - random), "above")
    rest = f"""
        . Of the weight on words and clues, {mean_interval(share["trained"]).within(0, 1)} stays within the shot (the target's words
        included); {float(share["uniform"].mean()):.2f} under uniform attention{control}, and
        {mean_interval(share["distance"]).within(0, 1)} if attention knew distances alone. The boundary itself adds {gain}.
    """
    return on_claim("prompt.shots", verdict, rest, "shots")


def _cosines(r: PromptResult) -> Finding:
    partial = r.tested("partial")
    largest = mean_interval(np.abs(partial).max(axis=1)).within(0, 1)
    verdict = judge(largest, below=MINIMAL, control="a minimal correlation, in every layer of a prompt")
    best = int(np.abs(partial.mean(axis=0)).argmax())
    inner, p = mean_interval(r.tested("partial_inner").mean(axis=1)), r.tested("p")
    rest = f"""
        . Spearman's correlation, distance held fixed, is {mean_interval(partial.mean(axis=1))} over layers ({inner} without
        the first token) and {largest} at its largest; on average it is largest in layer {best},
        {mean_interval(partial[:, best])}. p < {LEVEL:g} in {float((p < LEVEL).mean()):.0%} of layers and prompts,
        {LEVEL:.0%} by chance.
    """
    if len(r.cosine) > 1:
        rest += f" With random weights it is {mean_interval(r.tested('partial', 'random weights').mean(axis=1))}."
    return on_claim("prompt.cosines", verdict, rest, "cosines")


def _random(r: PromptResult) -> Finding:
    control = r.mean("random weights", "entropy")
    verdict = judge(control, above=FLAT, control="from here on attention counts as uniform")
    single = [r.mean(name, "head_entropy").value for name in ("random weights", "trained")]
    rest = f"""
        : its entropy is {control} of the maximum, {r.mean("trained", "entropy")} when trained (single heads
        {single[0]:.2f} and {single[1]:.2f}). Its clue: “{r.clues["random weights"][0].strip()[:80]}”.
    """
    return on_claim("prompt.random", verdict, rest, "entropy")


def _change(r: PromptResult, version: str) -> str:
    scores = r.law_exception.startswith("QK-norm")
    alpha = float(version.split()[1])
    what = f"scores times {alpha**2:g}" if scores else f"both spectra times {alpha:g}"
    own = r.mean(version, "drawn_self")
    return (
        f". With {what} entropy changes by {r.change(version, 'entropy')}, the share of a word on itself on the map of words "
        f"and clues by {r.change(version, 'drawn_self')} (to {own}; of all its attention to "
        f"{r.mean(version, 'self').value:.3f}) and the loss by {r.change(version)} nats; the clue becomes "
        f"“{r.clues[version][0].strip()[:80]}”."
    )


def _up(r: PromptResult) -> Finding:
    verdict = judge(r.change("alpha 2", "drawn_self"), above=0.0, control="the trained model")
    before, after = (r.of(name, "drawn_self").mean(axis=0) for name in ("trained", "alpha 2"))
    thirds = zip(*(np.array_split(x, min(3, len(x))) for x in (before, after)), strict=True)
    by_third = ", ".join(f"{float(x.mean()):.2f} to {float(y.mean()):.2f}" for x, y in thirds)
    rest = f"""
        {_change(r, "alpha 2")} By thirds of the layers the share of a word on itself goes from {by_third}; it is more than
        half in {int((after > 0.5).sum())} of {len(after)} layers. Wertich also sees coherent text that repeats the prompt.
    """
    return on_claim("prompt.upscaled", verdict, rest, "self-mass")


def _down(r: PromptResult) -> Finding:
    flatter = judge(r.change("alpha 0.5", "entropy"), above=0.0, control="the trained model")
    worse = judge(r.change("alpha 0.5"), above=0.0, control="the loss of the trained model")
    return on_claim("prompt.downscaled", strictest(flatter, worse), _change(r, "alpha 0.5"), "entropy")


def _more(s: Sweep) -> Finding:
    own, control = s.change("examples"), s.change("random weights")
    beside = not np.isnan(control).any()
    verdict = judge(mean_interval(own), below=0.0, control="no change")
    verdict = _beyond_random(verdict, mean_interval(own - control) if beside else None, "below")
    path = ", ".join(f"{loss} after {k}" for k, loss in zip(s.shots, s.loss("examples"), strict=True))
    random = f" With random weights it changes by {mean_interval(control)}." if beside else ""
    rest = f"""
        . The loss of the table's own clue, in nats per token, is {path} examples: from the fewest, at least one, to the most
        it changes by {mean_interval(own)}.{random} A loss says how likely the table's clue is, not how good the written one.
    """
    return on_claim("prompt.more", verdict, rest, "sweep-loss")


def _style(s: Sweep) -> Finding:
    bare = s.losses[0, 0]
    gain, exchanged = bare - s.losses[0, -1], bare - s.losses[1, -1]
    some = judge(mean_interval(gain), above=0.0, control="no examples")
    verdict = strictest(some, judge(mean_interval(exchanged - gain / 2), above=0.0, control="half of the gain"))
    rest = f"""
        . {s.shots[-1]} examples lower the loss of the table's clue by {mean_interval(gain)}; the same examples with every
        clue at another word, which show style and format alone, by {mean_interval(exchanged)}.
    """
    return on_claim("prompt.style", verdict, rest, "sweep-loss")


def _edits(r: PromptResult) -> Finding:
    parts = ", ".join(f"{name} {r.change(name)}" for name in ("truncated", "flattened", "random bases"))
    text = f"""
        Other edits of every head's W_q and W_k change the loss by: {parts} nats (truncated keeps 90 % of the energy;
        flattened makes all singular values equal; random bases keeps them and turns the directions).
    """
    return Finding(text, "losses")


def _law(r: PromptResult) -> Finding:
    tolerance = EXACT.get(str(r.settings.get("dtype")), EXACT["float32"])
    verdict = judge(exactly(r.law_error), below=tolerance, control="rounding of the weights' number type")
    rest = f": on this model to {r.law_error:.1g}, relative." if not r.law_exception else f": {r.law_exception}."
    if r.law_exception.startswith("QK-norm"):
        rest += " Scores were multiplied by alpha^2 instead."
    return on_claim("prompt.law", verdict, rest)
