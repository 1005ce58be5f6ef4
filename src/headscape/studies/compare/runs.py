"""Which runs can be compared, and what is read from each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.captures import Capture
from headscape.errors import HeadscapeError, InputError
from headscape.fingerprints import file_hash
from headscape.geometry.affinity import median_distance
from headscape.runs import Run
from headscape.storage import read_arrays
from headscape.studies.organize import ENTROPIES, OrganizeResult, batch_files
from headscape.studies.work.folder import Kept, kept_studies, newest_by_block

__all__ = [
    "DEPTHS",
    "FEWEST",
    "RANKS",
    "UNIT_FREE",
    "WHOLE",
    "OrganizedRun",
    "depth_profile",
    "energy_curve",
    "read_runs",
]

FloatArray = npt.NDArray[np.float64]

UNIT_FREE = ("l1_rel", "shannon")
"""Entropies that do not change when all attention is multiplied by a number."""
WHOLE = ("l1_top", *UNIT_FREE)
"""Entropies of a whole network: that of table 2, whose unit is that of the maps, and two without."""
FEWEST = 4
"""Fewest batches of a run: an interval from fewer would be meaningless."""
IRRELEVANT = ("random_state", "max_memory")
"""Settings of the questionnaire in which two runs may differ."""
DEPTHS = np.linspace(0, 1, 21)
"""Layer distances, relative to that of the first and the last layer, at which depth profiles are compared."""
RANKS = np.unique(np.geomspace(1, 99, 20).round().astype(int))
"""Numbers of coefficients at which energy curves are compared: equal steps of log rank among the 100 largest supports
that the organize study keeps, not counting the constant."""


@dataclass(frozen=True, eq=False)
class OrganizedRun:
    """A run as a comparison sees it; heads are sorted by layer.

    measured holds, with one entry per batch: geometry (n_batch, n_head, n_head), distances of heads over their median;
    l1_rel and shannon (n_batch, n_head), entropies over the largest value their number of coefficients allows, so in
    [0, 1]; decay (n_batch, n_rank) of `energy_curve`; depth (n_batch, n_depth) of `depth_profile`. shuffled has the
    entropies and decay of rows shuffled over the keys. whole (3, n_batch) are the entropies of the network as one tensor
    (table 2 of the paper), `WHOLE`; scores (n_batch, n_head) those by which heads are ranked, l1_top.
    """

    name: str
    network: str
    identity: str
    digest: str
    facts: Mapping[str, Any]
    layers: npt.NDArray[np.int64]
    measured: Mapping[str, FloatArray]
    shuffled: Mapping[str, FloatArray]
    whole: FloatArray
    scores: FloatArray


def read_runs(paths: Sequence[str | Path], block: str | None = None) -> list[OrganizedRun]:
    """Read the organize study of every run, name runs and networks, and refuse what cannot be compared.

    For runs with several blocks it is that of the block named, or of the only one that all runs have.

    Raises
    ------
    InputError
        With fewer than two runs, one named twice, one that was not organized, or has fewer than `FEWEST` batches; and
        when two differ in kind (probabilities, scores), in axes, or in how they were organized.
    """
    if len(paths) < 2:
        raise InputError(f"a comparison needs two runs or more, {len(paths)} given: headscape compare RUN_A RUN_B")
    places = [Path(path).resolve() for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise InputError(f"{paths[i]} is named twice; for the same network on other input, capture a second run")
    short = [place.name for place in places]
    long = [f"{place.parent.name}/{place.name}" for place in places]
    names = [one if short.count(one) == 1 else other for one, other in zip(short, long, strict=True)]
    kept = _of_one_block([_organized_blocks(Path(path)) for path in paths], names, block)
    found = [_read(Path(path), name, own) for path, name, own in zip(paths, names, kept, strict=True)]
    for i, other in enumerate(found):
        for first in found[:i]:
            if first.digest == other.digest:
                raise InputError(f"{other.name} is a copy of {first.name}: the same batches, organized alike; name one")
        _check_pair(found[0], other)
    return _named(found)


def _organized_blocks(path: Path) -> dict[str, Kept]:
    """The newest organize study of every block of a run."""
    run = Run.open(path)
    found = {
        str(kept.facts.get("settings", {}).get("block")): kept for kept in newest_by_block(run, OrganizeResult.study)
    }
    if not found:
        state = "is organized only in part" if kept_studies(run, OrganizeResult.study) else "has not been organized"
        raise InputError(f"{path} {state}; run `headscape organize {path}` first")
    return found


def _of_one_block(runs: Sequence[Mapping[str, Kept]], names: Sequence[str], block: str | None) -> list[Kept]:
    """The study of each run to compare; runs with one block each may differ in its name."""
    if block is None and all(len(blocks) == 1 for blocks in runs):
        return [next(iter(blocks.values())) for blocks in runs]
    common = [one for one in runs[0] if all(one in blocks for blocks in runs)] if block is None else [block]
    if len(common) != 1:
        listed = "; ".join(f"{name} has {', '.join(blocks)}" for name, blocks in zip(names, runs, strict=True))
        way_out = "name one with --block" if common else "they have none in common"
        raise InputError(f"networks are compared by one block, and {listed}: {way_out}")
    for name, blocks in zip(names, runs, strict=True):
        if common[0] not in blocks:
            raise InputError(f"no block {common[0]!r} of {name} was organized; there are {', '.join(blocks)}")
    return [blocks[common[0]] for blocks in runs]


def _read(path: Path, name: str, kept: Kept) -> OrganizedRun:
    run = Run.open(path)
    result = kept.result(run, OrganizeResult)
    files = batch_files(kept)
    missing = [file for file in files if not file.exists()]
    if missing:
        raise InputError(f"{missing[0]} is missing; `headscape organize {path}` makes it again")
    if len(files) < FEWEST:
        need = f"intervals need at least {FEWEST}, better 10: capture again with --batches 10"
        raise InputError(f"{path} has {len(files)} batches; {need}")
    if len(result.heads) < 2:
        raise InputError(f"{path} has one head; a geometry of heads needs at least two")
    wanted = ("head_distances", "order_query", "order_key")
    batches = [read_arrays(file, lambda array: array in wanted)[0] for file in files]
    shapes = sorted({(len(found["order_query"]), len(found["order_key"])) for found in batches})
    if len(shapes) > 1:
        lengths = ", ".join(str(n_query) for n_query, _ in shapes[:6])
        raise InputError(f"{path} mixes contexts of {lengths} tokens; capture again without --keep-short")
    digest = file_hash(kept.path / "result.safetensors")
    return _organized(run, name, digest, result, [found["head_distances"] for found in batches], shapes[0])


def _organized(
    run: Run, name: str, digest: str, result: OrganizeResult, distances: Sequence[FloatArray], shape: tuple[int, int]
) -> OrganizedRun:
    heads = result.heads
    order = np.lexsort((heads["head"].to_numpy(), heads["layer"].to_numpy()))
    layers = heads["layer"].to_numpy(dtype=np.int64)[order]
    geometry = np.array([(D / (median_distance(D) or 1.0))[np.ix_(order, order)] for D in distances])
    largest, of_all = _largest(shape[0] * shape[1]), _largest(shape[0] * shape[1] * len(heads))

    def free_of_units(entropies: FloatArray, decay: FloatArray, network: FloatArray) -> dict[str, FloatArray]:
        found = {name: entropies[:, ENTROPIES.index(name), order] / largest[name] for name in UNIT_FREE}
        return found | {"decay": np.array([energy_curve(b, about) for b, about in zip(decay, network, strict=True)])}

    measured = free_of_units(result.entropies, result.network_decay, result.network)
    measured |= {"geometry": geometry, "depth": np.array([depth_profile(D, layers) for D in geometry])}
    whole = np.array([result.network[:, ENTROPIES.index(name)] / of_all.get(name, 1.0) for name in WHOLE])
    model = run.meta.get("model", {})
    source = str(model.get("source") or name)
    n_heads = int(model.get("n_layers") or 0) * int(model.get("n_heads") or 0)
    settings = result.settings["questionnaire"]
    facts = {"kind": result.kind, "block": result.block, "n_query": shape[0], "n_key": shape[1]}
    facts |= {"n_heads": len(heads), "n_layers": len(np.unique(layers)), "n_batches": result.n_batches}
    facts["pooled_from"] = run.meta["config"]["tokens"] if result.settings.get("pool") else None
    config = run.meta.get("config", {})
    facts["clusters"] = config.get("clusters")
    facts["mask"] = config["mask"] if facts["clusters"] else _mask(run, result.block)
    facts["inputs"] = str(run.meta.get("inputs", {}).get("kind", "array"))
    facts["part"] = bool(0 < len(heads) < n_heads)  # an encoder-decoder counts heads by block: fewer than one block has
    facts["questionnaire"] = {key: value for key, value in settings.items() if key not in IRRELEVANT}
    return OrganizedRun(
        name=name,
        network=Path(source).name if source.startswith(("/", "./", "../", "~")) else source,
        identity=f"{model.get('fingerprint') or run.path.resolve()} {result.block}",
        digest=digest,
        facts=facts,
        layers=layers,
        measured=measured,
        shuffled=free_of_units(result.null_entropies, result.null_network_decay, result.null_network),
        whole=whole,
        scores=result.entropies[:, ENTROPIES.index("l1_top"), order],
    )


def _largest(n: int) -> dict[str, float]:
    """The largest values of the entropies free of units, of n coefficients."""
    return {"l1_rel": float(np.sqrt(max(n - 1, 1))), "shannon": float(np.log(max(n, 2)))}


def depth_profile(D: FloatArray, layers: npt.ArrayLike) -> FloatArray:
    """How head distance grows with layer distance: (21,) values at the relative layer distances `DEPTHS`.

    The mean of D over all pairs of different heads whose layers are this far apart, where 1 is the distance of the
    first and the last layer; linear between the distances that occur. NaN if all heads are in one layer.

    >>> D = np.array([[0.0, 1, 4, 4], [1, 0, 4, 4], [4, 4, 0, 1], [4, 4, 1, 0]])
    >>> depth_profile(D, [0, 0, 5, 5])[[0, 10, 20]]
    array([1. , 2.5, 4. ])
    """
    layer = np.asarray(layers)
    apart = np.abs(layer[:, None] - layer)
    if not apart.any():
        return np.full(len(DEPTHS), np.nan)
    others = ~np.eye(len(D), dtype=bool)
    total = np.bincount(apart[others], weights=D[others])
    count = np.bincount(apart[others])
    known = np.flatnonzero(count)
    return np.asarray(np.interp(DEPTHS, known / apart.max(), total[known] / count[known]))


def energy_curve(coefficients: npt.ArrayLike, network: npt.ArrayLike) -> FloatArray:
    """Tri-Haar decay without units: share of the energy that the first k coefficients hold, at the k of `RANKS`.

    Parameters
    ----------
    coefficients
        (n,): absolute tri-Haar coefficients by falling support, the constant first, as the organize study keeps them.
    network
        (5,): l1_top, l1_all, dc, l1_rel, shannon of all coefficients; l2 without the constant is
        (l1_all - abs(dc)) / l1_rel. Energy is counted without the constant, which the sums of the rows fix.

    >>> energy_curve([3.0, 2.0, 1.0, 0.0], [6.0, 6.0, 3.0, 3 / np.sqrt(5), 0.0])[:3].round(3)
    array([0.8, 1. , 1. ])
    """
    b = np.asarray(coefficients, dtype=np.float64)[1:]
    _, l1_all, dc, l1_rel, _ = np.asarray(network, dtype=np.float64)
    if not l1_rel > 0 or not len(b):  # a constant tensor has no energy but the constant's
        return np.zeros(len(RANKS))
    share = np.cumsum(b**2) / ((l1_all - abs(dc)) / l1_rel) ** 2
    return np.asarray(share[np.minimum(RANKS, len(b)) - 1])


def _mask(run: Run, block: str) -> str:
    try:
        return str(Capture.of_run(run).info["blocks"][block]["mask"])
    except (HeadscapeError, KeyError):  # the attention itself may have been deleted to save space
        return "unknown"


def _crosses(facts: Mapping[str, Any]) -> bool:
    """Whether keys are not the queries' own tokens: another sequence, or a memory before them."""
    return "cross" in facts["block"] or facts["n_query"] != facts["n_key"]


