"""The pictures of the softmax study, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.results import FigureSpec, bootstrap
from headscape.studies.softmax.head import COLUMNS
from headscape.studies.softmax.result import ALL_VARIANTS, LAYER_VARIANTS, UNITS

if TYPE_CHECKING:
    from headscape.studies.softmax.result import SoftmaxResult

__all__ = ["figures"]

NAMES = {
    "paraproduct": "paraproduct",
    "corollary": "Corollary 1",
    "boundary": "boundary terms alone",
    "mean": "mean alone (uniform)",
    "linear": "a + b g",
    "natural": "paraproduct, natural order",
    "natural_corollary": "Corollary 1, natural order",
    "shuffled": "paraproduct, shuffled head",
    "shuffled_corollary": "Corollary 1, shuffled head",
    "paraproduct_raw": "paraproduct, not renormalised",
    "corollary_raw": "Corollary 1, not renormalised",
    "own": "softmax itself",
}
_LISTED = ("paraproduct", "corollary", "natural", "natural_corollary", "shuffled", "shuffled_corollary")
_LISTED_ALONE = ("boundary", "linear", "mean")


def figures(r: SoftmaxResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_table(r)]
    for head in r.maps:
        found += [_figure1(r, head), _figure2(r, head)]
    found += [_grid(r), _variants(r), _exponents(r), _condition(r), _scales(r)]
    if r.unit:
        found += [_change_heads(r), _change_layers(r), _change_all(r)]
    return found


def _table(r: SoftmaxResult) -> FigureSpec:
    frame = r.passing
    rows = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in frame.to_numpy(dtype=object)]
    for row in rows:
        row[0] = NAMES[row[0]]
    return FigureSpec(
        id="passing",
        title="What may stand for softmax",
        kind="table",
        data={"columns": list(frame.columns), "rows": rows},
        read=f"Medians over {r.n_heads} heads, and shares of them. "
        + (
            f"A head passes when the whole interval of its change lies within {r.tolerance:g} {UNITS[r.unit]}."
            if r.unit
            else "The model was not asked."
        ),
        caveat="A head that passes with uniform attention too is one whose map hardly matters on this text.",
        alt="Table of errors and passing shares by what is put in place of softmax.",
    )


def _panel(r: SoftmaxResult, head: str, name: str, which: str, organised: bool) -> dict[str, Any]:
    maps = r.maps[head]
    tokens = {axis: list(r.tokens.get(axis) or []) for axis in ("query", "key")}
    if organised:
        tokens = {axis: [t[i] for i in maps[f"{axis}_order"]] if t else [] for axis, t in tokens.items()}
    return {"name": name, "values": maps[which], "query_tokens": tokens["query"], "key_tokens": tokens["key"]}


def _figure1(r: SoftmaxResult, head: str) -> FigureSpec:
    return FigureSpec(
        id=f"organised-{head}",
        title=f"Head {head}: original and organised",
        kind="maps",
        data={
            "panels": [_panel(r, head, "original", "original", False), _panel(r, head, "organised", "softmax", True)]
        },
        read="The same attention twice: in the order of the tokens, and with queries and keys in the order of their trees.",
        caveat="An order that looks smooth is what the organisation looks for; the exponents say how smooth it is.",
        alt=f"Attention of head {head} in the natural and in the organised order.",
        paper="figure 1",
    )


def _figure2(r: SoftmaxResult, head: str) -> FigureSpec:
    row = r.heads[(r.heads["block"] + "." + r.heads["layer"].astype(str) + "." + r.heads["head"].astype(str)) == head]
    errors = {name: float(row[f"{name}_error"].iloc[0]) for name in ("paraproduct", "corollary")}
    names = {name: f"{NAMES[name]} (error {errors[name]:.2f})" for name in errors} | {"softmax": "softmax"}
    return FigureSpec(
        id=f"approximation-{head}",
        title=f"Head {head}: decomposition and softmax",
        kind="maps",
        data={"panels": [_panel(r, head, name, which, True) for which, name in names.items()]},
        read="All in the organised order. The claim is that the first ones look like the last.",
        caveat="Approximations are clipped at 0 and rows renormalised; errors are of the raw ones, over all inputs.",
        alt=f"Two decompositions of head {head} beside its softmax.",
        paper="figure 2",
    )


def _grid(r: SoftmaxResult) -> FigureSpec:
    return FigureSpec(
        id="softmax-grid",
        title="Layer by head",
        kind="head_grid",
        data={"score": "change_corollary" if r.unit else "corollary_error"},
        read="One cell a head; choose any measure: *_error, *_kl and *_top5 compare with softmax, alpha* are exponents, "
        "average_* and mixed_* the condition, change_* what the model says.",
        caveat="Means over the inputs of this run.",
        alt="Grid of layers and heads coloured by a measure of the study.",
        x_label="head",
        y_label="layer",
    )


def _bars(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    intervals = [bootstrap(v[np.isfinite(v)]) if np.isfinite(v).any() else None for v in map(np.asarray, values)]
    ends = {
        key: [float("nan") if i is None else getattr(i, part) for i in intervals]
        for key, part in (("values", "value"), ("low", "low"), ("high", "high"))
    }
    return {"names": list(names), **ends}


def _variants(r: SoftmaxResult) -> FigureSpec:
    order = (*_LISTED, *_LISTED_ALONE)
    names, values = [NAMES[v] for v in order], [r.heads[f"{v}_error"].to_numpy() for v in order]
    if r.control is not None:
        for v in ("paraproduct", "corollary"):
            names.append(f"{NAMES[v]}, random weights")
            values.append(r.control[COLUMNS.index(f"{v}_error")])
    return FigureSpec(
        id="variants",
        title="Relative error of what stands for softmax",
        kind="bars",
        data=_bars(names, values),
        read="Mean over heads of ||approximation - softmax|| / ||softmax||, with 95 % intervals over heads. 1 is as far off "
        "as no attention at all.",
        caveat="If the natural order does as well as the organised one, organisation is not what makes the difference.",
        alt="Bars of relative errors for the decompositions and their controls.",
        y_label="relative error",
    )


def _exponents(r: SoftmaxResult) -> FigureSpec:
    columns = {
        "natural": "alpha_natural",
        "organised": "alpha",
        "largest": "alpha_largest",
        "shuffled": "alpha_shuffled",
        "residual": "alpha_residual",
    }
    groups = []
    for name, column in columns.items():
        values = r.heads[column].to_numpy(dtype=np.float64)
        groups.append({"name": name, "values": values[np.isfinite(values)]})
    return FigureSpec(
        id="exponents",
        title="How regular log-attention is",
        kind="violins",
        data={"groups": groups},
        read="Mixed Hoelder exponents of all heads: in the natural order, organised (typical and largest coefficients), "
        "shuffled and organised, and of the residual. White noise has -0.5; Theorem 1 assumes an exponent between 0 "
        "and 0.5 and promises a residual with twice that.",
        caveat="Exponents are slopes over the scales a head has; of causal heads only what lies below the diagonal is seen.",
        alt="Violins of Hoelder exponents in the natural order, organised, shuffled, and of the residual.",
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
        read="Each point is a head. Corollary 1 takes e^average for 1, which needs averages (of log-attention less its "
        "mean) near 0: only then can its error be small.",
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
        read="Size of what the paraproduct leaves of the mixed differences, over the size of softmax, by the number of "
        "folders before the step; mean over heads of the first input.",
        caveat="Terms of different scales overlap, so that the cells do not add up to the whole error.",
        alt="Heat map of the residual over query and key scales.",
        x_label="folders of keys",
        y_label="folders of queries",
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
        read="Heads from small to large change under Corollary 1, with 95 % intervals over inputs; the dotted line is the "
        "tolerance.",
        caveat="Other heads can make up for one; the change of all together is another figure.",
        alt="Change of the model when one head's map is replaced, for every head.",
        x_label="head, by change under Corollary 1",
        y_label=f"change, {UNITS[r.unit]}",
    )


def _change_layers(r: SoftmaxResult) -> FigureSpec:
    assert r.changes_layer is not None
    layers = np.unique(r.heads["layer"].to_numpy())
    series = []
    for v, name in enumerate(LAYER_VARIANTS):
        intervals = [bootstrap(column) for column in r.changes_layer[:, v].T]
        part: dict[str, Any] = {"name": NAMES[name], "x": layers, "y": np.array([i.value for i in intervals])}
        if r.changes_layer.shape[0] > 1:
            part |= {"low": np.array([i.low for i in intervals]), "high": np.array([i.high for i in intervals])}
        series.append(part)
    return FigureSpec(
        id="change-layers",
        title="One layer replaced at a time",
        kind="lines",
        data={"series": series},
        read="All heads of a layer replaced together, with 95 % intervals over inputs.",
        caveat="Maps are those of the unchanged model, also where an earlier layer would have changed them.",
        alt="Change of the model when a layer's maps are replaced, by layer.",
        x_label="layer",
        y_label=f"change, {UNITS[r.unit]}",
    )


def _change_all(r: SoftmaxResult) -> FigureSpec:
    assert r.changes_all is not None
    return FigureSpec(
        id="change-all",
        title="All heads replaced at once",
        kind="bars",
        data=_bars([NAMES[name] for name in ALL_VARIANTS], list(r.changes_all.T)),
        read="What the model says when no head has its softmax any more; 'softmax itself' must be 0. 95 % intervals over "
        "inputs.",
        caveat="Maps are those of the unchanged model: errors do not pass on to later scores, so the true change is larger.",
        alt="Bars of the change of the model when all maps are replaced, by what replaces them.",
        y_label=f"change, {UNITS[r.unit]}",
    )
