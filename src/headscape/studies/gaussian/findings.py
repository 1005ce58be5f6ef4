"""The sentences of the Gaussian study: each statement of the thesis, what was measured, and whether it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headscape.results import Finding, Interval, bootstrap
from headscape.statistics.gaussian import SAMPLES_PER_DIMENSION
from headscape.studies.gaussian.result import median_interval, self_ratio

if TYPE_CHECKING:
    from headscape.studies.gaussian.result import GaussianResult

__all__ = ["findings"]

NEARLY_ALL = 0.9
"""Share of heads (or layers) that must pass for a statement about all to hold."""
CLOSE = 0.1
"""Relative error of a sd, and error of a mean in sd, up to which a prediction counts as close."""
NORMAL = 0.5
"""Skewness and excess kurtosis up to which scores count as nearly normal."""
MIXED = 0.1
"""||X - mean|| / ||X|| below which tokens count as one."""
WEAK = 0.1
"""Rank correlation below which one thing hardly predicts another: under 1 % of the variance of ranks."""
CLEAR = 0.3
"""Rank correlation from which on it clearly does."""
SIGNIFICANT = 0.01
EMBEDDING = (
    *("dim", "norms", "norms_text", "entropy", "entropy_random", "entropy_predicted"),
    *("nearest", "nearest_random", "pairs", "pairs_random"),
)


def findings(r: GaussianResult) -> list[Finding]:
    """Each statement of the thesis that can be put to this model, with the rule by which it holds or not."""
    found: list[Finding] = []
    if r.has("variance"):
        found += [_scores(r), _normal(r), _self(r)]
    if r.information is not None and len(r.distances) > 1:
        found.append(_distance(r))
    found += _next(r)
    if r.has("covariance_off"):
        found.append(_propagated(r))
    if r.has("entropy_measured"):
        found.append(_after(r))
    found += _mixture(r)
    if r.has("rank90"):
        found.append(_rank(r))
    found += _embeddings(r)
    if r.has("cosine_partial"):
        found.append(_cosine(r))
    skipped = [*r.settings.get("left_out", []), *sorted({n for n in r.heads["note"] if n})]
    if skipped:
        found.append(Finding(f"Left out: {'; '.join(skipped)}."))
    return found


def _scores(r: GaussianResult) -> Finding:
    off = {name: r.off(name) for name in ("independent", "joint")}
    near = {name: (o["sd"].abs() <= CLOSE) & (o["mean"].abs() <= CLOSE) for name, o in off.items()}
    share = {name: float(near[name][off[name]["sd"].notna()].mean()) for name in off}
    sd = {name: median_interval(1 + off[name]["sd"]) for name in off}
    return Finding(
        f"Mean and sd of scores from Gaussians and weights, medians over {r.n_heads} heads: independent tokens "
        f"give {sd['independent']} of the measured sd and a mean off by "
        f"{median_interval(off['independent']['mean'].abs())} sd; a joint Gaussian for every distance gives "
        f"{sd['joint']} of the sd (its mean is an identity). Within {CLOSE:.0%} are {share['independent']:.0%} and "
        f"{share['joint']:.0%} of heads.{_shrunk(r.heads['score_shrinkage'])}",
        "score-sd",
        share["joint"] >= NEARLY_ALL,
    )


def _shrunk(shrinkage: npt.ArrayLike) -> str:
    """Say so where there were too few samples for a covariance."""
    x = np.asarray(shrinkage, dtype=float)
    x = x[np.isfinite(x) & (x > 0)]
    if not len(x):
        return ""
    return (
        f" With fewer than {SAMPLES_PER_DIMENSION} samples to a dimension, covariances were shrunk (Ledoit-Wolf, up to "
        f"{x.max():.2g})."
    )


def _normal(r: GaussianResult) -> Finding:
    frame = r.heads[r.heads["variance"].notna()]
    near = (frame["kurtosis"].abs() <= NORMAL) & (frame["skewness"].abs() <= NORMAL)
    agrees = np.corrcoef(frame["kurtosis"].rank(), frame["kurtosis_joint"].rank())[0, 1] if len(frame) > 2 else np.nan
    return Finding(
        f"Scores are nearly normal (skewness and excess kurtosis within {NORMAL:g}) in {near.mean():.0%} of heads; "
        f"median excess kurtosis {median_interval(frame['kurtosis'])}, predicted by the joint Gaussians "
        f"{median_interval(frame['kurtosis_joint'])} (rank correlation over heads {agrees:.2f}). The scores of a "
        f"head come from {median_interval(frame['directions'])} directions.",
        "score-kurtosis",
        float(near.mean()) >= NEARLY_ALL,
    )


def _self(r: GaussianResult) -> Finding:
    higher = r.heads["self_mean"] - r.heads["mean"]
    raised = float((higher > 0)[higher.notna()].mean())
    ratio = median_interval(self_ratio(r.heads))
    return Finding(
        f"A token's score with itself is above the mean in {raised:.0%} of heads, by "
        f"{median_interval(higher / np.sqrt(r.heads['variance']))} sd at the median: covariance raises "
        f"self-pairings. Its sd is predicted as {ratio} of the measured one.",
        "score-self",
        raised >= NEARLY_ALL,
    )


def _distance(r: GaussianResult) -> Finding:
    assert r.information is not None
    excess, error = r.information[:, :, 0] - r.information[:, :, 1], r.information[:, :, 2]
    falls = excess[:, 0] - excess[:, -1] > 2 * np.hypot(error[:, 0], error[:, -1])
    still = excess[:, -1] > 2 * error[:, -1]
    near, far = r.distances[0], r.distances[-1]
    depth, kept = len(excess), r.information[:, 0, 4]
    known = bool(np.isfinite(error).all())
    falling = f"falls with distance at {falls.sum()} of {depth} depths" if known else "at a distance"
    text = (
        f"Mutual information of tokens {falling}: for embeddings from "
        f"{excess[0, 0]:.2f} nats at {near} to {excess[0, -1]:.2f} at {far}, half-way through the layers from "
        f"{excess[depth // 2, 0]:.2f} to {excess[depth // 2, -1]:.2f} (beyond shuffled pairs, in "
        f"{kept.min():.0%} to {kept.max():.0%} of the variance)"
        + (f"; at {far} it is still above chance at {still.sum()} depths." if known else "; one input has no error.")
        + _shrunk(r.information[:, :, 3])
    )
    return Finding(text, "information", float(falls.mean()) >= NEARLY_ALL if known else None)


def _next(r: GaussianResult) -> list[Finding]:
    found = []
    for source in ("model", "1-gram"):
        facts = r.arrays.get(f"next/{source}/facts")
        if facts is None:
            continue
        mass, dominated, hit, directions, _, trace = (bootstrap(column) for column in facts.T)
        who = "the model's own probabilities" if source == "model" else "a 1-gram table of the other inputs"
        found.append(
            Finding(
                f"By {who} the 5 likeliest next tokens hold {mass} of the probability, over 9 tenths at "
                f"{dominated} of the positions, and the token that came is among them {hit} of the time; the 20 "
                f"likeliest span {directions} directions with {trace} of the variance of all tokens of the text.",
                "next-spectrum",
                dominated.value >= 0.5 if source == "model" else None,
            )
        )
    return found


def _propagated(r: GaussianResult) -> Finding:
    off, halves = r.heads["covariance_off"], r.heads["covariance_halves"]
    near = off <= CLOSE
    share = float(near[off.notna()].mean())
    random = ""
    if r.control is not None:
        random = f" (random weights: {median_interval(r.control['covariance_off'])})"
    return Finding(
        f"With its weights held fixed, attention's covariance is off by {median_interval(off)}"
        f"{random} and has {median_interval(r.heads['trace_ratio'])} of the measured trace; within {CLOSE:.0%} "
        f"for {share:.0%} of heads. Halves of the inputs differ by {median_interval(halves)}.",
        "propagated",
        share >= NEARLY_ALL,
    )


def _after(r: GaussianResult) -> Finding:
    entropy = r.heads["entropy_measured"] - r.heads["entropy_values"]
    information = r.heads["information_measured"] - r.heads["information_values"]
    change = median_interval(information)
    more = float((information > 0)[information.notna()].mean())
    changed = change.low > 0 or change.high < 0
    fixed = ""
    if r.has("information_propagated"):
        fixed = (
            f" With fixed weights neighbours would share {median_interval(r.heads['information_propagated'])} nats, in "
            f"truth they share {median_interval(r.heads['information_measured'])}."
        )
    return Finding(
        f"Attention changes entropy by {median_interval(entropy)} nats and the information of neighbours by {change} "
        f"nats (medians over heads, in {r.heads['variance_kept'].median():.0%} of the variance of the values; up in "
        f"{more:.0%}): it is {'not preserved' if changed else 'not clearly changed'}."
        f"{fixed}",
        "after",
        changed,
    )


def _mixture(r: GaussianResult) -> list[Finding]:
    def ends(name: str) -> tuple[Interval, Interval, Interval] | None:
        spread = r.arrays.get(f"depth/{name}")
        if spread is None:
            return None
        first, last = spread[:, 0, 0], spread[:, -1, 0]
        return bootstrap(first), bootstrap(last), bootstrap(spread[:, -1, 1])

    found = []
    for names, claim in (
        (("trained", "random weights"), "as it is, with skip connections"),
        (("no skip", "random weights, no skip"), "of attention alone, without skip connections"),
    ):
        parts, mixed = [], []
        for name in names:
            end = ends(name)
            if end is not None:
                parts.append(f"{name}: {end[0]} to {end[1]}, cosine at the end {end[2]}")
                mixed.append(end[1].value <= MIXED)
        if parts:
            found.append(
                Finding(
                    f"Do tokens become one in the network {claim}? ||X - mean|| / ||X|| goes from first to last in "
                    f"{'; '.join(parts)}. They count as one at {MIXED:g}.",
                    "mixture",
                    all(mixed),
                )
            )
    share = r.arrays.get("position/trained")
    if share is not None and np.isfinite(share).all():
        found.append(
            Finding(
                "That the distributions of the positions converge says little: before the first layer position "
                f"explains {share[0]:.1%} of the variance of tokens, after the last {share[-1]:.1%}.",
                "positions",
            )
        )
    scaled = [ends(name) for name in ("no skip, alpha = 1/2", "no skip", "no skip, alpha = 2")]
    if all(end is not None for end in scaled):
        values = [end[1] for end in scaled if end is not None]
        known = not np.isnan(values[0].high)
        slower = values[0].high < values[2].low if known else values[2].value > values[0].value
        what = "do not clearly matter"
        if slower:
            what = "keep tokens apart" if values[2].value > MIXED else "slow the mixing and do not stop it"
        found.append(
            Finding(
                f"Scaling Wq and Wk by 1/2, 1 and 2 leaves {values[0]}, {values[1]} and {values[2]} of the spread "
                f"without skip connections: larger spectra {what}.",
                "mixture-spread",
                bool(slower) if known else None,
            )
        )
    return found


def _rank(r: GaussianResult) -> Finding:
    log = float(np.log(r.n_token))
    ranks = r.heads["rank90"].dropna()
    below = float((ranks <= log).mean())
    random = "" if r.control is None else f", with random weights {median_interval(r.control['rank90'])}"
    return Finding(
        f"90 % of the energy of a map lies in {median_interval(ranks)} singular values at the median, "
        f"{ranks.min():g} to {ranks.max():g} over heads{random}; log n = {log:.1f}. {below:.0%} of heads need no more "
        "than log n.",
        "rank",
        below >= NEARLY_ALL,
    )


def _embeddings(r: GaussianResult) -> list[Finding]:
    if "embedding/norms" not in r.arrays:
        return []
    e = {name: r.arrays[f"embedding/{name}"] for name in EMBEDDING}
    cv, text = (float(e[name].std() / e[name].mean()) for name in ("norms", "norms_text"))
    gap = bootstrap(e["entropy"] - e["entropy_random"])
    log = float(np.log(e["dim"][0]))
    near = bootstrap(e["nearest"])
    return [
        Finding(
            f"Embeddings have lengths {e['norms'].mean():.3g} +- {100 * cv:.2g} % (tokens of the text "
            f"{e['norms_text'].mean():.3g} +- {100 * text:.2g} %): {'nearly' if cv <= CLOSE else 'not'} on one sphere, "
            f"by a spread of {CLOSE:.0%}.",
            "norms",
            cv <= CLOSE,
        ),
        Finding(
            f"Softmax of an embedding has an entropy of {bootstrap(e['entropy'])} nats, of random vectors as long "
            f"{bootstrap(e['entropy_random'])}, by log n - l^2/2n {e['entropy_predicted'].mean():.4g}; log n is "
            f"{log:.4g}. The difference from random vectors is {gap}.",
            "embedding-entropy",
            bool(abs(gap.value) <= 0.01 * log),
        ),
        Finding(
            f"The nearest other embedding (of at most 20,000) has a cosine of {near}, of random vectors "
            f"{bootstrap(e['nearest_random'])}; a pair has {bootstrap(e['pairs'])} on average, random ones "
            f"{bootstrap(e['pairs_random'])}.",
            "neighbours" if r.neighbours else None,
        ),
    ]


def _cosine(r: GaussianResult) -> Finding:
    rho = r.heads["cosine_partial"].dropna()
    clear, real = float((rho.abs() >= CLEAR).mean()), float((r.heads["cosine_p"] <= SIGNIFICANT).mean())
    size = median_interval(rho.abs())
    little, some = size.high < WEAK, size.low >= WEAK
    random = ""
    if r.control is not None:
        random = f" (random weights: {median_interval(r.control['cosine_partial'].abs())})"
    verdict = (
        "predicts little" if little else "predicts some" if some else f"is on the border ({WEAK:g}) of predicting some"
    )
    return Finding(
        f"Embedding cosine {verdict} of attention: the rank correlation, distance taken out, has a median size of "
        f"{size}{random}; it is beyond chance (p <= {SIGNIFICANT:g}) in {real:.0%} of heads and at least {CLEAR:g} in "
        f"{clear:.0%}. The thesis says the relation is minimal.",
        "cosine",
        True if little else False if some else None,
    )
