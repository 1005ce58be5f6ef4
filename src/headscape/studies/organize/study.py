"""Organize every captured batch, and ask what holds across batches and against a shuffled null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numba
import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Batch, Capture, open_capture
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.geometry.consensus import consensus_of
from headscape.geometry.distances import dip, mantel, mantel_permuted, pairs_of, ring_dips
from headscape.geometry.matrix import organize_matrix
from headscape.geometry.questionnaire import Questionnaire
from headscape.roles import PROBED, BatchRoles, assign_roles, batch_roles, positional, role_name, role_table
from headscape.runs import Run, human_bytes
from headscape.storage import read_arrays, write_arrays
from headscape.studies.organize.result import DECAY_RANKS, ENTROPIES, OrganizeResult
from headscape.studies.work.folder import Folder, Kept, study_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader, models_of
from headscape.studies.work.units import reachable, run_units
from headscape.tensor import AXES, AttentionTensor, HeadId, Kind, named_heads
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import decay_curve, head_entropies, network_entropy, top_energy

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["batch_files", "measure_trees", "organize", "shuffled_rows", "tensor_shape", "unit_memory"]

HELD, BESIDE = 12, 28
"""Bytes per entry: of a batch as it is read, its tensor and its null; and of entropies and curves at their peak."""
LIBRARIES = 64e6
"""Bytes of compiled kernels and scratch arrays, whatever the shape."""
N_HEAD_BASIS, N_NETWORK_BASIS = 400, 100  # the paper's numbers of largest supports
SHOWN_AGAIN = 4
"""Inputs that are shown to the model again for the parts of its scores."""
PAPER_COEFFICIENTS, LEAST_BASIS = 256**2, 16
"""Coefficients of a head in the paper, of which l1_top takes 400, and the fewest that it takes."""
FEWEST_HEADS = 8
"""Heads without which their distances say nothing as a whole."""
PERMUTATIONS, RINGS = 300, 60
DRAWS = 5
"""Draws of random weights at most; the batches are dealt out to them."""
Arrays = Mapping[str, npt.NDArray[Any]]


def organize(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    kind: Kind | None = None,
    questionnaire: Questionnaire | None = None,
    model: Model | bool | None = True,
    control: Sequence[Model] | Model | bool | None = None,
    loader: Loader | None = None,
    n_basis: int | None = None,
    heads: Sequence[HeadId | str] = (),
    random_state: int = 0,
    **how: Unpack[How],
) -> OrganizeResult | Any:
    """Organize every batch of a capture; find the consensus of the heads, their stability, roles and entropies.

    Parameters
    ----------
    source
        A capture or a run directory; in a directory each batch is stored when done, and a killed study resumes.
    block, kind
        Which block of the network, and "probs" or "scores"; by default the only one there is, probabilities first. Of
        several blocks (an encoder-decoder) and none named, each is organized, and a list of their results returned.
    questionnaire
        Its settings are used for every batch; the default ones otherwise.
    model
        Adds induction and duplicate-token scores, measured on a repeated random sequence. True loads the run's own
        model where it can be had.
    control
        The same architecture with random weights, one or several draws, to which the batches are dealt out: each is
        organized too. True makes up to 5 draws; with fewer than 3 it is not decided what training made.
    loader
        How the run's model is loaded (device, number type, online).
    n_basis
        How many largest supports l1_top takes. By default 400 (n_query n_key) / 256^2, at least 16: the paper's 400 at
        the paper's length.
    heads
        Heads that are drawn before and after their own organization (figure 1); by default the lowest and highest by
        l1_all.
    how
        jobs (batches at a time), threads, engine, resume, progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    HeadscapeError
        When all is tried, if batches failed; those done are kept.
    """
    check_seed(random_state)
    work = Work.of(**how)
    captured = open_capture(source)
    if block is None and len(captured.blocks) > 1:
        same: dict[str, Any] = {"kind": kind, "questionnaire": questionnaire, "n_basis": n_basis, "loader": loader}
        same |= {"model": model, "control": control, "random_state": random_state, **how}
        return [organize(captured, block=b, heads=h, **same) for b, h in _by_block(heads, captured.blocks).items()]
    chosen = captured.block(block)
    chosen_kind = captured.kind(kind)
    settings = _settings(questionnaire or Questionnaire())
    loader = loader or Loader(say=work.say)
    first = control[0] if isinstance(control, Sequence) else control
    own, other = models_of(captured, model, first, loader, random_state, "no induction scores")
    draws: list[Callable[[], Model]] = [partial(_same, one) for one in ([] if other is None else [other])]
    if isinstance(control, Sequence):
        draws = [partial(_same, one) for one in control]
    elif control is True:
        more = range(random_state + 1, random_state + min(DRAWS, len(captured)))
        draws += [partial(loader.model, captured.run, random_init=seed) for seed in more]  # type: ignore[arg-type]
    _say_memory(captured, chosen, chosen_kind, Questionnaire(**settings), work)
    facts = {"block": chosen, "kind": chosen_kind, "seed": random_state, "questionnaire": _decisive(settings)}
    facts |= {"n_basis": n_basis or _n_basis(captured, chosen, chosen_kind), "draws": len(draws)}
    facts["heads"] = [str(head) for head in named_heads(captured.heads(chosen), heads)] if heads else []
    if captured.pool is not None:
        facts["pool"] = captured.pool
    inputs = captured.content() | {
        name: one.fingerprint for name, one in (("model", own), ("control", other)) if one is not None
    }
    with (
        work.started(None if captured.run is None else captured.run.path),
        study_folder(captured.run, OrganizeResult.study, facts, inputs, work) as folder,
    ):
        batches, controls = _measured(captured, facts, settings, draws, folder, work)
        error = max(float(found["sketch_error"][2]) for found in batches)
        if error > 0:
            facts["sketch_error"] = error
            work.say(f"distances between heads are sketched: 95 % of them within {error:.1%}")
        probes = _probes(own, captured, chosen, random_state, folder, work)
        circuits = _circuits(own, captured, chosen, folder)
        result = _summarize(captured, facts, settings, batches, controls, {**probes, **circuits})
        folder.save(result)
    return result


def _by_block(heads: Sequence[HeadId | str], blocks: Sequence[str]) -> dict[str, list[HeadId]]:
    """Heads that were named, by block."""
    named = [head if isinstance(head, HeadId) else HeadId.parse(head) for head in heads]
    for head in named:
        if head.block not in blocks:
            raise InputError(f"no block of this run has a head {str(head)!r}; blocks are {', '.join(blocks)}")
    return {block: [head for head in named if head.block == block] for block in blocks}


def tensor_shape(captured: Capture, block: str, kind: Kind) -> tuple[int, int, int]:
    """(n_query, n_key, n_head) of the first batch, of which one layer is read."""
    first = captured.batch(0)
    n_query, n_key = first.read(f"{kind}/{block}.{next(iter(first.info['layers'][block]))}").shape[1:]
    return n_query, n_key, len(captured.heads(block))


def unit_memory(shape: tuple[int, int, int], fit: float) -> float:
    """Bytes above the interpreter that a batch takes at its peak, if its fit takes `fit`."""
    entries = math.prod(shape)
    return LIBRARIES + HELD * entries + max(fit, BESIDE * entries)


def _say_memory(captured: Capture, block: str, kind: Kind, questionnaire: Questionnaire, work: Work) -> None:
    """Say beforehand where the memory limit, which is one of the fits, will not be one of the command."""
    shape = tensor_shape(captured, block, kind)
    limit = questionnaire.max_memory
    fit = questionnaire.plan(shape, AXES, 4, held=True, threads=work.threads).memory
    needed = unit_memory(shape, fit)
    if needed > 1.2 * limit:
        work.say(
            f"the memory limit of {human_bytes(limit)} holds for each fit, but a batch of {' x '.join(map(str, shape))} with "
            f"its null and coefficients takes about {human_bytes(needed)} per job; fewer tokens or heads, or a pooled "
            "capture, take less"
        )


def _same(model: Model) -> Model:
    return model


def _n_basis(captured: Capture, block: str, kind: Kind) -> int:
    """How many largest supports l1_top takes of heads of this size."""
    n_query, n_key, _ = tensor_shape(captured, block, kind)
    share: float = n_query * n_key / PAPER_COEFFICIENTS
    return max(LEAST_BASIS, round(N_HEAD_BASIS * share))


def _settings(questionnaire: Questionnaire) -> dict[str, Any]:
    settings: dict[str, Any] = questionnaire.get_params() | {"n_neighbours": None}  # a consensus needs all pairs
    settings.pop("n_jobs")
    questionnaire.settings_for(3)  # a wrong one is said before anything is written
    return settings


def _decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that can change a byte; those of a sketch only where there is one."""
    silent = {"scratch", "n_neighbours", "max_memory"} | (
        set() if settings["distance"] == "sketch" else {"distance", "sketch_columns"}
    )
    return {name: value for name, value in settings.items() if name not in silent}


