"""One pruning of a model as plain data; the study, its workers and the export all build what they need from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.pruning.compensation import Fitted, digest_of
from headscape.studies.prune.inputs import REPEATS, Prepared, prepare_inputs
from headscape.studies.work.models import Loader
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["Pruning"]

IN_MEMORY = "in memory"
"""In a recipe: texts or images that were not given by a path."""
GIVEN = ("inputs", "calibrate", "task")
RECIPE = (
    *("block", "source", "fingerprint", "dtype", *GIVEN, "windows", "seed", "task_by", "repeats", "unit"),
    *("compensation", "heal", "study"),
)


@dataclass(frozen=True)
class Pruning:
    """A model, the data it is ranked, fitted, chosen and judged on, and the heads to remove with their compensation.

    `source`, `fingerprint`, `dtype` and `device` say which model, and where to load it; `inputs`, `calibrate`, `task`,
    `repeats`, `windows` and `seed` which data beside those of the run, `unit` which heads are removed together.
    `data` are content hashes, and `study` a digest of all settings, once they are known. `heads` is empty until some
    are chosen.
    """

    run: Path | None
    block: str
    source: str
    fingerprint: str
    dtype: str
    inputs: Any = None
    calibrate: Any = None
    windows: int = 16
    seed: int = 0
    task: Any = None
    task_by: str = "loss"
    repeats: float = REPEATS
    unit: str = "head"
    device: str = "auto"
    data: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    heads: tuple[HeadId, ...] = ()
    heal: int = 0
    compensation: str = "none"

    @classmethod
    def of(cls, captured: Capture, model: Model, block: str, **data: Any) -> Self:
        """The pruning of a captured model; `data` are the fields that say which data and units."""
        for name in GIVEN:
            if isinstance(data.get(name), (str, Path)) and data[name] != "sample":
                data[name] = str(Path(data[name]).resolve())
        source = str(Path(model.source).resolve()) if Path(model.source).exists() else model.source
        run = None if captured.run is None else captured.run.path.resolve()
        device = "cpu" if model.device == "cpu" else "auto"
        return cls(run, block, source, model.fingerprint, model.dtype, device=device, **data)

    @classmethod
    def of_recipe(cls, recipe: Mapping[str, Any], run: str | Path | None = None, **given: Any) -> Self:
        """The pruning that a recipe describes, to make the same model again.

        `run` is the run it was ranked on; `given` are inputs and calibrate where the recipe says they were in memory.
        """
        facts = {name: recipe[name] for name in (*RECIPE, "data")} | given
        heads = tuple(HeadId.parse(head) for head in recipe["heads"])
        return cls(None if run is None else Path(run), heads=heads, **facts)

    def recipe(self, fitted: Mapping[str, Fitted]) -> dict[str, Any]:
        """The pruning as small JSON, with a digest of its fitted compensation; what was given in memory is left out."""
        plain = {name: getattr(self, name) for name in RECIPE}
        plain |= {n: IN_MEMORY for n in GIVEN if not isinstance(plain[n], str | None)}
        return plain | {"data": dict(self.data), "heads": [str(head) for head in self.heads], "fit": digest_of(fitted)}

    def load(self) -> Model:
        """Load the model."""
        return self.checked(Loader(self.device).load(self.source, self.dtype))

    def checked(self, model: Model) -> Model:
        """The model; `InputError` where its weights are not those that are pruned."""
        if model.fingerprint != self.fingerprint:
            raise InputError(
                f"{model.source} has other weights here than where the study was started; a model that was changed or made "
                "by hand cannot be loaded again: use one job, and export it with model="
            )
        return model

    def prepare(self, model: Model | None = None, captured: Capture | None = None) -> Prepared:
        """Evidence and judges, of the model and run given or loaded; `InputError` where the data are others now."""
        for name, given in (("run", self.run or captured), *((name, getattr(self, name)) for name in GIVEN)):
            if (name == "run" and given is None) or (isinstance(given, str) and given == IN_MEMORY):
                raise InputError(f"this pruning was made with {name} in memory; give {name}= to make it again")
        if captured is None:
            assert self.run is not None  # or it would be named above
            captured = open_capture(self.run)
        model = self.load() if model is None else model
        prepared = prepare_inputs(self, model, captured)
        changed = [name for name, found in prepared.data.items() if self.data.get(name, found) != found]
        if changed:
            raise InputError(f"the data have changed since this pruning was made: what it was {', '.join(changed)} on")
        return prepared
