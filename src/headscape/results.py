"""What a study hands to the report: findings and figures as plain data. Nothing here draws or computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["FigureKind", "FigureSpec", "Finding", "Interval", "Result", "bootstrap"]

FigureKind = Literal[
    "head_map",  # coordinates (n_head, k); eigenvalues (k,): each head a point
    "head_matrix",  # values (n_head, n_head); order (n_head,): a symmetric matrix of heads in tree order
    "head_tree",  # labels (n_level, n_head); order (n_head,); names {"level:folder": name}: the tree of heads
    "head_grid",  # score: name of a column of `to_frame()`: layer x head, any score can be chosen
    "lines",  # series: list of {name, x, y, low?, high?, dash?}
    "scatter",  # x, y, names?, group?
    "bars",  # names, values, low?, high?, group?
    "heatmap",  # values (n_row, n_column); rows?, columns?; centre? for a diverging palette
    "violins",  # groups: list of {name, values, side?}
    "maps",  # panels: list of {name, values (n_query, n_key), query_tokens, key_tokens}
    "table",  # columns: list of str; rows: list of list
]


@dataclass(frozen=True)
class Finding:
    """One plain sentence with its number and its control, and the figure that shows it."""

    text: str
    figure: str | None = None
    holds: bool | None = None  # does the claim it tests hold? None where nothing was claimed


@dataclass(frozen=True)
class FigureSpec:
    """A figure as plain data; `report/` turns it into a picture.

    `data` holds arrays, lists, strings and numbers, with the keys its kind names above. `read` says how to read the
    picture, `caveat` what it does not prove, `alt` what a reader who cannot see it should know. Heads are counted as in
    the result's `to_frame()`. `paper` says which figure or table of the source paper it is ("figure 3").
    """

    id: str
    title: str
    kind: FigureKind
    data: Mapping[str, Any]
    read: str
    caveat: str = ""
    alt: str = ""
    x_label: str = ""
    y_label: str = ""
    value_label: str = ""
    log_x: bool = False
    log_y: bool = False
    paper: str | None = None


class Result(ABC):
    """Base of what a study returns: it saves itself as plain files, and shows itself by figures and findings.

    A subclass is a frozen dataclass with a `study` name, and implements `to_frame` (a table, one row a head where the
    study is about heads, with columns block, layer, head), `figures` and `findings`: all that the report needs. It
    stores itself by `save(folder)` and comes back by `load(folder)`.
    """

    study: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""

    @abstractmethod
    def figures(self) -> list[FigureSpec]:
        """Its pictures, as plain data."""

    @abstractmethod
    def findings(self) -> list[Finding]:
        """What was found, in sentences."""

    def _repr_html_(self) -> str:
        # by name, not by import: results know nothing of drawing, a notebook asks for it
        try:
            render = import_module("headscape.report.notebook").render
        except ModuleNotFoundError:
            return self.to_frame().to_html()
        return str(render(self))


@dataclass(frozen=True)
class Interval:
    """An estimate with a 95 % interval.

    >>> str(Interval(0.5, 0.4, 0.61))
    '0.5 [0.4, 0.61]'
    >>> str(Interval(0.5, float("nan"), float("nan")))  # of one value
    '0.5'
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        known = self.low == self.low and self.high == self.high  # NaN: one value alone has no interval
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]" if known else f"{self.value:.3g}"


def bootstrap(values: npt.ArrayLike, *, random_state: int = 0, n_draws: int = 2000) -> Interval:
    """Mean of values with a 95 % percentile interval over resampled values; one value alone has no interval.

    >>> bootstrap([1.0, 1.0, 1.0])
    Interval(value=1.0, low=1.0, high=1.0)
    """
    x = np.asarray(values, dtype=float)
    if len(x) < 2:
        return Interval(float(x.mean()), float("nan"), float("nan"))
    draws = np.random.default_rng(random_state).integers(len(x), size=(n_draws, len(x)))
    low, high = np.quantile(x[draws].mean(axis=1), [0.025, 0.975])
    return Interval(float(x.mean()), float(low), float(high))
