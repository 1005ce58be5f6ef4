"""Evaluations of the prune study as units: made in this process, or in others that load the model for themselves."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from headscape.attention.loss import Loss
from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.pruning.ablation import Ablations
from headscape.pruning.evidence import Evidence
from headscape.pruning.judges import Judge, cost
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.inputs import Inputs, inputs_of
from headscape.studies.work.engines import Engine
from headscape.studies.work.old import Progress, Say, Steps, run_units
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["Bench", "Benches", "Plan", "Recipe", "work_off"]

FloatArray = npt.NDArray[np.float64]
Plan = Sequence[tuple[Sequence[HeadId], str]]
"""Sets of heads to remove, each with its compensation."""


@dataclass
class Bench:
    """A judge, its inputs' name, and the evaluations made by it."""

    name: str
    judge: Judge
    evidence: Evidence
    evaluations: Evaluations

    @cached_property
    def ablations(self) -> Ablations:
        """The model, ready to be run without some heads."""
        return Ablations(self.judge, self.evidence.moments)

    def measure(self, heads: Sequence[HeadId], compensation: str) -> Loss:
        """The loss without these heads, by running the model."""
        return self.ablations.loss(heads, compensation) if heads else self.ablations.intact

    def loss(self, heads: Sequence[HeadId], compensation: str = "none") -> Loss:
        """The loss without these heads, measured once."""
        return self.evaluations.get(self.name, heads, compensation, lambda: self.measure(heads, compensation))

    @property
    def intact(self) -> Loss:
        """The loss with all heads."""
        return self.loss([])

    def cost(self, heads: Sequence[HeadId], compensation: str) -> FloatArray:
        """What removing them costs, a number a sequence."""
        return cost(self.intact, self.loss(heads, compensation))


@dataclass
class Benches:
    """The benches of a study by name: on the inputs to choose on, to judge on, and a few of those to rank on."""

    evidence: Evidence
    inputs: Inputs
    evaluations: Evaluations

    def __post_init__(self) -> None:
        self._made: dict[str, Bench] = {}

    def __getitem__(self, name: str) -> Bench:
        if name not in self._made:
            judge = self.evidence.brief_judge if name == "rank" else getattr(self.inputs, name)
            self._made[name] = Bench(name, judge, self.evidence, self.evaluations)
        return self._made[name]


@dataclass(frozen=True)
class Recipe:
    """What another process needs to set up the same judges: where the run is, which model, which inputs."""

    run: Path
    block: str
    source: str
    dtype: str
    device: str
    fingerprint: str
    inputs: Any
    calibrate: Any
    windows: int
    seed: int
    threads: int

    @classmethod
    def of(
        cls, captured: Capture, model: Model, block: str, given: tuple[Any, Any], windows: int, seed: int, threads: int
    ) -> Recipe:
        """The recipe of a study with these inputs and calibration; `InputError` where its run is not a directory."""
        if captured.run is None:
            raise InputError("evaluations in other processes need a run directory; take one job, or give a directory")
        inputs, calibrate = (Path(x).resolve() if isinstance(x, str | Path) else x for x in given)
        return cls(
            captured.run.path.resolve(),
            block,
            source=str(Path(model.source).resolve()) if Path(model.source).exists() else model.source,
            dtype=model.dtype,
            device="cpu" if model.device == "cpu" else "auto",
            fingerprint=model.fingerprint,
            inputs=inputs,
            calibrate=calibrate,
            windows=windows,
            seed=seed,
            threads=threads,
        )

    @cached_property
    def digest(self) -> str:
        """Of all it says."""
        return hashlib.sha256(pickle.dumps([str(self.run), *list(vars(self).values())[1:]])).hexdigest()

    def follow(self) -> Benches:
        """Load the model and make the judges."""
        from headscape.attention.models import load_model
        from headscape.attention.samples import replayed

        model = load_model(self.source, device=self.device, dtype=self.dtype)
        if model.fingerprint != self.fingerprint:
            raise InputError(
                f"{self.source} has other weights here than where the study was started; other processes load a model "
                "by its name: take one job for a model that was changed or made by hand"
            )
        captured = open_capture(self.run)
        evidence = Evidence(captured.heads(self.block), model=model, samples=replayed(model, captured), seed=self.seed)
        split = inputs_of(model, captured, self.inputs, self.windows, self.seed, self.calibrate)
        evidence.texts, evidence.fit = split.texts, split.fit
        return Benches(evidence, split, Evaluations(None))


_followed: dict[str, Benches] = {}  # of this process; the last recipe only


def evaluate(recipe: Recipe, digest: str, bench: str, heads: Sequence[HeadId], compensation: str, path: Path) -> None:
    """Make one evaluation in a process of its own accord, and write it; skipped when it is there."""
    if path.exists():
        return
    torch.set_num_threads(recipe.threads)
    if digest not in _followed:
        _followed.clear()
        _followed[digest] = recipe.follow()
    found = _followed[digest][bench].measure(heads, compensation)
    Evaluations.write(path, Evaluations.key(bench, heads, compensation), found)


def work_off(bench: Bench, plan: Plan, engine: Engine, recipe: Recipe | None, progress: Progress, say: Say) -> None:
    """Make the evaluations of a plan that are not known yet, and that of the intact model.

    They are recorded in the order of the plan, whoever made them. Without a recipe the model of this process is used.
    """
    steps = Steps(progress, len(plan) + 1)
    missing: dict[str, tuple[Sequence[HeadId], str]] = {}
    intact: Plan = [([], "none")]
    for heads, compensation in [*intact, *plan]:
        key = Evaluations.key(bench.name, heads, compensation)
        if key in missing or bench.evaluations.knows(key):
            steps.one()
        else:
            missing[key] = (heads, compensation)
    names = {key: _named(bench.name, *unit) for key, unit in missing.items()}
    if recipe is None:
        run_units(bench.loss, {names[key]: unit for key, unit in missing.items()}, engine, steps, say)
        return
    digest = recipe.digest
    files = {key: bench.evaluations.place(key) for key in missing}
    units = {names[key]: (recipe, digest, bench.name, *unit, files[key]) for key, unit in missing.items()}
    try:
        run_units(evaluate, units, engine, steps, say)
    finally:
        bench.evaluations.gather(files.values())


def _named(bench: str, heads: Sequence[HeadId], compensation: str) -> str:
    """A name a person can tell from others: the first heads, how many, and a few letters of its key."""
    key = Evaluations.key(bench, heads, compensation)[:6]
    if not heads:
        return f"all heads ({bench})"
    first = " ".join(str(head) for head in heads[:2])
    return f"without {first}{f' and {len(heads) - 2} more' if len(heads) > 2 else ''} ({bench}, {compensation}, {key})"
