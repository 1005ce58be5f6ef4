"""FigureSpec -> matplotlib figure, at publication size and in the palette of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from textwrap import fill
from typing import Any
from warnings import catch_warnings, filterwarnings

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from headscape.errors import InputError
from headscape.report.gather import LINKED, Section
from headscape.report.marks import (
    FEW_VIOLINS,
    dash_of,
    decades,
    error_bars,
    grouped,
    limits,
    number_of_inputs,
    printed,
    shapes,
    ticks,
    whole,
)
from headscape.report.palette import CIVIDIS, LIGHT, PAPER_MARKERS, PURPLE_ORANGE
from headscape.report.text import visible
from headscape.results import FigureSpec
from headscape.tensor import HeadId

__all__ = ["SEQUENTIAL", "draw", "heatmap", "label_axes", "style", "words"]

COLUMN, PAGE = 3.5, 7.2  # inches: one column and the whole width of a two-column page
SEQUENTIAL = LinearSegmentedColormap.from_list("cividis10", CIVIDIS)
DIVERGING = LinearSegmentedColormap.from_list("purple-orange", PURPLE_ORANGE)
DASHED = {"dash": "dashed", "dot": "dotted", "dashdot": "dashdot"}  # matplotlib's names of plotly's dashes
_BLUES = ("#f6f5f0", "#b9d2e8", "#6ea9d4", "#3079b8", "#0e4f90", "#062c5c")
WIDEST = 48
"""Characters of two names that stand side by side in the legend of a column."""
LETTER = 0.04
"""Inches that a letter of a steep name is high."""
NAMED = 28
"""Tokens that can be named along a map of one column, in the smallest type, without running into each other."""
FEW_NAMES = 6
"""Long names that fit under a column where they are slanted a little."""
ATTENTION = LinearSegmentedColormap.from_list("attention", _BLUES)


@contextmanager
def style() -> Iterator[None]:
    """Draw in the project's style; a character that no font has is drawn as a box, without a warning."""
    sheet = files("headscape.report") / "assets" / "paper.mplstyle"
    with mpl.rc_context(fname=str(sheet)), catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def draw(spec: FigureSpec, section: Section, heads: Sequence[HeadId] = ()) -> Figure:
    """Return the figure of any spec but a table; `heads` are those of all sections, which `section.rows` point into."""
    from headscape.report import drawing_heads

    with style():
        if spec.kind in LINKED:
            if section.rows is None:
                raise InputError(f"figure {spec.id!r} draws heads, but the table of its study does not name them")
            return drawing_heads.draw(spec, section, [heads[row] for row in section.rows])
        if spec.kind not in _MAKERS:
            raise InputError(f"figure {spec.id!r} has kind {spec.kind!r}, which is not drawn")
        return _MAKERS[spec.kind](spec)


def words(text: object, limit: int = 60) -> str:
    r"""Text for matplotlib, which reads formulas between dollar signs and hides labels that begin with "_".

    >>> words("$x$"), words("_a"), words("a long name", 6)
    ('\\$x\\$', ' _a', 'a lon…')
    """
    shown = visible(str(text)) if str(text) else ""
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    return (" " if shown.startswith("_") else "") + shown.replace("$", r"\$")


def label_axes(ax: Axes, spec: FigureSpec) -> None:
    """Set title (with the number of inputs behind intervals), labels and scales."""
    ax.set(title=fill(words(spec.title, 120) + number_of_inputs(spec), 40))
    ax.set(xlabel=words(spec.x_label), ylabel=fill(words(spec.y_label), 26))
    ax.set(xscale="log" if spec.log_x else "linear", yscale="log" if spec.log_y else "linear")
    for axis, log, name in ((ax.xaxis, spec.log_x, "x"), (ax.yaxis, spec.log_y, "y")):
        span = decades(spec, name) if log else math.inf
        if span <= 3:  # plain numbers, and few of them: those of minor ticks run into each other
            steps = LogLocator(subs=(1.0, 2.0, 5.0) if span < 2 else (1.0,))
            axis.set_major_locator(steps if span >= 1 else MaxNLocator(3))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())


def _one(spec: FigureSpec, height: float = 2.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(COLUMN, height))
    ax = figure.subplots()
    label_axes(ax, spec)
    return figure, ax


def _legend(figure: Figure, n: int) -> Figure:
    """Below the axes, where it hides no data; none for a single entry. Two columns, if their names fit side by side."""
    if n > 1:
        names = [len(name) for ax in figure.axes for name in ax.get_legend_handles_labels()[1]]
        half = math.ceil(len(names) / 2)
        wide = max(names[:half], default=0) + max(names[half:], default=0) > WIDEST * figure.get_figwidth() / COLUMN
        figure.legend(loc="outside lower center", ncols=1 if wide else 2)
    return figure


