"""Which runs can be compared, and what of each enters a comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.captures import Capture
from headscape.errors import HeadscapeError, InputError
from headscape.geometry.affinity import median_distance
from headscape.geometry.gromov import depth_profile, energy_curve
from headscape.runs import Run
from headscape.studies.organize.result import ENTROPIES, OrganizeResult
from headscape.studies.work.old import read_arrays

__all__ = ["FEWEST", "UNIT_FREE", "Organized", "read_runs"]

FloatArray = npt.NDArray[np.float64]

UNIT_FREE = ("l1_rel", "shannon")
"""Entropies that do not change when all attention is multiplied by a number."""
FEWEST = 4
"""Batches a run must have: with fewer, its halves are always the same ones and an interval means nothing."""
IRRELEVANT = ("random_state", "max_memory")
"""Settings of the questionnaire in which two runs may differ."""


@dataclass(frozen=True, eq=False)
class Organized:
    """A run as a comparison sees it, every array with one entry a batch; heads are sorted by layer.

    distances (n_batch, n_head, n_head) are each over their median; entropies (n_batch, 2, n_head) are those of
    `UNIT_FREE` over the largest value their number of coefficients allows, so in [0, 1]; curves (n_batch, n_rank) and
    profiles (n_batch, n_depth) as in `compare_distances`. null_* are of the rows shuffled over the keys.
    """

    name: str
    network: str
    identity: str
    digest: str
    facts: Mapping[str, Any]
    layers: npt.NDArray[np.int64]
    distances: FloatArray
    entropies: FloatArray
    null_entropies: FloatArray
    curves: FloatArray
    null_curves: FloatArray
    profiles: FloatArray

    @property
    def n_batches(self) -> int:
        """How many batches the run has."""
        return len(self.distances)


def read_runs(paths: Sequence[str | Path]) -> list[Organized]:
    """Read the organize study of every run, name runs and networks, and refuse what cannot be compared.

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
    names = _run_names(places)
    found = [_read(Path(path), name) for path, name in zip(paths, names, strict=True)]
    for i, other in enumerate(found):
        for first in found[:i]:
            if first.digest == other.digest:
                raise InputError(f"{other.name} is a copy of {first.name}: the same batches, organized alike; name one")
        _check_pair(found[0], other)
    return _named(found)


def _run_names(places: Sequence[Path]) -> list[str]:
    """Folder names, with the folder above where two are alike."""
    short = [place.name for place in places]
    return [
        name if short.count(name) == 1 else f"{place.parent.name}/{name}"
        for name, place in zip(short, places, strict=True)
    ]


def _read(path: Path, name: str) -> Organized:
    run = Run.open(path)
    folder = run.path / OrganizeResult.study
    if not (folder / "result.json").is_file():
        state = "has not been organized" if not folder.is_dir() else "is organized only in part"
        raise InputError(f"{path} {state}; run `headscape organize {path}` first")
    result = OrganizeResult.load(folder)
    files = sorted(folder.glob("batch-*.safetensors"))
    if len(files) != result.n_batches:
        raise InputError(
            f"{folder} has the distances of {len(files)} batches, its result of {result.n_batches}; "
            f"delete the folder and run `headscape organize {path}` again"
        )
    if len(files) < FEWEST:
        raise InputError(
            f"{path} has {len(files)} batches; intervals need at least {FEWEST}, better 10: capture again with "
            "--batches 10"
        )
    if len(result.heads) < 2:
        raise InputError(f"{path} has one head; a geometry of heads needs two at least")
    batches = [read_arrays(file, _wanted)[0] for file in files]
    shapes = sorted({(len(found["order_query"]), len(found["order_key"])) for found in batches})
    if len(shapes) > 1:
        lengths = ", ".join(str(n_query) for n_query, _ in shapes[:6])
        raise InputError(f"{path} mixes contexts of {lengths} tokens; capture again without --keep-short")
    return _organized(run, name, result, [found["head_distances"] for found in batches], shapes[0])


def _wanted(array: str) -> bool:
    return array in ("head_distances", "order_query", "order_key")