COARSEN = "compare both at a common level of their trees: --coarsen 16"


def _way_out(a: OrganizedRun, b: OrganizedRun) -> str:
    """How two runs of different length can be made to agree: the tokens of an image are given by its patches."""
    images = [run for run in (a, b) if run.facts["inputs"] == "images"]
    if len(images) == 2:
        return "compare networks that cut an image into equally many patches"
    kept = images[0] if images else min((a, b), key=lambda run: int(run.facts["n_query"]))
    other = b if kept is a else a
    return f"capture {other.name} again with --tokens {kept.facts['n_query']}"


def _described(facts: Mapping[str, Any]) -> dict[str, str]:
    """What two runs must have in common, in words."""
    words = {"probs": "holds probabilities", "scores": "holds scores"}
    pooled = facts["pooled_from"]
    return {
        "kind": words[facts["kind"]],
        "axes": "attends to keys that are not its queries (another sequence, or a memory)"
        if _crosses(facts)
        else "attends to its own tokens",
        "length": f"has {facts['n_query']} queries x {facts['n_key']} keys",
        "pooling": f"has maps pooled from {pooled} tokens"
        if pooled
        else f"has maps over {facts['clusters']} clusters"
        if facts["clusters"]
        else "has whole maps",
    } | {name: f"was organized with {name} = {value!r}" for name, value in sorted(facts["questionnaire"].items())}


def _check_pair(a: OrganizedRun, b: OrganizedRun) -> None:
    """Refuse two runs that have no common measure, with the way out."""
    way_out = {
        "kind": "they have no common unit; capture both with --keep probs and organize them with --kind probs",
        "axes": f"different axes; organize the same kind of block in both, or {COARSEN}",
        "length": f"length alone moves a network as far as another network is; {_way_out(a, b)}, or {COARSEN}",
        "pooling": "a block is not a token; capture both alike",
    }
    one, two = _described(a.facts), _described(b.facts)
    for name in one | two:
        ours, theirs = one.get(name, f"has no setting {name}"), two.get(name, f"has no setting {name}")
        if ours != theirs:
            raise InputError(f"{a.name} {ours}, {b.name} {theirs}: {way_out.get(name, 'organize both alike')}")


def _named(found: Sequence[OrganizedRun]) -> list[OrganizedRun]:
    """Give every network its own name; runs of one network share it."""
    first = {run.identity: run for run in reversed(found)}
    plain = [run.network for run in first.values()]

    def name(run: OrganizedRun) -> str:
        return run.network if plain.count(run.network) == 1 else f"{run.network} ({run.name})"

    return [replace(run, network=name(first[run.identity])) for run in found]
