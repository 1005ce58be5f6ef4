"""What the softmax study measures of one head: its log-attention, organized, decomposed and compared with softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from headscape.errors import InputError
from headscape.geometry.matrix import organize_matrix
from headscape.geometry.questionnaire import Questionnaire
from headscape.tensor import as_probabilities
from headscape.tree import PartitionTree
from headscape.wavelets.paraproduct import Averages, Paraproduct
from headscape.wavelets.regularity import holder_constants, holder_exponent, mixed_difference

__all__ = [
    "COLUMNS",
    "VARIANTS",
    "Head",
    "Trees",
    "as_probabilities",
    "compare",
    "log_attention",
    "measure",
    "organize",
    "scales",
]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

ALPHA = 0.25
"""Exponent for which the constants of eq. 2 are given: the middle of what Theorem 1 admits, 0 < alpha < 1/2."""
TOP = 5
LATER_VARIANTS = ("second_order", "printed")
VARIANTS = ("paraproduct", "corollary", "boundary", "mean", "linear", "natural", "natural_corollary", *LATER_VARIANTS)
"""What can replace softmax(S) of a head: the decomposition on the organized trees, with A' = A'' = exp and with the
derivatives of Corollary 1; its boundary terms alone; the overall mean alone; the best a + b g; both decompositions on
dyadic trees in the natural order; the decomposition with all terms of second order; and eq. 12 as printed, without
boundary terms."""
_DISTANCES = ("error", "kl", "top5")
_REGULARITY = (
    *("alpha", "alpha_largest", "alpha_query", "alpha_key", "alpha_natural", "alpha_shuffled"),
    *("alpha_coarse", "alpha_residual", "alpha_residual_query", "alpha_residual_key"),
    *("roughness", "roughness_natural", "roughness_shuffled"),
    *("constant_query", "constant_key", "constant_mixed", "constant_mixed_natural"),
)
_CONDITION = ("spread", "mixed_rms", "mixed_max", "mixed_share", "average_rms", "average_max")
COLUMNS = (
    *(
        f"{variant}_{distance}"
        for variant in (*VARIANTS[: -len(LATER_VARIANTS)], "shuffled", "shuffled_corollary")
        for distance in _DISTANCES
    ),
    *_REGULARITY,
    *_CONDITION,
    *(f"{variant}_{distance}" for variant in LATER_VARIANTS for distance in _DISTANCES),
)
"""What `measure` returns, in order; stored results are read by this list, so new ones come last."""


class Trees(NamedTuple):
    """A tree for the queries and one for the keys of a head."""

    query: PartitionTree
    key: PartitionTree


def log_attention(scores: npt.ArrayLike, present: BoolArray) -> FloatArray:
    """Return g = S - logsumexp over the present entries of each row: exp(g) = softmax(S); NaN where absent.

    >>> np.exp(log_attention([[1.0, 9.0], [0.0, 0.0]], np.tri(2, dtype=bool)))
    array([[1. , nan], [0.5, 0.5]])
    """
    masked = np.where(present, np.asarray(scores, dtype=np.float64), -np.inf)
    if not present.any(axis=1).all():
        raise InputError(f"query {int(np.argmin(present.any(axis=1)))} has no key to attend to")
    g = masked - logsumexp(masked, axis=1, keepdims=True)
    return np.where(present, g, np.nan)


def organize(g: FloatArray, present: BoolArray, settings: Mapping[str, Any]) -> Trees:
    """Organize the log-attention of one head by the 2-D questionnaire.

    An absent entry is given the mean of its row, so that it does not influence which keys a query prefers.
    """
    filled = np.where(present, g, np.nanmean(g, axis=1, keepdims=True))
    questionnaire = Questionnaire(**settings)
    questionnaire.traced = False
    fit = organize_matrix(filled, questionnaire)
    return Trees(fit.row_tree, fit.col_tree)


def shuffled(g: FloatArray, present: BoolArray, random_state: int) -> FloatArray:
    """The null: the present entries of every row in a random order of keys."""
    rng = np.random.default_rng(random_state)
    out = g.copy()
    for row, here in zip(out, present, strict=True):
        row[here] = rng.permutation(row[here])
    return out


@dataclass(frozen=True, eq=False)
class Head:
    """The log-attention of one head, its present entries, and its trees."""

    g: FloatArray
    present: BoolArray
    trees: Trees

    @property
    def softmax(self) -> FloatArray:
        """exp(g), and 0 where absent."""
        return np.exp(np.where(self.present, self.g, -np.inf))

    @cached_property
    def top(self) -> BoolArray:
        """Its five largest keys by query."""
        return largest(self.softmax, self.present)

    @cached_property
    def averages(self) -> Averages:
        """Joint means over pairs of clusters (folders, in the paper) of the two trees."""
        return Averages(self.g, self.trees.query, self.trees.key, self.present)

    @cached_property
    def paraproduct(self) -> Paraproduct:
        """The decomposition with A' = A'' = exp."""
        return self._both[0]

    @cached_property
    def _both(self) -> list[Paraproduct]:
        return self.averages.paraproducts("exp", "corollary")

    @cached_property
    def natural(self) -> Head:
        """The same head on dyadic trees in the order of the tokens."""
        return replace(self, trees=Trees(*(PartitionTree.dyadic(n) for n in self.g.shape)))

    def approximation(self, variant: str) -> FloatArray:
        """One of `VARIANTS` as it is: entries may be negative and rows need not sum to 1; NaN where absent."""
        if variant == "paraproduct":
            return self.paraproduct.approximation
        if variant in ("boundary", "second_order"):
            return np.asarray(getattr(self.paraproduct, variant))
        if variant == "printed":
            return self.paraproduct.approximation - self.paraproduct.boundary
        if variant == "corollary":
            return self._both[1].approximation
        if variant in ("natural", "natural_corollary"):
            return self.natural.approximation("paraproduct" if variant == "natural" else "corollary")
        if variant == "mean":
            return np.where(self.present, np.exp(self.g[self.present].mean()), np.nan)
        if variant == "linear":
            return _linear(self.g, self.softmax, self.present)
        raise InputError(f"unknown variant {variant!r}; there are {', '.join(sorted(VARIANTS))}")


