"""Make a series of the checkpoints in a folder: capture each on the same inputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headscape.attention.capture import capture
from headscape.errors import InputError
from headscape.studies.work.how import Work
from headscape.studies.work.models import Loader

__all__ = ["capture_checkpoints", "find_checkpoints"]


def find_checkpoints(folder: str | Path) -> dict[int, Path]:
    """The saved models in a folder by step, the number at the end of their names (checkpoint-500)."""
    found = {}
    for file in Path(folder).glob("*/config.json"):
        step = re.search(r"(\d+)$", file.parent.name)
        if step:
            found[int(step.group(1))] = file.parent
    return dict(sorted(found.items()))


def capture_checkpoints(
    folder: str | Path,
    inputs: Any,
    out: str | Path,
    loader: Loader | None = None,
    work: Work | None = None,
    **options: Any,
) -> Path:
    """Capture every checkpoint of a folder on the same inputs into OUT/step-00000500 and so on; returns OUT.

    Runs that are there already are kept, so a series grows with its training. `options` are those of `hs.capture`.
    """
    found = find_checkpoints(folder)
    if len(found) < 2:
        raise InputError(
            f"{folder} holds {len(found)} checkpoints; a series takes two or more folders with a config.json whose names end in "
            "their step (checkpoint-500)"
        )
    loader, work = loader or Loader(), work or Work()
    steps = work.stage("capturing", len(found))
    for step, path in found.items():
        capture(loader.load(str(path)), inputs, out=Path(out) / f"step-{step:08d}", **options)
        steps.one()
    return Path(out)
