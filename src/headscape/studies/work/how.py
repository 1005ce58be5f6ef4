"""How to work: what runs the units of a study, and who is told. None of it changes a byte of the result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from headscape.checks import integer
from headscape.studies.work.engines import Engine, LocalEngine, engine_of

__all__ = ["How", "Progress", "Say", "Steps", "Work"]


class Progress(Protocol):
    """Called with the numbers done and to do; one that knows stages also has `stage(name)`."""

    def __call__(self, done: int, total: int, /) -> None:
        """Report progress."""


Say = Callable[[str], None]
"""Called with a line for the user."""


class How(TypedDict, total=False):
    """What every study takes in addition to its own settings.

    jobs: units at a time. threads: within one unit; by default the cores divided by the jobs. engine: "local", "dask",
    or an engine of `headscape.studies.work.engines`. resume: raise instead of starting over if the study was begun
    with other settings. progress: called with done and total. say: called with lines for the user. warn: called with
    what the result lacks, and why; by default `say` is called, or a Python warning given.
    """

    jobs: int
    threads: int | None
    engine: Engine | str
    resume: bool
    progress: Progress
    say: Say
    warn: Say


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=2)


@dataclass(frozen=True)
class Work:
    """A record of how to work, passed through a study."""

    engine: Engine = field(default_factory=LocalEngine)
    asked_threads: int | None = None
    resume: bool = False
    progress: Progress = lambda done, total: None
    say: Say = lambda _: None
    warn: Say = _warn

    @classmethod
    def of(cls, **how: Unpack[How]) -> Work:
        """The record of the options that a study was called with."""
        engine = engine_of(how.get("engine", "local"), how.get("jobs", 1))
        warn = how.get("warn") or how.get("say") or _warn
        threads = how.get("threads")
        threads = None if threads is None else integer("threads", threads, low=1)
        resume, progress = how.get("resume", cls.resume), how.get("progress", cls.progress)
        return cls(engine, threads, resume, progress, how.get("say", cls.say), warn)

    @property
    def threads(self) -> int:
        """Threads within a unit."""
        return self.engine.threads(self.asked_threads)

    def stage(self, name: str, total: int) -> Steps:
        """Begin a stage of so many steps; the bar shows its name."""
        begin = getattr(self.progress, "stage", None)
        if begin is not None:
            begin(name)
        return Steps(self.progress, total)

    def started(self, *folders: Path | None) -> AbstractContextManager[None]:
        """Have the engine ready for units that work on these folders; None stands for data that are only in memory.

        A folder that does not exist yet is replaced by the one in which it will be made.
        """
        places = [None if folder is None else folder.absolute() for folder in folders]
        there = [p and next(above for above in (p, *p.parents) if above.is_dir()) for p in places]
        return self.engine.started(there, self.say)


class Steps:
    """Counts steps for the progress bar."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        progress(0, total)

    def one(self) -> None:
        """Count one more."""
        self._done += 1
        self._progress(self._done, self._total)
