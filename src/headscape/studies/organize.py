"""Organise every captured batch, and ask what holds across batches and against a shuffled null."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.geometry.consensus import consensus
from headscape.geometry.questionnaire import Questionnaire
from headscape.runs import Run
from headscape.studies.engines import Engine, engine_of
from headscape.studies.organize_result import DECAY_RANKS, ENTROPIES, OrganizeResult
from headscape.studies.roles import assign_roles, role_scores
from headscape.studies.units import (
    Steps,
    block_of,
    reachable,
    read_arrays,
    run_units,
    source_of,
    study_folder,
    write_arrays,
)
from headscape.tensor import AttentionTensor, Kind
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import decay_curve, head_entropies, network_entropy, top_energy

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["organize", "shuffled_rows"]

N_HEAD_BASIS, N_NETWORK_BASIS = 400, 100  # the paper's numbers of largest supports
FloatArray = npt.NDArray[np.float64]


def shuffled_rows(X: AttentionTensor, random_state: int = 0) -> AttentionTensor:
    """The null: the present entries of every (query, head) row in a random order of keys.

    Rows keep their sums and their values; only where the attention goes is lost.
    """
    rng = np.random.default_rng(random_state)
    values = X.values.copy()
    for query, present in enumerate(X.present):
        values[query, present] = rng.permuted(values[query, present], axis=0)
    return replace(X, values=values)


def _measure(X: AttentionTensor, settings: Mapping[str, Any], threads: int) -> dict[str, npt.NDArray[Any]]:
    """Everything the study keeps of one tensor, as named arrays."""
    fit = Questionnaire(**settings, n_jobs=threads).fit(X)
    found = measure_trees(X, fit.trees_) | {
        "head_distances": np.asarray(fit.distances_[2], dtype=np.float64),
        "compression": np.array([step.compression for step in fit.history_]),
        "sketch_error": np.array(fit.sketch_error_),
    }
    for name, tree in zip(("query", "key", "head"), fit.trees_, strict=True):
        found[f"labels_{name}"] = tree.labels.astype(np.int32)
        found[f"order_{name}"] = tree.order.astype(np.int32)
    return found


def measure_trees(X: AttentionTensor, trees: Sequence[PartitionTree]) -> dict[str, npt.NDArray[Any]]:
    """What the study keeps of a tensor beside its geometry: entropies, decay curves and energies, given its trees."""
    entropies = head_entropies(X, trees, N_HEAD_BASIS)
    network = network_entropy(X, trees, N_NETWORK_BASIS)
    by_size = decay_curve(X, trees, by="magnitude", per="head", n=N_HEAD_BASIS)
    natural = [PartitionTree.dyadic(n) for n in X.shape]
    return {
        "entropies": entropies[list(ENTROPIES)].to_numpy(dtype=np.float64).T.copy(),
        "network": network[list(ENTROPIES)].to_numpy(dtype=np.float64),
        "decay": by_size[[rank for rank in DECAY_RANKS if rank < len(by_size)]].astype(np.float32),
        "decay_by_support": decay_curve(X, trees, by="support", per="head", n=N_HEAD_BASIS).astype(np.float32),
        "network_decay": decay_curve(X, trees, by="support", n=N_NETWORK_BASIS).astype(np.float32),
        "energy": np.array([top_energy(X, tree, constant=False) for tree in (trees, natural)]),
    }


def _unit(
    source: Capture | Path,
    i: int,
    block: str,
    kind: Kind,
    path: Path,
    settings: Mapping[str, Any],
    threads: int,
    seed: int,
) -> None:
    """Organise batch i and its null, and write both; skipped when it is there."""
    if path.exists():
        return
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    X = open_capture(source).tensor(i, block, kind)
    own = _measure(X, settings, threads)
    null = _measure(shuffled_rows(X, seed), settings, threads)
    arrays = own | {f"null_{name}": null[name] for name in ("entropies", "network", "decay", "network_decay", "energy")}
    if X.kind == "probs":
        roles = role_scores(X).drop(columns=["block", "layer", "head"])
        arrays["roles"] = roles.to_numpy(dtype=np.float64).T.copy()
    names = json.dumps(list(roles.columns) if X.kind == "probs" else [])
    write_arrays(path, arrays, {"roles": names})


def _read(path: Path) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    arrays, metadata = read_arrays(path)
    return arrays, list(json.loads(metadata["roles"]))


def organize(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    kind: Kind | None = None,
    questionnaire: Questionnaire | None = None,
    model: Model | None = None,
    control: Model | None = None,
    jobs: int = 1,
    threads: int | None = None,
    engine: Engine | str = "local",
    resume: bool = False,
    random_state: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda _: None,
) -> OrganizeResult:
    """Organise every batch of a capture; find the consensus of the heads, their stability, roles and entropies.

    Parameters
    ----------
    source
        A capture or a run directory; with a directory each batch is stored when done, and a killed study goes on.
    block, kind
        Which block of the network, and "probs" or "scores"; by default the only one there is, probabilities first.
    questionnaire
        Its settings are used for every batch; the default otherwise.
    model
        Adds induction and duplicate-token scores, measured on a repeated random sequence.
    control
        The same architecture with random weights: it is shown the same inputs and organised too.
    jobs, threads
        Batches at a time, and threads within one (by default the cores divided by the jobs). Neither changes a byte.
    engine
        "local", "dask" or an engine of `headscape.studies.engines`; Dask needs a run directory. It changes no byte.
    resume
        Raise instead of starting anew where the study was made with other settings.

    Raises
    ------
    HeadscapeError
        When all is tried, if batches failed; those done are kept.
    """
    worker = engine_of(engine, jobs)
    captured = open_capture(source)
    chosen_block = block_of(captured, block)
    chosen_kind: Kind = kind or ("probs" if "probs" in captured.kept else "scores")
    settings = (questionnaire or Questionnaire()).get_params()
    settings.pop("n_jobs")
    settings["n_neighbours"] = None  # a consensus needs all pairs
    threads = worker.threads(threads)
    facts = {"block": chosen_block, "kind": chosen_kind, "seed": random_state, "questionnaire": _decisive(settings)}
    if captured.pool is not None:
        facts["pool"] = captured.pool
    where = None if captured.run is None else captured.run.path
    with (
        worker.started([where], say),
        study_folder(captured.run, OrganizeResult.study, facts, say, resume) as folder,
    ):
        paths = [folder / f"batch-{i:04d}.safetensors" for i in range(len(captured))]
        controls = [folder / f"control-{path.name}" for path in paths] if control is not None else []
        steps = Steps(progress, len(paths) + len(controls))

        def work_off(name: str, source: Capture | Path, files: list[Path]) -> None:
            same = (chosen_block, chosen_kind), (settings, threads)
            units = {
                f"{name} {i}": (source, i, *same[0], path, *same[1], random_state + i) for i, path in enumerate(files)
            }
            run_units(_unit, units, worker, steps, say)

        work_off("batch", source_of(captured), paths)
        if control is not None and not all(path.exists() for path in controls):
            from headscape.attention.capture import recapture

            say("showing the same inputs to random weights")
            shown = recapture(control, captured, keep=(chosen_kind,))
            with reachable(shown, worker, folder) as source:
                work_off("control of batch", source, controls)
        batches = [_read(path) for path in paths]
        control_batches = [_read(path)[0] for path in controls]
    error = max(float(found["sketch_error"][2]) for found, _ in batches)
    if error > 0:
        facts["sketch_error"] = error
        say(f"distances between heads are sketched: 95 % of them within {error:.1%}")
    probes = _induction(model, captured, chosen_block, random_state, say)
    result = _summarise(captured, facts, settings, batches, control_batches, probes)
    if captured.run is not None:
        result.save(captured.run.path / result.study)
    return result


def _decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that can change a byte; those of a sketch only where there is one."""
    silent = {"scratch", "n_neighbours", "max_memory"} | (
        set() if settings["distance"] == "sketch" else {"distance", "sketch_columns"}
    )
    return {name: value for name, value in settings.items() if name not in silent}


