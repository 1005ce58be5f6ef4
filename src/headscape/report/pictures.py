"""Turn a FigureSpec into what the page draws: traces for plotly, or maps and linked heads as plain data.

All text is escaped or made visible here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.report.coarsen import CELLS, MOST, Cells, block_means, cells_of, coarse_matrix
from headscape.report.gather import LINKED, Scene, Section, reason_of
from headscape.report.greys import encode
from headscape.report.headmaps import RESOLUTIONS
from headscape.report.marks import numbers
from headscape.report.orders import KEYS
from headscape.report.packing import pack
from headscape.report.plots import PLOTS, layout_of
from headscape.report.text import visible
from headscape.results import FigureSpec

__all__ = ["picture", "pictures_of"]

N_NEAR = 8  # nearest heads in the panel


def pictures_of(scene: Scene) -> dict[str, Any]:
    """What the page draws, by anchor: every figure of every section, or why it cannot be drawn."""
    drawn: dict[str, Any] = {}
    for section in scene.sections:
        for spec in section.figures:
            # one bad figure is a line in its place; the others are still drawn
            try:
                made = {"type": "table"} if spec.kind == "table" else picture(spec, section)
            except Exception as error:
                made = {"type": "missing", "why": reason_of(error)}
                section.problems.append(f"the figure '{spec.title}' could not be drawn: {reason_of(error)}")
            drawn[section.anchor(spec.id)] = made
    return drawn


def picture(spec: FigureSpec, section: Section) -> dict[str, Any]:
    """Return the figure as JSON values.

    "linked" figures carry their data and, under "rows", the head of each row; "maps" carry 8-bit pictures; all others
    are "plot" with traces and layout. A table is HTML and not drawn here. Data whose shape does not fit their kind
    raise an `InputError`. "note" tells what was coarsened to keep the page small.
    """
    if spec.kind in LINKED:
        data = _linked(spec, section)
        note = {"note": data.pop("note")} if "note" in data else {}
        return {"type": "linked", "kind": spec.kind, "data": pack(data), "rows": section.rows, **note}
    if spec.kind == "maps":
        return {"type": "maps", "panels": [_panel(panel) for panel in spec.data["panels"]]}
    if spec.kind not in PLOTS:
        raise InputError(f"figure {spec.id!r} has kind {spec.kind!r}; known are {', '.join(sorted(PLOTS))}")
    traces, layout = PLOTS[spec.kind](spec)
    found = {"type": "plot", "traces": pack(traces), "layout": pack(layout_of(spec) | layout)}
    if spec.kind == "heatmap" and traces[0]["z"].shape != np.shape(spec.data["values"]):
        found["note"] = _coarsened(np.shape(spec.data["values"]), traces[0]["z"].shape, "means over equal blocks")
    return found


def _coarsened(shape: tuple[int, ...], shown: tuple[int, ...], how: str) -> str:
    """The page's note about a matrix that it does not show entry by entry."""
    size, cells = (" x ".join(f"{n:,}" for n in sides) for sides in (shape, shown))
    return f"To keep the page small, the {size} matrix is shown as {cells} {how}."


def _linked(spec: FigureSpec, section: Section) -> dict[str, Any]:
    if section.rows is None:
        raise InputError(f"figure {spec.id!r} draws heads, but the table of its study does not have one row per head")
    n = len(section.rows)
    data = {key: value for key, value in spec.data.items() if key not in KEYS}  # orders go with the maps
    sizes = {"head_map": ("coordinates", 0), "head_matrix": ("values", 0), "head_tree": ("labels", 1)}
    if spec.kind in sizes:
        key, axis = sizes[spec.kind]
        data[key] = numbers(data[key], spec, key, ndim=2)
        if data[key].shape[axis] != n:
            raise InputError(f"'{key}' of figure {spec.id!r} has shape {data[key].shape}, the study has {n} heads")
    if spec.kind == "head_tree":
        data["labels"] = data["labels"].astype(np.int32)
        data["names"] = {str(k): visible(str(v)) for k, v in (data.get("names") or {}).items()}
    if "order" in data and not np.array_equal(np.sort(np.asarray(data["order"])), np.arange(n)):
        raise InputError(f"'order' of figure {spec.id!r} is not a permutation of its {n} heads")
    if spec.kind == "head_matrix":
        data |= _matrix(data, section)
    if data.get("by_batch") is not None:  # scores (n_batch, n_head) by name
        scores = data["by_batch"].items()
        data["by_batch"] = [{"name": visible(str(name)), "values": np.asarray(v, np.float32)} for name, v in scores]
    return data | {"x_label": spec.x_label, "y_label": spec.y_label, "value_label": spec.value_label}


