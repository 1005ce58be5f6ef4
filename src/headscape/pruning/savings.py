"""What an exported network saves: bytes of its weights and of its cache, seconds of a pass and of generation."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from headscape.attention import bundled
from headscape.attention.loading import quiet
from headscape.attention.models import Model
from headscape.attention.projections import layout_of, output_projections
from headscape.attention.sites import example_input, run
from headscape.errors import InputError

__all__ = ["Change", "gguf_sizes", "kv_bytes", "sizes", "source_bytes", "times"]

TIMED_TOKENS = 256
NEW_TOKENS = 16
BRIEF, MOST = 0.5, 25
"""Passes that take less than that many seconds together are repeated, at most so often: the clock is too coarse for one."""


class Change(NamedTuple):
    """A number of the intact network and of the exported one.

    >>> Change(before=200, after=150).change
    -0.25
    """

    before: float
    after: float

    @property
    def change(self) -> float:
        """Relative to the intact network."""
        return self.after / self.before - 1


def sizes(folder: Path, *modules: nn.Module) -> Change:
    """Bytes of the weight files, and what they would be for the intact network written in the same way."""
    written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    intact, copy = (sum({p.data_ptr(): p.nbytes for p in m.state_dict().values()}.values()) for m in modules)
    return Change(written + intact - copy, written)


def gguf_sizes(file: Path, parameters: Change, numbers: str) -> Change:
    """Bytes of a GGUF file, and of the intact network in the same number type."""
    a_weight = {"f16": 2, "q8_0": 34 / 32, "q4_1": 20 / 32}[numbers]
    written = file.stat().st_size
    return Change(written + (parameters.before - parameters.after) * a_weight, written)


def source_bytes(model: Model) -> int:
    """Bytes of the files a model came from: its GGUF file, or its weights."""
    if model.source in bundled.BUNDLED:
        folder = bundled.weights_folder(bundled.BUNDLED[model.source])
        return sum(file.stat().st_size for ending in ("gguf", "safetensors") for file in folder.glob(f"*.{ending}"))
    source = Path(model.source)
    files = [source] if source.suffix == ".gguf" and source.is_file() else model.weights
    return sum(file.stat().st_size for file in files)


def kv_bytes(model: Model, written: Model) -> Change | None:
    """Bytes of the keys and values of one token, in float16; None for a network without a cache."""
    if model.task not in ("causal-lm", "seq2seq-lm"):
        return None
    try:
        before, after = (_kv_width(one) for one in (model, written))
    except InputError:
        return None
    return Change(4 * before, 4 * after)


def _kv_width(model: Model) -> int:
    part, outputs = model.module.get_submodule, output_projections(model)
    layouts = [layout_of(part(s.name), part(outputs[s.name]), s.n_heads) for s in model.sites]
    return sum(layout.n_kv_heads * layout.dim for layout in layouts)


def times(model: Model, written: Model, repeats: int) -> tuple[Change, Change | None]:
    """Median seconds of a forward pass and of generation, both models in turns.

    On a CPU these are its seconds over all threads, which hardly feel other work on the machine.
    """
    tokens = min(TIMED_TOKENS, model.max_tokens or TIMED_TOKENS)
    batch = example_input(model, tokens)
    forward = _in_turns(lambda m: run(m, batch), (model, written), repeats)
    if model.task != "causal-lm":
        return forward, None
    prompt = batch["input_ids"][:, : max(1, tokens - NEW_TOKENS)].to(model.device)
    options = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}

    def generate(one: Model) -> None:
        network: Any = one.module
        with quiet():
            network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

    return forward, _in_turns(generate, (model, written), repeats)


def _in_turns(call: Callable[[Model], Any], models: tuple[Model, Model], repeats: int) -> Change:
    seconds: list[list[float]] = [[] for _ in models]
    clock = time.process_time if models[0].device == "cpu" else time.perf_counter
    with torch.no_grad():
        while len(seconds[0]) <= repeats or (sum(map(sum, seconds)) < BRIEF and len(seconds[0]) <= MOST):
            for model, taken in zip(models, seconds, strict=True):
                start = clock()
                call(model)
                taken.append(clock() - start)
    return Change(*(median(taken[1:]) for taken in seconds))  # the first time does not count
