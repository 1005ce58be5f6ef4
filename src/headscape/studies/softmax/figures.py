"""The pictures of the softmax study, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.intervals import Interval, mean_interval
from headscape.results import FigureSpec, table_figure
from headscape.studies.softmax.head import COLUMNS
from headscape.studies.softmax.result import ALL_VARIANTS, LAYER_VARIANTS, NAMES

if TYPE_CHECKING:
    from headscape.studies.softmax.result import SoftmaxResult

__all__ = ["figures"]

_COMPARED = (
    "paraproduct",
    "corollary",
    "natural",
    "natural_corollary",
    "shuffled",
    "shuffled_corollary",
    "boundary",
    "linear",
    "mean",
)


def figures(r: SoftmaxResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_table(r)]
    for head in r.maps:
        found += [_figure1(r, head), _figure2(r, head)]
    found += [_grid(r), _variants(r), _exponents(r), _condition(r), _scales(r)]
    return found + ([_change_heads(r), _change_layers(r), _change_all(r)] if r.unit else [])


def _table(r: SoftmaxResult) -> FigureSpec:
    rule = f"A head passes (fails) when the whole interval of its change lies within (beyond) {r.tolerance:g} {r.unit_name}."
    return table_figure(
        r.named_variants(),
        id="passing",
        title="What can replace softmax",
        read=f"Medians over {r.n_heads} heads, and shares of them. {rule if r.unit else 'The model was not run.'}",
        caveat="A head that passes with uniform attention too is one whose map hardly matters on these inputs.",
        alt="Table of errors and passing shares by what replaces softmax.",
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
    return FigureSpec(
        id=f"organized-{head}",
        title=f"Head {head}: original and organized",
        kind="maps",
        data={"panels": panels},
        read="The same attention twice: in the order of the tokens, and with queries and keys in the order of their trees.",
        caveat="Organizing looks for an order that looks smooth; the exponents say how smooth it is.",
        alt=f"Attention of head {head} in the natural and in the organized order.",
        paper="figure 1",
    )


def _figure2(r: SoftmaxResult, head: str) -> FigureSpec:
    maps = r.maps[head]
    names = r.heads["block"] + "." + r.heads["layer"].astype(str) + "." + r.heads["head"].astype(str)
    errors = {name: float(r.heads.loc[names == head, f"{name}_error"].iloc[0]) for name in ("paraproduct", "corollary")}
    panels = [_panel(r, head, f"{NAMES[name]} (error {error:.2f})", maps[name]) for name, error in errors.items()]
    panels.append(_panel(r, head, "softmax", maps["softmax"]))
    high = max(float(np.nanmax(panel["values"])) for panel in panels)
    panels = [panel | {"high": high} for panel in panels]
    panels.append(_panel(r, head, "Corollary 1 minus softmax", maps["corollary"] - maps["softmax"]))
    return FigureSpec(
        id=f"approximation-{head}",
        title=f"Head {head}: decomposition and softmax",
        kind="maps",
        data={"panels": panels},
        read="All in the organized order, the first three on one scale, the difference about 0. The claim is that the "
        "first two look like the third, and that the difference vanishes.",
        caveat="Approximations are clipped at 0 and rows renormalized; errors are those before that, over all inputs.",
        alt=f"Two decompositions of head {head} beside its softmax, and a difference.",
        paper="figure 2",
    )


def _grid(r: SoftmaxResult) -> FigureSpec:
    return FigureSpec(
        id="softmax-grid",
        title="Layer by head",
        kind="head_grid",
        data={"score": "change_corollary" if r.unit else "corollary_error"},
        read="One cell per head; choose any measure: *_error, *_kl and *_top5 compare with softmax, alpha* are exponents, average_* and mixed_* "
        "the condition of Corollary 1, change_* the effect on the model.",
        caveat="Means over the inputs of this run.",
        alt="Grid of layers and heads coloured by a measure of the study.",
        x_label="head",
        y_label="layer",
    )


def _ends(intervals: Sequence[Interval]) -> dict[str, Any]:
    """Both ends of intervals, as figures take them."""
    return {end: np.array([getattr(each, end) for each in intervals]) for end in ("low", "high")}


def _bars(values: Mapping[str, Any]) -> dict[str, Any]:
    intervals = [mean_interval(each) for each in values.values()]
    return {"names": list(values), "values": [each.value for each in intervals], **_ends(intervals)}


def _variants(r: SoftmaxResult) -> FigureSpec:
    values = {NAMES[v]: r.column(f"{v}_error").mean(axis=1) for v in _COMPARED}
    if r.control is not None:
        for v in ("paraproduct", "corollary"):
            values[f"{NAMES[v]}, random weights"] = r.control[COLUMNS.index(f"{v}_error")].mean()
    return FigureSpec(
        id="variants",
        title="Relative error of what replaces softmax",
        kind="bars",
        data=_bars(values),
        read="Mean over heads of ||approximation - softmax|| / ||softmax||, with 95 % intervals over inputs. 1 is as far off as no attention at all.",
        caveat="If the natural order does as well as the organized one, organizing is not what makes the difference.",
        alt="Bars of relative errors for the decompositions and their controls.",
        y_label="relative error",
    )


def _exponents(r: SoftmaxResult) -> FigureSpec:
    columns = ("alpha_natural", "alpha", "alpha_largest", "alpha_shuffled", "alpha_residual")
    names = ("natural", "organized", "largest", "shuffled", "residual")
    groups = [
        {"name": name, "values": r.heads[column].dropna().to_numpy()}
        for name, column in zip(names, columns, strict=True)
    ]
    return FigureSpec(
        id="exponents",
        title="How regular log-attention is",
        kind="violins",
        data={"groups": groups},
        read="Mixed Hoelder exponents, one value per head: in the natural order, organized (typical and largest coefficients), shuffled and "
        "organized, and of the residual. White noise has -0.5; Theorem 1 assumes one between 0 and 0.5 and promises a residual with twice that.",
        caveat="Exponents are slopes over the scales of a head; of causal heads they see only what lies below the diagonal.",
        alt="Violins of Hoelder exponents in the natural order, organized, shuffled, and of the residual.",
        y_label="mixed Hoelder exponent",
    )


def _condition(r: SoftmaxResult) -> FigureSpec:
    names = [f"{b}.{n}.{h}" for b, n, h in zip(r.heads["block"], r.heads["layer"], r.heads["head"], strict=True)]
    return FigureSpec(
        id="condition",
        title="The condition of Corollary 1",
        kind="scatter",
        data={
            "x": r.heads["average_rms"].to_numpy(),
            "y": r.heads["corollary_error"].to_numpy(),
            "names": names,
            "group": [f"layer {n}" for n in r.heads["layer"]],
        },
        read="Each point is a head. Corollary 1 sets e^average to 1, which needs averages (of log-attention minus its mean) near 0: only then can "
        "its error be small.",
        caveat="Necessary, not sufficient: mixed differences must be small as well.",
        alt="Scatter of the size of averages against the error of Corollary 1.",
        x_label="rms of the averages (nats)",
        y_label="relative error of Corollary 1",
    )


def _scales(r: SoftmaxResult) -> FigureSpec:
    residual = r.scales[0]
    n_query, n_key = (1 + int(np.flatnonzero(residual.any(axis=a)).max(initial=0)) for a in (1, 0))
    return FigureSpec(
        id="residual-scales",
        title="Residual by scale",
        kind="heatmap",
        data={
            "values": residual[:n_query, :n_key],
            "rows": [str(2**k) for k in range(n_query)],
            "columns": [str(2**k) for k in range(n_key)],
        },
        read="What the paraproduct leaves of the mixed differences, over the norm of softmax, by the number of clusters before the step; mean over "
        "heads on the first input.",
        caveat="Terms of different scales overlap, so the cells do not add up to the whole error.",
        alt="Heat map of the residual over query and key scales.",
        x_label="clusters of keys",
        y_label="clusters of queries",
        value_label="residual / ||softmax||",
    )


def _change_heads(r: SoftmaxResult) -> FigureSpec:
    order = np.argsort(r.heads["change_corollary"].to_numpy(), kind="stable")
    x = np.arange(len(order))
    series = []
    for name in ("corollary", "paraproduct", "mean"):
        part = {"name": NAMES[name], "x": x, "y": r.heads[f"change_{name}"].to_numpy()[order]}
        if name == "corollary" and np.isfinite(r.heads["change_corollary_low"]).all():
            part |= {end: r.heads[f"change_corollary_{end}"].to_numpy()[order] for end in ("low", "high")}
        series.append(part)
    series += [
        {"name": "tolerance", "x": x[[0, -1]], "y": np.full(2, sign * r.tolerance), "dash": "dot"}
        for sign in ((1, -1) if r.unit == "loss" else (1,))
    ]
    return FigureSpec(
        id="change-heads",
        title="One head replaced at a time",
        kind="lines",
        data={"series": series},
        read="Heads from small to large change under Corollary 1, with 95 % intervals over inputs; the dotted line is the tolerance.",
        caveat="Other heads can compensate for one; the change of all together is another figure.",
        alt="Change of the model when one head's map is replaced, for every head.",
        x_label="head, by change under Corollary 1",
        y_label=f"change, {r.unit_name}",
    )


def _change_layers(r: SoftmaxResult) -> FigureSpec:
    assert r.changes_layer is not None
    layers = np.unique(r.heads["layer"].to_numpy())
    series = []
    for v, name in enumerate(LAYER_VARIANTS):
        intervals = [mean_interval(column) for column in r.changes_layer[:, v].T]
        line = {"name": NAMES[name], "x": layers, "y": np.array([each.value for each in intervals])}
        series.append(line | (_ends(intervals) if len(r.changes_layer) > 1 else {}))
    return FigureSpec(
        id="change-layers",
        title="One layer replaced at a time",
        kind="lines",
        data={"series": series},
        read="All heads of a layer replaced together, with 95 % intervals over inputs.",
        caveat="Maps are those of the unchanged model, also where an earlier layer would have changed them.",
        alt="Change of the model when a layer's maps are replaced, by layer.",
        x_label="layer",
        y_label=f"change, {r.unit_name}",
    )


def _change_all(r: SoftmaxResult) -> FigureSpec:
    assert r.changes_all is not None
    return FigureSpec(
        id="change-all",
        title="All heads replaced at once",
        kind="bars",
        data=_bars({NAMES[name]: column for name, column in zip(ALL_VARIANTS, r.changes_all.T, strict=True)}),
        read="The change of the model when no head has its softmax any more, with 95 % intervals over inputs; 'softmax itself' must be 0.",
        caveat="Maps are those of the unchanged model: errors do not propagate to later scores, so the true change is larger.",
        alt="Bars of the change of the model when all maps are replaced, by what replaces them.",
        y_label=f"change, {r.unit_name}",
    )