def _measured(
    captured: Capture,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    draws: Sequence[Callable[[], Model]],
    folder: Folder,
    work: Work,
) -> tuple[list[Arrays], list[Arrays]]:
    """The units of all batches, and of the same inputs dealt out to draws of random weights."""
    hashes = captured.content()
    steps = work.stage("organizing", len(captured) * (2 if draws else 1))
    same = {name: facts[name] for name in ("block", "kind", "n_basis")}

    def organized(name: str, source: Capture | Path, weights: Sequence[str]) -> list[Arrays]:
        units = {}
        for i, number in enumerate(captured.numbers):
            seed = facts["seed"] + number
            path = _file(folder, facts, number, hashes.get(f"batch {number}"), weights[i % len(weights)], name)
            units[f"{name} {number}"] = (path, source, i, same, settings, work.threads, seed)
        run_units(_unit, units, work, steps)
        return [_read(unit[0]) for unit in units.values()]

    with reachable(captured, work.engine, folder.units) as source:
        batches = organized("batch", source, [""])
    if not draws:
        return batches, []
    from headscape.attention.capture import recapture

    work.say(f"giving the same inputs to random weights ({len(draws)} draws)")
    shown: dict[int, Batch] = {}
    weights = []
    for d, draw in enumerate(draws):
        control, own = draw(), range(d, len(captured), len(draws))
        found = recapture(control, Capture.in_memory([captured.batch(i) for i in own]), keep=(facts["kind"],))
        shown |= {i: found.batch(k) for k, i in enumerate(own)}
        weights.append(control.fingerprint)
    in_order = Capture.in_memory([shown[i] for i in range(len(captured))])
    with reachable(in_order, work.engine, folder.units) as source:
        return batches, organized("control", source, weights)


