"""The loss a model is judged by: next token, masked token, or class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.models import Model
from headscape.attention.samples import grouped, samples_of
from headscape.attention.sites import run
from headscape.errors import InputError

__all__ = ["Loss", "loss"]

MASKED_SHARE = 0.15  # of the tokens, as in BERT
BYTES_A_STEP = 256 << 20  # logits held at once


@dataclass(frozen=True)
class Loss:
    """Loss per sequence (or image) in nats, and accuracy per image for a classifier."""

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


def loss(
    model: Model, inputs: Any, tokens: int = 256, batches: int | None = None, *, seed: int = 0, grad: bool = False
) -> Loss:
    """Loss per sequence, in nats.

    Causal models predict each next token; masked ones 15 % of the tokens, hidden by a seeded choice; encoder-decoders
    repeat the text; classifiers need labels: pass (images, labels) or an .npz with both.

    Raises an `InputError` for an encoder without an output head: it has no loss of its own.
    """
    if model.task in ("encoder", "module", "classifier"):
        raise InputError(f"{model.source} ({model.task}) has no language-model or image-classifier head, so no loss")
    n_vocabulary = getattr(model.config, "vocab_size", 1) or 1
    samples, _ = samples_of(model, inputs, tokens, batches, seed=seed)
    size = 64 if model.images else max(1, min(8, BYTES_A_STEP // (tokens * n_vocabulary * 4)))
    values: list[Tensor] = []
    correct: list[Tensor] = []
    generator = torch.Generator().manual_seed(seed)
    with torch.set_grad_enabled(grad):
        for arguments, part in grouped(samples, size):
            if model.task == "image-classifier":
                if part[0].label is None:
                    raise InputError("the loss of a classifier needs labels: pass (images, labels)")
                logits = run(model, arguments).logits.float()
                labels = torch.tensor([sample.label for sample in part], device=logits.device)
                values.append(F.cross_entropy(logits, labels, reduction="none"))
                correct.append(logits.argmax(1) == labels)
                continue
            ids = arguments["input_ids"]
            if model.task == "masked-lm":
                hidden = _masked(model, ids, generator)
                arguments["input_ids"] = ids.masked_fill(hidden, model.tokenizer.mask_token_id)
                wanted = ids.masked_fill(~hidden, -100)
                logits = run(model, arguments).logits
            else:
                logits = run(model, arguments).logits
                wanted = ids
                if model.task == "causal-lm":
                    logits, wanted = logits[:, :-1], ids[:, 1:]
            wanted = wanted.to(logits.device)
            each = F.cross_entropy(logits.float().transpose(1, 2), wanted, reduction="none", ignore_index=-100)
            values.append(each.sum(1) / (wanted != -100).sum(1))
    whole = torch.cat(values).detach().cpu().double().numpy()
    right = torch.cat(correct).cpu().numpy() if correct else None
    return Loss(whole, model.task, right)


def _masked(model: Model, ids: Tensor, generator: torch.Generator) -> Tensor:
    special = torch.tensor([model.tokenizer.get_special_tokens_mask(row.tolist(), True) for row in ids]).bool()
    chosen = (torch.rand(ids.shape, generator=generator) < MASKED_SHARE) & ~special
    for row, free in zip(chosen, ~special, strict=True):
        if not row.any():  # a sequence without a hidden token would have no loss
            row[torch.nonzero(free)[0]] = True
    return chosen
