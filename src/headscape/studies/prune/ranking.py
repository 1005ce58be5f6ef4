"""Ranking: the scores of the heads by every criterion, on the inputs of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.pruning.criteria import rank_average, scores
from headscape.storage import read_arrays, write_arrays
from headscape.studies.prune.evaluations import Evaluations
from headscape.tensor import HeadId

__all__ = ["Ranking", "rank"]

FloatArray = npt.NDArray[np.float64]
ORACLE = "leave_one_out"


@dataclass(frozen=True)
class Ranking:
    """Scores by criterion, lowest removed first; criteria that could not be measured, and why.

    `leave_one_out` is the rise of the loss without each head alone, (n_head, n_sample), where it was asked for.
    """

    heads: Sequence[HeadId]
    scores: Mapping[str, FloatArray]
    skipped: Mapping[str, str]
    leave_one_out: FloatArray | None = None

    def lowest(self, score: FloatArray, n: int) -> list[HeadId]:
        """The n heads with the lowest scores, lowest first."""
        return [self.heads[i] for i in np.argsort(score, kind="stable")[:n]]

    def counts(self, fractions: Sequence[float]) -> list[int]:
        """Shares of the heads as numbers of heads, at least 1 and each once."""
        return list(dict.fromkeys(max(1, round(fraction * len(self.heads))) for fraction in fractions))


def rank(evaluations: Evaluations, criteria: Sequence[str], organized: str | None) -> Ranking:
    """Score the heads by each criterion; one that cannot be measured is left out with the reason.

    `organized` is the key of the organize study the evidence was taken from.
    """
    say = evaluations.work.say
    found: dict[str, FloatArray] = {}
    skipped: dict[str, str] = {}
    parts = list(dict.fromkeys(part for name in criteria for part in name.split("+")))
    alone = None
    if ORACLE in parts:
        try:
            alone = _leave_one_out(evaluations)
            found[ORACLE] = alone.mean(axis=1)
        except InputError as error:
            skipped[ORACLE] = str(error)
    steps = evaluations.work.stage("ranking heads", len(parts))
    for part in parts:
        if part != ORACLE:
            try:
                found[part] = _score(evaluations, part, organized)
            except InputError as error:
                skipped[part] = str(error)
        steps.one()
    for name in criteria:
        if "+" in name and all(part in found for part in name.split("+")):
            found[name] = rank_average([found[part] for part in name.split("+")])
    for name, why in skipped.items():
        say(f"without {name}: {why}")
    kept = {name: found[name] for name in criteria if name in found}
    if not kept:
        raise InputError(f"no criterion could be measured: {'; '.join(skipped.values())}")
    return Ranking(evaluations.heads, kept, skipped, alone)


def _score(evaluations: Evaluations, name: str, organized: str | None) -> FloatArray:
    pruning, evidence = evaluations.pruning, evaluations.live.evidence
    data = [pruning.data["ranked"], pruning.data["fitted"], organized]
    model = [pruning.fingerprint, pruning.dtype, pruning.block, pruning.seed]
    path = evaluations.folder.unit(f"score-{name}", *model, *data)
    if not path.exists():
        write_arrays(path, {"score": scores(name, evidence)})
    return np.asarray(read_arrays(path)[0]["score"], dtype=np.float64)


def _leave_one_out(evaluations: Evaluations) -> FloatArray:
    """Rise of the loss without each head alone, on a few of the ranking samples."""
    evaluations.make("removing one head at a time", "rank", [([head], "none") for head in evaluations.heads])
    intact = evaluations.loss("rank").values
    return np.array([evaluations.loss("rank", [head]).values - intact for head in evaluations.heads])
