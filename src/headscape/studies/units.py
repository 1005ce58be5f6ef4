"""Units of work: independent, idempotent, each kept in a file, so that a killed study goes on where it stopped."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
from joblib import Parallel, delayed
from safetensors import safe_open

from headscape.captures import Capture
from headscape.errors import InputError
from headscape.runs import Run
from headscape.storage import ArrayWriter, write_json

__all__ = ["Progress", "Say", "Steps", "block_of", "cores", "read_arrays", "run_units", "study_folder", "write_arrays"]

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""
Say = Callable[[str], None]
"""Called with a line for the user."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def block_of(captured: Capture, block: str | None) -> str:
    """The block asked for, or the only one there is."""
    if block is None and len(captured.blocks) > 1:
        raise InputError(f"this network has several blocks, name one: {', '.join(captured.blocks)}")
    if block is not None and block not in captured.blocks:
        raise InputError(f"no block '{block}' was captured; there are {', '.join(captured.blocks)}")
    return captured.blocks[0] if block is None else block


@contextmanager
def study_folder(run: Run | None, study: str, facts: Mapping[str, Any], say: Say) -> Iterator[Path]:
    """Where the units go: the run's folder, emptied when it was made with other settings, or a temporary one."""
    if run is None:
        with tempfile.TemporaryDirectory(prefix="headscape-") as scratch:
            yield Path(scratch)
        return
    folder = run.path / study
    file = folder / "settings.json"
    plain = json.loads(json.dumps(facts))
    if folder.exists() and not (file.is_file() and _same(file, plain)):
        say(f"the study {study} was made with other settings before: starting anew")
        shutil.rmtree(folder)
    if not file.is_file():
        write_json(file, plain)
    yield folder


def _same(file: Path, plain: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(file.read_text()) == plain)
    except ValueError:
        return False


class Steps:
    """Counts units for the progress bar."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        progress(0, total)

    def one(self) -> None:
        """One more is done."""
        self._done += 1
        self._progress(self._done, self._total)


def run_units(function: Callable[..., object], units: Sequence[tuple[Any, ...]], jobs: int, steps: Steps) -> None:
    """Call the function with each unit's arguments, `jobs` at a time; it writes its own file and returns nothing."""
    if jobs == 1:
        for unit in units:
            function(*unit)
            steps.one()
        return
    for _ in Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(function)(*unit) for unit in units):
        steps.one()


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