def _linear(g: FloatArray, softmax: FloatArray, present: BoolArray) -> FloatArray:
    """The least-squares a + b g; the mean where g does not vary."""
    x, y = g[present], softmax[present]
    x = x - x.mean()
    slope = float(x @ y / (x @ x)) if (x @ x) > 0 else 0.0
    out = np.full(g.shape, np.nan)
    out[present] = y.mean() + slope * x
    return out


def largest(values: FloatArray, present: BoolArray) -> BoolArray:
    """The five largest keys of every query with more than five, marked; ties go to the first keys."""
    rows = np.flatnonzero(present.sum(axis=1) > TOP)
    order = np.argsort(-np.where(present, values, -np.inf)[rows], axis=1, kind="stable")[:, :TOP]
    marks = np.zeros((len(rows), present.shape[1]), dtype=bool)
    np.put_along_axis(marks, order, True, axis=1)
    return marks


def compare(
    approximation: FloatArray, g: FloatArray, present: BoolArray, top: BoolArray | None = None
) -> tuple[float, float, float]:
    """How far an approximation is from softmax = exp(g): relative error, row KL, overlap of the five largest keys.

    The error is ||approximation - softmax|| / ||softmax|| (Frobenius, of the approximation as it is). KL(approximation
    || softmax), mean over rows, is that of the clipped and renormalized one; softmax is never 0, so it is finite. The
    overlap is the mean share of keys in common, over queries with more than five keys; `top` is `largest` of softmax,
    where it is known already.
    """
    softmax = np.exp(np.where(present, g, -np.inf))
    error = np.linalg.norm(np.where(present, approximation - softmax, 0.0)) / np.linalg.norm(softmax)
    q = as_probabilities(approximation, present)
    log_ratio = np.log(np.where(q > 0, q, 1.0)) - np.where(q > 0, g, 0.0)
    kl = float((q * log_ratio).sum(axis=1).mean())
    top = largest(softmax, present) if top is None else top
    if not len(top):
        return float(error), kl, float("nan")
    return float(error), kl, float((top & largest(approximation, present)).sum() / (TOP * len(top)))


