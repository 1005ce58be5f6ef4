"""Options that commands share, as records: a command takes a record, and its fields become options on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from headscape.cli import options as o
from headscape.cli.shared import app, loader, working

if TYPE_CHECKING:
    from headscape.studies.work.how import How
    from headscape.studies.work.models import Loader

__all__ = ["Loading", "Working", "command"]


@dataclass(frozen=True)
class Working:
    """How a study works and how a command ends."""

    jobs: o.Jobs = 1
    engine: o.Engine = "local"
    scheduler: o.Scheduler = None
    resume: o.Resume = False
    seed: o.Seed = 0
    as_json: o.Json = False
    quiet: o.Quiet = False

    def working(self, what: str) -> AbstractContextManager[How]:
        """How the study is to work, with its bars shown for the time of the block."""
        return working(
            what, self.quiet, jobs=self.jobs, engine=self.engine, scheduler=self.scheduler, resume=self.resume
        )


@dataclass(frozen=True)
class Loading(Working):
    """The same for a study that loads a model."""

    device: o.Device = "auto"
    online: o.Online = False

    @property
    def loader(self) -> Loader:
        """What loads the model of a run."""
        return loader(self.device, self.online, self.quiet)


def command(**about: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command; parameters whose type is a record stand for the options that are its fields.

    The function itself is returned as it was, so that other commands can call it.
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
    for field in fields(kind):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