def _induction(
    model: Model | None, captured: Capture, block: str, seed: int, say: Callable[[str], None]
) -> dict[str, FloatArray]:
    if model is None:
        return {}
    from headscape.attention.induction import repeated_sequence_scores

    try:
        scores = repeated_sequence_scores(model, seed=seed)
    except InputError as error:
        say(f"no induction scores: {error}")
        return {}
    return {name: np.array([found[head] for head in captured.heads(block)]) for name, found in scores.items()}


def _tree(found: Mapping[str, npt.NDArray[Any]], axis: str) -> PartitionTree:
    return PartitionTree.from_labels(found[f"labels_{axis}"], order=found[f"order_{axis}"])


def _summarise(
    captured: Capture,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    batches: list[tuple[dict[str, npt.NDArray[Any]], list[str]]],
    controls: list[dict[str, npt.NDArray[Any]]],
    probes: Mapping[str, FloatArray],
) -> OrganizeResult:
    arrays = [found for found, _ in batches]
    fits = []
    for found in arrays:
        fit = Questionnaire(**settings)
        fit.distances_ = (found["head_distances"],)
        fits.append(fit)
    agreed = consensus(fits)
    heads = captured.heads(facts["block"])
    frame = pd.DataFrame(heads, columns=["block", "layer", "head"])
    for k, name in enumerate(ENTROPIES):
        frame[name] = np.mean([found["entropies"][k] for found in arrays], axis=0)
        frame[f"{name}_null"] = np.mean([found["null_entropies"][k] for found in arrays], axis=0)
    if batches[0][1]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a pattern no batch can show (next token) stays NaN
            mean = np.nanmean([found["roles"] for found in arrays], axis=0)
        roles = pd.DataFrame(mean.T, columns=batches[0][1])
        for name, values in probes.items():
            roles[name] = values
        frame["role"] = assign_roles(roles)
        frame = pd.concat([frame, roles], axis=1)

    def stack(name: str, of: list[dict[str, npt.NDArray[Any]]] = arrays) -> npt.NDArray[Any]:
        return np.array([found[name] for found in of])

    return OrganizeResult(
        block=facts["block"],
        kind=facts["kind"],
        heads=frame,
        tree=agreed.tree,
        distances=agreed.distances,
        affinity=agreed.affinity,
        entropies=stack("entropies"),
        null_entropies=stack("null_entropies"),
        network=stack("network"),
        null_network=stack("null_network"),
        energy=stack("energy"),
        null_energy=stack("null_energy"),
        control_energy=stack("energy", controls) if controls else None,
        control_null_energy=stack("null_energy", controls) if controls else None,
        control_entropies=stack("entropies", controls) if controls else None,
        decay=stack("decay").mean(axis=0),
        null_decay=stack("null_decay").mean(axis=0),
        decay_by_support=arrays[0]["decay_by_support"],
        network_decay=stack("network_decay"),
        null_network_decay=stack("null_network_decay"),
        compression=np.array([found["compression"][-1] for found in arrays]),
        query_trees=[_tree(found, "query") for found in arrays],
        key_trees=[_tree(found, "key") for found in arrays],
        settings=dict(facts),
    )
