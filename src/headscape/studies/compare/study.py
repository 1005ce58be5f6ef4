"""Compare networks: how far apart they are, relative to how far one network is from itself on other input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import wasserstein_distance

from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.geometry.gromov import geometry_bound, in_order, match_geometries, refine
from headscape.runs import Run
from headscape.storage import read_arrays, write_arrays
from headscape.studies.compare.result import MEASURES, SHUFFLED, CompareResult, bottom_size
from headscape.studies.compare.runs import UNIT_FREE, OrganizedRun, depth_profile, read_runs
from headscape.studies.work.folder import working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.units import run_units

__all__ = ["compare", "groups_of", "other_heads"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Pairs = Sequence[tuple[int, int]]
FEWEST_DRAWS = 20
N_HEAD_SPLITS = 20
"""Random splits of the heads of one network into two halves; the matching of each is a separate search."""


def compare(
    runs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    block: str | None = None,
    draws: int = 100,
    random_state: int = 0,
    **how: Unpack[How],
) -> CompareResult:
    """Compare networks by their organized runs; two runs of one network show how far it is from itself.

    The batches of every run are cut into groups. Two runs are as far apart as a group of one is from a group of the
    other, on average, and a run is as far from itself as two of its groups: what differs by chance differs in both.
    Intervals are by the jackknife over groups. Runs with the same weights are the same network on other input.

    Parameters
    ----------
    runs
        Two or more run directories with the organize study in them, of equally many tokens.
    out
        Where the comparison is kept (OUT/compare) and resumed. Nothing is kept without it.
    block
        Which block of runs with several; by default the only one that all runs have.
    draws
        At most this many distances per pair of runs, those between sqrt(draws) groups of batches of each.
    random_state
        Seed of the random halves of heads in the control.
    how
        jobs (pairs of runs at a time), threads, engine, resume, progress, say: see `headscape.studies.work.how.How`.
        Dask needs `out`.

    Raises
    ------
    HeadscapeError
        After all pairs were tried, if some failed; finished ones are kept.
    InputError
        Where runs cannot be compared (see `read_runs`), `draws` is below 20 or `out` holds other files.

    >>> other = hs.capture(model, [hs.sample_text("judge")[:400]], tokens=16, batches=4, out="runs/other")
    >>> organized = [hs.organize(each, model=None) for each in (run, other)]
    >>> result = hs.compare([run, "runs/other"], draws=20)
    >>> result.to_frame()[["what", "measure"]].head(2)  # with distance, low, high and n of every measure
                what   measure
    0  other batches  together
    1    other input  together
    """
    work = Work.of(**how)
    integer("draws", draws, low=FEWEST_DRAWS)
    check_seed(random_state)
    home = None if out is None else _checked(Path(out))
    found = read_runs(runs, block)
    for path in runs:
        if gap := Run.open(path).gap:
            work.warn(gap)
    n_batches = min(run.facts["n_batches"] for run in found)
    n_groups = min(n_batches, math.isqrt(draws))
    groups = groups_of(n_batches, n_groups)
    facts = {"runs": [run.name for run in found], "groups": groups.tolist(), "seed": random_state}
    inputs = {run.name: run.digest for run in found}
    shared = (tuple(Path(path).resolve() for path in runs), tuple(inputs.values()), block)
    # the runs are only read, and units check them
    with working_folder(home, CompareResult.study, facts, inputs, work) as folder:
        units = {}
        for i, j in combinations_with_replacement(range(len(found)), 2):
            path = folder.unit("pair", found[i].digest, found[j].digest, facts["groups"], random_state)
            units[f"{found[i].name} and {found[j].name}"] = (path, *shared, (i, j), groups, random_state)
        run_units(_unit, units, work, work.stage("comparing", len(units)))
        result = _summarize(found, {unit[4]: read_arrays(unit[0])[0] for unit in units.values()}, facts)
        folder.save(result)
    return result


def groups_of(n_batches: int, n_groups: int) -> IntArray:
    """Batches in groups of neighbours, (n_groups, size): neighbours in a text are not independent, groups nearly are.

    >>> groups_of(9, 4)
    array([[0, 1], [2, 3], [4, 5], [6, 7]])
    """
    return np.arange(n_groups * (n_batches // n_groups)).reshape(n_groups, -1)


def other_heads(layers: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray] | None:
    """Two disjoint sets of heads, equally many in every layer; None if a layer has one head."""
    shuffled = [rng.permutation(np.flatnonzero(layers == layer)) for layer in np.unique(layers)]
    if min(len(heads) for heads in shuffled) < 2:
        return None
    halves = [(heads[: len(heads) // 2], heads[len(heads) // 2 : len(heads) // 2 * 2]) for heads in shuffled]
    one, two = (np.sort(np.concatenate(half)) for half in zip(*halves, strict=True))
    return one, two


def _checked(out: Path) -> Path:
    """The folder of the comparison; never one that contains something else."""
    if (out / "run.json").exists():
        raise InputError(f"{out} is a run directory; name another folder for the comparison")
    ours = (out / CompareResult.study).is_dir()
    if out.exists() and not ours and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not a comparison; name a new or an empty folder")
    return out


@lru_cache(maxsize=1)
def _read_once(paths: tuple[Path, ...], digests: tuple[str, ...], block: str | None) -> list[OrganizedRun]:
    """The runs again, in whatever process a unit is run: checked to be those the comparison was started with."""
    found = read_runs(paths, block)
    for run, path, was in zip(found, paths, digests, strict=True):
        if run.digest != was:
            raise InputError(f"{path} is not the same here as where the comparison was started")
    return found


def _side(run: OrganizedRun, groups: IntArray, heads: IntArray | None = None) -> dict[str, FloatArray]:
    """Everything measured of a run, or of some of its heads, as means over each group of batches."""
    kept = np.arange(len(run.layers)) if heads is None else heads
    batches = dict(run.measured) | {f"shuffled {name}": x for name, x in run.shuffled.items()}
    batches["geometry"] = batches["geometry"][:, kept[:, None], kept]
    if heads is not None:
        batches |= {name: batches[name][:, heads] for name in UNIT_FREE}
        batches["depth"] = np.array([depth_profile(D, run.layers[heads]) for D in batches["geometry"]])
    found = {name: x[groups].mean(axis=1) for name, x in batches.items()}
    if groups.shape[1] > 1:
        found["geometry_batch"] = batches["geometry"][groups[:, 0]]
    return found


def _unit(
    path: Path,
    paths: tuple[Path, ...],
    digests: tuple[str, ...],
    block: str | None,
    pair: tuple[int, int],
    groups: IntArray,
    seed: int,
) -> None:
    """Measure every group of one run against every group of another, and write it; of one run, different groups."""
    a, b = (_read_once(paths, digests, block)[k] for k in pair)
    n = len(groups)
    with one_blas_thread():  # sums must not depend on the number of threads
        one, two = _side(a, groups), _side(b, groups)
        own = pair[0] == pair[1]
        pairs = list(combinations(range(n), 2)) if own else list(product(range(n), range(n)))
        start = in_order(len(a.layers), len(a.layers)) if own else _matching(one, two)
        measures = {name: _apart(name, one, two, pairs, start) for name in one if name in MEASURES}
        measures.setdefault("geometry_batch", measures["geometry"])
        arrays = {
            "measures": np.array([measures[name] for name in MEASURES]),
            "shuffled": np.array([_apart(f"shuffled {name}", one, two, pairs, start) for name in SHUFFLED]),
            "bounds": _apart("bound", one, two, pairs, start),
        }
        if own:
            arrays["other_heads"] = _heads_control(a, groups, pairs, seed)
        if a.identity == b.identity and len(a.layers) == len(b.layers):
            arrays["bottom"] = _shared_bottom(a.scores[groups].mean(axis=1), b.scores[groups].mean(axis=1), pairs)
    write_arrays(path, arrays)


def _matching(one: Mapping[str, FloatArray], two: Mapping[str, FloatArray]) -> FloatArray:
    """The matching of heads that every pair of groups starts from: that of the means over all groups."""
    return match_geometries(one["geometry"].mean(axis=0), two["geometry"].mean(axis=0)).coupling


def _apart(
    name: str, one: Mapping[str, FloatArray], two: Mapping[str, FloatArray], pairs: Pairs, start: FloatArray
) -> FloatArray:
    """(n, n): distances by one measure of the chosen pairs of groups, NaN elsewhere."""
    measure: Callable[[FloatArray, FloatArray], float]
    if name == "bound":
        name, measure = "geometry", lambda A, B: geometry_bound(A, B).distance
    elif name.startswith("geometry"):
        measure = lambda A, B: refine(A, B, start).distance  # noqa: E731
    elif name.endswith(UNIT_FREE):
        measure = wasserstein_distance
    else:
        measure = lambda x, y: float(np.abs(x - y).mean())  # noqa: E731
    found = np.full((len(one[name]), len(two[name])), np.nan)
    for r, s in pairs:
        found[r, s] = measure(one[name][r], two[name][s])
    return found


def _shared_bottom(one: FloatArray, two: FloatArray, pairs: Pairs) -> FloatArray:
    """(n, n): which share of the lowest tenth of heads two groups of batches (n_group, n_head) have in common."""
    k = bottom_size(one.shape[1])
    lowest = [[set(np.argsort(row, kind="stable")[:k].tolist()) for row in scores] for scores in (one, two)]
    found = np.full((len(one), len(two)), np.nan)
    for r, s in pairs:
        found[r, s] = len(lowest[0][r] & lowest[1][s]) / k
    return found


def _heads_control(run: OrganizedRun, groups: IntArray, pairs: Pairs, seed: int) -> FloatArray:
    """(6, n, n): distances of a network to itself with other heads; NaN where that means nothing."""
    rng = np.random.default_rng([seed, int(run.digest[:12], 16), 1])
    found = np.full((len(MEASURES), len(groups), len(groups)), np.nan)
    for chosen in np.array_split(rng.permutation(len(pairs)), min(N_HEAD_SPLITS, len(pairs))):
        heads = other_heads(run.layers, rng)
        if heads is None:
            break
        one, two = (_side(run, groups, half) for half in heads)
        start, here = _matching(one, two), [pairs[k] for k in chosen]
        for name in ("geometry", "l1_rel", "shannon", "depth"):  # the tri-Haar basis is that of all heads
            now = _apart(name, one, two, here, start)
            found[MEASURES.index(name), *np.transpose(here)] = now[*np.transpose(here)]
    return found


def _summarize(
    found: Sequence[OrganizedRun], arrays: Mapping[tuple[int, int], Mapping[str, Any]], facts: dict[str, Any]
) -> CompareResult:
    columns = ("block", "kind", "mask", "inputs", "n_query", "n_layers", "n_heads", "n_batches", "part", "clusters")
    rows = [{"run": run.name, "network": run.network} | {name: run.facts[name] for name in columns} for run in found]
    n = len(facts["groups"])

    def laid_out(name: str) -> FloatArray:
        """All groups of all runs against each other; only pairs above the diagonal are known."""
        whole = np.full((*arrays[0, 0][name].shape[:-2], n * len(found), n * len(found)), np.nan)
        for (i, j), unit in arrays.items():
            if name in unit:
                whole[..., i * n : (i + 1) * n, j * n : (j + 1) * n] = unit[name]
        return whole

    def spread(values: FloatArray) -> FloatArray:
        return np.array([values.mean(axis=0), values.min(axis=0), values.max(axis=0)])

    return CompareResult(
        runs=pd.DataFrame(rows),
        **{name: laid_out(name) for name in ("measures", "bounds", "shuffled", "other_heads", "bottom")},
        curves=np.array([spread(run.measured["decay"]) for run in found]),
        profiles=np.array([spread(run.measured["depth"]) for run in found]),
        entropies=[np.array([run.measured[name].mean(axis=0) for name in UNIT_FREE]) for run in found],
        settings=facts,
        whole=[run.whole for run in found],
    )
