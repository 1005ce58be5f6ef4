"""How other processes get what is in memory: data through files, models by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscape.records import save_record
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.how import Steps, Work
from headscape.studies.work.units import run_units

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.sending import Named

__all__ = ["Handing", "models_for"]

AHEAD = 8
"""Units handed to other processes at a time, at least."""


def models_for(work: Work, models: Mapping[str, Model]) -> tuple[Mapping[str, Model | Named], Work]:
    """Models as units take them (`attention.sending.received`), and how to run those units.

    Other processes get names, and load the models themselves. They cannot load one that was made by hand: its units
    run in this process, one after the other.
    """
    if not work.engine.apart:
        return models, work
    from headscape.attention.sending import named

    names = {key: name for key, model in models.items() if (name := named(model)) is not None}
    if len(names) < len(models):
        work.say("a model without files cannot be loaded by other processes: its units run in this one")
        return models, replace(work, engine=LocalEngine())
    return names, work


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
