"""Evaluations kept as they are made: one line of JSON each, so that a killed study loses at most the last one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headscape.attention.loss import Loss
from headscape.tensor import HeadId

__all__ = ["Evaluations"]


class Evaluations:
    """Losses by a name of the inputs, a set of heads and a compensation; measured once, then read from the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, Loss] = {}
        self.made = 0
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
        except ValueError:  # the line that was being written when the study was killed
            return
        correct = None if found["correct"] is None else np.array(found["correct"], dtype=bool)
        self._known[found["key"]] = Loss(np.array(found["values"]), found["kind"], correct)

    @staticmethod
    def key(inputs: str, heads: Iterable[HeadId], compensation: str) -> str:
        """The name of an evaluation: a digest of what decides it."""
        named: Sequence[str] = sorted(str(head) for head in heads)
        return hashlib.sha256(json.dumps([inputs, named, compensation if named else "none"]).encode()).hexdigest()[:24]

    def get(self, inputs: str, heads: Iterable[HeadId], compensation: str, measure: Callable[[], Loss]) -> Loss:
        """The loss, measured by `measure` unless it is known."""
        key = self.key(inputs, heads, compensation)
        if key not in self._known:
            found = measure()
            line: dict[str, Any] = {"key": key, "kind": found.kind, "values": found.values.tolist()}
            line["correct"] = None if found.correct is None else found.correct.tolist()
            text = json.dumps(line) + "\n"
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("" if self._whole() else "\n") + text)
            self._known[key] = found
            self.made += 1
        return self._known[key]

    def _whole(self) -> bool:
        """Whether the file ends with a whole line."""
        if not self.path.is_file() or not self.path.stat().st_size:
            return True
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
