"""What a comparison found: the distances between networks, and those of each network to itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, jackknife, mean_interval
from headscape.studies.compare.runs import WHOLE
from headscape.studies.work.result import StudyResult
from headscape.verdicts import Judgement, judge, of_different, strictest

__all__ = ["ALL", "MEASURES", "NAMES", "SHUFFLED", "CompareResult", "Distance", "bottom_size", "mean_distance"]

Array = npt.NDArray[Any]

MEASURES = ("geometry", "geometry_batch", "l1_rel", "shannon", "decay", "depth")
SHUFFLED = ("l1_rel", "shannon", "decay")
"""Measures the organize study also keeps for rows shuffled over the keys."""
ALL = "together"
"""All measures but geometry_batch, which repeats one: root mean square of the distances, each over its `unit`."""
_REPEATED = "geometry_batch"
_WORDS = (
    "head geometry",
    "head geometry, one batch",
    "relative l1",
    "Shannon entropy",
    "tri-Haar decay",
    "depth profile",
)
NAMES = {ALL: "all together"} | dict(zip(MEASURES, _WORDS, strict=True))
DIFFERENT, INPUT, BATCHES, HEADS = "different networks", "other input", "other batches", "other heads"
UNKNOWN = Interval(float("nan"), why="not defined for these networks")


def bottom_size(n_heads: int) -> int:
    """Heads that count as the lowest: a tenth of them, at least one."""
    return max(1, round(n_heads / 10))


def mean_distance(D: Array, where: npt.NDArray[np.bool_], inputs: Array | None = None) -> Interval:
    """Mean over the chosen pairs of groups with its interval, by the jackknife over groups; unknown if one is NaN.

    Parameters
    ----------
    D, where
        (n, n): distances between groups of inputs, and which pairs to count.
    inputs
        (n,): which inputs each group is of, by default all different. Groups of the same inputs are left out together.

    >>> D = np.array([[0, 1.0, 2.0, 3.0], [0, 0, 1.0, 2.0], [0, 0, 0, 1.0], [0, 0, 0, 0]])
    >>> str(mean_distance(D, D > 0))
    '1.67 [-0.171, 3.5] (n = 4)'
    """
    if not where.any() or not np.isfinite(D[where]).all():
        return UNKNOWN
    used = np.flatnonzero(where.any(axis=0) | where.any(axis=1))
    of = (np.arange(len(D)) if inputs is None else inputs)[used]
    units = np.unique(of)

    def statistic(chosen: npt.NDArray[np.intp]) -> float:
        kept = used[np.isin(of, units[chosen])]
        part = np.ix_(kept, kept)
        return float(D[part][where[part]].mean()) if where[part].any() else float("nan")

    return jackknife(statistic, len(units))


def _largest(found: Sequence[Interval]) -> Interval:
    """The interval that reaches highest; unknown when one of them is."""
    unknown = [one for one in found if not one.known]
    return unknown[0] if unknown else max(found, key=lambda one: one.high)


class Distance(NamedTuple):
    """Two networks by one measure: how far apart they are, and how far each is from itself."""

    a: str
    b: str
    measure: str
    apart: Interval
    same: Interval  # the same network on other batches or input, the largest of all
    heads: Interval  # the same network with other heads, the larger of both
    shuffled: Interval  # the two networks with rows shuffled
    bound: Interval  # lower bound of `apart`, of the head geometry only
    inputs: Array  # (n_input, 3): what tells the inputs of each network apart

    @property
    def judgement(self) -> Judgement:
        """Whether they are further apart than either is from itself."""
        return self._judge(self.apart, self.same, "the same network on other input")

    @property
    def separated(self) -> bool:
        """Whether their whole interval lies above that of either network compared with itself."""
        return self.judgement.verdict == "holds"

    @property
    def beyond_heads(self) -> Judgement:
        """Whether they are also further apart than two halves of the heads of one network."""
        return self._judge(self.apart, self.heads, "two halves of the heads of one network")

    @property
    def certain(self) -> Judgement:
        """Whether even the lower bound lies above the same network: then no better matching of heads can change it."""
        return self._judge(self.bound, self.same, "the same network on other input")

    def _judge(self, statistic: Interval, above: Interval, control: str) -> Judgement:
        """`judge`, if no network was given an input twice."""
        return of_different(self.inputs, judge(statistic, above=above, control=control))


@dataclass(frozen=True, eq=False)
class CompareResult(StudyResult):
    """Networks compared, by groups of the batches of every run.

    `runs` has one row per run: run, network, block, kind, mask, ... Groups of batches are counted run after run:
    measures (6, n, n) holds the distances between all n groups by `MEASURES`, bounds (n, n) the lower bound of geometry,
    shuffled (3, n, n) the control with rows shuffled, other_heads (6, n, n) that with other heads of one network; pairs
    are above the diagonal, the rest is NaN. curves and profiles (n_run, 3, n_point) are mean, lowest and highest over
    batches, entropies (2, n_head) per run; bottom (n, n) is the share of the lowest tenth of heads (l1_top) that groups of
    one network have in common; whole (3, n_batch) per run, of the network as one tensor (`WHOLE`).
    """

    study: ClassVar[str] = "compare"
    title: ClassVar[str] = "Networks side by side"

    runs: pd.DataFrame
    measures: Array
    bounds: Array
    shuffled: Array
    other_heads: Array
    curves: Array
    profiles: Array
    entropies: Sequence[Array]
    settings: Mapping[str, Any]
    whole: Sequence[Array] = ()
    bottom: Array | None = None

    @cached_property
    def networks(self) -> list[str]:
        """Names of the networks, in the order they were given."""
        return list(dict.fromkeys(self.runs["network"]))

    @property
    def clusters(self) -> int:
        """Clusters of queries and keys that maps were averaged over, 0 for single tokens."""
        return int(self.runs["clusters"].fillna(0).max()) if "clusters" in self.runs else 0

    @cached_property
    def run_of(self) -> Array:
        """(n,): the run of each group."""
        return np.repeat(np.arange(len(self.runs)), len(self.settings["groups"]))

    @cached_property
    def input_of(self) -> Array:
        """(n,): the inputs of each group; those of a run's shorter copy are the run's own."""
        names, n = self.runs["run"].tolist(), len(self.settings["groups"])
        longer = [name.removesuffix("-short") if self.clusters else name for name in names]
        of = [names.index(name if name in names else own) for own, name in zip(names, longer, strict=True)]
        return np.asarray(n * np.array(of)[self.run_of] + np.tile(np.arange(n), len(names)))

    def _mean(self, D: Array, where: npt.NDArray[np.bool_]) -> Interval:
        return mean_distance(D, where, self.input_of)

    def _where(self, a: str, b: str, own: bool) -> npt.NDArray[np.bool_]:
        """Pairs of groups of networks a and b, within one run (`own`) or between two runs."""
        first, second = ((self.runs["network"].to_numpy() == network)[self.run_of] for network in (a, b))
        both = np.outer(first, second) | np.outer(second, first)
        return np.asarray(np.triu(both & (np.equal.outer(self.run_of, self.run_of) == own), 1))

    @cached_property
    def unit(self) -> Array:
        """(6,): the largest distance of any network to itself, in which measures are put together.

        A measure that varies much from batch to batch has a large unit and counts less.
        """
        found = [[one.value for network in self.networks for one in self._same(network, name)] for name in MEASURES]
        return np.asarray(np.max(found, axis=1))

    @cached_property
    def together_of(self) -> list[str]:
        """The measures that are put together: those that every pair has, and that vary between batches."""
        known = np.isfinite(self.measures[:, *np.triu_indices(len(self.run_of), 1)]).all(axis=1) & (self.unit > 0)
        return [name for k, name in enumerate(MEASURES) if known[k] and name != _REPEATED]

    def of_measure(self, measure: str) -> Array:
        """(n, n): the distances between groups by one measure."""
        if measure != ALL:
            return np.asarray(self.measures[MEASURES.index(measure)])
        used = [MEASURES.index(name) for name in self.together_of]
        if not used:
            return np.full(self.bounds.shape, np.nan)
        return np.asarray(np.sqrt(np.mean((self.measures[used] / self.unit[used, None, None]) ** 2, axis=0)))

    def yardsticks(self, network: str, measure: str) -> dict[str, Interval]:
        """How far a network is from itself: on other batches, on other input (a second run), with other heads."""
        D = self.of_measure(measure)
        found = {BATCHES: self._mean(D, self._where(network, network, own=True))}
        other = self._where(network, network, own=False)
        if other.any():
            found[INPUT] = self._mean(D, other)
        heads = np.full_like(D, np.nan) if measure == ALL else self.other_heads[MEASURES.index(measure)]
        return found | {HEADS: self._mean(heads, self._where(network, network, own=True))}

    def _same(self, network: str, measure: str) -> list[Interval]:
        return [one for what, one in self.yardsticks(network, measure).items() if what != HEADS]

    @cached_property
    def distances(self) -> list[Distance]:
        """Every pair of networks by every measure, all together first."""
        pairs = combinations(self.networks, 2)
        return [self._distance(a, b, measure) for a, b in pairs for measure in (ALL, *MEASURES)]

    def _distance(self, a: str, b: str, measure: str) -> Distance:
        where = self._where(a, b, own=False)
        shuffled = self._mean(self.shuffled[SHUFFLED.index(measure)], where) if measure in SHUFFLED else UNKNOWN
        return Distance(
            a,
            b,
            measure,
            apart=self._mean(self.of_measure(measure), where),
            same=_largest([one for network in (a, b) for one in self._same(network, measure)]),
            heads=_largest([self.yardsticks(network, measure)[HEADS] for network in (a, b)]),
            shuffled=shuffled,
            bound=self._mean(self.bounds, where) if measure == "geometry" else UNKNOWN,
            inputs=self.inputs(a, b),
        )

    def inputs(self, *networks: str) -> Array:
        """(n_input, 3): what was measured of networks as a whole on each of their inputs; empty in results of earlier versions."""
        found = [rows.T for rows, network in zip(self.whole, self.runs["network"], strict=False) if network in networks]
        return np.concatenate(found) if found else np.empty((0, len(WHOLE)))

    def shared_bottom(self, network: str) -> tuple[Interval, Interval, float] | None:
        """The share of the lowest heads that two runs of a network have in common, that of one run, and chance.

        None of a network with one run, or in results of earlier versions.
        """
        between, within = (self._where(network, network, own=own) for own in (False, True))
        if self.bottom is None or not between.any():
            return None
        n_heads = int(self.runs.loc[self.runs["network"] == network, "n_heads"].iloc[0])
        chance = bottom_size(n_heads) / n_heads
        step = 2 / bottom_size(n_heads)  # of one head that a batch exchanges; a pair has two batches
        shared, own = (self._mean(self.bottom, where).within(0, 1, step) for where in (between, within))
        return shared, own, chance

    @cached_property
    def larger(self) -> tuple[str, str, Judgement] | None:
        """The networks of the largest and the smallest relative l1 as a whole, and whether that holds for all their runs.

        Paper, table 2; None without two networks, or in results of earlier versions.
        """
        if len(self.networks) < 2 or not self.whole:
            return None
        rel = [found[WHOLE.index("l1_rel")] for found in self.whole]
        of = {n: [x for x, own in zip(rel, self.runs["network"], strict=True) if own == n] for n in self.networks}
        low, *_, high = sorted(self.networks, key=lambda n: float(np.mean(np.concatenate(of[n]))))
        judged = [judge(mean_interval(x), above=mean_interval(y), control=low) for x, y in product(of[high], of[low])]
        return high, low, of_different(self.inputs(high, low), strictest(*judged))

    def by(self, measure: str) -> list[Distance]:
        """The pairs of networks by one measure."""
        return [found for found in self.distances if found.measure == measure]

    def single(self, pair: Distance) -> list[Distance]:
        """The same pair of networks by each measure that is put together."""
        return [d for d in self.distances if (d.a, d.b) == (pair.a, pair.b) and d.measure in self.together_of]

    @cached_property
    def certain(self) -> list[tuple[str, str]]:
        """Pairs whose lower bound of geometry lies above the same network: no better matching can change them."""
        return [(d.a, d.b) for d in self.by("geometry") if d.certain.verdict == "holds"]

    def between_runs(self, measure: str = ALL) -> Array:
        """(n_run, n_run): mean distances, a run's distance to itself on the diagonal."""
        D, n = self.of_measure(measure), len(self.runs)
        upper = np.full((n, n), np.nan)
        for i, j in zip(*np.triu_indices(n), strict=True):
            upper[i, j] = np.nanmean(D[np.ix_(self.run_of == i, self.run_of == j)])
        return np.where(np.tri(n, k=-1, dtype=bool), upper.T, upper)

    def to_frame(self) -> pd.DataFrame:
        """One row per pair of networks and measure, then every network compared with itself."""

        def row(what: str, a: str, b: str, measure: str, one: Interval) -> dict[str, Any]:
            place = {"what": what, "a": a, "b": b, "measure": measure}
            return place | {"distance": one.value, "low": one.low, "high": one.high, "n": one.n}

        rows = []
        for d in self.distances:
            rows.append(row(DIFFERENT, d.a, d.b, d.measure, d.apart))
            rows[-1] |= d.same.columns("same_network") | {"separated": d.separated, "verdict": d.judgement.verdict}
            rows[-1] |= d.heads.columns("other_heads")
            rows[-1] |= {"beyond_other_heads": d.beyond_heads.verdict == "holds", "rows_shuffled": d.shuffled.value}
        for network, measure in product(self.networks, (ALL, *MEASURES)):
            own = self.yardsticks(network, measure).items()
            rows += [row(what, network, network, measure, one) for what, one in own]
        return pd.DataFrame(rows)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The distances, and the runs."""
        return {"distances": self.to_frame(), "runs": self.runs}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """Each network compared with itself, then the pairs of networks."""
        own = "Each network compared with itself (1: by every measure as far as the one that varies most)"
        tables = [(own, self.table_of_networks()), ("Different networks, in the same unit", self.table())]
        return [(title, frame) for title, frame in tables if len(frame)]

    def table(self) -> pd.DataFrame:
        """One row per pair of networks: all together, the same network, and which measures distinguish them."""
        rows = []
        for found in self.by(ALL):
            single = self.single(found)
            answer = {"holds": "yes", "does not hold": "NO", "cannot tell": "cannot tell"}[found.judgement.verdict]
            row = {"networks": f"{found.a} / {found.b}", "apart": str(found.apart), "same network": str(found.same)}
            row |= {"separated": answer, "by single measures": f"{sum(d.separated for d in single)} of {len(single)}"}
            rows.append(row | {"not by": ", ".join(NAMES[d.measure] for d in single if not d.separated) or "-"})
        return pd.DataFrame(rows)

    def table_of_networks(self) -> pd.DataFrame:
        """One row per network: how far it is from itself, all measures together."""
        rows = []
        for network in self.networks:
            found = self.yardsticks(network, ALL)
            runs = self.runs[self.runs["network"] == network]
            facts = {"network": network, "runs": len(runs)}
            facts["heads"] = f"{runs['n_heads'].iloc[0]} in {runs['n_layers'].iloc[0]} layers"
            rows.append(facts | {BATCHES: str(found[BATCHES]), INPUT: str(found.get(INPUT, "no second run"))})
        return pd.DataFrame(rows)
