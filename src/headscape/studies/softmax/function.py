"""Put maps in place of a model's own attention and see what its loss, or its final hidden state, says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.capture import main_output
from headscape.attention.intervene import patch_maps
from headscape.attention.loss import task_loss, tasks_of
from headscape.attention.samples import Sample, replayed
from headscape.attention.sites import run
from headscape.attention.stack import stack_of
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["LOSS", "STATE", "Bench", "inputs_of", "unit_of"]

LOSS, STATE = "loss", "state"
_WITH_LOSS = ("causal-lm", "seq2seq-lm", "image-classifier")


def unit_of(model: Model) -> str:
    """What the model is judged by: its loss in nats, or the relative change of its final hidden state.

    The first for causal language models, encoder-decoders and image classifiers. Masked models have a loss too, but on
    an input with words hidden, whose attention is another one than was captured.
    """
    return LOSS if model.task in _WITH_LOSS else STATE


def inputs_of(model: Model, captured: Capture, block: str) -> list[Sample]:
    """The inputs of a capture, to be shown to its model again.

    Raises an `InputError` when the model has not the heads of the capture.
    """
    ours = {head for site in model.sites for head in site.heads}
    missing = [head for head in captured.heads(block) if head not in ours]
    if missing:
        raise InputError(f"{model.source} has no head {missing[0]}: it is not the model of this capture")
    samples = replayed(model, captured)
    if model.images is None:
        return samples
    return [dataclasses.replace(sample, label=sample.origin[1]) for sample in samples]


class Bench:
    """One input on a model, run once as it is; then again and again with other maps in place.

    A layer of the stack that comes before the first change would give what it gave before, so it is not run again.
    """

    def __init__(self, model: Model, sample: Sample) -> None:
        self.model = model
        self._task = tasks_of(model, [sample])[0] if unit_of(model) == LOSS else None
        self._arguments = sample.arguments
        self._stack = stack_of(model)
        with ExitStack() as during:
            self._outputs = [] if self._stack is None else during.enter_context(self._stack.recorded())
            # an empty patch sends attention through the same computation as a full one
            during.enter_context(patch_maps(model, {}))
            self._before = self._judged()

    @property
    def base(self) -> float:
        """The loss as the model is, or the norm of its final hidden state."""
        return float(self._before.norm())  # of one number: itself, a loss is never negative

    def change(self, maps: Mapping[HeadId, npt.NDArray[Any]]) -> float:
        """Put maps (n_query, n_key) in the places of these heads: loss less the loss before, or ||h' - h|| / ||h||."""
        changed = {(head.block, head.layer) for head in maps}
        sites = [site for site in self.model.sites if (site.block, site.layer) in changed]
        with ExitStack() as during:
            during.enter_context(patch_maps(self.model, dict(maps)))
            if self._stack is not None:
                during.enter_context(self._stack.replayed(self._outputs, self._stack.first(sites)))
            after = self._judged()
        if self._task is not None:
            return float(after - self._before)
        return float((after - self._before).norm() / self._before.norm())

    def _judged(self) -> Tensor:
        with torch.no_grad():
            if self._task is not None:
                return task_loss(self.model, self._task)[0][0].double()
            return main_output(run(self.model, self._arguments, whole=False)).double()
