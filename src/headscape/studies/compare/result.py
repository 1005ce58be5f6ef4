"""What a comparison found: the distances, the yardsticks and the rule that sets them apart, and how they are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError

from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Interval, Result
from headscape.storage import replacing, write_json
from headscape.studies.work.old import read_arrays, write_arrays

__all__ = ["ALL", "MEASURES", "NAMES", "SHUFFLED", "CompareResult", "Distance", "interval"]

Array = npt.NDArray[Any]

MEASURES = ("geometry", "geometry_batch", "l1_rel", "shannon", "decay", "depth")
SHUFFLED = ("l1_rel", "shannon", "decay")
"""Measures the organize study also keeps for rows shuffled over the keys."""
ALL = "together"
"""All measures but geometry_batch, which repeats one: root mean square of the distances, each over its `unit`."""
_REPEATED = "geometry_batch"
NAMES = {
    "together": "all together",
    "geometry": "head geometry",
    "geometry_batch": "head geometry, one batch",
    "l1_rel": "relative l1",
    "shannon": "Shannon entropy",
    "decay": "tri-Haar decay",
    "depth": "depth profile",
}
DIFFERENT, INPUT, BATCHES, HEADS = "different networks", "other input", "other batches", "other heads"


def interval(draws: npt.ArrayLike) -> Interval:
    """Mean of the draws with their 2.5 % and 97.5 % quantiles; NaN when a draw is NaN.

    >>> interval(np.arange(101.0))
    Interval(value=50.0, low=2.5, high=97.5)
    """
    x = np.asarray(draws, dtype=np.float64).ravel()
    if not len(x) or not np.isfinite(x).all():
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = np.quantile(x, [0.025, 0.975])
    return Interval(float(x.mean()), float(low), float(high))


def _largest(found: Sequence[Interval]) -> Interval:
    """The interval that reaches highest; unknown when one of them is."""
    unknown = [one for one in found if not np.isfinite(one.high)]
    return unknown[0] if unknown else max(found, key=lambda one: one.high)


class Distance(NamedTuple):
    """Two networks by one measure: how far apart, beside the larger yardstick of the two."""

    a: str
    b: str
    measure: str
    apart: Interval
    same: Interval  # the same network on other batches or input, the larger of all
    heads: Interval  # the same network with other heads, the larger of both
    shuffled: Interval  # the two networks with rows shuffled

    @property
    def separated(self) -> bool:
        """Whether the whole interval lies above the whole yardstick."""
        return bool(self.apart.low > self.same.high)

    @property
    def beyond_heads(self) -> bool:
        """Whether it also lies above what other heads of one network make."""
        return bool(self.apart.low > self.heads.high)


@dataclass(frozen=True, eq=False)
class CompareResult(Result):
    """Networks compared, run by run and draw by draw.

    `runs` has one row a run: run, network, block, kind, mask, ... pairs (n_pair, 2) are all pairs of runs, each run
    with itself too. draws (n_pair, n_draw, 6) holds the distances by `MEASURES`, bounds (n_pair, n_draw) the lower
    bound of geometry, shuffled (n_pair, n_draw, 3) the control with rows shuffled, other_heads (n_run, n, 6) the
    control with other heads. curves and profiles (n_run, 3, n) are mean, lowest and highest over batches, entropies
    (2, n_head) a run.
    """

    study: ClassVar[str] = "compare"
    title: ClassVar[str] = "Networks side by side"

    runs: pd.DataFrame
    pairs: Array
    draws: Array
    bounds: Array
    shuffled: Array
    other_heads: Array
    curves: Array
    profiles: Array
    entropies: Sequence[Array]
    settings: Mapping[str, Any]

    # --- distances ---------------------------------------------------------------------------------------------------

    @cached_property
    def networks(self) -> list[str]:
        """Names of the networks, in the order they were given."""
        return list(dict.fromkeys(self.runs["network"]))

    @cached_property
    def _network_of(self) -> Array:
        return self.runs["network"].to_numpy()

    @cached_property
    def unit(self) -> Array:
        """(6,): upper end of the widest yardstick of any network, the unit in which measures are put together.

        A measure that varies much from batch to batch has a large unit and counts less.
        """
        ends = [
            max(self.yardsticks(network, measure)[what].high for what in self._kinds(network))
            for measure in MEASURES
            for network in self.networks
        ]
        return np.asarray(np.reshape(ends, (len(MEASURES), -1)).max(axis=1))

    def _kinds(self, network: str) -> list[str]:
        """What there is to measure a network against itself by, heads unchanged."""
        return [BATCHES, INPUT] if (self._network_of == network).sum() > 1 else [BATCHES]

    @cached_property
    def together_of(self) -> list[str]:
        """The measures that are put together: those that every pair has, and that vary between batches."""
        known = np.isfinite(self.draws).all(axis=(0, 1)) & (self.unit > 0)
        return [name for k, name in enumerate(MEASURES) if known[k] and name != _REPEATED]

    def _together(self, draws: Array) -> Array:
        used = [MEASURES.index(name) for name in self.together_of]
        if not used:
            return np.full(draws.shape[:-1], np.nan)
        return np.asarray(np.sqrt(np.mean((draws[..., used] / self.unit[used]) ** 2, axis=-1)))

    def of_measure(self, measure: str) -> Array:
        """(n_pair, n_draw): the distances by one measure."""
        return self._together(self.draws) if measure == ALL else np.asarray(self.draws[..., MEASURES.index(measure)])

    def _pooled(self, measure: str, a: str, b: str, own: bool) -> Array:
        """All draws of pairs of runs of two networks; own: of runs with themselves."""
        first, second = (self._network_of[self.pairs[:, k]] for k in (0, 1))
        here = ((first == a) & (second == b)) | ((first == b) & (second == a))
        itself = self.pairs[:, 0] == self.pairs[:, 1]
        return np.asarray(self.of_measure(measure)[here & (itself == own)])

    def yardsticks(self, network: str, measure: str) -> dict[str, Interval]:
        """How far a network is from itself: on other batches, on other input (a second run), with other heads."""
        found = {BATCHES: interval(self._pooled(measure, network, network, own=True))}
        other = self._pooled(measure, network, network, own=False)
        if other.size:
            found[INPUT] = interval(other)
        heads = self.other_heads[self._network_of == network]
        chosen = heads[..., MEASURES.index(measure)] if measure != ALL else np.full(1, np.nan)
        return found | {HEADS: interval(chosen)}

    @cached_property
    def distances(self) -> list[Distance]:
        """Every pair of networks by every measure, all together first."""
        return [
            self._distance(a, b, measure) for a, b in combinations(self.networks, 2) for measure in (ALL, *MEASURES)
        ]

    def _distance(self, a: str, b: str, measure: str) -> Distance:
        sides = {network: self.yardsticks(network, measure) for network in (a, b)}
        same = [side[kind] for network, side in sides.items() for kind in self._kinds(network)]
        heads = [side[HEADS] for side in sides.values()]
        shuffled = np.full(1, np.nan)
        if measure in SHUFFLED:
            first, second = (self._network_of[self.pairs[:, k]] for k in (0, 1))
            here = ((first == a) & (second == b)) | ((first == b) & (second == a))
            shuffled = self.shuffled[here, :, SHUFFLED.index(measure)]
        return Distance(
            a,
            b,
            measure,
            interval(self._pooled(measure, a, b, own=False)),
            _largest(same),
            _largest(heads),
            interval(shuffled),
        )

    def by(self, measure: str) -> list[Distance]:
        """The pairs of networks by one measure."""
        return [found for found in self.distances if found.measure == measure]

    @cached_property
    def certain(self) -> list[tuple[str, str]]:
        """Pairs whose lower bound of geometry lies above the yardstick: no better matching can undo them."""
        found = []
        for distance in self.by("geometry"):
            first, second = (self._network_of[self.pairs[:, k]] for k in (0, 1))
            a, b = distance.a, distance.b
            here = ((first == a) & (second == b)) | ((first == b) & (second == a))
            if interval(self.bounds[here]).low > distance.same.high:
                found.append((a, b))
        return found

    def between_runs(self, measure: str = ALL) -> Array:
        """(n_run, n_run): mean distances, a run's distance to itself on the diagonal."""
        D = np.zeros((len(self.runs), len(self.runs)))
        for (i, j), value in zip(self.pairs, self.of_measure(measure).mean(axis=1), strict=True):
            D[i, j] = D[j, i] = value
        return D

    # --- tables ------------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a pair of networks and measure, then every network beside itself."""
        rows = [
            {
                "what": DIFFERENT,
                "a": found.a,
                "b": found.b,
                "measure": found.measure,
                "distance": found.apart.value,
                "low": found.apart.low,
                "high": found.apart.high,
                "same_network_high": found.same.high,
                "separated": found.separated,
                "other_heads_high": found.heads.high,
                "beyond_other_heads": found.beyond_heads,
                "rows_shuffled": found.shuffled.value,
            }
            for found in self.distances
        ]
        for network in self.networks:
            for measure in (ALL, *MEASURES):
                for what, found in self.yardsticks(network, measure).items():
                    place = {"what": what, "a": network, "b": network, "measure": measure}
                    rows.append(place | {"distance": found.value, "low": found.low, "high": found.high})
        return pd.DataFrame(rows)

    def table(self) -> pd.DataFrame:
        """A line for every pair of networks: all together, the yardstick, and by what they can be told apart."""
        rows = []
        for found in self.by(ALL):
            single = [d for d in self.distances if (d.a, d.b) == (found.a, found.b) and d.measure in self.together_of]
            rows.append(
                {
                    "networks": f"{found.a} / {found.b}",
                    "apart": str(found.apart),
                    "same network": str(found.same),
                    "separated": "yes" if found.separated else "NO",
                    "by single measures": f"{sum(d.separated for d in single)} of {len(single)}",
                    "not by": ", ".join(NAMES[d.measure] for d in single if not d.separated) or "-",
                }
            )
        return pd.DataFrame(rows)

    def table_of_networks(self) -> pd.DataFrame:
        """A line for every network: how far it is from itself, all measures together."""
        rows = []
        for network in self.networks:
            found = self.yardsticks(network, ALL)
            runs = self.runs[self.runs["network"] == network]
            rows.append(
                {
                    "network": network,
                    "runs": len(runs),
                    "heads": f"{runs['n_heads'].iloc[0]} in {runs['n_layers'].iloc[0]} layers",
                    BATCHES: str(found[BATCHES]),
                    INPUT: str(found[INPUT]) if INPUT in found else "no second run",
                }
            )
        return pd.DataFrame(rows)

    # --- sentences, pictures -----------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Every pair beside its yardstick, then what the controls say."""
        from headscape.studies.compare.findings import findings

        return findings(self)

    def figures(self) -> list[FigureSpec]:
        """The table, the map and matrix of networks, intervals, distributions and curves."""
        from headscape.studies.compare.figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    _ARRAYS: ClassVar[tuple[str, ...]] = (
        *("pairs", "draws", "bounds", "shuffled", "other_heads", "curves", "profiles"),
    )

    def save(self, folder: Path) -> None:
        """Write result.safetensors, runs.csv, distances.csv and result.json, the last of them last."""
        arrays = {name: np.asarray(getattr(self, name)) for name in self._ARRAYS}
        arrays |= {f"entropies/{i:04d}": values for i, values in enumerate(self.entropies)}
        write_arrays(folder / "result.safetensors", arrays)
        for name, frame in (("runs.csv", self.runs), ("distances.csv", self.to_frame())):
            with replacing(folder / name) as partial:
                frame.to_csv(partial, index=False, float_format="%.9g")
        write_json(folder / "result.json", {"study": self.study, "settings": dict(self.settings)})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read back what `save` wrote, from OUT/compare."""
        folder = Path(folder)
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            runs = pd.read_csv(folder / "runs.csv", dtype={"run": str, "network": str, "block": str})
            arrays, _ = read_arrays(folder / "result.safetensors")
            return cls(
                runs=runs,
                entropies=[arrays[name] for name in sorted(arrays) if name.startswith("entropies/")],
                settings=facts["settings"],
                **{name: arrays[name] for name in cls._ARRAYS},
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the comparison in {folder} cannot be read ({error}); run it again") from None
