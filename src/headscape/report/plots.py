"""Lines, points, bars, heatmaps and violins as traces and layout of plotly; colours are names, settled by the page."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import wrap
from typing import Any

import numpy as np

from headscape.report.coarsen import CELLS, MOST, cells_of, coarse_matrix
from headscape.report.marks import (
    FEW_VIOLINS,
    N_COLOURS,
    counted,
    dash_of,
    decades,
    error_bars,
    grouped,
    limits,
    numbers,
    printed,
    shapes,
    ticks,
)
from headscape.report.palette import MARKERS
from headscape.report.text import plotly_text
from headscape.results import FigureSpec

__all__ = ["PLOTS", "layout_of"]

Trace = dict[str, Any]
STATISTICS = {"mode": "diamond-open", "median": "line-ew", "mean": "x-thin"}
Plot = tuple[list[Trace], dict[str, Any]]
WIDE, HIGH = 44, 32
"""Characters that fit along an axis, on a narrow screen too."""


def layout_of(spec: FigureSpec) -> dict[str, Any]:
    """Titles and scales of the axes; a title longer than its axis has several lines, of which the legend hides the second."""
    axes: dict[str, dict[str, Any]] = {}
    for axis, label, log, most in (("x", spec.x_label, spec.log_x, WIDE), ("y", spec.y_label, spec.log_y, HIGH)):
        title = {"text": "<br>".join(map(plotly_text, wrap(label, most)))}
        steps = {"dtick": "D2"} if log and 0.7 <= decades(spec, axis) <= 3 else {}  # 1, 2, 5: nine digits run together
        axes[f"{axis}axis"] = {"title": title, "type": "log" if log else "-", **steps}
    return axes


def _lines(spec: FigureSpec) -> Plot:
    traces: list[Trace] = []
    for i, line in enumerate(spec.data["series"]):
        colour = f"@c{line.get('colour', i) % N_COLOURS}"
        x, y = numbers(line["x"], spec, "x"), numbers(line["y"], spec, "y")
        common = {"type": "scatter", "legendgroup": str(i)}
        if line.get("low") is not None and line.get("high") is not None:
            low, high = numbers(line["low"], spec, "low"), numbers(line["high"], spec, "high")
            around = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([high, low[::-1]])}
            looks = {"mode": "lines", "fill": "toself", "fillcolor": colour + "/0.18", "line": {"width": 0}}
            traces.append(common | around | looks | {"hoverinfo": "skip", "showlegend": False})
        style = {"color": colour, "width": 2, "dash": dash_of(line, i)}
        looks = {"mode": "lines+markers" if len(x) <= 40 and not line.get("dash") else "lines", "line": style}
        marker = {"marker": {"size": 5, "color": colour}}
        traces.append(common | {"x": x, "y": y, "name": plotly_text(line.get("name", ""))} | looks | marker)
    layout: dict[str, Any] = {"showlegend": len(spec.data["series"]) > 1}
    return traces, layout | ({"xaxis": layout_of(spec)["xaxis"] | {"dtick": 1}} if counted(spec) else {})


def _scatter(spec: FigureSpec) -> Plot:
    x, y = numbers(spec.data["x"], spec, "x"), numbers(spec.data["y"], spec, "y")
    names = spec.data.get("names")
    hover = ("%{text}<br>" if names is not None else "") + "%{x:.4g}, %{y:.4g}<extra></extra>"
    traces: list[Trace] = []
    for i, (name, here) in enumerate(grouped(spec, len(x))):
        symbol = MARKERS[i % len(MARKERS)]
        # of an open symbol the edge is all there is
        edge = {"width": 1.6 if symbol.endswith("open") else 0.5, "color": "@paper"}
        marker: Trace = {"size": 8 if len(x) < 200 else 6, "opacity": 0.8, "line": edge}
        marker |= {"color": f"@c{i % N_COLOURS}", "symbol": symbol}
        points = {"x": x[here], "y": y[here], "marker": marker, "hovertemplate": hover}
        text = [plotly_text(names[j]) for j in here] if names is not None else None
        traces.append({"type": "scatter", "mode": "markers", "name": plotly_text(name), "text": text, **points})
    for line in spec.data.get("lines", ()):
        style = {"color": "@ink", "width": 1.2, "dash": "dash"}
        ends = {"x": numbers(line["x"], spec, "x"), "y": numbers(line["y"], spec, "y"), "hoverinfo": "skip"}
        traces.append({"type": "scatter", "mode": "lines", "name": plotly_text(line["name"]), "line": style, **ends})
    return traces, {"showlegend": len(traces) > 1, "hovermode": "closest"}


def _bars(spec: FigureSpec) -> Plot:
    values = numbers(spec.data["values"], spec, "values")
    names = [plotly_text(name, 30) for name in spec.data["names"]]
    bars = error_bars(spec, values)
    traces: list[Trace] = []
    for i, (name, here) in enumerate(grouped(spec, len(values))):
        colour = f"@c{i % N_COLOURS}"
        pattern = {"shape": ("", "/", ".", "x")[i % 4], "fgcolor": colour, "bgcolor": colour + "/0.25"}
        # a pattern alone has neither edge nor ground
        looks = {"color": colour, "line": {"color": colour, "width": 1}, "pattern": pattern}
        trace: Trace = {"type": "bar", "x": [names[j] for j in here], "y": values[here], "name": plotly_text(name)}
        trace |= {"marker": looks, "hovertemplate": "%{x}: %{y:.4g}<extra></extra>"}
        if bars is not None:
            reach = {"array": bars[1][here], "arrayminus": bars[0][here]}
            trace["error_y"] = {"type": "data", "symmetric": False, **reach, "color": "@ink", "thickness": 1.2}
        traces.append(trace)
    # names that look like numbers are still names; each of them stays in its place
    axis = {"xaxis": layout_of(spec)["xaxis"] | {"type": "category", "automargin": True}}
    legend = {"y": 1.02, "yanchor": "bottom"}  # above: below it would collide with names that are turned to fit
    return traces, axis | {"showlegend": len(traces) > 1, "barmode": "group", "legend": legend, "margin": {"t": 34}}


def _heatmap(spec: FigureSpec) -> Plot:
    values = numbers(spec.data["values"], spec, "values", ndim=2).astype(np.float32)
    cells = [cells_of(n, CELLS if n > MOST else n) for n in values.shape]
    if any(side.coarse for side in cells):
        values = coarse_matrix(values, *cells)
    bar = {"title": {"text": plotly_text(spec.value_label) if spec.value_label else ""}}
    trace: Trace = {"type": "heatmap", "z": values, "colorscale": "@sequential", "colorbar": bar}
    trace["hovertemplate"] = "%{y} · %{x}: %{z:.4g}<extra></extra>"
    ends = limits(values, spec.data.get("centre"))
    if ends is not None:
        trace |= {"colorscale": "@diverging", "zmin": ends[0], "zmax": ends[1]}
    layout = layout_of(spec)
    for axis, side, key in (("xaxis", cells[1], "columns"), ("yaxis", cells[0], "rows")):
        names = spec.data.get(key)
        if names is not None or side.coarse:
            at = ticks(len(side.bounds) - 1, 24)
            first = [side.bounds[j] for j in at]
            words = [str(j) if names is None else plotly_text(names[j], 24) for j in first]
            layout[axis] |= {"tickmode": "array", "tickvals": at, "ticktext": words}
        layout[axis]["automargin"] = True
    layout["yaxis"]["autorange"] = "reversed"
    return [trace], layout


def _violins(spec: FigureSpec) -> Plot:
    drawn = shapes(spec)
    names = list(dict.fromkeys(str(shape.group["name"]) for shape in drawn))
    traces: list[Trace] = []
    labels: set[str] = set()
    for shape in drawn:
        right = shape.side == "positive"
        colour, label = "@c1" if right else "@c0", str(shape.group.get("label", ""))
        left, reach = (0.0 if right else -0.42), (0.0 if shape.side == "negative" else 0.42)
        x = shape.at + np.concatenate([reach * shape.width, left * shape.width[::-1]])
        outline = {"x": x, "y": np.concatenate([shape.height, shape.height[::-1]]), "hoverinfo": "skip"}
        looks = {"fill": "toself", "fillcolor": colour + "/0.25", "line": {"color": colour, "width": 1.2}}
        legend = {"name": plotly_text(label) if label else "", "showlegend": bool(label) and label not in labels}
        traces.append({"type": "scatter", "mode": "lines", **outline, **looks, **legend})
        labels.add(label)
    for statistic, symbol in STATISTICS.items():
        known = [shape for shape in drawn if shape.statistics]
        away = {"negative": -0.1, "positive": 0.1, "both": 0.0}
        x = np.array([shape.at + away[shape.side] for shape in known], dtype=float)
        y = np.array([shape.statistics[statistic] for shape in known])
        marker = {"symbol": symbol, "size": 8, "color": "@ink", "line": {"width": 1.6, "color": "@ink"}}
        hover = [
            plotly_text(f"{shape.group['name']}: {statistic} {shape.statistics[statistic]:.4g}") for shape in known
        ]
        points = {"x": x, "y": y, "text": hover, "hovertemplate": "%{text}<extra></extra>", "marker": marker}
        traces.append({"type": "scatter", "mode": "markers", "name": statistic, **points})
    words = [plotly_text(name, 30) for name in names]
    if len(drawn) == len(names) <= FEW_VIOLINS:
        words = ["<br>".join([word, *printed(drawn, i)]) for i, word in enumerate(words)]
    ticks_ = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": words}
    ticks_["ticklabeloverflow"] = "allow"  # or the last name, turned to fit, is left out
    axis = {"xaxis": layout_of(spec)["xaxis"] | ticks_ | {"range": [-0.55, len(names) - 0.45], "automargin": True}}
    legend = {"y": 1.02, "yanchor": "bottom"}  # above the violins, and below the buttons
    return traces, {"showlegend": True, "hovermode": "closest", "legend": legend, "margin": {"t": 60}, **axis}


def _frames(spec: FigureSpec) -> Plot:
    """Points in panels side by side, one frame at a time; a slider changes all panels together."""
    data, n_panel = spec.data, len(spec.data["panels"])
    kinds = list(dict.fromkeys([*data.get("kinds", ()), *(name for frame in data["group"] for name in frame)]))
    colours = [[f"@c{kinds.index(name) % N_COLOURS}" for name in frame] for frame in data["group"]]
    symbols = [[MARKERS[kinds.index(name) % len(MARKERS)] for name in frame] for frame in data["group"]]
    texts = [[plotly_text(f"{n}: {g}") for n, g in zip(data["names"], frame, strict=True)] for frame in data["group"]]
    places = [[_at(panel, axis, len(data["frames"])) for axis in "xy"] for panel in data["panels"]]
    traces: list[Trace] = [
        {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": plotly_text(kind)}
        | {"marker": {"color": f"@c{k % N_COLOURS}", "symbol": MARKERS[k % len(MARKERS)], "size": 9}}
        for k, kind in enumerate(kinds)
    ]  # the legend; then the panels
    layout: dict[str, Any] = {"showlegend": True, "hovermode": "closest", "margin": {"b": 96}}
    layout["legend"] = {"y": 1.02, "yanchor": "bottom"}
    for i, (panel, (x, y)) in enumerate(zip(data["panels"], places, strict=True)):
        number = "" if i == 0 else str(i + 1)
        marker = {"size": 9, "color": colours[0], "symbol": symbols[0], "line": {"width": 0.5, "color": "@paper"}}
        trace: Trace = {"type": "scatter", "mode": "markers", "x": x[0], "y": y[0], "text": texts[0], "marker": marker}
        looks = {"xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": False}
        traces.append(trace | looks | {"hovertemplate": "%{text}<extra></extra>"})
        left, right = i / n_panel + 0.06 * (i > 0), (i + 1) / n_panel
        axes = {"domain": [left, right], "title": {"text": plotly_text(panel["name"])}, "range": _range(x)}
        whole = {"dtick": 1} if panel.get("grid") and np.ptp(x) <= 20 else {}
        layout[f"xaxis{number}"] = axes | {"automargin": True} | whole
        upright = {"range": _range(y), "anchor": f"x{number}", "automargin": True}
        whole = {"dtick": 1} if panel.get("grid") and np.ptp(y) <= 12 else {}
        layout[f"yaxis{number}"] = upright | {"title": {"text": "layer" if panel.get("grid") else ""}} | whole
    shown = list(range(len(kinds), len(traces)))
    steps = []
    for f, name in enumerate(data["frames"]):
        change = {"x": [x[f] for x, _ in places], "y": [y[f] for _, y in places], "text": [texts[f]] * n_panel}
        change |= {"marker.color": [colours[f]] * n_panel, "marker.symbol": [symbols[f]] * n_panel}
        steps.append({"label": plotly_text(name), "method": "restyle", "args": [change, shown]})
    slider = {
        "active": 0,
        "steps": steps,
        "pad": {"t": 44, "r": 28, "l": 8},
        "currentvalue": {"prefix": ""},
        "tickcolor": "@muted",
    }
    return traces, layout | {"sliders": [slider]}


def _at(panel: dict[str, Any], axis: str, n: int) -> Any:
    """Coordinates (n_frame, n_point) of a panel; those given once stay where they are."""
    values = np.asarray(panel[axis], dtype=np.float64)
    return values if values.ndim == 2 else np.broadcast_to(values, (n, len(values)))


def _range(values: Any) -> list[float]:
    """One range for all frames, so that nothing jumps."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = 0.06 * (high - low) or 0.5
    return [low - margin, high + margin]


PLOTS: dict[str, Callable[[FigureSpec], Plot]] = {
    **{"lines": _lines, "scatter": _scatter, "bars": _bars},
    **{"heatmap": _heatmap, "violins": _violins, "frames": _frames},
}
