"""What the softmax study found, in sentences: claims of Fasina, Pohle, Su and Coifman (2025), each with its controls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headscape.intervals import Interval, another, jackknife, mean_interval, share_interval
from headscape.papers import claim
from headscape.results import Finding
from headscape.studies.softmax.head import COLUMNS
from headscape.studies.softmax.result import CLOSE, NAMES, SoftmaxResult
from headscape.studies.work.sentences import of_enough, on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, of_different

__all__ = ["findings"]

BoolArray = npt.NDArray[np.bool_]
NEARLY_ALL = 0.9
"""Share of heads that must pass for a claim about heads to hold."""
UNIFORM = 0.005
"""Divergence from uniform attention, in nats, up to which a head counts as uniform; a relative error of 10 % makes as much."""
TWICE = 1.9
"""Ratio of exponents from which the residual counts as twice as regular."""
FEWEST = 3
"""Heads shown to need their map without which nothing is said about heads that pass."""


def findings(r: SoftmaxResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = [_invariance(r) if r.unit else _without_model(r), _pointwise(r), _condition(r), _regular(r), _residual(r)]
    found += _orders(r)
    found += [_premise(r)] if r.unit == "loss" else []
    return found + ([_at_once(r)] if r.unit else []) + ([_random(r)] if r.control is not None else [])


def _decided(r: SoftmaxResult, id: str, judgement: Judgement) -> Judgement:
    """The judgement on a claim, if there are enough inputs for any; what is said to be learned, random weights must lack."""
    judgement = of_enough(len(r.values), int(r.settings["batches"]), of_different(r.values, judgement))
    if judgement.verdict != "holds" or not claim(id).learnt:
        return judgement
    if r.control is None:
        return cannot_tell("control missing: random weights (--random-weights)", judgement.statistic)
    # any decomposition is close to a nearly flat map: where attention is as flat as before training, nothing was learned
    flat = another(r.control[COLUMNS.index("mean_kl")])
    sharper = judge(mean_interval(_medians(r.column("mean_kl"))), above=flat, control="a head with random weights")
    if sharper.verdict == "holds":
        return judgement
    why = f"heads are not shown to be further from uniform than with random weights: {sharper.why} (nats)"
    return cannot_tell(why, judgement.statistic)


def _share(r: SoftmaxResult, id: str, passing: BoolArray, what: str) -> tuple[str, Judgement]:
    """For which share of heads `what` is so (n_input, n_head), not counting uniform ones; and whether that is nearly all."""
    varied = r.column("mean_kl") > UNIFORM
    count = np.where(varied.any(axis=1), varied.sum(axis=1), np.nan)
    if not varied.any():
        return "every head is nearly uniform", cannot_tell("no head can fail: all are nearly uniform")
    share = share_interval((passing & varied).sum(axis=1) / count, step=1 / np.nanmin(count))
    verdict = _decided(r, id, judge(share, above=NEARLY_ALL, control="nearly all heads"))
    return f"{what} in a share of {share} of the heads, nearly uniform ones not counted", verdict


def _medians(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Median over heads for every input (n_input,), NaN left out."""
    known = [row[np.isfinite(row)] for row in values]
    return np.array([np.median(row) if len(row) else np.nan for row in known])


def _without_model(r: SoftmaxResult) -> Finding:
    close = r.heads["corollary_error"] <= CLOSE
    rest = f"""
        : what replacing it does to the model was not measured. Corollary 1's decomposition
        is within {CLOSE:.0%} of softmax for {int(close.sum())} of {r.n_heads} heads ({close.mean():.0%}).
    """
    return on_claim("softmax.invariance", cannot_tell("the model was not run"), rest, "variants")


