"""Models in other processes: they load a model themselves, by its name, and check that it is the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headscape.attention.models import Model, load_model
from headscape.attention.threads import torch_threads
from headscape.errors import InputError

__all__ = ["Named", "named", "received"]


@dataclass(frozen=True)
class Named:
    """What another process needs to load the same model; `seed` for one with random weights."""

    source: str
    device: str
    dtype: str
    device_map: str | tuple[tuple[str, str | int], ...] | None
    seed: int | None
    fingerprint: str


def named(model: Model) -> Named | None:
    """The name of a model, None for one that was made by hand and has no files."""
    if not model.weights:
        return None
    source = str(Path(model.source).resolve()) if Path(model.source).exists() else model.source
    drawn = re.search(r"-random-(\d+)$", model.fingerprint)
    spread = model.device_map if isinstance(model.device_map, str | None) else tuple(model.device_map.items())
    seed = int(drawn[1]) if drawn else None
    return Named(source, model.device, model.dtype, spread, seed, model.fingerprint)


@lru_cache(maxsize=1)  # a worker has many units of one model, and seldom room for two
def _loaded(name: Named) -> Model:
    spread = dict(name.device_map) if isinstance(name.device_map, tuple) else name.device_map
    model = load_model(name.source, device=name.device, dtype=name.dtype, device_map=spread, random_init=name.seed)
    if model.fingerprint != name.fingerprint:
        raise InputError(f"{name.source} has other weights here than where the study was started; use one job")
    return model


@contextmanager
def received(model: Model | Named, threads: int) -> Iterator[Model]:
    """The model that a unit was given, run with so many threads."""
    with torch_threads(threads):
        yield _loaded(model) if isinstance(model, Named) else model
