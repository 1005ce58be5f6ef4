"""The pictures of the spectra study, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from headscape.results import FigureSpec
from headscape.statistics.spectra import MarchenkoPastur
from headscape.studies.spectra.result import KIND_NAMES

if TYPE_CHECKING:
    from headscape.studies.spectra.result import SpectraResult

__all__ = ["figures"]

POINTS = 101
"""Ranks at which spectra of different lengths are compared."""


def figures(r: SpectraResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    return [
        _table(r),
        _grid(r),
        _alignment(r),
        _against_noise(r),
        _by_layer(r, "evenness", "Evenness of the spectra", "participation ratio / that of noise", _EVENNESS),
        _by_layer(r, "energy", "Energy of the matrices", "sum of squares / Xavier's", _ENERGY, log=True),
        _outside(r),
        _symmetric(r),
        _scores(r),
    ]


_EVENNESS = (
    "How many directions carry a matrix, over how many carry noise of its shape: 1 is noise, lower is sparser.",
    "The thesis says that W_q and W_k become sparser than W_v.",
)
_ENERGY = (
    "Sum of squared singular values over that of Xavier's initialisation, whose variance is 2 / (rows + columns).",
    "Networks start from other variances than Xavier's, and norms before a matrix can take over its scale.",
)


def _table(r: SpectraResult) -> FigureSpec:
    frame = r.summary()
    rows = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in frame.to_numpy(dtype=object)]
    return FigureSpec(
        id="summary",
        title="Matrices by kind",
        kind="table",
        data={"columns": list(frame.columns), "rows": rows},
        read="Medians over layers. Energy is over Xavier's; largest/edge compares the largest singular value with the edge "
        "of noise of the same variance; outside is the share of values beyond the law of Marchenko and Pastur for that "
        "variance, above fit the number above the law fitted to the bulk.",
        caveat="A matrix can be far from noise and still do little.",
        alt="Table of spectra by kind of matrix, trained and at initialisation.",
    )


def _grid(r: SpectraResult) -> FigureSpec:
    return FigureSpec(
        id="alignment-grid",
        title="Base alignment, layer by head",
        kind="head_grid",
        data={"score": "z"},
        read="z of tr(W_q^T W_k): 0 for unrelated matrices, positive where a head's queries and keys read the same "
        "directions (a token finds what is like itself), negative where they oppose. Other columns can be chosen.",
        caveat="Weights alone: what enters them is not isotropic."
        + (" With rotary positions this is the alignment at offset 0." if r.rotary else ""),
        alt="Grid of layers and heads coloured by base alignment.",
        x_label="head",
        y_label="layer",
    )


def _alignment(r: SpectraResult) -> FigureSpec:
    groups = {"trained": r.heads["z"], "keys of another group": r.heads["z_other"]}
    if r.initial_heads is not None:
        groups["initialisation"] = r.initial_heads["z"]
    x = np.geomspace(0.1, max(10.0, float(r.heads["z"].abs().max())), POINTS)
    series: list[dict[str, Any]] = []
    for name, column in groups.items():
        z = np.abs(column.to_numpy(dtype=float))
        if np.isfinite(z).all():
            series.append({"name": name, "x": x, "y": (z[:, None] > x).mean(axis=0)})
    series.append({"name": "unrelated (normal law)", "x": x, "y": 2 * norm.sf(x), "dash": "dot"})
    return FigureSpec(
        id="alignment",
        title="Base alignment of all heads",
        kind="lines",
        data={"series": series},
        read="Share of heads whose |z| of tr(W_q^T W_k) lies above the value below. Unrelated matrices have a spread of 1 "
        "and rarely more than 3. A query head and the keys of another group belong to no common head.",
        caveat="p-values in the table come from random rotations, since few large singular values make wider tails than the "
        "normal law has.",
        alt="Lines of the share of heads above a base alignment, for trained weights and controls.",
        x_label="|z| of the base alignment",
        y_label="share of heads above",
        log_x=True,
    )


def _against_noise(r: SpectraResult) -> FigureSpec:
    x = np.linspace(0, 1, POINTS)
    series: list[dict[str, Any]] = []
    for kind in r.kinds:
        curves = []
        for i, row in r.of_kind(kind).iterrows():
            law = MarchenkoPastur(int(row["rows"]), int(row["columns"]), float(row["variance"]))
            own, noise = r.values[f"matrix/{i:04d}"], law.expected
            at = (np.arange(len(own)) + 0.5) / len(own)
            curves.append(
                np.interp(x, at, own / np.maximum(noise, 1e-12 * noise[0])) if noise[0] > 0 else np.zeros_like(x)
            )
        series.append({"name": KIND_NAMES[kind], "x": x, "y": np.median(curves, axis=0)})
    series.append({"name": "noise", "x": x[[0, -1]], "y": np.ones(2), "dash": "dot"})
    return FigureSpec(
        id="against-noise",
        title="Singular values against noise",
        kind="lines",
        data={"series": series},
        read="Each singular value over that of noise of the same shape and energy at the same rank, largest on the left; "
        "median over layers. Above 1 on the left and below on the right: few directions carry the matrix.",
        caveat="Of a square matrix the smallest values of noise are near 0, so that the right end says little.",
        alt="Lines of singular values relative to noise, by rank, for every kind of matrix.",
        x_label="rank, as a share",
        y_label="singular value / that of noise",
        log_y=True,
        paper="figure A.20",
    )


def _by_layer(
    r: SpectraResult, column: str, title: str, label: str, words: tuple[str, str], log: bool = False
) -> FigureSpec:
    series: list[dict[str, Any]] = []
    for kind in ("q", "k", "v"):
        own = r.of_kind(kind)
        series.append({"name": KIND_NAMES[kind], "x": np.arange(len(own)), "y": own[column].to_numpy(dtype=float)})
    if r.initial_matrices is not None:
        for kind in ("q", "k", "v"):
            first = r.of_kind(kind, initial=True)
            line = {"x": np.arange(len(first)), "y": first[column].to_numpy(dtype=float), "dash": "dot"}
            series.append({"name": f"{KIND_NAMES[kind]}, initial", **line})
    return FigureSpec(
        id=column,
        title=title,
        kind="lines",
        data={"series": series},
        read=words[0],
        caveat=words[1],
        alt=f"Lines of {column} by layer for queries, keys and values.",
        x_label="layer",
        y_label=label,
        log_y=log,
    )


def _outside(r: SpectraResult) -> FigureSpec:
    names = [KIND_NAMES[kind] for kind in r.kinds]
    values, group = [r.share_outside(kind) for kind in r.kinds], ["trained"] * len(names)
    if r.initial_matrices is not None:
        values += [r.share_outside(kind, initial=True) for kind in r.kinds]
        group += ["initialisation"] * len(names)
        names = names * 2
    return FigureSpec(
        id="outside",
        title="Values outside the law",
        kind="bars",
        data={"names": names, "values": values, "group": group},
        read="Share of all singular values of a kind that lie beyond the edges of Marchenko and Pastur's law for their "
        "matrix's own variance and shape, with room for the fluctuation of a matrix of that size.",
        caveat="Values far below the lower edge count too; a square matrix has no lower edge.",
        alt="Bars of the share of singular values outside the law, by kind of matrix.",
        y_label="share of singular values",
    )


def _symmetric(r: SpectraResult) -> FigureSpec:
    groups: list[dict[str, Any]] = [{"name": "trained", "values": r.heads["symmetric"].to_numpy()}]
    if r.initial_heads is not None:
        groups.append({"name": "initialisation", "values": r.initial_heads["symmetric"].to_numpy()})
    return FigureSpec(
        id="symmetric",
        title="Symmetric part of the score matrices",
        kind="violins",
        data={"groups": groups},
        read="Share of the energy of W_q^T W_k in its symmetric part, all heads. 0.5 for unrelated matrices; 1 where query "
        "and key are the same, 0 where swapping two tokens turns the sign of the score.",
        caveat="Energy of weights, not of scores on real inputs.",
        alt="Violins of the symmetric share of energy, trained and at initialisation.",
        y_label="symmetric share of energy",
    )


def _scores(r: SpectraResult) -> FigureSpec:
    names = [f"{b}.{n}.{h}" for b, n, h in zip(r.heads["block"], r.heads["layer"], r.heads["head"], strict=True)]
    thirds = np.minimum(3 * r.heads["layer"].to_numpy() // (1 + r.heads["layer"].max()), 2)
    return FigureSpec(
        id="score-ranks",
        title="Alignment and rank of the score matrices",
        kind="scatter",
        data={
            "x": r.heads["score_rank"].to_numpy(),
            "y": r.heads["z"].to_numpy(),
            "names": names,
            "group": [("early layers", "middle layers", "late layers")[t] for t in thirds],
        },
        read="Each point is a head: how many directions carry its W_q^T W_k, and its base alignment.",
        caveat="A score matrix of low rank can still be used in full by inputs that lie in it.",
        alt="Scatter of the rank of score matrices against base alignment.",
        x_label="participation ratio of W_q^T W_k",
        y_label="z of the base alignment",
    )