def _invariance(r: SoftmaxResult) -> Finding:
    own, uniform, paraproduct = (r.standing(name) for name in ("corollary", "mean", "paraproduct"))
    needed, may = uniform == "no", uniform != "yes"  # need their map, and may need it
    heads = "1 head is" if needed.sum() == 1 else f"{needed.sum()} heads are"
    verdict = cannot_tell(
        f"only {heads} shown to be worse with uniform attention, and a verdict takes {FEWEST} such heads"
        if needed.any()
        else "no head is shown to need its map: with uniform attention none changes the model beyond the tolerance"
    )
    among = "no head fails with uniform attention"
    if needed.any():
        passes, fails = ((own[needed] == said).mean() for said in ("yes", "no"))
        within = (r.heads["change_corollary"].abs() <= r.tolerance).to_numpy()[needed].mean()
        # what is not known of a head, whether it needs its map or whether it passes, counts against either verdict
        low, high = (needed & (own == "yes")).sum() / may.sum(), 1 - (may & (own == "no")).sum() / may.sum()
        share = Interval(float(np.clip(within, low, high)), float(low), float(high), len(r.values))
        control = f"nearly all of the {may.sum()} heads that need their map, each decided by its interval over inputs"
        control += "" if low == high else "; the brackets count undecided heads either way"
        if needed.sum() >= FEWEST:
            verdict = _decided(r, "softmax.invariance", judge(share, above=NEARLY_ALL, control=control))
        among = f"of the heads that fail with uniform attention ({int(needed.sum())}), {passes:.0%} pass with Corollary 1 and {fails:.0%} fail"
    rest = f"""
         (Fasina, Pohle, Su and Coifman, 2025). Within {r.tolerance:g} {r.unit_name}, {int((own == "yes").sum())} of {r.n_heads} heads
        ({(own == "yes").mean():.0%}) can have softmax replaced by Corollary 1's decomposition, and {(own == "no").mean():.0%} cannot; by the
        paraproduct {(paraproduct == "yes").mean():.0%} can. Uniform attention passes for {(uniform == "yes").mean():.0%}; {among}.
    """
    return on_claim("softmax.invariance", verdict, rest, "change-heads")


def _pointwise(r: SoftmaxResult) -> Finding:
    share, verdict = _share(r, "softmax.pointwise", r.column("paraproduct_error") <= CLOSE, f"it is within {CLOSE:.0%}")
    names = ("corollary", "paraproduct", "boundary", "mean", "linear", "natural", "shuffled")
    e = {name: f"{r.median(f'{name}_error'):.2f}" for name in names}
    rest = f"""
        : {share}. The median relative error is {e["paraproduct"]} for the paraproduct and {e["corollary"]} for
        Corollary 1; {e["natural"]} for the paraproduct in the natural order, {e["shuffled"]} for that of shuffled heads, {e["boundary"]} for
        boundary terms alone, {e["linear"]} for a + b g, {e["mean"]} for the mean.
    """
    return on_claim("softmax.pointwise", verdict, rest, "variants")


def _orders(r: SoftmaxResult) -> list[Finding]:
    """Eq. 12 without its boundary terms against the mean, and with all terms of second order against eq. 12 itself."""
    asked = {"softmax.printed": ("printed", "mean"), "softmax.second_order": ("second_order", "paraproduct")}
    if "printed_error" not in r.heads:
        return []
    found, varied = [], r.column("mean_kl") > UNIFORM
    for id, (name, other) in asked.items():
        own, control = (r.column(f"{one}_error") for one in (name, other))
        closer = mean_interval(_medians(np.where(varied, own - control, np.nan)))
        verdict = _decided(r, id, judge(closer, below=0.0, control="no closer"))
        if not varied.any():
            verdict = cannot_tell("no head can fail: all are nearly uniform")
        rest = (
            f": the median relative error is {r.median(f'{name}_error'):.2f} ({NAMES[name]}) against {r.median(f'{other}_error'):.2f} "
            f"({NAMES[other]}); over inputs the median difference within heads is {closer}."
        )
        found.append(on_claim(id, verdict, rest, "variants"))
    return found


def _condition(r: SoftmaxResult) -> Finding:
    what = f"averages must be near 0, so that e^average = 1, and are within {CLOSE:g} nats of it (rms)"
    share, verdict = _share(r, "softmax.condition", r.column("average_rms") <= CLOSE, what)
    rest = f"""
        : {share}. In the median head they are
        {r.median("average_rms"):.2f} nats (rms), {r.median("average_max"):.1f} at most. Mixed differences are {r.median("mixed_rms"):.2f} nats (rms),
        {r.median("mixed_share"):.0%} of the variance of log-attention.
    """
    return on_claim("softmax.condition", verdict, rest, "condition")


def _premise(r: SoftmaxResult) -> Finding:
    """The corollary supposes that the loss goes to 0 as mixed differences go to infinity; inputs are what varies."""
    assert r.base is not None
    loss, mixed = r.base, r.column("mixed_max").mean(axis=1)
    own = jackknife(lambda chosen: _correlation(loss[chosen], mixed[chosen]), len(loss)).within(-1, 1)
    verdict = _decided(r, "softmax.premise", judge(own, below=0.0, control="no correlation"))
    rest = f"""
        : over inputs the loss ({loss.min():.2g} to {loss.max():.2g}) has the correlation {own} with the largest mixed
        difference of a head (mean over heads, {mixed.min():.3g} to {mixed.max():.3g} nats).
    """
    return on_claim("softmax.premise", verdict, rest, "condition")


