"""Evidence: what criteria may look at, measured once and only when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor

from headscape.attention.models import Model
from headscape.attention.projections import columns_of, output_projections
from headscape.attention.samples import Sample
from headscape.errors import InputError
from headscape.pruning.compensation import Calibration, Moments, calibrated
from headscape.pruning.judges import Judge, judge_of
from headscape.pruning.units import units_of
from headscape.tensor import HeadId
from headscape.tree import PartitionTree

__all__ = ["Evidence"]

FloatArray = npt.NDArray[np.float64]
BRIEF_WINDOWS, BRIEF_IMAGES = 2, 64  # on which heads are removed one at a time


@dataclass
class Evidence:
    """What criteria may look at.

    `frame` has one row per head with the columns of the organize study, in the order of `heads`; `distances` are the
    consensus distances of the heads, `tree` their tree. `samples` are the ranking inputs, never those a proposal is
    judged on; `fit` is what novelty and compensation are fitted on, the samples unless given. `texts` are the samples
    as text, from which an encoder takes its sentences. `unit` says which heads are removed together.
    """

    heads: Sequence[HeadId]
    frame: pd.DataFrame | None = None
    distances: FloatArray | None = None
    model: Model | None = None
    samples: Sequence[Sample] = field(default_factory=list)
    fit: Sequence[Sample] = ()
    texts: Sequence[str] = ()
    tree: PartitionTree | None = None
    seed: int = 0
    unit: str = "head"

    def column(self, name: str) -> FloatArray:
        """A column of the organize study."""
        if self.frame is None:
            raise InputError(
                f"criterion {name} needs the organize study on probabilities; run `headscape organize` first"
            )
        if name not in self.frame:
            raise InputError(
                f"criterion {name} is not in the organize study; a pooled capture lacks what needs whole maps"
            )
        return self.frame[name].to_numpy(dtype=np.float64)

    @property
    def network(self) -> Model:
        """The model, for criteria that need it."""
        if self.model is None:
            raise InputError("this criterion needs the model, not only its attention; give model=")
        return self.model

    @cached_property
    def calibration(self) -> Calibration:
        """What novelty and compensation are fitted to, measured on the samples to fit on."""
        return calibrated(self.network, self.fit or self.samples)

    @property
    def moments(self) -> Moments:
        """Second moments of the heads' outputs."""
        return self.calibration.moments

    @cached_property
    def units(self) -> dict[str, list[tuple[int, ...]]]:
        """The heads of every attention module that are removed together."""
        return units_of(self.network, self.unit)

    def by_unit(self, scores: FloatArray) -> FloatArray:
        """Scores of heads as the mean of their unit."""
        if self.unit == "head":
            return scores
        found, place = scores.copy(), {head: i for i, head in enumerate(self.heads)}
        for site in self.network.sites:
            for heads in self.units[site.name]:
                rows = [place[site.heads[h]] for h in heads if site.heads[h] in place]
                found[rows] = scores[rows].mean() if rows else 0.0
        return found

    @cached_property
    def brief_judge(self) -> Judge:
        """How the model is judged when each head is removed in turn: on the first few ranking samples."""
        few = BRIEF_IMAGES if self.network.images is not None else BRIEF_WINDOWS
        return judge_of(self.network, self.samples[:few], self.texts, self.seed)

    @cached_property
    def projections(self) -> dict[str, Tensor]:
        """W_O of every attention module, (out, in) in float64."""
        part = self.network.module.get_submodule
        return {name: columns_of(part(path)).double().cpu() for name, path in output_projections(self.network).items()}

    def gather(self, by_module: dict[str, FloatArray]) -> FloatArray:
        """Scores by attention module as scores by head."""
        names = {(site.block, site.layer): site.name for site in self.network.sites}
        return np.array([by_module[names[head.block, head.layer]][head.head] for head in self.heads])
