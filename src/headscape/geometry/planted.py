"""Tensors with a hierarchy planted on their axes, for tests, benchmarks and the documentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from headscape.checks import finite, integer, one_of, seed
from headscape.errors import InputError
from headscape.tensor import AXES
from headscape.tree import PartitionTree
from headscape.wavelets.haar import haar_support, inverse_haar_transform

__all__ = ["Planted", "planted"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Labels = dict[str, dict[str, IntArray]]

_COARSE = (4, 4, 4)
_FINE = (16, 16, 8)
_SOFTNESS = 2.0  # what scores are multiplied by before softmax
_DECAY = 0.6  # smoothness of kind "smooth"
_RANK = 4  # of the coarse and of the fine part of kind "low_rank"


@dataclass(frozen=True, eq=False)
class Planted:
    """A tensor and the partitions planted in it."""

    values: npt.NDArray[np.float32]
    """(n_query, n_key, n_head)."""
    labels: Labels
    """``labels["query"]["fine"]``: cluster of every query; axes without a planted partition are absent."""
    kind: str
    noise: float

    def __repr__(self) -> str:
        axes = ", ".join(self.labels)
        return f"Planted({self.kind}, shape {self.values.shape}, noise {self.noise:g}, labels on {axes})"


def planted(
    kind: str = "blocks",
    shape: tuple[int, int, int] = (64, 64, 32),
    noise: float = 0.25,
    random_state: int | None = 0,
) -> Planted:
    """Make a tensor (query, key, head) with a known hierarchy; every axis is shuffled, and its labels with it.

    Parameters
    ----------
    kind
        * "blocks": 4 x 4 x 4 coarse and 16 x 16 x 8 fine clusters; N(0, 1) per coarse block + 0.5 N(0, 1) per fine
          block, standardized, + noise N(0, 1).
        * "softmax": softmax over keys of 2 (such a signal with its noise).
        * "smooth": Haar synthesis on dyadic trees, coefficients N(0, 1) volume^(0.6 + 1/2) with volume the product of
          support fractions, standardized, + noise N(0, 1). Sides must be powers of two. Same cluster counts.
        * "low_rank": softmax over keys of 2 (Qc Kc^T + Qf Kf^T) / sqrt(8) + noise N(0, 1); factors of rank 4, the
          coarse ones shared by pairs of the 8 head clusters. Only heads carry labels.
    shape
        (n_query, n_key, n_head); clusters are as equal in size as the sides allow.
    noise
        Standard deviation of the noise added to a signal of standard deviation 1 ("low_rank": to the scores).

    Raises
    ------
    InputError
        For an unknown kind, or a shape it cannot have.

    >>> hs.planted("softmax", (32, 32, 16), noise=0.5, random_state=3)
    Planted(softmax, shape (32, 32, 16), noise 0.5, labels on query, key, head)
    """
    one_of("kind", kind, _KINDS)
    if random_state is not None:
        seed(random_state)
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise InputError(f"a planted tensor needs a shape of at least {_FINE}, not {shape!r}")
    if any(integer("a side of shape", n) < fine for n, fine in zip(shape, _FINE, strict=True)):
        raise InputError(f"a planted tensor needs a shape of at least {_FINE}, not {tuple(shape)}")
    if finite("noise", noise) < 0:
        raise InputError(f"noise must not be negative, it is {noise}")
    rng = np.random.default_rng(random_state)
    values, labels = _KINDS[kind](shape, noise, rng)
    moves = [rng.permutation(n) for n in shape]
    shuffled = values[np.ix_(*moves)].astype(np.float32)
    moved = {
        axis: {depth: label[moves[AXES.index(axis)]] for depth, label in depths.items()}
        for axis, depths in labels.items()
    }
    return Planted(shuffled, moved, kind, float(noise))


def _balanced(n: int, count: int) -> IntArray:
    """Contiguous clusters whose sizes differ by at most one."""
    return np.arange(n, dtype=np.intp) * count // n


def _labels(shape: tuple[int, int, int]) -> Labels:
    return {
        axis: {"coarse": _balanced(n, coarse), "fine": _balanced(n, fine)}
        for axis, n, coarse, fine in zip(AXES, shape, _COARSE, _FINE, strict=True)
    }


def _standardize(signal: FloatArray) -> FloatArray:
    standard: FloatArray = (signal - signal.mean()) / signal.std()
    return standard


def _blocks(shape: tuple[int, int, int], noise: float, rng: np.random.Generator) -> tuple[FloatArray, Labels]:
    labels = _labels(shape)
    coarse = rng.standard_normal(_COARSE)[np.ix_(*(labels[axis]["coarse"] for axis in AXES))]
    fine = rng.standard_normal(_FINE)[np.ix_(*(labels[axis]["fine"] for axis in AXES))]
    return _standardize(coarse + 0.5 * fine) + noise * rng.standard_normal(shape), labels


def _softmax_blocks(shape: tuple[int, int, int], noise: float, rng: np.random.Generator) -> tuple[FloatArray, Labels]:
    values, labels = _blocks(shape, noise, rng)
    return np.asarray(softmax(_SOFTNESS * values, axis=1)), labels


def _smooth(shape: tuple[int, int, int], noise: float, rng: np.random.Generator) -> tuple[FloatArray, Labels]:
    if any(n & (n - 1) for n in shape):
        raise InputError(f"kind 'smooth' needs sides that are powers of two, not {shape}")
    trees = [PartitionTree.dyadic(n) for n in shape]
    q, k, h = (haar_support(tree).support / tree.n_leaves for tree in trees)
    volume = q[:, None, None] * k[None, :, None] * h[None, None, :]
    signal = inverse_haar_transform(rng.standard_normal(shape) * volume ** (_DECAY + 0.5), trees)
    return _standardize(signal) + noise * rng.standard_normal(shape), _labels(shape)


def _low_rank(shape: tuple[int, int, int], noise: float, rng: np.random.Generator) -> tuple[FloatArray, Labels]:
    n_query, n_key, _ = shape
    n_coarse, n_fine = _COARSE[2], _FINE[2]

    def products(count: int) -> FloatArray:
        queries, keys = (rng.standard_normal((count, n, _RANK)) for n in (n_query, n_key))
        return queries @ keys.transpose(0, 2, 1)

    coarse, fine = products(n_coarse), products(n_fine)
    scores = (coarse[np.arange(n_fine) * n_coarse // n_fine] + fine) / np.sqrt(2 * _RANK)
    head = _labels(shape)["head"]
    values = _SOFTNESS * np.moveaxis(scores[head["fine"]], 0, 2) + noise * rng.standard_normal(shape)
    return np.asarray(softmax(values, axis=1)), {"head": head}


_KINDS: dict[str, Callable[[tuple[int, int, int], float, np.random.Generator], tuple[FloatArray, Labels]]] = {
    "blocks": _blocks,
    "softmax": _softmax_blocks,
    "smooth": _smooth,
    "low_rank": _low_rank,
}