def _file(
    folder: Folder, facts: Mapping[str, Any], number: int, content: str | None, weights: str = "", name: str = "batch"
) -> Path:
    """The file of a batch, or of the same input given to other weights."""
    same = (facts["block"], facts["kind"], facts["questionnaire"], facts["n_basis"])
    decisive = (*same, facts["seed"] + number, content, weights)
    return folder.unit(f"{name}-{number:04d}", *decisive)


def batch_files(kept: Kept) -> list[Path]:
    """The files of a finished study's batches, in their order; each holds `head_distances`, trees and entropies."""
    inputs = {
        int(name.split()[1]): str(found) for name, found in kept.facts["inputs"].items() if name.startswith("batch ")
    }
    return [_file(kept.folder, kept.facts["settings"], number, inputs[number]) for number in sorted(inputs)]


def _unit(
    path: Path,
    source: Capture | Path,
    i: int,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    threads: int,
    seed: int,
) -> None:
    """Organize batch i (of the block and kind of the facts) and its null, and write both."""
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    captured = open_capture(source)
    X = captured.tensor(i, facts["block"], facts["kind"])
    n_basis = facts["n_basis"]
    null = _measure(shuffled_rows(X, seed), settings, n_basis, threads)
    arrays = _measure(X, settings, n_basis, threads)
    arrays |= {f"null_{name}": null[name] for name in ("entropies", "network", "decay", "network_decay", "energy")}
    chance: dict[str, float] = {}
    if X.kind == "probs" and "clusters" not in captured.info:  # clusters of tokens have no places
        found = batch_roles(X)
        arrays |= {f"role/{name}": scores for name, scores in found.scores.items()} | {"positional": positional(X)}
        chance = {name: found.chance.get(name, float("nan")) for name in found.scores}
    write_arrays(path, arrays, {"chance": json.dumps(chance)})


def _read(path: Path) -> Arrays:
    arrays, metadata = read_arrays(path)
    chance = json.loads(metadata["chance"])  # by role, in the order of the roles
    return arrays | {"roles": np.array(list(chance)), "chance": np.array(list(chance.values()))}


def _roles_of(found: Arrays) -> BatchRoles:
    names = [str(name) for name in found["roles"]]
    return BatchRoles(
        {name: found[f"role/{name}"] for name in names}, dict(zip(names, map(float, found["chance"]), strict=True))
    )


def shuffled_rows(X: AttentionTensor, random_state: int = 0) -> AttentionTensor:
    """The null: the present entries of every (query, head) row in a random order of keys.

    Rows keep their sums and their values; only where the attention goes is lost.
    """
    rng = np.random.default_rng(random_state)
    values = X.values.copy()
    for query, present in enumerate(X.present):
        values[query, present] = rng.permuted(values[query, present], axis=0)
    return replace(X, values=values)