def measure(head: Head, settings: Mapping[str, Any], random_state: int = 0) -> tuple[dict[str, float], str]:
    """Everything the study measures of one head on one input, by `COLUMNS`; and a note where a value is missing."""
    mixed_up = shuffled(head.g, head.present, random_state)
    null = Head(mixed_up, head.present, organize(mixed_up, head.present, settings))
    out, note = _regularity(head, null)
    out |= _condition(head.averages)
    asked = [(variant, head, variant) for variant in VARIANTS]
    asked += [("shuffled", null, "paraproduct"), ("shuffled_corollary", null, "corollary")]
    for name, of, variant in asked:
        distances = compare(of.approximation(variant), of.g, of.present, of.top)
        out |= {f"{name}_{distance}": value for distance, value in zip(_DISTANCES, distances, strict=True)}
    return {name: out.get(name, float("nan")) for name in COLUMNS}, note


def _condition(averages: Averages) -> dict[str, float]:
    """What Corollary 1 needs, in nats: averages (of g minus its mean) that go to 0, so that e^average is 1."""
    present = averages.present
    rows, columns = averages.n_scales
    g = averages.values[present] - averages.mean
    mixed = (averages.values - averages.at(rows, 0) - averages.at(0, columns) + averages.mean)[present]
    points, counts = averages.base_points()
    points = points - averages.mean
    variance = float((g**2).mean())
    return {
        "spread": float(np.sqrt(variance)),
        "mixed_rms": float(np.sqrt((mixed**2).mean())),
        "mixed_max": float(np.abs(mixed).max()),
        "mixed_share": float((mixed**2).mean()) / variance if variance > 0 else float("nan"),
        "average_rms": float(np.sqrt((points**2 * counts).sum() / counts.sum())),
        "average_max": float(np.abs(points).max()),
    }


def _regularity(head: Head, null: Head) -> tuple[dict[str, float], str]:
    """Exponents, constants of eq. 2 and roughness, and a note where there is no exponent."""
    g, present, trees, natural = head.g, head.present, head.trees, head.natural.trees
    out = {
        "roughness": mixed_difference(g, trees.query.order, trees.key.order, present),
        "roughness_natural": mixed_difference(g, None, None, present),
        "roughness_shuffled": mixed_difference(null.g, null.trees.query.order, null.trees.key.order, present),
    }
    constants = holder_constants(g, *trees, ALPHA, present, n_samples=5000)
    out |= {f"constant_{name}": value for name, value in zip(("query", "key", "mixed"), constants, strict=True)}
    out["constant_mixed_natural"] = holder_constants(g, *natural, ALPHA, present, n_samples=5000).mixed
    # of the head as it is: the theorem does not remove noise. It is about scales above the finest, at which the
    # residual still holds mixed differences of its own.
    asked: dict[str, tuple[FloatArray, Trees, bool, dict[str, str]]] = {
        "": (g, trees, False, {"alpha_largest": "holder", "alpha_query": "row", "alpha_key": "col"}),
        "_natural": (g, natural, False, {}),
        "_shuffled": (null.g, null.trees, False, {}),
        "_coarse": (g, trees, True, {}),
        "_residual": (
            head.paraproduct.residual,
            trees,
            True,
            {"alpha_residual_query": "row", "alpha_residual_key": "col"},
        ),
    }
    note = ""
    for name, (matrix, on, coarse, more) in asked.items():
        try:
            fit = holder_exponent(matrix, *on, present, noise="none", leave_finest=coarse, n_draws=0)
        except InputError as error:  # uniform attention, or too few tokens for a slope
            note = note or str(error)
            continue
        out |= {f"alpha{name}": fit.exponent} | {column: getattr(fit, part) for column, part in more.items()}
    return out, note


def scales(head: Head, n_octaves: tuple[int, int]) -> FloatArray:
    """Residual and exact mixed terms by octave of clusters, (2, n_query_octaves, n_key_octaves), over ||softmax||.

    Scale j of a tree belongs to octave round(log2(number of clusters at level j)): 0 is the step down from the root.
    """
    terms = head.paraproduct.terms
    octaves = [np.rint(np.log2(tree.counts[:-1])).astype(np.intp) for tree in head.trees]
    out = np.zeros((2, *n_octaves))
    for energy, norm in zip(out, (terms.residual, terms.exact), strict=True):
        np.add.at(energy, np.ix_(*octaves), norm**2)
    shares: FloatArray = np.sqrt(out) / np.linalg.norm(head.softmax)
    return shares
