"""Follow every head over a series of runs of one network, made on the same inputs while it trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.geometry.affinity import median_distance
from headscape.geometry.diffusion import extend_diffusion_map, one_blas_thread
from headscape.geometry.questionnaire import Questionnaire
from headscape.roles import BatchRoles, assign_roles, batch_roles, role_table
from headscape.storage import read_arrays, write_arrays
from headscape.studies.series.result import ENTROPIES, SeriesResult
from headscape.studies.work.folder import working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.units import run_units
from headscape.tensor import AttentionTensor, HeadId
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import head_entropies

__all__ = ["find_series", "series"]

FloatArray = npt.NDArray[np.float64]
LANDMARKS = 1500
"""Heads of all checkpoints together, up to which the map is computed from all of them; above, from as many at random."""
CELLS = 32
"""Blocks per side to which maps are averaged before heads are compared."""


def series(
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    block: str | None = None,
    random_state: int = 0,
    **how: Unpack[How],
) -> SeriesResult:
    """Follow every head over training: its roles, entropies and place on a map that all checkpoints share.

    Parameters
    ----------
    runs
        A folder of runs, one per checkpoint, as `hs.Tracker` and `capture_checkpoints` write them (the number at the
        end of a name is its step); or the runs in order. All must be of the same heads on the same inputs.
    out
        Where the result is kept (OUT/series): by default the folder of runs; nothing is kept for a list without it.
    block
        Which block of an encoder-decoder.
    random_state
        Seed of the organized tree, and of the sample behind the map of very many heads.
    how
        jobs (checkpoints at a time), threads, engine, resume, progress, say.

    Raises
    ------
    InputError
        Fewer than two runs, or runs of other heads or other inputs.

    >>> for step in (100, 200):
    ...     captured = hs.capture(model, ["the cat sat on the mat"], out=f"training/step-{step}")
    >>> hs.series("training").to_frame()[["layer", "head", "moved"]].head(2)  # the same weights twice: nothing moved
       layer  head  moved
    0      0     0    0.0
    1      0     1    0.0
    """
    work = Work.of(**how)
    check_seed(random_state)
    found = find_series(runs)
    captured = [Capture.of_run(path) for path in found.values()]
    name = captured[0].block(block)
    n_batches = _same(list(found.values()), captured, name)
    home = Path(out) if out is not None else Path(runs) if isinstance(runs, (str, Path)) else None
    settings = {"steps": list(found), "block": name, "batches": n_batches, "seed": random_state}
    contents = [digest(each.content(n_batches)) for each in captured]
    inputs = {path.name: content for path, content in zip(found.values(), contents, strict=True)}
    with working_folder(home, SeriesResult.study, settings, inputs, work) as folder:
        last = (list(found.values())[-1].resolve(), name, random_state)
        trees = folder.unit("trees", contents[-1], name, random_state)
        run_units(_organize, {"trees of the last checkpoint": (trees, *last)}, work, work.stage("organizing", 1))
        units = {}
        for path, content in zip(found.values(), contents, strict=True):
            unit = folder.unit("heads", content, contents[-1], name, n_batches, random_state)
            units[path.name] = (unit, path.resolve(), name, n_batches, trees)
        run_units(_measure, units, work, work.stage("measuring", len(units)))
        measured = [read_arrays(unit[0])[0] for unit in units.values()]
        result = _summarize(list(found), captured[-1].tensor(0, name).heads, measured, settings)
        folder.save(result)
    return result


def find_series(runs: str | Path | Sequence[str | Path]) -> dict[int, Path]:
    """The runs of a series by step: the number at the end of their names, or their place where names have none."""
    if isinstance(runs, (str, Path)):
        paths = sorted(file.parent for file in Path(runs).glob("*/run.json"))
        where = f"{runs} holds"
    else:
        paths, where = [Path(path) for path in runs], "the list has"
    if len(paths) < 2:
        raise InputError(f"{where} {len(paths)} runs; a series takes two or more, one per checkpoint")
    steps = [re.search(r"(\d+)$", path.name) for path in paths]
    numbers = [int(step.group(1)) if step else -1 for step in steps]
    if isinstance(runs, (str, Path)) and -1 in numbers and max(numbers) > -1:
        strange = paths[numbers.index(-1)]
        raise InputError(
            f"{strange.name} has no number at its end, others in {runs} have: name the runs in their order"
        )
    if len(set(numbers)) < len(numbers) or -1 in numbers:
        numbers = list(range(len(paths)))
    return dict(sorted(zip(numbers, paths, strict=True)))


def _kind(captured: Capture) -> str | None:
    """The family of the network that was captured, where the run knows it."""
    about = {} if captured.run is None else captured.run.meta.get("model") or {}
    return about.get("family")


def _same(paths: Sequence[Path], captured: Sequence[Capture], block: str) -> int:
    """How many batches all runs have; raises where runs cannot be followed from one to the next."""
    first = captured[0]
    for path, other in zip(paths, captured, strict=True):
        if other.heads(block) != first.heads(block) or _kind(other) != _kind(first):
            raise InputError(f"{path} has other heads than {paths[0]}: a series follows one network")
        for i in range(min(len(first), len(other))):
            if other.batch(i).tokens(block) != first.batch(i).tokens(block) or other.numbers[i] != first.numbers[i]:
                raise InputError(
                    f"batch {i} of {path} is not that of {paths[0]}: capture all checkpoints on the same inputs"
                )
    return min(map(len, captured))


def _organize(path: Path, run: Path, block: str, seed: int) -> None:
    """Trees of queries and keys, by the first batch of the last checkpoint: the one basis for all entropies."""
    trees = Questionnaire(random_state=seed).fit(Capture.of_run(run).tensor(0, block, "probs")).trees_
    pairs = zip(("query", "key"), trees, strict=False)
    write_arrays(path, {f"{axis}_{part}": getattr(tree, part) for axis, tree in pairs for part in ("labels", "order")})


def _measure(path: Path, run: Path, block: str, n_batches: int, trees: Path) -> None:
    """Scores of every head of one checkpoint on every batch, and its maps made small."""
    found = read_arrays(trees)[0]
    basis = [PartitionTree(found[f"{axis}_labels"], found[f"{axis}_order"]) for axis in ("query", "key")]
    captured = Capture.of_run(run)
    arrays: dict[str, list[Any]] = {"scores": [], "chance": [], "entropies": [], "maps": []}
    for i in range(n_batches):
        X = captured.tensor(i, block, "probs")
        roles = batch_roles(X)
        arrays["scores"].append(list(roles.scores.values()))
        arrays["chance"].append([roles.chance.get(name, np.nan) for name in roles.scores])
        fits = X.shape[:2] == tuple(tree.n_leaves for tree in basis)
        table = head_entropies(X, basis)[list(ENTROPIES)].to_numpy().T if fits else None
        arrays["entropies"].append(np.full((len(ENTROPIES), len(X.heads)), np.nan) if table is None else table)
        arrays["maps"].append(small_maps(X))
    names = np.frombuffer(",".join(roles.scores).encode(), dtype=np.uint8)
    write_arrays(path, {name: np.array(rows) for name, rows in arrays.items()} | {"roles": names})


def small_maps(X: AttentionTensor) -> npt.NDArray[np.float32]:
    """Square roots of attention summed over at most 32 x 32 blocks of tokens, (n_head, n_cell), of length 1 per head.

    The distance between two rows, over the root of 2, is the Hellinger distance of two heads' maps: 0 to 1.
    """
    n_query, n_key, n_head = X.shape
    rows, columns = (np.arange(0, n, -(-n // CELLS)) for n in (n_query, n_key))
    sums = np.add.reduceat(np.add.reduceat(np.clip(X.values, 0, None), rows, axis=0), columns, axis=1)
    flat = np.sqrt(sums.reshape(-1, n_head).T)
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def _summarize(
    steps: Sequence[int], heads: Sequence[HeadId], measured: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> SeriesResult:
    roles = bytes(measured[0]["roles"]).decode().split(",")
    scores, chance, entropies = (np.array([m[key] for m in measured]) for key in ("scores", "chance", "entropies"))
    named, held = zip(*(_roles(roles, *both, len(heads)) for both in zip(scores, chance, strict=True)), strict=True)
    maps = [np.concatenate(list(m["maps"]), axis=1) / np.sqrt(len(m["maps"])) for m in measured]
    shown = ~np.isnan(scores).all(axis=(0, 1, 3))  # roles that these inputs can show
    pairs = scores.shape[1] if scores.shape[1] > 2 else 1  # two inputs make one pair
    return SeriesResult(
        heads=pd.DataFrame(heads, columns=list(HeadId._fields)),
        steps=np.array(steps),
        role_names=[role for role, kept in zip(roles, shown, strict=True) if kept],
        scores=scores[:, :, shown].transpose(0, 2, 1, 3),
        chance=chance.mean(axis=(0, 1))[shown],
        held=np.array(held)[:, shown],
        named=list(named),
        entropies=entropies.mean(axis=1),
        coordinates=shared_map(maps, int(settings["seed"])),
        moved=np.array([np.linalg.norm(b - a, axis=1) / np.sqrt(2) for a, b in pairwise(maps)]),
        change=np.abs(np.diff(scores[:, :, shown], axis=0)).mean(axis=(2, 3)),
        noise=np.abs(scores - np.roll(scores, 1, axis=1))[:, :pairs][:, :, shown].mean(axis=(2, 3)),
        settings=dict(settings),
    )


def _roles(roles: Sequence[str], scores: FloatArray, chance: FloatArray, n: int) -> tuple[list[str], FloatArray]:
    """The role that names each head at one checkpoint, and the share of batches in which each head holds each role."""
    pairs = zip(scores, chance, strict=True)
    table = role_table(
        [BatchRoles(dict(zip(roles, s, strict=True)), dict(zip(roles, c, strict=True))) for s, c in pairs]
    )
    held = table.pivot(index="role", columns="number", values="share").reindex(list(roles))
    return assign_roles(table, n), held.to_numpy(dtype=float)


def shared_map(maps: Sequence[npt.NDArray[np.float32]], seed: int) -> FloatArray:
    """Diffusion coordinates of the heads of all checkpoints on one map, (n_step, n_head, 2), by their maps' distances."""
    points = np.concatenate(maps).astype(np.float64)
    chosen = np.arange(len(points))
    if len(points) > LANDMARKS:
        chosen = np.sort(np.random.default_rng(seed).choice(len(points), LANDMARKS, replace=False))
    with one_blas_thread():
        between = np.sqrt(np.maximum(2 - 2 * points @ points[chosen].T, 0))
    scale = median_distance(between[chosen])
    affinity = np.exp(-between / scale) if scale else np.ones_like(between)
    square = (affinity[chosen] + affinity[chosen].T) / 2
    return extend_diffusion_map(square, affinity, n_components=2).reshape(len(maps), -1, 2)
