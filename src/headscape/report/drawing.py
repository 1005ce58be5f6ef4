"""FigureSpec -> matplotlib figure, at publication size and in the palette of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import fill
from typing import Any
from warnings import catch_warnings, filterwarnings

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from headscape.errors import InputError
from headscape.report.gather import LINKED, Section
from headscape.report.palette import CIVIDIS, LIGHT, MARKERS, PURPLE_ORANGE
from headscape.report.pictures import categories
from headscape.report.text import visible
from headscape.results import FigureSpec
from headscape.tensor import HeadId

__all__ = ["SEQUENTIAL", "draw", "label_axes", "style", "words"]

COLUMN, PAGE = 3.5, 7.2  # inches: one column and the whole width of a two-column page
SEQUENTIAL = LinearSegmentedColormap.from_list("cividis10", CIVIDIS)
DIVERGING = LinearSegmentedColormap.from_list("purple-orange", PURPLE_ORANGE)
ATTENTION = LinearSegmentedColormap.from_list(
    "attention", ["#f6f5f0", "#b9d2e8", "#6ea9d4", "#3079b8", "#0e4f90", "#062c5c"]
)
_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "headscape",  # the same figure gives the same bytes
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the project's style; a sign that no font has is drawn as a box, without a warning."""
    with mpl.rc_context(_STYLE), catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def draw(spec: FigureSpec, section: Section, heads: Sequence[HeadId] = ()) -> Figure:
    """Return the figure of any spec but a table.

    Parameters
    ----------
    section
        The section the spec belongs to; pictures of heads take places and scores from it.
    heads
        The heads of all sections, which `section.rows` point into.
    """
    from headscape.report import drawing_heads

    makers: dict[str, Callable[..., Figure]] = {
        "lines": _lines,
        "scatter": _scatter,
        "bars": _bars,
        "heatmap": _heatmap,
        "violins": _violins,
        "maps": _maps,
    }
    with style():
        if spec.kind in LINKED:
            if section.rows is None:
                raise InputError(f"figure {spec.id!r} draws heads, but the table of its study does not name them")
            return drawing_heads.draw(spec, section, [heads[row] for row in section.rows])
        if spec.kind not in makers:
            raise InputError(f"figure {spec.id!r} has kind {spec.kind!r}, which is not drawn")
        return makers[spec.kind](spec)


def words(text: object, limit: int = 60) -> str:
    r"""Text for matplotlib, which reads formulas between dollar signs and hides labels that begin with "_".

    >>> words("$x$"), words("_a"), words("a long name", 6)
    ('\\$x\\$', ' _a', 'a lon…')
    """
    shown = visible(str(text)) if str(text) else ""
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    return (" " if shown.startswith("_") else "") + shown.replace("$", r"\$")


def label_axes(ax: Axes, spec: FigureSpec) -> None:
    """Put title, labels and scales on."""
    ax.set_title(fill(words(spec.title, 120), 46))
    ax.set_xlabel(words(spec.x_label))
    ax.set_ylabel(words(spec.y_label))
    if spec.log_x:
        ax.set_xscale("log")
    if spec.log_y:
        ax.set_yscale("log")


def _one(spec: FigureSpec, width: float = COLUMN, height: float = 2.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height))
    ax = figure.subplots()
    label_axes(ax, spec)
    return figure, ax


def _legend(figure: Figure) -> None:
    """Below the axes, where it hides no data."""
    figure.legend(loc="outside lower center", ncols=2)


