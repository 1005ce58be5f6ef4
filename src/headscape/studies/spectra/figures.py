"""The pictures of the spectra study, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

from headscape.results import Captions, FigureSpec
from headscape.statistics.alignment import LEADING
from headscape.studies.spectra.result import KIND_NAMES, Side, SpectraResult
from headscape.studies.work.series import curve, heads_as_points, level

__all__ = ["figures"]
captions = Captions(__name__)

POINTS = 101
"""Ranks at which spectra of different lengths are compared."""


def figures(r: SpectraResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    caveat = "Weights alone: what enters them is not isotropic."
    caveat += " With rotary positions this is the alignment at offset 0." if r.rotary else ""
    found = [captions.table("summary", r.by_kind()), captions.figure("alignment-grid", {"score": "z"}, caveat=caveat)]
    found += [_alignment(r), _against_noise(r), _by_layer("evenness", r), _by_layer("energy", r)]
    found += [_histogram(r, kind) for kind in r.kinds]
    return [*found, _outside(r), _symmetric(r), *([_shared(r)] if "shared" in r.heads else []), _scores(r)]


def _alignment(r: SpectraResult) -> FigureSpec:
    groups = {"trained": r.heads["z"], "keys of another group": r.heads["z_other"]}
    if r.initial_heads is not None:
        groups["initialization"] = r.initial_heads["z"]
    x = np.geomspace(0.1, max(10.0, float(r.heads["z"].abs().max())), POINTS)
    series: list[dict[str, Any]] = []
    for name, column in groups.items():
        z = np.abs(column.to_numpy(dtype=float))
        if np.isfinite(z).all():
            series.append(curve(name, x, (z[:, None] > x).mean(axis=0)))
    series.append(curve("unrelated (normal law)", x, 2 * norm.sf(x), "dot"))
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
        series.append(curve(KIND_NAMES[kind], x[seen], y[seen], colour=k))
        if floor > 1 / POINTS:
            series.append(curve(f"{KIND_NAMES[kind]}, below rounding", x[~seen], y[~seen], "dot", colour=k))
    below = " Dotted: below the largest value that rounding of the quantized weights alone would make."
    series.append(level("noise", x[[0, -1]], 1.0))
    return captions.lines("against-noise", series, below=below if r.quantized else "")


def _histogram(r: SpectraResult, kind: str) -> FigureSpec:
    found = r.histograms(kind)
    x = found.centres
    series = [curve(f"layer {n}", x, y) for n, y in found.layers.items()]
    series.append(curve("noise (Marchenko-Pastur)", x, found.law, "dash"))
    top = np.array([0.0, max(float(line["y"].max()) for line in series)])
    places = {"upper edge of noise": 1.0} | ({"lower edge of noise": found.lower} if found.lower > 0 else {})
    places |= {"edge of rounding": found.rounding} if found.rounding > 0 else {}
    series += [curve(name, np.full(2, at), top, "dot") for name, at in places.items()]
    beyond = max(1 - float(y.sum()) * float(x[1] - x[0]) for y in found.layers.values())
    return captions.lines("histogram", series, matrix=kind, name=KIND_NAMES[kind], beyond=max(beyond, 0.0))


def _by_layer(column: str, r: SpectraResult) -> FigureSpec:
    series: list[dict[str, Any]] = []
    for initial in (False, True)[: 1 + r.has_initial]:
        for kind in ("q", "k", "v"):
            y = r.of_kind(kind, initial)[column].to_numpy(dtype=float)
            name = KIND_NAMES[kind] + (", initial" if initial else "")
            series.append(curve(name, np.arange(len(y)), y, "dot" if initial else None))
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
    frames = {"trained": r.heads} | ({} if r.initial_heads is None else {"initialization": r.initial_heads})
    return captions.violins("symmetric", {name: heads["symmetric"].to_numpy() for name, heads in frames.items()})


def _shared(r: SpectraResult) -> FigureSpec:
    groups = {"own keys": r.heads["shared"], "keys of another group": r.heads["shared_other"]}
    if r.initial_heads is not None and "shared" in r.initial_heads:
        groups["initialization"] = r.initial_heads["shared"]
    shown = {name: x.dropna().to_numpy() for name, x in groups.items() if x.notna().any()}
    return captions.violins("shared", shown, chance=LEADING / float(r.of_kind("q")["columns"].iloc[0]))


def _scores(r: SpectraResult) -> FigureSpec:
    thirds = np.minimum(3 * r.heads["layer"].to_numpy() // (1 + r.heads["layer"].max()), 2)
    group = [("early layers", "middle layers", "late layers")[t] for t in thirds]
    return captions.figure("score-ranks", heads_as_points(r.heads, "score_rank", "z", group))