def _lines(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    for i, line in enumerate(spec.data["series"]):
        colour = LIGHT[line.get("colour", i) % len(LIGHT)]
        looks: dict[str, Any] = {"color": colour, "linestyle": DASHED.get(dash_of(line, i), "solid")}
        marker = "." if len(line["x"]) <= 40 and not line.get("dash") else None
        ax.plot(line["x"], line["y"], label=words(line.get("name", "")), marker=marker, **looks)
        if line.get("low") is not None and line.get("high") is not None:
            ax.fill_between(line["x"], line["low"], line["high"], color=looks["color"], alpha=0.18, linewidth=0)
    if whole(spec):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _legend(figure, len(spec.data["series"]))


def _scatter(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    x, y = np.asarray(spec.data["x"], dtype=float), np.asarray(spec.data["y"], dtype=float)
    groups = grouped(spec, len(x))
    for i, (name, here) in enumerate(groups):
        looks: dict[str, Any] = {"color": LIGHT[i % len(LIGHT)], "marker": PAPER_MARKERS[i % len(PAPER_MARKERS)]}
        edge: dict[str, Any] = {"alpha": 0.8, "linewidths": 0.3, "edgecolors": "white"}
        ax.scatter(x[here], y[here], s=12, label=words(name), **looks, **edge)
    lines = spec.data.get("lines", ())
    for line in lines:
        ax.plot(line["x"], line["y"], "--", color="#1a1a1a", linewidth=0.8, label=words(line["name"]))
    return _legend(figure, len(groups) + len(lines))


def _bars(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    names = [words(name, 30) for name in spec.data["names"]]
    values = np.asarray(spec.data["values"], dtype=float)
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    groups = grouped(spec, len(values))
    width = 0.8 / len(groups)
    bars = error_bars(spec, values)
    for i, (name, here) in enumerate(groups):
        at = np.array([places[names[j]] for j in here]) + (i - (len(groups) - 1) / 2) * width
        spread = None if bars is None else [reach[here] for reach in bars]
        looks: dict[str, Any] = {"color": LIGHT[i % len(LIGHT)], "hatch": ("", "//", "..", "xx")[i % 4]}
        whisker = {"lw": 0.8, "capsize": 2}
        ax.bar(at, values[here], width * 0.94, yerr=spread, label=words(name), error_kw=whisker, **looks)
    _name_columns(figure, ax, list(places))
    return _legend(figure, len(groups))


def _name_columns(figure: Figure, ax: Axes, names: Sequence[str]) -> None:
    """Put names under the places 0, 1, ..; long ones slanted, so that they do not run into each other."""
    longest = max(map(len, names), default=0)
    long, steep = longest > 8, len(names) > FEW_NAMES
    if long and steep:  # or little is left for the data
        figure.set_figheight(figure.get_figheight() + LETTER * longest)
    looks: dict[str, Any] = {"rotation": 60 if steep else 25, "rotation_mode": "anchor", "ha": "right", "va": "center"}
    ax.set_xticks(range(len(names)), names, **looks if long else {})


def heatmap(spec: FigureSpec, height: float = 3.0) -> Figure:
    """Values (n_row, n_column) as colours, with as many names of rows and columns as fit."""
    figure, ax = _one(spec, height)
    values = np.asarray(spec.data["values"], dtype=float)
    low, high = limits(values, spec.data.get("centre")) or (None, None)
    colours = SEQUENTIAL if low is None else DIVERGING
    image = ax.imshow(values, aspect="auto", interpolation="nearest", cmap=colours, vmin=low, vmax=high)
    figure.colorbar(image, ax=ax, label=words(spec.value_label), shrink=0.9)
    columns, rows = (spec.data.get(key) for key in ("columns", "rows"))
    for n, names, put, most in (
        (values.shape[1], columns, ax.set_xticks, 16),
        (values.shape[0], rows, ax.set_yticks, 24),
    ):
        if names is not None:
            at = ticks(n, 16)
            put(at, [words(list(names)[j], most) for j in at])
    crowded = values.shape[1] > 12 or (columns is not None and sum(len(str(name)) for name in columns) > 30)
    ax.tick_params(axis="x", rotation=60 if crowded else 0)
    return figure


def _violins(spec: FigureSpec) -> Figure:
    figure, ax = _one(spec)
    drawn = shapes(spec)
    names = list(dict.fromkeys(str(shape.group["name"]) for shape in drawn))
    labels: set[str] = set()
    for shape in drawn:
        right, label = shape.side == "positive", str(shape.group.get("label", ""))
        colour, left, reach = LIGHT[int(right)], 0.0 if right else -0.42, 0.0 if shape.side == "negative" else 0.42
        ends = shape.at + left * shape.width, shape.at + reach * shape.width
        shown = words(label) if label and label not in labels else None
        looks: dict[str, Any] = {"facecolor": (colour, 0.35), "edgecolor": colour, "linewidth": 0.6, "label": shown}
        ax.fill_betweenx(shape.height, *ends, **looks)
        labels.add(label)
    away = {"negative": -0.1, "positive": 0.1, "both": 0.0}
    known = [shape for shape in drawn if shape.statistics]
    for statistic, marker in (("mode", "D"), ("median", "_"), ("mean", "x")):
        x, y = [s.at + away[s.side] for s in known], [s.statistics[statistic] for s in known]
        hollow: dict[str, Any] = {"markerfacecolor": "none", "markersize": 4, "color": "#1a1a1a", "linestyle": "none"}
        ax.plot(x, y, marker, label=statistic, **hollow)
    shown_names = [words(name, 24) for name in names]
    if len(drawn) == len(names) <= FEW_VIOLINS:
        many = len(names) > 3  # what they print side by side must fit
        shown_names = ["\n".join([name, *printed(drawn, i, 2 if many else 3)]) for i, name in enumerate(shown_names)]
        ax.set_xticks(range(len(names)), shown_names, fontsize=5 if many else 6)
    else:
        _name_columns(figure, ax, shown_names)
    ax.set_xlim(-0.55, len(names) - 0.45)
    return _legend(figure, 3)


def _maps(spec: FigureSpec) -> Figure:
    panels = spec.data["panels"]
    n_column = min(2, len(panels)) or 1
    n_row = math.ceil(len(panels) / n_column) or 1
    figure = Figure(figsize=(COLUMN * n_column, 3.1 * n_row))
    figure.suptitle(words(spec.title, 90), fontsize=9)
    axes = figure.subplots(n_row, n_column, squeeze=False)
    for ax, panel in zip(axes.flat, panels, strict=False):
        values = np.asarray(panel["values"], dtype=float)
        signed = np.nanmin(values, initial=0) < 0
        low, high = limits(values, 0.0 if signed else None) or (None, None)
        colours, shown = (DIVERGING, values) if signed else (ATTENTION, np.sqrt(values))
        if not signed:  # from 0, as on the page
            low, high = 0.0, float(np.sqrt(panel.get("high", np.nanmax(values, initial=0))))
        image = ax.imshow(shown, aspect="auto", cmap=colours, interpolation="nearest", vmin=low, vmax=high)
        ax.set_title(words(panel.get("name", "")), fontsize=8)
        for axis, n, key in ((ax.xaxis, values.shape[1], "key_tokens"), (ax.yaxis, values.shape[0], "query_tokens")):
            tokens, at = panel.get(key), ticks(n, NAMED if n <= 48 else 12)
            axis.set_ticks(at, [words(tokens[j], 10) if tokens else str(j) for j in at], fontsize=4 if n <= 48 else 6)
        for label in ax.get_xticklabels():  # each ends at its tick
            label.set(rotation=70, rotation_mode="anchor", ha="right", va="center")
        ax.set(xlabel="key", ylabel="query")
        figure.colorbar(image, ax=ax, shrink=0.85, label="" if signed else "square root of attention")
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    return figure


def _frames(spec: FigureSpec) -> Figure:
    """At most four frames side by side, first and last among them; one row per panel."""
    data, n = spec.data, len(spec.data["frames"])
    chosen = sorted(set(np.linspace(0, n - 1, min(4, n)).round().astype(int).tolist()))
    kinds = list(dict.fromkeys([*data.get("kinds", ()), *(name for frame in data["group"] for name in frame)]))
    figure = Figure(figsize=(PAGE, 2.2 * len(data["panels"]) + 0.6))
    figure.suptitle(words(spec.title, 90), fontsize=9)
    axes = figure.subplots(len(data["panels"]), len(chosen), squeeze=False, sharex="row", sharey="row")
    for row, panel in zip(axes, data["panels"], strict=True):
        for ax, f in zip(row, chosen, strict=True):
            x, y = (np.asarray(panel[axis]) for axis in "xy")
            x, y = (v[f] if v.ndim == 2 else v for v in (x, y))
            group = np.array(data["group"][f])
            for k, kind in enumerate(kinds):
                here = group == kind
                looks: dict[str, Any] = {
                    "color": LIGHT[k % len(LIGHT)],
                    "marker": PAPER_MARKERS[k % len(PAPER_MARKERS)],
                }
                label = words(kind) if ax is axes[0, 0] else None
                ax.scatter(x[here], y[here], s=12, label=label, **looks)
            ax.set_title(words(data["frames"][f]), fontsize=8)
        row[0].set_ylabel("layer" if panel.get("grid") else words(panel["name"]))
    return _legend(figure, len(kinds))


_MAKERS: dict[str, Callable[[FigureSpec], Figure]] = {
    **{"lines": _lines, "scatter": _scatter, "bars": _bars},
    **{"heatmap": heatmap, "violins": _violins, "maps": _maps, "frames": _frames},
}
