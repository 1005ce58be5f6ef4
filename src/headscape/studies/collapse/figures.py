"""The pictures of the collapse study, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headscape.collapse.bounds import CONDITION, bound_curves
from headscape.collapse.similarity import ALIKE, points_of, shown_layers
from headscape.intervals import Interval, mean_interval
from headscape.results import FigureSpec, table_figure
from headscape.studies.collapse.result import four_of

if TYPE_CHECKING:
    from headscape.studies.collapse.result import CollapseResult

__all__ = ["figures"]

Array = npt.NDArray[Any]
NAMES = {"standard": "the model", "shuffled": "inputs shuffled", "random": "random weights", "hidden": "hidden state"}
FOUR_NAMES = ("skip, a' = 0", "skip, a' > 0", "no skip, a' = 0", "no skip, a' > 0")
DASHES = {"4 D": "dashdot", "2 (e^D - 1)": "dash", "printed": "dot"}


def figures(r: CollapseResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_table(r)]
    if r.residual is not None:
        control = next((name for name in ("random", "shuffled") if name in r.variants), None)
        bulge = "A bulge at 1 is a population of tokens that are all alike: partial rank collapse."
        found += [_residual(r), _rank(r), _similarity(r, control, "similarity", bulge), _share(r)]
        if "hidden" in r.variants:
            a = r.settings["alpha_hidden"]
            right = (
                f"Right: scores averaged along depth (a' = {a:g}) in a model that was trained without a hidden state."
            )
            found.append(_similarity(r, "hidden", "similarity-hopfield", right))
        found += [_four(r, weights) for weights in ("", "random") if set(four_of(weights)) <= set(r.variants)]
    if r.entropies is not None:
        found += [_grid(), _entropy(r)]
    return found + [_bounds(r, name) for name in dict.fromkeys(r.bounds["arm"] if len(r.bounds) else ())]


def _table(r: CollapseResult) -> FigureSpec:
    return table_figure(
        r.by_variant.rename(columns={"arm": "variant"}),
        id="arms",
        title="The model, its controls and its variants",
        read="Relative residual (1: tokens have nothing in common, 0: all are equal) after the last layer, geometric "
        "mean with its 95 % interval over n inputs, and effective rank; mode of the cosines of pairs of tokens; share of pairs with a cosine of "
        f"{ALIKE:g} or more; mean entropy of attention divided by the largest possible.",
        caveat="Variants with a hidden state or without a skip change a trained model in a way it was not trained with.",
        alt="Table of collapse after the last layer, by variant.",
    )


def _lines(series: list[dict[str, Any]], **rest: Any) -> FigureSpec:
    return FigureSpec(kind="lines", data={"series": series}, **{"x_label": "after layer"} | rest)


def _line(name: str, spans: list[Interval], **options: Any) -> dict[str, Any]:
    """Estimates by layer; an end without an interval is the estimate itself."""
    y = np.array([span.value for span in spans])
    low, high = (np.array([getattr(span, end) for span in spans]) for end in ("low", "high"))
    ends = {"low": np.where(np.isnan(low), y, low), "high": np.where(np.isnan(high), y, high)}
    return {"name": name, "x": np.arange(len(y)), "y": y} | (ends if not np.isnan(low).all() else {}) | options


def _spans(r: CollapseResult, variant: str) -> list[Interval]:
    return [r.interval(variant, n) for n in range(r.residuals(variant).shape[1])]


def _shown(r: CollapseResult) -> list[str]:
    return [name for name in ("standard", "shuffled", "random") if name in r.variants]


def _residual(r: CollapseResult) -> FigureSpec:
    return _lines(
        [_line(NAMES[name], _spans(r, name)) for name in _shown(r)],
        id="residual",
        title="What is left of the differences between tokens",
        read="Relative residual ||X - mean|| / ||X|| of the hidden states by layer, geometric mean over inputs; bands are 95 % "
        "intervals. Collapse is a fall to 0.",
        caveat="A few tokens or features of large size can dominate both norms; the last state of a decoder is taken after "
        "the final norm.",
        alt="Lines of the relative residual by layer for the model and its controls.",
        y_label="relative residual",
    )


def _rank(r: CollapseResult) -> FigureSpec:
    assert r.rank is not None
    return _lines(
        [_line(NAMES[name], [mean_interval(column) for column in r.rank[r.at(name)].T]) for name in _shown(r)],
        id="rank",
        title="Effective rank of the hidden states",
        read="exp of the entropy of the singular values: how many directions the tokens use. 1 is full collapse.",
        caveat="One large direction lowers it even if all others are still there.",
        alt="Lines of the effective rank by layer for the model and its controls.",
        y_label="effective rank",
    )


def _violins(r: CollapseResult, counts: Array, right: int | None, **rest: Any) -> FigureSpec:
    """Histograms (n_variant, n_layer, n_bin) of the model, or of it and a variant side by side, as violins by layer."""
    sides = [(0, "both")] if right is None else [(0, "left"), (right, "right")]
    groups = [
        {"name": f"L{k}", "side": side, "label": NAMES.get(r.variants[a], r.variants[a])}
        | {"values": points_of(counts[a, k])}
        for k in shown_layers(counts.shape[1])
        for a, side in sides
    ]
    return FigureSpec(kind="violins", data={"groups": groups}, **rest)


def _similarity(r: CollapseResult, beside: str | None, id: str, read: str) -> FigureSpec:
    assert r.similarity is not None
    words = "The same word twice is alike from the start; the figure of shares counts different words separately."
    return _violins(
        r,
        r.similarity.sum(axis=1),
        None if beside is None else r.at(beside),
        id=id,
        title="Similarity of tokens" + (f": model (left), {NAMES[beside]} (right)" if beside else ""),
        read=f"Cosines of all pairs of tokens by layer (0 is before the first). {read}",
        caveat=words if r.different is not None else "Similarity of neighbours in an image is not collapse.",
        alt="Violins of token similarity by layer.",
        x_label="after layer",
        y_label="cosine of two tokens",
        paper="figures 4 to 12",
    )


def _share(r: CollapseResult) -> FigureSpec:
    shares = {NAMES[name]: r.alike(name) for name in NAMES if name in r.variants}
    series = [
        {"name": name, "x": np.arange(len(s)), "y": np.array([one.share for one in s])} for name, s in shares.items()
    ]
    if r.different is not None:
        y = np.array([one.share for one in r.alike("standard", different=True)])
        series.append({"name": "the model, different words", "x": np.arange(len(y)), "y": y, "dash": "dot"})
    return _lines(
        series,
        id="share",
        title=f"Pairs of tokens with a cosine of {ALIKE:g} or more",
        read="Share of pairs that are alike, over all inputs, by layer.",
        caveat="The same word twice is alike from the start." if r.different is not None else "",
        alt="Lines of the share of aligned pairs by layer.",
        y_label="share of pairs",
    )


def _four(r: CollapseResult, weights: str) -> FigureSpec:
    assert r.floor is not None
    names = four_of(weights)
    series = [
        _line(name, _spans(r, variant), **({"dash": "dash"} if k % 2 else {}))
        for k, (variant, name) in enumerate(zip(names, FOUR_NAMES, strict=True))
    ]
    floor = max(r.floor[r.at(name)] for name in names)
    ends = np.array([0, r.n_layers])
    series.append({"name": "round-off", "x": ends, "y": np.full(2, floor), "dash": "dot"})
    return _lines(
        series,
        id="residual-cells-random" if weights else "residual-cells",
        title=f"Skip or hidden state? {'Random weights' if weights else 'The model'} in four variants",
        read="Relative residual by layer, on a logarithmic axis. 'skip' is the model's own; without it attention's output "
        "replaces the stream, and MLPs keep their skips. The hidden state separates solid from dashed lines.",
        caveat=f"At the dotted line ({floor:.0e}) a residual is round-off of the model's own arithmetic.",
        alt="Lines of the relative residual in four variants.",
        y_label="relative residual",
        log_y=True,
    )


def _grid() -> FigureSpec:
    return FigureSpec(
        id="entropy",
        title="Entropy of attention, layer by head",
        kind="head_grid",
        data={"score": "entropy"},
        read="Mean over rows of the entropy divided by the logarithm of the number of keys: 1 attends to all keys equally, 0 "
        "to one. Other columns: the same in the other variants, and D, the spread of scores that the bounds use.",
        caveat="Low entropy is not a fault by itself: a head that finds the previous token has none.",
        alt="Grid of layers and heads coloured by the entropy of attention.",
        x_label="head",
        y_label="layer",
    )


def _entropy(r: CollapseResult) -> FigureSpec:
    assert r.entropies is not None
    other = next((name for name in ("hidden", "random") if name in r.variants), None)
    return _violins(
        r,
        r.entropies,
        None if other is None else r.at(other),
        id="entropy-layers",
        title="Entropy of attention" + (f": model (left), {NAMES[other]} (right)" if other else ""),
        read="All rows of all heads of a layer, divided by the largest possible entropy; the first row of causal attention "
        "is left out.",
        caveat="Rows of one head are not independent of each other.",
        alt="Violins of the entropy of attention rows by layer.",
        x_label="layer",
        y_label="entropy / log(number of keys)",
        paper="figures 13 to 20",
    )


def _bounds(r: CollapseResult, variant: str) -> FigureSpec:
    curves = bound_curves(r.bounds[r.bounds["arm"] == variant], "layer")
    return _lines(
        [{"name": n, "x": c.index.to_numpy(), "y": c.to_numpy(), "dash": DASHES.get(n)} for n, c in curves.items()],
        id="bounds" if variant == "standard" else f"bounds-{variant}",
        title=f"Bounds on the residual after attention: {NAMES[variant]}",
        read="||Res(attention output)|| by layer, medians over inputs, beside the repaired bound with 4 D where D is "
        f"at most {CONDITION:.3f}, with 2 (e^D - 1) everywhere, and the printed one, on a logarithmic axis.",
        caveat="The bounds are for attention alone, before the skip is added.",
        alt="Lines of the measured residual and its bounds by layer.",
        x_label="layer",
        y_label="norm {1,inf}",
        log_y=True,
    )
