"""Compare networks: how far apart they are, beside how far one network is from itself on other input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import wasserstein_distance
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from headscape.errors import InputError
from headscape.geometry.gromov import (
    depth_profile,
    geometry_bound,
    in_order,
    match_geometries,
    refine,
)
from headscape.runs import Run
from headscape.studies.compare.result import MEASURES, SHUFFLED, CompareResult
from headscape.studies.compare.runs import Organized, read_runs
from headscape.studies.work.engines import Engine, engine_of
from headscape.studies.work.old import Progress, Say, Steps, read_arrays, run_units, study_folder, write_arrays

__all__ = ["compare", "half_samples", "other_heads"]

FloatArray = npt.NDArray[np.float64]
N_OTHER_HEADS = 20
"""Draws of two halves of the heads; each is a search of its own."""


def half_samples(n: int, size: int, draws: int, random_state: Sequence[int]) -> npt.NDArray[np.int64]:
    """Draw two disjoint samples of `size` of n batches, again and again: (draws, 2, size).

    The mean of a random half has the variance sigma^2 / n of the bootstrap over all n, so that quantiles over draws are
    a bootstrap interval; and two halves of one run are compared exactly as halves of two runs are.

    >>> half_samples(4, 2, 2, [0]).shape
    (2, 2, 2)
    """
    rng = np.random.default_rng(random_state)
    return np.array([rng.permutation(n)[: 2 * size].reshape(2, size) for _ in range(draws)])


def other_heads(
    layers: npt.NDArray[np.int64], rng: np.random.Generator
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None:
    """Two disjoint sets of heads, in every layer equally many; None if a layer has one head."""
    halves: tuple[list[int], list[int]] = ([], [])
    for layer in np.unique(layers):
        here = rng.permutation(np.flatnonzero(layers == layer))
        half = len(here) // 2
        if not half:
            return None
        halves[0].extend(here[:half])
        halves[1].extend(here[half : 2 * half])
    return np.sort(halves[0]), np.sort(halves[1])


def _curves_apart(a: FloatArray, b: FloatArray) -> float:
    """Mean distance of two curves on the same points."""
    return float(np.abs(a.mean(axis=0) - b.mean(axis=0)).mean())


def _distributions_apart(a: FloatArray, b: FloatArray) -> list[float]:
    """Wasserstein distance of the heads' mean entropies, (n_batch, 2, n_head) each: one number an entropy."""
    return [float(wasserstein_distance(x, y)) for x, y in zip(a.mean(axis=0), b.mean(axis=0), strict=True)]


@dataclass(frozen=True)
class _Places:
    """Runs by their paths and digests, for processes that read them on their own."""

    paths: tuple[Path, ...]
    digests: tuple[str, ...]

    def read(self) -> list[Organized]:
        return _read_once(self)


@lru_cache(maxsize=1)
def _read_once(places: _Places) -> list[Organized]:
    found = read_runs(places.paths)
    changed = [str(path) for run, path, was in zip(found, *vars(places).values(), strict=True) if run.digest != was]
    if changed:
        raise InputError(f"{changed[0]} is not the same here as where the comparison was started")
    return found


def _pair(runs: Sequence[Organized] | _Places, i: int, j: int, path: Path, draws: int, size: int, seed: int) -> None:
    """Measure runs i and j on every draw, and write it; skipped when it is there. A run may meet itself."""
    if path.exists():
        return
    found_runs = runs.read() if isinstance(runs, _Places) else runs
    a, b = found_runs[i], found_runs[j]
    same = a.digest == b.digest
    with threadpool_limits(1):  # sums must not depend on the number of threads
        start = (
            in_order(*(len(run.layers) for run in (a, b)))
            if same
            else match_geometries(a.distances.mean(axis=0), b.distances.mean(axis=0)).coupling
        )
        halves = [half_samples(run.n_batches, size, draws, [seed, int(run.digest[:12], 16)]) for run in (a, b)]
        found, bounds, shuffled = np.empty((draws, len(MEASURES))), np.empty(draws), np.empty((draws, len(SHUFFLED)))
        for r in range(draws):
            one, two = halves[0][r, 0], halves[1][r, 1]
            A, B = a.distances[one].mean(axis=0), b.distances[two].mean(axis=0)
            bounds[r] = geometry_bound(A, B).distance
            found[r] = [
                refine(A, B, start).distance,
                refine(a.distances[one[0]], b.distances[two[0]], start).distance,
                *_distributions_apart(a.entropies[one], b.entropies[two]),
                _curves_apart(a.curves[one], b.curves[two]),
                _curves_apart(a.profiles[one], b.profiles[two]),
            ]
            shuffled[r] = [
                *_distributions_apart(a.null_entropies[one], b.null_entropies[two]),
                _curves_apart(a.null_curves[one], b.null_curves[two]),
            ]
        arrays = {"draws": found, "bounds": bounds, "shuffled": shuffled}
        if same:
            arrays["other_heads"] = _heads_control(a, halves[0], seed)
    write_arrays(path, arrays)


