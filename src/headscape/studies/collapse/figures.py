"""The pictures of the collapse study and of table 1, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.collapse.bounds import CONDITION
from headscape.collapse.similarity import ALIKE, points_of
from headscape.results import FigureSpec, bootstrap
from headscape.studies.collapse.result import cells_of

if TYPE_CHECKING:
    from headscape.studies.collapse.result import CollapseResult
    from headscape.studies.table1.study import Table1Result

__all__ = ["figures", "table1_figures"]

Array = npt.NDArray[Any]
SHOWN = 9
"""Violins in a row that can still be told apart."""
FLOOR = 1e-17
"""Smallest residual drawn on a logarithmic axis; below float64's round-off."""
CONTROLS = {"standard": "the model", "shuffled": "inputs shuffled", "random": "random weights"}


def figures(r: CollapseResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_table(r)]
    if r.residual is not None:
        found += [_residual(r), _rank(r), _similarity(r), _share(r)]
        if "hidden" in r.arms:
            found.append(_hopfield(r))
        for weights in ("", "random"):
            if set(cells_of(weights)) <= set(r.arms):
                found.append(_four_cells(r, weights))
    if r.entropies is not None:
        found += [_grid(r), _entropy(r)]
    return found + [_bounds(r, arm) for arm in dict.fromkeys(r.bounds["arm"] if len(r.bounds) else ())]


def _table(r: CollapseResult) -> FigureSpec:
    frame = r.by_arm
    rows = [[str(v) for v in row] for row in frame.to_numpy(dtype=object)]
    return FigureSpec(
        id="arms",
        title="The model, its controls and its cells",
        kind="table",
        data={"columns": [str(c) for c in frame.columns], "rows": rows},
        read="Relative residual (1: tokens have nothing in common, 0: all are equal) and effective rank after the last "
        "layer, with 95 % intervals over inputs; mode of the cosines of pairs of tokens; share of pairs with a cosine "
        f"of {ALIKE:g} or more; mean entropy of attention over the largest possible.",
        caveat="Cells other than 'standard' put something into a trained model that it was not trained with.",
        alt="Table of collapse after the last layer, by arm.",
    )


def _line(name: str, values: Array, **options: Any) -> dict[str, Any]:
    """Mean over inputs (n_input, n_layer) by layer, with the interval where there is one."""
    spans = [bootstrap(column) for column in values.T]
    line: dict[str, Any] = {"name": name, "x": np.arange(values.shape[1]), "y": np.array([s.value for s in spans])}
    if len(values) > 1:
        line |= {"low": np.array([s.low for s in spans]), "high": np.array([s.high for s in spans])}
    return line | options


def _residual(r: CollapseResult) -> FigureSpec:
    assert r.residual is not None
    shown = [arm for arm in CONTROLS if arm in r.arms]
    return FigureSpec(
        id="residual",
        title="What is left of the differences between tokens",
        kind="lines",
        data={"series": [_line(CONTROLS[arm], r.residual[r.at(arm)]) for arm in shown]},
        read="Relative residual ||X - mean|| / ||X|| of the hidden states by layer; bands are 95 % intervals over inputs. "
        "Collapse is a fall to 0.",
        caveat="A few tokens or features of large size can carry both norms; decoders show their last state behind the final "
        "norm.",
        alt="Lines of the relative residual by layer for the model and its controls.",
        x_label="after layer",
        y_label="relative residual",
    )


def _rank(r: CollapseResult) -> FigureSpec:
    assert r.rank is not None
    shown = [arm for arm in CONTROLS if arm in r.arms]
    return FigureSpec(
        id="rank",
        title="Effective rank of the hidden states",
        kind="lines",
        data={"series": [_line(CONTROLS[arm], r.rank[r.at(arm)]) for arm in shown]},
        read="exp of the entropy of the singular values: how many directions the tokens use. 1 is full collapse.",
        caveat="One large direction lowers it, even when all others are still there.",
        alt="Lines of the effective rank by layer for the model and its controls.",
        x_label="after layer",
        y_label="effective rank",
    )


def _chosen(n: int) -> list[int]:
    """At most `SHOWN` of n layers, evenly, both ends among them."""
    return sorted({round(float(k)) for k in np.linspace(0, n - 1, min(n, SHOWN))})


def _violins(counts: Array, left: int, right: int | None) -> dict[str, Any]:
    """Histograms (n_arm, n_layer, n_bin) of one arm, or of two side by side, as violins by layer."""
    groups = []
    for k in _chosen(counts.shape[1]):
        sides = [(left, "both" if right is None else "left"), *([] if right is None else [(right, "right")])]
        groups += [{"name": f"L{k}", "values": points_of(counts[a, k]), "side": side} for a, side in sides]
    return {"groups": groups}


