"""The pictures of the spectra study, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

from headscape.results import Captions, FigureSpec
from headscape.statistics.alignment import LEADING
from headscape.studies.spectra.result import KIND_NAMES, Side, SpectraResult
from headscape.studies.work.series import level

__all__ = ["figures"]
captions = Captions(__name__)

POINTS = 101
"""Ranks at which spectra of different lengths are compared."""


def figures(r: SpectraResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    evenness = _by_layer("evenness", r)
    energy = _by_layer("energy", r)
    found = [_table(r), _grid(r), _alignment(r), _against_noise(r), evenness, energy]
    found += [_histogram(r, kind) for kind in r.kinds]
    return [*found, _outside(r), _symmetric(r), *([_shared(r)] if "shared" in r.heads else []), _scores(r)]


def _table(r: SpectraResult) -> FigureSpec:
    return captions.table("summary", r.by_kind())


def _grid(r: SpectraResult) -> FigureSpec:
    return captions.figure(
        "alignment-grid",
        {"score": "z"},
        caveat="Weights alone: what enters them is not isotropic."
        + (" With rotary positions this is the alignment at offset 0." if r.rotary else ""),
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
    return captions.lines("alignment", series)


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
    return captions.lines(
        "against-noise",
        series,
        read="Each singular value over that of noise of the same shape and energy at the same rank, largest on the left; median over layers. "
        "Above 1 on the left and below on the right: few directions carry the matrix."
        + (
            " Dotted: below the largest value that rounding of the quantized weights alone would make."
            if r.quantized
            else ""
        ),
    )


def _histogram(r: SpectraResult, kind: str) -> FigureSpec:
    found = r.histograms(kind)
    x = found.centres
    series: list[dict[str, Any]] = [{"name": f"layer {n}", "x": x, "y": y} for n, y in found.layers.items()]
    series.append({"name": "noise (Marchenko-Pastur)", "x": x, "y": found.law, "dash": "dash"})
    top = np.array([0.0, max(float(line["y"].max()) for line in series)])
    places = {"upper edge of noise": 1.0} | ({"lower edge of noise": found.lower} if found.lower > 0 else {})
    places |= {"edge of rounding": found.rounding} if found.rounding > 0 else {}
    series += [{"name": name, "x": np.full(2, at), "y": top, "dash": "dot"} for name, at in places.items()]
    beyond = max(1 - float(y.sum()) * float(x[1] - x[0]) for y in found.layers.values())
    return captions.lines("histogram", series, matrix=kind, name=KIND_NAMES[kind], beyond=max(beyond, 0.0))


def _by_layer(column: str, r: SpectraResult) -> FigureSpec:
    series: list[dict[str, Any]] = []
    for initial in (False, True)[: 1 + r.has_initial]:
        for kind in ("q", "k", "v"):
            y = r.of_kind(kind, initial)[column].to_numpy(dtype=float)
            name = KIND_NAMES[kind] + (", initial" if initial else "")
            series.append({"name": name, "x": np.arange(len(y)), "y": y} | ({"dash": "dot"} if initial else {}))
    series.append(level("noise" if column == "evenness" else "Xavier's", series[0]["x"], 1.0) | {"dash": "dash"})
    return captions.lines(column, series)


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
    return captions.figure("outside", {"names": names, "values": np.nan_to_num(values), "group": group})


def _symmetric(r: SpectraResult) -> FigureSpec:
    groups: list[dict[str, Any]] = [{"name": "trained", "values": r.heads["symmetric"].to_numpy()}]
    if r.initial_heads is not None:
        groups.append({"name": "initialization", "values": r.initial_heads["symmetric"].to_numpy()})
    return captions.figure("symmetric", {"groups": groups})


def _shared(r: SpectraResult) -> FigureSpec:
    groups = {"own keys": r.heads["shared"], "keys of another group": r.heads["shared_other"]}
    if r.initial_heads is not None and "shared" in r.initial_heads:
        groups["initialization"] = r.initial_heads["shared"]
    shown = [{"name": name, "values": x.dropna().to_numpy()} for name, x in groups.items() if x.notna().any()]
    return captions.figure("shared", {"groups": shown}, chance=LEADING / float(r.of_kind("q")["columns"].iloc[0]))


def _scores(r: SpectraResult) -> FigureSpec:
    names = [f"{b}.{n}.{h}" for b, n, h in zip(r.heads["block"], r.heads["layer"], r.heads["head"], strict=True)]
    thirds = np.minimum(3 * r.heads["layer"].to_numpy() // (1 + r.heads["layer"].max()), 2)
    return captions.figure(
        "score-ranks",
        {
            "x": r.heads["score_rank"].to_numpy(),
            "y": r.heads["z"].to_numpy(),
            "names": names,
            "group": [("early layers", "middle layers", "late layers")[t] for t in thirds],
        },
    )
