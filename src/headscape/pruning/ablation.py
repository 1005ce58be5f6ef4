"""Loss with heads removed, computing only the layers that a removal can change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headscape.attention.loss import Loss
from headscape.attention.sites import select_heads
from headscape.attention.stack import stack_of
from headscape.pruning.compensation import Fold, Moments, folded, folds_of
from headscape.pruning.judges import Judge
from headscape.tensor import HeadId

__all__ = ["Ablations", "leave_one_out"]

FloatArray = npt.NDArray[np.float64]
SHARED_BYTES = 2 << 30  # outputs of layers kept at most


class Ablations:
    """Losses of one model by one judge, for many sets of removed heads.

    The intact model is run once and the output of every layer kept; a set whose lowest head is in layer L then starts
    from layer L. That is exact: nothing below a removed head changes.

    Parameters
    ----------
    judge
        What to measure on.
    moments
        From `moments_on`, for compensations.
    share
        Whether to keep the layers' outputs; given up where they take more than 2 GiB.
    """

    def __init__(self, judge: Judge, moments: Moments | None = None, *, share: bool = True) -> None:
        self.judge, self.moments = judge, moments
        self._stack = stack_of(judge.model) if share else None
        self._outputs: list[list[Any]] = []
        self.intact = self._run({}, keep=True)

    def loss(self, heads: Iterable[HeadId], compensation: str = "none") -> Loss:
        """Loss per sample with these heads removed."""
        chosen = select_heads(self.judge.model, list(heads)) if heads else {}
        return self._run(folds_of(self.judge.model, chosen, self.moments, compensation))

    def _run(self, folds: Mapping[str, Fold], keep: bool = False) -> Loss:
        changed = [site for site in self.judge.model.sites if site.name in folds]
        first = self._stack.first(changed) if self._stack is not None else 0
        parts = []
        with torch.no_grad(), folded(self.judge.model, folds):
            for number, task in enumerate(self.judge.tasks):
                with ExitStack() as during:
                    if keep and self._stack is not None:
                        self._outputs.append(during.enter_context(self._stack.recorded()))
                    elif self._stack is not None and first > 0:
                        during.enter_context(self._stack.replayed(self._outputs[number], first))
                    parts.append(self.judge.run(task))
                if keep and _bytes(self._outputs) > SHARED_BYTES:
                    self._stack, self._outputs = None, []
        return self.judge.join(parts)


def _bytes(outputs: Any) -> int:
    if isinstance(outputs, torch.Tensor):
        return outputs.nbytes
    return sum(map(_bytes, outputs)) if isinstance(outputs, (list, tuple)) else 0


def leave_one_out(
    ablations: Ablations,
    heads: Sequence[HeadId],
    compensation: str = "none",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FloatArray:
    """Rise of the loss when one head goes, for every head and sample: (n_head, n_sample)."""
    rises = []
    for done, head in enumerate(heads, start=1):
        rises.append(ablations.loss([head], compensation).values - ablations.intact.values)
        progress(done, len(heads))
    return np.array(rises)
