"""The pictures of table 1, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.collapse.bounds import bound_curves
from headscape.collapse.residual import roundoff
from headscape.results import FigureSpec, table_figure
from headscape.studies.table1.result import PRINTED

if TYPE_CHECKING:
    from headscape.studies.table1.result import Table1Result

__all__ = ["figures"]


def figures(r: Table1Result) -> list[FigureSpec]:
    """The table, the four variants by depth, and the bounds, for every setting."""
    return [draw(r, k) for draw in (_table, _variants, _bounds) for k in range(len(r.names))]


def _table(r: Table1Result, k: int) -> FigureSpec:
    return table_figure(
        r.shown(r.names[k]),
        id="table1" if k == 0 else f"table1-{k}",
        title=f"Table 1 in four variants: {r.names[k]}",
        read=f"Relative residual by depth: mean over {r.settings['seeds']} seeds of {r.settings['images']} images each, in "
        "brackets the smallest and the largest seed; beside it the printed values.",
        caveat="From depth 3 on a few seeds and images dominate the mean. The printed values are for CIFAR-10, ours for "
        "Fashion-MNIST.",
        alt="Table of relative residuals by depth and variant.",
        paper="table 1",
    )


def _variants(r: Table1Result, k: int) -> FigureSpec:
    x = np.arange(1, r.depth + 1)
    series: list[dict[str, Any]] = []
    for i, variant in enumerate(r.variants):
        values = 10 ** r.decades(r.names[k], variant)
        ends = {"low": values.min(axis=0), "high": values.max(axis=0)} if len(values) > 1 else {}
        series.append({"name": variant, "x": x, "y": values.mean(axis=0), "dash": "dash" if i % 2 else None} | ends)
    for name, printed in PRINTED.items():
        shown = np.array(printed[: r.depth])
        series.append({"name": f"printed, {name}", "x": x[: len(shown)], "y": shown, "dash": "dot"})
    return FigureSpec(
        id=f"cells-{k}",
        title=f"Networks of attention alone: {r.names[k]}",
        kind="lines",
        data={"series": series},
        read="Relative residual by depth on a logarithmic axis: the mean over seeds and images, bands from the smallest to "
        "the largest seed. Solid: a' = 0, dashed: a' > 0, dotted: as printed.",
        caveat=f"Values are cut at {roundoff():.0e}, the round-off of float64; the printed self-attention column ends at that "
        "of float32.",
        alt="Lines of the relative residual by depth in four variants, beside the printed columns.",
        x_label="depth",
        y_label="relative residual",
        log_y=True,
        paper="table 1",
    )


def _bounds(r: Table1Result, k: int) -> FigureSpec:
    here = r.bounds[(r.bounds["setting"] == r.names[k]) & (r.bounds["measured"] > r.bounds["floor"])]
    dashes = {"4 D": "dashdot", "2 (e^D - 1)": "dash", "printed": "dot"}
    series = [
        {"name": f"{name}, {variant.removeprefix('no skip, ')}", "x": curve.index.to_numpy(), "y": curve.to_numpy()}
        | {"dash": dashes.get(name)}
        for variant in r.variants[:2]
        for name, curve in bound_curves(here[here["cell"] == variant], "depth").items()
    ]
    return FigureSpec(
        id=f"bounds-{k}",
        title=f"Bounds in networks of attention alone: {r.names[k]}",
        kind="lines",
        data={"series": series},
        read="||Res(attention output)|| by layer of one network and image, without a skip, beside its bounds. Layers at "
        "round-off are left out.",
        caveat="One network; the property tests draw many.",
        alt="Lines of the measured residual and its bounds by depth.",
        x_label="depth",
        y_label="norm {1,inf}",
        log_y=True,
    )