def _matrix(data: Mapping[str, Any], section: Section) -> dict[str, Any]:
    """A matrix of heads in its order, averaged along the tree where there are many; and the nearest heads of each.

    "values" (m, m) are of cells, cell i being the heads ``order[bounds[i]:bounds[i + 1]]``; "near" (n_head, 8 or fewer)
    numbers the nearest other heads, -1 for none, and "near_values" holds their entries.
    """
    values = np.asarray(data["values"], dtype=np.float32)
    n = len(values)
    order = np.asarray(data.get("order", np.arange(n)), dtype=np.intp)
    labels = [np.asarray(tree.data["labels"]) for tree in section.of_kind("head_tree")]
    fitting = labels[0] if labels and labels[0].ndim == 2 and labels[0].shape[1] == n else None
    cells = cells_of(n, CELLS, order, fitting) if n > MOST else Cells(order, np.arange(n + 1))
    near, near_values = _nearest(values, bool(data.get("distance")))
    found = {"order": order, "bounds": cells.bounds, "near": near, "near_values": near_values}
    if not cells.coarse:
        return found | {"values": values[np.ix_(order, order)]}
    shown = coarse_matrix(values, cells, cells)
    return found | {"values": shown, "note": _coarsened(values.shape, shown.shape, "means over clusters of the tree")}


def _nearest(values: npt.NDArray[np.float32], distance: bool) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """The nearest other heads of each, nearest first, the first of equals first."""
    far = np.where(np.isnan(values), np.inf, values if distance else -values)
    np.fill_diagonal(far, np.inf)
    near = np.argsort(far, axis=1, kind="stable")[:, : min(N_NEAR, len(values) - 1)]
    found = np.take_along_axis(far, near, axis=1)
    return np.where(np.isfinite(found), near, -1), np.take_along_axis(values, near, axis=1)


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    values = np.asarray(panel["values"], dtype=np.float32)
    if values.ndim != 2:
        raise InputError(f"map {panel.get('name')!r} has shape {values.shape}; a map is (n_query, n_key)")
    present = np.isfinite(values)
    query, key = (cells_of(n, RESOLUTIONS[0]) for n in values.shape)
    small = block_means(np.nan_to_num(values)[None], present, query, key)[0]
    every = np.ones(present.shape, dtype=bool)
    there = block_means(present[None].astype(np.float32), every, query, key)[0] > 0  # the rest stays pale
    signed = bool(values[present].min(initial=0) < 0)
    ends = float(np.abs(values[present]).max()) if signed else panel.get("high")
    png, low, high = encode(small, "scores" if signed else "probs", there, ends)
    found = {"name": visible(str(panel.get("name", ""))), "png": png, "range": pack([low, high]), "root": not signed}
    found["signed"] = signed
    found["shape"] = list(values.shape)
    for axis, cells, along in (("query", query, 1), ("key", key, 0)):
        some = np.asarray(present.any(axis=along))  # a row of gaps between parts has no name
        tokens = panel.get(f"{axis}_tokens") or range(len(some))
        found[f"{axis}_tokens"] = [visible(str(t)) if t != "" or some[i] else "" for i, t in enumerate(tokens)]
        found[axis] = {"bounds": pack(cells.bounds)}
    return found
