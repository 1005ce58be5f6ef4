"""Do weights look random? The spectrum of every matrix and head, beside noise and the model's own initialization."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.runs import Run
from headscape.statistics import spectra as laws
from headscape.statistics.alignment import (
    alignment_z,
    rotation_test,
    score_spectrum,
    shared_directions,
    symmetric_share,
)
from headscape.storage import read_arrays, write_arrays
from headscape.studies.spectra.result import SpectraResult
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.folder import Folder, working_folder
from headscape.studies.work.handing import models_for
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import model_run
from headscape.studies.work.units import run_units

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.sending import Named
    from headscape.attention.weights import Part

__all__ = ["spectra"]

Array = npt.NDArray[Any]
Units = dict[str, tuple[Path, Any]]
PER_HEAD = ("q", "k", "v", "o")
"""Kinds of matrices that consist of heads."""


def spectra(
    model: Model,
    run: Run | str | Path | None = None,
    *,
    control: Model | None = None,
    rotations: int = 2000,
    random_state: int = 0,
    **how: Unpack[How],
) -> SpectraResult:
    """Compare the weight matrices of a model with noise, and measure how queries and keys align in every head.

    Parameters
    ----------
    model
        Any model whose weight layout is known; only one short input is run.
    run
        A run, or its directory, made if it does not exist; each layer is stored when done, and a killed study resumes.
    control
        The same architecture with random weights: the model before training.
    rotations
        Number of random rotations behind the p-values of the alignments.
    how
        jobs (layers at a time, as threads of this process), engine, resume, progress, say: see
        `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        If a weight is NaN or infinite, or no layer's query and key maps are understood.

    >>> result = hs.spectra(model, rotations=20)
    >>> result.headline()
    'We cannot tell whether W_q and W_k are sparser than W_v'
    >>> list(result.to_frame())[:6]  # one row per head: how W_q and W_k align
    ['block', 'layer', 'head', 'z', 'p', 'by_chance']
    """
    from headscape.attention.weights import check_weights, parts_of

    work = Work.of(**how)
    integer("rotations", rotations, low=1)
    check_seed(random_state)
    if isinstance(work.engine, LocalEngine):
        work = replace(work, engine=LocalEngine(work.engine.jobs, "threads"))  # they share the model
    for one in (model, control):
        if one is not None:
            check_weights(one.module)
    parts, skipped = parts_of(model)
    if not any(part.kind == "q" for part in parts):
        why = f"{skipped[0].place}, {skipped[0].why}"
        raise InputError(f"no query and key maps of {model.source} are understood: {why}")
    make = model_run(model, run, "weights", random_state)
    facts = {"source": model.source, "dtype": model.dtype, "rotations": rotations, "seed": random_state}
    facts["quantized"] = model.quantized
    inputs = {"model": model.fingerprint, "control": None if control is None else control.fingerprint}
    with working_folder(run, SpectraResult.study, facts, inputs, work, make) as folder, one_blas_thread():
        own = _units(model, parts, folder, "layer")
        initial = {} if control is None else _units(control, parts, folder, "control-layer")
        models, to_do = models_for(work, {"layer": model} | ({} if control is None else {"control-layer": control}))
        units = {name: (path, models[name.split()[0]], inside) for name, (path, inside) in (own | initial).items()}
        run_units(_measure, units, to_do, work.stage("layers", len(units)))
        matrices, heads, values = _tables(own)
        first = _tables(initial)[:2] if initial else (None, None)
        work.say("rotating keys against queries at random")
        result = SpectraResult(
            heads=_with_p_values(heads, matrices, values, rotations, random_state),
            matrices=matrices,
            initial_heads=first[1],
            initial_matrices=first[0],
            values=values,
            rotary=_is_rotary(model),
            notes=[f"{s.place} was left out: {s.why}" for s in skipped],
            settings=facts | inputs,
        )
        folder.save(result)
    return result


def _units(model: Model, parts: Sequence[Part], folder: Folder, name: str) -> Units:
    """One unit per layer: its matrices."""
    layers: dict[tuple[str, int], list[Part]] = {}
    for part in parts:
        layers.setdefault((part.block, part.layer), []).append(part)
    found: Units = {}
    for (block, layer), inside in layers.items():
        facts = (model.fingerprint, model.dtype, model.quantized, block, layer, "shared directions")
        path = folder.unit(f"{name}-{block}-{layer:04d}", *facts)
        found[f"{name} {block}.{layer}"] = (path, inside)
    return found


def _measure(path: Path, given: Model | Named, parts: Sequence[Part]) -> None:
    """The spectra of one layer, of the model or of the one that this process loads."""
    from headscape.attention.sending import Named, received

    if not isinstance(given, Named):  # shared by threads of this process, whose settings stay as they are
        _measure_here(path, given, parts)
        return
    with received(given, 1) as model, one_blas_thread():
        _measure_here(path, model, parts)


def _measure_here(path: Path, model: Model, parts: Sequence[Part]) -> None:
    from headscape.attention.weights import read

    arrays: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    shapes = []
    for i, part in enumerate(parts):
        matrix = read(model, part)
        shapes.append(list(matrix.shape))
        arrays[f"rounding/{i}"] = np.array(laws.rounding_variance(matrix) if model.quantized else 0.0)
        arrays[f"values/{i}"] = laws.singular_values(matrix)
        if part.kind in PER_HEAD:
            weights[part.kind] = part.by_head(matrix).astype(np.float64)
            arrays[f"heads/{part.kind}"] = np.linalg.svd(weights[part.kind], compute_uv=False)
    if "q" in weights:
        pair = weights["q"], weights["k"]
        arrays |= {"z": alignment_z(*pair), "symmetric": symmetric_share(*pair), "scores": score_spectrum(*pair)}
        other = np.roll(weights["k"], 1, axis=0)  # the key head of the group before: not its own
        none = np.full(len(weights["q"]), np.nan)
        arrays["z_other"] = alignment_z(weights["q"], other) if len(other) > 1 else none
        arrays["shared"] = shared_directions(*pair)
        arrays["shared_other"] = shared_directions(weights["q"], other) if len(other) > 1 else none
    write_arrays(path, arrays, {"shapes": json.dumps(shapes)})


def _is_rotary(model: Model) -> bool:
    names = (type(module).__name__.lower() for module in model.module.modules())
    return any("rotary" in name for name in names) or bool(getattr(model.config, "rotary_dim", None))


def _tables(units: Units) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Array]]:
    """One row per matrix; one row per query head; singular values of the matrices by row, and of the heads by layer."""
    matrices: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    values: dict[str, Array] = {}
    for path, parts in units.values():
        arrays, metadata = read_arrays(path)
        place = {"block": parts[0].block, "layer": parts[0].layer}
        for i, (part, (m, n)) in enumerate(zip(parts, json.loads(metadata["shapes"]), strict=True)):
            values[f"matrix/{len(matrices):04d}"] = arrays[f"values/{i}"]
            facts = {"kind": part.kind, "module": part.module, "heads": part.n_heads}
            facts |= laws.describe_spectrum(arrays[f"values/{i}"], (m, n))
            matrices.append(place | facts | _rounding(arrays[f"values/{i}"], (m, n), float(arrays[f"rounding/{i}"])))
            if part.kind in PER_HEAD:
                values[f"head/{part.kind}/{part.block}.{part.layer}"] = arrays[f"heads/{part.kind}"]
            if part.kind == "q":
                heads += [place | {"head": h} | _head(arrays, h, n) for h in range(part.n_heads)]
    return pd.DataFrame(matrices), pd.DataFrame(heads), values


def _rounding(values: Array, shape: tuple[int, int], variance: float) -> dict[str, float]:
    """The share of the energy that rounding of the weights makes, its largest singular value, and values below that."""
    edge = laws.MarchenkoPastur(*shape, variance).edges[1] ** 0.5
    share = variance * shape[0] * shape[1] / float((values**2).sum()) if variance else 0.0
    return {"rounding": share, "rounding_edge": edge, "below_rounding": int((values < edge).sum())}


def _head(arrays: Mapping[str, Array], h: int, width: int) -> dict[str, float]:
    """The row of one query head; keys and values are those of its group."""
    found = {name: arrays[name][h] for name in ("z", "z_other", "shared", "shared_other", "symmetric")}
    for kind in PER_HEAD:
        values = arrays.get(f"heads/{kind}")
        if values is not None:
            own = values[h // (len(arrays["z"]) // len(values))]
            found[f"evenness_{kind}"] = laws.participation_ratio(own) / laws.random_participation(len(own), width)
    scores = arrays["scores"][h]
    return found | {"score_rank": laws.participation_ratio(scores), "score_rank90": laws.energy_rank(scores)}


def _with_p_values(
    heads: pd.DataFrame, matrices: pd.DataFrame, values: Mapping[str, Array], rotations: int, seed: int
) -> pd.DataFrame:
    """Add p and by_chance; heads of one shape share their rotations."""
    s, t, shapes = [], [], []
    for _, row in matrices[matrices["kind"] == "q"].iterrows():
        queries, keys = (values[f"head/{kind}/{row['block']}.{row['layer']}"] for kind in ("q", "k"))
        s += list(queries)
        t += list(keys.repeat(len(queries) // len(keys), axis=0))
        shapes += [(queries.shape[1], int(row["columns"]))] * len(queries)
    p, beyond = np.full(len(heads), np.nan), np.full(len(heads), np.nan)
    for shape in dict.fromkeys(shapes):
        index = [i for i, each in enumerate(shapes) if each == shape]
        own, other = (np.stack([side[i] for i in index]) for side in (s, t))
        p[index], beyond[index] = rotation_test(heads["z"].to_numpy()[index], own, other, shape[1], rotations, seed)
    heads.insert(4, "p", p)
    heads.insert(5, "by_chance", beyond)
    return heads
