"""The pictures of the Gaussian study, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.results import FigureSpec, bootstrap

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
    if any(name.startswith("depth/") for name in r.arrays):
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
    return FigureSpec(
        id="gaussian-overview",
        title="Gaussians against the model",
        kind="table",
        data={"columns": list(r.overview.columns), "rows": r.overview.to_numpy(dtype=object).tolist()},
        read=f"Medians over {r.n_heads} heads, with 95 % intervals over heads. Predictions come from Gaussians fitted to "
        "the queries and keys before rotation, which are the Gaussians of the layer's inputs mapped by its weights; "
        "rotations are those of the distances 0, 1, 4, 16 and 64, and scores are measured at the same distances.",
        caveat="Intervals say how far heads differ, not how far another text would. The first token is left out: it is the "
        "same in every input and far from all others.",
        alt="Table of predicted and measured medians over heads.",
    )


def _grid(r: GaussianResult) -> FigureSpec:
    score = next((name for name in ("kurtosis", "rank90") if r.has(name)), "rank90")
    return FigureSpec(
        id="gaussian-grid",
        title="Layer by head",
        kind="head_grid",
        data={"score": score},
        read="One cell a head; choose any measure: moments of scores and their predictions, what attention does to "
        "covariance, entropy and information, the rank of the map, the correlation with embedding cosines.",
        caveat="All inputs of this run together.",
        alt="Grid of layers and heads coloured by a measure of the study.",
        x_label="head",
        y_label="layer",
    )


def _names(frame: pd.DataFrame) -> list[str]:
    return [f"{b}.{n}.{h}" for b, n, h in zip(frame["block"], frame["layer"], frame["head"], strict=True)]


def _predicted(r: GaussianResult, what: str) -> FigureSpec:
    """Predicted against measured, a point a head and prediction."""
    frame = r.heads[r.heads["variance"].notna()]

    def value(suffix: str) -> Array:
        found = frame["variance" + suffix] if what == "sd" else frame["kurtosis" + suffix]
        return np.asarray(np.sqrt(found) if what == "sd" else found)

    names = _names(frame)
    kinds = ("independent", "joint")
    title = "Standard deviation of scores" if what == "sd" else "Excess kurtosis of scores"
    return FigureSpec(
        id=f"score-{what}",
        title=f"{title}: predicted and measured",
        kind="scatter",
        data={
            "x": np.concatenate([value("")] * 2),
            "y": np.concatenate([value(f"_{kind}") for kind in kinds]),
            "names": names * 2,
            "group": [f"{kind} tokens" for kind in kinds for _ in names],
        },
        read="Each head twice: predicted by independent tokens of one Gaussian, and by a joint Gaussian of query and key "
        "for every distance. A right prediction lies on the diagonal."
        + ("" if what == "sd" else " 0 is normal; heavy tails are positive."),
        caveat="Scores of different distances have different means, which is part of their spread in both.",
        alt=f"Scatter of predicted against measured {'standard deviation' if what == 'sd' else 'kurtosis'}, by head.",
        x_label="measured" + (" (score units)" if what == "sd" else ""),
        y_label="predicted" + (" (score units)" if what == "sd" else ""),
        log_x=what == "sd",
        log_y=what == "sd",
    )


def _self(r: GaussianResult) -> FigureSpec:
    frame = r.heads[r.heads["variance"].notna()]
    return FigureSpec(
        id="score-self",
        title="Scores of tokens with themselves",
        kind="scatter",
        data={
            "x": frame["mean"].to_numpy(),
            "y": frame["self_mean"].to_numpy(),
            "names": _names(frame),
        },
        read="Each point is a head: its mean score over all pairs, and over pairs of a token with itself. Above the "
        "diagonal self-pairings are raised, as tr(C S) > 0 would have it.",
        caveat="A shift of all scores of a query changes no attention.",
        alt="Scatter of the mean self-score against the mean score, by head.",
        x_label="mean score, all pairs",
        y_label="mean score with itself",
    )


def _information(r: GaussianResult) -> FigureSpec:
    assert r.information is not None
    x = np.asarray(r.distances)
    last = len(r.information) - 1
    depths = np.unique(np.rint(np.linspace(0, last, DEPTHS)).astype(int))
    series = []
    for depth in depths:
        excess, error = r.information[depth, :, 0] - r.information[depth, :, 1], r.information[depth, :, 2]
        name = "embeddings" if depth == 0 else f"after layer {depth - 1}"
        part: dict[str, Any] = {"name": name, "x": x, "y": excess}
        if np.isfinite(error).all():
            part |= {"low": excess - 2 * error, "high": excess + 2 * error}
        series.append(part)
    if r.control_information is not None:
        found = r.control_information[last]
        series.append({"name": "random weights, last", "x": x, "y": found[:, 0] - found[:, 1], "dash": "dot"})
    kept = r.information[depths, 0, 4]
    return FigureSpec(
        id="information",
        title="Mutual information by distance",
        kind="lines",
        data={"series": series},
        read="Of two tokens in their 32 leading principal components, beyond that of shuffled pairs, with two standard "
        f"errors over inputs. The components keep {kept.min():.0%} to {kept.max():.0%} of the variance.",
        caveat="Of Gaussians fitted to the tokens: what is not linear between them is not seen.",
        alt="Lines of mutual information by token distance, at several depths.",
        x_label="distance (tokens)",
        y_label="mutual information (nats)",
        log_x=True,
    )


def _next(r: GaussianResult) -> FigureSpec:
    series = []
    for source in ("model", "1-gram"):
        spectrum = r.arrays.get(f"next/{source}/spectrum")
        if spectrum is not None:
            mean = np.nanmean(spectrum, axis=0)
            shown = mean > 1e-6
            name = "the model's 20 likeliest" if source == "model" else "1-gram table"
            series.append({"name": name, "x": 1 + np.flatnonzero(shown), "y": mean[shown]})
    return FigureSpec(
        id="next-spectrum",
        title="Spectrum of what comes next",
        kind="lines",
        data={"series": series},
        read="Eigenvalues of the covariance of next-token embeddings, of trace 1, mean over positions. Of 20 tokens there "
        "are at most 19 that are not 0.",
        caveat="The 1-gram table is counted on the other inputs of this run, so most of its rows are short.",
        alt="Lines of mean eigenvalues by rank for the model's and the 1-gram mixture.",
        x_label="rank",
        y_label="share of the variance",
        log_y=True,
    )


def _by_layer(
    frames: Mapping[str, pd.DataFrame | None], value: Callable[[pd.DataFrame], Any], dash: str | None = None
) -> list[dict[str, Any]]:
    """One line a frame: mean over the heads of each layer, with its interval over heads."""
    series = []
    for name, frame in frames.items():
        if frame is None:
            continue
        values = pd.Series(np.asarray(value(frame), dtype=float), index=frame.index)
        layers, ends = [], []
        for layer, here in values.groupby(frame["layer"]):
            finite = here[np.isfinite(here)].to_numpy()
            if len(finite):
                layers.append(layer)
                ends.append(bootstrap(finite))
        part: dict[str, Any] = {"name": name, "x": np.array(layers), "y": np.array([end.value for end in ends])}
        if ends and all(np.isfinite(end.low) for end in ends):
            part |= {"low": np.array([end.low for end in ends]), "high": np.array([end.high for end in ends])}
        if dash:
            part["dash"] = dash
        if len(layers):
            series.append(part)
    return series


def _propagated(r: GaussianResult) -> FigureSpec:
    frames = {"trained": r.heads, "random weights": r.control}
    return FigureSpec(
        id="propagated",
        title="Covariance after attention: propagated over measured",
        kind="lines",
        data={"series": _by_layer(frames, lambda f: f["trace_ratio"])},
        read="Trace of the covariance of a head's output if the weights were fixed (the mean map of the other inputs), over "
        "the measured one; mean over heads with 95 % intervals. 1 would be right.",
        caveat="The mean map is itself one of few inputs.",
        alt="Lines of the ratio of traces by layer.",
        x_label="layer",
        y_label="propagated / measured trace",
    )


def _after(r: GaussianResult) -> FigureSpec:
    series = []
    for column, name in (
        ("information_values", "values"),
        ("information_measured", "outputs"),
        ("information_propagated", "outputs, fixed weights"),
    ):
        dash = "dot" if column.endswith("propagated") else None
        series += _by_layer({name: r.heads}, itemgetter(column), dash)
    return FigureSpec(
        id="after",
        title="Information of neighbours before and after attention",
        kind="lines",
        data={"series": series},
        read="Mutual information of a token's vector in a head with its neighbour's, beyond shuffled pairs: of the values "
        "that go in, of the outputs, and of outputs had the weights been fixed.",
        caveat=f"In 32 principal components of the values, which keep {r.heads['variance_kept'].min():.0%} or more of them.",
        alt="Lines of mutual information of neighbours by layer.",
        x_label="layer",
        y_label="mutual information (nats)",
    )


def _depth(r: GaussianResult, part: int) -> FigureSpec:
    series = []
    for key, spread in r.arrays.items():
        if key.startswith("depth/"):
            name = key.removeprefix("depth/")
            ends = [bootstrap(column) for column in spread[:, :, part].T]
            line: dict[str, Any] = {"name": name, "x": np.arange(len(ends)), "y": np.array([e.value for e in ends])}
            if name.startswith("random"):
                line["dash"] = "dot"
            elif "no skip" in name:
                line["dash"] = "dash"
            series.append(line)
    series.sort(key=_version)
    what = "Cosine of two tokens" if part else "Spread of tokens"
    return FigureSpec(
        id="mixture" if part else "mixture-spread",
        title=f"{what} by depth",
        kind="lines",
        data={"series": series},
        read=(
            "Mean cosine of different tokens of an input; 1 when they are one. " if part else "||X - mean|| / ||X||. "
        )
        + "'No skip' is attention alone, without skip connections and feed-forward parts; alpha scales Wq and Wk, so "
        "that scores are multiplied by alpha^2.",
        caveat="The first token is left out. Means over a few inputs.",
        alt=f"Lines of {what.lower()} by depth for versions of the model.",
        x_label="depth (layers passed)",
        y_label="mean cosine" if part else "||X - mean|| / ||X||",
        log_y=not part,
    )


def _version(line: Mapping[str, Any]) -> int:
    order = ["trained", "alpha = 2", "alpha = 1/2", "no skip", "no skip, alpha = 2", "no skip, alpha = 1/2"]
    return order.index(line["name"]) if line["name"] in order else len(order)


def _positions(r: GaussianResult) -> FigureSpec:
    series = [
        {"name": key.removeprefix("position/"), "x": np.arange(len(share)), "y": share}
        for key, share in r.arrays.items()
        if key.startswith("position/") and np.isfinite(share).all() and "alpha" not in key
    ]
    series.sort(key=_version)
    return FigureSpec(
        id="positions",
        title="Variance of tokens that position explains",
        kind="lines",
        data={"series": series},
        read="Distance of the means of the positions' distributions as a share of the variance, noise taken off. 0: the "
        "positions have one mean.",
        caveat="A few inputs; means only.",
        alt="Lines of the share of variance explained by position, by depth.",
        x_label="depth (layers passed)",
        y_label="share of variance",
    )


def _rank(r: GaussianResult) -> FigureSpec:
    frames = {"trained": r.heads, "random weights": r.control}
    series = _by_layer(frames, lambda f: f["rank90"])
    layers = np.unique(r.heads["layer"].to_numpy())
    series.append({"name": "log n", "x": layers, "y": np.full(len(layers), np.log(r.n_token)), "dash": "dot"})
    return FigureSpec(
        id="rank",
        title="Singular values for 90 % of a map",
        kind="lines",
        data={"series": series},
        read="Mean over the heads of a layer with 95 % intervals, beside log n.",
        caveat="A map that looks at one key for every query needs few, one that looks at each token's neighbour needs nearly "
        "all.",
        alt="Lines of the number of singular values by layer beside log n.",
        x_label="layer",
        y_label="singular values",
        log_y=True,
    )


def _norms(r: GaussianResult) -> FigureSpec:
    groups = [
        {"name": "vocabulary", "values": r.arrays["embedding/norms"]},
        {"name": "tokens of the text", "values": r.arrays["embedding/norms_text"]},
    ]
    return FigureSpec(
        id="norms",
        title="Lengths of embeddings",
        kind="violins",
        data={"groups": groups},
        read="Of 1,000 tokens of the vocabulary and of the tokens of the text. On one sphere all would be equal.",
        caveat="",
        alt="Violins of embedding lengths.",
        y_label="length",
    )


def _entropy(r: GaussianResult) -> FigureSpec:
    groups = [
        {"name": "embeddings", "values": r.arrays["embedding/entropy"]},
        {"name": "random vectors", "values": r.arrays["embedding/entropy_random"]},
        {"name": "log n - l^2/2n", "values": r.arrays["embedding/entropy_predicted"]},
    ]
    return FigureSpec(
        id="embedding-entropy",
        title="Entropy of softmax of embeddings",
        kind="violins",
        data={"groups": groups},
        read=f"Beside random vectors of equal lengths and the formula for short ones; log n is "
        f"{float(np.log(r.arrays['embedding/dim'][0])):.4f}.",
        caveat="The formula fails for long vectors.",
        alt="Violins of softmax entropies of embeddings and random vectors.",
        y_label="entropy (nats)",
    )


def _neighbours(r: GaussianResult) -> FigureSpec:
    return FigureSpec(
        id="neighbours",
        title="Nearest embeddings",
        kind="table",
        data={"columns": ["token", "nearest by cosine"], "rows": [list(row) for row in r.neighbours]},
        read="Frequent words of the text and the nearest tokens of the whole vocabulary.",
        caveat="",
        alt="Table of tokens and their nearest neighbours.",
    )


def _cosine(r: GaussianResult) -> FigureSpec:
    groups = [{"name": "trained", "values": r.heads["cosine_partial"].dropna().to_numpy()}]
    if r.control is not None:
        groups.append({"name": "random weights", "values": r.control["cosine_partial"].dropna().to_numpy()})
    return FigureSpec(
        id="cosine",
        title="Attention and the cosine of embeddings",
        kind="violins",
        data={"groups": groups},
        read="Rank correlation over pairs of different tokens, distance taken out, of all heads. 0: no relation.",
        caveat="Attention is taken times the number of keys a query has, so that rows of different length compare.",
        alt="Violins of rank correlations of attention with embedding cosines.",
        y_label="rank correlation",
    )
