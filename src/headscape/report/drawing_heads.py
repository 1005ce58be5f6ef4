"""Pictures of heads for paper: map, matrix, tree and grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from headscape.errors import InputError
from headscape.report.drawing import COLUMN, PAGE, SEQUENTIAL, heatmap, label_axes, words
from headscape.report.first import in_order
from headscape.report.gather import Section
from headscape.report.marks import ticks
from headscape.report.palette import LIGHT
from headscape.results import FigureSpec
from headscape.roles import MIXED
from headscape.tensor import HeadId
from headscape.tree import PartitionTree

__all__ = ["draw"]

GREY = "#dedad0"  # heads without a role, as on the page
PALE = 0.6  # how much of its colour a role of most heads keeps, so that the others stand out


def draw(spec: FigureSpec, section: Section, heads: Sequence[HeadId]) -> Figure:
    """Draw a spec of a linked kind; `heads` are those of the rows of the section's frame."""
    if spec.kind == "head_grid":
        return _grid(spec, section, heads)
    return {"head_map": _map, "head_matrix": _matrix, "head_tree": _tree}[str(spec.kind)](spec, heads)


def _layers(heads: Sequence[HeadId]) -> npt.NDArray[np.float64]:
    return np.array([head.layer for head in heads], dtype=float)


def _layer_bar(figure: Figure, dots: Any, ax: Any) -> None:
    figure.colorbar(dots, ax=ax, label="layer", shrink=0.9, ticks=MaxNLocator(6, integer=True))


def _map(spec: FigureSpec, heads: Sequence[HeadId]) -> Figure:
    places = np.asarray(spec.data["coordinates"], dtype=float)
    if places.ndim != 2 or len(places) != len(heads):
        shape = places.shape
        raise InputError(f"'coordinates' of figure {spec.id!r} has shape {shape}, the study has {len(heads)} heads")
    if places.shape[1] < 2:
        places = np.hstack([places, np.zeros((len(places), 2 - places.shape[1]))])
    solid = places.shape[1] >= 3
    figure = Figure(figsize=(PAGE if solid else COLUMN, 3.2))
    flat = figure.add_subplot(1, 2 if solid else 1, 2 if solid else 1)
    dots: dict[str, Any] = {"c": _layers(heads), "cmap": SEQUENTIAL, "s": 12, "edgecolors": "white", "linewidths": 0.3}
    drawn = flat.scatter(places[:, 0], places[:, 1], **dots)
    label_axes(flat, spec)
    flat.set(xlabel=words(spec.x_label or "coordinate 1"), ylabel=words(spec.y_label or "coordinate 2"))
    if solid:
        ax = figure.add_subplot(1, 2, 1, projection="3d")
        ax.scatter(places[:, 0], places[:, 1], places[:, 2], depthshade=False, **dots)
        ax.set_title(words(spec.title))
        ax.set_box_aspect(None, zoom=0.85)
        flat.set_title("first two coordinates")
        for name, axis in zip("123", (ax.xaxis, ax.yaxis, ax.zaxis), strict=True):
            axis.set_label_text(name)
            axis.set_pane_color((1, 1, 1, 0))
        ax.tick_params(labelsize=5, pad=-2)
    _layer_bar(figure, drawn, flat)
    return figure


def _matrix(spec: FigureSpec, heads: Sequence[HeadId]) -> Figure:
    order = np.asarray(spec.data.get("order", np.arange(len(heads))), dtype=np.intp)
    shown = np.array(spec.data["values"], dtype=float)[np.ix_(order, order)]
    if len(order) > 1:  # the diagonal is a constant and would take half of the colours
        np.fill_diagonal(shown, np.nanmax(shown[~np.eye(len(order), dtype=bool)]))
    many = len({head.block for head in heads}) > 1
    names = [f"{block} {layer}.{head}" if many else f"{layer}.{head}" for block, layer, head in heads]
    data = {"values": shown, "rows": [names[i] for i in order], "columns": [names[i] for i in order]}
    return heatmap(replace(spec, data=data, x_label="head, in tree order"))


def _tree(spec: FigureSpec, heads: Sequence[HeadId]) -> Figure:
    """Clusters as nodes, root on top; leaves in tree order, coloured by layer; named clusters carry their names."""
    order = np.asarray(spec.data["order"], dtype=np.intp)
    tree = PartitionTree.from_labels(np.asarray(spec.data["labels"], dtype=np.intp), order)
    folders = tree.folders()
    x, y = (folders.start + folders.stop - 1) / 2, -folders.level.astype(float)
    lines = [
        [(x[i], y[folders.parent[i]]), (x[i], y[i])] for i in range(1, len(x))
    ]  # from each child to its parent's bar
    for i in range(len(x)):
        children = tree.children(i)
        if len(children):
            lines.append([(x[children].min(), y[i]), (x[children].max(), y[i])])
    figure = Figure(figsize=(PAGE, 3.0))
    ax = figure.subplots()
    ax.add_collection(LineCollection(lines, colors="#6b6b6b", linewidths=0.5))
    leaves = np.flatnonzero(tree.sizes == 1)
    layers = _layers(heads)[tree.order[folders.start[leaves]]]
    dots = ax.scatter(x[leaves], y[leaves], c=layers, cmap=SEQUENTIAL, s=5, zorder=3, linewidths=0)
    for at, level, name in _names(spec, tree):
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        ax.text(at, -level, name, fontsize=6, ha="center", va="bottom", bbox=box)
    label_axes(ax, spec)
    ax.set(xlabel="head, in tree order", ylabel="level", xlim=(-1, tree.n_leaves))
    levels = ticks(tree.n_levels, 8)
    ax.set_yticks([-level for level in levels], [str(level) for level in levels])
    _layer_bar(figure, dots, ax)
    return figure


