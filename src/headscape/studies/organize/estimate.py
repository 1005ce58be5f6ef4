"""The memory, disk and time that the organize study will take, before it starts; nothing is written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headscape.captures import Capture, open_capture
from headscape.compiled import cores, free_threads
from headscape.geometry.estimate import Rates, estimate_fit, measure_rates
from headscape.geometry.questionnaire import Questionnaire
from headscape.runs import Run, human_bytes, human_seconds
from headscape.studies.organize.units import N_HEAD_BASIS, measure_trees, tensor_shape, unit_memory
from headscape.tensor import AXES, AttentionTensor, Kind
from headscape.tree import PartitionTree

__all__ = ["StudyEstimate", "estimate_organize"]

_SAMPLE = (64, 64, 24)
"""Shape of the tensor the entropies are timed on."""
_LEVELS = 30
"""Levels of a tree that are kept, about."""


@dataclass(frozen=True)
class StudyEstimate:
    """What organizing all batches takes."""

    shape: tuple[int, int, int]
    """Of one batch."""
    batches: int
    fits: int
    """Questionnaires: every batch and its null, and the same for the control."""
    memory: float
    """Bytes above the interpreter at the peak, all jobs together."""
    scratch: float
    """Bytes of scratch files at a time; 0 where a fit stays in memory."""
    result: float
    """Bytes written to the run."""
    seconds: float

    def rows(self) -> list[list[str]]:
        """What, how much: for a table."""
        return [
            ["tensor of a batch", " x ".join(map(str, self.shape))],
            ["batches, fits with nulls", f"{self.batches}, {self.fits}"],
            ["memory", human_bytes(int(self.memory))],
            ["scratch files", human_bytes(int(self.scratch)) if self.scratch else "none"],
            ["written to the run", human_bytes(int(self.result))],
            ["time, within a factor of 2 or 3", human_seconds(self.seconds)],
        ]


def estimate_organize(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    kind: Kind | None = None,
    questionnaire: Questionnaire | None = None,
    control: bool = False,
    jobs: int = 1,
    threads: int | None = None,
    rates: Rates | None = None,
) -> StudyEstimate:
    """Estimate memory, disk and time of `organize`, by rates measured on this machine in a second or two.

    Parameters are those of `organize`; `control` says whether random weights are organized too (the time to run the
    model is not in).

    Raises
    ------
    InputError
        As `organize` would: no such block, or too little memory.
    """
    captured = open_capture(source)
    chosen = captured.block(block)
    chosen_kind = captured.kind(kind)
    shape = tensor_shape(captured, chosen, chosen_kind)
    threads = threads or free_threads(jobs)
    settings = Questionnaire(**((questionnaire or Questionnaire()).get_params() | {"n_jobs": threads}))
    fit = estimate_fit(settings, shape, rates=rates or measure_rates(threads), names=AXES)
    seconds = _beside_the_fit()
    entries = float(np.prod(shape))
    batches = len(captured) * (2 if control else 1)
    fits = 2 * batches
    at_a_time = min(jobs, batches)
    kept = 8 * shape[2] ** 2 + 4 * _LEVELS * sum(shape) + 2 * 4 * N_HEAD_BASIS * shape[2]
    return StudyEstimate(
        shape=shape,
        batches=batches,
        fits=fits,
        memory=at_a_time * unit_memory(shape, fit.memory),
        scratch=at_a_time * fit.disk,
        result=float(batches * kept),
        seconds=fits * (fit.seconds + seconds * entries) / max(1, min(at_a_time, cores())),
    )


def _beside_the_fit() -> float:
    """Seconds per entry for entropies and decay curves, measured on a small tensor."""
    X = AttentionTensor(np.random.default_rng(0).random(_SAMPLE, dtype=np.float32))
    trees = [PartitionTree.dyadic(n) for n in _SAMPLE]
    measure_trees(X, trees)
    began = time.perf_counter()
    measure_trees(X, trees)
    return (time.perf_counter() - began) / X.values.size