def _lines(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    for i, line in enumerate(spec.data["series"]):
        colour = LIGHT[i % len(LIGHT)]
        ax.plot(
            line["x"],
            line["y"],
            color=colour,
            linestyle={"dot": ":", "dashdot": "-."}.get(line["dash"], "--") if line.get("dash") else "-",
            label=words(line.get("name", "")),
            marker="." if len(line["x"]) <= 40 else None,
        )
        if line.get("low") is not None and line.get("high") is not None:
            ax.fill_between(line["x"], line["low"], line["high"], color=colour, alpha=0.18, linewidth=0)
    if len(spec.data["series"]) > 1:
        _legend(figure)
    return figure


def _grouped(group: Any, n: int) -> list[tuple[str, npt.NDArray[np.intp]]]:
    of_item = np.array([str(g) for g in group]) if group is not None else np.full(n, "")
    return [(name, np.flatnonzero(of_item == name)) for name in categories(of_item.tolist())]


def _scatter(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    x, y = np.asarray(spec.data["x"], dtype=float), np.asarray(spec.data["y"], dtype=float)
    groups = _grouped(spec.data.get("group"), len(x))
    for i, (name, here) in enumerate(groups):
        ax.scatter(
            x[here],
            y[here],
            s=12,
            color=LIGHT[i % len(LIGHT)],
            marker=MARKERS[i % len(MARKERS)][1],
            alpha=0.8,
            linewidths=0.3,
            edgecolors="white",
            label=words(name),
        )
    if len(groups) > 1:
        _legend(figure)
    return figure


def _bars(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    names = [words(name, 30) for name in spec.data["names"]]
    values = np.asarray(spec.data["values"], dtype=float)
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    groups = _grouped(spec.data.get("group"), len(values))
    width = 0.8 / len(groups)
    low, high = spec.data.get("low"), spec.data.get("high")
    for i, (name, here) in enumerate(groups):
        at = np.array([places[names[j]] for j in here]) + (i - (len(groups) - 1) / 2) * width
        spread = None
        if low is not None and high is not None:
            spread = np.nan_to_num(
                [values[here] - np.asarray(low, float)[here], np.asarray(high, float)[here] - values[here]]
            )
            spread = np.maximum(spread, 0)
        hatch = ("", "//", "..", "xx")[i % 4]
        ax.bar(
            at,
            values[here],
            width * 0.94,
            yerr=spread,
            color=LIGHT[i % len(LIGHT)],
            label=words(name),
            hatch=hatch,
            error_kw={"lw": 0.8, "capsize": 2},
        )
    _name_columns(ax, list(places))
    if len(groups) > 1:
        _legend(figure)
    return figure


def _name_columns(ax: Axes, names: Sequence[str]) -> None:
    """Put names under the places 0, 1, ..; long ones slanted, so that they do not run into each other."""
    long = max(map(len, names), default=0) > 8
    ax.set_xticks(range(len(names)), names, rotation=25 if long else 0, ha="right" if long else "center")


def _heatmap(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec, height=3.0)
    values = np.asarray(spec.data["values"], dtype=float)
    centre = spec.data.get("centre")
    limits: dict[str, Any] = {"cmap": SEQUENTIAL}
    if centre is not None:
        reach = float(np.nanmax(np.abs(values - centre), initial=0)) or 1.0
        limits = {"cmap": DIVERGING, "vmin": centre - reach, "vmax": centre + reach}
    image = ax.imshow(values, aspect="auto", interpolation="nearest", **limits)
    figure.colorbar(image, ax=ax, label=words(spec.value_label), shrink=0.9)
    for n, key, put in ((values.shape[1], "columns", ax.set_xticks), (values.shape[0], "rows", ax.set_yticks)):
        if spec.data.get(key) is not None:
            step = math.ceil(n / 16)
            put(range(0, n, step), [words(list(spec.data[key])[j], 16) for j in range(0, n, step)])
    columns = spec.data.get("columns")
    crowded = values.shape[1] > 12 or (columns is not None and sum(len(str(name)) for name in columns) > 30)
    ax.tick_params(axis="x", rotation=60 if crowded else 0)
    return figure


def _violins(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    groups = spec.data["groups"]
    names = categories([group["name"] for group in groups])
    for group in groups:
        side: Any = {"left": "low", "negative": "low", "right": "high", "positive": "high"}.get(
            str(group.get("side")), "both"
        )
        values = np.asarray(group["values"], dtype=float)
        values = values[np.isfinite(values)]
        if len(values) < 2 or np.ptp(values) == 0:  # no density to draw
            ax.plot([names.index(str(group["name"]))] * len(values), values, ".", color=LIGHT[0])
            continue
        parts: Any = ax.violinplot(
            values, [names.index(str(group["name"]))], widths=0.85, showmeans=True, showextrema=False, side=side
        )
        colour = LIGHT[1] if side == "high" else LIGHT[0]
        for body in parts["bodies"]:
            body.set(facecolor=colour, edgecolor=colour, alpha=0.35, linewidth=0.8)
        parts["cmeans"].set(color=colour, linewidth=1.2)
    _name_columns(ax, [words(name, 24) for name in names])
    return figure


def _maps(spec: FigureSpec) -> Figure:
    panels = spec.data["panels"]
    n_column = min(2, len(panels)) or 1
    n_row = math.ceil(len(panels) / n_column) or 1
    figure = Figure(figsize=(COLUMN * n_column if n_column > 1 else COLUMN, 3.1 * n_row))
    figure.suptitle(words(spec.title, 90), fontsize=9)
    axes = figure.subplots(n_row, n_column, squeeze=False)
    for ax, panel in zip(axes.flat, panels, strict=False):
        values = np.asarray(panel["values"], dtype=float)
        signed = np.nanmin(values, initial=0) < 0
        shown = values if signed else np.sqrt(values)
        image = ax.imshow(shown, aspect="auto", cmap=DIVERGING if signed else ATTENTION, interpolation="nearest")
        if signed:
            reach = float(np.nanmax(np.abs(values), initial=0)) or 1.0
            image.set_clim(-reach, reach)
        ax.set_title(words(panel.get("name", "")), fontsize=8)
        for axis, n, key in ((ax.xaxis, values.shape[1], "key_tokens"), (ax.yaxis, values.shape[0], "query_tokens")):
            tokens = panel.get(key)
            at = list(range(0, n, math.ceil(n / 12)))
            axis.set_ticks(at, [words(tokens[j], 10) if tokens else str(j) for j in at])
        ax.tick_params(axis="x", rotation=70)
        ax.set_ylabel("query")
        ax.set_xlabel("key")
        bar = figure.colorbar(image, ax=ax, shrink=0.85)
        if not signed:
            bar.set_label("square root of attention")
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    return figure
