"""What random vectors and matrices do, and what the formulas say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, mean_interval
from headscape.statistics.random_forms import BASES
from headscape.statistics.softmax import entropy_of_sphere
from headscape.studies.work.result import StudyResult

__all__ = ["LawsResult", "mean_of_draws", "share_of_draws"]

Array = npt.NDArray[Any]
GROUPS = 20


def mean_of_draws(x: npt.ArrayLike) -> Interval:
    """Mean of draws with its interval over 20 groups of them: squares and ratios are skewed, their means hardly.

    >>> str(mean_of_draws(np.arange(80) % 3))
    '0.988 [0.891, 1.09] (n = 20)'
    """
    draws = np.asarray(x, dtype=float)
    return mean_interval(draws[: len(draws) // GROUPS * GROUPS].reshape(GROUPS, -1).mean(axis=1))


def share_of_draws(happened: npt.ArrayLike) -> Interval:
    """Share of draws in which something happened; where all groups agree, by single draws.

    >>> str(share_of_draws(np.zeros(400)))
    '0 [0, 0.00692] (n = 400)'
    """
    found = mean_of_draws(happened)
    return found if found.known else mean_interval(happened).within(0, 1, step=1)


@dataclass(frozen=True, eq=False)
class LawsResult(StudyResult):
    """Draws of chapters 5 and 6 by name.

    Of radius k: slerp/k/* (the curves of `Slerp`, and errors (2, pairs)) and ratio/k (draws,). radii and entropies
    (n_radius, draws), in units of root n. angle/* of `Angles`; bound (2, draws) of `bound_ratios`; trace/* of
    `aligned_traces`; order/like and order/reversed of `traces_of_spectra`.
    """

    study: ClassVar[str] = "laws"
    title: ClassVar[str] = "Laws of random vectors and matrices"

    arrays: Mapping[str, Array]
    settings: Mapping[str, Any]

    @property
    def n(self) -> int:
        """Dimension."""
        return int(self.settings["n"])

    @property
    def radii(self) -> list[float]:
        """Lengths of the vectors."""
        return [float(radius) for radius in self.settings["radii"]]

    @property
    def entropy_predicted(self) -> Array:
        """The formula at the radii of the entropies."""
        return entropy_of_sphere(self.n, self.arrays["radii"] * np.sqrt(self.n))

    def slope(self, name: str, x: Array) -> Interval:
        """Least-squares slope of angle/NAME over x (n_cosine,), over draws."""
        centred = x - x.mean()
        return mean_of_draws(centred @ self.arrays[f"angle/{name}"] / (centred @ centred))

    @property
    def variances(self) -> dict[str, Interval]:
        """tr(A^T B)^2 over what random bases give, for spectra in like and in reversed order."""
        energy = float((self.arrays["order/spectrum"] ** 2).sum())
        return {
            name: mean_of_draws(self.arrays[f"order/{name}"] ** 2 * (self.n / energy) ** 2)
            for name in ("like", "reversed")
        }

    @property
    def variances_printed(self) -> dict[str, float]:
        """The same by eq. 6.34, sum a_i^2 b_i^2 / n: it pairs the two spectra by rank."""
        a = self.arrays["order/spectrum"] ** 2
        return {name: float(a @ b) * self.n / a.sum() ** 2 for name, b in (("like", a), ("reversed", a[::-1]))}

    @property
    def traces(self) -> dict[str, Interval]:
        """tr(A^T B) / n^2 s^2 by `aligned_traces`."""
        return {name: mean_of_draws(self.arrays[f"trace/{name}"]) for name in BASES}

    def to_frame(self) -> pd.DataFrame:
        """One row per quantity: formula, as printed, and drawn."""
        n = self.n
        rows: list[tuple[str, float, float, Interval]] = []
        for k, radius in enumerate(self.radii):
            errors = self.arrays[f"slerp/{k}/errors"]
            rows.append((f"error of the cosine law, l = {radius:g}", 0.0, 0.0, mean_of_draws(errors[0])))
            ratio = mean_of_draws(self.arrays[f"ratio/{k}"])
            rows.append((f"E p_i / p_j, l = {radius:g}", np.exp(radius**2 / n), np.exp(radius / n), ratio))
        middle = int(np.argmin(np.abs(self.arrays["radii"] - 1)))
        entropy = mean_of_draws(self.arrays["entropies"][middle])
        rows.append(("entropy of softmax at l = root n", self.entropy_predicted[middle], np.log(n), entropy))
        rows.append(("n Var(x^T C y), x = y", 1.0, 2 - 1 / n, mean_of_draws(self.arrays["angle/squares"][-1])))
        rows.append(("n Cov(x^T C y, x^T C y'), y = y'", 1.0, np.nan, mean_of_draws(self.arrays["angle/products"][-1])))
        beyond = self.arrays["bound"] > 1
        rows.append(("scores beyond ||Wq|| ||Wk|| |x| |y|", 0.0, np.nan, share_of_draws(beyond[0])))
        rows.append(("scores beyond that times |cos|", np.nan, 0.0, share_of_draws(beyond[1])))
        for (name, drawn), value in zip(self.traces.items(), (0.0, 1.0, (8 / (3 * np.pi)) ** 2), strict=True):
            rows.append((f"tr(A^T B) / n^2 s^2, {name}", value, float(name.startswith("aligned")), drawn))
        for name, printed in self.variances_printed.items():
            rows.append((f"Var tr(A^T B), spectra in {name} order", 1.0, printed, self.variances[name]))
        columns = ["quantity", "formula", "as printed"]
        return pd.DataFrame([dict(zip(columns, row, strict=False)) | row[3].columns("drawn") for row in rows])

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The table, for readers."""
        frame = self.to_frame()
        drawn = [
            str(Interval(row["drawn"], row["drawn_low"], row["drawn_high"], int(row["drawn_n"])))
            for _, row in frame.iterrows()
        ]
        return [(f"Formulas and {self.settings['draws']} draws, n = {self.n}", frame.iloc[:, :3].assign(drawn=drawn))]
