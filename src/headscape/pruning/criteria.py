"""Criteria: one score a head, low = remove first. Found by name; a function of one's own is a criterion too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from headscape.attention.intervene import gates, mean_outputs_on
from headscape.attention.loss import task_loss, tasks_of
from headscape.attention.models import Model
from headscape.attention.projections import columns_of, output_projections
from headscape.attention.samples import Sample
from headscape.errors import InputError
from headscape.pruning.ablation import Ablations, leave_one_out
from headscape.tensor import HeadId

__all__ = ["CRITERIA", "Criterion", "Evidence", "find_criterion", "rank_average", "scores"]

FloatArray = npt.NDArray[np.float64]


@dataclass
class Evidence:
    """What criteria may look at.

    `frame` has one row a head with the columns of the organize study, in the order of `heads`; `distances` are the
    consensus distances of the heads. `samples` are the ranking inputs, never those a proposal is judged on.
    """

    heads: Sequence[HeadId]
    frame: pd.DataFrame | None = None
    distances: FloatArray | None = None
    model: Model | None = None
    samples: Sequence[Sample] = field(default_factory=list)
    seed: int = 0

    def column(self, name: str) -> FloatArray:
        """A column of the organize study."""
        if self.frame is None or name not in self.frame:
            raise InputError(
                f"criterion {name} needs the organize study on probabilities; run `headscape organize` first"
            )
        return self.frame[name].to_numpy(dtype=np.float64)

    @property
    def network(self) -> Model:
        """The model, which some criteria cannot do without."""
        if self.model is None:
            raise InputError("this criterion needs the model, not only its attention; give model=")
        return self.model

    @cached_property
    def places(self) -> dict[tuple[str, int], str]:
        """Site name of each (block, layer)."""
        return {(site.block, site.layer): site.name for site in self.network.sites}

    def gather(self, by_site: dict[str, FloatArray]) -> FloatArray:
        """Scores per site as scores per head."""
        return np.array([by_site[self.places[head.block, head.layer]][head.head] for head in self.heads])


def redundancy(e: Evidence) -> FloatArray:
    """Place in the order in which heads go when, again and again, one of the nearest pair of kept heads is removed.

    Of the pair goes the one that is nearer to the rest, so of each tight folder one representative stays. The score is
    the step at which a head goes; the last head has the highest.
    """
    if e.distances is None:
        raise InputError(
            "criterion redundancy needs the distances of the organize study; run `headscape organize` first"
        )
    D = np.array(e.distances, dtype=float)
    np.fill_diagonal(D, np.inf)
    n = len(D)
    score = np.full(n, float(n))
    kept = np.ones(n, dtype=bool)
    for step in range(n - 1):
        a, b = np.unravel_index(int(np.argmin(D)), D.shape)
        rest = kept.copy()
        rest[[a, b]] = False
        gone = a if not rest.any() or D[a, rest].min() <= D[b, rest].min() else b
        score[gone], kept[gone] = step, False
        D[gone], D[:, gone] = np.inf, np.inf
    return score


def output_norm(e: Evidence) -> FloatArray:
    """Norm of the head's mean contribution to the residual stream, after its slice of W_O."""
    model = e.network
    means = mean_outputs_on(model, e.samples)
    modules = dict(model.module.named_modules())
    projections = output_projections(model)
    found = {}
    for site in model.sites:
        weight = columns_of(modules[projections[site.name]]).double().cpu().numpy()
        slices = weight.reshape(weight.shape[0], site.n_heads, -1)
        mean = np.array([means[head] for head in site.heads])
        found[site.name] = np.linalg.norm(np.einsum("ohd,hd->ho", slices, mean), axis=1)
    return e.gather(found)