def _correlation(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Pearson's; NaN where one of them does not vary."""
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else float("nan")


def _regular(r: SoftmaxResult) -> Finding:
    own, shuffled = (mean_interval(_medians(r.column(name))) for name in ("alpha", "alpha_shuffled"))
    rough = not shuffled.value > 0
    control = "what Theorem 1 assumes" if rough else "shuffled heads"
    verdict = _decided(r, "softmax.regularity", judge(own, above=0.0 if rough else shuffled, control=control))
    above, surely = (float((r.heads[name] > 0).mean()) for name in ("alpha", "alpha_low"))
    rest = f"""
        : Theorem 1 needs Hölder exponents above 0, and the median organized head has {own} (natural order
        {r.median("alpha_natural"):.2f}, shuffled {r.median("alpha_shuffled"):.2f}, white noise -0.5). {above:.0%} of the exponents are above 0,
        and {surely:.0%} significantly so (95 % interval over inputs).
    """
    return on_claim("softmax.regularity", verdict, rest, "exponents")


def _residual(r: SoftmaxResult) -> Finding:
    coarse = r.column("alpha_coarse")
    regular = (r.column("alpha") > 0) & (coarse > 0)
    ratio = mean_interval(_medians(r.column("alpha_residual") / np.where(regular, coarse, np.nan)))
    verdict = _decided(r, "softmax.residual", judge(ratio, above=TWICE, control="twice, less a twentieth"))
    found = (
        f"where a head has an exponent above 0 ({regular.mean():.0%} of them), that of its residual is {ratio} times as large, "
        "without the finest scale; Theorem 1 says 2; counting scales gives 1.5"
    )
    if not regular.any():
        verdict = cannot_tell("no head is regular")
        found = (
            f"no head has an exponent above 0; the median exponent of the residual is {r.median('alpha_residual'):.2f}"
        )
    return on_claim("softmax.residual", verdict, f": {found}.", "exponents")


def _size(change: Interval) -> Interval:
    """How large a change is, whatever its sign."""
    low, high = sorted((abs(change.low), abs(change.high)))
    return Interval(abs(change.value), 0.0 if change.low <= 0 <= change.high else low, high, change.n, change.why)


def _at_once(r: SoftmaxResult) -> Finding:
    assert r.base is not None
    changes = {name: r.change_all(name) for name in ("corollary", "paraproduct", "mean", "natural", "own")}
    off = abs(changes["own"].value) > r.tolerance / 10
    whole = judge(_size(changes["corollary"]), below=r.tolerance, control="the tolerance")
    verdict = _decided(r, "softmax.all_heads", whole)
    if verdict.verdict == "holds" and (off or not _size(changes["mean"]).low > r.tolerance):
        what = (
            "softmax of the captured scores changes the model too"
            if off
            else "uniform attention changes the model as little"
        )
        verdict = cannot_tell(what, verdict.statistic)
    which = "all heads"
    if r.n_heads < r.n_every:
        which = f"{r.n_heads} of {r.n_every} heads"
        if verdict.verdict == "holds":  # a part that cannot be replaced decides; one that can does not
            verdict = cannot_tell(f"only {which} were replaced", verdict.statistic)
    before = f" (loss before: {float(np.mean(r.base)):.2f})" if r.unit == "loss" else ""
    careful = (
        f" Careful: softmax of the captured scores itself changes it by {changes['own']}; capture with --dtype float32, and leave out layers with a "
        "window or a sink."
    )
    rest = f"""
        : with {which} replaced at once the change is {changes["corollary"]} {r.unit_name} with Corollary 1,
        {changes["paraproduct"]} with the paraproduct, {changes["natural"]} with the paraproduct in the natural order, {changes["mean"]} with
        uniform attention{before}.{careful if off else ""}
    """
    return on_claim("softmax.all_heads", verdict, rest, "change-all")


def _random(r: SoftmaxResult) -> Finding:
    assert r.control is not None
    names = ("paraproduct_error", "corollary_error", "mean_error", "spread")
    median = {name: f"{float(np.nanmedian(r.control[COLUMNS.index(name)])):.2f}" for name in names}
    text = f"""
        With random weights the median error is {median["paraproduct_error"]} for the paraproduct, {median["corollary_error"]} for Corollary 1 and
        {median["mean_error"]} for the mean: there log-attention spreads by {median["spread"]} nats, here by {r.median("spread"):.2f}.
    """
    return Finding(text, "variants")