def _heads_control(run: Organized, halves: npt.NDArray[np.int64], seed: int) -> FloatArray:
    """Distance of a network to itself with other heads and other batches: (n_draw, n_measure), NaN if not defined."""
    rng = np.random.default_rng([seed, int(run.digest[:12], 16), 1])
    found = np.full((N_OTHER_HEADS, len(MEASURES)), np.nan)
    for r in range(N_OTHER_HEADS):
        heads = other_heads(run.layers, rng)
        if heads is None:
            break
        sides = []
        for chosen, batches in zip(heads, halves[r % len(halves)], strict=True):
            D = run.distances[batches][:, chosen][:, :, chosen]
            profiles = np.array([depth_profile(d, run.layers[chosen]) for d in D])
            sides.append((D, run.entropies[batches][:, :, chosen], profiles))
        (A, x, f), (B, y, g) = sides
        found[r] = [
            match_geometries(A.mean(axis=0), B.mean(axis=0)).distance,
            np.nan,  # one batch says no more of this
            *_distributions_apart(x, y),
            np.nan,  # the tri-Haar basis is that of all heads
            _curves_apart(f, g),
        ]
    return found


def _out_folder(out: str | Path | None) -> Run | None:
    """The folder of the comparison in the form the units want; never one that holds something else."""
    if out is None:
        return None
    path = Path(out)
    if (path / "run.json").exists():
        raise InputError(f"{path} is a run directory; name another folder for the comparison")
    ours = (path / CompareResult.study / "settings.json").is_file()
    if path.exists() and not ours and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not a comparison; name a new or an empty folder")
    return Run(path, {})


def compare(
    runs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    draws: int = 100,
    jobs: int = 1,
    engine: Engine | str = "local",
    resume: bool = False,
    random_state: int = 0,
    progress: Progress = lambda done, total: None,
    say: Say = lambda _: None,
) -> CompareResult:
    """Compare networks by their organized runs; runs of one network are its yardstick of no difference.

    Every draw takes a random half of the batches of each run. Two runs are as far apart as their halves are, and a run
    is as far from itself as its two halves are: what differs by chance differs in both. Runs with the same weights are
    the same network on other input.

    Parameters
    ----------
    runs
        Two or more run directories with the organize study in them, of equally many tokens.
    out
        Where the comparison goes (OUT/compare); a killed one goes on there. Nothing is kept without it.
    draws
        How many random halves; intervals are quantiles over them.
    jobs
        Pairs of runs at a time; changes no byte.
    engine
        "local", "dask" or an engine of `headscape.studies.work.engines`; Dask needs `out`. It changes no byte.
    resume
        Raise instead of starting anew where `out` holds a comparison of other runs or settings.

    Raises
    ------
    HeadscapeError
        When all is tried, if pairs failed; those done are kept.
    InputError
        Where runs cannot be compared (see `compare_runs.read_runs`), `draws` is below 20 or `out` holds other files.
    """
    worker = engine_of(engine, jobs)
    if draws < 20:
        raise InputError(f"95 % intervals need at least 20 draws, not {draws}")
    kept = _out_folder(out)
    found = read_runs(runs)
    size = min(run.n_batches for run in found) // 2
    facts = {"runs": [[run.name, run.digest] for run in found], "draws": draws, "seed": random_state}
    pairs = [(i, j) for i in range(len(found)) for j in range(i, len(found))]
    if kept is not None:
        kept.path.mkdir(parents=True, exist_ok=True)
    places = _Places(tuple(Path(path).resolve() for path in runs), tuple(run.digest for run in found))
    with (
        worker.started([None if kept is None else kept.path], say),  # the runs are only read; units check them
        study_folder(kept, CompareResult.study, facts, say, resume) as folder,
    ):
        paths = [folder / f"pair-{i:03d}-{j:03d}.safetensors" for i, j in pairs]
        units = {
            f"{found[i].name} and {found[j].name}": (
                *(places if worker.apart else found, i, j),
                *(path, draws, size, random_state),
            )
            for (i, j), path in zip(pairs, paths, strict=True)
        }
        run_units(_pair, units, worker, Steps(progress, len(units)), say)
        arrays = [read_arrays(path)[0] for path in paths]
    result = _summarize(found, pairs, arrays, {**facts, "half": size})
    if kept is not None:
        result.save(kept.path / result.study)
    return result


def _summarize(
    found: Sequence[Organized],
    pairs: Sequence[tuple[int, int]],
    arrays: Sequence[dict[str, npt.NDArray[Any]]],
    settings: dict[str, Any],
) -> CompareResult:
    columns = ("block", "kind", "mask", "inputs", "n_query", "n_layers", "n_heads", "n_batches", "part")
    table = pd.DataFrame(
        [{"run": run.name, "network": run.network} | {name: run.facts[name] for name in columns} for run in found]
    )
    return CompareResult(
        runs=table,
        pairs=np.array(pairs, dtype=np.int64),
        draws=np.array([a["draws"] for a in arrays]),
        bounds=np.array([a["bounds"] for a in arrays]),
        shuffled=np.array([a["shuffled"] for a in arrays]),
        other_heads=np.array([a["other_heads"] for a in arrays if "other_heads" in a]),
        curves=np.array([_spread(run.curves) for run in found]),
        profiles=np.array([_spread(run.profiles) for run in found]),
        entropies=[run.entropies.mean(axis=0) for run in found],
        settings=settings,
    )


def _spread(values: FloatArray) -> FloatArray:
    """Mean over batches, lowest and highest: (3, n)."""
    return np.array([values.mean(axis=0), values.min(axis=0), values.max(axis=0)])
