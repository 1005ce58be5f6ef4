"""Loss with heads removed, computing only the layers that a removal can change."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headscape.attention.loss import Loss
from headscape.attention.sites import select_heads
from headscape.attention.stack import stack_of
from headscape.pruning.compensation import Fitted, Moments, fit_compensation, without_heads
from headscape.pruning.judges import Judge, concatenated
from headscape.tensor import HeadId

__all__ = ["Ablations", "leave_one_out"]

SHARED_BYTES = 2 << 30  # layer outputs kept at most


class Ablations:
    """Losses of one model by one judge, for many sets of removed heads.

    The intact model is run once on every piece of the judge's inputs, and the output of every layer kept; a set whose
    lowest head is in layer L then starts from layer L. That is exact: nothing below a removed head changes.

    Parameters
    ----------
    judge
        What to measure on.
    moments
        Called when a compensation first needs second moments; returns those of `moments_on`.
    share
        Whether to keep the layers' outputs; they are not kept where they would take more than 2 GiB.
    """

    def __init__(self, judge: Judge, moments: Callable[[], Moments] | None = None, *, share: bool = True) -> None:
        self.judge, self._moments = judge, moments
        self._stack = stack_of(judge.model) if share else None
        self._outputs: dict[str, list[list[Any]]] = {}
        self._intact: dict[str, Loss] = {}

    @property
    def intact(self) -> Loss:
        """Loss per sample with all heads."""
        return self.loss([])

    def loss(self, heads: Iterable[HeadId], compensation: str = "none") -> Loss:
        """Loss per sample with these heads removed."""
        found = self.losses(heads, compensation)
        return concatenated([found[key] for key, _ in self.judge.pieces])

    def losses(
        self,
        heads: Iterable[HeadId],
        compensation: str = "none",
        known: Container[str] = (),
        only: Container[str] | None = None,
    ) -> dict[str, Loss]:
        """The same for every piece of the judge's inputs, or `only` some, by its key; not for those already known."""
        model = self.judge.model
        moments = self._moments() if self._moments is not None and compensation != "none" else None
        fitted = fit_compensation(model, select_heads(model, heads), moments, compensation)
        found = {}
        for key, tasks in self.judge.pieces:
            if key in known or key in found or (only is not None and key not in only):
                continue
            if key not in self._intact:  # also where a judge compares with the intact model
                self._intact[key] = self._run(key, tasks, {})
            found[key] = self._run(key, tasks, fitted) if fitted else self._intact[key]
        return found

    def _run(self, key: str, tasks: Sequence[Any], fitted: Mapping[str, Fitted]) -> Loss:
        """Loss of one piece; without removed heads what every layer returns is kept."""
        changed = [site for site in self.judge.model.sites if site.name in fitted]
        parts, kept = [], []
        with torch.no_grad(), without_heads(self.judge.model, fitted):
            for number, task in enumerate(tasks):
                context: Any = nullcontext()
                if self._stack is not None and fitted:
                    context = self._stack.replayed(self._outputs[key][number], self._stack.first(changed))
                elif self._stack is not None:
                    context = self._stack.recorded()
                with context as outputs:
                    parts.append(self.judge.run(task))
                kept.append(outputs)
        if not fitted and self._stack is not None:
            self._outputs[key] = kept
            if _bytes(list(self._outputs.values())) > SHARED_BYTES:
                self._stack, self._outputs = None, {}
        return self.judge.join(parts)


def _bytes(outputs: Any) -> int:
    if isinstance(outputs, torch.Tensor):
        return outputs.nbytes
    return sum(map(_bytes, outputs)) if isinstance(outputs, (list, tuple)) else 0


def leave_one_out(ablations: Ablations, heads: Sequence[HeadId]) -> npt.NDArray[np.float64]:
    """Rise of the loss without each head alone, on every sample: (n_head, n_sample)."""
    return np.array([ablations.loss([head]).values - ablations.intact.values for head in heads])