def _similarity(r: CollapseResult) -> FigureSpec:
    assert r.similarity is not None
    control = next((arm for arm in ("random", "shuffled") if arm in r.arms), None)
    beside = f": model (left), {CONTROLS[control]} (right)" if control else ""
    return FigureSpec(
        id="similarity",
        title=f"Similarity of tokens{beside}",
        kind="violins",
        data=_violins(r.similarity, 0, r.at(control) if control else None),
        read="Cosines of all pairs of tokens, by layer (0 is before the first). A bulge at 1 is a population of tokens that "
        "are all alike: partial rank collapse.",
        caveat="The same word twice is alike from the start; the figure of shares counts different words apart."
        if r.different is not None
        else "Similarity of neighbours in a picture is not collapse: compare with the layers before.",
        alt="Violins of token similarity by layer.",
        x_label="after layer",
        y_label="cosine of two tokens",
        paper="figures 4 to 12",
    )


def _hopfield(r: CollapseResult) -> FigureSpec:
    assert r.similarity is not None
    return FigureSpec(
        id="similarity-hopfield",
        title="Similarity of tokens: model (left), Hopfield (right)",
        kind="violins",
        data=_violins(r.similarity, 0, r.at("hidden")),
        read=f"Right, scores are averaged along depth (a' = {r.settings['alpha_hidden']:g}), with the model's own skip.",
        caveat="The weights are those of the model without a hidden state; training with one is another matter (headscape "
        "train).",
        alt="Split violins of token similarity by layer, standard beside Hopfield.",
        x_label="after layer",
        y_label="cosine of two tokens",
        paper="figures 4 to 12",
    )


def _share(r: CollapseResult) -> FigureSpec:
    names = CONTROLS | {"hidden": "with a hidden state"}
    series = []
    for arm in names:
        if arm in r.arms:
            shares = np.array([s.share for s in r.alike(arm)])
            series.append({"name": names[arm], "x": np.arange(len(shares)), "y": shares})
    if r.different is not None:
        shares = np.array([s.share for s in r.alike("standard", different=True)])
        series.append({"name": "the model, different words", "x": np.arange(len(shares)), "y": shares, "dash": "dot"})
    return FigureSpec(
        id="share",
        title=f"Pairs of tokens with a cosine of {ALIKE:g} or more",
        kind="lines",
        data={"series": series},
        read="The share of pairs that are alike, over all inputs, by layer.",
        caveat="The same word twice is alike from the start." if r.different is not None else "",
        alt="Lines of the share of aligned pairs by layer.",
        x_label="after layer",
        y_label="share of pairs",
    )


_CELL_NAMES = ("skip, a' = 0", "skip, a' > 0", "no skip, a' = 0", "no skip, a' > 0")


def _four_cells(r: CollapseResult, weights: str) -> FigureSpec:
    assert r.residual is not None
    series = []
    for k, (arm, name) in enumerate(zip(cells_of(weights), _CELL_NAMES, strict=True)):
        dashed = {"dash": "dash"} if k % 2 else {}
        series.append(_line(name, np.maximum(r.residual[r.at(arm)], FLOOR), **dashed))
    return FigureSpec(
        id="residual-cells-random" if weights else "residual-cells",
        title=f"Skip or hidden state? {'Random weights' if weights else 'The model'} in four cells",
        kind="lines",
        data={"series": series},
        read="Relative residual by layer, on a logarithmic axis. 'skip' is the model's own; without it attention's output "
        "takes the place of the stream, MLPs keep theirs. What separates solid from dashed is the hidden state.",
        caveat="Near 1e-16, and near 1e-7 where a model computes its norms in float32, it is round-off.",
        alt="Lines of the relative residual in four cells.",
        x_label="after layer",
        y_label="relative residual",
        log_y=True,
    )


def _grid(r: CollapseResult) -> FigureSpec:
    return FigureSpec(
        id="entropy",
        title="Entropy of attention, layer by head",
        kind="head_grid",
        data={"score": "entropy"},
        read="Mean over rows of the entropy over its largest possible value, log of the number of keys: 1 attends to all "
        "alike, 0 to one key. Other columns: the same in the other arms, and D, the spread that bounds ask about.",
        caveat="Low entropy is not a fault by itself: a head that finds the previous token has none.",
        alt="Grid of layers and heads coloured by the entropy of attention.",
        x_label="head",
        y_label="layer",
    )


def _entropy(r: CollapseResult) -> FigureSpec:
    assert r.entropies is not None
    other = next((arm for arm in ("hidden", "random") if arm in r.arms), None)
    beside = {"hidden": ": model (left), Hopfield (right)", "random": ": model (left), random weights (right)"}
    return FigureSpec(
        id="entropy-layers",
        title=f"Entropy of attention rows{beside[other] if other else ''}",
        kind="violins",
        data=_violins(r.entropies, 0, r.at(other) if other else None),
        read="All rows of all heads of a layer, over the largest possible entropy; the first row of causal attention is "
        "left out.",
        caveat="Rows of one head are not independent of each other.",
        alt="Violins of the entropy of attention rows by layer.",
        x_label="layer",
        y_label="entropy / log(number of keys)",
        paper="figures 13 to 20",
    )