def _measure(
    X: AttentionTensor, settings: Mapping[str, Any], n_basis: int, threads: int
) -> dict[str, npt.NDArray[Any]]:
    """Everything the study keeps of one tensor, as named arrays."""
    fit = Questionnaire(**settings, n_jobs=threads).fit(X)
    found = measure_trees(X, fit.trees_, n_basis) | {
        "head_distances": np.asarray(fit.distances_[2], dtype=np.float64),
        "compression": np.array([step.compression for step in fit.history_]),
        "sketch_error": np.array(fit.sketch_error_),
    }
    for name, tree in zip(("query", "key", "head"), fit.trees_, strict=True):
        found[f"labels_{name}"] = tree.labels.astype(np.int32)
        found[f"order_{name}"] = tree.order.astype(np.int32)
    return found


def measure_trees(
    X: AttentionTensor, trees: Sequence[PartitionTree], n_basis: int = N_HEAD_BASIS
) -> dict[str, npt.NDArray[Any]]:
    """What the study keeps of a tensor beside its geometry: entropies, decay curves and energies, given its trees.

    Rows of probabilities sum to 1, so that the coefficients constant over keys are known: curves leave them out.
    """
    entropies = head_entropies(X, trees, n_basis)
    network = network_entropy(X, trees, N_NETWORK_BASIS)
    without = 1 if X.kind == "probs" else None
    by_size = decay_curve(X, trees, by="magnitude", per="head", n=N_HEAD_BASIS, without=without)
    by_support = decay_curve(X, trees, by="support", per="head", n=N_HEAD_BASIS, without=without)
    network_decay = decay_curve(X, trees, by="support", n=N_NETWORK_BASIS, without=without)
    natural = [PartitionTree.dyadic(n) for n in X.shape]
    return {
        "entropies": entropies[list(ENTROPIES)].to_numpy(dtype=np.float64).T.copy(),
        "network": network[list(ENTROPIES)].to_numpy(dtype=np.float64),
        "decay": by_size[[rank for rank in DECAY_RANKS if rank < len(by_size)]].astype(np.float32),
        "decay_by_support": by_support.astype(np.float32),
        "network_decay": network_decay.astype(np.float32),
        "energy": np.array([top_energy(X, tree, constant=False) for tree in (trees, natural)]),
    }


def _probes(model: Model | None, captured: Capture, block: str, seed: int, folder: Folder, work: Work) -> Arrays:
    """Induction and duplicate-token scores on repeated random tokens, and the copying score of the weights.

    Nothing without a model, or where they mean nothing.
    """
    if model is None:
        return {}
    heads = captured.heads(block)
    path = folder.unit("probes", model.fingerprint, seed, [str(head) for head in heads])
    if not path.exists():
        from headscape.attention.circuits import copying_scores
        from headscape.attention.induction import repeated_sequence_scores

        try:
            scores = repeated_sequence_scores(model, seed=seed)
        except InputError as error:
            work.say(f"no induction scores: {error}")
            return {}
        with suppress(InputError):  # a network whose values cannot be read has no such column
            scores |= {"copying": copying_scores(model)}
        write_arrays(path, {name: np.array([found[head] for head in heads]) for name, found in scores.items()})
    return read_arrays(path)[0]


def _circuits(model: Model | None, captured: Capture, block: str, folder: Folder) -> Arrays:
    """What makes the scores of each head, on the first inputs; nothing where they cannot be shown to a model again."""
    if model is None or captured.run is None:
        return {}
    heads = captured.heads(block)
    numbers = captured.numbers[:SHOWN_AGAIN]
    contents = [captured.content().get(f"batch {number}") for number in numbers]
    path = folder.unit("circuits", model.fingerprint, contents, [str(head) for head in heads])
    if not path.exists():
        from headscape.attention.samples import replayed
        from headscape.attention.scoring import score_parts, sink_features

        try:
            samples = replayed(model, captured, block)[:SHOWN_AGAIN]
        except InputError:
            return {}
        found = score_parts(model, samples)
        if model.images is None and model.causal:
            found["sink_features"] = sink_features(model, samples)
        write_arrays(path, {name: np.array([of[head] for head in heads]) for name, of in found.items()})
    return read_arrays(path)[0]