def _names(spec: FigureSpec, tree: PartitionTree) -> list[tuple[float, int, str]]:
    """Names of clusters and where they go (leaf, level); the larger cluster wins where two names would overlap."""
    labels = np.asarray(spec.data["labels"])
    wanted = []
    for key, name in (spec.data.get("names") or {}).items():
        level, folder = (int(part) for part in str(key).split(":"))
        inside = np.flatnonzero(labels[level] == folder)
        if len(inside) >= tree.n_leaves / 20:  # smaller clusters leave no room for a name
            wanted.append((len(inside), level, float(tree.leaf_position[inside].mean()), words(name, 30)))
    per_sign = tree.n_leaves * 0.045 / 5.6  # leaves that a letter of 6 points covers on an axis of 5.6 inches
    placed: list[tuple[float, int, str]] = []
    for _, level, at, name in sorted(wanted, key=lambda w: (-w[0], w[1])):
        half = len(name) * per_sign / 2
        at = min(max(at, half), tree.n_leaves - half)
        apart = ((abs(at - x) - len(other) * per_sign / 2 > half, abs(level - y)) for x, y, other in placed)
        if all(beside or rows > tree.n_levels / 12 for beside, rows in apart):
            placed.append((at, level, name))
    return placed


def _grid(spec: FigureSpec, section: Section, heads: Sequence[HeadId]) -> Figure:
    assert section.frame is not None
    score = str(spec.data.get("score", ""))
    if score not in section.frame.columns:
        known = ", ".join(section.frame.columns)
        raise InputError(f"figure {spec.id!r} shows the score {score!r}; the table has {known}")
    rows = sorted({(head.block, head.layer) for head in heads})
    if not pd.api.types.is_numeric_dtype(section.frame[score]):
        return _roles(spec, section.frame[score].tolist(), heads, rows)
    values = np.full((len(rows), 1 + max(head.head for head in heads)), np.nan)
    for head, value in zip(heads, section.frame[score], strict=True):
        values[rows.index((head.block, head.layer)), head.head] = value
    data = {"values": values, "rows": _layer_names(rows), "columns": range(values.shape[1])}
    if np.nanmin(values, initial=0) < 0 < np.nanmax(values, initial=0):
        data["centre"] = 0.0
    shown = replace(spec, data=data, x_label="head", y_label="layer", value_label=score)
    return heatmap(shown, min(6.0, 1.4 + 0.1 * len(rows)))


def _layer_names(rows: Sequence[tuple[str, int]]) -> list[str]:
    many = len({block for block, _ in rows}) > 1
    return [f"{block} {layer}" if many else str(layer) for block, layer in rows]


def _roles(
    spec: FigureSpec, words_of: Sequence[object], heads: Sequence[HeadId], rows: Sequence[tuple[str, int]]
) -> Figure:
    """The grid by role, in the colours of the page, with the number of heads of each."""
    found = Counter(word for word in words_of if isinstance(word, str))
    order = in_order(found)
    colours = {role: np.array(to_rgb(LIGHT[n % (len(LIGHT) - 1)])) for n, role in enumerate(order)}
    colours |= {role: 1 - PALE * (1 - colours[role]) for role in order if found[role] > found.total() / 2}
    colours[MIXED] = np.array(to_rgb(GREY))
    image = np.ones((len(rows), 1 + max(head.head for head in heads), 3))
    for head, word in zip(heads, words_of, strict=True):
        image[rows.index((head.block, head.layer)), head.head] = colours.get(str(word), colours[MIXED])
    figure = Figure(figsize=(COLUMN, min(6.0, 2.0 + 0.1 * len(rows))))
    ax = figure.subplots()
    label_axes(ax, replace(spec, x_label="head", y_label="layer"))
    ax.imshow(image, aspect="auto", interpolation="nearest")
    ax.set_xticks(ticks(image.shape[1], 16))
    ax.set_yticks(at := ticks(len(rows), 16), [words(_layer_names(rows)[i], 24) for i in at])
    patches = [Patch(color=tuple(colours[role]), label=f"{words(role, 26)} ({found[role]})") for role in order]
    figure.legend(handles=patches, loc="outside lower center", ncols=2)
    return figure
