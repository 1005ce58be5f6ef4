"""Ranking: the scores of the heads by every criterion, on the inputs of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.pruning.criteria import rank_average, scores
from headscape.storage import read_arrays, write_arrays
from headscape.studies.prune.evaluations import Evaluations
from headscape.tensor import HeadId

__all__ = ["Ranking", "rank"]

FloatArray = npt.NDArray[np.float64]
ALONE = "leave_one_out"


@dataclass(frozen=True)
class Ranking:
    """Scores by criterion, lowest removed first; and why other criteria could not be measured.

    `leave_one_out` is the rise of the loss without each head alone, (n_head, n_sample), where it was asked for.
    """

    evaluations: Evaluations
    scores: Mapping[str, FloatArray]
    skipped: Mapping[str, str]
    leave_one_out: FloatArray | None

    @property
    def heads(self) -> Sequence[HeadId]:
        """The heads that are ranked."""
        return self.evaluations.heads

    def growing(self, score: FloatArray) -> list[list[HeadId]]:
        """The heads with the lowest scores, lowest first: one unit, two units, and so on, all but the last."""
        evidence = self.evaluations.live.evidence
        order = [self.heads[i] for i in np.argsort(score, kind="stable")]
        unit = {
            site.heads[h]: (site.name, heads)
            for site in evidence.network.sites
            for heads in evidence.units[site.name]
            for h in heads
        }
        ends = [i for i in range(1, len(order)) if unit[order[i - 1]] != unit[order[i]]]
        return [order[:end] for end in ends]

    def lowest(self, score: FloatArray, n: int) -> list[HeadId]:
        """The n heads with the lowest scores, lowest first; of whole units as many as come nearest."""
        if self.evaluations.pruning.unit == "head":
            return [self.heads[i] for i in np.argsort(score, kind="stable")[:n]]
        return min(self.growing(score), key=lambda heads: abs(len(heads) - n))

    def counts(self, fractions: Sequence[float]) -> list[int]:
        """Shares of the heads as numbers of heads, at least 1 and each once."""
        return list(dict.fromkeys(max(1, round(fraction * len(self.heads))) for fraction in fractions))


def rank(evaluations: Evaluations, criteria: Sequence[str], own: Mapping[str, FloatArray]) -> Ranking:
    """Score the heads by each criterion, and add the user's `own` scores; what cannot be measured is left out."""
    parts = list(dict.fromkeys(part for name in criteria for part in name.split("+")))
    found: dict[str, FloatArray] = {}
    skipped: dict[str, str] = {}

    def measure(name: str, function: Callable[..., FloatArray], *arguments: Any) -> None:
        try:
            found[name] = function(evaluations, *arguments)
        except InputError as error:
            skipped[name] = str(error)

    if ALONE in parts:  # a stage of its own
        measure(ALONE, _leave_one_out)
    steps = evaluations.work.stage("ranking heads", len(parts))
    for part in parts:
        if part != ALONE:
            measure(part, _score, part)
        steps.one()
    alone = found.get(ALONE)
    if alone is not None:
        found[ALONE] = alone.mean(axis=1)
    for name in criteria:
        if "+" in name and all(part in found for part in name.split("+")):
            found[name] = rank_average([found[part] for part in name.split("+")])
    for name, why in skipped.items():
        evaluations.work.say(f"without {name}: {why}")
    kept = {name: found[name] for name in criteria if name in found} | dict(own)
    if not kept:
        raise InputError(f"no criterion could be measured: {'; '.join(skipped.values())}")
    return Ranking(evaluations, kept, skipped, alone)


def _score(evaluations: Evaluations, name: str) -> FloatArray:
    p = evaluations.pruning
    data = [p.data.get(part) for part in ("ranked", "fitted", "organize")]
    path = evaluations.folder.unit(f"score-{name}", p.fingerprint, p.dtype, p.block, p.seed, p.unit, data)
    if not path.exists():
        write_arrays(path, {"score": scores(name, evaluations.live.evidence)})
    return np.asarray(read_arrays(path)[0]["score"], dtype=np.float64)


def _leave_one_out(evaluations: Evaluations) -> FloatArray:
    """Rise of the loss when each head alone is removed, on a few of the ranking samples."""
    evaluations.make("removing one head at a time", "rank", [([head], "none") for head in evaluations.heads])

    def loss(heads: Sequence[HeadId]) -> FloatArray:
        return next(iter(evaluations.losses("rank", heads).values())).values

    return np.array([loss([head]) - loss([]) for head in evaluations.heads])
