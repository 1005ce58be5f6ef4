"""Where a study is stored: a folder named by its key, next to the units that all studies of its kind share.

RUN/<study>/<key>/study.json         settings and inputs, written first
RUN/<study>/<key>/result.json        written last: a study without it is not finished
RUN/<study>/units/NAME-<key>.*       one unit of work; the key is a digest of everything that can change a byte of it
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headscape.errors import InputError
from headscape.fingerprints import digest, file_hash
from headscape.locks import locked
from headscape.records import FORMAT
from headscape.results import Result
from headscape.runs import Run
from headscape.storage import LOCK, read_json, write_json, writes_to
from headscape.studies.work.how import Work

__all__ = ["Folder", "Kept", "kept_studies", "newest_by_block", "study_folder", "working_folder"]

UNITS = "units"
KEY_LETTERS = 12
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Folder:
    """The folder of one study: `path` for its result, `units` for its units of work."""

    study: str
    key: str
    path: Path
    units: Path

    def unit(self, name: str, *facts: Any, ending: str = "safetensors") -> Path:
        """The file of a unit, named by a digest of `facts`: all settings and inputs that can change a byte of it."""
        return self.units / f"{name}-{digest(FORMAT, self.study, *facts)[:KEY_LETTERS]}.{ending}"

    def save(self, result: Result) -> None:
        """Write the result, which marks the study as finished."""
        result.save(self.path)


@contextmanager
def study_folder(
    run: Run | Path | None, study: str, settings: Mapping[str, Any], inputs: Mapping[str, Any], work: Work
) -> Iterator[Folder]:
    """The folder of a study, held by this process alone while it works; a temporary one for data in memory.

    Parameters
    ----------
    run
        The run, or another folder for a study that belongs to no single run; None for data in memory.
    settings
        What can change a byte of the result: not jobs, engine, threads, memory or scratch space.
    inputs
        Content hashes of what the study reads: batches by number, the model's fingerprint.

    Raises
    ------
    InputError
        When another process works on the same study; or with `work.resume` when there is none with these settings.
    """
    plain = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
    key = digest(FORMAT, study, plain)[:KEY_LETTERS]
    if run is None:
        with tempfile.TemporaryDirectory(prefix="headscape-") as scratch:
            yield Folder(study, key, Path(scratch) / key, Path(scratch) / UNITS)
        return
    home = run.path if isinstance(run, Run) else run
    place = home.resolve() / study
    folder = Folder(study, key, place / key, place / UNITS)
    writes_to(folder.units)
    if folder.units.exists() and not folder.units.is_dir():
        raise InputError(f"{folder.units} is a file where the units of the study are kept; move it away")
    if isinstance(run, Run) and run.gap:
        work.warn(run.gap)
    if work.resume and not folder.path.is_dir():
        _refuse_other(home, study, plain)
    with locked(place / f"{key}{LOCK}", f"the study {study} in {home}", work.say):
        if not (folder.path / "study.json").is_file():
            write_json(folder.path / "study.json", {"format": FORMAT, "study": study, **plain})
        yield folder


@contextmanager
def working_folder(
    run: Run | str | Path | None,
    study: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any],
    work: Work,
    make: Callable[[Path], Run] | None = None,
) -> Iterator[Folder]:
    """`study_folder`, with the engine ready for units that work there; then, not before, `make` makes a run from its path."""
    home = run.path if isinstance(run, Run) else None if run is None else Path(run)
    with work.started(home):
        place = make(home) if make is not None and home is not None and not isinstance(run, Run) else home
        with study_folder(run if isinstance(run, Run) else place, study, settings, inputs, work) as folder:
            yield folder


def _refuse_other(home: Path, study: str, plain: Mapping[str, Any]) -> None:
    """With --resume: raise if the study was begun with other settings or inputs, naming the first that differs."""
    for kept in kept_studies(home, study)[-1:]:
        for part in ("settings", "inputs"):
            before, now = kept.facts.get(part, {}), plain[part]
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) != now.get(name):
                    raise InputError(
                        f"the study {study} in {home} cannot be resumed: {name} was {before.get(name)!r} and is "
                        f"{now.get(name)!r}; without --resume it starts over, and the earlier one is kept"
                    )


@dataclass(frozen=True)
class Kept:
    """A study on disk: its kind, its folder, what it was made with, and when it was finished (None: not yet)."""

    study: str
    path: Path
    facts: Mapping[str, Any]
    finished: float | None

    @property
    def folder(self) -> Folder:
        """Where it is, with its units."""
        return Folder(self.study, self.path.name, self.path, self.path.parent / UNITS)

    def result(self, run: Run, kind: type[R]) -> R:
        """Its result; stored studies are read only here. An `InputError` as in `check`."""
        self.check(run)
        return kind.load(self.path)

    def check(self, run: Run) -> None:
        """Raise an `InputError` if a batch it read has changed, or is gone while others are left.

        New batches are no error, nor is a run without any batch: nothing can then be mistaken for something else.
        """
        said = self.facts.get("inputs")
        read = {n: h for n, h in said.items() if n.startswith("batch ")} if isinstance(said, dict) else {}
        there = {f"batch {number}": run.batch_path(number) for number in run.finished_batches if read}
        for name, content in read.items() if there else ():
            if name not in there or content != file_hash(there[name]):
                found = f"{name}, which has changed" if name in there else f"{name}, which is gone"
                raise InputError(
                    f"the study {self.study} in {run.path} was made from {found}; run `headscape {self.study} {run.path}` again"
                )

    @property
    def n_bytes(self) -> int:
        """Size on disk, without the units it shares."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def delete(self) -> None:
        """Remove it, and its units if no other study of its kind is left or running; not while a process writes it."""
        own = self.path.with_name(f"{self.path.name}{LOCK}")
        with locked(own, f"the study {self.study}/{self.path.name}", lambda _: None):
            shutil.rmtree(self.path)
            others = [*self.path.parent.glob("*/study.json"), *self.path.parent.glob(f"*{LOCK}")]
            if others == [own]:
                shutil.rmtree(self.path.parent / UNITS, ignore_errors=True)


def kept_studies(run: Run | Path, study: str) -> list[Kept]:
    """The studies of a kind in a run or folder, unfinished ones first, then by when they were finished."""
    found = []
    home = run.path if isinstance(run, Run) else run
    for file in sorted((home / study).glob("*/study.json")):
        result = file.parent / "result.json"
        finished = result.stat().st_mtime_ns / 1e9 if result.is_file() else None
        try:
            facts = read_json(file)
        except (OSError, ValueError):
            facts = {}
        facts = {k: v for k, v in facts.items() if isinstance(v, dict)} if isinstance(facts, dict) else {}
        found.append(Kept(study, file.parent, facts, finished))
    return sorted(found, key=lambda kept: kept.finished or 0)


def newest_by_block(run: Run, study: str) -> list[Kept]:
    """The newest finished study of a kind for each block of the network, in the order in which they were finished."""
    found = {k.facts.get("settings", {}).get("block"): k for k in kept_studies(run, study) if k.finished is not None}
    return sorted(found.values(), key=lambda kept: kept.finished or 0)
