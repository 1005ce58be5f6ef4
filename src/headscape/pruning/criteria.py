"""Criteria: one score per head, lowest removed first. They have names; any function of the evidence is a criterion too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata

from headscape.attention.intervene import gates
from headscape.attention.sites import select_heads
from headscape.attention.weights import parts_of, read
from headscape.errors import InputError
from headscape.pruning.ablation import Ablations, leave_one_out
from headscape.pruning.compensation import Fitted, fit_compensation, without_heads
from headscape.pruning.evidence import Evidence
from headscape.pruning.judges import slopes
from headscape.pruning.novelty import novelty

__all__ = ["CRITERIA", "Criterion", "draw_order", "find_criterion", "rank_average", "scores"]

FloatArray = npt.NDArray[np.float64]
AGAIN, AGAIN_UNTIL = 10, 0.5  # measured again after every tenth of the heads, until half of them are removed


def redundancy(e: Evidence) -> FloatArray:
    """Place in the order of removal when, at each step, one of the two nearest kept heads is removed.

    Of the two, the one nearer to the rest is removed, so that each tight cluster keeps one representative. The score is
    the step at which a head is removed; the last head has the highest.
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
        one = a if not rest.any() or D[a, rest].min() <= D[b, rest].min() else b
        score[one], kept[one] = step, False
        D[one], D[:, one] = np.inf, np.inf
    return score


def output_norm(e: Evidence) -> FloatArray:
    """Norm of the head's mean contribution to the residual stream, after its slice of W_O."""
    found = {}
    for site in e.network.sites:
        weight = e.projections[site.name]
        slices = weight.reshape(len(weight), site.n_heads, -1)
        mean = e.moments[site.name][-1, :-1].reshape(site.n_heads, -1).cpu()
        found[site.name] = torch.linalg.norm(torch.einsum("ohd,hd->ho", slices, mean), dim=1).numpy()
    return e.gather(found)


def coupling(e: Evidence) -> FloatArray:
    """Frobenius norm of W_Q^T W_K of a head with the key of its group: from the weights alone (as Gate-Norm)."""
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

    For an encoder without a loss, L is its embedding along a random direction.
    """
    return _slopes(e, {})


def _slopes(e: Evidence, fitted: Mapping[str, Fitted]) -> FloatArray:
    totals = {site.name: np.zeros(site.n_heads) for site in e.network.sites}
    with gates(e.network) as values, without_heads(e.network, fitted):
        for slope in slopes(e.network, e.samples, e.seed):
            slope.backward()  # type: ignore[no-untyped-call]
            for name, gate in values.items():
                if gate.grad is not None:
                    totals[name] += gate.grad.abs().double().cpu().numpy()
                    gate.grad = None
            e.network.module.zero_grad(set_to_none=True)
    return e.gather({name: total / max(len(e.samples), 1) for name, total in totals.items()})


def gradient_again(e: Evidence) -> FloatArray:
    """Gradient importance measured again after every tenth of the heads (as Greedy-Gnorm): place in the order of removal.

    Removed heads keep their mean output, as they do when compensated.
    """
    n = len(e.heads)
    score = np.full(n, float(n))
    removed: list[int] = []
    while len(removed) < n:
        chosen = select_heads(e.network, [e.heads[i] for i in removed])
        found = _slopes(e, fit_compensation(e.network, chosen, e.moments, "mean"))
        found[removed] = np.inf
        for i in np.argsort(found, kind="stable")[: min(max(1, n // AGAIN), n - len(removed))]:
            score[i] = len(removed)
            removed.append(int(i))
        if len(removed) >= n * AGAIN_UNTIL:
            found[removed] = np.inf
            rest = [int(i) for i in np.argsort(found, kind="stable")[: n - len(removed)]]
            score[rest] = np.arange(len(removed), n)
            break
    return score


def draw_order(n: int, random_state: int | np.random.Generator) -> FloatArray:
    """A random order of n heads, as scores."""
    return np.random.default_rng(random_state).permutation(n).astype(float)


def oracle(e: Evidence) -> FloatArray:
    """Mean rise of the loss when this head alone is removed, on a few of the ranking samples."""
    return np.asarray(leave_one_out(Ablations(e.brief_judge), e.heads).mean(axis=1))


@dataclass(frozen=True)
class Criterion:
    """A named criterion: what it measures, whether it needs gradients, and whether the organize study."""

    name: str
    function: Callable[[Evidence], FloatArray]
    about: str
    gradients: bool = False
    organized: bool = False


CRITERIA = {
    c.name: c
    for c in (
        Criterion("redundancy", redundancy, "one of the two nearest heads is removed, repeatedly", organized=True),
        Criterion("output_norm", output_norm, "norm of the mean contribution after W_O"),
        Criterion("novelty", novelty, "what the other heads of the layer cannot predict, after W_O"),
        Criterion("coupling", coupling, "norm of W_Q^T W_K, from the weights alone"),
        Criterion("gradient", gradient, "|dL/d gate|, Michel et al. 2019", gradients=True),
        Criterion("gradient_again", gradient_again, "|dL/d gate|, measured again after every tenth", gradients=True),
        Criterion("depth", lambda e: np.array([-float(head.layer) for head in e.heads]), "late layers first"),
        Criterion("random", lambda e: draw_order(len(e.heads), e.seed), "a random order"),
        Criterion("leave_one_out", oracle, "rise of the loss when this head alone is removed"),
        *(
            Criterion(name, partial(Evidence.column, name=column), about, organized=True)
            for name, column, about in (
                ("l1_top", "l1_top", "size of a head's 400 coarsest Haar coefficients, the paper's"),
                ("l1_all", "l1_all", "size of all Haar coefficients of a head on the organized trees"),
                ("l1_rel", "l1_rel", "spread of a head's energy over its Haar coefficients, without the mean"),
                ("l1_all_random", "l1_all_random", "control: l1_all on trees with permuted leaves"),
                ("l1_all_natural", "l1_all_natural", "control: l1_all in the natural order"),
                ("attention_entropy", "uniform", "entropy of the attention rows over that of uniform rows"),
            )
        ),
    )
}


def find_criterion(name: str | Callable[[Evidence], FloatArray]) -> Criterion:
    """A criterion by name, "a+b" for the average of ranks, or any function of the evidence."""
    if callable(name):
        return Criterion(getattr(name, "__name__", "own"), name, "supplied by the user")
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
        f"average of the ranks by {' and '.join(parts)}",
        any(c.gradients for c in chosen),
    )


def rank_average(several: Sequence[FloatArray]) -> FloatArray:
    """Mean of the ranks that several scores give the heads.

    >>> rank_average([np.array([1.0, 2.0, 3.0]), np.array([30.0, 10.0, 20.0])]).tolist()
    [2.0, 1.5, 2.5]
    """
    return np.asarray(np.mean([rankdata(values) for values in several], axis=0))


def scores(criterion: str | Callable[[Evidence], FloatArray], evidence: Evidence) -> FloatArray:
    """Score every head, lowest removed first; checks what a user's function returns."""
    found = np.asarray(find_criterion(criterion).function(evidence), dtype=float)
    if found.shape != (len(evidence.heads),) or not np.isfinite(found).all():
        what = "" if np.isfinite(found).all() else " with NaN or infinity"
        raise InputError(
            f"criterion {criterion} gave scores of shape {found.shape}{what}; "
            f"{len(evidence.heads)} finite ones are needed"
        )
    return evidence.by_unit(found)
