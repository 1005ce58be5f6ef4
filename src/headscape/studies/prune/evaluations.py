"""Evaluations: the loss without a set of heads, each measured once and kept as a unit of the study.

A unit is named by a digest of model, heads and compensation, and by one of the inputs. Inputs that another unit of the
same heads was measured on are not measured again: more windows cost only what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.attention.loss import Loss
from headscape.attention.threads import torch_threads
from headscape.fingerprints import digest
from headscape.pruning.judges import concatenated, cost
from headscape.storage import read_arrays, write_arrays
from headscape.studies.prune.inputs import Prepared
from headscape.studies.prune.pruning import Pruning
from headscape.studies.work.folder import KEY_LETTERS, Folder
from headscape.studies.work.how import Work
from headscape.studies.work.units import run_units
from headscape.tensor import HeadId

__all__ = ["Evaluations", "evaluate"]

Removal = tuple[Sequence[HeadId], str]
"""Heads to remove, and the name of their compensation."""


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a study, made in this process or in others that prepare the pruning for themselves."""

    pruning: Pruning
    live: Prepared
    folder: Folder
    work: Work

    @property
    def heads(self) -> Sequence[HeadId]:
        """The heads that may be removed."""
        return self.live.evidence.heads

    def path(self, on: str, heads: Sequence[HeadId], compensation: str) -> Path:
        """The file of an evaluation."""
        named = sorted(str(head) for head in heads)
        fit = [compensation, self.pruning.data["fitted"]] if named and compensation != "none" else []
        which = digest(self.pruning.fingerprint, self.pruning.dtype, named, fit)[:KEY_LETTERS]
        return self.folder.unit(f"evaluation-{which}", [key for key, _ in self.live.judge(on).pieces])

    def make(self, stage: str, on: str, removals: Sequence[Removal]) -> None:
        """Make many evaluations at a time, and that of the intact model; those that are there are kept."""
        apart = self.work.engine.apart
        source, threads = (self.pruning, self.work.threads) if apart else (self.live, None)
        units: dict[str, tuple[Path, *tuple[Any, ...]]] = {}
        for heads, compensation in [((), "none"), *removals]:
            path = self.path(on, heads, compensation)
            units[f"{on} without {len(heads)} heads ({path.stem})"] = (path, source, on, heads, compensation, threads)
        run_units(evaluate, units, self.work, self.work.stage(stage, len(units)))

    def loss(self, on: str, heads: Sequence[HeadId] = (), compensation: str = "none") -> Loss:
        """The loss without these heads, measured here unless it is known."""
        path = self.path(on, heads, compensation)
        if not path.exists():
            evaluate(path, self.live, on, heads, compensation)
        found = _read(path)
        return concatenated([found[key] for key, _ in self.live.judge(on).pieces])

    def cost(self, on: str, heads: Sequence[HeadId], compensation: str) -> npt.NDArray[np.float64]:
        """What removing them costs, one number per sequence."""
        return cost(self.loss(on), self.loss(on, heads, compensation))


_prepared: dict[str, Prepared] = {}  # in a worker process, by its study; the last one only


def evaluate(
    path: Path,
    source: Pruning | Prepared,
    on: str,
    heads: Sequence[HeadId],
    compensation: str,
    threads: int | None = None,
) -> None:
    """Measure the loss without some heads, and write it piece by piece of the inputs."""
    with torch_threads(threads):
        if isinstance(source, Pruning):
            if source.study not in _prepared:
                _prepared.clear()
                _prepared[source.study] = source.prepare()
            source = _prepared[source.study]
        known: dict[str, Loss] = {}
        for file in path.parent.glob(f"{path.name.rpartition('-')[0]}-*.safetensors"):  # the same heads on other inputs
            known |= _read(file)
        known |= source.ablations(on).losses(heads, compensation, known)
    found = {key: known[key] for key, _ in source.judge(on).pieces}
    arrays: dict[str, npt.NDArray[Any]] = {f"values/{key}": loss.values for key, loss in found.items()}
    arrays |= {f"correct/{key}": loss.correct for key, loss in found.items() if loss.correct is not None}
    write_arrays(path, arrays, {"kind": next(iter(found.values())).kind})


def _read(path: Path) -> dict[str, Loss]:
    """The losses of an evaluation by the key of their piece of the inputs."""
    arrays, facts = read_arrays(path)
    keys = [name.removeprefix("values/") for name in arrays if name.startswith("values/")]
    return {key: Loss(arrays[f"values/{key}"], facts["kind"], arrays.get(f"correct/{key}")) for key in keys}
