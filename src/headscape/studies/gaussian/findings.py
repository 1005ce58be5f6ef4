"""What the Gaussian study says: each statement of Wertich (2024), what was measured, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, exactly, jackknife, mean_interval, median_interval, share_interval
from headscape.results import Finding
from headscape.statistics.gaussian import SAMPLES_PER_DIMENSION
from headscape.statistics.thesis import THESIS
from headscape.studies.gaussian.result import GaussianResult, over_inputs
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, of_different

__all__ = ["LEAST_INPUTS", "MIXED", "findings"]

LEAST_INPUTS = 8
"""Inputs below which nothing is decided."""
NEARLY_ALL = 0.9
"""Share of heads (or depths) that a statement about all of them must be true of."""
CLOSE = 0.1
"""Relative error of a sd, and error of a mean in sd, up to which a prediction counts as close."""
NORMAL = 0.5
"""Skewness and excess kurtosis up to which scores count as nearly normal."""
MIXED = 0.1
"""||X - mean|| / ||X|| below which tokens count as alike."""
WEAK, CLEAR = 0.1, 0.3
"""Rank correlation below which one thing hardly predicts another (1 % of the variance of ranks), and from which it does."""
SIGNIFICANT = 0.01
ONE_SIDED = 1.645
"""95 % quantile of the normal law, which rank correlations of unrelated heads follow with a variance of 1 / (n - 1)."""
FLAT = 0.01
"""Share of log n by which two entropies of softmax may differ and still count as equal."""
_WITHIN = {"below": CLOSE, "control": f"relative error that {NEARLY_ALL:.0%} of heads must not exceed"}


def findings(r: GaussianResult) -> list[Finding]:
    """Each statement of Wertich (2024) that can be tested on this model, with the rule by which it holds or not."""
    text = f"""
        Tested are the statements of {THESIS}. Numbers are medians over {len(r.heads)} heads unless they say otherwise,
        with 95 % intervals over inputs.
    """
    found = [Finding(text, "gaussian-overview")]
    if r.has("variance"):
        found += [_scores(r), _normal(r), _self(r)]
    if "row_variance" in r.heads and r.has("row_variance"):
        found += _chain(r)
        found += _temperature(r) if "temperature/changes" in r.arrays else []
    if r.information is not None and len(r.distances) > 1:
        found.append(_distance(r))
    found += _next(r)
    if r.has("covariance_off"):
        found.append(_propagated(r))
    if r.has("entropy_measured"):
        found.append(_after(r))
    if "depth/trained" in r.arrays:
        found += _mixture(r)
    if r.has("rank90"):
        found.append(_rank(r))
    if "embedding/norms" in r.arrays:
        found += _embeddings(r)
    if r.has("cosine_partial"):
        found.append(_cosine(r))
    if r.has("data_query"):
        found.append(_data(r))
    return [*found, Finding(f"Left out: {'; '.join(r.left_out)}.")] if r.left_out else found


def _enough(r: GaussianResult, n: int, judgement: Judgement) -> Judgement:
    """The judgement, if there are enough inputs for any, and none of them twice."""
    few = f"{n} of the {LEAST_INPUTS} inputs this takes; capture more, or use more --batches"
    if n < LEAST_INPUTS:
        return cannot_tell(few, judgement.statistic)
    return of_different(r.settings.get("inputs", []), judgement)  # earlier versions kept none


def _tested(
    r: GaussianResult,
    claim: str,
    figure: str,
    rest: str,
    statistic: Interval,
    *,
    random: Interval | None = None,
    n: int | None = None,
    **rule: Any,
) -> Finding:
    """A finding and its verdict by the rule of `judge`; `random` is the statistic of random weights, where known.

    n is the number of inputs behind the statistic, where it does not know it itself.
    """
    judgement = _enough(r, statistic.n if n is None else n, judge(statistic, **rule))
    if judgement.verdict == "holds" and random is not None and judge(random, **rule).verdict == "holds":
        rest += " It holds with random weights too, so it is not learned."
    return on_claim(f"gaussian.{claim}", judgement, rest, figure)


def _of_heads(
    r: GaussianResult, claim: str, figure: str, rest: str, statistic: Callable[[pd.DataFrame], Any], **rule: Any
) -> Finding:
    """A finding about a statistic of the table of heads."""
    found = [r.over_inputs(lambda frame: float(statistic(frame)), name) for name in r.frames]
    return _tested(r, claim, figure, rest, found[0], random=found[1] if len(found) > 1 else None, **rule)


def _beyond_chance(r: GaussianResult, least: float) -> Interval | float:
    """A rank correlation over heads from which it counts: `least`, or the 95 % quantile for random orders of so few heads."""
    n = len(r.heads)
    chance = ONE_SIDED / (n - 1) ** 0.5 if n > 1 else 1.0
    return least if chance <= least else Interval(least, least, chance, n)


def _share(x: npt.ArrayLike) -> str:
    """Share of the entries that are true."""
    return f"{np.mean(np.asarray(x, dtype=float)):.0%}"


def _random(r: GaussianResult, column: str) -> str:
    return f" (random weights: {r.median(column, 'random weights')})" if "random weights" in r.frames else ""


def _shrunk(shrinkage: npt.ArrayLike) -> str:
    """Say so where there were too few samples for a covariance."""
    most = float(np.nan_to_num(np.asarray(shrinkage, dtype=float)).max(initial=0))
    few = f"With fewer than {SAMPLES_PER_DIMENSION} samples per dimension"
    return f" {few}, covariances were shrunk (Ledoit-Wolf, up to {most:.2g})." if most else ""


LINKS = {
    "chain_variance": ("row_variance", "row_variance_predicted", "the variance of a row's scores"),
    "chain_ratio": ("row_ratio", "row_ratio_predicted", "the size of log(p_i / p_j) for two keys"),
    "chain_entropy": ("row_entropy", "row_entropy_predicted", "the entropy of a row, over log n"),
    "chain_mixing": ("mixing", "mixing_predicted", "what outputs differ by, over what values differ by"),
}
"""Claim: measured, predicted from weights and the Gaussian of the inputs, in words."""


def _chain(r: GaussianResult) -> list[Finding]:
    """Link by link: whether the weights say which head is sharper, and how far the numbers themselves are off."""
    found = []
    for claim, (own, predicted, words) in LINKS.items():
        if not r.has(own):
            continue
        before = {"row_ratio": "row_ratio_from_variance", "row_entropy": "row_entropy_from_variance"}.get(own)
        before = "mixing_from_entropy" if own == "mixing" else before
        near = "" if before is None else f"; from the measured link before it {r.median(before)}"

        def correlation(frame: pd.DataFrame, a: str = own, b: str = predicted) -> float:
            return float(frame[a].corr(frame[b], "spearman"))

        of, *random = (_bounded(r, r.over_inputs(correlation, name)) for name in r.frames)
        rest = (
            f": over heads, predicted and measured have the rank correlation {of}. The median of {words} "
            f"is {r.median(own)}, predicted {r.median(predicted)}{near}."
        )
        rule: dict[str, Any] = {"above": _beyond_chance(r, CLEAR), "control": "a clear rank correlation"}
        figure = f"chain-{claim.removeprefix('chain_')}"
        found.append(_tested(r, claim, figure, rest, of, random=random[0] if random else None, **rule))
    return found


def _bounded(r: GaussianResult, correlation: Interval) -> Interval:
    """A rank correlation over heads; without an input it changes at least by what two neighbours that trade ranks do."""
    n = len(r.heads)
    return correlation.within(-1, 1, max(1, correlation.n - 1) * 12 / (n**3 - n) if n > 1 else None)


def _temperature(r: GaussianResult) -> list[Finding]:
    """Whether flattening a head costs more the more its scores are spread."""
    changes = r.arrays["temperature/changes"]
    spread = r.heads["temperature"]

    def correlation(chosen: npt.NDArray[np.intp], factor: int = 0) -> float:
        return float(spread.corr(pd.Series(changes[chosen, factor].mean(axis=0)), "spearman"))

    flatter, sharper = (_bounded(r, jackknife(partial(correlation, factor=f), len(changes))) for f in (0, 1))
    cost = [mean_interval(changes[:, f].mean(axis=1)) for f in (0, 1)]
    chance = _beyond_chance(r, 0.0)
    judged = judge(flatter, above=chance, control="no correlation, and what so many heads have by chance")
    judged = _enough(r, len(changes), judged)
    rest = f"""
        : over heads, the spread of the scores and what halving them changes have the rank correlation {flatter}, what
        doubling them changes {sharper}. Halved, a head changes the model by {cost[0]} on average, doubled by {cost[1]}
        (nats of loss, or relative change of the final state where there is none).
    """
    return [on_claim("gaussian.temperature", judged, rest, "temperature")]


def _scores(r: GaussianResult) -> Finding:
    def error(frame: pd.DataFrame, name: str) -> pd.Series[float]:
        return frame[f"shift_{name}"].combine((frame[f"ratio_{name}"] - 1).abs(), max).dropna()

    frame = r.frames["trained"][0]
    near = [_share(error(frame, name) <= CLOSE) for name in ("independent", "joint")]
    rest = f"""
        . With tokens taken as independent, the predicted sd is {r.median("ratio_independent")} times the measured one and
        the predicted mean is off by {r.median("shift_independent")} sd; with a joint Gaussian for every distance the sd is
        {r.median("ratio_joint")} times the measured one (the mean is right by construction). Predictions are within
        {CLOSE:.0%} in {near[0]} and {near[1]} of heads.{_shrunk(frame["score_shrinkage"])}
    """
    return _of_heads(r, "scores", "score-sd", rest, lambda f: error(f, "joint").quantile(NEARLY_ALL), **_WITHIN)


def _normal(r: GaussianResult) -> Finding:
    def size(frame: pd.DataFrame) -> pd.Series[float]:
        return frame["kurtosis"].abs().combine(frame["skewness"].abs(), max).dropna()

    frame = r.frames["trained"][0]
    agrees = frame["kurtosis"].corr(frame["kurtosis_joint"], method="spearman") if len(frame) > 2 else float("nan")
    rest = f"""
        : skewness and excess kurtosis lie within {NORMAL:g} in {_share(size(frame) <= NORMAL)} of heads. The excess
        kurtosis is {r.median("kurtosis")}, predicted by the joint Gaussians {r.median("kurtosis_joint")} (rank
        correlation over heads {agrees:.2f}). The scores of a head come from {r.median("directions")} directions.
    """
    rule = {"below": NORMAL, "control": f"skewness or excess kurtosis that {NEARLY_ALL:.0%} of heads must not exceed"}
    return _of_heads(r, "normal", "score-kurtosis", rest, lambda f: size(f).quantile(NEARLY_ALL), **rule)


def _self(r: GaussianResult) -> Finding:
    raised = r.frames["trained"][0]["raised"].dropna()
    rest = (
        f". A token's score with itself is above the mean in {_share(raised > 0)} of heads, by {r.median('raised')} sd"
        f"{_random(r, 'raised')}. Its sd is predicted as {r.median('ratio_self')} of the measured one."
    )
    rule = {"above": 0.0, "control": f"{NEARLY_ALL:.0%} of heads must be above"}
    return _of_heads(r, "self", "score-self", rest, lambda f: f["raised"].quantile(1 - NEARLY_ALL), **rule)


def _distance(r: GaussianResult) -> Finding:
    assert r.information is not None
    assert r.information_facts is not None
    folds = list(np.moveaxis(r.information, -1, 0))  # each (n_depth, n_distance)
    excess, kept, half = folds[0], r.information_facts[:, 0, 2], len(folds[0]) // 2
    far = over_inputs(folds, lambda x: float(x[half, -1]))
    rest = (
        f". Beyond that of shuffled pairs, the mutual information of embeddings goes from {excess[0, 0]:.2f} nats at distance "
        f"{r.distances[0]} to {excess[0, -1]:.2f} at {r.distances[-1]}, half-way through the layers from "
        f"{excess[half, 0]:.2f} to {far} (in {kept.min():.0%} to {kept.max():.0%} of the variance)."
        f"{_shrunk(r.information_facts[:, :, 1])}"
    )
    falls = over_inputs(folds, lambda x: float(np.quantile(x[:, 0] - x[:, -1], 1 - NEARLY_ALL)))
    control = f"{NEARLY_ALL:.0%} of depths must be above"
    return _tested(r, "distance", "information", rest, falls, above=0.0, control=control)


def _next(r: GaussianResult) -> list[Finding]:
    found = []
    for source, who in (("model", "the model's own probabilities"), ("1-gram", "a 1-gram table of the other inputs")):
        facts = r.arrays.get(f"next/{source}/facts")
        if facts is not None:
            mass = mean_interval(facts[:, 0]).within(0, 1)
            dominated, hit = (share_interval(column, step=1 / r.n_token) for column in facts.T[1:3])
            directions, _, trace = (mean_interval(column) for column in facts.T[3:])
            rest = f"""
                {who} the 5 likeliest next tokens hold {mass} of the probability, over 9 tenths at {dominated} of the
                positions, and the actual next token is among them {hit} of the time; the 20 likeliest span {directions}
                directions with {trace} of the variance of all tokens of the text.
            """
            if source == "model":
                rule: dict[str, Any] = {"above": 0.5, "control": "half of the positions"}
                found.append(_tested(r, "next", "next-spectrum", f". By {rest}", dominated, **rule))
            else:
                found.append(Finding(f"For comparison, by {rest}", "next-spectrum"))
    return found


def _propagated(r: GaussianResult) -> Finding:
    near = r.heads["covariance_off"].dropna() <= CLOSE
    rest = f"""
        . With fixed weights the covariance is off by {r.median("covariance_off")}{_random(r, "covariance_off")} and has
        {r.median("trace_ratio")} of the measured trace; it is within {CLOSE:.0%} for {_share(near)} of heads.
    """
    halves = float(r.heads["covariance_halves"].median())
    rest += f" Halves of the inputs differ by {halves:.3g}." if halves == halves else ""
    return _of_heads(r, "propagated", "propagated", rest, lambda f: f["covariance_off"].quantile(NEARLY_ALL), **_WITHIN)


def _after(r: GaussianResult) -> Finding:
    change, more = r.median("information_change"), r.frames["trained"][0]["information_change"].dropna() > 0
    rest = f"""
        : by {change} nats (in {r.heads["variance_kept"].median():.0%} of the variance of the values; more in {_share(more)}
        of heads), while entropy changes by {r.median("entropy_change")} nats.
    """
    if r.has("information_propagated"):
        shared = r.median("information_measured")
        rest += (
            f" With fixed weights they would share {r.median('information_propagated')} nats; they do share {shared}."
        )
    rule = {"above": 0.0, "control": "no change"}
    return _of_heads(r, "neighbours", "after", rest, lambda f: f["information_change"].median(), **rule)


def _spread(r: GaussianResult, name: str, depth: int = -1) -> tuple[Interval, str]:
    """||X - mean|| / ||X|| of a version at a depth, and as text; what is below the numerical precision is called that.

    Always the median over inputs: spreads can range over many orders of magnitude, where a mean is that of one input
    and depends on how rounding fell out.
    """
    values, floor = r.arrays[f"depth/{name}"][:, depth, 0], float(r.arrays[f"floor/{name}"][0])
    middle = median_interval(values)
    if (middle.high if middle.known else values.max()) < floor:
        return exactly(floor), f"less than {floor:.1g}, the numerical precision"
    middle = median_interval(np.maximum(values, floor))
    return middle, str(middle)


def _mixture(r: GaussianResult) -> list[Finding]:
    found = []
    for claim, names in (
        ("mixture", ("trained", "random weights")),
        ("mixture-alone", ("no skip", "random weights, no skip")),
    ):
        parts = [
            f"{name} from {_spread(r, name, 0)[1]} to {_spread(r, name)[1]}, mean cosine at the end "
            f"{r.arrays[f'depth/{name}'][:, -1, 1].mean():.3g}"
            for name in names
            if f"depth/{name}" in r.arrays
        ]
        rest = (
            f". ||X - mean|| / ||X|| (median over inputs) goes, from the first layer to the last: {'; '.join(parts)}. Tokens count as alike "
            f"below {MIXED:g}."
        )
        ends = [_spread(r, name)[0] for name in names if f"depth/{name}" in r.arrays]
        rule: dict[str, Any] = {"below": MIXED, "control": "the spread below which tokens count as alike"}
        random, n = ends[1] if len(ends) > 1 else None, len(r.arrays["depth/trained"])
        found.append(_tested(r, claim, "mixture-spread", rest, ends[0], random=random, n=n, **rule))
    found += _divergence(r)
    share = r.arrays["position/trained"]
    if np.isfinite(share).all():
        text = f"""
            That the distributions of positions converge, as the hypothesis says, shows little: before the first layer
            position explains {share[0]:.1%} of the variance of tokens, after the last {share[-1]:.1%}.
        """
        found.append(Finding(text, "positions"))
    scaled = ("no skip, alpha = 1/2", "no skip", "no skip, alpha = 2")
    low, same, high = (_spread(r, name)[1] for name in scaled)
    rest = f". Scaling Wq and Wk by 1/2, 1 and 2 leaves, without skip connections, a spread of {low}; {same}; {high}."
    rise = mean_interval(r.arrays[f"depth/{scaled[2]}"][:, -1, 0] - r.arrays[f"depth/{scaled[0]}"][:, -1, 0])
    rule = {"above": 0.0, "control": "alpha = 2 less alpha = 1/2", "floor": float(r.arrays["floor/no skip"][0])}
    found.append(_tested(r, "spectra", "mixture-spread", rest, rise, **rule))
    if "depth/skip 1/2" in r.arrays:
        spreads = [f"{name} {_spread(r, name)[1]}" for name in ("no skip", "skip 1/2", "skip 9/10")]
        gain = mean_interval(r.arrays["depth/skip 1/2"][:, -1, 0] - r.arrays["depth/no skip"][:, -1, 0])
        rest = (
            f". Attention beside a part of its input leaves, after the last layer, a spread of: {'; '.join(spreads)}."
        )
        rule = {"above": 0.0, "control": "attention alone", "floor": float(r.arrays["floor/no skip"][0])}
        found.append(_tested(r, "skip", "mixture-spread", rest, gain, **rule))
    return found


def _divergence(r: GaussianResult) -> list[Finding]:
    """The hypothesis of the uniform embedding mixture as stated: the distributions of positions become one."""
    apart = r.arrays.get("divergence/trained")
    if apart is None or not np.isfinite(apart).all():
        return []
    parts = list(apart.swapaxes(0, 1))  # of all inputs, then with each left out: (n_depth, 2)
    change = over_inputs(parts, lambda one: float((one[-1] - one[0]) @ [1, -1]))
    first, last = (over_inputs([one[at, 0] for one in parts], float) for at in (0, -1))
    rest = f"""
        : the Jensen-Shannon divergence between thirds of the text goes from {first} to {last} nats, that of tokens
        assigned to thirds at random from {apart[0, 0, 1]:.3g} to {apart[-1, 0, 1]:.3g}. Beyond the latter it changes by {change}.
    """
    return [
        _tested(
            r, "divergence", "divergence", rest, change, below=0.0, control="no change beyond that of random thirds"
        )
    ]


def _rank(r: GaussianResult) -> Finding:
    log, ranks = float(np.log(r.n_token)), r.heads["rank90"].dropna()
    rest = f"""
        : 90 % of the energy of a map lies in {r.median("rank90")} singular values{_random(r, "rank90")}, {ranks.min():.3g}
        to {ranks.max():.3g} over heads; log n = {log:.1f}. {_share(ranks <= log)} of heads need no more than log n.
    """
    rule = {"below": log, "control": f"log n, which {NEARLY_ALL:.0%} of heads must not exceed"}
    return _of_heads(r, "rank", "rank", rest, lambda f: f["rank90"].quantile(NEARLY_ALL), **rule)


def _data(r: GaussianResult) -> Finding:
    """Chapter 6 says what follows if bases are aligned; whether they are, with the data, it leaves open."""
    own = r.median("data_query")
    judged = _enough(r, own.n, judge(own, above=1.0, control="random directions"))
    more, less = (
        f"queries are read from directions in which a layer's inputs vary {how} than in random ones"
        for how in ("more", "less")
    )
    parts = [
        f"{r.median(f'data_{name}')} for {matrix}{_random(r, f'data_{name}')}"
        for name, matrix in (("query", "W_q"), ("key", "W_k"), ("value", "W_v"))
    ]
    text = f"""
        {judged.opening(more, less)}: the variance of inputs along the leading singular vectors of a head, over that along as
        many random directions, is {"; ".join(parts)}. For W_q it is above 1 in {_share(r.heads["data_query"].dropna() > 1)} of
        heads.
    """
    return Finding(text, "data")


def _embeddings(r: GaussianResult) -> list[Finding]:
    """Of the vocabulary: here n counts tokens, which are drawn at random from it."""
    e = {name.removeprefix("embedding/"): x for name, x in r.arrays.items() if name.startswith("embedding/")}
    dim, norms, text = int(e["dim"][0]), e["norms"], e["norms_text"]
    log, chance = float(np.log(dim)), (2 * dim) ** -0.5
    spread = jackknife(lambda chosen: float(norms[chosen].std() / norms[chosen].mean()), len(norms))
    rest = f"""
        : over tokens of the vocabulary the mean length is {norms.mean():.3g}, and lengths spread, in percent of it, by
        {spread.scaled(100)}; in the text these are {text.mean():.3g} and {100 * text.std() / text.mean():.2g}; lengths of
        random vectors spread by {100 * chance:.2g} percent.
    """
    control = f"random normal vectors in {dim} dimensions"
    sphere = on_claim("gaussian.sphere", judge(spread, below=chance, control=control), rest, "norms")
    means = {name: mean_interval(e[name]) for name in e if name not in ("dim", "norms", "norms_text")}
    gap = mean_interval(e["entropy"] - e["entropy_random"])
    rest = f"""
        : the entropy of softmax is {means["entropy"]} nats for embeddings, {means["entropy_random"]} for random vectors
        (difference {gap}); log n - l^2/2n gives {means["entropy_predicted"].value:.4g}, log n is {log:.4g}.
    """
    size, control = gap if gap.value >= 0 else gap.scaled(-1), f"{FLAT:.0%} of log n counts as no difference"
    seen = on_claim("gaussian.softmax", judge(size, below=FLAT * log, control=control), rest, "embedding-entropy")
    near = (
        f"The nearest other embedding (of at most 20,000) has a cosine of {means['nearest']}, for random vectors "
        f"{means['nearest_random']}; a pair has {means['pairs']} on average, random ones {means['pairs_random']}. Here n "
        "counts tokens."
    )
    return [sphere, seen, Finding(near, "neighbours" if r.neighbours else None)]


def _cosine(r: GaussianResult) -> Finding:
    size, rho = r.median("cosine_size"), r.heads["cosine_partial"].dropna()
    rest = f"""
        : the rank correlation, distance held fixed, has a size of {size}{_random(r, "cosine_size")}. It is beyond chance
        (p <= {SIGNIFICANT:g}) in {_share(r.heads["cosine_p"] <= SIGNIFICANT)} of heads and at least {CLEAR:g} in
        {_share(rho.abs() >= CLEAR)}.
    """
    rule = {"below": WEAK, "control": "a correlation that hardly predicts anything"}
    return _of_heads(r, "cosine", "cosine", rest, lambda f: f["cosine_size"].median(), **rule)
