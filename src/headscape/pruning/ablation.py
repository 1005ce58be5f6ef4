"""Loss with heads removed, computing only the layers that a removal can change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headscape.attention.loss import Loss
from headscape.attention.models import Model
from headscape.attention.sites import select_heads
from headscape.pruning.compensation import Fold, Moments, folded, folds_of
from headscape.pruning.judges import Judge
from headscape.tensor import HeadId

__all__ = ["Ablations", "layers_of", "leave_one_out", "leave_one_out_naively"]

FloatArray = npt.NDArray[np.float64]
SHARED_BYTES = 2 << 30  # outputs of layers kept at most


def layers_of(model: Model) -> list[torch.nn.Module] | None:
    """The stack of layers a decoder or encoder runs one after the other, or None where it is not a plain stack."""
    modules = dict(model.module.named_modules())
    found: dict[str, torch.nn.Module] = {}
    for site in model.sites:
        matched = re.match(r"(.*?\.\d+)(\.|$)", site.name)
        if matched is None:
            return None
        found[matched[1]] = modules[matched[1]]
    stacks = {name.rpartition(".")[0] for name in found}
    return list(found.values()) if len(stacks) == 1 and len(found) == len(model.sites) else None


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
        self._layers = layers_of(judge.model) if share else None
        self._outputs: list[list[Any]] = []
        self.intact = self._run({}, keep=True)

    def loss(self, heads: Iterable[HeadId], compensation: str = "none") -> Loss:
        """Loss per sample with these heads removed."""
        chosen = select_heads(self.judge.model, list(heads)) if heads else {}
        return self._run(folds_of(self.judge.model, chosen, self.moments, compensation))

    def _run(self, folds: Mapping[str, Fold], keep: bool = False) -> Loss:
        changed = [site.layer for site in self.judge.model.sites if site.name in folds]
        first = min(changed, default=0)
        parts = []
        with torch.no_grad(), folded(self.judge.model, folds):
            for number, task in enumerate(self.judge.tasks):
                with ExitStack() as stack:
                    if keep and self._layers is not None:
                        self._outputs.append(stack.enter_context(_recorded(self._layers)))
                    elif self._layers is not None and first > 0:
                        stack.enter_context(_replayed(self._layers, self._outputs[number], first))
                    parts.append(self.judge.run(task))
                if keep and _bytes(self._outputs) > SHARED_BYTES:
                    self._layers, self._outputs = None, []
        return self.judge.join(parts)


def _bytes(outputs: Any) -> int:
    if isinstance(outputs, torch.Tensor):
        return outputs.nbytes
    return sum(map(_bytes, outputs)) if isinstance(outputs, (list, tuple)) else 0


@contextmanager
def _recorded(layers: Sequence[torch.nn.Module]) -> Iterator[list[Any]]:
    """Collect what each layer returns."""
    outputs: list[Any] = []
    handles = [layer.register_forward_hook(lambda _, __, result: outputs.append(result)) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _replayed(layers: Sequence[torch.nn.Module], outputs: Sequence[Any], first: int) -> Iterator[None]:
    """Let every layer below `first` return what it returned before, without computing it."""
    for layer, output in zip(layers[:first], outputs[:first], strict=True):
        layer.__dict__["forward"] = lambda *_, _output=output, **__: _output
    try:
        yield
    finally:
        for layer in layers[:first]:
            layer.__dict__.pop("forward", None)


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


def leave_one_out_naively(judge: Judge, heads: Sequence[HeadId]) -> FloatArray:
    """The same by whole forward passes, one head after the other; the baseline of the benchmark."""
    return leave_one_out(Ablations(judge, share=False), heads)
