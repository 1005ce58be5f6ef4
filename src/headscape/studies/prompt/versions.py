"""The model's part of the few-shot study: prompts encoded, clues written, maps and losses, for the model and its edits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from headscape.attention.intervene import scale_scores
from headscape.attention.mean_maps import mean_maps
from headscape.attention.models import Model
from headscape.attention.samples import check_ids
from headscape.attention.sending import Named, received
from headscape.attention.sites import run
from headscape.attention.watching import embedded
from headscape.attention.weights import check_changeable, check_weights, parts_of, select_parts
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.statistics.cosines import PermutedCosines, cosines, rank_correlations
from headscape.statistics.edits import edited, flatten, randomise, scale_spectra, truncate
from headscape.statistics.maps import distance_map, row_entropy, uniform_map
from headscape.storage import read_arrays, write_arrays
from headscape.studies.prompt.maps import MEASURES, measure_map
from headscape.studies.prompt.text import END, Layout, Text, lay_out

__all__ = [
    *("LONGEST", "Task", "Version", "check_model", "clue_loss", "encode", "greedy_clue", "measure_version"),
    "versions_of",
]

Array = npt.NDArray[Any]
LONGEST = 24
"""Tokens of a clue at most."""
KEPT_ENERGY = 0.9
"""Share of energy that truncated spectra keep."""


def check_model(model: Model) -> None:
    """Raise an `InputError` for a model that does not continue a text, or whose weights are not finite or cannot be edited."""
    if model.task != "causal-lm" or not model.causal:
        raise InputError(
            f"{model.source} ({model.task}) is not a causal language model and cannot write a clue; "
            "choose one, such as smollm2-135m"
        )
    if model.tokenizer is None or not getattr(model.tokenizer, "is_fast", False):
        raise InputError(f"{model.source} has no fast tokenizer, which is needed for the characters of each token")
    check_changeable(model.module, "the few-shot study changes the model")
    check_weights(model.module)
    select_parts(parts_of(model)[0], ("q", "k"))


def encode(model: Model, text: Text, room: int = 0) -> tuple[list[int], Layout]:
    """Token ids and what each token is; `room` more tokens must still fit.

    Raises an `InputError` when the text is longer than the context of the model.
    """
    found = model.tokenizer(text.text, return_offsets_mapping=True)
    ids = [int(i) for i in found["input_ids"]]
    offsets = [(int(a), int(b)) for a, b in found["offset_mapping"]]
    if ids and ids[-1] == model.tokenizer.eos_token_id and offsets[-1][0] == offsets[-1][1]:
        ids, offsets = ids[:-1], offsets[:-1]  # an end-of-text token would stop the model
    ids, offsets = [*model.prefix, *ids], [(0, 0)] * len(model.prefix) + offsets
    if model.max_tokens is not None and len(ids) + room > model.max_tokens:
        raise InputError(
            f"the prompt has {len(ids)} tokens and {room} more are to be written, {model.source} takes "
            f"{model.max_tokens}; use fewer shots"
        )
    check_ids(model, torch.tensor([ids]), "the prompt")
    special = [str(model.tokenizer.decode([i])) for i, (a, b) in zip(ids, offsets, strict=True) if a == b]
    return ids, lay_out(text, offsets, special)


def greedy_clue(model: Model, ids: Sequence[int], longest: int = LONGEST) -> str:
    """The most likely next token again and again, up to '#', a new line, the end of text or `longest` tokens."""
    module: Any = model.module
    written: list[int] = []
    batch, memory = torch.tensor([list(ids)], device=model.device), None
    with torch.no_grad():
        for _ in range(longest):
            result = module(input_ids=batch, past_key_values=memory, use_cache=True)
            memory = result.past_key_values
            best = int(result.logits[0, -1].argmax())
            if best == model.tokenizer.eos_token_id:
                break
            written.append(best)
            text = str(model.tokenizer.decode(written, skip_special_tokens=True))
            if END in text or "\n" in text.lstrip("\n"):
                break
            # a family without a cache reads everything again
            batch = torch.tensor([[*ids, *written] if memory is None else [best]], device=model.device)
    text = str(model.tokenizer.decode(written, skip_special_tokens=True)).lstrip("\n")
    return text.split(END)[0].split("\n")[0]


def clue_loss(model: Model, ids: Sequence[int], layout: Layout, of: Sequence[str] = ("clue", "answer")) -> float:
    """Mean loss, in nats per token, over the tokens of clues in a text: of the shots ("clue") and the answer."""
    batch = torch.tensor([list(ids)])
    with torch.no_grad():
        logits = run(model, {"input_ids": batch}).logits[0, :-1].float()
    wanted = batch[0, 1:].to(logits.device)
    each = F.cross_entropy(logits, wanted, reduction="none").cpu().numpy()
    chosen = np.array([segment in of for segment in layout.segments])[1:]
    return float(each[chosen].mean()) if chosen.any() else float("nan")


# --- versions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """A model as it is, or edited inside a with block; a plain record, so that any process can make the edit.

    alpha scales the spectra of W_q and W_k; `by_scores` multiplies the scores by alpha^2 instead, where QK-norm would
    undo the scaling.
    """

    name: str
    alpha: float = 1.0
    by_scores: bool = False

    def applied(self, model: Model, seed: int) -> AbstractContextManager[Any]:
        """The model with this edit, inside a with block."""
        rng = np.random.default_rng(seed)
        edits = {
            "truncated": lambda W: truncate(W, energy=KEPT_ENERGY),
            "flattened": flatten,
            "random bases": lambda W: randomise(W, rng),
        }
        if self.name in edits:
            return edited(model, edits[self.name])
        if self.by_scores:
            return scale_scores(model, [head for site in model.sites for head in site.heads], self.alpha**2)
        return nullcontext() if self.alpha == 1 else scale_spectra(model, self.alpha)


def versions_of(alphas: Sequence[float], control: bool, by_scores: bool) -> list[Version]:
    """The model as it is, with random weights, with scaled and otherwise edited spectra."""
    found = ["trained", *(["random weights"] if control else [])]
    scaled = [Version(f"alpha {alpha:.3g}", alpha, by_scores) for alpha in alphas]
    return [*map(Version, found), *scaled, *map(Version, ("truncated", "flattened", "random bases"))]


@dataclass(frozen=True)
class Task:
    """What all versions are given: the prompts, the table's own clue for each, and how to measure.

    Every version is shown the same texts: the prompts with the clues that the trained model wrote, which are found in
    the file `trained` (None for the trained model itself).
    """

    texts: Sequence[Text]
    solved: Sequence[Text]
    permutations: int
    seed: int
    threads: int
    trained: Path | None = None


def measure_version(path: Path, given: Model | Named, version: Version, task: Task) -> None:
    """A unit: one version on all prompts. Arrays have the prompt first; maps are those of the first prompt."""
    own = None if task.trained is None else json.loads(read_arrays(task.trained, lambda _: False)[1]["clues"])
    with received(given, task.threads) as model, one_blas_thread(), version.applied(model, task.seed):
        clues = [greedy_clue(model, encode(model, text)[0]) for text in task.texts]
        found = [
            _measured(model, version, text.with_answer(clue), solved, task)
            for text, clue, solved in zip(task.texts, own or clues, task.solved, strict=True)
        ]
    arrays = {name: np.stack([one[name] for one in found]) for name in found[0] if not name.startswith("map_")}
    arrays |= {name: array for name, array in found[0].items() if name.startswith("map_")}
    write_arrays(path, arrays, {"clues": json.dumps(clues)})


def _measured(model: Model, version: Version, text: Text, solved: Text, task: Task) -> dict[str, Array]:
    """One version on one prompt; baselines and cosines where they belong."""
    ids, layout = encode(model, text)
    maps = mean_maps(model, ids, row_entropy)
    arrays: dict[str, Array] = {
        "measures": _measures(maps.mean, layout, maps.measured),
        "loss": np.array(clue_loss(model, *encode(model, solved))),
        "map_mean": maps.mean,
    }
    if version.name in ("trained", "random weights"):
        cosine = cosines(embedded(model, np.array(ids)))
        tests = [
            rank_correlations(
                maps.mean[:, start:, start:], PermutedCosines(cosine[start:, start:], task.permutations, task.seed)
            )
            for start in (0, 1)
        ]
        columns = [column for test in tests for column in (test.rho, test.partial[:, 0], test.p)]
        arrays["cosine"] = np.stack(columns, axis=1)
    if version.name == "trained":
        distance = [distance_map(A) for A in maps.mean]
        arrays |= {"map_weighted": maps.weighted, "map_cosines": cosine}
        arrays["weighted"] = _measures(maps.weighted, layout, maps.measured)
        arrays["uniform"] = _measures([uniform_map(len(ids))], layout, np.ones(1))[0]
        arrays["distance"] = _measures(distance, layout, maps.measured)
    return arrays


def _measures(maps: Any, layout: Layout, entropies: Array) -> Array:
    """(n_layer, n_measure)."""
    rows = [measure_map(A, layout, float(h)) for A, h in zip(maps, entropies, strict=True)]
    return np.array([[row[name] for name in MEASURES] for row in rows], dtype=np.float64)
