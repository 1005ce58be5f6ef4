"""Evaluations: the loss without a set of heads, each measured once and kept as a unit of the study.

A unit is named by a digest of model, heads and compensation, and by one of the inputs. Inputs on which another
unit of the same heads was measured are not measured again: more windows cost only what is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.attention.loss import Loss
from headscape.attention.threads import torch_threads
from headscape.errors import HeadscapeError
from headscape.fingerprints import digest
from headscape.intervals import mean_interval, share_change
from headscape.pruning.judges import by_answers, cost
from headscape.storage import read_arrays, write_arrays
from headscape.studies.prune.inputs import Prepared
from headscape.studies.prune.pruning import Pruning
from headscape.studies.work.folder import KEY_LETTERS, Folder
from headscape.studies.work.how import Work
from headscape.studies.work.units import run_units
from headscape.tensor import HeadId
from headscape.verdicts import judge

__all__ = ["Evaluations", "evaluate"]

Removal = tuple[Sequence[HeadId], str]
"""Heads to remove, and the name of their compensation."""


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a study, made in this process or in workers that each prepare the pruning."""

    pruning: Pruning
    live: Prepared
    folder: Folder
    work: Work

    @property
    def calibration(self) -> Path:
        """The file of what is fitted on the calibration samples."""
        return self.folder.unit(
            "calibration", self.pruning.fingerprint, self.pruning.dtype, self.pruning.data["fitted"]
        )

    def calibrate(self) -> None:
        """Calibrate, in a stage of its own."""
        n = len(self.live.evidence.fit or self.live.evidence.samples)
        steps, known = self.work.stage("calibrating", n), self.calibration.exists()
        self.live.calibrate(self.calibration, steps.one)
        for _ in range(n if known else 0):
            steps.one()

    @property
    def heads(self) -> Sequence[HeadId]:
        """The heads that may be removed."""
        return self.live.evidence.heads

    def path(self, on: str, heads: Sequence[HeadId], compensation: str) -> Path:
        """The file of an evaluation."""
        named = sorted(str(head) for head in heads)
        fit = [compensation, self.pruning.data["fitted"]] if named and compensation != "none" else []
        which = digest(self.pruning.fingerprint, self.pruning.dtype, named, fit)[:KEY_LETTERS]
        return self.folder.unit(f"evaluation-{which}", self.live.keys(on))

    def make(self, stage: str, on: str, removals: Sequence[Removal]) -> None:
        """Make many evaluations at a time, and that of the intact model; existing ones are kept."""
        apart = self.work.engine.apart
        source, threads = (self.pruning, self.work.threads) if apart else (self.live, None)
        units: dict[str, tuple[Path, *tuple[Any, ...]]] = {}
        for heads, compensation in [((), "none"), *removals]:
            path = self.path(on, heads, compensation)
            facts = (path, source, on, heads, compensation, self.calibration, threads)
            units[f"{on} without {len(heads)} heads ({path.stem})"] = facts
        run_units(evaluate, units, self.work, self.work.stage(stage, len(units)))

    def losses(self, on: str, heads: Sequence[HeadId] = (), compensation: str = "none") -> dict[str, Loss]:
        """The losses without these heads by ability, measured here unless they are known."""
        path = self.path(on, heads, compensation)
        if not path.exists():
            evaluate(path, self.live, on, heads, compensation, self.calibration)
        return self.live.judge(on).by_ability(_read(path))

    def costs(self, on: str, heads: Sequence[HeadId], compensation: str) -> dict[str, npt.NDArray[np.float64]]:
        """What removing them costs, one number per sequence, by ability."""
        return self.priced(self.losses(on), self.losses(on, heads, compensation))

    def priced(self, intact: Mapping[str, Loss], now: Mapping[str, Loss]) -> dict[str, npt.NDArray[np.float64]]:
        """What losses cost beside those of the intact model, one number per sequence, by ability."""
        return {n: cost(intact[n], now[n], self.scales.get(n), self.judged_by(n)) for n in now}

    def judged_by(self, ability: str) -> str:
        """What an ability is judged by where it has both: loss or accuracy."""
        return self.pruning.task_by if ability == "task" else "loss"

    @cached_property
    def abilities(self) -> pd.DataFrame:
        """By ability: the intact loss, that of its control (chance) with the share it gets right, and whether a budget binds.

        It binds where the intact model is clearly better than its control on the selection inputs.
        """
        rows = []
        controls = self.losses("control") if self.live.controls is not None else {}
        for name, intact in self.losses("choose").items():
            row: dict[str, Any] = {"ability": name, "intact": intact.mean, "chance": np.nan, "binds": True}
            if name in controls:
                if not np.isfinite([controls[name].values, intact.values]).all():  # else it would pass for "at chance"
                    raise HeadscapeError(f"the loss of {name} or of its control is not finite; please report it")
                ahead = mean_interval(controls[name].values - intact.values)
                right, by_chance = intact.correct, controls[name].correct
                if by_answers(intact, self.judged_by(name)) and right is not None and by_chance is not None:
                    ahead = share_change(right.astype(float) - by_chance)
                    row["right by chance"] = float(by_chance.mean())
                row |= {"chance": controls[name].mean}
                row["binds"] = judge(ahead, above=0.0, control="no better than chance").verdict == "holds"
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def scales(self) -> dict[str, float]:
        """What a rise of the loss is a share of: the advantage over chance, for abilities that have a control."""
        known = self.abilities[self.abilities["chance"].notna()]
        ahead = (known["chance"] - known["intact"]).clip(lower=1e-6)
        return dict(zip(known["ability"], ahead.astype(float), strict=True))


_prepared: dict[str, Prepared] = {}  # in a worker process, by its study; the last one only


def evaluate(
    path: Path,
    source: Pruning | Prepared,
    on: str,
    heads: Sequence[HeadId],
    compensation: str,
    calibration: Path,
    threads: int | None = None,
) -> None:
    """Measure the losses without some heads, and write them piece by piece of the inputs."""
    with torch_threads(threads):
        if isinstance(source, Pruning):
            if source.study not in _prepared:
                _prepared.clear()
                _prepared[source.study] = source.prepare()
            source = _prepared[source.study]
        known: dict[str, Loss] = {}
        for file in path.parent.glob(f"{path.name.rpartition('-')[0]}-*.safetensors"):  # the same heads on other inputs
            known |= _read(file)
        if heads and compensation != "none":
            source.calibrate(calibration)
        keys = source.keys(on)
        known |= source.ablations(on).losses(heads, compensation, known, set(keys))
    found = {key: known[key] for key in keys}
    arrays: dict[str, npt.NDArray[Any]] = {f"values/{key}": loss.values for key, loss in found.items()}
    arrays |= {f"correct/{key}": loss.correct for key, loss in found.items() if loss.correct is not None}
    write_arrays(path, arrays, {"kind": next(iter(found.values())).kind})


def _read(path: Path) -> dict[str, Loss]:
    """The losses of an evaluation by the key of their piece of the inputs."""
    arrays, facts = read_arrays(path)
    keys = [name.removeprefix("values/") for name in arrays if name.startswith("values/")]
    return {key: Loss(arrays[f"values/{key}"], facts["kind"], arrays.get(f"correct/{key}")) for key in keys}
