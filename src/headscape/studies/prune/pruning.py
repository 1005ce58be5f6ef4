"""One pruning of a model as plain facts: the study, its worker processes and the export make all they need from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headscape.attention.sites import select_heads
from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.pruning.ablation import Ablations
from headscape.pruning.compensation import Fitted, digest_of, fit_compensation
from headscape.pruning.evidence import Evidence
from headscape.pruning.judges import Judge
from headscape.studies.prune.inputs import Split, split_inputs
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.runs import Run

__all__ = ["Prepared", "Pruning"]

IN_MEMORY = "in memory"
"""Stands in a recipe for texts or images that were given as such, not by a path."""


@dataclass(frozen=True)
class Pruning:
    """A model, the data it is ranked, fitted, chosen and judged on, and the heads to remove with their compensation.

    `source`, `fingerprint`, `dtype` and `device` say which model and where to load it; `inputs`, `calibrate`, `windows`
    and `seed` which data, beside those of the run. `data` are their content hashes, once they are known. `heads` are
    none until some are chosen.
    """

    run: Path | None
    block: str
    source: str
    fingerprint: str
    dtype: str
    inputs: Any = None
    calibrate: Any = None
    windows: int = 8
    seed: int = 0
    device: str = "auto"
    data: Mapping[str, str] = field(default_factory=dict)
    heads: tuple[HeadId, ...] = ()
    compensation: str = "none"

    @classmethod
    def of(cls, captured: Capture, model: Model, block: str, **data: Any) -> Self:
        """The pruning of a captured model; `data` are inputs, calibrate, windows and seed."""
        given: dict[str, Any] = {k: str(Path(v).resolve()) if isinstance(v, Path) or _is_path(v) else v for k, v in data.items()}
        source = str(Path(model.source).resolve()) if Path(model.source).exists() else model.source
        run = None if captured.run is None else captured.run.path.resolve()
        device = "cpu" if model.device == "cpu" else "auto"
        return cls(run, block, source, model.fingerprint, model.dtype, device=device, **given)

    @classmethod
    def of_recipe(cls, recipe: Mapping[str, Any], run: Run | str | Path | None = None, **given: Any) -> Self:
        """The pruning a recipe describes, to make the same model again.

        `run` is the run it was ranked on; `given` are inputs and calibrate where the recipe says they were in memory.
        """
        path = None if run is None else open_capture(run).run.path
        facts = {name: recipe[name] for name in recipe if name in cls.__dataclass_fields__}
        return cls(**{**facts, **given, "run": path, "heads": tuple(HeadId.parse(head) for head in recipe["heads"])})

    def recipe(self, fitted: Mapping[str, Fitted]) -> dict[str, Any]:
        """The pruning as small JSON, with a digest of the fitted compensation; what was in memory is left out."""
        plain = {name: getattr(self, name) for name in ("block", "source", "fingerprint", "dtype", "windows", "seed")}
        for name, given in (("inputs", self.inputs), ("calibrate", self.calibrate)):
            plain[name] = given if given is None or isinstance(given, str) else IN_MEMORY
        heads = [str(head) for head in self.heads]
        return plain | {
            "data": dict(self.data),
            "heads": heads,
            "compensation": self.compensation,
            "fit": digest_of(fitted),
        }

    @property
    def key(self) -> str:
        """A digest of everything but the heads: prunings that agree in it share what is prepared."""
        return digest(str(self.run), self.device, replace(self, heads=(), compensation="none").recipe({}))

    def load(self) -> Model:
        """Load the model; `InputError` where its weights are not those that were pruned."""
        from headscape.attention.models import load_model

        return self.checked(load_model(self.source, device=self.device, dtype=self.dtype))

    def checked(self, model: Model) -> Model:
        """The model, if it is the one that is pruned."""
        if model.fingerprint != self.fingerprint:
            raise InputError(
                f"{model.source} has other weights here than where the study was started; a model that was changed or made "
                "by hand cannot be loaded again: take one job, and export it with model="
            )
        return model

    def prepare(self, model: Model | None = None, captured: Capture | None = None) -> Prepared:
        """Evidence and judges, with the model and run given or loaded; `InputError` where the data have changed."""
        if captured is None and self.run is None:
            raise InputError("a pruning is prepared from the run it was ranked on; give the run")
        for name, given in (("inputs", self.inputs), ("calibrate", self.calibrate)):
            if isinstance(given, str) and given == IN_MEMORY:
                raise InputError(f"{name} was given in memory when this recipe was made; give {name}= again")
        captured = open_capture(self.run) if captured is None else captured  # type: ignore[arg-type]
        model = model or self.load()
        split = split_inputs(self, model, captured)
        changed = [name for name, found in split.data.items() if self.data and self.data.get(name) != found]
        if changed:
            raise InputError(
                f"the data are not those of the pruning any more: other inputs are {', '.join(changed)} on"
            )
        heads = captured.heads(self.block)
        evidence = Evidence(heads, model=model, samples=split.rank, fit=split.fit, texts=split.texts, seed=self.seed)
        return Prepared(model, evidence, split)


def _is_path(given: Any) -> bool:
    return isinstance(given, str) and given != "sample"


@dataclass
class Prepared:
    """A pruning ready to be evaluated in this process: the model, what criteria may look at, and the judges."""

    model: Model
    evidence: Evidence
    split: Split
    _ablations: dict[str, Ablations] = field(default_factory=dict)

    def judge(self, on: str) -> Judge:
        """The judge on the inputs to "choose" on, to "judge" on, or on a few of those to "rank" on."""
        judge: Judge = self.evidence.brief_judge if on == "rank" else getattr(self.split, on)
        return judge

    def ablations(self, on: str) -> Ablations:
        """The model, ready to be run without some heads."""
        if on not in self._ablations:
            self._ablations[on] = Ablations(self.judge(on), lambda: self.evidence.moments)
        return self._ablations[on]

    def fit(self, heads: Sequence[HeadId], compensation: str) -> dict[str, Fitted]:
        """Fit the compensation of removed heads."""
        moments = None if compensation == "none" else self.evidence.moments
        return fit_compensation(self.model, select_heads(self.model, heads), moments, compensation)
