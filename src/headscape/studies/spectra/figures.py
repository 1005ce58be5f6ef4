"""The pictures of the spectra study, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

from headscape.results import FigureSpec, table_figure
from headscape.studies.spectra.result import KIND_NAMES, Side
from headscape.studies.work.series import level

if TYPE_CHECKING:
    from headscape.studies.spectra.result import SpectraResult

__all__ = ["figures"]

POINTS = 101
"""Ranks at which spectra of different lengths are compared."""


def figures(r: SpectraResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    evenness = _by_layer(
        r,
        "evenness",
        title="Evenness of the spectra",
        read="How many directions carry a matrix, over how many carry noise of its shape: 1 is noise, lower is sparser.",
        caveat="The thesis (Wertich, 2024) says that W_q and W_k become sparser than W_v.",
        y_label="participation ratio / that of noise",
    )
    energy = _by_layer(
        r,
        "energy",
        title="Energy of the matrices",
        read="Sum of squared singular values over that of Xavier's initialization, whose variance is 2 / (rows + columns).",
        caveat="Networks start from other variances than Xavier's, and a norm before a matrix can absorb its scale.",
        y_label="sum of squares / Xavier's",
        log_y=True,
    )
    found = [_table(r), _grid(r), _alignment(r), _against_noise(r), evenness, energy]
    return [*found, _outside(r), _symmetric(r), _scores(r)]


def _table(r: SpectraResult) -> FigureSpec:
    return table_figure(
        r.by_kind(),
        id="summary",
        title="Matrices by kind",
        read="Medians over layers. Energy is over Xavier's; largest/edge compares the largest singular value with the edge of noise of the same "
        "variance; above and below are the shares of values beyond the law of Marchenko and Pastur for that variance (a square matrix has no "
        "lower edge), above fit the number above the law fitted to the bulk.",
        caveat="A matrix can be far from noise and still do little. Shares compare only between matrices of one shape.",
        alt="Table of spectra by kind of matrix, trained and at initialization.",
    )


def _grid(r: SpectraResult) -> FigureSpec:
    return FigureSpec(
        id="alignment-grid",
        title="Base alignment, layer by head",
        kind="head_grid",
        data={"score": "z"},
        read="z of tr(W_q^T W_k): 0 for unrelated matrices, positive where a head's queries and keys read the same directions (a token finds "
        "what is like itself), negative where they oppose each other. Other columns can be chosen.",
        caveat="Weights alone: what enters them is not isotropic."
        + (" With rotary positions this is the alignment at offset 0." if r.rotary else ""),
        alt="Grid of layers and heads coloured by base alignment.",
        x_label="head",
        y_label="layer",
    )


def _alignment(r: SpectraResult) -> FigureSpec:
    groups = {"trained": r.heads["z"], "keys of another group": r.heads["z_other"]}
    if r.initial_heads is not None:
        groups["initialization"] = r.initial_heads["z"]
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
        read="Share of heads whose |z| of tr(W_q^T W_k) exceeds the value on the axis. For unrelated matrices z has a spread of 1 and rarely "
        "exceeds 3. A query head and the keys of another group form no head, which makes them a control.",
        caveat="p-values in the table come from random rotations: few large singular values make wider tails than the normal law has.",
        alt="Lines of the share of heads above a base alignment, for trained weights and controls.",
        x_label="|z| of the base alignment",
        y_label="share of heads above",
        log_x=True,
    )


def _against_noise(r: SpectraResult) -> FigureSpec:
    x = np.linspace(0, 1, POINTS)
    series: list[dict[str, Any]] = []
    for k, kind in enumerate(r.kinds):
        curves = [
            np.interp(x, (np.arange(len(own)) + 0.5) / len(own), own / np.maximum(noise, 1e-12 * noise[0]))
            for own, noise in r.beside_noise(kind)
            if noise[0] > 0
        ] or [np.zeros_like(x)]
        y, floor = np.median(curves, axis=0), r.below_rounding(kind) if r.quantized else 0.0
        seen = x <= 1 - floor
        series.append({"name": KIND_NAMES[kind], "x": x[seen], "y": y[seen], "colour": k})
        if floor > 1 / POINTS:
            series.append(
                {
                    "name": f"{KIND_NAMES[kind]}, below rounding",
                    "x": x[~seen],
                    "y": y[~seen],
                    "dash": "dot",
                    "colour": k,
                }
            )
    series.append({"name": "noise", "x": x[[0, -1]], "y": np.ones(2), "dash": "dot"})
    return FigureSpec(
        id="against-noise",
        title="Singular values against noise",
        kind="lines",
        data={"series": series},
        read="Each singular value over that of noise of the same shape and energy at the same rank, largest on the left; median over layers. "
        "Above 1 on the left and below on the right: few directions carry the matrix."
        + (
            " Dotted: below the largest value that rounding of the quantized weights alone would make."
            if r.quantized
            else ""
        ),
        caveat="The smallest values of square noise are near 0, so the right end says little for square matrices.",
        alt="Lines of singular values relative to noise, by rank, for every kind of matrix.",
        x_label="rank, as a share",
        y_label="singular value / that of noise",
        log_y=True,
        paper="figure A.20",
    )


def _by_layer(r: SpectraResult, column: str, **words: Any) -> FigureSpec:
    series: list[dict[str, Any]] = []
    for initial in (False, True)[: 1 + r.has_initial]:
        for kind in ("q", "k", "v"):
            y = r.of_kind(kind, initial)[column].to_numpy(dtype=float)
            name = KIND_NAMES[kind] + (", initial" if initial else "")
            series.append({"name": name, "x": np.arange(len(y)), "y": y} | ({"dash": "dot"} if initial else {}))
    series.append(level("noise" if column == "evenness" else "Xavier's", series[0]["x"], 1.0) | {"dash": "dash"})
    alt = f"Lines of {column} by layer for queries, keys and values."
    return FigureSpec(id=column, kind="lines", data={"series": series}, alt=alt, x_label="layer", **words)


def _outside(r: SpectraResult) -> FigureSpec:
    sides: tuple[Side, ...] = ("above", "below")
    bars = [
        (f"{KIND_NAMES[kind]} ({shape})", r.share_outside(kind, side, initial), side + (", initial" if initial else ""))
        for side in sides
        for initial in (False, True)[: 1 + r.has_initial]
        for shape, kinds in r.like_shapes.items()
        for kind in kinds
    ]
    names, values, group = (list(column) for column in zip(*bars, strict=True))
    return FigureSpec(
        id="outside",
        title="Values outside the law",
        kind="bars",
        data={"names": names, "values": np.nan_to_num(values), "group": group},
        read="Share of the singular values of a kind above the upper and below the lower edge of Marchenko and Pastur's law for the variance "
        "and shape of their matrix, with room for the fluctuation of a matrix of that size.",
        caveat="Compare bars of one shape only: a square matrix has no lower edge, so that nothing of it lies below.",
        alt="Bars of the share of singular values above and below the law, by kind of matrix.",
        y_label="share of singular values",
    )


def _symmetric(r: SpectraResult) -> FigureSpec:
    groups: list[dict[str, Any]] = [{"name": "trained", "values": r.heads["symmetric"].to_numpy()}]
    if r.initial_heads is not None:
        groups.append({"name": "initialization", "values": r.initial_heads["symmetric"].to_numpy()})
    return FigureSpec(
        id="symmetric",
        title="Symmetric part of the score matrices",
        kind="violins",
        data={"groups": groups},
        read="Share of the energy of W_q^T W_k in its symmetric part, one value per head. 0.5 for unrelated matrices; 1 where query and key are "
        "the same, 0 where swapping two tokens flips the sign of the score.",
        caveat="Energy of weights, not of scores on real inputs.",
        alt="Violins of the symmetric share of energy, trained and at initialization.",
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
