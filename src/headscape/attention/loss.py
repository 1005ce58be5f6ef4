"""The loss a model is judged by: next token, masked token, or class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.models import Model
from headscape.attention.samples import Sample, grouped, samples_of
from headscape.attention.sites import run
from headscape.checks import renamed
from headscape.errors import InputError

__all__ = ["Loss", "Task", "joined", "loss", "task_loss", "tasks_of"]

MASKED_SHARE = 0.15  # of the tokens, as in BERT
BYTES_A_STEP = 256 << 20  # logits held at once


@dataclass(frozen=True)
class Loss:
    """Mean loss per token of each sequence (or loss of each image) in nats, and which images were classified rightly."""

    values: npt.NDArray[np.float64]
    kind: str
    correct: npt.NDArray[np.bool_] | None = None

    @property
    def mean(self) -> float:
        """Mean loss."""
        return float(self.values.mean())

    @property
    def accuracy(self) -> float | None:
        """Share of images classified rightly, None for language models."""
        return None if self.correct is None else float(self.correct.mean())

    def __repr__(self) -> str:
        extra = "" if self.accuracy is None else f", accuracy {self.accuracy:.3f}"
        return f"Loss({self.mean:.4f} nats over {len(self.values)} sequences, {self.kind}{extra})"


@dataclass(frozen=True)
class Task:
    """One forward pass whose loss is known: its arguments, and the target token or class (-100 where there is none).

    With `spans` (start, stop) of its only sequence, a loss for each of them alone, and whether all its tokens are the
    likeliest ones.
    """

    arguments: dict[str, Tensor]
    wanted: Tensor
    n: int
    spans: tuple[tuple[int, int], ...] = ()


def tasks_of(model: Model, samples: Sequence[Sample], seed: int = 0) -> list[Task]:
    """Group samples into forward passes with their targets; masked models get their seeded masks here.

    Raises an `InputError` for an encoder without an output head: it has no loss.
    """
    _check_head(model)
    if model.images is not None and any(sample.label is None for sample in samples):
        raise InputError("the loss of a classifier needs labels: pass (images, labels)")
    longest = max((sample.stored["input_ids"].size for sample in samples if "input_ids" in sample.stored), default=1)
    n_vocabulary = getattr(model.config, "vocab_size", 1) or 1
    size = 64 if model.images else max(1, min(8, BYTES_A_STEP // (longest * n_vocabulary * 4)))
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for arguments, part in grouped(samples, size):
        if model.images is not None:
            wanted = torch.tensor([sample.label for sample in part])
        else:
            wanted = arguments["input_ids"]
            if model.task == "masked-lm":
                hidden = _masked(model, wanted, generator)
                arguments["input_ids"] = wanted.masked_fill(hidden, model.tokenizer.mask_token_id)
                wanted = wanted.masked_fill(~hidden, -100)
        tasks.append(Task(arguments, wanted, len(part)))
    return tasks


def task_loss(model: Model, task: Task) -> tuple[Tensor, Tensor | None]:
    """Loss of every sequence of a task (n,), with gradients where they are on; and which images were right."""
    logits = run(model, task.arguments).logits.float()
    wanted = task.wanted.to(logits.device)
    if model.images is not None:
        return F.cross_entropy(logits, wanted, reduction="none"), logits.argmax(1) == wanted
    if model.task == "causal-lm":
        logits, wanted = logits[:, :-1], wanted[:, 1:]
    flat = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=-100)
    each = flat.view(wanted.shape)
    if task.spans:
        back = int(model.task == "causal-lm")
        right = (logits.argmax(-1) == wanted)[0]
        parts = [slice(start - back, stop - back) for start, stop in task.spans]
        return torch.stack([each[0, s].mean() for s in parts]), torch.stack([right[s].all() for s in parts])
    return each.sum(1) / (wanted != -100).sum(1), None


@renamed("seed", "random_state")
def loss(model: Model, inputs: Any, tokens: int = 256, batches: int | None = None, *, random_state: int = 0) -> Loss:
    """Mean loss per token of each sequence (or loss of each image), in nats.

    Causal models predict each next token; masked ones 15 % of the tokens, hidden by a seeded choice; encoder-decoders
    repeat the text; classifiers need labels: pass (images, labels) or an .npz with both.

    >>> hs.loss(model, ["the cat sat", "on the mat"])  # log(95) = 4.55 nats would be guessing among the letters
    Loss(4... nats over 2 sequences, causal-lm)
    """
    _check_head(model)
    samples, _ = samples_of(model, inputs, tokens, batches, seed=random_state)
    with torch.no_grad():
        return joined(model, [task_loss(model, task) for task in tasks_of(model, samples, random_state)])


def _check_head(model: Model) -> None:
    if model.task in ("encoder", "module", "classifier"):
        raise InputError(f"{model.source} ({model.task}) has no language-model or image-classifier head, so no loss")


def joined(model: Model, parts: Sequence[tuple[Tensor, Tensor | None]]) -> Loss:
    """The losses of several tasks as one."""
    correct = [right.cpu().numpy() for _, right in parts if right is not None]
    values = torch.cat([value for value, _ in parts]).detach().cpu().double().numpy()
    return Loss(values, model.task, np.concatenate(correct) if correct else None)


def _masked(model: Model, ids: Tensor, generator: torch.Generator) -> Tensor:
    special = torch.tensor([model.tokenizer.get_special_tokens_mask(row.tolist(), True) for row in ids]).bool()
    chosen = (torch.rand(ids.shape, generator=generator) < MASKED_SHARE) & ~special
    for row, free in zip(chosen, ~special, strict=True):
        if not row.any():  # a sequence without a hidden token would have no loss
            row[torch.nonzero(free)[0]] = True
    return chosen
