"""Units of work: independent, idempotent, each kept in a file, so that a killed study resumes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscape.captures import Capture
from headscape.errors import HeadscapeError, InputError
from headscape.runs import Run
from headscape.studies.work.engines import Engine, Failure
from headscape.studies.work.how import Steps, Work

__all__ = ["reachable", "run_units"]

LISTED = 5
"""Failed units, and causes, named in the error at the end; each was reported with its cause when it failed."""


@contextmanager
def reachable(captured: Capture, engine: Engine, folder: Path) -> Iterator[Capture | Path]:
    """A capture as units take it: the directory of a run, itself in memory, or there a directory for other processes."""
    if captured.run is not None:
        yield captured.run.path.resolve()
        return
    if not engine.apart:
        yield captured
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".shown-", dir=folder) as scratch:
        run = Run.create(Path(scratch) / "run")
        for i in range(len(captured)):
            captured.batch(i).write(run.batch_path(i))
        yield run.path


def run_units(
    function: Callable[..., object],
    units: Mapping[str, tuple[Path, *tuple[Any, ...]]],
    work: Work,
    steps: Steps | None = None,
    again: bool = False,
) -> None:
    """Call the function with the arguments of each unit whose file is not there; it writes that file, whole.

    Parameters
    ----------
    function
        Takes the path of its file and the other arguments; of a module, where the engine works in other processes.
    units
        The path of a unit's file and its other arguments, by the name of the unit as it is shown.
    steps
        Where units are counted; a stage of its own without.
    again
        Call it also where the file is there: for units that see for themselves what is missing.

    Raises
    ------
    InputError
        When all is tried, if units failed and all by mistakes in what was asked.
    HeadscapeError
        If units failed for other reasons. The others are done and kept.
    """
    steps = steps or work.stage("working", len(units))
    missing = {name: unit for name, unit in units.items() if again or not unit[0].exists()}
    for _ in range(len(units) - len(missing)):
        steps.one()
    names = list(missing)
    failed: dict[int, Failure] = {}
    for i, failure in work.engine.run(function, list(missing.values())):
        if failure is not None:
            failed[i] = failure
            work.say(f"failed: {names[i]}: {failure.cause}")
        steps.one()
    if failed:
        raise _failed(list(units), {name: failed[i] for i, name in enumerate(names) if i in failed})


def _failed(names: Sequence[str], failed: Mapping[str, Failure]) -> HeadscapeError:
    """One line for all failed units."""
    causes = {failure.cause for failure in failed.values()}
    mistake = all(failure.mistake for failure in failed.values())
    if mistake and len(causes) == 1 and len(failed) == len(names):
        return InputError(causes.pop())  # it is about all of them
    alike: dict[str, list[str]] = {}
    for name, failure in failed.items():
        alike.setdefault(failure.cause, []).append(name)
    listed = [f"{_some(units, LISTED)} ({cause})" for cause, units in alike.items()]
    line = (
        f"{len(failed)} of {len(names)} units failed: {_some(listed, LISTED)}; the others are kept: the same command "
        "redoes only what is missing"
    )
    return InputError(line) if mistake else HeadscapeError(line)


def _some(words: Sequence[str], n: int) -> str:
    """The first n of some words, and how many more there are."""
    return ", ".join(words[:n]) + (f" and {len(words) - n} more" if len(words) > n else "")
