"""The pictures of the collapse study, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.collapse.bounds import CONDITION, bound_curves
from headscape.collapse.similarity import ALIKE, points_of, shown_layers
from headscape.intervals import Interval, mean_interval
from headscape.results import Captions, FigureSpec
from headscape.studies.collapse.result import CollapseResult, four_of
from headscape.studies.work.series import curve, level

__all__ = ["figures"]
captions = Captions(__name__)

Array = npt.NDArray[Any]
NAMES = {"standard": "the model", "shuffled": "inputs shuffled", "random": "random weights", "hidden": "hidden state"}
FOUR_NAMES = ("skip, a' = 0", "skip, a' > 0", "no skip, a' = 0", "no skip, a' > 0")
DASHES = {"4 D": "dashdot", "2 (e^D - 1)": "dash", "printed": "dot"}


def figures(r: CollapseResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [captions.table("arms", r.by_variant.rename(columns={"arm": "variant"}), ALIKE=ALIKE)]
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
        found += [captions.figure("entropy", {"score": "entropy"}), _entropy(r)]
    return found + [_bounds(r, name) for name in dict.fromkeys(r.bounds["arm"] if len(r.bounds) else ())]


def _line(name: str, spans: list[Interval], **options: Any) -> dict[str, Any]:
    """Estimates by layer; where there is no interval, or none that is worth showing, both ends are the estimate itself."""
    y = np.array([span.value for span in spans])
    shown = [span if span.readable else Interval(span.value, n=span.n) for span in spans]
    low, high = (np.array([getattr(span, end) for span in shown]) for end in ("low", "high"))
    ends = {"low": np.where(np.isnan(low), y, low), "high": np.where(np.isnan(high), y, high)}
    ends["n"] = np.array([span.n for span in spans])
    return {"name": name, "x": np.arange(len(y)), "y": y} | (ends if not np.isnan(low).all() else {}) | options


def _spans(r: CollapseResult, variant: str) -> list[Interval]:
    return [r.interval(variant, n) for n in range(r.residuals(variant).shape[1])]


def _shown(r: CollapseResult) -> list[str]:
    return [name for name in ("standard", "shuffled", "random") if name in r.variants]


def _residual(r: CollapseResult) -> FigureSpec:
    return captions.lines("residual", [_line(NAMES[name], _spans(r, name)) for name in _shown(r)])


def _rank(r: CollapseResult) -> FigureSpec:
    assert r.rank is not None
    return captions.lines(
        "rank", [_line(NAMES[name], [mean_interval(column) for column in r.rank[r.at(name)].T]) for name in _shown(r)]
    )


def _violins(entry: str, r: CollapseResult, counts: Array, right: int | None, **given: Any) -> FigureSpec:
    """Histograms (n_variant, n_layer, n_bin) of the model, or of it and a variant side by side, as violins by layer."""
    sides = [(0, "both")] if right is None else [(0, "left"), (right, "right")]
    groups = [
        {"name": f"L{k}", "side": side, "label": NAMES.get(r.variants[a], r.variants[a])}
        | {"values": points_of(counts[a, k])}
        for k in shown_layers(counts.shape[1])
        for a, side in sides
    ]
    return captions.figure(entry, {"groups": groups}, **given)


def _similarity(r: CollapseResult, beside: str | None, id: str, read: str) -> FigureSpec:
    assert r.similarity is not None
    words = "The same word twice is alike from the start; the figure of shares counts different words separately."
    return _violins(
        "similarity",
        r,
        r.similarity.sum(axis=1),
        None if beside is None else r.at(beside),
        id=id,
        sides=f": model (left), {NAMES[beside]} (right)" if beside else "",
        how=read,
        caveat=words if r.different is not None else "Similarity of neighbours in an image is not collapse.",
    )


def _share(r: CollapseResult) -> FigureSpec:
    shares = {NAMES[name]: r.alike(name) for name in NAMES if name in r.variants}
    series = [curve(name, np.arange(len(s)), np.array([one.share for one in s])) for name, s in shares.items()]
    caveat = ""
    if r.different is not None:
        caveat = "The same word twice is alike from the start."
        y = np.array([one.share for one in r.alike("standard", different=True)])
        series.append(curve("the model, different words", np.arange(len(y)), y, "dot"))
    return captions.lines("share", series, ALIKE=ALIKE, caveat=caveat)


def _four(r: CollapseResult, weights: str) -> FigureSpec:
    assert r.floor is not None
    names = four_of(weights)
    series = [
        _line(name, _spans(r, variant), **({"dash": "dash"} if k % 2 else {}))
        for k, (variant, name) in enumerate(zip(names, FOUR_NAMES, strict=True))
    ]
    floor = max(r.floor[r.at(name)] for name in names)
    series.append(level("round-off", [0, r.n_layers], floor))
    value, id = ("Random weights", "residual-cells-random") if weights else ("The model", "residual-cells")
    return captions.lines("residual-cells", series, value=value, floor=floor, id=id)


def _entropy(r: CollapseResult) -> FigureSpec:
    assert r.entropies is not None
    other = next((name for name in ("hidden", "random") if name in r.variants), None)
    title = "Entropy of attention" + (f": model (left), {NAMES[other]} (right)" if other else "")
    return _violins("entropy-layers", r, r.entropies, None if other is None else r.at(other), title=title)


def _bounds(r: CollapseResult, variant: str) -> FigureSpec:
    curves = bound_curves(r.bounds[r.bounds["arm"] == variant], "layer")
    series = [curve(name, c.index.to_numpy(), c.to_numpy(), DASHES.get(name)) for name, c in curves.items()]
    id = "bounds" if variant == "standard" else f"bounds-{variant}"
    return captions.lines("bounds", series, value=NAMES[variant], CONDITION=CONDITION, id=id)
