"""Engines: what runs the units of a study. Processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import os
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from headscape.checks import integer, one_of
from headscape.compiled import free_threads
from headscape.errors import HeadscapeError, InputError, about_a_file

__all__ = [
    "ENGINES",
    "Engine",
    "Failure",
    "LocalEngine",
    "attempt",
    "engine_of",
    "make_engine",
]

ENGINES = ("local", "dask")
Function = Callable[..., object]


@dataclass(frozen=True)
class Failure:
    """Why a unit failed, in one line, and whether that is a mistake in the request."""

    cause: str
    mistake: bool = False


def attempt(function: Function, arguments: Sequence[Any]) -> Failure | None:
    """Run a unit; an exception is returned as a line, so that the other units are not lost.

    >>> attempt(int, ["7"]), attempt(int, ["seven"])
    (None, Failure(cause="ValueError: invalid literal for int() with base 10: 'seven'", mistake=False))
    """
    try:
        function(*arguments)
    except HeadscapeError as error:
        return Failure(" ".join(str(error).split()), isinstance(error, InputError))
    except MemoryError:
        return Failure("out of memory; take fewer jobs, tokens, heads or batches")
    except Exception as error:
        mistake = about_a_file(error)
        if mistake is not None:
            return Failure(str(mistake), mistake=True)
        if os.environ.get("HEADSCAPE_DEBUG"):
            traceback.print_exc()
        return Failure(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    return None


class Engine(ABC):
    """Runs independent units, each of which writes its own file.

    `jobs` is how many at a time. Where `apart`, units and their arguments are sent to other processes, perhaps on other
    machines: they are functions of a module, and their data are named by a path.
    """

    jobs: int

    @property
    @abstractmethod
    def apart(self) -> bool:
        """Whether units run in processes other than this one."""

    @abstractmethod
    def threads(self, asked: int | None) -> int:
        """Threads within a unit: the number given, or what suits the engine."""

    @abstractmethod
    def started(self, folders: Sequence[Path | None], say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Be ready for units that work on these folders; None means data that are only in memory."""

    @abstractmethod
    def run(self, function: Function, units: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Failure | None]]:
        """Call the function with each unit's arguments; number and outcome of each, as they are done."""


class LocalEngine(Engine):
    """Processes of this machine, by joblib; one job is this process itself.

    `backend` is "processes", or "threads" for units that share a model and release the interpreter's lock.
    """

    def __init__(self, jobs: int = 1, backend: Literal["processes", "threads"] = "processes") -> None:
        self.jobs, self._backend = integer("jobs", jobs, low=1), {"processes": "loky", "threads": "threading"}[backend]

    @property
    def apart(self) -> bool:
        return self.jobs > 1 and self._backend == "loky"

    def threads(self, asked: int | None) -> int:
        return asked or free_threads(self.jobs)

    @contextmanager
    def started(self, folders: Sequence[Path | None], say: Callable[[str], None]) -> Iterator[None]:
        yield

    def run(self, function: Function, units: Sequence[Sequence[Any]]) -> Iterator[tuple[int, Failure | None]]:
        if self.jobs == 1:
            yield from ((i, attempt(function, unit)) for i, unit in enumerate(units))
            return
        # joblib puts a new process in the place of one that has grown, as one does that loads a model; nothing is lost
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
        parallel = Parallel(n_jobs=self.jobs, backend=self._backend, return_as="generator_unordered")
        try:
            yield from parallel(delayed(_numbered)(i, function, unit) for i, unit in enumerate(units))
        except TerminatedWorkerError:
            raise HeadscapeError(
                "a worker process was killed, perhaps because memory ran out; the same command with fewer "
                "--jobs continues with what is missing"
            ) from None


def _numbered(i: int, function: Function, unit: Sequence[Any]) -> tuple[int, Failure | None]:
    return i, attempt(function, unit)


def make_engine(name: str = "local", jobs: int = 1, scheduler: str | None = None) -> Engine:
    """The engine of that name.

    Parameters
    ----------
    name
        "local", or "dask": a cluster of `jobs` processes on this machine, or that of the scheduler given.
    scheduler
        tcp://HOST:PORT of a Dask scheduler whose workers see the run directory.

    Raises
    ------
    InputError
        An unknown name, an invalid address, a scheduler for another engine, or Dask is not installed.
    """
    if one_of("engine", name, ENGINES) == "dask":
        from headscape.studies.work.dask import DaskEngine

        return DaskEngine(jobs, scheduler)
    if scheduler is not None:
        raise InputError(f"the scheduler {scheduler} needs the engine dask: add --engine dask")
    return LocalEngine(jobs)


def engine_of(engine: Engine | str, jobs: int) -> Engine:
    """Take an engine or its name."""
    integer("jobs", jobs, low=1)
    return make_engine(engine, jobs) if isinstance(engine, str) else engine
