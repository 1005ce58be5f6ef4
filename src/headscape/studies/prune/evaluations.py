"""Evaluations kept as they are made: one line of JSON each, so that a killed study loses at most the last one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headscape.attention.loss import Loss
from headscape.storage import replacing
from headscape.tensor import HeadId

__all__ = ["Evaluations"]


class Evaluations:
    """Losses by a name of the inputs, a set of heads and a compensation; measured once, then read from the file.

    Other processes write theirs into files of their own, which are gathered here. None keeps nothing on disk.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Loss] = {}
        self.made = 0
        if path is not None:
            if path.is_file():
                for line in path.read_text(encoding="utf-8").splitlines():
                    self._read(line)
            self.gather(sorted(self._folder(path).glob("*.json")))  # of a study that was killed

    def _read(self, line: str) -> None:
        try:
            key, found = self._parsed(line)
        except ValueError:  # the line that was being written when the study was killed
            return
        self._known[key] = found

    @staticmethod
    def key(inputs: str, heads: Iterable[HeadId], compensation: str) -> str:
        """The name of an evaluation: a digest of what decides it."""
        named: Sequence[str] = sorted(str(head) for head in heads)
        return hashlib.sha256(json.dumps([inputs, named, compensation if named else "none"]).encode()).hexdigest()[:24]

    def knows(self, key: str) -> bool:
        """Whether an evaluation is there."""
        return key in self._known

    def get(self, inputs: str, heads: Iterable[HeadId], compensation: str, measure: Callable[[], Loss]) -> Loss:
        """The loss, measured by `measure` unless it is known."""
        key = self.key(inputs, heads, compensation)
        if key not in self._known:
            self._add(key, measure())
        return self._known[key]

    def _add(self, key: str, found: Loss) -> None:
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("" if self._whole(self.path) else "\n") + self._line(key, found))
        self._known[key] = found
        self.made += 1

    @staticmethod
    def _line(key: str, found: Loss) -> str:
        line: dict[str, Any] = {"key": key, "kind": found.kind, "values": found.values.tolist()}
        line["correct"] = None if found.correct is None else found.correct.tolist()
        return json.dumps(line) + "\n"

    # --- of other processes ------------------------------------------------------------------------------------------

    @staticmethod
    def _folder(path: Path) -> Path:
        return path.with_suffix("")

    def place(self, key: str) -> Path:
        """Where another process is to write an evaluation."""
        assert self.path is not None
        return self._folder(self.path) / f"{key}.json"

    @classmethod
    def write(cls, path: Path, key: str, found: Loss) -> None:
        """Write an evaluation on its own, whole or not at all."""
        with replacing(path) as partial:
            partial.write_text(cls._line(key, found), encoding="utf-8")

    def gather(self, files: Iterable[Path]) -> None:
        """Take over what other processes wrote, in this order; what they have not written is left out."""
        for file in files:
            if file.is_file():
                key, found = self._parsed(file.read_text(encoding="utf-8"))
                if key not in self._known:
                    self._add(key, found)
                file.unlink()
        if self.path is not None and self._folder(self.path).is_dir():
            shutil.rmtree(self._folder(self.path))

    @staticmethod
    def _parsed(line: str) -> tuple[str, Loss]:
        found = json.loads(line)
        correct = None if found["correct"] is None else np.array(found["correct"], dtype=bool)
        return str(found["key"]), Loss(np.array(found["values"]), found["kind"], correct)

    @staticmethod
    def _whole(path: Path) -> bool:
        """Whether the file ends with a whole line."""
        if not path.is_file() or not path.stat().st_size:
            return True
        with path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
