"""The pictures of the Gaussian study, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, mean_interval
from headscape.results import FigureSpec, table_figure
from headscape.statistics.thesis import THESIS
from headscape.studies.gaussian.findings import MIXED
from headscape.studies.gaussian.result import over_inputs
from headscape.studies.work.series import level, line

if TYPE_CHECKING:
    from headscape.studies.gaussian.result import GaussianResult

__all__ = ["figures"]

Array = npt.NDArray[Any]
DEPTHS = 5
"""Depths drawn of a measure that is taken at all of them."""


def figures(r: GaussianResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_table(r), _grid(r)]
    if r.has("variance"):
        found += [_predicted(r, "sd"), _predicted(r, "kurtosis"), _self(r)]
    if r.information is not None and len(r.distances) > 1:
        found.append(_information(r))
    if any(name.startswith("next/") for name in r.arrays):
        found.append(_next(r))
    if r.has("covariance_off"):
        found.append(_propagated(r))
    if r.has("entropy_measured"):
        found.append(_after(r))
    if "depth/trained" in r.arrays:
        found += [_depth(r, 1), _depth(r, 0), _positions(r)]
    if r.has("rank90"):
        found.append(_rank(r))
    if "embedding/norms" in r.arrays:
        found += [_norms(r), _entropy(r)]
    if r.neighbours:
        found.append(_neighbours(r))
    if r.has("cosine_partial"):
        found.append(_cosine(r))
    return found


def _table(r: GaussianResult) -> FigureSpec:
    return table_figure(
        r.overview,
        id="gaussian-overview",
        title="Gaussians against the model",
        read=f"Medians over {len(r.heads)} heads, with 95 % intervals over inputs. Predictions come from Gaussians fitted to the queries "
        "and keys before rotation, which are the Gaussians of the layer's inputs mapped by its weights; rotations are those of the distances "
        f"0, 1, 4, 16 and 64, and scores are measured at the same distances. Source of the statements: {THESIS}.",
        caveat="The first token is left out: it is the same in every input and far from all others.",
        alt="Table of predicted and measured medians over heads.",
    )


def _grid(r: GaussianResult) -> FigureSpec:
    return FigureSpec(
        id="gaussian-grid",
        title="Layer by head",
        kind="head_grid",
        data={"score": "kurtosis" if r.has("kurtosis") else "rank90"},
        read="One cell per head; choose any measure: moments of scores and their predictions, what attention does to covariance, entropy and "
        "information, the rank of the map, the correlation with embedding cosines.",
        caveat="All inputs of this run together.",
        alt="Grid of layers and heads coloured by a measure of the study.",
        x_label="head",
        y_label="layer",
    )


def _points(frame: pd.DataFrame, x: str, groups: dict[str, str]) -> dict[str, Any]:
    """A point per head and column y of `groups` {name: y}, and the diagonal where both are equal."""
    names = [f"{b}.{n}.{h}" for b, n, h in zip(frame["block"], frame["layer"], frame["head"], strict=True)]
    every = frame[[x, *groups.values()]].to_numpy(dtype=float)
    ends = np.nanmin(every), np.nanmax(every)
    equal = np.array(ends)
    return {
        "x": np.concatenate([frame[x].to_numpy()] * len(groups)),
        "y": np.concatenate([frame[y].to_numpy() for y in groups.values()]),
        "names": names * len(groups),
        "group": [name for name in groups for _ in names],
        "lines": [{"name": "equal", "x": equal, "y": equal}],
    }


def _predicted(r: GaussianResult, what: str) -> FigureSpec:
    """Predicted against measured, one point per head and prediction."""
    frame = r.frames["trained"][0].dropna(subset="variance")
    frame = frame.assign(sd_independent=frame["variance_independent"] ** 0.5, sd_joint=frame["variance_joint"] ** 0.5)
    title, unit = ("Standard deviation", " (score units)") if what == "sd" else ("Excess kurtosis", "")
    groups = {f"{kind} tokens": f"{what}_{kind}" for kind in ("independent", "joint")}
    return FigureSpec(
        id=f"score-{what}",
        title=f"{title} of scores: predicted and measured",
        kind="scatter",
        data=_points(frame, what, groups),
        read="Each head twice: predicted by independent tokens of one Gaussian, and by a joint Gaussian of query and key for every distance. "
        "A correct prediction lies on the diagonal."
        + ("" if what == "sd" else " 0 is normal; heavy tails are positive."),
        caveat="Scores of different distances have different means, which is part of their spread in both.",
        alt=f"Scatter of predicted against measured {title.lower()} by head, with the diagonal.",
        x_label="measured" + unit,
        y_label="predicted" + unit,
        log_x=what == "sd",
        log_y=what == "sd",
    )


def _self(r: GaussianResult) -> FigureSpec:
    return FigureSpec(
        id="score-self",
        title="Scores of tokens with themselves",
        kind="scatter",
        data=_points(r.heads.dropna(subset="variance"), "mean", {"heads": "self_mean"}),
        read="Each point is a head: its mean score over all pairs, and over pairs of a token with itself. Above the diagonal self-pairings "
        "are raised, as tr(C S) > 0 would have it.",
        caveat="A shift of all scores of a query changes no attention.",
        alt="Scatter of the mean self-score against the mean score by head, with the diagonal.",
        x_label="mean score, all pairs",
        y_label="mean score with itself",
    )


def _lines(id: str, series: Sequence[dict[str, Any]], **texts: Any) -> FigureSpec:
    return FigureSpec(id=id, kind="lines", data={"series": list(series)}, **texts)


def _information(r: GaussianResult) -> FigureSpec:
    assert r.information is not None
    assert r.information_facts is not None
    depths = np.unique(np.rint(np.linspace(0, len(r.information) - 1, DEPTHS)).astype(int))

    def ends(found: Array) -> list[Interval]:  # (n_distance, 1 + n_input)
        return [over_inputs(list(row), float) for row in found]

    series = [
        line("embeddings" if depth == 0 else f"after layer {depth - 1}", r.distances, ends(r.information[depth]))
        for depth in depths
    ]
    if r.control_information is not None:
        series.append(line("random weights, last", r.distances, ends(r.control_information[-1]), "dash"))
    kept = r.information_facts[depths, 0, 2]
    return _lines(
        "information",
        [*series, level("shuffled pairs", r.distances, 0.0)],
        title="Mutual information by distance",
        read="Of two tokens in their 32 leading principal components, beyond that of shuffled pairs, with 95 % intervals over inputs. The "
        f"components keep {kept.min():.0%} to {kept.max():.0%} of the variance.",
        caveat="Of Gaussians fitted to the tokens: what is not linear between them is not seen.",
        alt="Lines of mutual information by token distance, at several depths.",
        x_label="distance (tokens)",
        y_label="mutual information (nats)",
        log_x=True,
    )


def _next(r: GaussianResult) -> FigureSpec:
    series = []
    for source, name in (("model", "the model's 20 likeliest"), ("1-gram", "1-gram table")):
        spectrum = r.arrays.get(f"next/{source}/spectrum")
        if spectrum is not None:
            mean = np.nanmean(spectrum, axis=0)
            series.append({"name": name, "x": 1 + np.flatnonzero(mean > 1e-6), "y": mean[mean > 1e-6]})
    return _lines(
        "next-spectrum",
        series,
        title="Spectrum of what comes next",
        read="Eigenvalues of the covariance of next-token embeddings, normalized to trace 1, mean over positions. Of 20 tokens at most 19 are "
        "not 0.",
        caveat="The 1-gram table is counted on the other inputs of this run, so most of its rows are short.",
        alt="Lines of mean eigenvalues by rank for the model's and the 1-gram mixture.",
        x_label="rank",
        y_label="share of the variance",
        log_y=True,
    )


def _by_layer(
    r: GaussianResult, columns: dict[str, str], sources: Sequence[str] = ("trained",)
) -> list[dict[str, Any]]:
    """One line per column {name: column} and source: mean over the heads of each layer, with its interval over inputs."""
    series = []
    for name, column in columns.items():
        for source in [source for source in sources if source in r.frames]:
            known = r.frames[source][0].dropna(subset=column)["layer"].unique()
            means = [frame.groupby("layer")[column].mean() for frame in r.frames[source]]
            ends = [over_inputs([mean[layer] for mean in means], float) for layer in known]
            series.append(line(name or source, known, ends, "dash" if column.endswith("propagated") else None))
    return series


def _propagated(r: GaussianResult) -> FigureSpec:
    series = _by_layer(r, {"": "trace_ratio"}, ("trained", "random weights"))
    return _lines(
        "propagated",
        [*series, level("equal", series[0]["x"], 1.0)],
        title="Covariance after attention: propagated over measured",
        read="Trace of the covariance of a head's output if the weights were fixed (the mean map of the other inputs), over the measured one; "
        "mean over heads with 95 % intervals over inputs. 1 would be correct.",
        caveat="The mean map is itself taken from few inputs.",
        alt="Lines of the ratio of traces by layer, with 1 as reference.",
        x_label="layer",
        y_label="propagated / measured trace",
    )


def _after(r: GaussianResult) -> FigureSpec:
    columns = {"values": "information_values", "outputs": "information_measured"}
    if r.has("information_propagated"):
        columns["outputs, fixed weights"] = "information_propagated"
    return _lines(
        "after",
        _by_layer(r, columns),
        title="Information of neighbours before and after attention",
        read="Mutual information of a token's vector in a head with its neighbour's, beyond shuffled pairs: of the values that go in, of the "
        "outputs, and of outputs had the weights been fixed; mean over heads with 95 % intervals over inputs.",
        caveat=f"In 32 principal components of the values, which keep {r.heads['variance_kept'].min():.0%} or more of them.",
        alt="Lines of mutual information of neighbours by layer.",
        x_label="layer",
        y_label="mutual information (nats)",
    )


def _versions(r: GaussianResult, what: str) -> dict[str, Array]:
    """Arrays of the versions by name, those of random weights last."""
    found = {key.removeprefix(what): array for key, array in r.arrays.items() if key.startswith(what)}
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith("random"), "no skip" in item[0])))


def _depth(r: GaussianResult, part: int) -> FigureSpec:
    series = []
    for name, spread in _versions(r, "depth/").items():
        dash = "dot" if name.startswith("random") else "dash" if "no skip" in name else None
        values, floor = spread[:, :, part], float(r.arrays[f"floor/{name}"][0])
        shown = values if part else np.maximum(values, floor)
        series.append(line(name, np.arange(values.shape[1]), [mean_interval(column) for column in shown.T], dash))
        if part:
            continue
        for end in ("low", "high"):
            if end in series[-1]:
                series[-1][end] = np.maximum(series[-1][end], floor)
    x = series[0]["x"]
    what, floor = "Cosine of two tokens" if part else "Spread of tokens", float(r.arrays["floor/no skip"][0])
    series += [] if part else [level("tokens count as one", x, MIXED), level("numerical precision", x, floor)]
    formula = "Mean cosine of different tokens of an input; 1 when they are one." if part else "||X - mean|| / ||X||."
    return _lines(
        "mixture" if part else "mixture-spread",
        series,
        title=f"{what} by depth",
        read=f"{formula} 'No skip' is attention alone, without skip connections and feed-forward parts (biases stay), computed in float64; "
        "alpha scales Wq and Wk, so that scores are multiplied by alpha^2. Means with 95 % intervals over inputs.",
        caveat="The first token is left out. What lies below the numerical precision is drawn at it.",
        alt=f"Lines of {what.lower()} by depth for versions of the model.",
        x_label="depth (layers passed)",
        y_label="mean cosine" if part else "||X - mean|| / ||X||",
        log_y=not part,
    )


def _positions(r: GaussianResult) -> FigureSpec:
    series = [
        {"name": name, "x": np.arange(len(share)), "y": share}
        for name, share in _versions(r, "position/").items()
        if np.isfinite(share).all() and "alpha" not in name
    ]
    return _lines(
        "positions",
        series,
        title="Variance of tokens that position explains",
        read="Distance of the means of the positions' distributions as a share of the variance, noise subtracted. 0: all positions have one mean.",
        caveat="A few inputs; means only.",
        alt="Lines of the share of variance explained by position, by depth.",
        x_label="depth (layers passed)",
        y_label="share of variance",
    )


def _rank(r: GaussianResult) -> FigureSpec:
    series = _by_layer(r, {"": "rank90"}, ("trained", "random weights"))
    return _lines(
        "rank",
        [*series, level("log n", series[0]["x"], float(np.log(r.n_token)))],
        title="Singular values for 90 % of a map",
        read="Mean over the heads of a layer with 95 % intervals over inputs, beside log n.",
        caveat="A map that looks at one key for every query needs few, one that looks at each token's neighbour needs nearly all.",
        alt="Lines of the number of singular values by layer beside log n.",
        x_label="layer",
        y_label="singular values",
        log_y=True,
    )


def _violins(id: str, title: str, groups: dict[str, Array], **texts: Any) -> FigureSpec:
    data = {"groups": [{"name": name, "values": values} for name, values in groups.items()]}
    return FigureSpec(id=id, title=title, kind="violins", data=data, **texts)


def _norms(r: GaussianResult) -> FigureSpec:
    names = {"vocabulary": "norms", "tokens of the text": "norms_text"}
    return _violins(
        "norms",
        "Lengths of embeddings",
        {name: r.arrays[f"embedding/{key}"] for name, key in names.items()},
        read="Of 1,000 tokens of the vocabulary and of the tokens of the text, as the embedding module outputs them. On one sphere all would be "
        "equal.",
        alt="Violins of embedding lengths.",
        y_label="length",
    )


def _entropy(r: GaussianResult) -> FigureSpec:
    names = {"embeddings": "entropy", "random vectors": "entropy_random", "log n - l^2/2n": "entropy_predicted"}
    return _violins(
        "embedding-entropy",
        "Entropy of softmax of embeddings",
        {name: r.arrays[f"embedding/{key}"] for name, key in names.items()},
        read="Beside random vectors of equal lengths and the formula for short ones; log n is "
        f"{float(np.log(r.arrays['embedding/dim'][0])):.4f}.",
        caveat="The formula fails for long vectors.",
        alt="Violins of softmax entropies of embeddings and random vectors.",
        y_label="entropy (nats)",
    )


def _neighbours(r: GaussianResult) -> FigureSpec:
    return table_figure(
        pd.DataFrame(r.neighbours, columns=["token", "nearest by cosine"]),
        id="neighbours",
        title="Nearest embeddings",
        read="Frequent words of the text and the nearest tokens of the whole vocabulary.",
        alt="Table of tokens and their nearest neighbours.",
    )


def _cosine(r: GaussianResult) -> FigureSpec:
    return _violins(
        "cosine",
        "Attention and the cosine of embeddings",
        {name: frames[0]["cosine_partial"].dropna().to_numpy() for name, frames in r.frames.items()},
        read="Rank correlation over pairs of different tokens, distance held fixed, of all heads. 0: no relation.",
        caveat="Attention is multiplied by the number of keys a query has, so that rows of different length compare.",
        alt="Violins of rank correlations of attention with embedding cosines.",
        y_label="rank correlation",
    )