def _bound_series(frame: pd.DataFrame, along: str) -> list[dict[str, Any]]:
    """Medians by layer of what is measured and of the bounds; repaired only where its condition holds."""
    series = []
    for name, column, dashed in (
        ("measured", "measured", {}),
        ("4 D", "repaired", {}),
        ("2 (e^D - 1)", "anywhere", {"dash": "dash"}),
        ("printed", "printed", {"dash": "dot"}),
    ):
        part = frame[frame["spread"] <= CONDITION] if column == "repaired" else frame
        part = part[np.isfinite(part[column]) & (part[column] > 0)]
        if len(part):
            middle = part.groupby(along)[column].median()
            series.append({"name": name, "x": middle.index.to_numpy(), "y": middle.to_numpy()} | dashed)
    return series


def _bounds(r: CollapseResult, arm: str) -> FigureSpec:
    return FigureSpec(
        id="bounds" if arm == "standard" else f"bounds-{arm}",
        title=f"Bounds on what attention leaves: {CONTROLS[arm]}",
        kind="lines",
        data={"series": _bound_series(r.bounds[r.bounds["arm"] == arm], "layer")},
        read="||Res(attention output)|| by layer, medians over inputs, beside the repaired bound with 4 D where D is "
        f"at most {CONDITION:.3f}, with 2 (e^D - 1) everywhere, and the printed one, on a logarithmic axis.",
        caveat="Bounds are of attention alone, before the skip adds what came in.",
        alt="Lines of the measured residual and its bounds by layer.",
        x_label="layer",
        y_label="norm {1,inf}",
        log_y=True,
    )


# --- table 1 -------------------------------------------------------------------------------------------------------


def table1_figures(r: Table1Result) -> list[FigureSpec]:
    """The table, the four cells by depth, and the bounds, of every setting."""
    found = [_table1(r, k) for k in range(len(r.names))]
    found += [_table1_cells(r, k) for k in range(len(r.names))]
    return found + [_table1_bounds(r, k) for k in range(len(r.names))]


def _table1(r: Table1Result, k: int) -> FigureSpec:
    from headscape.studies.table1.study import PRINTED

    columns = [r.column(r.names[k], cell) for cell in r.cells]
    rows = [
        [
            str(n + 1),
            *(f"{c[:, n].mean():.2g} [{c[:, n].min():.1g}, {c[:, n].max():.1g}]" for c in columns),
            *(f"{printed[n]:.2g}" if n < len(printed) else "" for printed in PRINTED.values()),
        ]
        for n in range(r.depth)
    ]
    return FigureSpec(
        id="table1" if k == 0 else f"table1-{k}",
        title=f"Table 1 in four cells: {r.names[k]}",
        kind="table",
        data={"columns": ["depth", *r.cells, *(f"printed, {name}" for name in PRINTED)], "rows": rows},
        read=f"Relative residual by depth: mean over {r.settings['seeds']} seeds of {r.settings['images']} images each, in "
        "brackets the least and the largest seed; beside it the printed values.",
        caveat="At a depth of 3 or more a mean is carried by a few seeds and images. The printed values are of CIFAR-10, ours "
        "of Fashion-MNIST.",
        alt="Table of relative residuals by depth and cell.",
        paper="table 1",
    )


def _table1_cells(r: Table1Result, k: int) -> FigureSpec:
    from headscape.studies.table1.study import PRINTED

    series = []
    for i, cell in enumerate(r.cells):
        values = np.maximum(r.column(r.names[k], cell), FLOOR)
        ends = {"low": values.min(axis=0), "high": values.max(axis=0)} if len(values) > 1 else {}
        dashed = {"dash": "dash"} if i % 2 else {}
        series.append({"name": cell, "x": np.arange(1, r.depth + 1), "y": values.mean(axis=0)} | ends | dashed)
    for name, printed in PRINTED.items():
        shown = np.array(printed[: r.depth])
        series.append({"name": f"printed, {name}", "x": np.arange(1, len(shown) + 1), "y": shown, "dash": "dot"})
    return FigureSpec(
        id=f"cells-{k}",
        title=f"Networks of attention alone: {r.names[k]}",
        kind="lines",
        data={"series": series},
        read="Relative residual by depth on a logarithmic axis: the mean over seeds and images, bands from the least to the "
        "largest seed. Solid is a' = 0, dashed a' > 0, dotted what is printed.",
        caveat="Round-off is near 1e-16 here; the printed self-attention column ends at that of float32.",
        alt="Lines of the relative residual by depth in four cells, beside the printed columns.",
        x_label="depth",
        y_label="relative residual",
        log_y=True,
        paper="table 1",
    )


def _table1_bounds(r: Table1Result, k: int) -> FigureSpec:
    here = r.bounds[(r.bounds["setting"] == r.names[k]) & (r.bounds["measured"] > r.bounds["floor"])]
    series = [
        line | {"name": f"{line['name']}, {cell.removeprefix('no skip, ')}"}
        for cell in r.cells[:2]
        for line in _bound_series(here[here["cell"] == cell], "depth")
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
