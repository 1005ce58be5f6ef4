"""Networks of different length made comparable: maps averaged onto a common level of their trees.

A token of one network has no counterpart in another, but a tree on 50 tokens and one on 128 both have a level of 16
clusters. What is lost with single tokens is lost in both. The effect of length that remains is measured: every run
longer than the shortest is joined by a copy with as few tokens, drawn at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from headscape.captures import Batch, Capture
from headscape.checks import integer
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.geometry.questionnaire import Questionnaire
from headscape.imports import write_capture
from headscape.runs import Run
from headscape.studies.organize import organize, tensor_shape
from headscape.studies.work.how import How, Work
from headscape.tensor import HeadId
from headscape.tree import PartitionTree

__all__ = ["averaged", "coarse_runs", "coarsen", "thinned"]

Array = npt.NDArray[Any]
FEWEST_CLUSTERS = 4


def averaged(maps: Array, query_labels: Array, key_labels: Array) -> Array:
    """Maps (n_query, n_key, n_head) over clusters: the mean over queries of the attention that goes to a cluster of keys.

    Rows still sum to 1.

    >>> averaged(np.array([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])[..., None], [0, 0], [0, 1, 1])[..., 0]
    array([[0.4, 0.6]])
    """
    query, key = (np.eye(max(labels) + 1)[np.asarray(labels)] for labels in (query_labels, key_labels))
    return np.asarray(np.einsum("qa,qkh,kb->abh", query / query.sum(axis=0), maps, key, optimize=True))


def thinned(maps: Array, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """The maps of so many (queries, keys), drawn at random; rows are renormalized.

    A row whose attention went to other keys altogether is uniform.
    """
    chosen = [np.sort(rng.permutation(n)[:kept]) for n, kept in zip(maps.shape, shape, strict=False)]
    left = np.asarray(maps, dtype=np.float64)[np.ix_(*chosen)]
    left = np.where(left.any(axis=1, keepdims=True), left, 1.0)
    return np.asarray(left / left.sum(axis=1, keepdims=True))


def coarsen(
    run: str | Path,
    out: str | Path,
    *,
    clusters: int = 16,
    tokens: tuple[int, int] | None = None,
    block: str | None = None,
    questionnaire: Questionnaire | None = None,
    random_state: int = 0,
) -> Capture:
    """Write a run whose maps are those of another over the clusters of a level of its trees; made once.

    Parameters
    ----------
    run, out
        A run that keeps probabilities, and where the coarse one goes.
    clusters
        Clusters of queries and of keys: a level that the trees of every batch must have.
    tokens
        Keep only so many queries and keys of every batch, drawn at random, and organize these.

    Raises an `InputError` where a tree has no such level, with those it has.

    >>> hs.coarsen(run, "runs/coarse", clusters=4).tensor(0)
    AttentionTensor(4 queries x 4 keys x 8 heads, full, probs)
    """
    integer("clusters", clusters, low=FEWEST_CLUSTERS)
    captured = Capture.of_run(run)
    captured.need_whole("coarsening")
    chosen = captured.block(block)
    assert captured.run is not None
    settings = {k: v for k, v in (questionnaire or Questionnaire()).get_params().items() if k != "n_jobs"}
    config = {"kind": "coarse", "clusters": clusters, "tokens": tokens, "seed": random_state, "dtype": "float32"}
    config |= {"mask": captured.info["blocks"][chosen]["mask"], "questionnaire": settings, "of": captured.content()}
    facts = {name: captured.run.meta[name] for name in ("model", "inputs") if name in captured.run.meta}
    if (Path(out) / "run.json").is_file():
        made = Run.create(out, config=config, **facts)
        if len(made.finished_batches) == len(captured):
            return Capture.of_run(made)
    batches = []
    with one_blas_thread():
        for i, number in enumerate(captured.numbers):
            X = captured.tensor(i, chosen, captured.kind("probs"))
            maps = X.values
            if tokens is not None:
                maps = thinned(maps, tokens, np.random.default_rng([random_state, number]))
            trees = Questionnaire(**settings).fit(maps).trees_[:2]
            labels = [_level(tree, clusters, f"{run}, batch {number}") for tree in trees]
            batches.append(_batch(averaged(maps, *labels), X.heads))
    return write_capture(Capture.in_memory(batches), Path(out), config=config, **facts)


def _level(tree: PartitionTree, clusters: int, where: str) -> Array:
    """The label of every leaf on the level of so many clusters."""
    found = np.flatnonzero(tree.counts == clusters)
    if not len(found):
        there = ", ".join(str(n) for n in tree.counts[1:-1])
        raise InputError(f"a tree of {where} has no level of {clusters} clusters; there are levels of {there}")
    return np.asarray(tree.labels[found[0]])


def _batch(maps: Array, heads: Sequence[HeadId]) -> Batch:
    block = heads[0].block
    layers: dict[str, list[int]] = {}
    for head in heads:
        layers.setdefault(str(head.layer), []).append(head.head)
    arrays, start = {}, 0
    for layer, found in layers.items():
        arrays[f"probs/{block}.{layer}"] = np.moveaxis(maps[..., start : start + len(found)], -1, 0).astype(np.float32)
        start += len(found)
    names = {f"{axis}_tokens": [f"cluster {k + 1}" for k in range(n)] for axis, n in zip(("query", "key"), maps.shape)}  # noqa: B905
    info = {"keep": ["probs"], "blocks": {block: {"mask": "full", **names}}, "layers": {block: layers}}
    return Batch(info | {"clusters": len(maps)}, list(arrays), arrays.__getitem__)


def coarse_runs(
    runs: Sequence[str | Path],
    out: str | Path,
    clusters: int,
    *,
    block: str | None = None,
    random_state: int = 0,
    **how: Unpack[How],
) -> list[Path]:
    """Coarsen and organize every run into OUT/NAME; of longer ones also a copy of the shortest length, OUT/NAME-short."""
    work = Work.of(**how)
    if len({Path(path).resolve().name for path in runs}) < len(runs):
        raise InputError(
            "two of these runs have the same name; name each once, and rename folders that have the same name"
        )
    shapes: dict[Path, tuple[int, int]] = {}
    for path in map(Path, runs):
        captured = Capture.of_run(path)
        shapes[path] = tensor_shape(captured, captured.block(block), captured.kind("probs"))[:2]
    least = min(n for n, _ in shapes.values()), min(n for _, n in shapes.values())
    asked: dict[Path, Mapping[str, Any]] = {}
    for path, shape in shapes.items():
        asked[Path(out) / path.name] = {"run": path}
        if shape != least:
            asked[Path(out) / f"{path.name}-short"] = {"run": path, "tokens": least}
    for place, options in asked.items():
        work.say(f"averaging the maps of {options['run']} over {clusters} clusters")
        coarsen(out=place, clusters=clusters, block=block, random_state=random_state, **options)
        organize(place, model=None, random_state=random_state, **how)
    return list(asked)
