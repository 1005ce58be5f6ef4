"""Parity: whether a model under capture still computes what it computes by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headscape.attention.capture_tap import CaptureTap, Memory
from headscape.attention.models import Model
from headscape.attention.sites import example_input, run
from headscape.attention.tapping import attention_implementation, tapped, untapped
from headscape.captures import KEEP
from headscape.errors import HeadscapeError, InputError

__all__ = ["PARITY_TOLERANCE", "Parity", "check_parity", "main_output"]

PARITY_TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}  # of the largest logit


@dataclass(frozen=True)
class Parity:
    """How far the logits under capture are from the model's own, under its eager attention."""

    max_difference: float
    scale: float
    n_layers: int
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the difference is round-off."""
        return self.max_difference <= self.tolerance * max(1.0, self.scale)


def main_output(result: Any) -> Tensor:
    """The tensor a model is judged by: logits, else the last hidden state, else the first tensor it returned."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(named := getattr(result, name, None), Tensor):
            return named
    if isinstance(result, Tensor):
        return result
    found = next((part for part in result if isinstance(part, Tensor)), None)
    if found is None:
        raise InputError("the module returns no tensor")
    return found


def check_parity(model: Model, batch: Any = None) -> Parity:
    """Compare the logits under capture with the model's own eager logits on one short input.

    Raises a `HeadscapeError` when some attention layer was not captured.

    >>> parity = hs.check_parity(model)
    >>> parity.max_difference <= parity.tolerance * parity.scale
    True
    """
    batch = example_input(model) if batch is None else batch
    tap = CaptureTap(model.module, {s.name: (s, list(range(s.n_heads))) for s in model.sites}, KEEP[:1], "float32")
    with torch.no_grad(), untapped(model.module):
        with attention_implementation(model.module, "eager"):
            own = main_output(run(model, batch)).float()
        tap.start(Memory())
        with tapped(model.module, tap, model.attention):
            ours = main_output(run(model, batch)).float()
    missing = set(tap.chosen) - tap.seen
    if missing:
        raise HeadscapeError(f"{len(missing)} attention layers of {model.source} were not captured")
    difference = (own - ours).abs().max().item()
    return Parity(difference, own.abs().max().item(), len(model.sites), PARITY_TOLERANCE[model.dtype])