def gradient(e: Evidence) -> FloatArray:
    """Mean over sequences of |dL/d gate|, the gate multiplying the head's output (Michel et al. 2019)."""
    model = e.network
    totals = {site.name: np.zeros(site.n_heads) for site in model.sites}
    for sample in e.samples:
        for task in tasks_of(model, [sample], e.seed):
            with gates(model) as values:
                task_loss(model, task)[0].mean().backward()  # type: ignore[no-untyped-call]
            for name, gate in values.items():
                if gate.grad is not None:
                    totals[name] += gate.grad.abs().double().cpu().numpy()
            model.module.zero_grad(set_to_none=True)
    return e.gather({name: total / max(len(e.samples), 1) for name, total in totals.items()})


def depth(e: Evidence) -> FloatArray:
    """Late layers first: minus the layer."""
    return np.array([-float(head.layer) for head in e.heads])


def random(e: Evidence) -> FloatArray:
    """A random order, by the seed."""
    return np.random.default_rng(e.seed).permutation(len(e.heads)).astype(float)


def oracle(e: Evidence) -> FloatArray:
    """Mean rise of the loss when the head alone is removed, on the ranking samples."""
    return np.asarray(leave_one_out(Ablations(e.network, e.samples, seed=e.seed), e.heads).mean(axis=1))


def _named(column: str) -> Callable[[Evidence], FloatArray]:
    return lambda e: e.column(column)


@dataclass(frozen=True)
class Criterion:
    """A named criterion: what it measures, and whether it takes gradients."""

    name: str
    function: Callable[[Evidence], FloatArray]
    about: str
    gradients: bool = False


CRITERIA = {
    c.name: c
    for c in (
        Criterion("l1_top", _named("l1_top"), "l1 over the 400 largest supports (the paper's)"),
        Criterion("l1_all", _named("l1_all"), "l1 of all bi-Haar coefficients on the organised trees"),
        Criterion("l1_rel", _named("l1_rel"), "l1 over l2 without the constant"),
        Criterion("attention_entropy", _named("uniform"), "entropy of the rows over that of even rows"),
        Criterion("redundancy", redundancy, "nearest pairs of heads first, one of each kept"),
        Criterion("output_norm", output_norm, "norm of the mean contribution after W_O"),
        Criterion("gradient", gradient, "|dL/d gate| (Michel et al. 2019)", gradients=True),
        Criterion("depth", depth, "late layers first"),
        Criterion("random", random, "a random order"),
        Criterion("leave_one_out", oracle, "rise of the loss without the head: the oracle of one step"),
    )
}


def find_criterion(name: str | Callable[[Evidence], FloatArray]) -> Criterion:
    """A criterion by name, "a+b" for the average of ranks, or a function of one's own."""
    if callable(name):
        return Criterion(getattr(name, "__name__", "own"), name, "given by the user")
    parts = name.split("+")
    unknown = [part for part in parts if part not in CRITERIA]
    if unknown:
        raise InputError(f"no criterion '{unknown[0]}'; there are {', '.join(sorted(CRITERIA))}, and averages a+b")
    if len(parts) == 1:
        return CRITERIA[name]
    chosen = [CRITERIA[part] for part in parts]
    return Criterion(
        name,
        lambda e: rank_average([c.function(e) for c in chosen]),
        "average of ranks: " + ", ".join(parts),
        any(c.gradients for c in chosen),
    )


def rank_average(several: Sequence[FloatArray]) -> FloatArray:
    """Mean of the ranks that several scores give the heads.

    >>> rank_average([np.array([1.0, 2.0, 3.0]), np.array([30.0, 10.0, 20.0])]).tolist()
    [2.0, 1.5, 2.5]
    """
    return np.asarray(np.mean([rankdata(values) for values in several], axis=0))


def scores(criterion: str | Callable[[Evidence], FloatArray], evidence: Evidence) -> FloatArray:
    """Score every head, low = remove first; checks what a function of one's own gives back."""
    found = np.asarray(find_criterion(criterion).function(evidence), dtype=float)
    if found.shape != (len(evidence.heads),) or not np.isfinite(found).all():
        what = "" if np.isfinite(found).all() else " with NaN or infinity"
        raise InputError(
            f"criterion {criterion} gave scores of shape {found.shape}{what}; "
            f"{len(evidence.heads)} finite ones are needed"
        )
    return found
