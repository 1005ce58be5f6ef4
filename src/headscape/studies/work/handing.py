"""Units whose data are in memory: run a few at a time, and handed to other processes through files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscape.records import save_record
from headscape.studies.work.how import Steps, Work
from headscape.studies.work.units import run_units

__all__ = ["Handing"]

AHEAD = 8
"""Units handed to other processes at a time, at least."""


@dataclass
class Handing:
    """Runs `function(path, data, *more)` for data that come one after the other; used as a context.

    `data` is a dataclass; in another process the function gets the folder that `save_record` wrote it to, below
    `scratch`, instead.
    """

    function: Callable[..., object]
    scratch: Path
    work: Work
    steps: Steps
    more: tuple[Any, ...] = ()
    waiting: dict[str, tuple[Path, Any]] = field(default_factory=dict)

    def __enter__(self) -> Handing:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            self.run()

    def add(self, name: str, path: Path, data: Any) -> None:
        """One more unit, by the name it is shown under and its file; when there are enough, all are run."""
        self.waiting[name] = (path, data)
        engine = self.work.engine
        if len(self.waiting) >= (max(AHEAD, engine.jobs) if engine.apart else 1):
            self.run()

    def run(self) -> None:
        """Run what is waiting."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".handed-", dir=self.scratch) as folder:
            for number, (name, (path, data)) in enumerate(self.waiting.items()):
                if self.work.engine.apart and not path.exists():
                    save_record(data, Path(folder) / f"{number}")
                    self.waiting[name] = (path, Path(folder) / f"{number}")
            run_units(
                self.function, {name: (*unit, *self.more) for name, unit in self.waiting.items()}, self.work, self.steps
            )
        self.waiting.clear()
