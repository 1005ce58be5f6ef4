"""Make a series of the checkpoints in a folder: capture each on the same inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headscape.attention.capture import capture
from headscape.attention.inputs import sample_images, sample_text
from headscape.attention.loading import has_tokenizer, read_config, read_tokenizer, takes_images
from headscape.attention.samples import is_text
from headscape.attention.threads import torch_threads
from headscape.errors import InputError
from headscape.studies.work.how import Work
from headscape.studies.work.models import Loader
from headscape.studies.work.units import run_units

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
    tokenizer: Any = None,
    **options: Any,
) -> Path:
    """Capture every checkpoint of a folder on the same inputs into OUT/step-00000500 and so on; returns OUT.

    Runs that are there already are kept, so a series grows with its training. Without inputs, the sample text or images.
    A checkpoint without a tokenizer takes the one given, else that of the other checkpoints or of the folder itself.
    `options` are those of `hs.capture`.
    """
    found = find_checkpoints(folder)
    if len(found) < 2:
        raise InputError(
            f"{folder} holds {len(found)} checkpoints; a series takes two or more folders with a config.json whose names end in "
            "their step (checkpoint-500)"
        )
    loader, work, home = replace(loader or Loader(), say=Loader.say), work or Work(), Path(out)
    if tokenizer is None and (inputs is None or is_text(inputs)):
        tokenizer = _tokenizer(Path(folder), list(found.values()))
    units = {}
    for step, path in found.items():
        place = home / f"step-{step:08d}"
        units[path.name] = (place.resolve(), path.resolve(), inputs, loader, tokenizer, work.threads, options)
    with work.started(home):
        run_units(_capture, units, work, work.stage("capturing", len(units)), again=True)
    return home


def _tokenizer(folder: Path, found: Sequence[Path]) -> Any:
    """What checkpoints that were saved without a tokenizer read with; None where all have their own, or see images."""
    if all(map(has_tokenizer, found)) or takes_images(read_config(found[-1])):
        return None
    for place in (*reversed(found), folder):
        if has_tokenizer(place):
            return read_tokenizer(place)
    raise InputError(
        f"no tokenizer in {folder} or its checkpoints, so they cannot read text: give one, --tokenizer MODEL (a folder or a "
        "bundled name)"
    )


def _capture(
    out: Path, path: Path, inputs: Any, loader: Loader, tokenizer: Any, threads: int, options: Mapping[str, Any]
) -> None:
    """Capture one checkpoint, or what is missing of it."""
    with torch_threads(threads):
        model = loader.load(str(path))
        model.tokenizer = model.tokenizer or tokenizer
        if inputs is None:
            inputs = sample_text() if model.images is None else sample_images()
        capture(model, inputs, out=out, **options)
