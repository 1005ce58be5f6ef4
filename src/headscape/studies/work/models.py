"""The model of a run: loaded in one place, as it was captured, and checked to be the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headscape.attention.wrapping import Model
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.runs import Run
from headscape.studies.work.how import Say

__all__ = ["Loader", "model_run", "models_of"]

ARCHITECTURE = ("family", "task", "n_parameters", "n_kv_heads", "max_tokens")


@dataclass(frozen=True)
class Loader:
    """Loads the model of a run: where to put it, in which number type (None: as captured), and whether to go online."""

    device: str = "auto"
    weights: str | None = None
    online: bool = False
    say: Say = lambda _: None

    def model(self, run: Run, random_init: int | None = None) -> Model:
        """The model of a run, or its architecture with weights drawn from the seed `random_init`.

        Raises
        ------
        InputError
            The run was imported and has no model; the model no longer exists, or its weights have changed.
        """
        source = run.model_source
        if source is None:
            raise InputError(f"{run.path} was imported and has no model; capture one for studies that need it")
        if run.meta["model"].get("location") and not Path(source).exists():
            raise InputError(f"the model of {run.path} is no longer at {source}; put it back, or capture again")
        model = self.load(source, str(run.meta["model"].get("dtype", "float32")), random_init)
        captured = run.meta["model"].get("fingerprint")
        if random_init is None and captured is not None and model.fingerprint != captured:
            raise InputError(
                f"{source} is not the model that {run.path} was captured from: {_difference(run.meta['model'], model)}; "
                "capture again, or put the old one back"
            )
        return model

    def load(self, source: str, dtype: str = "float32", random_init: int | None = None) -> Model:
        """A model by name or path, in the requested number type or `dtype`; or that of a training run."""
        from headscape.attention.models import load_model
        from headscape.hopfield.trained import is_training_run

        if is_training_run(source):
            from headscape.hopfield.capturing import trained_model

            return trained_model(source, self.device, random_init)
        return load_model(
            source,
            device=self.device,
            dtype=self.weights or dtype,
            online=self.online,
            random_init=random_init,
            say=self.say,
        )

    def model_or_none(self, run: Run, without: str, warn: Say) -> Model | None:
        """The model of a run, or None with a warning that says what is left out (`without`) and why."""
        if run.model_source is None:
            return None
        try:
            return self.model(run)
        except InputError as error:
            warn(f"{without}: {error}")
            return None


def _difference(was: Mapping[str, Any], model: Model) -> str:
    """What has changed about a model: facts of its architecture, else only its weights."""
    facts = [name for name in ARCHITECTURE if name in was and was[name] != getattr(model, name)]
    if facts:
        return ", ".join(f"{name} is {getattr(model, name)} and was {was[name]}" for name in facts)
    return (
        f"the same architecture with other weights (SHA-256 {model.fingerprint[:12]}..., the run's "
        f"{str(was['fingerprint'])[:12]}...)"
    )


def models_of(
    captured: Capture,
    model: Model | bool | None,
    control: Model | bool | None,
    loader: Loader,
    seed: int,
    without: str,
    warn: Say,
) -> tuple[Model | None, Model | None]:
    """The model and the control a study is to use: those given; for True the capture's own, and its random weights.

    A study that can do without its model continues when it cannot be loaded, and warns of what is left out (`without`);
    a requested control is not left out silently.
    """
    if control is True and captured.run is None:
        raise InputError("random weights need a run of a model; these are arrays in memory: give control=")
    own = None if isinstance(model, bool) else model
    if model is True:
        own = captured.model if captured.run is None else loader.model_or_none(captured.run, without, warn)
    other = None if isinstance(control, bool) else control
    if control is True:
        assert captured.run is not None
        other = loader.model(captured.run, random_init=seed)
    return own, other


def model_run(model: Model, run: Run | str | Path | None, kind: str, seed: int) -> Callable[[Path], Run]:
    """What opens or makes the run of a study that reads a model and no capture; `InputError` if it is of another model."""
    path = run.path if isinstance(run, Run) else None if run is None else Path(run)
    there = Run.open(path) if path is not None and (path / "run.json").exists() else None
    if there is not None and there.meta.get("model", {}).get("fingerprint", model.fingerprint) != model.fingerprint:
        raise InputError(f"{path} is a run of {there.model_source}, not of {model.source}; name another directory")
    made = partial(Run.create, config={"kind": kind, "seed": seed}, model=model.describe(), inputs={})
    return made if there is None else Run.open
