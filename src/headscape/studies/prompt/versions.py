"""The model's part of the few-shot study: a prompt encoded, a clue written, maps and losses, changed versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.intervene import scale_scores
from headscape.attention.models import Model
from headscape.attention.sites import run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import check_weights, parts_of, read
from headscape.errors import InputError
from headscape.statistics.edits import ScalingLaw, edited, flatten, randomise, scale_spectra, truncate
from headscape.studies.prompt.maps import row_entropy
from headscape.studies.prompt.text import END, Layout, Text, lay_out

__all__ = ["Maps", "Version", "check_model", "clue_loss", "encode", "greedy_clue", "look", "vectors_of", "versions_of"]

Array = npt.NDArray[Any]
LONGEST = 24
"""Tokens of a clue at most."""
KEPT_ENERGY = 0.9
"""Share of energy that truncated spectra keep."""


def check_model(model: Model) -> None:
    """Raise an `InputError` for a model that does not go on with a text, or whose weights are not finite."""
    if model.task != "causal-lm" or not model.causal:
        raise InputError(
            f"{model.source} ({model.task}) is not a causal language model and cannot write a clue; "
            "take one that is, such as smollm2-135m"
        )
    if model.tokenizer is None or not getattr(model.tokenizer, "is_fast", False):
        raise InputError(f"{model.source} has no fast tokenizer, which tells the characters behind each token")
    check_weights(model.module)


def encode(model: Model, text: Text, room: int = 0) -> tuple[list[int], Layout]:
    """Token ids and what each token is; `room` tokens must still fit behind them.

    Raises an `InputError` when the text is longer than the context of the model.
    """
    found = model.tokenizer(text.text, return_offsets_mapping=True)
    ids = [int(i) for i in found["input_ids"]]
    offsets = [(int(a), int(b)) for a, b in found["offset_mapping"]]
    if ids and ids[-1] == model.tokenizer.eos_token_id and offsets[-1][0] == offsets[-1][1]:
        ids, offsets = ids[:-1], offsets[:-1]  # an end would stop the model
    ids, offsets = [*model.prefix, *ids], [(0, 0)] * len(model.prefix) + offsets
    if model.max_tokens is not None and len(ids) + room > model.max_tokens:
        raise InputError(
            f"the prompt has {len(ids)} tokens and {room} more are to be written, {model.source} takes "
            f"{model.max_tokens}; ask for fewer shots"
        )
    special = [str(model.tokenizer.decode([i])) for i, (a, b) in zip(ids, offsets, strict=True) if a == b]
    return ids, lay_out(text, offsets, special)


def greedy_clue(model: Model, ids: Sequence[int], longest: int = LONGEST) -> str:
    """The likeliest next tokens one after the other, up to '#', a new line, the end or `longest` tokens."""
    module: Any = model.module
    written: list[int] = []
    batch, memory = torch.tensor([list(ids)], device=model.device), None
    ends = {model.tokenizer.eos_token_id}
    with torch.no_grad():
        for _ in range(longest):
            result = module(input_ids=batch, past_key_values=memory, use_cache=True)
            memory = result.past_key_values
            best = int(result.logits[0, -1].argmax())
            if best in ends:
                break
            written.append(best)
            text = str(model.tokenizer.decode(written, skip_special_tokens=True))
            if END in text or "\n" in text.lstrip("\n"):
                break
            batch = torch.tensor([[best]], device=model.device)
            if memory is None:  # a family without a cache reads everything again
                batch = torch.tensor([[*ids, *written]], device=model.device)
    text = str(model.tokenizer.decode(written, skip_special_tokens=True)).lstrip("\n")
    return text.split(END)[0].split("\n")[0]


def clue_loss(model: Model, ids: Sequence[int], layout: Layout) -> float:
    """Mean loss, in nats a token, over the tokens of all clues in a text: those of the shots and the answer."""
    batch = torch.tensor([list(ids)])
    with torch.no_grad():
        logits = run(model, {"input_ids": batch}).logits[0, :-1].float()
    wanted = batch[0, 1:].to(logits.device)
    each = F.cross_entropy(logits, wanted, reduction="none").cpu().numpy()
    chosen = np.array([segment in ("clue", "answer") for segment in layout.segments])[1:]
    return float(each[chosen].mean()) if chosen.any() else float("nan")


def vectors_of(model: Model, ids: Sequence[int]) -> Array:
    """The embedding of every token, (n, d)."""
    module: Any = model.module
    table = module.get_input_embeddings()
    with torch.no_grad():
        return np.asarray(table(torch.tensor(list(ids), device=model.device)).float().cpu().numpy())


@dataclass(frozen=True)
class Maps:
    """Maps of all layers, (n_layer, n, n): the mean over heads, and the mean by the size of what each head adds.

    entropies is (n_layer,), the mean over heads of the normalised entropy. by_output says whether sizes were taken
    behind the output projection.
    """

    mean: Array
    weighted: Array
    entropies: Array
    by_output: bool


class _Look(Tap):
    """Reduces every layer to its mean maps as it runs."""

    blockwise = False

    def __init__(self, outputs: dict[int, Tensor]) -> None:
        self.projections = outputs
        self.probs_of: dict[int, Tensor] = {}
        self.found: dict[int, tuple[Array, Array, float]] = {}

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        self.probs_of[id(call.module)] = probs[0].detach()
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        key = id(call.module)
        probs = self.probs_of.pop(key).float()
        flat = outputs.detach().reshape(-1, *outputs.shape[-2:]).float()  # (query, head, dim)
        heads = self.projections.get(key)
        added = flat if heads is None else torch.einsum("qhe,hde->qhd", flat, heads.to(flat))
        size = added.norm(dim=-1).T  # (head, query)
        share = size / size.sum(0).clamp(min=1e-30)
        maps = probs.cpu().numpy()
        weighted = torch.einsum("hq,hqk->qk", share, probs).cpu().numpy()
        self.found[key] = (maps.mean(axis=0), weighted, float(np.mean(row_entropy(maps))))
        return outputs


def look(model: Model, ids: Sequence[int]) -> Maps:
    """Run a text and keep the maps of every layer."""
    modules = dict(model.module.named_modules())
    places = {(site.block, site.layer): site.name for site in model.sites}
    projections = {}
    for part in parts_of(model)[0]:
        if part.kind == "o":
            heads = torch.from_numpy(part.by_head(read(model, part)))
            projections[id(modules[places[part.block, part.layer]])] = heads.to(model.device)
    tap = _Look(projections)
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        run(model, {"input_ids": torch.tensor([list(ids)])}, whole=False)
    found = [tap.found[id(modules[site.name])] for site in model.sites]
    mean, weighted = (np.stack([layer[k] for layer in found]).astype(np.float32) for k in (0, 1))
    return Maps(mean, weighted, np.array([layer[2] for layer in found]), len(projections) == len(model.sites))


@dataclass(frozen=True)
class Version:
    """A model, or a change of it for the time of a block."""

    name: str
    model: Model
    change: Callable[[], AbstractContextManager[Any]]


def versions_of(
    model: Model, control: Model | None, alphas: Sequence[float], law: ScalingLaw, seed: int
) -> list[Version]:
    """The model as it is, with random weights, with scaled and otherwise edited spectra.

    Where QK-norm undoes a scaling of the weights, the scores are multiplied by alpha^2 instead.
    """
    found = [Version("trained", model, nullcontext)]
    if control is not None:
        found.append(Version("random weights", control, nullcontext))
    found += [Version(f"alpha {alpha:.3g}", model, _scaling(model, alpha, law.exception)) for alpha in alphas]

    def bases() -> AbstractContextManager[Any]:
        rng = np.random.default_rng(seed)  # anew each time: the same bases for every prompt
        return edited(model, lambda W: randomise(W, rng))

    return [
        *found,
        Version("truncated", model, lambda: edited(model, lambda W: truncate(W, energy=KEPT_ENERGY))),
        Version("flattened", model, lambda: edited(model, flatten)),
        Version("random bases", model, bases),
    ]


def _scaling(model: Model, alpha: float, why: str) -> Callable[[], AbstractContextManager[Any]]:
    if not why.startswith("QK-norm"):
        return lambda: scale_spectra(model, alpha)

    @contextmanager
    def by_scores() -> Iterator[Model]:
        with scale_scores(model, [head for site in model.sites for head in site.heads], alpha**2):
            yield model

    return by_scores
