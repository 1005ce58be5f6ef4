"""Turn a FigureSpec into what the page draws: traces and layout for plotly, or maps and linked heads as plain data.

Colours are names such as "@c0" or "@ink", settled by the page for light and dark. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.report.coarsen import block_means, cells_of
from headscape.report.gather import LINKED, Section
from headscape.report.headmaps import RESOLUTIONS, encode
from headscape.report.packing import pack
from headscape.report.palette import MARKERS
from headscape.report.text import plotly_text, visible
from headscape.results import FigureSpec

__all__ = ["N_COLOURS", "categories", "picture"]

N_COLOURS = 8
_DASHES = ("solid", "dash", "dot", "dashdot")
Trace = dict[str, Any]


def picture(spec: FigureSpec, section: Section) -> dict[str, Any]:
    """Return the figure as JSON values.

    "linked" figures carry their data and, under "rows", which head each row is; "maps" carry 8-bit pictures; all others
    are "plot" with traces and layout. A table is HTML and not drawn here.

    Raises
    ------
    InputError
        When the data do not have the shape their kind asks for.
    """
    if spec.kind in LINKED:
        return {"type": "linked", "kind": spec.kind, "data": pack(_linked(spec, section)), "rows": section.rows}
    if spec.kind == "maps":
        return {"type": "maps", "panels": [_panel(panel) for panel in spec.data["panels"]]}
    if spec.kind not in _TRACES:
        raise InputError(f"figure {spec.id!r} has kind {spec.kind!r}; known are {', '.join(sorted(_TRACES))}")
    traces, layout = _TRACES[spec.kind](spec)
    return {"type": "plot", "traces": pack(traces), "layout": pack(_layout(spec) | layout)}


def _layout(spec: FigureSpec) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": plotly_text(spec.x_label) if spec.x_label else ""}, "type": _axis_type(spec.log_x)},
        "yaxis": {"title": {"text": plotly_text(spec.y_label) if spec.y_label else ""}, "type": _axis_type(spec.log_y)},
    }


def _axis_type(log: bool) -> str:
    return "log" if log else "-"


def categories(names: Sequence[object]) -> list[str]:
    """Return the distinct names in order of first appearance."""
    return list(dict.fromkeys(str(name) for name in names))


def _array(value: Any, spec: FigureSpec, key: str, ndim: int = 1) -> npt.NDArray[np.float64]:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != ndim:
        raise InputError(
            f"'{key}' of figure {spec.id!r} has shape {array.shape}, its kind {spec.kind} needs {ndim} axes"
        )
    return array


# ------------------------------------------------------------------ linked heads


def _linked(spec: FigureSpec, section: Section) -> dict[str, Any]:
    data = dict(spec.data)
    n = None if section.rows is None else len(section.rows)
    if n is None:
        raise InputError(f"figure {spec.id!r} draws heads, but the table of its study does not name them, one a row")
    sizes = {"head_map": ("coordinates", 0), "head_matrix": ("values", 0), "head_tree": ("labels", 1)}
    if spec.kind in sizes:
        key, axis = sizes[spec.kind]
        data[key] = _array(data[key], spec, key, ndim=2)
        if data[key].shape[axis] != n:
            raise InputError(f"'{key}' of figure {spec.id!r} has shape {data[key].shape}, the study has {n} heads")
    if spec.kind == "head_matrix":
        data["values"] = data["values"].astype(np.float32)
    if spec.kind == "head_tree":
        data["labels"] = data["labels"].astype(np.int32)
        data["names"] = {str(k): visible(str(v)) for k, v in (data.get("names") or {}).items()}
    if "order" in data and not np.array_equal(np.sort(np.asarray(data["order"])), np.arange(n)):
        raise InputError(f"'order' of figure {spec.id!r} is not a permutation of its {n} heads")
    for key in ("query_orders", "key_orders", "query_trees", "key_trees"):  # these go with the maps
        data.pop(key, None)
    if data.get("by_batch") is not None:
        data["by_batch"] = _by_batch(data["by_batch"])
    data |= {"x_label": spec.x_label, "y_label": spec.y_label, "value_label": spec.value_label}
    return data


def _by_batch(given: Any) -> list[dict[str, Any]]:
    """Scores (n_batch, n_head) by name: {name: values}, or {"name": .., "values": ..}, or a list of the latter."""
    if isinstance(given, Mapping) and "values" not in given:
        given = [{"name": name, "values": values} for name, values in given.items()]
    items = [given] if isinstance(given, Mapping) else given
    return [{"name": visible(str(i["name"])), "values": np.asarray(i["values"], dtype=np.float32)} for i in items]


# ------------------------------------------------------------------ maps


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    values = np.asarray(panel["values"], dtype=np.float32)
    if values.ndim != 2:
        raise InputError(f"map {panel.get('name')!r} has shape {values.shape}; a map is (n_query, n_key)")
    present = np.isfinite(values)
    query, key = (cells_of(n, RESOLUTIONS[0]) for n in values.shape)
    small = block_means(np.nan_to_num(values)[None], present, query, key)[0]
    every = np.ones(present.shape, dtype=bool)
    there = block_means(present[None].astype(np.float32), every, query, key)[0] > 0  # the rest stays as pale as can be
    signed = bool(values[present].min(initial=0) < 0)
    png, low, high = encode(small, "scores" if signed else "probs", there)
    tokens = [
        [visible(str(t)) for t in (panel.get(f"{axis}_tokens") or range(n))]
        for axis, n in zip(("query", "key"), values.shape, strict=True)
    ]
    return {
        "name": visible(str(panel.get("name", ""))),
        "png": png,
        "range": pack([low, high]),
        "root": not signed,
        "shape": list(values.shape),
        "query_tokens": tokens[0],
        "key_tokens": tokens[1],
        "query": {"bounds": pack(query.bounds)},
        "key": {"bounds": pack(key.bounds)},
    }


# ------------------------------------------------------------------ plots


def _lines(spec: FigureSpec) -> tuple[list[Trace], dict[str, Any]]:
    traces: list[Trace] = []
    series = spec.data["series"]
    for i, line in enumerate(series):
        colour = f"@c{i % N_COLOURS}"
        x, y = _array(line["x"], spec, "x"), _array(line["y"], spec, "y")
        name = plotly_text(line.get("name", ""))
        if line.get("low") is not None and line.get("high") is not None:
            low, high = _array(line["low"], spec, "low"), _array(line["high"], spec, "high")
            traces.append(
                {
                    "type": "scatter",
                    "x": np.concatenate([x, x[::-1]]),
                    "y": np.concatenate([high, low[::-1]]),
                    "mode": "lines",
                    "fill": "toself",
                    "fillcolor": colour + "/0.18",
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                    "showlegend": False,
                    "legendgroup": str(i),
                }
            )
        dash = line.get("dash")
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(x) <= 40 else "lines",
                "x": x,
                "y": y,
                "name": name,
                "legendgroup": str(i),
                "line": {
                    "color": colour,
                    "width": 2,
                    "dash": dash if dash in _DASHES else "dash" if dash else _DASHES[i // N_COLOURS % len(_DASHES)],
                },
                "marker": {"size": 5, "color": colour},
            }
        )
    return traces, {"showlegend": len(series) > 1}


def _scatter(spec: FigureSpec) -> tuple[list[Trace], dict[str, Any]]:
    x, y = _array(spec.data["x"], spec, "x"), _array(spec.data["y"], spec, "y")
    names = spec.data.get("names")
    group = spec.data.get("group")
    of_point = np.array([str(g) for g in group]) if group is not None else np.full(len(x), "")
    traces = []
    for i, name in enumerate(categories(of_point.tolist())):
        here = np.flatnonzero(of_point == name)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": x[here],
                "y": y[here],
                "name": plotly_text(name),
                "text": [plotly_text(names[j]) for j in here] if names is not None else None,
                "hovertemplate": ("%{text}<br>" if names is not None else "") + "%{x:.4g}, %{y:.4g}<extra></extra>",
                "marker": {
                    "size": 8 if len(x) < 200 else 6,
                    "color": f"@c{i % N_COLOURS}",
                    "symbol": MARKERS[i % len(MARKERS)][0],
                    "opacity": 0.8,
                    "line": {"width": 0.5, "color": "@paper"},
                },
            }
        )
    return traces, {"showlegend": len(traces) > 1, "hovermode": "closest"}


def _bars(spec: FigureSpec) -> tuple[list[Trace], dict[str, Any]]:
    values = _array(spec.data["values"], spec, "values")
    names = [plotly_text(name, 30) for name in spec.data["names"]]
    group = spec.data.get("group")
    of_bar = np.array([str(g) for g in group]) if group is not None else np.full(len(values), "")
    low, high = spec.data.get("low"), spec.data.get("high")
    traces = []
    for i, name in enumerate(categories(of_bar.tolist())):
        here = np.flatnonzero(of_bar == name)
        trace: Trace = {
            "type": "bar",
            "x": [names[j] for j in here],
            "y": values[here],
            "name": plotly_text(name),
            "marker": {"color": f"@c{i % N_COLOURS}", "pattern": {"shape": ("", "/", ".", "x")[i % 4]}},
            "hovertemplate": "%{x}: %{y:.4g}<extra></extra>",
        }
        if low is not None and high is not None:
            below = values[here] - _array(low, spec, "low")[here]
            above = _array(high, spec, "high")[here] - values[here]
            trace["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": np.nan_to_num(above),
                "arrayminus": np.nan_to_num(below),
                "color": "@ink",
                "thickness": 1.2,
            }
        traces.append(trace)
    # names that look like numbers are still names; each of them stays in its place
    axis = {"xaxis": _layout(spec)["xaxis"] | {"type": "category", "automargin": True}}
    legend = {"y": 1.02, "yanchor": "bottom"}  # above: below it would meet names that are turned for want of room
    return traces, axis | {"showlegend": len(traces) > 1, "barmode": "group", "legend": legend, "margin": {"t": 34}}


def _heatmap(spec: FigureSpec) -> tuple[list[Trace], dict[str, Any]]:
    values = _array(spec.data["values"], spec, "values", ndim=2).astype(np.float32)
    n_row, n_column = values.shape
    centre = spec.data.get("centre")
    finite = values[np.isfinite(values)]
    trace: Trace = {
        "type": "heatmap",
        "z": values,
        "colorscale": "@sequential",
        "colorbar": {"title": {"text": plotly_text(spec.value_label) if spec.value_label else ""}},
        "hovertemplate": "%{y} · %{x}: %{z:.4g}<extra></extra>",
    }
    if centre is not None and finite.size:
        reach = float(np.abs(finite - centre).max()) or 1.0
        trace |= {"colorscale": "@diverging", "zmin": centre - reach, "zmax": centre + reach}
    layout = _layout(spec)
    for axis, n, key in (("xaxis", n_column, "columns"), ("yaxis", n_row, "rows")):
        names = spec.data.get(key)
        if names is not None:
            step = math.ceil(n / 24)  # more labels than this run into each other
            layout[axis] |= {
                "tickmode": "array",
                "tickvals": list(range(0, n, step)),
                "ticktext": [plotly_text(names[j], 20) for j in range(0, n, step)],
            }
        layout[axis]["automargin"] = True
    layout["yaxis"]["autorange"] = "reversed"
    return [trace], layout


def _violins(spec: FigureSpec) -> tuple[list[Trace], dict[str, Any]]:
    groups = spec.data["groups"]
    sides = {"left": "negative", "right": "positive", "negative": "negative", "positive": "positive"}
    halves = [sides.get(str(group.get("side")), "both") for group in groups]
    traces = []
    for group, half in zip(groups, halves, strict=True):
        colour = "@c1" if half == "positive" else "@c0"
        traces.append(
            {
                "type": "violin",
                "y": _array(group["values"], spec, "values"),
                "x0": plotly_text(group["name"], 30),
                "name": plotly_text(group["name"], 30),
                "side": half,
                "scalegroup": "all",
                "line": {"color": colour, "width": 1.4},
                "fillcolor": colour + "/0.25",
                "box": {"visible": half == "both"},
                "meanline": {"visible": True},
                "points": False,
                "spanmode": "hard",
            }
        )
    n = len({str(group["name"]) for group in groups})
    # numbers as names are names; left to itself, plotly cuts the first and the last half violin
    axis = {"xaxis": _layout(spec)["xaxis"] | {"type": "category", "range": [-0.55, n - 0.45]}}
    return traces, {"showlegend": False, "violingap": 0.1, "violinmode": "overlay", **axis}


_TRACES: dict[str, Callable[[FigureSpec], tuple[list[Trace], dict[str, Any]]]] = {
    "lines": _lines,
    "scatter": _scatter,
    "bars": _bars,
    "heatmap": _heatmap,
    "violins": _violins,
}
