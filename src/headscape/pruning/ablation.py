"""Loss with heads removed, computing only the layers that a removal can change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from headscape.attention.intervene import ablate
from headscape.attention.loss import Loss, joined, task_loss, tasks_of
from headscape.attention.models import Model
from headscape.attention.samples import Sample
from headscape.errors import InputError
from headscape.tensor import HeadId

__all__ = ["Ablations", "leave_one_out", "leave_one_out_naively"]

FloatArray = npt.NDArray[np.float64]


def _layers_of(model: Model) -> list[torch.nn.Module] | None:
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
    """Losses of one model on fixed samples, for many sets of removed heads.

    The intact model is run once and the output of every layer kept; a set whose lowest head is in layer L then starts
    from layer L. That is exact: nothing below a removed head changes.

    Parameters
    ----------
    samples
        What to measure on, from `samples_of`.
    how, means
        As in `ablate`.
    """

    def __init__(
        self,
        model: Model,
        samples: Sequence[Sample],
        *,
        how: Literal["zero", "mean"] = "zero",
        means: Mapping[HeadId, npt.NDArray[Any]] | None = None,
        share: bool = True,
        seed: int = 0,
    ) -> None:
        self.model, self.how, self.means = model, how, means
        self._tasks = tasks_of(model, samples, seed)
        self._layers = _layers_of(model) if share else None
        self._outputs: list[list[Any]] = []
        self.intact = self._run(frozenset(), keep=True)

    def loss(self, heads: Iterable[HeadId]) -> Loss:
        """Loss per sample with these heads removed."""
        return self._run(frozenset(heads))

    def _run(self, heads: frozenset[HeadId], keep: bool = False) -> Loss:
        first = min((head.layer for head in heads), default=0)
        parts = []
        with torch.no_grad():
            for number, task in enumerate(self._tasks):
                with ExitStack() as stack:
                    if keep and self._layers is not None:
                        self._outputs.append(stack.enter_context(_recorded(self._layers)))
                    elif self._layers is not None and first > 0:
                        stack.enter_context(_replayed(self._layers, self._outputs[number], first))
                    if heads:
                        stack.enter_context(ablate(self.model, sorted(heads), self.how, means=self.means))
                    parts.append(task_loss(self.model, task))
        return joined(self.model, parts)


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
    ablations: Ablations, heads: Sequence[HeadId], progress: Callable[[int, int], None] = lambda done, total: None
) -> FloatArray:
    """Rise of the loss when one head goes, for every head and sample: (n_head, n_sample)."""
    rises = []
    for done, head in enumerate(heads, start=1):
        rises.append(ablations.loss([head]).values - ablations.intact.values)
        progress(done, len(heads))
    return np.array(rises)


def leave_one_out_naively(model: Model, samples: Sequence[Sample], heads: Sequence[HeadId]) -> FloatArray:
    """The same by whole forward passes, one head after the other; the baseline of the benchmark."""
    if not heads:
        raise InputError("no heads given")
    plain = Ablations(model, samples, share=False)
    return leave_one_out(plain, heads)
