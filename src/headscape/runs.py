"""The run directory: what is on disk, where it came from, and what is finished.

RUN/run.json                         config, seed, versions, model, inputs, parity
RUN/attention/batch-0007.safetensors one captured batch; its header carries tokens and masks
RUN/<study>/...                      the results of a study
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from headscape.errors import InputError
from headscape.locks import locked
from headscape.storage import LOCK, PARTIAL, read_json, write_json
from headscape.version import __version__

__all__ = ["FORMAT", "Run", "find_runs", "human_bytes", "human_seconds", "without_places"]

_MAY_DIFFER = {
    ("model", "location"),
    ("model", "source"),
    ("model", "licence"),
    ("model", "notes"),
    ("model", "quantized"),
}
FORMAT = 1  # raised when an older headscape could misread a directory
_SECTIONS = {
    "created": str,
    "config": dict,
    "model": dict,
    "inputs": dict,
    "parity": dict,
    "versions": dict,
    "finished": dict,
}  # what run.json holds; only the first must be there
_REPORTED = ("numpy", "scipy", "numba", "torch", "transformers", "safetensors")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _REPORTED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _ours(path: Path) -> bool:
    """Whether a stopped command may have left this file in a directory it had begun."""
    return path.name.endswith((PARTIAL, LOCK)) or (
        path.name == "attention" and not any(path.glob("batch-*.safetensors"))
    )


def human_bytes(n: float) -> str:
    """Bytes for people.

    >>> human_bytes(1536), human_bytes(3 * 10**9)
    ('1.5 kB', '3.0 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Seconds for people.

    >>> human_seconds(0.42), human_seconds(75), human_seconds(9000)
    ('0.42 s', '75 s', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def without_places(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that can be shared: files and folders of this machine by their names alone.

    >>> without_places({"source": "/home/me/models/gpt", "seed": 0})
    {'source': 'gpt', 'seed': 0}
    """
    return {k: Path(v).name if isinstance(v, str) and Path(v).is_absolute() else v for k, v in facts.items()}


@dataclass
class Run:
    """One run directory. `Run.create` starts or resumes one, `Run.open` reads one.

    >>> opened = hs.Run.open(run)
    >>> opened.meta["model"]["source"], opened.meta["config"]["tokens"]
    ('tiny', 16)
    """

    path: Path
    meta: dict[str, Any] = field(repr=False)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open an existing run; an `InputError` says when the directory is not one, or has another format."""
        if not isinstance(path, (str, Path)):
            raise InputError(
                f"give a run, its path or a capture, not a {type(path).__name__}; attention in memory becomes a capture by "
                "hs.from_attentions"
            )
        path = Path(path)
        if not path.exists():
            raise InputError(f"no run at {path}; make one with `headscape capture` or list them with `headscape runs`")
        file = path / "run.json"
        if not file.is_file():
            raise InputError(f"{path} is not a run directory: it has no run.json; `headscape capture` makes one")
        try:
            meta = read_json(file)
            found = meta["format"]
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(f"{file} is damaged: it is not the JSON headscape writes; capture again") from None
        if found != FORMAT:
            raise InputError(
                f"{path} has run format {found}, this headscape reads {FORMAT}; it was written by headscape "
                f"{meta.get('headscape', 'of unknown version')}: use that version or capture again"
            )
        for name, kind in _SECTIONS.items():
            if not isinstance(meta.get(name, {}), kind):
                raise InputError(f"{file} is damaged: {name!r} is missing or not a {kind.__name__}; capture again")
        return cls(path, meta)

    @classmethod
    def create(cls, path: str | Path, **sections: Mapping[str, Any]) -> Run:
        """Start a run, or resume the one at `path` when its sections agree with those given.

        A difference is an `InputError` that names the first setting that differs: a run never mixes two settings. More
        batches of the same inputs extend a run; where its model lies does not count, its fingerprint does.
        """
        path = Path(path)
        plain = {name: json.loads(json.dumps(section)) for name, section in sections.items()}
        if (path / "run.json").exists():
            run = cls.open(path)
            for name, section in plain.items():
                run._check_same(name, section)
            if run.meta.get("config", {}).get("batches", 0) < plain.get("config", {}).get("batches", 0):
                run.update(config=plain["config"])
            return run
        if path.exists() and (not path.is_dir() or any(not _ours(p) for p in path.iterdir())):
            raise InputError(f"{path} exists and is not a run directory; name a new or an empty one")
        meta = {
            "format": FORMAT,
            "headscape": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": _versions(),
            **plain,
        }
        run = cls(path, meta)
        run.save()
        return run

    def _check_same(self, name: str, given: dict[str, Any]) -> None:
        ours = self.meta.get(name, {})
        for key in sorted(given.keys() | ours.keys()):
            mine, asked = ours.get(key), given.get(key)
            if mine == asked or (name, key) in _MAY_DIFFER:
                continue
            if (name, key) == ("config", "batches") and isinstance(mine, int) and isinstance(asked, int):
                if mine < asked:
                    continue
                raise InputError(
                    f"{self.path} has {mine} batches, {asked} were requested; a run can grow but not shrink: use it as "
                    "it is, or choose another directory"
                )
            raise InputError(
                f"{self.path} was made with {name} {key} = {mine!r}, not {asked!r}; choose another directory, or delete "
                "this one with `headscape runs delete`"
            )

    def discard(self) -> None:
        """Remove a run that holds no batch and no study, leaving anything that headscape did not write."""
        if self.finished_batches or any(p.is_dir() and p.name != "attention" for p in self.path.iterdir()):
            return
        for file in (self.path / "attention").glob("*"):
            if file.name.endswith(PARTIAL):
                file.unlink(missing_ok=True)
        (self.path / "run.json").unlink(missing_ok=True)
        for folder in (self.path / "attention", self.path):
            with suppress(OSError):  # not empty, or never made
                folder.rmdir()

    def save(self) -> None:
        """Write run.json atomically."""
        write_json(self.path / "run.json", self.meta)

    def update(self, **sections: Any) -> None:
        """Set sections of run.json and save it when that changes something."""
        plain = json.loads(json.dumps(sections))
        if any(self.meta.get(name) != value for name, value in plain.items()):
            self.meta |= plain
            self.save()

    @property
    def model_source(self) -> str | None:
        """Where the run's model is loaded from: an absolute path, or a name; None for arrays that were imported."""
        model = self.meta.get("model", {})
        source = model.get("location") or model.get("source")
        return None if source is None else str(source)

    @property
    def shown(self) -> dict[str, Any]:
        """The content of run.json without paths of this machine: for pages and results that are shared."""
        model = {name: value for name, value in self.meta.get("model", {}).items() if name != "location"}
        if "source" in model:
            model["source"] = Path(str(model["source"])).name if self.meta["model"].get("location") else model["source"]
        return {**self.meta, **({"model": model} if "model" in self.meta else {})}

    def batch_path(self, i: int) -> Path:
        """Where batch i is or will be."""
        return self.path / "attention" / f"batch-{i:04d}.safetensors"

    @property
    def finished_batches(self) -> list[int]:
        """Numbers of the batches that are complete on disk."""
        names = [p.stem.removeprefix("batch-") for p in (self.path / "attention").glob("batch-*.safetensors")]
        return sorted(int(name) for name in names if name.isdigit())

    @property
    def missing_batches(self) -> list[int]:
        """Numbers below the last finished batch that are missing: files that were lost or removed."""
        finished = self.finished_batches
        return sorted(set(range(finished[-1] + 1)) - set(finished)) if finished else []

    @property
    def gap(self) -> str:
        """A sentence about batches that are missing below the last one; empty if there are none."""
        missing = ", ".join(map(str, self.missing_batches))
        if not missing:
            return ""
        return (
            f"{self.path} has a gap: batch {missing} is missing; what is there is used under its own number, and the command "
            "that made the run makes the rest again"
        )

    @property
    def n_finished(self) -> int:
        """How many batches are complete on disk."""
        return len(self.finished_batches)

    @property
    def studies(self) -> list[str]:
        """Names of the studies that have left results here."""
        return sorted(p.name for p in self.path.iterdir() if p.is_dir() and p.name != "attention")

    @property
    def n_bytes(self) -> int:
        """Size on disk."""
        return sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file())

    def delete(self) -> None:
        """Remove the directory, if `open` recognises it as a run; `InputError` while a process writes in it."""
        with ExitStack() as held:
            for lock in {self.path / f"capture{LOCK}", *self.path.rglob(f"*{LOCK}")}:
                held.enter_context(locked(lock, str(self.path), lambda _: None))
            shutil.rmtree(self.path)


def find_runs(folder: str | Path) -> tuple[list[Run], dict[Path, str]]:
    """All runs in a folder (one level deep) or the folder itself, newest first; and why others cannot be read."""
    folder = Path(folder)
    runs: list[Run] = []
    unreadable: dict[Path, str] = {}
    for path in [folder, *sorted(p for p in folder.iterdir() if p.is_dir())] if folder.is_dir() else []:
        if (path / "run.json").is_file():
            try:
                runs.append(Run.open(path))
            except InputError as error:
                unreadable[path] = str(error)
    return sorted(runs, key=lambda run: str(run.meta["created"]), reverse=True), unreadable
