"""Units of the Gaussian study that run the model: a version of it by depth, and its embeddings and next tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headscape.attention.depth import by_depth, in_double, precision
from headscape.attention.models import Model
from headscape.attention.replacing import Intervention, effect_unit
from headscape.attention.samples import Sample, replayed
from headscape.attention.sending import Named, received
from headscape.attention.watching import embedded, headed
from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.statistics.embeddings import TOP, describe_embeddings, mixtures, neighbour_rows, one_gram
from headscape.statistics.left_out import folds
from headscape.statistics.mixture import position_divergence, position_share, token_spread
from headscape.storage import read_arrays, write_arrays

__all__ = [
    "VERSIONS",
    "Task",
    "Version",
    "ids_of",
    "inputs_of",
    "measure_temperature",
    "measure_tokens",
    "measure_version",
]

Array = npt.NDArray[Any]
FEWER = 8
"""Inputs used where every version of the model runs on them, or where tokens are counted by position."""
VERSIONS: dict[str, dict[str, Any]] = {
    "trained": {},
    "alpha = 2": {"alpha": 2.0},
    "alpha = 1/2": {"alpha": 0.5},
    "no skip": {"skip": False},
    "skip 1/2": {"skip": 0.5},
    "skip 9/10": {"skip": 0.9},
    "no skip, alpha = 2": {"skip": False, "alpha": 2.0},
    "no skip, alpha = 1/2": {"skip": False, "alpha": 0.5},
}
"""Versions of the model whose tokens are followed by depth; of random weights only the first and "no skip"."""


@dataclass(frozen=True)
class Task:
    """A model and the first n inputs of a capture, as a unit gets them in any process; `content` are the tokens used."""

    model: Model | Named
    source: Capture | Path
    block: str
    n: int
    content: slice
    seed: int
    threads: int


def inputs_of(model: Model, captured: Capture, block: str, n: int) -> list[Sample]:
    """The first inputs of a capture, to be run again; an `InputError` when the model lacks its heads."""
    return replayed(model, captured, block)[:n]


def ids_of(model: Model, samples: Sequence[Sample], block: str) -> Array | None:
    """Token ids (n_input, n_token) of a block, None for images and plain modules.

    The decoder of a seq2seq model reads its own.
    """
    if model.images is not None or not hasattr(model.module, "get_input_embeddings"):
        return None
    own = "decoder_input_ids" if block.startswith("decoder") else "input_ids"
    name = own if own in samples[0].arguments else "input_ids"
    rows = [sample.arguments[name][0].numpy() for sample in samples]
    if len({len(row) for row in rows}) > 1:
        raise InputError("the captured inputs differ in length; capture again without --keep-short")
    return np.stack(rows)


def measure_version(path: Path, task: Task, options: Mapping[str, Any]) -> None:
    """A unit: spread of the tokens by depth (n_input, n_depth, 2), the share of position, the numerical precision.

    And the divergence of positions and its null (n_depth, n_fold, 2) of some versions: of all inputs, of the model
    itself also with each left out.

    Without skip connections spreads decay by orders of magnitude; those versions are computed in float64, and those
    with part of the skip connection where their spreads come near the precision of the model.
    """
    skip = options.get("skip", True)
    with received(task.model, task.threads) as model, one_blas_thread():
        samples = inputs_of(model, open_capture(task.source), task.block, min(FEWER, task.n))
        version = Version(task.content, task.seed, options)
        if skip is not False:
            by_depth(model, samples, version.add, **options)
        if skip is False or (skip is not True and version.least < CLEAR * precision(model)):
            version = Version(task.content, task.seed, options)
            with in_double(model):
                by_depth(model, samples, version.add, **options)
                version.write(path, precision(model))
        else:
            version.write(path, precision(model))


class Version:
    """Collects what is measured of a version of the model (`options`), state by state."""

    def __init__(self, content: slice, seed: int, options: Mapping[str, Any]) -> None:
        self.content, self.seed, self.options = content, seed, options
        self.found: list[tuple[list[Any], float, Array]] = []

    def add(self, state: Array) -> None:
        """The next state (n_input, n_token, dim), of which the first inputs are used."""
        tokens = state[:FEWER, self.content].astype(float)
        with one_blas_thread():
            whole = not self.options
            apart = _divergence(tokens, self.seed, whole) if self.options in _DIVERGING else np.full((1, 2), np.nan)
            share = position_share(tokens) if len(tokens) > 1 else float("nan")
            self.found.append(([token_spread(x) for x in tokens], share, apart))

    @property
    def least(self) -> float:
        """The smallest spread of the tokens of an input at any depth."""
        return min(float(spread.residual) for spreads, *_ in self.found for spread in spreads)

    def write(self, path: Path, floor: float) -> None:
        """The file of `measure_version`."""
        spread, position, apart = (np.array([one[part] for one in self.found]) for part in range(3))
        arrays = {"depth": spread.swapaxes(0, 1), "position": position, "floor": np.array([floor]), "divergence": apart}
        write_arrays(path, arrays)


_DIVERGING: tuple[dict[str, Any], ...] = ({}, {"skip": False}, {"skip": 0.5})
"""The versions whose positions are compared, only some: principal components take long."""


def _divergence(tokens: Array, seed: int, left_out: bool) -> Array:
    """`position_divergence`, NaN where all tokens have become equal."""
    try:
        return position_divergence(tokens, seed, left_out)
    except InputError:
        return np.full((len(folds(len(tokens))) if left_out else 1, 2), np.nan)


CLEAR = 100.0
"""A spread this many times the numerical precision is measured to a percent or better."""
FACTORS = (0.5, 2.0)
"""On the scores of one head: flatter, sharper."""


def measure_temperature(path: Path, task: Task) -> None:
    """A unit: what the model loses when the scores of one head are multiplied by `FACTORS`, (n_input, 2, n_head)."""
    with received(task.model, task.threads) as model, one_blas_thread():
        heads = [head for site in model.sites for head in site.heads if head.block == task.block]
        changes = []
        for sample in inputs_of(model, open_capture(task.source), task.block, min(FEWER, task.n)):
            intervention = Intervention(model, sample)
            changes.append([[intervention.sharpen(head, factor) for head in heads] for factor in FACTORS])
        unit = effect_unit(model)
    write_arrays(path, {"temperature/changes": np.array(changes)}, {"unit": unit})


def measure_tokens(path: Path, task: Task, last: Path) -> None:
    """A unit: embeddings beside random vectors, and the mixtures of likely next tokens; `last` holds what the head reads."""
    with received(task.model, task.threads) as model, one_blas_thread():
        samples = inputs_of(model, open_capture(task.source), task.block, task.n)
        ids, table, tokenizer = ids_of(model, samples, task.block), embedded(model), model.tokenizer
        assert ids is not None
        arrays = describe_embeddings(table, ids, task.seed)
        found = {f"embedding/{name}": array for name, array in arrays.items()}
        rows = [] if tokenizer is None else neighbour_rows(table, ids, lambda i: str(tokenizer.decode([i])).strip())
        sources = {"1-gram": one_gram(ids, FEWER)} if task.n > 1 else {}
        if model.task == "causal-lm":
            states = read_arrays(last)[0]["last"]
            sources["model"] = [_likely_next(model, *one) for one in zip(samples, states, strict=False)]
        for name, likely in sources.items():
            facts, spectra = mixtures(likely, ids, table, task.content)
            found |= {f"next/{name}/facts": facts, f"next/{name}/spectrum": spectra}
    write_arrays(path, found, {"neighbours": json.dumps(rows)})


def _likely_next(model: Model, sample: Sample, last: Array) -> tuple[Array, Array]:
    """The model's likeliest next tokens at every position: ids and probabilities (n_token, TOP)."""
    with torch.no_grad():
        logits = headed(model, sample, last)[0].float()
        best = torch.topk(logits, TOP, dim=-1)
        probs = (best.values - torch.logsumexp(logits, dim=-1, keepdim=True)).exp()
    return best.indices.cpu().numpy(), probs.double().cpu().numpy()