def _head_table(
    heads: Sequence[HeadId], kind: Kind, batches: Sequence[Arrays], probes: Arrays
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of heads, with entropies beside their null and roles; and the table of roles."""
    frame = pd.DataFrame(heads, columns=["block", "layer", "head"])
    for k, name in enumerate(ENTROPIES):
        if name == "dc" and kind == "probs":  # one number for all heads
            continue
        frame[name] = np.mean([found["entropies"][k] for found in batches], axis=0)
        frame[f"{name}_null"] = np.mean([found["null_entropies"][k] for found in batches], axis=0)
    roles = pd.DataFrame()
    if len(batches[0]["roles"]):
        made = {
            name: BatchRoles({name: probes[name]}, {name: float(probes["chance"][0])})
            for name in PROBED
            if name in probes
        }
        roles = role_table([_roles_of(found) for found in batches], made)
        frame["role"] = [role_name(role) for role in assign_roles(roles, len(frame))]
        for role, group in roles.groupby("role", sort=False):
            frame[str(role)] = group["score"].to_numpy()
        frame["positional"] = np.mean([found["positional"] for found in batches], axis=0)
        for name in ("copying", "score_distance", "score_key", "score_pair", "sink_features"):
            if name in probes:
                frame[name] = probes[name]
    return frame, roles


def _summarize(
    captured: Capture,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    batches: Sequence[Arrays],
    controls: Sequence[Arrays],
    probes: Arrays,
) -> OrganizeResult:
    agreed = consensus_of([found["head_distances"] for found in batches], Questionnaire(**settings))
    heads = captured.heads(facts["block"])
    frame, roles = _head_table(heads, facts["kind"], batches, probes)

    def stack(name: str, of: Sequence[Arrays] = batches) -> npt.NDArray[Any]:
        shortest = min(len(found[name]) for found in of)  # curves of shorter inputs end earlier
        return np.array([found[name][:shortest] for found in of])

    def tree(found: Arrays, axis: str) -> PartitionTree:
        return PartitionTree.from_labels(found[f"labels_{axis}"], order=found[f"order_{axis}"])

    ends = [heads[int(at(frame["l1_all"]))] for at in (np.argmin, np.argmax)]
    shown = [HeadId.parse(head) for head in facts["heads"]] or list(dict.fromkeys(ends))
    tokens = captured.batch(0).tokens(facts["block"])
    return OrganizeResult(
        block=facts["block"],
        kind=facts["kind"],
        heads=frame,
        roles=roles,
        tree=agreed.tree,
        distances=agreed.distances,
        affinity=agreed.affinity,
        **{name: stack(name) for name in ("entropies", "null_entropies", "network", "null_network")},
        **{name: stack(name) for name in ("energy", "null_energy", "network_decay", "null_network_decay")},
        control_energy=stack("energy", controls) if controls else None,
        control_null_energy=stack("null_energy", controls) if controls else None,
        control_entropies=stack("entropies", controls) if controls else None,
        decay=stack("decay").mean(axis=0),
        null_decay=stack("null_decay").mean(axis=0),
        decay_by_support=batches[0]["decay_by_support"],
        compression=np.array([found["compression"][-1] for found in batches]),
        query_trees=[tree(found, "query") for found in batches],
        key_trees=[tree(found, "key") for found in batches],
        maps=_drawn(captured.tensor(0, facts["block"], facts["kind"]), shown, settings),
        tokens=dict(zip(("query", "key"), tokens, strict=True)),
        settings=dict(facts),
        **_landscape(heads, agreed.distances, batches, facts["seed"]),
    )


def _landscape(
    heads: Sequence[HeadId], agreed: npt.NDArray[Any], batches: Sequence[Arrays], seed: int
) -> dict[str, npt.NDArray[Any]]:
    """What the distances of the heads say as a whole, and how the fits went."""
    steps = [found["compression"] for found in batches]
    most = max(map(len, steps))
    found = {"convergence": np.array([np.pad(s, (0, most - len(s)), constant_values=np.nan) for s in steps])}
    if len(heads) < FEWEST_HEADS:
        return found
    layers = np.array([head.layer for head in heads])
    apart = np.abs(layers[:, None] - layers)
    if apart.any():
        found["depth"] = np.array([mantel(one["head_distances"], apart) for one in batches])
        found["depth_permuted"] = mantel_permuted(agreed, apart, PERMUTATIONS, seed)
    found["dip"] = np.array([dip(pairs_of(one["head_distances"])) for one in batches])
    return found | {"dip_ring": ring_dips(len(heads), RINGS, seed)}


def _drawn(
    X: AttentionTensor, shown: Sequence[HeadId], settings: Mapping[str, Any]
) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Heads of the first batch, with the orders of their own 2-D organization (figure 1).

    An absent entry is given the mean of its row, so that it says nothing about which keys a query prefers.
    """
    found = {}
    for head in shown:
        values = np.where(X.present, X.values[:, :, X.heads.index(head)], np.nan)
        filled = np.where(X.present, values, np.nanmean(values, axis=1, keepdims=True))
        own = organize_matrix(filled, Questionnaire(**settings))
        orders = {"query_order": own.row_order.astype(np.int32), "key_order": own.col_order.astype(np.int32)}
        found[str(head)] = {"values": values.astype(np.float32), **orders}
    return found