def _organized(
    run: Run, name: str, result: OrganizeResult, distances: Sequence[FloatArray], shape: tuple[int, int]
) -> Organized:
    heads = result.heads
    order = np.lexsort((heads["head"].to_numpy(), heads["layer"].to_numpy()))
    layers = heads["layer"].to_numpy(dtype=np.int64)[order]
    scaled = np.array([(D / (median_distance(D) or 1.0))[np.ix_(order, order)] for D in distances])
    n = shape[0] * shape[1]
    largest = {"l1_rel": np.sqrt(max(n - 1, 1)), "shannon": np.log(max(n, 2))}
    rows = [ENTROPIES.index(measure) for measure in UNIT_FREE]
    scale = np.array([largest[measure] for measure in UNIT_FREE])[:, None]
    model = run.meta.get("model", {})
    source = str(model.get("source") or name)
    whole = int(model.get("n_layers") or 0) * int(model.get("n_heads") or 0)
    return Organized(
        name=name,
        network=Path(source).name if source.startswith(("/", "./", "../", "~")) else source,
        identity=f"{model.get('fingerprint') or run.path.resolve()} {result.block}",
        digest=_digest(run.path / OrganizeResult.study / "result.safetensors"),
        facts={
            "kind": result.kind,
            "block": result.block,
            "n_query": shape[0],
            "n_key": shape[1],
            "pooled_from": run.meta["config"]["tokens"] if result.settings.get("pool") else None,
            "n_heads": len(heads),
            "n_layers": len(np.unique(layers)),
            "n_batches": result.n_batches,
            "mask": _mask(run, result.block),
            "inputs": str(run.meta.get("inputs", {}).get("kind", "array")),
            # an encoder-decoder counts its heads by block, so that only fewer than one block has is a part
            "part": bool(0 < len(heads) < whole),
            "questionnaire": {
                key: value for key, value in result.settings["questionnaire"].items() if key not in IRRELEVANT
            },
        },
        layers=layers,
        distances=scaled,
        entropies=(result.entropies[:, rows] / scale)[:, :, order],
        null_entropies=(result.null_entropies[:, rows] / scale)[:, :, order],
        curves=_curves(result.network_decay, result.network),
        null_curves=_curves(result.null_network_decay, result.null_network),
        profiles=np.array([depth_profile(D, layers) for D in scaled]),
    )


def _curves(decay: npt.NDArray[Any], network: npt.NDArray[Any]) -> FloatArray:
    return np.array([energy_curve(b, about) for b, about in zip(decay, network, strict=True)])


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _mask(run: Run, block: str) -> str:
    try:
        return str(Capture.of_run(run).info["blocks"][block]["mask"])
    except (HeadscapeError, KeyError):  # the attention itself may have been deleted to save space
        return "unknown"


def _crosses(facts: Mapping[str, Any]) -> bool:
    """Whether keys are other things than queries: another sequence, or a memory before them."""
    return "cross" in facts["block"] or facts["n_query"] != facts["n_key"]


def _way_out(a: Organized, b: Organized) -> str:
    """How two runs of different length can be made to agree: images have as many tokens as they have."""
    images = [run for run in (a, b) if run.facts["inputs"] == "images"]
    if len(images) == 2:
        return "compare networks that cut an image into equally many patches"
    kept = images[0] if images else min((a, b), key=lambda run: int(run.facts["n_query"]))
    other = b if kept is a else a
    return f"capture {other.name} again with --tokens {kept.facts['n_query']}"


def _check_pair(a: Organized, b: Organized) -> None:
    one, two = a.facts, b.facts
    if one["kind"] != two["kind"]:
        words = {"probs": "probabilities", "scores": "scores"}
        raise InputError(
            f"{a.name} holds {words[one['kind']]}, {b.name} {words[two['kind']]}: they have no common unit; capture "
            "both with --keep probs and organize them with --kind probs"
        )
    if _crosses(one) != _crosses(two):
        cross, own = (a, b) if _crosses(one) else (b, a)
        raise InputError(
            f"{cross.name} (block {cross.facts['block']}) looks from queries to keys of another sequence, {own.name} "
            f"(block {own.facts['block']}) to its own tokens: different axes; organize the same kind of block in both"
        )
    if (one["n_query"], one["n_key"]) != (two["n_query"], two["n_key"]):
        raise InputError(
            f"{a.name} has {one['n_query']} queries x {one['n_key']} keys, {b.name} {two['n_query']} x "
            f"{two['n_key']}: length alone moves a network as far as another network is; {_way_out(a, b)}"
        )
    if one["pooled_from"] != two["pooled_from"]:
        ways = [f"pooled from {n} tokens" if n else "whole" for n in (one["pooled_from"], two["pooled_from"])]
        raise InputError(
            f"maps of {a.name} are {ways[0]}, those of {b.name} {ways[1]}: a block is no token; capture both alike"
        )
    for setting in sorted(one["questionnaire"].keys() | two["questionnaire"].keys()):
        ours, theirs = one["questionnaire"].get(setting), two["questionnaire"].get(setting)
        if ours != theirs:
            raise InputError(
                f"{a.name} was organized with {setting} = {ours!r}, {b.name} with {theirs!r}; organize both alike"
            )


def _named(found: Sequence[Organized]) -> list[Organized]:
    """Give every network one name of its own; runs of one network share it."""
    by_identity: dict[str, str] = {}
    for run in found:
        by_identity.setdefault(run.identity, run.network)
    taken = list(by_identity.values())
    names: dict[str, str] = {}
    for run in found:
        plain = by_identity[run.identity]
        names.setdefault(run.identity, plain if taken.count(plain) == 1 else f"{plain} ({run.name})")
    return [Organized(**{**run.__dict__, "network": names[run.identity]}) for run in found]
