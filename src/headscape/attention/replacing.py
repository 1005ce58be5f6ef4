"""Replace attention maps of a model on one input, and measure the change of its loss or of its final hidden state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.capture import main_output
from headscape.attention.intervene import patch_maps, scale_scores
from headscape.attention.loss import task_loss, tasks_of
from headscape.attention.samples import Sample
from headscape.attention.sites import run
from headscape.attention.stack import stack_of
from headscape.attention.wrapping import Model
from headscape.tensor import HeadId

__all__ = ["LOSS", "STATE", "Intervention", "effect_unit"]

LOSS, STATE = "loss", "state"
_WITH_LOSS = ("causal-lm", "seq2seq-lm", "image-classifier")


def effect_unit(model: Model) -> str:
    """What an intervention on this model changes: its loss in nats, or the relative norm of its final hidden state.

    The first for causal language models, encoder-decoders and image classifiers. Masked models have a loss too, but on
    inputs with hidden words, whose attention is not the one that was captured.
    """
    return LOSS if model.task in _WITH_LOSS else STATE


class Intervention:
    """One input of a model: run once as it is, then as often as wanted with other attention maps.

    Layers of the stack below the first changed one are not run again: they would return what they returned before.
    """

    def __init__(self, model: Model, sample: Sample) -> None:
        self.model = model
        self._task = tasks_of(model, [sample])[0] if effect_unit(model) == LOSS else None
        self._arguments = sample.arguments
        self._stack = stack_of(model)
        with ExitStack() as during:
            self._outputs = [] if self._stack is None else during.enter_context(self._stack.recorded())
            # an empty patch sends attention through the same computation as a full one
            during.enter_context(patch_maps(model, {}))
            self._before = self._run()

    @property
    def base(self) -> float:
        """The loss of the unchanged model, or the norm of its final hidden state."""
        return float(self._before.norm())  # of one number: itself, a loss is never negative

    def change(self, maps: Mapping[HeadId, npt.NDArray[Any]]) -> float:
        """Give these heads other maps (n_query, n_key): the increase of the loss, or ||h' - h|| / ||h||."""
        return self._changed(patch_maps(self.model, dict(maps)), list(maps))

    def sharpen(self, head: HeadId, factor: float) -> float:
        """Multiply the scores of a head by a factor, as a lower temperature does: the same."""
        return self._changed(scale_scores(self.model, [head], factor), [head])

    def _changed(self, intervention: AbstractContextManager[Model], heads: Sequence[HeadId]) -> float:
        changed = {(head.block, head.layer) for head in heads}
        sites = [site for site in self.model.sites if (site.block, site.layer) in changed]
        with ExitStack() as during:
            during.enter_context(intervention)
            if self._stack is not None:
                during.enter_context(self._stack.replayed(self._outputs, self._stack.first(sites)))
            after = self._run()
        if self._task is not None:
            return float(after - self._before)
        return float((after - self._before).norm() / self._before.norm())

    def _run(self) -> Tensor:
        with torch.no_grad():
            if self._task is not None:
                return task_loss(self.model, self._task)[0][0].double()
            return main_output(run(self.model, self._arguments, whole=False)).double()
