"""Chapters 5 and 6 of Wertich's thesis (2024) on random vectors and matrices: every formula beside draws, no model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.runs import Run
from headscape.statistics.random_forms import aligned_traces, bound_ratios, scores_by_angle, traces_of_spectra
from headscape.statistics.softmax import on_sphere, slerp_experiment, softmax_entropy
from headscape.storage import read_arrays, write_arrays
from headscape.studies.laws.result import LawsResult
from headscape.studies.work.folder import working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.units import run_units

__all__ = ["laws"]

Array = npt.NDArray[Any]
COSINES = np.linspace(-1, 1, 9)
RADII = np.geomspace(0.25, 4, 13)
"""Radii at which entropies are taken, in units of the root of n."""
DRAWN = 2
"""Raised when the draws change, so that those of an earlier version are not read for these."""
HEAD = 4
"""A head's matrices have n / 4 rows."""


def laws(
    run: Run | str | Path | None = None,
    *,
    n: int = 100,
    radii: tuple[float, ...] = (1.0, 10.0),
    draws: int = 400,
    random_state: int = 0,
    **how: Unpack[How],
) -> LawsResult:
    """Draw vectors on a sphere and random matrices, and compare them with the formulas of chapters 5 and 6.

    Parameters
    ----------
    run
        A run directory, made if it does not exist.
    n
        Dimension: the length of a row of scores in chapter 5, the width of the tokens in chapter 6.
    radii
        Lengths of the vectors that are interpolated (figure 5.1) and whose probabilities are compared.
    draws
        Pairs of vectors, and matrices.
    how
        jobs (chapters at a time), engine, resume, progress, say: see `headscape.studies.work.how.How`.

    >>> table = hs.laws(n=20, draws=50).to_frame().set_index("quantity")
    >>> table.loc["entropy of softmax at l = root n", ["formula", "as printed", "drawn"]].astype(float).round(1)
    formula       2.5
    as printed    3.0
    drawn         2.6
    ...
    """
    work = Work.of(**how)
    integer("n", n, low=8)
    integer("draws", draws, low=20)
    check_seed(random_state)
    if not radii or not all(radius > 0 for radius in radii):
        raise InputError(f"radii must be above 0, not {', '.join(map(str, radii)) or 'none'}")
    settings = {"n": n, "radii": list(radii), "draws": draws, "seed": random_state}
    make = partial(Run.create, config={"kind": "laws"})
    with working_folder(run, LawsResult.study, settings, {}, work, make) as folder:
        units = {
            name: (folder.unit(name, settings, DRAWN), n, list(radii), draws, random_state)
            for name in ("chapter5", "chapter6")
        }
        for name, unit in units.items():
            run_units(_CHAPTERS[name], {name: unit}, work, work.stage(name, 1))
        arrays = {key: array for unit in units.values() for key, array in read_arrays(unit[0])[0].items()}
        result = LawsResult(arrays, settings)
        folder.save(result)
    return result


def _chapter5(path: Path, n: int, radii: list[float], draws: int, seed: int) -> None:
    """Divergence along a path on the sphere, entropy by radius, and ratios of probabilities."""
    arrays: dict[str, Array] = {}
    for k, radius in enumerate(radii):
        found = slerp_experiment(n, radius, pairs=draws, random_state=seed)
        ends = {"t": found.t, "measured": found.measured, "spread": found.spread, "predicted": found.predicted}
        arrays |= {f"slerp/{k}/{name}": array for name, array in ends.items()} | {f"slerp/{k}/errors": found.errors}
        scores = on_sphere(n, draws, radius, seed)
        arrays[f"ratio/{k}"] = np.exp(scores[:, 0] - scores[:, 1])
    unit = on_sphere(n, draws, np.sqrt(n), seed)
    arrays |= {"radii": RADII, "entropies": np.array([softmax_entropy(radius * unit) for radius in RADII])}
    write_arrays(path, arrays)


def _chapter6(path: Path, n: int, radii: list[float], draws: int, seed: int) -> None:
    """Scores by angle, the bound, aligned bases, and the order of two spectra."""
    with one_blas_thread():
        angles = scores_by_angle(n, COSINES, draws, seed)
        arrays = {f"angle/{name}": array for name, array in angles._asdict().items()}
        arrays["bound"] = bound_ratios(n, max(2, n // HEAD), draws, seed)
        arrays |= {f"trace/{name}": array for name, array in aligned_traces(n, draws, seed).items()}
        decay = np.exp(-np.arange(n) / (n / 8))
        decay *= np.sqrt(n / (decay**2).sum())  # energy n
        for name, other in (("like", decay), ("reversed", decay[::-1])):
            arrays[f"order/{name}"] = traces_of_spectra(decay, other, draws, seed)
        arrays["order/spectrum"] = decay
    write_arrays(path, arrays)


_CHAPTERS = {"chapter5": _chapter5, "chapter6": _chapter6}
