"""The pictures of the Gaussian study, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, median_interval, student_interval
from headscape.results import Captions, FigureSpec
from headscape.statistics.thesis import THESIS
from headscape.studies.gaussian.findings import LINKS, MIXED
from headscape.studies.gaussian.result import GaussianResult, over_inputs
from headscape.studies.work.series import curve, heads_as_points, level, line

__all__ = ["figures"]
captions = Captions(__name__)

Array = npt.NDArray[Any]
DEPTHS = 5
"""Depths drawn of a measure that is taken at all of them."""


def figures(r: GaussianResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [captions.table("gaussian-overview", r.overview, n_heads=len(r.heads), THESIS=THESIS)]
    found.append(captions.figure("gaussian-grid", {"score": "kurtosis" if r.has("kurtosis") else "rank90"}))
    if r.has("variance"):
        known = _points(r.heads.dropna(subset="variance"), "mean", {"heads": "self_mean"})
        found += [_predicted(r, "sd"), _predicted(r, "kurtosis"), captions.figure("score-self", known)]
    if "row_variance" in r.heads and r.has("row_variance"):
        found += [_chain(r, claim) for claim, (own, *_) in LINKS.items() if r.has(own)]
    if "temperature/changes" in r.arrays and "temperature" in r.heads:
        found.append(_temperature(r))
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
    if "divergence/trained" in r.arrays:
        found.append(_divergence(r))
    if r.has("rank90"):
        found.append(_rank(r))
    if "embedding/norms" in r.arrays:
        found += [_norms(r), _entropy(r)]
    if r.neighbours:
        found.append(captions.table("neighbours", pd.DataFrame(r.neighbours, columns=["token", "nearest by cosine"])))
    if r.has("cosine_partial"):
        cosines = {name: frames[0]["cosine_partial"].dropna().to_numpy() for name, frames in r.frames.items()}
        found.append(captions.violins("cosine", cosines))
    if r.has("data_query"):
        found.append(_data(r))
    return found


def _points(frame: pd.DataFrame, x: str, groups: dict[str, str]) -> dict[str, Any]:
    """A point per head and column y of `groups` {name: y}, and the diagonal where both are equal."""
    parts = [heads_as_points(frame, x, y, [name] * len(frame)) for name, y in groups.items()]
    every = frame[[x, *groups.values()]].to_numpy(dtype=float)
    equal = np.array([np.nanmin(every), np.nanmax(every)])
    found: dict[str, Any] = {axis: np.concatenate([part[axis] for part in parts]) for axis in ("x", "y")}
    found |= {key: [word for part in parts for word in part[key]] for key in ("names", "group")}
    return found | {"lines": [curve("equal", equal, equal)]}


def _chain(r: GaussianResult, claim: str) -> FigureSpec:
    own, predicted, words = LINKS[claim]
    frame = r.frames["trained"][0].dropna(subset=own)
    groups = {"from the weights": predicted}
    before = f"{own}_from_{'entropy' if own == 'mixing' else 'variance'}"
    if before in frame:
        groups["from the link before"] = before
    scale = {"log_x": True, "log_y": True} if own in ("row_variance", "row_ratio") else {}
    return captions.figure(
        "chain", _points(frame, own, groups), link=claim.removeprefix("chain_"), words=words, **scale
    )


def _temperature(r: GaussianResult) -> FigureSpec:
    changes = r.arrays["temperature/changes"].mean(axis=0)
    frame = r.heads.assign(**{"scores halved": changes[0], "scores doubled": changes[1]})
    data = _points(frame, "temperature", {name: name for name in ("scores halved", "scores doubled")})
    return captions.figure("temperature", {name: part for name, part in data.items() if name != "lines"})


def _predicted(r: GaussianResult, what: str) -> FigureSpec:
    """Predicted against measured, one point per head and prediction."""
    frame = r.frames["trained"][0].dropna(subset="variance")
    frame = frame.assign(sd_independent=frame["variance_independent"] ** 0.5, sd_joint=frame["variance_joint"] ** 0.5)
    title, unit = ("Standard deviation", " (score units)") if what == "sd" else ("Excess kurtosis", "")
    groups = {f"{kind} tokens": f"{what}_{kind}" for kind in ("independent", "joint")}
    return captions.figure(
        "score",
        _points(frame, what, groups),
        what=what,
        title_2=title,
        lower=title.lower(),
        read="Each head twice: predicted by independent tokens of one Gaussian, and by a joint Gaussian of query and key for every distance. "
        "A correct prediction lies on the diagonal."
        + ("" if what == "sd" else " 0 is normal; heavy tails are positive."),
        x_label="measured" + unit,
        y_label="predicted" + unit,
        log_x=what == "sd",
        log_y=what == "sd",
    )


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
    return captions.lines(
        "information", [*series, level("shuffled pairs", r.distances, 0.0)], min=kept.min(), max=kept.max()
    )


def _next(r: GaussianResult) -> FigureSpec:
    series = []
    for source, name in (("model", "the model's 20 likeliest"), ("1-gram", "1-gram table")):
        spectrum = r.arrays.get(f"next/{source}/spectrum")
        if spectrum is not None:
            mean = np.nanmean(spectrum, axis=0)
            series.append(curve(name, 1 + np.flatnonzero(mean > 1e-6), mean[mean > 1e-6]))
    return captions.lines("next-spectrum", series)


def _by_layer(
    r: GaussianResult, columns: dict[str, str], sources: Sequence[str] = ("trained",), least: float = -np.inf
) -> list[dict[str, Any]]:
    """One line per column {name: column} and source: mean over the heads of each layer, with its interval over inputs.

    `least` is the smallest value that can be.
    """
    series = []
    for name, column in columns.items():
        for source in [source for source in sources if source in r.frames]:
            known = r.frames[source][0].dropna(subset=column)["layer"].unique()
            means = [frame.groupby("layer")[column].mean() for frame in r.frames[source]]
            ends = [over_inputs([mean[layer] for mean in means], float).within(least, np.inf) for layer in known]
            series.append(line(name or source, known, ends, "dash" if column.endswith("propagated") else None))
    return series


def _propagated(r: GaussianResult) -> FigureSpec:
    series = _by_layer(r, {"": "trace_ratio"}, ("trained", "random weights"), least=0.0)
    return captions.lines("propagated", [*series, level("equal", series[0]["x"], 1.0)])


def _after(r: GaussianResult) -> FigureSpec:
    columns = {"values": "information_values", "outputs": "information_measured"}
    if r.has("information_propagated"):
        columns["outputs, fixed weights"] = "information_propagated"
    return captions.lines("after", _by_layer(r, columns), min=r.heads["variance_kept"].min())


def _versions(r: GaussianResult, what: str) -> dict[str, Array]:
    """Arrays of the versions by name, those of random weights last."""
    found = {key.removeprefix(what): array for key, array in r.arrays.items() if key.startswith(what)}
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith("random"), "no skip" in item[0])))


def _depth(r: GaussianResult, part: int) -> FigureSpec:
    series = []
    for name, spread in _versions(r, "depth/").items():
        dash = "dot" if name.startswith("random") else "dash" if "no skip" in name else None
        values, floor = spread[:, :, part], float(r.arrays[f"floor/{name}"][0])
        middle, shown, least = (  # a cosine may have either sign
            (student_interval, values, -1.0) if part else (median_interval, np.maximum(values, floor), floor)
        )
        spans = [middle(column).within(least, 1.0) for column in shown.T]
        series.append(line(name, np.arange(values.shape[1]), spans, dash))
    x = series[0]["x"]
    what, floor = "Cosine of two tokens" if part else "Spread of tokens", float(r.arrays["floor/no skip"][0])
    series += [] if part else [level("tokens count as alike", x, MIXED), level("numerical precision", x, floor)]
    formula = "Mean cosine of different tokens of an input; 1 when they are one." if part else "||X - mean|| / ||X||."
    return captions.lines(
        "mixture",
        series,
        what=what,
        formula=formula,
        lower=what.lower(),
        middle="Means" if part else "Medians",
        id="mixture" if part else "mixture-spread",
        y_label="mean cosine" if part else "||X - mean|| / ||X||",
        log_y=not part,
    )


def _positions(r: GaussianResult) -> FigureSpec:
    series = [
        curve(name, np.arange(len(share)), share)
        for name, share in _versions(r, "position/").items()
        if np.isfinite(share).all() and "alpha" not in name
    ]
    return captions.lines("positions", series)


def _divergence(r: GaussianResult) -> FigureSpec:
    series: list[dict[str, Any]] = []
    for name, found in _versions(r, "divergence/").items():
        if np.isfinite(found).all() and "alpha" not in name:
            series.append(curve(name, np.arange(len(found)), found[:, 0, 0]))
            if name == "trained":
                series.append(curve("trained, tokens in random thirds", np.arange(len(found)), found[:, 0, 1], "dot"))
    return captions.lines("divergence", series)


def _rank(r: GaussianResult) -> FigureSpec:
    series = _by_layer(r, {"": "rank90"}, ("trained", "random weights"), least=1.0)
    return captions.lines("rank", [*series, level("log n", series[0]["x"], float(np.log(r.n_token)))])


def _data(r: GaussianResult) -> FigureSpec:
    series = _by_layer(r, {"W_q": "data_query", "W_k": "data_key", "W_v": "data_value"}, least=0.0)
    return captions.lines("data", [*series, level("random directions", series[0]["x"], 1.0)])


def _norms(r: GaussianResult) -> FigureSpec:
    names = {"vocabulary": "norms", "tokens of the text": "norms_text"}
    return captions.violins("norms", {name: r.arrays[f"embedding/{key}"] for name, key in names.items()})


def _entropy(r: GaussianResult) -> FigureSpec:
    names = {"embeddings": "entropy", "random vectors": "entropy_random", "log n - l^2/2n": "entropy_predicted"}
    groups = {name: r.arrays[f"embedding/{key}"] for name, key in names.items()}
    return captions.violins("embedding-entropy", groups, value=float(np.log(r.arrays["embedding/dim"][0])))
