"""Evaluations: the loss without a set of heads, each measured once and kept as a unit of the study.

A unit's name is a digest of model, heads and compensation, and one of the inputs. What another unit of the same heads
knows of some of the inputs is not measured again, so more windows cost only what is new.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.attention.loss import Loss
from headscape.attention.threads import torch_threads
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.pruning.judges import concatenated, cost
from headscape.storage import write_json
from headscape.studies.prune.pruning import Prepared, Pruning
from headscape.studies.work.folder import KEY_LETTERS, Folder
from headscape.studies.work.how import Work
from headscape.studies.work.units import run_units
from headscape.tensor import HeadId

__all__ = ["Evaluations", "HeadSet", "evaluate"]

HeadSet = tuple[Sequence[HeadId], str]
"""Heads to remove, and their compensation."""


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a study: made in this process, or in others that prepare the pruning for themselves."""

    pruning: Pruning
    live: Prepared
    folder: Folder
    work: Work

    @property
    def heads(self) -> Sequence[HeadId]:
        """The heads of the network that may be removed."""
        return self.live.evidence.heads

    def path(self, on: str, heads: Sequence[HeadId], compensation: str) -> Path:
        """The file of an evaluation."""
        named = sorted(str(head) for head in heads)
        fit = [compensation, self.pruning.data["fitted"]] if named and compensation != "none" else "none"
        which = digest(self.pruning.fingerprint, self.pruning.dtype, named, fit)[:KEY_LETTERS]
        return self.folder.unit(f"evaluation-{which}", [key for key, _ in self.live.judge(on).pieces], ending="json")

    def make(self, stage: str, on: str, sets: Sequence[HeadSet]) -> None:
        """Make many evaluations at a time, and that of the intact model; those that are there are kept."""
        apart = self.work.engine.apart
        source, threads = (self.pruning, self.work.threads) if apart else (self.live, None)
        units: dict[str, tuple[Path, *tuple[Any, ...]]] = {}
        for heads, compensation in [((), "none"), *sets]:
            path = self.path(on, heads, compensation)
            units[_named(path, on, heads, compensation)] = (path, source, on, heads, compensation, threads)
        run_units(evaluate, units, self.work, self.work.stage(stage, len(units)))

    def loss(self, on: str, heads: Sequence[HeadId] = (), compensation: str = "none") -> Loss:
        """The loss without these heads, measured here unless it is known."""
        path = self.path(on, heads, compensation)
        if not path.exists():
            evaluate(path, self.live, on, heads, compensation)
        found = _read(path)
        return concatenated([_loss(found[key]) for key, _ in self.live.judge(on).pieces])

    def cost(self, on: str, heads: Sequence[HeadId], compensation: str) -> npt.NDArray[np.float64]:
        """What removing them costs, one number per sequence."""
        return cost(self.loss(on), self.loss(on, heads, compensation))


def _named(path: Path, on: str, heads: Sequence[HeadId], compensation: str) -> str:
    """A name for people: the first heads, how many, and the key of the evaluation."""
    if not heads:
        return f"all heads ({on})"
    more = f" and {len(heads) - 2} more" if len(heads) > 2 else ""
    return f"without {' '.join(str(head) for head in heads[:2])}{more} ({on}, {compensation}, {path.stem})"


_prepared: dict[str, Prepared] = {}  # of a worker process; the last pruning only


def evaluate(
    path: Path,
    source: Pruning | Prepared,
    on: str,
    heads: Sequence[HeadId],
    compensation: str,
    threads: int | None = None,
) -> None:
    """Measure the loss without some heads, and write it."""
    with torch_threads(threads):
        if isinstance(source, Pruning):
            if source.key not in _prepared:
                _prepared.clear()
                _prepared[source.key] = source.prepare()
            source = _prepared[source.key]
        known: dict[str, Any] = {}
        for file in path.parent.glob(f"{path.name.rpartition('-')[0]}-*.json"):  # on other inputs
            known |= _read(file)
        new = source.ablations(on).losses(heads, compensation, known)
        found = {key: known[key] if key in known else _plain(new[key]) for key, _ in source.judge(on).pieces}
    write_json(path, found)


def _plain(loss: Loss) -> dict[str, Any]:
    correct = None if loss.correct is None else loss.correct.tolist()
    return {"kind": loss.kind, "values": loss.values.tolist(), "correct": correct}


def _loss(plain: dict[str, Any]) -> Loss:
    correct = None if plain["correct"] is None else np.array(plain["correct"], dtype=bool)
    return Loss(np.array(plain["values"]), plain["kind"], correct)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        raise InputError(f"{path} is damaged; delete it and run the same command again") from None
