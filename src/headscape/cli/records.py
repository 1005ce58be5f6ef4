"""Options that commands share, as records: a command takes a record, and its fields become options on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_origin, get_type_hints

from headscape.cli import options as o
from headscape.cli.shared import app, loader, progress_bar, sayer

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.geometry.questionnaire import Questionnaire
    from headscape.studies.work.how import How
    from headscape.studies.work.models import Loader

__all__ = ["Choosing", "Ending", "Fetching", "Loading", "Organizing", "Working", "command"]


@dataclass(frozen=True)
class Ending:
    """How a command ends. `panel` is the heading of a record's options in the help."""

    panel: ClassVar[str] = "How to run it"

    as_json: o.Json = False
    quiet: o.Quiet = False


@dataclass(frozen=True)
class Fetching(Ending):
    """The same for a command that only loads a model."""

    device: o.Device = "auto"
    weights: o.Weights = "float32"
    online: o.Online = False

    def load(self, model: str) -> Model:
        """The model that was named."""
        return loader(self.device, self.online, self.quiet, self.weights).load(model)


@dataclass(frozen=True)
class Working(Ending):
    """How a study works and how its command ends."""

    jobs: o.Jobs = 1
    threads: o.Threads = None
    engine: o.Engine = "local"
    scheduler: o.Scheduler = None
    resume: o.Resume = False
    seed: o.Seed = 0

    @contextmanager
    def working(self, what: str) -> Iterator[How]:
        """How to run the study, from these options; progress bars are shown inside the block.

        What the result lacks is printed at the end, even by a quiet command; an error stays one line.
        """
        from headscape.studies.work.engines import make_engine

        engine = make_engine(self.engine, self.jobs, self.scheduler)
        lacks: list[str] = []
        with progress_bar(what, self.quiet) as bars:
            yield {
                "engine": engine,
                "jobs": self.jobs,
                "threads": self.threads,
                "resume": self.resume,
                "progress": bars,
                "say": sayer(self.quiet),
                "warn": lacks.append if self.quiet else sayer(False),
            }
        for line in dict.fromkeys(lacks):
            sayer(False)(line)


@dataclass(frozen=True)
class Loading(Working):
    """The same for a study that loads a model."""

    device: o.Device = "auto"
    online: o.Online = False

    @property
    def loader(self) -> Loader:
        """What loads the model of a run, in the number type of the run unless one was chosen."""
        return loader(self.device, self.online, self.quiet, getattr(self, "weights", None))

    def load(self, model: str, random_init: int | None = None) -> Model:
        """A model that was named, by default in float32."""
        return self.loader.load(model, random_init=random_init)


@dataclass(frozen=True)
class Choosing(Loading):
    """The same where the number type of the weights can be chosen."""

    weights: o.Weights = "float32"


@dataclass(frozen=True)
class Organizing:
    """Settings of the questionnaire, the algorithm that organizes."""

    panel: ClassVar[str] = "How to organize"

    paper: o.Paper = False
    iterations: o.Iterations = None

    def questionnaire(self, **more: Any) -> Questionnaire:
        """The questionnaire with these settings; a wrong one is reported at once."""
        from headscape.geometry.questionnaire import Questionnaire

        given = {name: value for name, value in (more | {"n_iter": self.iterations}).items() if value is not None}
        settings = Questionnaire.paper(**given) if self.paper else Questionnaire(**given)
        settings.settings_for(3)
        return settings


def command(**about: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command; the fields of a parameter that is a record become options.

    The function itself is returned unchanged, so that other commands can call it.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters.values()
        records = {p.name: hints[p.name] for p in own if is_dataclass(hints[p.name])}
        listed = [option for p in own for option in _options(p, hints, records)]

        @wraps(function)
        def called(**given: Any) -> None:
            for name, kind in records.items():
                given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            function(**given)

        called.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
        called.__annotations__ = {option.name: option.annotation for option in listed}
        del called.__wrapped__  # the command line is read off this function, not off the one inside
        app.command(**about)(called)
        return function

    return register


def _options(
    parameter: inspect.Parameter, hints: dict[str, Any], records: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    """A parameter as the command line sees it: itself, or the fields of its record."""
    if parameter.name not in records:
        yield parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        return
    kind = records[parameter.name]
    types = get_type_hints(kind, include_extras=True)
    for name, hint in types.items():
        if get_origin(hint) is Annotated:
            option = copy(hint.__metadata__[0])
            option.rich_help_panel = kind.panel
            types[name] = Annotated[hint.__origin__, option]
    for field in fields(kind):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(parameter.default, field.name),
            annotation=types[field.name],
        )
