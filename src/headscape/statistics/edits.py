r"""Spectrum edits: change the singular values, or the bases, of weight matrices within a `with` block.

The edits are functions of a matrix :math:`W = U \mathrm{diag}(\sigma) V^T`. As interventions they apply, by default, to
the query and key maps: a head scores by :math:`x^T W_q^T W_k y`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import svd

from headscape.errors import InputError
from headscape.statistics.spectra import energy_rank

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.weights import Part

__all__ = ["ScalingLaw", "edited", "flatten", "randomise", "scale", "scale_spectra", "scaling_law", "truncate"]

FloatArray = npt.NDArray[np.float64]
Edit = Callable[[FloatArray], npt.ArrayLike]
EXACT = {"float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}
"""Relative difference up to which scores count as scaled exactly, by the number type of the weights."""
UNCHANGED = 1e-2
"""The same for scores that a norm keeps as they were; the epsilon it adds shows."""


def scale(matrix: npt.ArrayLike, alpha: float) -> FloatArray:
    """All singular values times alpha, that is, the matrix times alpha."""
    if not np.isfinite(alpha) or alpha <= 0:
        raise InputError(f"a spectrum is scaled by a number above 0, not by {alpha}")
    return np.asarray(matrix, dtype=np.float64) * alpha


def truncate(matrix: npt.ArrayLike, rank: int | None = None, energy: float | None = None) -> FloatArray:
    """Keep the largest singular values: `rank` of them, or as many as hold a share of the energy.

    >>> truncate(np.diag([3.0, 2.0, 1.0]), rank=1).round(12).tolist()
    [[3.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    if (rank is None) == (energy is None):
        raise InputError("truncate by rank or by energy, one of the two")
    U, s, Vt = _svd(matrix)
    kept = energy_rank(s, energy) if energy is not None else rank
    assert kept is not None
    if kept < 0:
        raise InputError(f"a rank is at least 0, not {kept}")
    return np.asarray((U[:, :kept] * s[:kept]) @ Vt[:kept])


def flatten(matrix: npt.ArrayLike, strength: float = 1.0) -> FloatArray:
    r"""Even out the spectrum at constant energy: :math:`\sigma_i \to c\, \sigma_i^{1 - t}` with t the strength.

    At strength 1 all singular values are equal; 0 changes nothing.

    >>> flatten(np.diag([4.0, 3.0])).round(12).tolist() == (np.eye(2) * 12.5**0.5).round(12).tolist()
    True
    """
    if not 0 <= strength <= 1:
        raise InputError(f"the strength lies between 0 and 1, not at {strength}")
    U, s, Vt = _svd(matrix)
    flat = np.where(s > 0, s, 1.0) ** (1 - strength) * ((s > 0) | (strength == 1))
    size = np.sqrt((flat**2).sum())
    factor = np.sqrt((s**2).sum()) / size if size > 0 else 0.0
    return np.asarray((U * (flat * factor)) @ Vt)


def randomise(
    matrix: npt.ArrayLike, random_state: int | np.random.Generator = 0, side: Literal["both", "out", "in"] = "both"
) -> FloatArray:
    """Keep the singular values and draw new bases: of the outputs, of the inputs, or both."""
    if side not in ("both", "out", "in"):
        raise InputError(f"the side is both, out or in, not {side!r}")
    rng = np.random.default_rng(random_state)
    U, s, Vt = _svd(matrix)
    if side != "in":
        U = random_basis(U.shape[0], len(s), rng)
    if side != "out":
        Vt = random_basis(Vt.shape[1], len(s), rng).T
    return np.asarray((U * s) @ Vt)


def random_basis(n: int, r: int, rng: np.random.Generator) -> FloatArray:
    """Draw r orthonormal directions in n dimensions, uniformly: (n, r)."""
    basis, upper = np.linalg.qr(rng.standard_normal((n, r)))
    return np.asarray(basis * np.sign(np.diagonal(upper)))  # signs make it uniform


def _svd(matrix: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    W = np.asarray(matrix, dtype=np.float64)
    if W.ndim != 2:
        raise InputError(f"a matrix has a spectrum to edit, this array has shape {W.shape}")
    return svd(W, full_matrices=False)


@contextmanager
def edited(
    model: Model,
    edit: Edit,
    *,
    maps: Sequence[str] = ("q", "k"),
    layers: Iterable[int] | None = None,
    per: Literal["head", "matrix"] = "head",
) -> Iterator[Model]:
    """Edit matrices of a model within the block; afterwards it is exactly as before.

    Parameters
    ----------
    edit
        A function of a matrix (out, in) that returns one of the same shape, as in `lambda W: truncate(W, rank=8)`.
        Biases stay as they are.
    maps
        Any of q, k, v, o, gate, up, down. Of fused maps only that part is edited.
    layers
        Which layers; all by default.
    per
        "head" edits every head's own matrix (key and value heads once per group), "matrix" all heads of a layer
        together, as the thesis does. Feed-forward maps have no heads.
    """
    from headscape.attention.weights import parts_of, put, read, select_parts

    if per not in ("head", "matrix"):
        raise InputError(f"per is head or matrix, not {per!r}")
    changed: list[tuple[Any, Any, None]] = []
    for part in select_parts(parts_of(model)[0], maps, layers):
        matrix = read(model, part).astype(np.float64)
        heads = [np.asarray(edit(head)) for head in part.by_head(matrix)] if per == "head" else []
        changed.append((part, part.joined(np.stack(heads)) if heads else np.asarray(edit(matrix)), None))
    with put(model, changed):
        yield model


@contextmanager
def scale_spectra(model: Model, alpha: float, layers: Iterable[int] | None = None) -> Iterator[Model]:
    r"""Multiply the spectra of the query and key maps, and their biases, by alpha within the block.

    The scores of a layer are then :math:`\alpha^2` times what they were, its input held fixed. Later layers see a
    changed input. Where scores change by another law (a softcap, a position bias), see `scaling_law`.

    Raises an `InputError` if queries and keys are normalized after their maps (QK-norm), which undoes any scaling.
    """
    from headscape.attention.weights import parts_of, select_parts

    exception = scaling_law(model).exception
    if exception.startswith("QK-norm"):
        raise InputError(f"the spectra of {model.source} cannot be scaled: {exception}; use hs.scale_scores instead")
    with _scaled(model, alpha, select_parts(parts_of(model)[0], ("q", "k"), layers)):
        yield model


@contextmanager
def _scaled(model: Model, alpha: float, parts: Iterable[Part]) -> Iterator[None]:
    from headscape.attention.weights import put, read, read_bias

    changed = []
    for part in parts:
        bias = read_bias(model, part)
        changed.append((part, scale(read(model, part), alpha), None if bias is None else bias * alpha))
    with put(model, changed):
        yield


class ScalingLaw(NamedTuple):
    """How far scores are from alpha^2 times what they were, relative to the largest; and why ('' if they are not)."""

    error: float
    exception: str


def scaling_law(model: Model, alpha: float = 1.3) -> ScalingLaw:
    """Test whether scores become alpha^2 times as large when both spectra of a layer are scaled.

    On a short input, one layer at a time (the first, the middle and the last), so that the input of the scaled layer
    stays the same. (A power of two would scale without any rounding.)
    """
    from headscape.attention.weights import parts_of

    maps: dict[tuple[str, int], list[Part]] = {}
    for part in parts_of(model)[0]:
        if part.kind in ("q", "k"):
            maps.setdefault((part.block, part.layer), []).append(part)
    sites = [site for site in model.sites if (site.block, site.layer) in maps]
    if not sites:
        return ScalingLaw(float("nan"), "no query and key maps are understood")
    before = _scores(model)
    errors, why = [], ""
    for i in sorted({0, len(sites) // 2, len(sites) - 1}):
        site = sites[i]
        with _scaled(model, alpha, maps[site.block, site.layer]):
            after = _scores(model)[site.name]
        own = before[site.name]
        size = float(np.abs(own).max()) or 1.0
        errors.append(float(np.abs(after - alpha**2 * own).max() / (alpha**2 * size)))
        if errors[-1] <= EXACT.get(model.dtype, 1e-5) or why:
            continue
        why = "something is added to the scores or caps them (a softcap or a position bias) and does not scale"
        if np.abs(after - own).max() <= UNCHANGED * size:
            inside = model.module.get_submodule(site.name).named_modules()
            norms = [name for name, part in inside if "norm" in type(part).__name__.lower()]
            why = f"QK-norm ({', '.join(norms) or 'a normalization of queries and keys'}) undoes any scaling"
    return ScalingLaw(max(errors), why)


def _scores(model: Model) -> dict[str, FloatArray]:
    """Scores of every layer on a short input, {attention module: (n_head, n_query, n_key)}."""
    import torch

    from headscape.attention.sites import example_input, run
    from headscape.attention.tapping import tapped
    from headscape.attention.taps import AttentionCall, Tap

    found: dict[int, FloatArray] = {}

    class Look(Tap):
        blockwise = False

        def scores(self, call: AttentionCall, scores: torch.Tensor) -> torch.Tensor:
            found[id(call.module)] = scores[0].double().cpu().numpy()
            return scores

    with torch.no_grad(), tapped(model.module, Look(), model.attention):
        run(model, example_input(model), whole=False)
    modules = dict(model.module.named_modules())
    return {site.name: found[id(modules[site.name])] for site in model.sites}
