"""Units of work: independent, idempotent, each kept in a file, so that a killed study goes on where it stopped."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import safe_open

from headscape.captures import Capture
from headscape.errors import HeadscapeError, InputError
from headscape.runs import Run
from headscape.storage import ArrayWriter, write_json
from headscape.studies.work.engines import Engine, Failure, cores

__all__ = [
    "Progress",
    "Say",
    "Steps",
    "block_of",
    "cores",
    "reachable",
    "read_arrays",
    "run_units",
    "source_of",
    "study_folder",
    "write_arrays",
]

LISTED = 5
"""Failed units, and causes, named in the error at the end; each has been said with its cause when it failed."""

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""
Say = Callable[[str], None]
"""Called with a line for the user."""


def block_of(captured: Capture, block: str | None) -> str:
    """The block asked for, or the only one there is."""
    if block is None and len(captured.blocks) > 1:
        raise InputError(f"this network has several blocks, name one: {', '.join(captured.blocks)}")
    if block is not None and block not in captured.blocks:
        raise InputError(f"no block '{block}' was captured; there are {', '.join(captured.blocks)}")
    return captured.blocks[0] if block is None else block


def source_of(captured: Capture) -> Capture | Path:
    """A capture as units take it: its directory, which every process can open, or itself where it has none."""
    return captured if captured.run is None else captured.run.path.resolve()


@contextmanager
def reachable(captured: Capture, engine: Engine, folder: Path) -> Iterator[Capture | Path]:
    """A capture in memory as units take it: itself, or for processes elsewhere a directory for as long as needed."""
    if captured.run is not None or not engine.apart:
        yield source_of(captured)
        return
    with tempfile.TemporaryDirectory(prefix=".shown-", dir=folder) as scratch:
        run = Run.create(Path(scratch) / "run")
        for i in range(len(captured)):
            batch = captured.batch(i)
            with ArrayWriter(run.batch_path(i), len(batch.names), {"headscape": json.dumps(batch.info)}) as writer:
                for name in batch.names:
                    writer.add(name, batch.read(name))
        yield run.path


@contextmanager
def study_folder(
    run: Run | None, study: str, facts: Mapping[str, Any], say: Say, resume: bool = False
) -> Iterator[Path]:
    """Where the units go: the run's folder, emptied when it was made with other settings, or a temporary one.

    With `resume` nothing is ever thrown away: other settings are an `InputError` that names the first of them.
    """
    if run is None:
        with tempfile.TemporaryDirectory(prefix="headscape-") as scratch:
            yield Path(scratch)
        return
    folder = run.path.resolve() / study
    file = folder / "settings.json"
    plain = json.loads(json.dumps(facts))
    different = _different(file, plain) if folder.exists() else None
    if different is not None and resume:
        raise InputError(
            f"the study {study} in {run.path} cannot be resumed: {different}; without --resume it starts anew"
        )
    if different is not None:
        say(f"the study {study} was made with other settings before: starting anew")
        shutil.rmtree(folder)
    if not file.is_file():
        write_json(file, plain)
    yield folder


def _different(file: Path, plain: Mapping[str, Any]) -> str | None:
    """What differs from the settings a study was made with, None if nothing does."""
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = [key for key in sorted(before.keys() | plain.keys()) if before.get(key) != plain.get(key)]
    except (OSError, ValueError, AttributeError):
        return "its settings cannot be read"
    if not changed:
        return None
    return f"{changed[0]} was {before.get(changed[0])!r} and is {plain.get(changed[0])!r}"


class Steps:
    """Counts units for the progress bar."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        progress(0, total)

    def one(self) -> None:
        """One more is done."""
        self._done += 1
        self._progress(self._done, self._total)


def run_units(
    function: Callable[..., object],
    units: Mapping[str, Sequence[Any]],
    engine: Engine,
    steps: Steps,
    say: Say = lambda _: None,
) -> None:
    """Call the function with each unit's arguments; it writes its own file, or finds it there, and returns nothing.

    Parameters
    ----------
    function
        Of a module, where the engine works apart.
    units
        Arguments by the name of the unit, as it is shown.
    engine
        A started engine.

    Raises
    ------
    InputError
        When all is tried, if units failed and all by mistakes in what was asked.
    HeadscapeError
        If units failed for other reasons. The others are done and kept.
    """
    names = list(units)
    failed: dict[int, Failure] = {}
    for i, failure in engine.run(function, list(units.values())):
        if failure is not None:
            failed[i] = failure
            say(f"failed: {names[i]}: {failure.cause}")
        steps.one()
    if failed:
        raise _failed(names, dict(sorted(failed.items())))


def _failed(names: Sequence[str], failed: Mapping[int, Failure]) -> HeadscapeError:
    """One line for all failed units."""
    causes = {failure.cause for failure in failed.values()}
    mistake = all(failure.mistake for failure in failed.values())
    if mistake and len(causes) == 1 and len(failed) == len(names):
        return InputError(causes.pop())  # it is about all of them
    alike: dict[str, list[str]] = {}
    for i, failure in failed.items():
        alike.setdefault(failure.cause, []).append(names[i])
    listed = [f"{_some(units, LISTED)} ({cause})" for cause, units in alike.items()]
    line = (
        f"{len(failed)} of {len(names)} units failed: {_some(listed, LISTED)}; the others are kept: the same command "
        "with --resume redoes only what is missing"
    )
    return InputError(line) if mistake else HeadscapeError(line)


def _some(words: Sequence[str], n: int) -> str:
    """The first n of some words, and how many more there are."""
    return ", ".join(words[:n]) + (f" and {len(words) - n} more" if len(words) > n else "")


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays as one safetensors file, whole or not at all."""
    with ArrayWriter(path, len(arrays), metadata or {}) as writer:
        for name in sorted(arrays):
            writer.add(name, arrays[name])


def read_arrays(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The arrays of a unit whose names are wanted, and its metadata."""
    with safe_open(path, framework="np") as file:
        names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118 - not a dict
        return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
