"""Judges measure a pruned network: by its loss, or by how well an encoder keeps its sentence similarities."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.capture import main_output
from headscape.attention.loss import Loss, Task, joined, task_loss, tasks_of
from headscape.attention.models import Model
from headscape.attention.samples import Sample, grouped, samples_of
from headscape.attention.sites import run
from headscape.errors import InputError

__all__ = [
    "Judge",
    "LossJudge",
    "SimilarityJudge",
    "by_answers",
    "concatenated",
    "content_of",
    "cost",
    "cost_unit",
    "judge_of",
    "sentence_pairs",
    "sentence_sample",
    "sentences_of",
    "slopes",
]

FloatArray = npt.NDArray[np.float64]
N_PAIRS = 200
WORDS = (6, 30)  # of a sentence worth comparing
SENTENCE_TOKENS = 64


class Judge(ABC):
    """Forward passes to run, and the loss they give.

    `pieces` are inputs that can be judged apart from each other: the key of each (a digest of its content) and its
    forward passes. `parts` are the keys of the pieces that show each ability; the first is what the model is made for.
    """

    model: Model
    pieces: Sequence[tuple[str, Sequence[Any]]]
    parts: Mapping[str, Sequence[str]]

    @abstractmethod
    def run(self, task: Any) -> Any:
        """One forward pass, and what is kept of it."""

    @abstractmethod
    def join(self, parts: Sequence[Any]) -> Loss:
        """The loss of one piece, from what was kept of its forward passes."""

    def keys(self, most: int | None = None) -> list[str]:
        """The keys of all pieces, or of the first `most` of every ability."""
        return list(dict.fromkeys(key for keys in self.parts.values() for key in keys[:most]))

    def by_ability(self, losses: Mapping[str, Loss]) -> dict[str, Loss]:
        """Losses of the pieces that are there, joined by ability."""
        found = {name: [losses[key] for key in keys if key in losses] for name, keys in self.parts.items()}
        return {name: concatenated(several) for name, several in found.items() if several}

    @property
    def tasks(self) -> list[Any]:
        """The forward passes of all pieces."""
        return [task for _, tasks in self.pieces for task in tasks]


class LossJudge(Judge):
    """The loss of a language model or classifier, per sequence or image; and of passes that test further abilities."""

    def __init__(
        self, model: Model, samples: Sequence[Sample], seed: int = 0, more: Mapping[str, Sequence[Task]] | None = None
    ) -> None:
        self.model = model
        if model.images is not None:
            tasks = tasks_of(model, samples)
        else:  # one window each, masked by its own content: its loss does not depend on the windows beside it
            seeds = [seed + int(content_of(sample.stored)[:8], 16) for sample in samples]
            tasks = [task for s, own in zip(samples, seeds, strict=True) for task in tasks_of(model, [s], own)]
        named = ({"accuracy" if model.images is not None else "text": tasks} if tasks else {}) | dict(more or {})
        keyed = {name: [(_key(task), task) for task in several] for name, several in named.items()}
        self.parts = {name: [key for key, _ in several] for name, several in keyed.items()}
        self.pieces = [(key, [task]) for several in keyed.values() for key, task in several]

    def run(self, task: Any) -> tuple[Tensor, Tensor | None]:
        return task_loss(self.model, task)

    def join(self, parts: Sequence[Any]) -> Loss:
        return joined(self.model, parts)


class SimilarityJudge(Judge):
    """One minus the Spearman correlation between the cosines of sentence pairs, intact and pruned.

    The value of a pair is 6 d^2 / (n^2 - 1), d the difference of its ranks: the mean over pairs is 1 - rho where no
    cosines are equal. Sentences are embedded by the mean of the last hidden states. The intact network must be the
    first to be judged.
    """

    def __init__(self, model: Model, pairs: Sequence[tuple[str, str]]) -> None:
        if len(pairs) < 3:
            raise InputError(f"{len(pairs)} sentence pairs are too few to measure similarity; give a longer text")
        self.model = model
        sentences = sorted({sentence for pair in pairs for sentence in pair})
        samples = [sentence_sample(model, sentence) for sentence in sentences]
        order = sorted(range(len(samples)), key=lambda i: samples[i].stored["input_ids"].size)
        places = {sentences[i]: place for place, i in enumerate(order)}
        self._pairs = np.array([[places[a], places[b]] for a, b in pairs])
        tasks = [arguments for arguments, _ in grouped([samples[i] for i in order], 32)]
        self.pieces = [
            (content_of({"pairs": self._pairs} | {str(i): t["input_ids"] for i, t in enumerate(tasks)}), tasks)
        ]
        self.parts = {"similarity": [self.pieces[0][0]]}
        self._intact: FloatArray | None = None

    def run(self, task: Any) -> Tensor:
        return _embedded(self.model, task)

    def join(self, parts: Sequence[Any]) -> Loss:
        embedded = torch.cat(list(parts)).double().cpu().numpy()
        ranks = rankdata((embedded[self._pairs[:, 0]] * embedded[self._pairs[:, 1]]).sum(axis=1))
        if self._intact is None:
            self._intact = ranks
        n = len(ranks)
        return Loss(6 * (ranks - self._intact) ** 2 / (n**2 - 1), "similarity")


def _embedded(model: Model, arguments: Any) -> Tensor:
    return F.normalize(main_output(run(model, arguments, whole=False)).float().mean(dim=1), dim=-1)


def _key(task: Task) -> str:
    spans = {"spans": np.array(task.spans)} if task.spans else {}
    return content_of({**task.arguments, "wanted": task.wanted, **spans})


def content_of(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of named arrays or tensors."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array)
        found.update(f"{name} {plain.dtype} {plain.shape}".encode() + plain.tobytes())
    return found.hexdigest()


def concatenated(losses: Sequence[Loss]) -> Loss:
    """The losses of several pieces as one."""
    correct = [loss.correct for loss in losses if loss.correct is not None]
    values = np.concatenate([loss.values for loss in losses])
    return Loss(values, losses[0].kind, np.concatenate(correct) if correct else None)


def sentence_sample(model: Model, sentence: str) -> Sample:
    """One sentence as the encoder reads it, at its own length."""
    return samples_of(model, [sentence], SENTENCE_TOKENS, keep_short=True)[0][0]


def sentences_of(texts: Sequence[str]) -> list[str]:
    """The sentences of typical length, in reading order.

    >>> sentences_of(["Yes. The clocks all said something else. No!"])
    ['The clocks all said something else.']
    """
    found: list[str] = []
    for text in texts:
        parts = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))
        found += [part for part in parts if WORDS[0] <= len(part.split()) <= WORDS[1]]
    return found


def sentence_pairs(
    texts: Sequence[str], n: int = N_PAIRS, seed: int = 0, without: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Pairs of different sentences, each pair once: half of them neighbours in the text, half drawn at random.

    A sentence that repeats is taken where it stands first, and those of `without` are left out.

    >>> text = "It was a bright cold day in spring. The clocks all said something else. Nobody had looked at them."
    >>> sentence_pairs([text], 2)[0]
    ('It was a bright cold day in spring.', 'The clocks all said something else.')
    """
    found = [sentence for sentence in dict.fromkeys(sentences_of(texts)) if sentence not in without]
    if len(found) < 2:
        raise InputError(f"the text has {len(found)} sentences of {WORDS[0]} to {WORDS[1]} words; two are needed")
    rng = np.random.default_rng(seed)
    pairs: list[tuple[str, str]] = []
    neighbours = rng.permutation(len(found) - 1)[: n // 2]
    pairs += [(found[i], found[i + 1]) for i in sorted(neighbours)]
    for _ in range(20 * n):
        if len(pairs) >= n:
            break
        i, j = rng.choice(len(found), 2, replace=False)
        if (found[i], found[j]) not in pairs:
            pairs.append((found[i], found[j]))
    return pairs


def judge_of(model: Model, samples: Sequence[Sample], texts: Sequence[str] = (), seed: int = 0) -> Judge:
    """The judge that suits a model: sentence similarities for an encoder without an output head, else its loss."""
    if model.task == "encoder":
        if not texts:
            raise InputError(f"{model.source} is judged by similarities of sentences: give a text")
        return SimilarityJudge(model, sentence_pairs(texts, seed=seed))
    return LossJudge(model, samples, seed)


def cost(intact: Loss, now: Loss, scale: float | None = None, by: str = "loss") -> FloatArray:
    """What a removal costs, one number per sequence; the mean is what a budget bounds.

    Language models: rise of the loss, as a share of the intact mean, or of `scale`. Classifiers, and anything else by
    "accuracy": the share no longer correct, less the share that now is. Encoders: one minus the rank correlation of
    similarities.
    """
    if intact.kind == "similarity":
        return now.values
    if by_answers(intact, by) and intact.correct is not None and now.correct is not None:
        return intact.correct.astype(float) - now.correct
    return (now.values - intact.values) / (intact.mean if scale is None else scale)


def by_answers(intact: Loss, by: str = "loss") -> bool:
    """Whether `cost` counts answers: then it is -1, 0 or 1 per input."""
    return intact.correct is not None and (intact.kind == "image-classifier" or by == "accuracy")


def cost_unit(intact: Loss) -> str:
    """What `cost` measures, in words."""
    if intact.kind == "similarity":
        return "1 - rank correlation of sentence similarities"
    return "drop of accuracy" if intact.kind == "image-classifier" else "rise of the loss"


def slopes(model: Model, samples: Sequence[Sample], seed: int) -> Iterator[Tensor]:
    """One number per sample, with gradients: its loss, or for an encoder its embedding along a random direction."""
    if model.task != "encoder":
        for sample in samples:
            for task in tasks_of(model, [sample], seed):
                yield task_loss(model, task)[0].mean()
        return
    generator = torch.Generator().manual_seed(seed)
    for arguments, _ in grouped(samples, 1):
        embedded = _embedded(model, arguments)
        yield (embedded * torch.randn(embedded.shape, generator=generator).to(embedded)).sum()
