"""Criteria: one score a head, low = remove first. Found by name; a function of one's own is a criterion too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch import Tensor

from headscape.attention.intervene import gates
from headscape.attention.sites import select_heads
from headscape.attention.weights import parts_of, read
from headscape.errors import InputError
from headscape.pruning.ablation import Ablations, leave_one_out
from headscape.pruning.compensation import Fold, folded, folds_of
from headscape.pruning.evidence import Evidence
from headscape.pruning.judges import slopes
from headscape.pruning.novelty import novelty

__all__ = ["CRITERIA", "Criterion", "Evidence", "find_criterion", "rank_average", "scores"]

FloatArray = npt.NDArray[np.float64]
AGAIN, AGAIN_UNTIL = 10, 0.5  # re-measured after every tenth of the heads, until half of them have gone


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
    found = {}
    for site in e.network.sites:
        slices = _by_head(e.projections[site.name], site.n_heads)
        mean = e.moments[site.name][-1, :-1].reshape(site.n_heads, -1).cpu()
        found[site.name] = torch.linalg.norm(torch.einsum("ohd,hd->ho", slices, mean), dim=1).numpy()
    return e.gather(found)


def _by_head(weight: Tensor, n_heads: int) -> Tensor:
    return weight.reshape(len(weight), n_heads, -1)


def coupling(e: Evidence) -> FloatArray:
    """Frobenius norm of W_Q^T W_K of a head with its group's key: from the weights alone (as Gate-Norm, for heads)."""
    parts, _ = parts_of(e.network)
    found = {}
    by_place = {(part.block, part.layer, part.kind): part for part in parts}
    for site in e.network.sites:
        q, k = (by_place.get((site.block, site.layer, kind)) for kind in ("q", "k"))
        if q is None or k is None:
            raise InputError(f"criterion coupling finds no query and key weights in layer {site.block}.{site.layer}")
        queries, keys = (part.by_head(read(e.network, part).astype(np.float64)) for part in (q, k))
        group = len(queries) // len(keys)
        # |Q^T K|^2 = <Q Q^T, K K^T>
        grams = [(Q @ Q.T, keys[h // group] @ keys[h // group].T) for h, Q in enumerate(queries)]
        found[site.name] = np.array([np.sqrt((a * b).sum()) for a, b in grams])
    return e.gather(found)


def gradient(e: Evidence) -> FloatArray:
    """Mean over sequences of |dL/d gate|, the gate multiplying the head's output (Michel et al. 2019).

    An encoder without a loss has its embedding along a random direction in the place of L.
    """
    return _slopes(e, {})


def _slopes(e: Evidence, folds: Mapping[str, Fold]) -> FloatArray:
    totals = {site.name: np.zeros(site.n_heads) for site in e.network.sites}
    with gates(e.network) as values, folded(e.network, folds):
        for slope in slopes(e.network, e.samples, e.seed):
            slope.backward()  # type: ignore[no-untyped-call]
            for name, gate in values.items():
                if gate.grad is not None:
                    totals[name] += gate.grad.abs().double().cpu().numpy()
                    gate.grad = None
            e.network.module.zero_grad(set_to_none=True)
    return e.gather({name: total / max(len(e.samples), 1) for name, total in totals.items()})


def gradient_again(e: Evidence) -> FloatArray:
    """Gradient importance measured anew after every tenth of the heads has gone (as Greedy-Gnorm): place in the order.

    Heads that have gone keep their mean output, as they do when compensated.
    """
    n = len(e.heads)
    score = np.full(n, float(n))
    gone: list[int] = []
    while len(gone) < n:
        chosen = select_heads(e.network, [e.heads[i] for i in gone]) if gone else {}
        found = _slopes(e, folds_of(e.network, chosen, e.moments, "mean"))
        found[gone] = np.inf
        for i in np.argsort(found, kind="stable")[: min(max(1, n // AGAIN), n - len(gone))]:
            score[i] = len(gone)
            gone.append(int(i))
        if len(gone) >= n * AGAIN_UNTIL:
            found[gone] = np.inf
            rest = [int(i) for i in np.argsort(found, kind="stable")[: n - len(gone)]]
            score[rest] = np.arange(len(gone), n)
            break
    return score


def depth(e: Evidence) -> FloatArray:
    """Late layers first: minus the layer."""
    return np.array([-float(head.layer) for head in e.heads])


def random(e: Evidence) -> FloatArray:
    """A random order, by the seed."""
    return np.random.default_rng(e.seed).permutation(len(e.heads)).astype(float)


def oracle(e: Evidence) -> FloatArray:
    """Mean rise of the loss when the head alone is removed, on the ranking samples."""
    return np.asarray(leave_one_out(Ablations(e.brief_judge), e.heads).mean(axis=1))


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
        Criterion("l1_all_random", _named("l1_all_random"), "control: the same on trees with permuted leaves"),
        Criterion("l1_all_natural", _named("l1_all_natural"), "control: the same in the natural order"),
        Criterion("attention_entropy", _named("uniform"), "entropy of the rows over that of even rows"),
        Criterion("redundancy", redundancy, "nearest pairs of heads first, one of each kept"),
        Criterion("output_norm", output_norm, "norm of the mean contribution after W_O"),
        Criterion("novelty", novelty, "what the layer's other heads cannot predict, after W_O"),
        Criterion("coupling", coupling, "norm of W_Q^T W_K, from the weights alone"),
        Criterion("gradient", gradient, "|dL/d gate| (Michel et al. 2019)", gradients=True),
        Criterion("gradient_again", gradient_again, "the same, measured anew after every tenth", gradients=True),
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
