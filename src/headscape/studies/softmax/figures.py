"""The pictures of the softmax study, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headscape.intervals import mean_interval
from headscape.results import Captions, FigureSpec
from headscape.studies.softmax.head import COLUMNS
from headscape.studies.softmax.result import ALL_VARIANTS, LAYER_VARIANTS, NAMES, SoftmaxResult
from headscape.studies.work.series import bars, heads_as_points, line

__all__ = ["figures"]
captions = Captions(__name__)

_COMPARED = (
    "second_order",
    "paraproduct",
    "corollary",
    "natural",
    "natural_corollary",
    "shuffled",
    "shuffled_corollary",
    "boundary",
    "linear",
    "mean",
    "printed",
)


def figures(r: SoftmaxResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_table(r)]
    for head in r.maps:
        found += [_figure1(r, head), _figure2(r, head)]
    grid = captions.figure("softmax-grid", {"score": "change_corollary" if r.unit else "corollary_error"})
    found += [grid, _variants(r), _exponents(r), _condition(r), _scales(r)]
    return found + ([_change_heads(r), _change_layers(r), _change_all(r)] if r.unit else [])


def _table(r: SoftmaxResult) -> FigureSpec:
    rule = f"A head passes (fails) when the whole interval of its change lies within (beyond) {r.tolerance:g} {r.unit_name}."
    return captions.table(
        "passing", r.named_variants(), n_heads=r.n_heads, value=rule if r.unit else "The model was not run."
    )


def _panel(r: SoftmaxResult, head: str, name: str, values: Any, organized: bool = True) -> dict[str, Any]:
    tokens = {f"{axis}_tokens": list(r.tokens.get(axis) or []) for axis in ("query", "key")}
    if organized:
        orders = {f"{axis}_tokens": r.maps[head][f"{axis}_order"] for axis in ("query", "key")}
        tokens = {axis: [found[i] for i in orders[axis]] if found else [] for axis, found in tokens.items()}
    return {"name": name, "values": values, **tokens}


def _figure1(r: SoftmaxResult, head: str) -> FigureSpec:
    maps = r.maps[head]
    panels = [_panel(r, head, "original", maps["original"], False), _panel(r, head, "organized", maps["softmax"])]
    return captions.figure("organized", {"panels": panels}, head=head)


def _figure2(r: SoftmaxResult, head: str) -> FigureSpec:
    maps = r.maps[head]
    names = r.heads["block"] + "." + r.heads["layer"].astype(str) + "." + r.heads["head"].astype(str)
    errors = {name: float(r.heads.loc[names == head, f"{name}_error"].iloc[0]) for name in ("paraproduct", "corollary")}
    panels = [_panel(r, head, f"{NAMES[name]} (error {error:.2f})", maps[name]) for name, error in errors.items()]
    panels.append(_panel(r, head, "softmax", maps["softmax"]))
    high = max(float(np.nanmax(panel["values"])) for panel in panels)
    panels = [panel | {"high": high} for panel in panels]
    panels.append(_panel(r, head, "Corollary 1 minus softmax", maps["corollary"] - maps["softmax"]))
    return captions.figure("approximation", {"panels": panels}, head=head)


def _bars(values: Mapping[str, Any]) -> dict[str, Any]:
    return bars({name: mean_interval(each) for name, each in values.items()})


def _variants(r: SoftmaxResult) -> FigureSpec:
    values = {NAMES[v]: r.column(f"{v}_error").mean(axis=1) for v in _COMPARED if f"{v}_error" in r.heads}
    if r.control is not None:
        for v in ("paraproduct", "corollary"):
            values[f"{NAMES[v]}, random weights"] = r.control[COLUMNS.index(f"{v}_error")].mean()
    return captions.figure("variants", _bars(values))


def _exponents(r: SoftmaxResult) -> FigureSpec:
    names = {"natural": "alpha_natural", "organized": "alpha", "largest": "alpha_largest"}
    names |= {"shuffled": "alpha_shuffled", "residual": "alpha_residual"}
    return captions.violins("exponents", {name: r.heads[key].dropna().to_numpy() for name, key in names.items()})


def _condition(r: SoftmaxResult) -> FigureSpec:
    layers = [f"layer {n}" for n in r.heads["layer"]]
    return captions.figure("condition", heads_as_points(r.heads, "average_rms", "corollary_error", layers))


def _scales(r: SoftmaxResult) -> FigureSpec:
    residual = r.scales[0]
    n_query, n_key = (1 + int(np.flatnonzero(residual.any(axis=a)).max(initial=0)) for a in (1, 0))
    sides = {"rows": [str(2**k) for k in range(n_query)], "columns": [str(2**k) for k in range(n_key)]}
    return captions.figure("residual-scales", {"values": residual[:n_query, :n_key], **sides})


def _change_heads(r: SoftmaxResult) -> FigureSpec:
    order = np.argsort(r.heads["change_corollary"].to_numpy(), kind="stable")
    x = np.arange(len(order))
    series = []
    for name in ("corollary", "paraproduct", "mean"):
        part = {"name": NAMES[name], "x": x, "y": r.heads[f"change_{name}"].to_numpy()[order]}
        if name == "corollary" and np.isfinite(r.heads["change_corollary_low"]).all():
            part |= {end: r.heads[f"change_corollary_{end}"].to_numpy()[order] for end in ("low", "high")}
            part["n"] = [len(r.values)]
        series.append(part)
    ends, height = x[[0, -1]], np.full(2, r.tolerance)
    both = {"x": [*ends, ends[-1], *ends], "y": [*height, np.nan, *-height]}  # one line with a gap
    series.append({"name": "tolerance", "x": ends, "y": height, "dash": "dot"} | (both if r.unit == "loss" else {}))
    return captions.lines("change-heads", series, unit_name=r.unit_name)


def _change_layers(r: SoftmaxResult) -> FigureSpec:
    assert r.changes_layer is not None
    layers = np.unique(r.heads["layer"].to_numpy())
    spans = [[mean_interval(column) for column in by_input.T] for by_input in r.changes_layer.swapaxes(0, 1)]
    series = [line(NAMES[name], layers, ends) for name, ends in zip(LAYER_VARIANTS, spans, strict=True)]
    return captions.lines("change-layers", series, unit_name=r.unit_name)


def _change_all(r: SoftmaxResult) -> FigureSpec:
    assert r.changes_all is not None
    changes = {NAMES[name]: column for name, column in zip(ALL_VARIANTS, r.changes_all.T, strict=False)}
    return captions.figure("change-all", _bars(changes), unit_name=r.unit_name)
