"""A model for other processes: they load it themselves, by its name, and check that it is the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from headscape.attention.models import Model, load_model
from headscape.errors import InputError

__all__ = ["Named", "named", "received", "torch_threads"]


@dataclass(frozen=True)
class Named:
    """What another process needs to load the same model; `seed` for one with random weights."""

    source: str
    device: str
    dtype: str
    seed: int | None
    fingerprint: str


def named(model: Model) -> Named | None:
    """The name of a model, None for one that was made by hand and has no files."""
    if not model.weights:
        return None
    source = str(Path(model.source).resolve()) if Path(model.source).exists() else model.source
    drawn = re.search(r"-random-(\d+)$", model.fingerprint)
    return Named(source, model.device, model.dtype, int(drawn[1]) if drawn else None, model.fingerprint)


@lru_cache(maxsize=1)  # a worker has many units of one model, and seldom room for two
def _loaded(name: Named) -> Model:
    model = load_model(name.source, device=name.device, dtype=name.dtype, random_init=name.seed)
    if model.fingerprint != name.fingerprint:
        raise InputError(f"{name.source} has other weights here than where the study was started; use one job")
    return model


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Let torch use n threads for the time of a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def received(model: Model | Named, threads: int) -> Iterator[Model]:
    """The model that a unit was given, run with so many threads."""
    with torch_threads(threads):
        yield _loaded(model) if isinstance(model, Named) else model
